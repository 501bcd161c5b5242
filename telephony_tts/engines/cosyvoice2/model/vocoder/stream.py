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
on F alone: the residual blocks of the three stages compute F + 12, F + 2.6 and F + 0.6 of them, upstream's F + 8.
`push_together` pushes chunks of several utterances that are due at once; on a GPU their networks run as one batch
(`vocoder_work`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import SAMPLES_PER_FRAME
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Carry, Noise, Vocoder
from telephony_tts.engines.cosyvoice2.model.vocoder.work import (
    Decode,
    Failed,
    Pitch,
    RestartedSource,
    Source,
    Talk,
    Work,
    answered,
)

__all__ = ["ContinuousJoint", "CounterNoise", "Joint", "UpstreamJoint", "cross_fade", "push_together"]

UPSTREAM_FRAMES = 8
UPSTREAM_SAMPLES = UPSTREAM_FRAMES * SAMPLES_PER_FRAME
FADE_FRAMES = 1


class Joint(Protocol):
    """One utterance."""

    @property
    def vocoder(self) -> Vocoder: ...
    def check(self, mel: Tensor, last: bool) -> None:
        """Raises ValueError for a chunk that cannot be pushed, before anything has changed."""

    def talk(self, mel: Tensor, last: bool) -> Talk:
        """What `push` does, asking for each piece of work. Where it ends early the joint is of no more use."""


@torch.inference_mode()
def push_together(
    joints: Sequence[Joint],
    mels: Sequence[Tensor],
    lasts: Sequence[bool],
    *,
    batched: bool | None = None,
    failed: Failed | None = None,
) -> list[Tensor | None]:
    """The next chunk of each of several utterances, which may be of different vocoders: what `push` gives for each.

    `batched` does work of equal shapes in one call of the network: equal to each alone but for float32's rounding. By
    default so on a GPU; a CPU gains nothing and takes one after the other, to the bit as alone.

    Raises ValueError, and changes nothing, where one of the chunks could not be pushed or a joint is named twice. With
    `failed` that is told of the one, as it is of one whose work cannot be done: there None is given, and the others
    come out as they do without it.
    """
    if len({id(joint) for joint in joints}) < len(joints):
        raise ValueError("a joint takes one chunk at a time: push its next one in another call")
    talks: dict[int, Talk] = {}
    chunks = list(zip(joints, mels, lasts, strict=True))
    for i, (joint, mel, last) in enumerate(chunks):
        try:
            joint.check(mel, last)
        except Exception as error:
            if failed is None:
                raise
            failed(i, error)
        else:
            talks[i] = joint.talk(mel, last)
    return answered(talks, len(chunks), batched, failed)


def _push(joint: Joint, mel: Tensor, last: bool) -> Tensor:
    joint.check(mel, last)
    (audio,) = answered({0: joint.talk(mel, last)}, 1, False, None)
    assert audio is not None
    return audio


class ContinuousJoint:
    """Streams one utterance; see the module. `hold_frames` may be changed between chunks: None is exact."""

    def __init__(self, vocoder: Vocoder, noise: Noise, hold_frames: int | None = None) -> None:
        least = vocoder.reach.f0 + 1  # with fewer, audio's own pitch could still change once emitted
        if hold_frames is not None and hold_frames < least:
            raise ValueError(f"hold_frames must be at least {least}, not {hold_frames}")
        self.hold_frames = hold_frames
        self.vocoder = vocoder
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
        return _push(self, mel, last)

    def check(self, mel: Tensor, last: bool) -> None:
        """Takes any number of frames."""

    def talk(self, mel: Tensor, last: bool) -> Talk:
        reach, decode_reach = self.vocoder.reach, self.vocoder.reach.decode
        self._mel = torch.cat([self._mel, mel.to(self._mel)], 2)
        n_known = self._mel_start + self._mel.shape[2]
        n_final = n_known if last else max(self._n_final, n_known - reach.f0)
        hold = reach.lookahead if self.hold_frames is None else self.hold_frames
        ready = n_known if last else max(self._n_emitted, n_known - hold)
        until = ready + (FADE_FRAMES if hold < reach.lookahead and not last else 0)
        right = min(n_known, until + decode_reach) if ready > self._n_emitted else 0
        provisional = yield from self._extend_source(n_known, n_final, right, last)
        if ready == self._n_emitted:
            audio = torch.zeros(1, 0, device=self._mel.device)
        else:
            left = max(0, self._n_emitted - decode_reach)
            source = torch.cat([self._source, provisional], 2)
            begin, end = ((frame - self._source_start) * SAMPLES_PER_FRAME for frame in (left, right))
            decoded: Tensor = yield Decode(
                self.vocoder,
                self._mel[:, :, left - self._mel_start : right - self._mel_start],
                source[:, :, begin:end],
                self._n_emitted - left,
                until - left,
            )
            audio = self._emit(decoded, ready - self._n_emitted)
        self._forget(reach.f0, decode_reach)
        return audio

    def _emit(self, audio: Tensor, n_ready: int) -> Tensor:
        """The first `n_ready` frames of audio, which begins where the last one ended."""
        if self._tail is not None:
            n = self._tail.shape[1]
            weight = (torch.arange(n, device=audio.device) + 0.5) / n
            audio[:, :n] = self._tail + (audio[:, :n] - self._tail) * weight
        n = n_ready * SAMPLES_PER_FRAME
        self._tail = audio[:, n:].clone() if audio.shape[1] > n else None
        self._n_emitted += n_ready
        return audio[:, :n]

    def _extend_source(self, n_known: int, n_final: int, right: int, last: bool) -> Generator[Work, Any, Tensor]:
        """Adds the source of the frames whose pitch became final; gives the source of those whose pitch is not, if
        frames up to `right` are to be seen."""
        done = self._n_final
        if n_known == done:
            return self._source[:, :, :0]
        first = max(self._mel_start, done - self.vocoder.reach.f0)
        f0: Tensor = yield Pitch(self.vocoder, self._mel[:, :, first - self._mel_start :])
        f0 = f0[:, done - first :]  # frames done .. n_known
        n_new = n_final - done
        if n_new:
            source, self._carry = yield Source(self.vocoder, f0[:, :n_new], done, self._carry, self._noise, last)
            self._source = torch.cat([self._source, source], 2)
            self._n_final = n_final
        if right * SAMPLES_PER_FRAME <= self._source_start * SAMPLES_PER_FRAME + self._source.shape[2]:
            return self._source[:, :, :0]
        provisional: Tensor
        provisional, _ = yield Source(self.vocoder, f0[:, n_new:], n_final, self._carry, self._noise, True)
        return provisional

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
        self.vocoder = vocoder
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
        return _push(self, mel, last)

    def check(self, mel: Tensor, last: bool) -> None:
        if not last and mel.shape[2] < UPSTREAM_FRAMES:
            raise ValueError(f"a chunk before the last needs {UPSTREAM_FRAMES} mel frames, not {mel.shape[2]}")

    def talk(self, mel: Tensor, last: bool) -> Talk:
        new_frames = mel.shape[2]
        if self._cache is not None:
            mel = torch.cat([self._cache[0], mel.to(self._cache[0])], 2)
        n = mel.shape[2]
        if not n:
            return torch.zeros(1, 0, device=self.vocoder.device)
        first = self._n_frames - (n - new_frames)
        f0 = yield Pitch(self.vocoder, mel)
        source: Tensor = yield RestartedSource(self.vocoder, f0, first, self._noise)
        if self._cache is not None:
            source[:, :, :UPSTREAM_SAMPLES] = self._cache[1]
        self._n_frames += new_frames
        audio: Tensor = yield Decode(self.vocoder, mel, source, 0, n)
        if self._cache is not None:
            audio = cross_fade(audio, self._cache[2], self._window)
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
