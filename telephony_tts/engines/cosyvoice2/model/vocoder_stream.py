"""Mel chunks to audio without a seam: the vocoder's two ways of joining (specification 6.1, and what is wrong with it).

`ContinuousJoint` (default profile). The chunked audio is the whole utterance's, whatever the chunks:

* the source goes on from chunk to chunk: its phase is carried at the centre of the last frame whose pitch is final, its
  samples are kept, never made twice, and its noise is a function of the utterance's seed and the sample's position;
* each decode is given the frames beside the wanted ones that the graph can see (`Reach`), and only those are emitted.

The price is look-ahead: a frame's audio is final when the 20 mel frames after it are known, 400 ms of speech. The
graph itself needs 397: 287 from an audio sample to the furthest source sample in its spectrum, half a frame to the next
pitch, five frames of mel for that pitch. With less held (`hold_frames`), audio comes earlier and is inexact only in the
20 frames before a chunk's end; what was emitted keeps its pitch and phase, so nothing restarts, and a linear fade of
one frame meets the next chunk's better guess. Level of the deviation from the whole utterance below the signal's,
chunks of 50 frames, random weights (trained ones are yet to be measured):

    hold_frames          8    10    12    14    16    18    20
    full size, dB       73    88   108   130     rounding
    tiny test size, dB  22    26    32    45    73   122    rounding

`UpstreamJoint` (upstream profile): 8 mel frames and 160 ms held back, a Hamming cross-fade that adds 0.67 dB, the sines
starting anew at each chunk (by the same measure 9 dB, full size). For parity, and for those who ask for it.

Both: one object per utterance, `push(mel, last)` gives the audio that is ready. The work of a chunk of F frames depends
on F alone: the first stage of the network sees F + 30 of them, the others F + 8 and F + 4; upstream's see F + 8.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import SAMPLES_PER_FRAME
from .vocoder import Carry, Noise, Vocoder

UPSTREAM_FRAMES = 8
UPSTREAM_SAMPLES = UPSTREAM_FRAMES * SAMPLES_PER_FRAME
FADE_FRAMES = 1

_U32 = 0xFFFFFFFF


class CounterNoise:
    """Standard normal noise that depends on (seed, position, channel) alone: chunking cannot change it.

    A 32-bit mixing function of the counter, keyed twice, gives 23 uniform bits, the inverse normal distribution makes
    them a value (at most 5.2 standard deviations). The same on every device up to the last bits of `erfinv`.
    """

    def __init__(self, seed: int, n_channels: int, device: torch.device | str = "cpu") -> None:
        self._n_channels = n_channels
        self._device = device
        low, high = seed & _U32, seed >> 32 & _U32
        self._key1 = _mix_int(low + 0x9E3779B9 & _U32)
        self._key2 = _mix_int(self._key1 ^ high)

    def __call__(self, first: int, n: int) -> Tensor:
        """[1, n, channels] float32 of the samples first .. first + n."""
        begin = first * self._n_channels
        counter = torch.arange(begin, begin + n * self._n_channels, dtype=torch.int64, device=self._device)
        bits = _mix((_mix(counter & _U32 ^ self._key1) + self._key2) & _U32)
        uniform = ((bits >> 9).float() + 0.5) * 2.0**-22 - 1.0  # (-1, 1), exact in float32, never an end
        return (torch.erfinv(uniform) * math.sqrt(2)).view(1, n, self._n_channels)


class ContinuousJoint:
    """Streams one utterance; see the module. `hold_frames` may be changed between chunks: None is exact."""

    def __init__(self, vocoder: Vocoder, noise: Noise, hold_frames: int | None = None) -> None:
        least = vocoder.reach.f0 + 1  # with fewer, audio's own pitch could still change once emitted
        if hold_frames is not None and hold_frames < least:
            raise ValueError(f"hold_frames must be at least {least}, not {hold_frames}")
        self.hold_frames = hold_frames
        self._vocoder = vocoder
        self._noise = noise
        self._mel = torch.zeros(1, vocoder.config.d_mel, 0, device=vocoder.device, dtype=vocoder.wide)
        self._mel_start = 0
        self._source = torch.zeros(1, 1, 0, device=vocoder.device, dtype=vocoder.wide)
        """Final source samples from frame `_source_start` on."""
        self._source_start = 0
        self._n_final = 0
        """Frames whose pitch is final and in the source."""
        self._carry: Carry | None = None
        self._n_emitted = 0
        self._tail: Tensor | None = None
        """[1, 480]: the first frame not emitted, as it was last known; only where less than the look-ahead is held."""

    @property
    def n_bytes(self) -> int:
        """What this utterance holds on the device, bounded whatever its length."""
        tensors = [self._mel, self._source] + ([self._tail] if self._tail is not None else [])
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    @torch.inference_mode()
    def push(self, mel: Tensor, *, last: bool = False) -> Tensor:
        """Next frames [1, 80, n], n >= 0 -> audio [1, 480 k] float32 of the frames that are ready, all if `last`."""
        reach, decode_reach = self._vocoder.reach, self._vocoder.reach.decode
        self._mel = torch.cat([self._mel, mel.to(self._mel)], 2)
        n_known = self._mel_start + self._mel.shape[2]
        n_final = n_known if last else max(self._n_final, n_known - reach.f0)
        hold = reach.lookahead if self.hold_frames is None else self.hold_frames
        until = n_known if last else max(self._n_emitted, n_known - hold)
        provisional = self._extend_source(n_known, n_final, last)
        audio = torch.zeros(1, 0, device=self._mel.device)
        if until > self._n_emitted:
            fade = FADE_FRAMES if hold < reach.lookahead and not last else 0
            audio = self._decode(until + fade, min(n_known, until + fade + decode_reach), provisional)
            if self._tail is not None:
                n = self._tail.shape[1]
                weight = (torch.arange(n, device=audio.device) + 0.5) / n
                audio[:, :n] = self._tail + (audio[:, :n] - self._tail) * weight
            n_ready = (until - self._n_emitted) * SAMPLES_PER_FRAME
            self._tail = audio[:, n_ready:].clone() if fade else None
            audio = audio[:, :n_ready]
            self._n_emitted = until
        self._forget(reach.f0, decode_reach)
        return audio

    def _extend_source(self, n_known: int, n_final: int, last: bool) -> Tensor:
        """Adds the source of the frames whose pitch became final; gives the source of those whose pitch is not."""
        done = self._n_final
        if n_known == done:
            return self._source[:, :, :0]
        first = max(self._mel_start, done - self._vocoder.reach.f0)
        f0 = self._vocoder.f0(self._mel[:, :, first - self._mel_start :])[:, done - first :]  # frames done .. n_known
        n_new = n_final - done
        if n_new:
            source, self._carry = self._vocoder.excite(f0[:, :n_new], done, self._carry, self._noise, last=last)
            self._source = torch.cat([self._source, source], 2)
            self._n_final = n_final
        if n_final == n_known:
            return self._source[:, :, :0]
        return self._vocoder.excite(f0[:, n_new:], n_final, self._carry, self._noise, last=True)[0]

    def _decode(self, until: int, right: int, provisional: Tensor) -> Tensor:
        """Audio of the frames from the first not emitted up to `until`, seeing those before `right`."""
        left = max(0, self._n_emitted - self._vocoder.reach.decode)
        mel = self._mel[:, :, left - self._mel_start : right - self._mel_start]
        source = torch.cat([self._source, provisional], 2)
        begin, end = (frame - self._source_start for frame in (left, right))
        source = source[:, :, begin * SAMPLES_PER_FRAME : end * SAMPLES_PER_FRAME]
        return self._vocoder.decode(mel, source, self._n_emitted - left, until - left)

    def _forget(self, f0_reach: int, decode_reach: int) -> None:
        """Drops what no later chunk can see. Copies, so that a view does not keep a long chunk alive."""
        left = max(0, self._n_emitted - decode_reach)
        mel_start = max(self._mel_start, min(left, self._n_final - f0_reach))
        self._mel = self._mel[:, :, mel_start - self._mel_start :].clone()
        self._mel_start = mel_start
        self._source = self._source[:, :, (left - self._source_start) * SAMPLES_PER_FRAME :].clone()
        self._source_start = left


class UpstreamJoint:
    """Streams one utterance exactly as upstream does (specification 6.1), its defects included.

    A chunk before the last must have at least 8 frames. The first gives 480 samples a frame less the 3840 held back.
    """

    def __init__(self, vocoder: Vocoder, noise: Noise) -> None:
        self._vocoder = vocoder
        self._noise = noise
        self._n_frames = 0
        self._cache: tuple[Tensor, Tensor, Tensor] | None = None
        """Of the last chunk: 8 mel frames, 3840 samples of source, 3840 of speech."""
        self._window = torch.hamming_window(
            2 * UPSTREAM_SAMPLES, periodic=False, dtype=torch.float64, device=vocoder.device
        )

    @torch.inference_mode()
    def push(self, mel: Tensor, *, last: bool = False) -> Tensor:
        """Next frames [1, 80, n] -> audio [1, samples] float32."""
        if not last and mel.shape[2] < UPSTREAM_FRAMES:
            raise ValueError(f"a chunk before the last needs {UPSTREAM_FRAMES} mel frames, not {mel.shape[2]}")
        new_frames = mel.shape[2]
        if self._cache is not None:
            mel = torch.cat([self._cache[0], mel.to(self._cache[0])], 2)
        if not mel.shape[2]:
            return torch.zeros(1, 0, device=mel.device)
        n = mel.shape[2]
        first = self._n_frames - (n - new_frames)
        source = self._vocoder.mix(self._vocoder.restarted_sines(self._vocoder.f0(mel), first, self._noise))
        if self._cache is not None:
            source[:, :, :UPSTREAM_SAMPLES] = self._cache[1]
        audio = self._vocoder.decode(mel, source, 0, n)
        if self._cache is not None:
            audio = cross_fade(audio, self._cache[2], self._window)
        self._n_frames += new_frames
        if last:
            self._cache = None
            return audio
        tails = (mel[:, :, -UPSTREAM_FRAMES:], source[:, :, -UPSTREAM_SAMPLES:], audio[:, -UPSTREAM_SAMPLES:])
        self._cache = (tails[0].clone(), tails[1].clone(), tails[2].clone())
        return audio[:, :-UPSTREAM_SAMPLES]


def cross_fade(new: Tensor, tail: Tensor, window: Tensor) -> Tensor:
    """new [1, n] begins in the sound of tail [1, k]: rising half of the window [2 k] on the one, falling on the other.

    In float64, stored as float32, not clamped again (specification 6.1).
    """
    k = tail.shape[1]
    mixed = new[:, :k].double() * window[:k] + tail.double() * window[k:]
    return torch.cat([mixed.to(new.dtype), new[:, k:]], 1)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers (held in int64) that spreads every bit over all others."""
    x = x ^ x >> 16
    x = x * 0x7FEB352D & _U32
    x = x ^ x >> 15
    x = x * 0x846CA68B & _U32
    return x ^ x >> 16


def _mix_int(x: int) -> int:
    return int(_mix(torch.tensor(x)).item())
