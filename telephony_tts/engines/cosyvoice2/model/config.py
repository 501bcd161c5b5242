"""Sizes of the CosyVoice2 networks. Read this first: every other file of the model takes one of these.

The defaults are the official CosyVoice2-0.5B. Another checkpoint brings its own sizes (`checkpoint/sizes.py`): from the
shapes of its tensors, and head counts and kernel sizes from its configuration files. The constants come from the
reference specification of the model, sections 1, 2 and 5.

`official_300m` has the sizes of CosyVoice-300M, the first generation (specification 300M, 1). `ModelFamily` holds what
the rest of the engine must know of a generation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SAMPLE_RATE_HZ = 24_000
TOKENS_PER_S = 25
FRAMES_PER_TOKEN = 2
SAMPLES_PER_FRAME = 480
N_MELS = 80
N_SPEECH_TOKENS = 6561
EOS, UNUSED_STOP, FILL = 6561, 6562, 6563
"""Ids from 6561 on are not speech: the end of speech, an unused stop id, and the fill id of bi-streaming."""
N_SPEECH_ROWS = 6564
LOOKAHEAD_TOKENS = 3
BLOCK_TOKENS = 25
BLOCK_FRAMES = 50
MAX_OPEN_BLOCKS = 2
"""Blocks of a stream in the flow at once. Two lanes can use no more, and each block holds its frames."""
N_NOISE_FRAMES = 15_000
"""Frames of the fixed noise. The flow can make 300 s at most, prompt included."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """What differs between the generations outside of their networks."""

    name: str
    sample_rate_hz: int
    tokens_per_s: int
    samples_per_frame: int
    n_speech_tokens: int
    """Speech ids. The id after the last one is the end of speech."""
    lookahead_tokens: int
    """Speech ids after a block that the flow looks at."""
    flow_streams: bool
    """Whether the flow makes audio while ids are still drawn. If not, it makes the audio of a piece of text at once."""
    feeds_speaker: bool
    """Whether the language model is fed a row for the speaker."""

    @property
    def end_of_speech(self) -> int:
        return self.n_speech_tokens


COSYVOICE2 = ModelFamily(
    name="CosyVoice2",
    sample_rate_hz=SAMPLE_RATE_HZ,
    tokens_per_s=TOKENS_PER_S,
    samples_per_frame=SAMPLES_PER_FRAME,
    n_speech_tokens=N_SPEECH_TOKENS,
    lookahead_tokens=LOOKAHEAD_TOKENS,
    flow_streams=True,
    feeds_speaker=False,
)
COSYVOICE_300M = ModelFamily(
    name="CosyVoice-300M",
    sample_rate_hz=22_050,
    tokens_per_s=50,
    samples_per_frame=256,
    n_speech_tokens=4096,
    lookahead_tokens=0,
    flow_streams=False,
    feeds_speaker=True,
)


@dataclass(frozen=True, slots=True)
class LmConfig:
    """Qwen2 decoder over text and speech tokens."""

    n_text_rows: int = 151_936
    d_model: int = 896
    n_layers: int = 24
    n_heads: int = 14
    n_kv_heads: int = 2
    d_ff: int = 4864
    norm_eps: float = 1e-6
    rope_theta: float = 1e6
    n_mix_text: int = 5
    n_mix_speech: int = 15
    """While text arrives: this many text tokens, then this many speech ids, and so on (specification 4.4)."""

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


@dataclass(frozen=True, slots=True)
class RelativeLmConfig:
    """The language model of CosyVoice-300M: a text encoder, and a decoder of the same width over its rows."""

    n_text_rows: int = 51_866
    d_text: int = 512
    d_model: int = 1024
    n_heads: int = 16
    d_ff: int = 4096
    n_text_layers: int = 6
    n_layers: int = 14
    d_speaker: int = 192
    n_tokens: int = COSYVOICE_300M.n_speech_tokens
    norm_eps: float = 1e-12
    embed_norm_eps: float = 1e-5

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Repetition-aware sampling."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    max_repeat: float = 0.1
    """An id that occurs at least window * max_repeat times in the last `window` ids is drawn again."""


@dataclass(frozen=True, slots=True)
class FlowEncoderConfig:
    """Conformer-like encoder: speech tokens at 25 Hz to mel-rate features at 50 Hz. In CosyVoice-300M it stays at the
    rate of the tokens and has no layers after an up-sampling."""

    n_tokens: int = N_SPEECH_TOKENS
    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    n_layers: int = 6
    n_up_layers: int = 4
    d_speaker: int = 192
    d_out: int = N_MELS
    norm_eps: float = 1e-12
    embed_norm_eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class FlowDecoderConfig:
    """Conditional flow matching: a causal U-Net estimator without temporal down-sampling, and its Euler solver."""

    n_channels: int = 256
    n_heads: int = 8
    d_head: int = 64
    n_blocks: int = 4
    """Transformer blocks per stage."""
    n_mid_stages: int = 12
    d_mel: int = N_MELS
    n_steps: int = 10
    guidance: float = 0.7

    @property
    def d_in(self) -> int:
        return 4 * self.d_mel

    @property
    def d_time(self) -> int:
        return 4 * self.n_channels


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """HiFT: neural source filter and inverse STFT."""

    sample_rate_hz: int = SAMPLE_RATE_HZ
    ramps_pitch: bool = True
    """Whether the phase of the sines is known at frame centres and linear between them (CosyVoice2). If not, the pitch
    is constant within a frame, and each harmonic but the first begins at a random phase (CosyVoice-300M)."""
    d_mel: int = N_MELS
    d_base: int = 512
    n_harmonics: int = 8
    sine_amplitude: float = 0.1
    noise_std: float = 0.003
    voiced_above_hz: float = 10.0
    up_rates: tuple[int, ...] = (8, 5, 3)
    up_kernels: tuple[int, ...] = (16, 11, 7)
    n_fft: int = 16
    hop: int = 4
    res_kernels: tuple[int, ...] = (3, 7, 11)
    res_dilations: tuple[int, ...] = (1, 3, 5)
    source_res_kernels: tuple[int, ...] = (7, 7, 11)
    leaky_slope: float = 0.1
    audio_limit: float = 0.99
    d_f0: int = 512

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.up_rates) * self.hop


@dataclass(frozen=True, slots=True)
class ModelConfig:
    lm: LmConfig | RelativeLmConfig = field(default_factory=LmConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    flow_encoder: FlowEncoderConfig = field(default_factory=FlowEncoderConfig)
    flow_decoder: FlowDecoderConfig = field(default_factory=FlowDecoderConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)

    @property
    def family(self) -> ModelFamily:
        return COSYVOICE_300M if isinstance(self.lm, RelativeLmConfig) else COSYVOICE2


def official_300m() -> ModelConfig:
    """The sizes of CosyVoice-300M, -SFT and -Instruct."""
    return ModelConfig(
        lm=RelativeLmConfig(),
        flow_encoder=FlowEncoderConfig(n_tokens=COSYVOICE_300M.n_speech_tokens, n_up_layers=0),
        vocoder=VocoderConfig(
            sample_rate_hz=COSYVOICE_300M.sample_rate_hz,
            ramps_pitch=False,
            up_rates=(8, 8),
            up_kernels=(16, 16),
            source_res_kernels=(7, 11),
        ),
    )
