"""The parts of a random checkpoint of CosyVoice-300M that differ from CosyVoice2's (`random_checkpoint`)."""

from __future__ import annotations

import base64
from pathlib import Path

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE_300M,
    FlowDecoderConfig,
    FlowEncoderConfig,
    ModelConfig,
    RelativeLmConfig,
    VocoderConfig,
    official_300m,
)
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import byte_letters

SIZES_300M: dict[str, ModelConfig] = {
    "full": official_300m(),
    "tiny": ModelConfig(
        lm=RelativeLmConfig(
            n_text_rows=2304, d_text=16, d_model=64, n_heads=4, d_ff=128, n_text_layers=2, n_layers=2
        ),
        flow_encoder=FlowEncoderConfig(
            n_tokens=COSYVOICE_300M.n_speech_tokens, d_model=32, n_heads=4, d_ff=64, n_layers=2, n_up_layers=0
        ),
        flow_decoder=FlowDecoderConfig(n_channels=32, n_heads=2, d_head=16, n_blocks=1, n_mid_stages=2),
        vocoder=VocoderConfig(
            sample_rate_hz=COSYVOICE_300M.sample_rate_hz,
            ramps_pitch=False,
            d_base=32,
            up_rates=(8, 8),
            up_kernels=(16, 16),
            source_res_kernels=(7, 11),
            d_f0=16,
        ),
    ),
}
VOICE_NAMES = ("first", "second")
LONG_WORD = "congratulations"
"""A single token that a text is expected to take 1.1 seconds for: benchmarks need clauses of few tokens."""

README_300M = """# A random checkpoint

The files have the names, keys and shapes of CosyVoice-300M-SFT ({size} size) and random weights (seed {seed}), made by
`telephony-tts models random --family 300m`. It makes noises, not speech: it is for tests and for measuring speed.
The vocabulary multilingual.tiktoken is a small stand-in. `telephony-tts models pull --family 300m` fetches the official
model.
"""


def preset_speakers(config: ModelConfig, random: torch.Generator) -> dict[str, dict[str, Tensor]]:
    """spk2info.pt: preset speakers, as -SFT and -Instruct have them."""
    return {
        name: {"embedding": torch.randn(1, config.flow_encoder.d_speaker, generator=random)} for name in VOICE_NAMES
    }


def write_ranks(path: Path, words: list[str]) -> None:
    """Writes a vocabulary of all bytes, and of each beginning of each word."""
    entries = {bytes([byte]): None for byte in byte_letters()}
    for word in words:
        spelt = word.encode()
        entries |= {spelt[:n]: None for n in range(2, len(spelt) + 1)}
    lines = (f"{base64.b64encode(entry).decode()} {rank}\n" for rank, entry in enumerate(entries))
    path.write_text("".join(lines), encoding="ascii")


def settings_300m(config: ModelConfig) -> str:
    """cosyvoice.yaml with the official keys and tags, as far as speech depends on them."""
    lm, encoder, decoder, hift = config.lm, config.flow_encoder, config.flow_decoder, config.vocoder
    assert isinstance(lm, RelativeLmConfig)
    dilations = [list(hift.res_dilations)] * len(hift.res_kernels)
    return f"""# Random weights: see README.md
__set_seed1: !apply:random.seed [1986]
sample_rate: {hift.sample_rate_hz}
text_encoder_input_size: {lm.d_text}
llm_input_size: {lm.d_model}
llm_output_size: {lm.d_model}
spk_embed_dim: {encoder.d_speaker}
llm: !new:cosyvoice.llm.llm.TransformerLM
    text_encoder_input_size: !ref <text_encoder_input_size>
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    text_token_size: {lm.n_text_rows}
    speech_token_size: {lm.n_tokens}
    spk_embed_dim: !ref <spk_embed_dim>
    text_encoder: !new:cosyvoice.transformer.encoder.ConformerEncoder
        input_size: !ref <text_encoder_input_size>
        output_size: {lm.d_model}
        attention_heads: {lm.n_heads}
        linear_units: {lm.d_ff}
        num_blocks: {lm.n_text_layers}
        static_chunk_size: 1
    llm: !new:cosyvoice.transformer.encoder.TransformerEncoder
        input_size: !ref <llm_input_size>
        output_size: !ref <llm_output_size>
        attention_heads: {lm.n_heads}
        linear_units: {lm.d_ff}
        num_blocks: {lm.n_layers}
        static_chunk_size: 1
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {config.sampling.top_p}
        top_k: {config.sampling.top_k}
        win_size: {config.sampling.window}
        tau_r: {config.sampling.max_repeat}
flow: !new:cosyvoice.flow.flow.MaskedDiffWithXvec
    input_size: {encoder.d_model}
    output_size: {encoder.d_out}
    spk_embed_dim: !ref <spk_embed_dim>
    vocab_size: {encoder.n_tokens}
    input_frame_rate: {COSYVOICE_300M.tokens_per_s}
    encoder: !new:cosyvoice.transformer.encoder.ConformerEncoder
        output_size: {encoder.d_model}
        attention_heads: {encoder.n_heads}
        linear_units: {encoder.d_ff}
        num_blocks: {encoder.n_layers}
        input_size: {encoder.d_model}
    length_regulator: !new:cosyvoice.flow.length_regulator.InterpolateRegulator
        channels: {encoder.d_out}
        sampling_ratios: [1, 1, 1, 1]
    decoder: !new:cosyvoice.flow.flow_matching.ConditionalCFM
        in_channels: 240
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: euler
                t_scheduler: cosine
                inference_cfg_rate: {decoder.guidance}
        estimator: !new:cosyvoice.flow.decoder.ConditionalDecoder
            in_channels: {decoder.d_in}
            out_channels: {decoder.d_mel}
            channels: [{decoder.n_channels}, {decoder.n_channels}]
            attention_head_dim: {decoder.d_head}
            n_blocks: {decoder.n_blocks}
            num_mid_blocks: {decoder.n_mid_stages}
            num_heads: {decoder.n_heads}
            act_fn: gelu
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: {hift.d_mel}
    base_channels: {hift.d_base}
    nb_harmonics: {hift.n_harmonics}
    sampling_rate: !ref <sample_rate>
    nsf_alpha: {hift.sine_amplitude}
    nsf_sigma: {hift.noise_std}
    nsf_voiced_threshold: {hift.voiced_above_hz}
    upsample_rates: {list(hift.up_rates)}
    upsample_kernel_sizes: {list(hift.up_kernels)}
    istft_params:
        n_fft: {hift.n_fft}
        hop_len: {hift.hop}
    resblock_kernel_sizes: {list(hift.res_kernels)}
    resblock_dilation_sizes: {dilations}
    source_resblock_kernel_sizes: {list(hift.source_res_kernels)}
    source_resblock_dilation_sizes: {dilations}
    lrelu_slope: {hift.leaky_slope}
    audio_limit: {hift.audio_limit}
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: {hift.d_mel}
        cond_channels: {hift.d_f0}
"""
