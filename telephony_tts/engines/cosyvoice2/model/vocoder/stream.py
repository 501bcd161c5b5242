"""Mel chunks to audio: the two ways in which the vocoder joins chunks (specification 6.1 and its defects).

`ContinuousJoint` (default profile). The audio is that of the whole utterance, whatever the chunks are:

* The source continues from chunk to chunk. Its phase is kept at the centre of the last frame whose pitch is final. Its
  samples are kept and never made twice. Its noise depends on the seed of the utterance and the position of the sample.
* Each decode gets the frames on both sides that the graph can see (`Reach`). Only the frames between are emitted.

The price is look-ahead: the audio of a frame is final when the 20 mel frames after it are known, which is 400 ms of
speech. The graph itself needs 397 ms: 287 ms from an audio sample to the furthest source sample in its spectrum, half a
frame to the next pitch, and five frames of mel for that pitch. With a smaller `hold_frames` audio comes earlier, and is
inexact in the last 20 frames of a chunk only. Emitted audio keeps its pitch and phase, and a linear fade of one frame
leads into the next chunk. The table is the level of the deviation from the whole utterance below that of the signal,
for chunks of 50 frames and random weights. Trained weights are not measured yet.

    hold_frames          8    10    12    14    16    18    20
    full size, dB       73    88   108   130     rounding
    tiny test size, dB  22    26    32    45    73   122    rounding

`UpstreamJoint` (upstream profile) does as the reference. It holds back 8 mel frames (160 ms), cross-fades with a
Hamming window, which adds 0.67 dB, and restarts the sines in each chunk. By the same measure it is at 9 dB (full size).
It is for parity.

A joint holds the state of one utterance. The work of a chunk of F frames depends on F alone: the residual blocks of the
three stages compute F + 12, F + 2.6 and F + 0.6 frames, those of upstream F + 8.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import SAMPLES_PER_FRAME
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import (
    ChunkPlan,
    ChunkStep,
    DecodeStep,
    PitchStep,
    RestartedSourceStep,
    RunBatch,
    VocoderSteps,
    run_batch,
    run_steps,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Noise, SineState, Vocoder

UPSTREAM_FRAMES = 8
UPSTREAM_SAMPLES = UPSTREAM_FRAMES * SAMPLES_PER_FRAME
FADE_FRAMES = 1


class Joint(Protocol):
    """The vocoder state of one utterance."""

    @property
    def vocoder(self) -> Vocoder: ...
    def check(self, mel: Tensor, last: bool) -> None:
        """Raises ValueError for a chunk that cannot be pushed. Changes nothing."""

    def steps(self, mel: Tensor, last: bool) -> VocoderSteps:
        """The work of the next chunk, mel [1, 80, n] -> audio [1, samples] float32.

        The state cannot be rolled back: after a failure the joint cannot be used again.
        """


@torch.inference_mode()
def push_chunks(
    joints: Sequence[Joint],
    mels: Sequence[Tensor],
    lasts: Sequence[bool],
    on_failure: OnFailure,
    *,
    batched: bool | None = None,
    run: RunBatch = run_batch,
) -> list[Tensor | None]:
    """Pushes the next chunk of each utterance: mels [1, 80, n], n >= 0 -> audio [1, samples] float32.

    `lasts` says which chunks end their utterance. The utterances may use different vocoders.

    `batched` runs steps of equal shapes as one batch, which equals each stream alone but for rounding in float32. The
    default is to do so on a GPU only: a CPU gains nothing, and its streams must be bit-identical whatever else runs.
    `run` computes a batch; `RecordedChunks.run` does so by graphs.

    Vocoder state cannot be rolled back, so failures are reported per stream: `on_failure` is called for a chunk that is
    refused and for one that fails. Its audio is None, and the audio of the other streams does not change.
    Raises ValueError, before anything changes, if a joint is given twice or the lengths differ.
    """
    if len({id(joint) for joint in joints}) < len(joints):
        raise ValueError("a joint takes one chunk at a time: push its next one in another call")
    chunks: dict[int, VocoderSteps] = {}
    given = list(zip(joints, mels, lasts, strict=True))
    for i, (joint, mel, last) in enumerate(given):
        try:
            joint.check(mel, last)
        except Exception as error:
            on_failure(i, error)
        else:
            chunks[i] = joint.steps(mel, last)
    return run_steps(chunks, len(given), batched, on_failure, run)


class ContinuousJoint:
    """Exact for any chunks; see the module. `hold_frames` may change between chunks, None is exact."""

    def __init__(self, vocoder: Vocoder, noise: Noise, hold_frames: int | None = None) -> None:
        least = vocoder.reach.f0 + 1  # with fewer, the pitch of emitted audio could still change
        if hold_frames is not None and hold_frames < least:
            raise ValueError(f"hold_frames must be at least {least}, not {hold_frames}")
        self.hold_frames = hold_frames
        self.vocoder = vocoder
        self._n_frame = vocoder.config.samples_per_frame
        self._noise = noise
        self._mel = _nothing(vocoder.config.d_mel, vocoder.source_dtype, vocoder.device)
        self._mel_start = 0
        self._source = _nothing(1, vocoder.source_dtype, vocoder.device)
        """Final source samples from frame `_source_start` on."""
        self._source_start = 0
        self._n_final = 0
        """Frames whose pitch is final and whose source is made."""
        self._sines: SineState | None = None
        self._n_emitted = 0
        self._tail: Tensor | None = None
        """[1, 480]: the first frame that is not emitted, as last computed. Only if less than the look-ahead is held."""

    def check(self, mel: Tensor, last: bool) -> None:
        """Any number of frames can be pushed."""

    def steps(self, mel: Tensor, last: bool) -> VocoderSteps:
        reach, decode_reach = self.vocoder.reach, self.vocoder.reach.decode
        self._mel = torch.cat([self._mel, mel.to(self._mel)], 2)
        begin, done, emitted = self._mel_start, self._n_final, self._n_emitted
        n_known = begin + self._mel.shape[2]
        n_final = n_known if last else max(done, n_known - reach.f0)
        hold = reach.lookahead if self.hold_frames is None else self.hold_frames
        ready = n_known if last else max(emitted, n_known - hold)
        if n_final == done and ready == emitted:
            return torch.zeros(1, 0, device=self._mel.device)
        left = max(0, emitted - decode_reach)
        until = ready + (FADE_FRAMES if hold < reach.lookahead and not last else 0)
        plan = ChunkPlan(
            n_mel=self._mel.shape[2],
            n_source=self._source.shape[2],
            begins=self._sines is None,
            last=last,
            pitch_first=max(0, done - reach.f0 - begin),
            new_first=done - begin,
            new_until=n_final - begin,
            left=left - begin,
            right=min(n_known, until + decode_reach) - begin if ready > emitted else 0,
            source_first=(left - self._source_start) * self._n_frame,
            first=emitted - left,
            until=until - left,
        )
        audio: Tensor
        audio, self._source, self._sines = yield ChunkStep(
            self.vocoder, plan, self._mel, self._source, self._sines, done, self._noise
        )
        self._n_final = n_final
        if ready > emitted:
            audio = self._emit(audio, ready - emitted)
        self._forget(reach.f0, decode_reach)
        return audio

    def _emit(self, audio: Tensor, n_ready: int) -> Tensor:
        """The first `n_ready` frames of audio that begins at the last emitted frame's end."""
        if self._tail is not None:
            n = self._tail.shape[1]
            weight = (torch.arange(n, device=audio.device) + 0.5) / n
            audio[:, :n] = self._tail + (audio[:, :n] - self._tail) * weight
        n = n_ready * self._n_frame
        self._tail = audio[:, n:].clone() if audio.shape[1] > n else None
        self._n_emitted += n_ready
        return audio[:, :n]

    def _forget(self, f0_reach: int, decode_reach: int) -> None:
        """Drops what no later chunk can see. Copies the rest, because a view would keep the whole chunk in memory."""
        left = max(0, self._n_emitted - decode_reach)
        mel_start = max(self._mel_start, min(left, self._n_final - f0_reach))
        self._mel = self._mel[:, :, mel_start - self._mel_start :].clone()
        self._mel_start = mel_start
        self._source = self._source[:, :, (left - self._source_start) * self._n_frame :].clone()
        self._source_start = left


@functools.cache
def _nothing(n_channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[1, n_channels, 0]"""
    return torch.zeros(1, n_channels, 0, dtype=dtype, device=device)


class UpstreamJoint:
    """Exactly as upstream (specification 6.1), its defects included.

    A chunk before the last needs at least 8 frames. The first gives 480 samples a frame, less the 3840 held back.
    """

    def __init__(self, vocoder: Vocoder, noise: Noise) -> None:
        self.vocoder = vocoder
        self._noise = noise
        self._n_frames = 0
        self._cache: tuple[Tensor, Tensor, Tensor] | None = None
        """The last chunk's final 8 mel frames, 3840 samples of source, and 3840 samples of speech."""
        self._window = torch.hamming_window(
            2 * UPSTREAM_SAMPLES, periodic=False, dtype=torch.float64, device=vocoder.device
        )

    def check(self, mel: Tensor, last: bool) -> None:
        if not last and mel.shape[2] < UPSTREAM_FRAMES:
            raise ValueError(f"a chunk before the last needs {UPSTREAM_FRAMES} mel frames, not {mel.shape[2]}")

    def steps(self, mel: Tensor, last: bool) -> VocoderSteps:
        new_frames = mel.shape[2]
        if self._cache is not None:
            mel = torch.cat([self._cache[0], mel.to(self._cache[0])], 2)
        n = mel.shape[2]
        if not n:
            return torch.zeros(1, 0, device=self.vocoder.device)
        first = self._n_frames - (n - new_frames)
        f0 = yield PitchStep(self.vocoder, mel)
        source: Tensor = yield RestartedSourceStep(self.vocoder, f0, first, self._noise)
        if self._cache is not None:
            source[:, :, :UPSTREAM_SAMPLES] = self._cache[1]
        self._n_frames += new_frames
        audio: Tensor = yield DecodeStep(self.vocoder, mel, source, 0, n)
        if self._cache is not None:
            audio = cross_fade(audio, self._cache[2], self._window)
        if last:
            self._cache = None
            return audio
        tails = (mel[:, :, -UPSTREAM_FRAMES:], source[:, :, -UPSTREAM_SAMPLES:], audio[:, -UPSTREAM_SAMPLES:])
        self._cache = (tails[0].clone(), tails[1].clone(), tails[2].clone())
        return audio[:, :-UPSTREAM_SAMPLES]


def cross_fade(new: Tensor, tail: Tensor, window: Tensor) -> Tensor:
    """Fades from tail [1, k] into new [1, n]: the rising half of the window [2 k] on new, the falling half on tail.

    Computed in float64, stored as float32, and not clamped again (specification 6.1).
    """
    k = tail.shape[1]
    mixed = new[:, :k].double() * window[:k] + tail.double() * window[k:]
    return torch.cat([mixed.to(new.dtype), new[:, k:]], 1)
