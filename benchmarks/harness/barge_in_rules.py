"""What other software takes for an interruption: pipecat, livekit, WebRTC's and TEN's detectors, as a process.

It runs in an environment of its own, which has their packages. Each request is a line of JSON: the length of mu-law
audio at 8 kHz, which follows. The answer is a line of JSON: for each rule the moments, in ms, at which it would stop
the bot. Pipecat and livekit run their own code: pipecat's analyzer, whose state SPEAKING begins an interruption, and
livekit's stream of voice activity, whose events `AgentActivity` interrupts by when speech has lasted 0.5 s. For
WebRTC's and TEN's detectors, which have no rule, speech is 200 ms of voice within 300 ms.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_LIVEKIT_MIN_S = 0.5
_WITHOUT_S = 0.5
"""So much without voice ends speech for the detectors that have no rule."""


def decoded(payload: bytes) -> Any:
    """G.711 mu-law to int16."""
    code = ~np.frombuffer(payload, np.uint8)
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = (((mantissa.astype(np.int32) << 3) + 0x84) << exponent) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def pipecat(pcm: Any) -> list[float]:
    from pipecat.audio.vad.silero import SileroVADAnalyzer
    from pipecat.audio.vad.vad_analyzer import VADState

    analyzer = SileroVADAnalyzer(sample_rate=8000)
    analyzer.set_sample_rate(8000)
    stops, was_speaking = [], False
    for at in range(0, len(pcm) - 159, 160):
        state = analyzer._run_analyzer(pcm[at : at + 160].tobytes())
        is_speaking = state in (VADState.SPEAKING, VADState.STOPPING)
        if is_speaking and not was_speaking:
            stops.append((at + 160) / 8)
        was_speaking = is_speaking
    analyzer._executor.shutdown(wait=False)
    return stops


def livekit(pcm: Any) -> list[float]:
    from livekit import rtc
    from livekit.agents.vad import VADEventType
    from livekit.plugins import silero

    async def run() -> list[float]:
        stream = silero.VAD.load(sample_rate=8000).stream()
        stops, done = [], False

        async def push() -> None:
            for at in range(0, len(pcm) - 159, 160):
                stream.push_frame(rtc.AudioFrame(pcm[at : at + 160].tobytes(), 8000, 1, 160))
                if at % 16000 == 0:
                    await asyncio.sleep(0)
            stream.end_input()

        pushing = asyncio.create_task(push())
        async for event in stream:
            if event.type == VADEventType.END_OF_SPEECH:
                done = False
            elif event.type == VADEventType.INFERENCE_DONE and event.speech_duration >= _LIVEKIT_MIN_S and not done:
                done = True
                # The window is complete when the frame that holds its end has come.
                stops.append(-(-event.samples_index // 160) * 20.0)
        await pushing
        return stops

    return asyncio.run(run())


def _by_share(is_voice: list[bool], step_ms: float) -> list[float]:
    """Stops where 200 of the last 300 ms are voice, once until there is half a second without voice."""
    n_of, n_least, n_without = round(300 / step_ms), round(200 / step_ms), round(_WITHOUT_S * 1000 / step_ms)
    stops, is_speaking, n_quiet = [], False, 0
    for n, voice in enumerate(is_voice):
        n_quiet = 0 if voice else n_quiet + 1
        if n_quiet >= n_without:
            is_speaking = False
        elif not is_speaking and sum(is_voice[max(0, n - n_of + 1) : n + 1]) >= n_least:
            is_speaking = True
            stops.append((n + 1) * step_ms)
    return stops


def webrtc(pcm: Any) -> list[float]:
    import webrtcvad

    vad = webrtcvad.Vad(2)
    found = [vad.is_speech(pcm[at : at + 160].tobytes(), 8000) for at in range(0, len(pcm) - 159, 160)]
    return _by_share(found, 20)


def ten(pcm: Any) -> list[float]:
    """It hears 16 kHz only."""
    from ten_vad import TenVad

    vad = TenVad(256, 0.5)
    between = (pcm.astype(np.float32) + np.roll(pcm, -1)) / 2
    doubled = np.stack([pcm.astype(np.float32), between], 1).ravel().astype(np.int16)
    found = [bool(vad.process(doubled[at : at + 256])[1]) for at in range(0, len(doubled) - 255, 256)]
    return _by_share(found, 16)


RULES: dict[str, Callable[[Any], list[float]]] = {
    "pipecat": pipecat, "livekit": livekit, "webrtcvad": webrtc, "ten-vad": ten,
}  # fmt: skip


def main() -> None:
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else list(RULES)
    while line := sys.stdin.buffer.readline():
        pcm = decoded(sys.stdin.buffer.read(json.loads(line)))
        print(json.dumps({name: RULES[name](pcm) for name in names}), flush=True)


if __name__ == "__main__":
    main()
