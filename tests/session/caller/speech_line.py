"""A telephone line with real voices: the caller's speech, our speech that comes back as an echo, and noise.

Time is simulated, so a delay measured here is the same on every machine.
"""

from __future__ import annotations

import asyncio
import atexit
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
from world import World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.session.settings import BargeInSettings, SessionSettings
from telephony_tts.wire import messages as m

RATE_HZ = 8000
STEP_MS = 20
HOUSE_DBOV = -20.0
"""The level of our speech, after the engines' gains."""
CALLERS = ("No, wait a moment please.", "Stop, that is not what I asked for.", "Hold on, I have a question.")
BOT = (
    "Your parcel left the depot on Tuesday and should arrive before noon. "
    "If you are not at home, our driver will leave it with a neighbour, unless you would like to name another place. "
    "I can offer you an appointment on Monday at nine, or on Friday afternoon. Which of these would suit you best?"
)

Signal = npt.NDArray[np.float64]


@lru_cache
def model() -> VoiceModel:
    return VoiceModel()


@lru_cache
def speaker(voice: str) -> tuple[asyncio.Runner, Any]:
    """The engine of a voice, started once, with its loop: loading takes fifty times as long as a sentence."""
    engine: Any = HibariEngine(n_workers=1) if voice == "heart" else EspeakEngine(n_workers=1)
    runner = asyncio.Runner()
    runner.run(engine.start())

    def close() -> None:
        runner.run(engine.close())
        runner.close()

    atexit.register(close)
    return runner, engine


@lru_cache(maxsize=64)
def speech(text: str, voice: str, dbov: float = HOUSE_DBOV) -> Signal:
    """`text` at 8 kHz, full scale 1.0, from its first sound on, in hibari's voice or one of espeak's."""
    runner, engine = speaker(voice)

    async def render() -> tuple[Signal, int]:
        utterance = Utterance(id="u", text=text, voice=voice)
        chunks = [chunk async for chunk in engine.synthesize(utterance)]
        return np.concatenate([chunk.pcm for chunk in chunks]) / 32768, chunks[0].sample_rate_hz

    wave, rate_hz = runner.run(render())
    wave = soxr.resample(wave, rate_hz, RATE_HZ, "HQ")
    wave = wave[int(np.argmax(np.abs(wave) > 0.02 * np.abs(wave).max())) :]
    return at_level(wave, dbov)


def at_level(wave: Signal, dbov: float) -> Signal:
    """The audio scaled to this mean power in windows with speech: those within 30 dB of the loudest."""
    powers = np.square(wave[: len(wave) // 256 * 256].reshape(-1, 256)).mean(axis=1)
    active = powers[powers > powers.max() / 1000].mean()
    scaled: Signal = wave * np.sqrt(10 ** (dbov / 10) / active)
    return scaled


class SpeechLine(World):
    """A media leg with a simulated caller at its far end; `listen` lets time pass there.

    The peer plays from the moment at which frames come, and `late_ms` after that. What it plays comes back `delay_ms`
    later, `echo_db` weaker (None: not at all), with noise of `noise_dbov`.
    """

    def __init__(
        self,
        barge_in: BargeInSettings | None = None,
        *,
        codec: str = "ulaw",
        rate_hz: int = RATE_HZ,
        bot_voice: str = "heart",
        echo_db: float | None = None,
        delay_ms: int = 100,
        late_ms: int = 0,
        noise_dbov: float = -60.0,
        find_model: Any = model,
        **settings: Any,
    ) -> None:
        self.bot_voice = bot_voice
        super().__init__(
            SessionSettings(
                first_clause_chars=0,
                codec=codec,
                rate_hz=rate_hz,
                barge_in=barge_in or BargeInSettings(enabled=True),
                **settings,
            ),
            peer=True,
            peer_delay_ms=late_ms,
            voice_model=find_model,
        )
        self.codec, self.rate_hz, self.late_ms = codec, rate_hz, late_ms
        self.echo_db, self.delay_ms, self.noise_dbov = echo_db, delay_ms, noise_dbov
        self._noise = np.random.default_rng(7)
        self._played = np.zeros(RATE_HZ * 300)
        self._end = 0
        self._n_logged = 0
        self.timeline: list[tuple[float, Any]] = []
        """(ms, event for the bot or the peer) since the beginning."""

    def chunks_of(self, utterance: Utterance, number: int) -> list[Chunk]:
        pcm = np.rint(speech(utterance.text, self.bot_voice) * 32767).clip(-32768, 32767).astype(np.int16)
        return [Chunk(pcm[at : at + 1600], RATE_HZ) for at in range(0, len(pcm), 1600)]

    def heard(self, payload: bytes) -> int:
        """Real speech does not show its turn, and no test needs it."""
        return 0

    def listen(self, ms: float, caller: Signal | None = None, *, clock: bool = True) -> None:
        """Let time pass. The caller says `caller` from now on."""
        n_step = RATE_HZ * STEP_MS // 1000
        for n in range(round(ms / STEP_MS)):
            self.run(STEP_MS)
            self._play()
            heard = 10 ** (self.noise_dbov / 20) * self._noise.standard_normal(n_step)
            if self.echo_db is not None:
                end = round(self.now_ms - self.delay_ms) * RATE_HZ // 1000
                if end >= n_step:
                    heard += 10 ** (self.echo_db / 20) * self._played[end - n_step : end]
            if caller is not None:
                said = caller[n * n_step : (n + 1) * n_step]
                heard[: len(said)] += said
            self.send(m.MediaAudio(self._encode(heard), round(self.now_ms) - STEP_MS if clock else None))
            self._play()

    def _encode(self, wave: Signal) -> bytes:
        # Repeated samples alias far above speech. They are enough to show that the leg's rate counts.
        pcm = np.rint(np.repeat(wave, self.rate_hz // RATE_HZ) * 32767).clip(-32768, 32767).astype(np.int16)
        return CODECS[self.codec].encode(pcm)

    def _play(self) -> None:
        """Put the frames since the last call on the peer's timeline."""
        new, self._n_logged = self.log[self._n_logged :], len(self.log)
        self.timeline += [(self.now_ms, each) for each in new]
        at = round(self.now_ms) * RATE_HZ // 1000
        for each in new:
            if isinstance(each, m.MediaClear):
                self._end = min(self._end, at)
                self._played[at:] = 0
            elif isinstance(each, m.Frame):
                wave = CODECS[self.codec].decode(each.payload)[:: self.rate_hz // RATE_HZ] / 32768
                begin = max(self._end, at + self.late_ms * RATE_HZ // 1000)
                self._played[begin : begin + len(wave)] = wave
                self._end = begin + len(wave)

    def when(self, kind: type, **fields: Any) -> list[float]:
        """The moments, in ms, at which an event of this kind came."""
        return [
            at_ms for at_ms, each in self.timeline
            if type(each) is kind and all(getattr(each, name) == value for name, value in fields.items())
        ]
