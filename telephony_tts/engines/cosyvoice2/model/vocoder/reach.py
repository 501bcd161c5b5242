"""The columns of HiFT's layers that a range of audio needs, and from these the reach of a sample (specification 6).

CosyVoice2's layers run at 50, 400, 2,000 and 6,000 columns a second. Each column sees a few columns on both sides.
`spans` goes back from the audio to the mel and the source, and `Vocoder.decode` computes only these columns. For a
chunk of a second they are 10 % more than its own columns. Giving every layer all frames in reach would make it 60 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from telephony_tts.engines.cosyvoice2.model.config import VocoderConfig

N_F0_LAYERS, F0_KERNEL = 5, 3
EDGE_KERNEL = 7
"""Kernel of the first and of the last convolution"""


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """Columns first .. until of a layer of `n` columns. Beyond the layer's ends are zeros, which count as known."""

    first: int
    until: int
    n: int

    def __len__(self) -> int:
        return self.until - self.first

    def within(self, outer: ColumnSpan) -> slice:
        """The slice of this span in a tensor that holds `outer`."""
        return slice(self.first - outer.first, self.until - outer.first)

    def around(self, reach: int) -> ColumnSpan:
        """The span and up to `reach` columns of the same layer on each side."""
        return ColumnSpan(max(0, self.first - reach), min(self.n, self.until + reach), self.n)

    def margins(self, wanted: ColumnSpan) -> tuple[int, int]:
        """The number of columns before the wanted ones and after them."""
        return wanted.first - self.first, self.until - wanted.until


def missing(given: ColumnSpan, wanted: ColumnSpan, reach: int) -> tuple[int, int]:
    """The zeros that a convolution of this reach needs before and after `given` to compute `wanted`."""
    return given.first - (wanted.first - reach), wanted.until + reach - given.until


def needed(low: int, high: int, n: int) -> ColumnSpan:
    """Columns low .. high of a layer of `n` columns. Both ends may lie outside of it."""
    return ColumnSpan(max(0, low), min(n, high), n)


@dataclass(frozen=True, slots=True)
class StageSpans:
    """The columns of one up-sampling stage."""

    before: ColumnSpan
    """Input of the up-sampling, in CosyVoice2 at 50, 400 and 2,000 columns a second"""
    up: ColumnSpan
    """Output of the transposed convolution"""
    inside: ColumnSpan
    """Columns where the source is added. The last stage has one more of them than columns of `up`."""
    source: ColumnSpan
    """The source before its residual block"""
    spectrum: ColumnSpan
    """Spectrum of the source"""
    out: ColumnSpan


@dataclass(frozen=True, slots=True)
class DecodeSpans:
    """The columns that a range of audio needs."""

    mel: ColumnSpan
    stages: tuple[StageSpans, ...]
    post: ColumnSpan
    """Columns of the inverse transform"""
    samples: ColumnSpan
    """Samples of the source"""


def spans(config: VocoderConfig, n_frames: int, first: int, until: int) -> DecodeSpans:
    """The columns that the audio of the frames first .. until of `n_frames` needs."""
    half, hop, n_frame = config.n_fft // 2, config.hop, config.samples_per_frame
    n_columns = n_frames * n_frame // hop + 1
    begin, end = first * n_frame, until * n_frame
    post = needed(-((half - 1 - begin) // hop), (end - 1 + half) // hop + 1, n_columns)
    out, n, stages = post.around(EDGE_KERNEL // 2), n_columns - 1, []
    low, high = out.first, out.until
    for i in reversed(range(len(config.up_rates))):
        rate, kernel, last = config.up_rates[i], config.up_kernels[i], i == len(config.up_rates) - 1
        inside = out.around(max(block_reach(k, config.res_dilations) for k in config.res_kernels))
        source = inside.around(block_reach(config.source_res_kernels[i], config.res_dilations))
        stride = math.prod(config.up_rates[i + 1 :])
        taps, pad = source_down(stride)
        spectrum = needed(source.first * stride - pad, (source.until - 1) * stride - pad + taps, n_columns)
        low, high = min(low, spectrum.first), max(high, spectrum.until)
        # The last stage has one more column at its beginning, the mirror image of its third.
        up = needed(inside.first - 1, inside.until - 1, n) if last else inside
        pad = (kernel - rate) // 2
        n //= rate
        before = needed(-((kernel - 1 - up.first - pad) // rate), (up.until - 1 + pad) // rate + 1, n)
        stages.append(StageSpans(before, up, inside, source, spectrum, out))
        out = before
    samples = needed(low * hop - half, (high - 1) * hop + half, n_frames * n_frame)
    return DecodeSpans(out.around(EDGE_KERNEL // 2), tuple(reversed(stages)), post, samples)


@dataclass(frozen=True, slots=True)
class Reach:
    """How many frames one audio sample sees on each side, from the kernel sizes. A test measures it.

    The official sizes give f0 5, decode 15, lookahead 20. The last input of a sample is the pitch of a source sample
    14.4 frames later. That pitch is interpolated between frame centres (half a frame), and each centre sees 5 frames of
    mel.
    """

    f0: int
    decode: int
    """Frames of mel and source on each side of the wanted ones that `decode` needs"""
    lookahead: int
    """Frames of mel after a frame that must be known before its audio is final"""

    @classmethod
    def of(cls, config: VocoderConfig) -> Self:
        f0 = N_F0_LAYERS * (F0_KERNEL // 2)
        at = 1000  # far from both ends
        seen, n_frame = spans(config, 2 * at, at, at + 1), config.samples_per_frame
        left = at - min(seen.mel.first, seen.samples.first // n_frame)
        right = max(seen.mel.until, math.ceil(seen.samples.until / n_frame)) - at - 1
        # A source sample is final with the pitch at the next frame's centre, or of its own frame.
        ramp = n_frame // 2 if config.ramps_pitch else 0
        pitch = math.ceil((seen.samples.until + ramp) / n_frame) + f0
        return cls(f0, max(left, right), max(seen.mel.until, pitch) - at - 1)


def block_reach(kernel: int, dilations: tuple[int, ...]) -> int:
    """Columns that a residual block sees on each side."""
    return kernel // 2 * (sum(dilations) + len(dilations))


def source_down(rate: int) -> tuple[int, int]:
    """Kernel and padding of the convolution from the spectrum to a stage `rate` times slower: (30, 7) for 15."""
    return (1, 0) if rate == 1 else (2 * rate, rate // 2)
