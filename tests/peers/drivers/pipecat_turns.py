"""One of pipecat's text-to-speech services in a bot without a telephone: what its pipeline does with turns.

`--service` deepgram, flux, elevenlabs, cartesia or openai. A loudspeaker at the end of the pipeline takes audio at the
pace of speech, so that a turn is interrupted where its listener is, and its words reach the context when they are
heard.

Steps: `turn:TEXT` (as a language model sends it, word by word), `hear:MS` (played, not received), `interrupt` (what
pipecat does when the caller speaks), `wait:stopped` (the service ended the turn), `wait:silent` (it was played; an
interruption is followed by a `silent` of its own).
Events: `audio` as received with its `turn`, counted from 1 in the order of the first frames; `stopped`; `text` (a
TTSTextFrame where it is spoken) with its `turn`; `silent`, `error`, `connected`, `disconnected`; at the end
`context` with what the bot believes it has said, a text for each turn.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner
from reporting import Ear, arguments, report, split, websocket_url, words

OPTIONS = arguments(service="deepgram", voice="", rate=0, encoding="linear16")
RATE = OPTIONS.rate or (24_000 if OPTIONS.service == "openai" else 8_000)
EAR = Ear(RATE * 2 / 1000, OPTIONS.within)
TURNS: dict[str, int] = {}


def turn_of(frame: Any) -> int:
    """Which turn a frame of the service belongs to, by the service's own mark."""
    return TURNS.setdefault(str(frame.context_id), len(TURNS) + 1)


def service() -> Any:
    """The service, pointed at the server by its one argument for that."""
    chosen = {"voice": OPTIONS.voice} if OPTIONS.voice else {}
    common = {"api_key": OPTIONS.key, "sample_rate": RATE}
    socket = websocket_url(OPTIONS.url)
    if OPTIONS.service == "deepgram":
        from pipecat.services.deepgram.tts import DeepgramTTSService as Deepgram

        made = Deepgram(base_url=socket, encoding=OPTIONS.encoding, settings=Deepgram.Settings(**chosen), **common)
    elif OPTIONS.service == "flux":
        from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService as Flux

        made = Flux(url=f"{socket}/v2/speak", settings=Flux.Settings(**chosen), **common)
    elif OPTIONS.service == "elevenlabs":
        from pipecat.services.elevenlabs.tts import ElevenLabsTTSService as Eleven

        made = Eleven(url=socket, settings=Eleven.Settings(**{"voice": "tone", **chosen}), **common)
    elif OPTIONS.service == "cartesia":
        from pipecat.services.cartesia.tts import CartesiaTTSService as Cartesia

        made = Cartesia(
            url=f"{socket}/tts/websocket", settings=Cartesia.Settings(**{"voice": "tone", **chosen}), **common
        )
    else:
        from pipecat.services.openai.tts import OpenAITTSService as OpenAI

        made = OpenAI(base_url=f"{OPTIONS.url}/v1", settings=OpenAI.Settings(**chosen), **common)
    return made


class ServiceTap(FrameProcessor):
    """Reports what leaves the service, before it is played."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            report("audio", audio=frame.audio, turn=turn_of(frame), rate=frame.sample_rate)
        elif isinstance(frame, TTSStoppedFrame):
            EAR.message("stopped", turn=turn_of(frame))
        await self.push_frame(frame, direction)


class Loudspeaker(BaseOutputTransport):
    """Plays into the void, at the pace of speech."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_end_silence_secs=0))
        self._free_at_s = 0.0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        if isinstance(frame, TTSAudioRawFrame):
            EAR.count(frame.audio)
        now_s = time.monotonic()
        self._free_at_s = max(self._free_at_s, now_s) + len(frame.audio) / (frame.sample_rate * 2)
        await asyncio.sleep(self._free_at_s - now_s)
        return True


class SpeechTap(FrameProcessor):
    """Reports what has been spoken."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSTextFrame):
            EAR.message("text", text=frame.text, turn=turn_of(frame))
        elif isinstance(frame, BotStoppedSpeakingFrame) and direction is FrameDirection.DOWNSTREAM:
            EAR.message("silent")
        await self.push_frame(frame, direction)


async def take_steps(worker: PipelineWorker) -> None:
    for step in OPTIONS.steps:
        kind, text = split(step)
        if EAR.waits(step):
            await EAR.wait(step)
        elif kind == "turn":
            await worker.queue_frame(LLMFullResponseStartFrame())
            for word in words(text):
                await worker.queue_frame(LLMTextFrame(word))
            await worker.queue_frame(LLMFullResponseEndFrame())
        elif kind == "interrupt":
            report("sent", message="InterruptionFrame", played_ms=round(EAR.heard_ms))
            EAR.forget_audio()
            await worker.queue_frame(InterruptionFrame())


async def drive() -> None:
    speech = service()
    context = LLMContext()
    pipeline = Pipeline([speech, ServiceTap(), Loudspeaker(), SpeechTap(), LLMAssistantAggregator(context)])
    worker = PipelineWorker(
        pipeline, cancel_on_idle_timeout=False, enable_rtvi=False, params=PipelineParams(audio_out_sample_rate=RATE)
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_started(worker: Any, frame: Any) -> None:
        started.set()

    @worker.event_handler("on_pipeline_error")
    async def on_error(worker: Any, frame: Any) -> None:
        EAR.message("error", error=str(frame.error))

    if OPTIONS.service != "openai":

        @speech.event_handler("on_connected")
        async def on_connected(*_: Any) -> None:
            EAR.message("connected")

        @speech.event_handler("on_disconnected")
        async def on_disconnected(*_: Any) -> None:
            EAR.message("disconnected")

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await asyncio.wait_for(started.wait(), OPTIONS.within)
    await take_steps(worker)
    await worker.queue_frame(EndFrame())
    await asyncio.wait_for(running, OPTIONS.within)
    said = [message.get("content") for message in context.get_messages() if isinstance(message, dict)]
    report("context", said=said)


asyncio.run(drive())
