"""A telephone platform at the end of a real media leg, of any dialect, with a caller who speaks."""

from __future__ import annotations

import asyncio
import random
import time
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.encoder import CODECS
from torture.dialects import PTIME_MS, Dialect, Lateness, more_error_ms
from torture.grammar import invalid_media
from torture.links import Link
from torture.oracle import NativeOracle
from torture.surroundings import Surroundings
from torture.telephone import Telephone

MS = 1_000_000
_SILENCE_MS = 700
"""The caller's audio goes on for so long behind its speech: a detector needs silence to hear an end."""


class CarrierLink(Link):
    """The socket of a platform, and the platform. `late` and `seed` say how late it plays, `late_ms` by how much."""

    def __init__(
        self, around: Surroundings, oracle: NativeOracle, dialect: Dialect, *, late: str, late_ms: int, seed: int
    ) -> None:
        super().__init__(dialect.path, around)
        self.dialect = dialect
        self._oracle = oracle
        lateness = Lateness(late, seed, min(late_ms, dialect.most_late_ms))
        self._telephone = _LinkTelephone(self, dialect, oracle, lateness)
        self._choose = random.Random(f"{seed} caller")
        self._at_ms = 0
        """How much of the caller's audio was sent."""

    def start(self) -> None:
        """Send what begins the stream."""
        for message in self.dialect.start():
            self._telephone.tell(message)

    def hang_up_call(self) -> None:
        """Hang up as the platform does."""
        message = self.dialect.hang_up()
        if message is None:
            self.leave()
        else:
            self._telephone.tell(message)

    def telephone_errs(self, n: int) -> None:
        """Send messages that cannot be read, or were not asked for."""
        for _ in range(n):
            example = self._choose.choice(self.dialect.harmless())
            payload, is_text = invalid_media(self._choose, example, self.dialect.stamp)
            self.send_raw(payload, is_text=is_text)

    async def caller_speaks(self, ms: int) -> None:
        """The caller says something, and is silent."""
        begin_s, n_voice = time.monotonic(), ms // PTIME_MS
        for n, payload in enumerate(frames_of_speech(self.dialect.codec, self.dialect.rate_hz, ms)):
            await asyncio.sleep(max(0, begin_s + n * PTIME_MS / 1000 - time.monotonic()))
            if n == 0:
                self._oracle.caller_speaks(time.monotonic_ns(), ms)
            elif n == n_voice:
                self._oracle.caller_spoke(time.monotonic_ns())
            if self.closed.done():
                return
            message = self.dialect.caller_audio(payload, self._at_ms)
            self._at_ms += PTIME_MS
            if isinstance(message, bytes):
                self.send_raw(message, is_text=False)
            else:
                self._telephone.tell(message)

    def on_message(self, payload: bytes, at_ns: int) -> None:
        self._get(payload, is_text=True)

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        self._get(payload, is_text=False)

    def _get(self, payload: bytes, *, is_text: bool) -> None:
        try:
            self._telephone.get(payload, is_text)
        except Exception as error:
            self._around.crashes.append(f"{self.dialect.path}: {error!r} at {payload[:200]!r}")
        for check, what in self.dialect.wrong:
            self._oracle.wrong(check, what)
        self.dialect.wrong.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._telephone.drop()
        super().connection_lost(exc)


class _LinkTelephone(Telephone):
    def __init__(self, link: CarrierLink, dialect: Dialect, oracle: NativeOracle, lateness: Lateness) -> None:
        super().__init__(dialect, oracle, lateness, time.monotonic_ns)
        self._link = link

    def send(self, message: dict[str, object]) -> None:
        self._link.send(message)

    def hear(self, payload: bytes, now_ns: int, came_ns: int | None = None) -> None:
        if self.dialect.is_filler(payload):
            self.set_lateness(now_ns, in_file=came_ns is not None)
            self._oracle.played_frame("", 0, payload, now_ns)
            return
        n = self.dialect.frame_bytes
        if came_ns is not None:
            self._oracle.file([payload[at : at + n] for at in range(0, len(payload), n)])
        for at in range(0, len(payload), n):
            self.set_lateness(now_ns, in_file=came_ns is not None)
            self._oracle.frame(payload[at : at + n], now_ns, came_ns)
        if self.dialect.pads:
            self._oracle.may_be_padded()


def slack_ms(dialect: Dialect, late: str) -> int:
    """How much less is known of the place of this platform than of one that plays frame by frame."""
    return dialect.most_error_ms - PTIME_MS + more_error_ms(late)


def prepare() -> None:
    """Make the caller's voice, which takes a second, before calls need it."""
    _speech()


@lru_cache
def _speech() -> npt.NDArray[np.float32]:
    """A sentence at 24 kHz, loud, from its first sound on."""
    from telephony_tts.engines.hibari.model import HibariModel

    spoken = HibariModel().speak("Hold on please, I would like to ask you something else before that.")
    assert spoken.sample_rate_hz == 24_000
    wave = spoken.pcm.astype(np.float32) * 1.8
    return wave[int(np.argmax(np.abs(wave) > 0.02 * np.abs(wave).max())) :]


@lru_cache(maxsize=64)
def frames_of_speech(codec: str, rate_hz: int, ms: int) -> tuple[bytes, ...]:
    """A caller's voice of this length and the silence behind it, 20 ms each."""
    import soxr

    wave = soxr.resample(_speech(), 24_000, rate_hz, "HQ")[: rate_hz * ms // 1000]
    n = rate_hz * PTIME_MS // 1000
    pcm = np.zeros((len(wave) // n + _SILENCE_MS // PTIME_MS) * n, np.int16)
    n_voice = len(wave) // n * n
    pcm[:n_voice] = np.rint(wave[:n_voice]).clip(-32768, 32767)
    return tuple(CODECS[codec].encode(pcm[at : at + n]) for at in range(0, len(pcm), n))
