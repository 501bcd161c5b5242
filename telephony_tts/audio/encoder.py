"""One turn's audio: engine PCM of any rate and chunk length becomes codec frames of one ptime each.

    feed ─► gain ─► fades at joints ─► resampler ─► limiter ─► codec ─► buffer ─► take_frame

Positions on the turn's timeline are output samples from the first sample of the turn. They follow from the number of
input samples alone. So the place of a sentence is known while its last 75 ms are still in the resampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from telephony_tts.audio.g711 import (
    ALAW_SILENCE,
    ULAW_SILENCE,
    Pcm,
    decode_alaw,
    decode_ulaw,
    encode_alaw,
    encode_ulaw,
    require_pcm,
)
from telephony_tts.audio.resampler import Resampler, Samples, n_resampled, to_pcm
from telephony_tts.runtime.errors import AudioError

KNEE = 23_197
"""The limiter leaves samples up to here (-3 dBFS) as they are."""

CEILING = 32_767

MIN_PTIME_MS = 10
MAX_PTIME_MS = 60
MAX_GAIN_DB = 60.0

_DRAIN_STEP_MS = 5
_NOTHING: Samples = np.zeros(0, np.float32)


def _encode_pcm(pcm: Pcm) -> bytes:
    return pcm.astype("<i2", copy=False).tobytes()


def _decode_pcm(payload: bytes) -> Pcm:
    return np.frombuffer(payload, dtype="<i2").astype(np.int16, copy=False)


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to write samples as bytes. `silence` is one sample of it."""

    name: str
    bytes_per_sample: int
    silence: bytes
    rates_hz: tuple[int, ...]
    encode: Callable[[Pcm], bytes]
    decode: Callable[[bytes], Pcm]


PCM_RATES_HZ = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Frames of 20 ms are whole at each of these. At 22050 Hz, 10 and 30 ms are not."""

CODECS: Mapping[str, Codec] = MappingProxyType(
    {
        "ulaw": Codec("ulaw", 1, ULAW_SILENCE, (8_000,), encode_ulaw, decode_ulaw),
        "alaw": Codec("alaw", 1, ALAW_SILENCE, (8_000,), encode_alaw, decode_alaw),
        "pcm": Codec("pcm", 2, b"\x00\x00", PCM_RATES_HZ, _encode_pcm, _decode_pcm),
    }
)


def frame_samples(rate_hz: int, ptime_ms: int) -> int:
    """Samples of one frame. Raises AudioError if that is not a whole number."""
    n_samples, rest = divmod(rate_hz * ptime_ms, 1000)
    if rest:
        step_ms = 1000 // math.gcd(rate_hz, 1000)
        raise AudioError(
            f"{ptime_ms} ms at {rate_hz} Hz is not a whole number of samples: ptime must be a multiple of {step_ms} ms"
        )
    return n_samples


def silent_frame(codec: str, rate_hz: int, ptime_ms: int) -> bytes:
    """One frame of silence. Raises AudioError as `frame_samples` does."""
    return CODECS[codec].silence * frame_samples(rate_hz, ptime_ms)


def limit(samples: Samples) -> Samples:
    """A soft limiter: the identity up to KNEE, then k + h·u/√(1+u²) with u = (|x|-k)/h, h = CEILING-KNEE.

    Odd, monotone, smooth at the knee and never beyond CEILING. The curve lies close to k + h·tanh(u) but needs only
    operations IEEE 754 rounds exactly, so a sample's value cannot depend on its place in a vector (tanh's may).
    In float64, because float32's rounding would break the monotony by a unit in the last place.
    """
    if samples.size == 0 or (samples.max() <= KNEE and samples.min() >= -KNEE):
        return samples
    magnitude = np.abs(samples, dtype=np.float64)
    over = np.maximum(magnitude - KNEE, 0.0) / (CEILING - KNEE)
    bent = KNEE + (CEILING - KNEE) * (over / np.sqrt(1.0 + over * over))
    return np.where(magnitude <= KNEE, samples, np.copysign(bent, samples).astype(np.float32))


@lru_cache(maxsize=64)
def fade_in(n: int) -> Samples:
    """A raised cosine from 0 to 1 over `n` samples. Reversed, it is the fade-out."""
    ramp: Samples = (0.5 - 0.5 * np.cos(np.pi * (np.arange(n) + 0.5) / max(n, 1))).astype(np.float32)
    ramp.flags.writeable = False
    return ramp


class Encoder:
    """Codec frames of one turn.

    Each utterance is `begin`, any number of `feed`, and `end`. Its first and last `fade_ms` are faded, so that joints
    do not click. The frames are the same bytes however the audio is cut into chunks. With `whole_utterances` the last
    frame of each utterance is filled with silence, and no audio waits in the resampler for the next utterance.
    Raises AudioError for a codec, rate, frame or fade length that is not supported.
    """

    def __init__(self, codec: str = "ulaw", rate_hz: int = 8_000, ptime_ms: int = 20, fade_ms: int = 5,
                 whole_utterances: bool = False) -> None:  # fmt: skip
        if codec not in CODECS:
            raise AudioError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")
        self.codec = CODECS[codec]
        if rate_hz not in self.codec.rates_hz:
            rates = ", ".join(map(str, self.codec.rates_hz))
            raise AudioError(f"codec {codec} is carried at {rates} Hz, not {rate_hz}")
        if not MIN_PTIME_MS <= ptime_ms <= MAX_PTIME_MS:
            raise AudioError(f"ptime must be {MIN_PTIME_MS} to {MAX_PTIME_MS} ms, got {ptime_ms}")
        if not 0 <= fade_ms <= ptime_ms:
            raise AudioError(f"fade must be 0 to {ptime_ms} ms (one frame), got {fade_ms}")
        self.rate_hz = rate_hz
        self.ptime_ms = ptime_ms
        self.fade_ms = fade_ms
        self.n_frame_samples = frame_samples(rate_hz, ptime_ms)
        self.frame_bytes = self.n_frame_samples * self.codec.bytes_per_sample
        self.finished = False
        self._is_whole = whole_utterances
        self._resampler: Resampler | None = None
        self._n_before = 0  # output samples of the streams that came before the present resampler
        self._n_encoded = 0  # output samples ever put into the buffer
        self._speech_end = 0  # timeline position after the last audio fed, without the silence that drained it
        self._held = _NOTHING  # the newest audio, kept until more comes: the last audio of an utterance is faded out
        self._n_since_joint = 0
        self._open = False
        self._gain = np.float32(1)
        self._buffer = bytearray()

    # ------------------------------------------------------------ utterances in

    def begin(self, gain_db: float = 0.0) -> int:
        """Start an utterance, and return its position on the timeline. Raises AudioError if one is open."""
        self._require_unfinished()
        if self._open:
            raise AudioError("an utterance is open: end it before the next begins")
        if not (math.isfinite(gain_db) and abs(gain_db) <= MAX_GAIN_DB):
            raise AudioError(f"gain must be within {MAX_GAIN_DB} dB, got {gain_db}")
        self._open = True
        self._gain = np.float32(10 ** (gain_db / 20))
        return self.position_samples

    def feed(self, pcm: Pcm, sample_rate_hz: int) -> None:
        """Take audio of the open utterance. A new rate starts a new resampler after the exact end of the old one."""
        self._require_open()
        require_pcm(pcm)
        if pcm.size == 0:
            return
        resampler = self._resampler_from(sample_rate_hz)
        ramp = fade_in(sample_rate_hz * self.fade_ms // 1000)
        samples: Samples = np.multiply(pcm, self._gain, dtype=np.float32)
        if self._n_since_joint < ramp.size:
            rising = ramp[self._n_since_joint : self._n_since_joint + samples.size]
            samples[: rising.size] *= rising
        self._n_since_joint += samples.size

        if self._held.size:
            samples = np.concatenate((self._held, samples))
        n_sure = max(samples.size - ramp.size, 0)
        self._held = samples[n_sure:].copy()
        self._encode(resampler.feed(samples[:n_sure]))
        self._speech_end = self.position_samples

    def cut_open(self, start: int) -> None:
        """Drop what waits here of the open utterance, which began at `start` of the timeline, but for a fade out."""
        self._require_open()
        width = self.codec.bytes_per_sample
        n_taken = self._n_encoded - len(self._buffer) // width
        kept_to = max(start, n_taken)
        rest = self.codec.decode(bytes(self._buffer[(kept_to - n_taken) * width :]))
        n_fade = min(self.rate_hz * self.fade_ms // 1000, len(rest))
        del self._buffer[(kept_to - n_taken) * width :]
        self._buffer += self.codec.encode(to_pcm(rest[:n_fade] * fade_in(n_fade)[::-1]))
        self._resampler, self._held, self._n_since_joint = None, _NOTHING, 0
        self._n_before = self._n_encoded = self._speech_end = kept_to + n_fade

    def end(self) -> int:
        """End the utterance: fade out its last `fade_ms`, and return its end on the timeline."""
        self._require_open()
        self._open = False
        if not self._is_whole:
            self._close_joint()
            return self.position_samples
        self._flush()
        end = self.position_samples
        n_missing = -end % self.n_frame_samples
        self._buffer += self.codec.silence * n_missing
        self._n_before += n_missing
        self._n_encoded += n_missing
        return end

    def drain(self) -> None:
        """The next audio is late: bring all speech fed so far into whole frames, by feeding silence behind it.

        The filter is never reset. The silence takes its place on the timeline, so later positions stay exact.
        Within an open utterance the speech is faded out here, and faded in when it goes on.
        Does nothing if no speech came since the last call.
        """
        if self._resampler is None:
            return
        self._close_joint()
        n_frames = -(-self._speech_end // self.n_frame_samples)
        silence = np.zeros(max(self._resampler.in_hz * _DRAIN_STEP_MS // 1000, 1), np.float32)
        while self._n_encoded < n_frames * self.n_frame_samples:
            self._encode(self._resampler.feed(silence))

    def finish(self) -> None:
        """The turn is complete: flush the resampler and pad the last frame with the codec's silence. Idempotent.

        An utterance still open (its engine failed) is ended first.
        """
        self._flush()
        self._open = False
        self.finished = True
        n_missing = -len(self._buffer) % self.frame_bytes
        self._buffer += self.codec.silence * (n_missing // self.codec.bytes_per_sample)

    # --------------------------------------------------------------- frames out

    @property
    def n_ready_frames(self) -> int:
        return len(self._buffer) // self.frame_bytes

    @property
    def position_samples(self) -> int:
        """Timeline position of the next sample that is fed. Audio that the resampler still holds counts."""
        return self._n_before + self._n_output(self._held.size)

    @property
    def n_taken_samples(self) -> int:
        """How much of the timeline was taken as frames."""
        return self._n_encoded - len(self._buffer) // self.codec.bytes_per_sample

    def take_frame(self) -> bytes | None:
        """The next `frame_bytes` bytes, or None if a whole frame is not ready."""
        if len(self._buffer) < self.frame_bytes:
            return None
        frame = bytes(self._buffer[: self.frame_bytes])
        # Cheap: a bytearray moves its start, and frees memory when it is half empty.
        del self._buffer[: self.frame_bytes]
        return frame

    # ------------------------------------------------------------- interruption

    def fade_frame(self, frame: bytes | None = None) -> bytes | None:
        """A frame that ends the audio without a click: the next `fade_ms` faded out, then silence.

        The next audio is `frame` if it is given, else what waits here. None if no audio is ready. If less than
        `fade_ms` is ready, the fade is as short. Consumes no audio.
        """
        audio = frame or self._buffer
        if not audio:
            return None
        n_fade = min(self.rate_hz * self.fade_ms // 1000, len(audio) // self.codec.bytes_per_sample)
        speech = self.codec.decode(bytes(audio[: n_fade * self.codec.bytes_per_sample]))
        faded = self.codec.encode(to_pcm(speech * fade_in(n_fade)[::-1]))
        return faded + self.codec.silence * (self.n_frame_samples - n_fade)

    @property
    def n_fade_samples(self) -> int:
        return self.rate_hz * self.fade_ms // 1000

    def faded_in(self, frame: bytes, begin: int = 0) -> bytes:
        """`frame` with silence before its sample `begin`, and `fade_ms` faded in from there. `begin` is negative if the
        fade began in the frame before."""
        pcm = self.codec.decode(frame).astype(np.float32)
        start = max(begin, 0)
        ramp = fade_in(self.n_fade_samples)[start - begin :][: max(0, pcm.size - start)]
        pcm[:start] = 0
        pcm[start : start + ramp.size] *= ramp
        return self.codec.encode(to_pcm(pcm))

    def discard(self) -> None:
        """Drop all audio, also that in the resampler. The encoder is finished, and its position stays."""
        self._n_before = self.position_samples
        self._resampler = None
        self._held = _NOTHING
        self._buffer = bytearray()
        self._open = False
        self.finished = True

    def cut(self, position: int) -> int:
        """Drop the audio behind `position` of the timeline that was not taken yet, with a fade before it.

        Returns where the timeline goes on: later than `position` if frames behind it were taken. The open utterance
        ends there. Raises AudioError if the turn is finished.
        """
        self._require_unfinished()
        self._flush()
        n_bytes, taken = self.codec.bytes_per_sample, self.n_taken_samples
        position = max(taken, min(position, self._n_encoded))
        del self._buffer[(position - taken) * n_bytes :]
        if position < self._n_encoded:
            n_fade = min(self.rate_hz * self.fade_ms // 1000, position - taken)
            at = len(self._buffer) - n_fade * n_bytes
            speech = self.codec.decode(bytes(self._buffer[at:]))
            self._buffer[at:] = self.codec.encode(to_pcm(speech * fade_in(n_fade)[::-1]))
        self._n_before = self._n_encoded = self._speech_end = position
        self._open = False
        return position

    # ------------------------------------------------------------------- inside

    def _require_unfinished(self) -> None:
        if self.finished:
            raise AudioError("the turn's audio is finished")

    def _require_open(self) -> None:
        self._require_unfinished()
        if not self._open:
            raise AudioError("no utterance is open: begin one first")

    def _resampler_from(self, in_hz: int) -> Resampler:
        if self._resampler is None or self._resampler.in_hz != in_hz:
            fresh = Resampler(in_hz, self.rate_hz)  # raises for a rate that is not supported, before the state changes
            self._flush()
            self._resampler = fresh
        return self._resampler

    def _n_output(self, n_more: int) -> int:
        """Output samples of the present stream after `n_more` more input samples."""
        if self._resampler is None:
            return 0
        return n_resampled(self._resampler.n_in + n_more, self._resampler.in_hz, self.rate_hz)

    def _close_joint(self) -> None:
        """Fade out the held audio and pass it on. Audio that follows is faded in."""
        if self._resampler is not None and self._held.size:
            ramp = fade_in(self._resampler.in_hz * self.fade_ms // 1000)
            faded: Samples = self._held * ramp[: self._held.size][::-1]
            self._held = _NOTHING
            self._encode(self._resampler.feed(faded))
        self._n_since_joint = 0

    def _flush(self) -> None:
        """End the present stream at its exact length."""
        self._close_joint()
        if self._resampler is not None:
            self._n_before = self.position_samples
            self._encode(self._resampler.finish())
            self._resampler = None

    def _encode(self, samples: Samples) -> None:
        if samples.size:
            self._n_encoded += samples.size
            self._buffer += self.codec.encode(to_pcm(limit(samples)))
