"""Names and shapes of the tensors of an official checkpoint, as a function of the sizes (specification 2).

One list serves three ends: what a model directory is checked against, what a random checkpoint is made of, and the
order in which both are read. With the default sizes it is the official CosyVoice2-0.5B, 1,744 tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from telephony_tts.engines.cosyvoice2.model.config import (
    N_SPEECH_ROWS,
    FlowDecoderConfig,
    FlowEncoderConfig,
    LmConfig,
    ModelConfig,
    VocoderConfig,
)

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]

LM_HEAD = "llm.model.lm_head.weight"
"""The text head: in the official file, tied to the embedding, and never needed."""
WEIGHT_G, WEIGHT_V = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
"""Weight norm as torch names it today: length per first dimension, and direction (specification 2.3)."""


def lm_shapes(config: LmConfig) -> dict[str, Shape]:
    """llm.pt, without the unused text head."""
    return dict(_lm(config))


def flow_shapes(encoder: FlowEncoderConfig, decoder: FlowDecoderConfig) -> dict[str, Shape]:
    """flow.pt."""
    return dict(_flow(encoder, decoder))


def hift_shapes(config: VocoderConfig) -> dict[str, Shape]:
    """hift.pt, with today's weight norm names."""
    return dict(_hift(config))


def checkpoint_shapes(config: ModelConfig) -> dict[str, dict[str, Shape]]:
    """The tensors of each file of a model directory."""
    return {
        "llm.pt": lm_shapes(config.lm),
        "flow.pt": flow_shapes(config.flow_encoder, config.flow_decoder),
        "hift.pt": hift_shapes(config.vocoder),
    }


def _linear(name: str, n_out: int, n_in: int, bias: bool = True) -> Named:
    yield f"{name}.weight", (n_out, n_in)
    if bias:
        yield f"{name}.bias", (n_out,)


def _norm(name: str, n: int) -> Named:
    yield f"{name}.weight", (n,)
    yield f"{name}.bias", (n,)


def _conv(name: str, n_out: int, n_in: int, kernel: int) -> Named:
    yield f"{name}.weight", (n_out, n_in, kernel)
    yield f"{name}.bias", (n_out,)


def _normed_conv(name: str, n_out: int, n_in: int, kernel: int) -> Named:
    yield f"{name}.bias", (n_out,)
    yield name + WEIGHT_G, (n_out, 1, 1)
    yield name + WEIGHT_V, (n_out, n_in, kernel)


# ---------------------------------------------------------------------- llm.pt (2.1)


def _lm(config: LmConfig) -> Named:
    d, d_kv = config.d_model, config.n_kv_heads * config.d_head
    d_q = config.n_heads * config.d_head
    yield "llm_embedding.weight", (2, d)
    yield "llm.model.model.embed_tokens.weight", (config.n_text_rows, d)
    for i in range(config.n_layers):
        layer = f"llm.model.model.layers.{i}"
        yield from _linear(f"{layer}.self_attn.q_proj", d_q, d)
        yield from _linear(f"{layer}.self_attn.k_proj", d_kv, d)
        yield from _linear(f"{layer}.self_attn.v_proj", d_kv, d)
        yield from _linear(f"{layer}.self_attn.o_proj", d, d_q, bias=False)
        yield from _linear(f"{layer}.mlp.gate_proj", config.d_ff, d, bias=False)
        yield from _linear(f"{layer}.mlp.up_proj", config.d_ff, d, bias=False)
        yield from _linear(f"{layer}.mlp.down_proj", d, config.d_ff, bias=False)
        yield f"{layer}.input_layernorm.weight", (d,)
        yield f"{layer}.post_attention_layernorm.weight", (d,)
    yield "llm.model.model.norm.weight", (d,)
    yield from _linear("llm_decoder", N_SPEECH_ROWS, d)
    yield "speech_embedding.weight", (N_SPEECH_ROWS, d)


# --------------------------------------------------------------------- flow.pt (2.2)


def _flow(encoder: FlowEncoderConfig, decoder: FlowDecoderConfig) -> Named:
    d = encoder.d_model
    yield "input_embedding.weight", (encoder.n_tokens, d)
    yield from _linear("spk_embed_affine_layer", encoder.d_out, encoder.d_speaker)
    yield from _embed("encoder.embed", d)
    yield from _norm("encoder.after_norm", d)
    yield from _conv("encoder.pre_lookahead_layer.conv1", d, d, 4)
    yield from _conv("encoder.pre_lookahead_layer.conv2", d, d, 3)
    for i in range(encoder.n_layers):
        yield from _encoder_block(f"encoder.encoders.{i}", encoder)
    yield from _conv("encoder.up_layer.conv", d, d, 5)
    yield from _embed("encoder.up_embed", d)
    for i in range(encoder.n_up_layers):
        yield from _encoder_block(f"encoder.up_encoders.{i}", encoder)
    yield from _linear("encoder_proj", encoder.d_out, d)
    yield from _estimator("decoder.estimator", decoder)


def _embed(name: str, d: int) -> Named:
    yield from _linear(f"{name}.out.0", d, d)
    yield from _norm(f"{name}.out.1", d)


def _encoder_block(name: str, config: FlowEncoderConfig) -> Named:
    d = config.d_model
    yield f"{name}.self_attn.pos_bias_u", (config.n_heads, d // config.n_heads)
    yield f"{name}.self_attn.pos_bias_v", (config.n_heads, d // config.n_heads)
    for part in ("linear_q", "linear_k", "linear_v", "linear_out"):
        yield from _linear(f"{name}.self_attn.{part}", d, d)
    yield from _linear(f"{name}.self_attn.linear_pos", d, d, bias=False)
    yield from _linear(f"{name}.feed_forward.w_1", config.d_ff, d)
    yield from _linear(f"{name}.feed_forward.w_2", d, config.d_ff)
    yield from _norm(f"{name}.norm_ff", d)
    yield from _norm(f"{name}.norm_mha", d)


def _estimator(name: str, config: FlowDecoderConfig) -> Named:
    d = config.n_channels
    yield from _linear(f"{name}.time_mlp.linear_1", config.d_time, config.d_in)
    yield from _linear(f"{name}.time_mlp.linear_2", config.d_time, config.d_time)
    yield from _stage(f"{name}.down_blocks.0", config.d_in, config)
    yield from _conv(f"{name}.down_blocks.0.2", d, d, 3)
    for i in range(config.n_mid_stages):
        yield from _stage(f"{name}.mid_blocks.{i}", d, config)
    yield from _stage(f"{name}.up_blocks.0", 2 * d, config)
    yield from _conv(f"{name}.up_blocks.0.2", d, d, 3)
    yield from _causal_block(f"{name}.final_block", d, d)
    yield from _conv(f"{name}.final_proj", config.d_mel, d, 1)


def _causal_block(name: str, d: int, n_in: int) -> Named:
    yield from _conv(f"{name}.block.0", d, n_in, 3)
    yield from _norm(f"{name}.block.2", d)


def _stage(name: str, n_in: int, config: FlowDecoderConfig) -> Named:
    d = config.n_channels
    d_inner = config.n_heads * config.d_head
    yield from _linear(f"{name}.0.mlp.1", d, config.d_time)
    yield from _causal_block(f"{name}.0.block1", d, n_in)
    yield from _causal_block(f"{name}.0.block2", d, d)
    yield from _conv(f"{name}.0.res_conv", d, n_in, 1)
    for i in range(config.n_blocks):
        block = f"{name}.1.{i}"
        yield from _norm(f"{block}.norm1", d)
        for part in ("to_q", "to_k", "to_v"):
            yield from _linear(f"{block}.attn1.{part}", d_inner, d, bias=False)
        yield from _linear(f"{block}.attn1.to_out.0", d, d_inner)
        yield from _norm(f"{block}.norm3", d)
        yield from _linear(f"{block}.ff.net.0.proj", 4 * d, d)
        yield from _linear(f"{block}.ff.net.2", d, 4 * d)


# --------------------------------------------------------------------- hift.pt (2.3)


def _hift(config: VocoderConfig) -> Named:
    n_bins = config.n_fft + 2  # real and imaginary part of n_fft / 2 + 1 bins
    yield from _linear("m_source.l_linear", 1, config.n_harmonics + 1)
    yield from _normed_conv("conv_pre", config.d_base, config.d_mel, 7)
    d = config.d_base
    for i, kernel in enumerate(config.up_kernels):
        # A transposed convolution: [in, out, kernel], and its norm is per input channel.
        yield f"ups.{i}.bias", (d // 2,)
        yield f"ups.{i}{WEIGHT_G}", (d, 1, 1)
        yield f"ups.{i}{WEIGHT_V}", (d, d // 2, kernel)
        d //= 2
    for i, kernel in enumerate(source_kernels(config)):
        yield from _conv(f"source_downs.{i}", config.d_base >> (i + 1), n_bins, kernel)
    for i, kernel in enumerate(config.source_res_kernels):
        yield from _res_block(f"source_resblocks.{i}", config.d_base >> (i + 1), kernel, config)
    n_kernels = len(config.res_kernels)
    for i in range(len(config.up_kernels) * n_kernels):
        width = config.d_base >> (i // n_kernels + 1)
        yield from _res_block(f"resblocks.{i}", width, config.res_kernels[i % n_kernels], config)
    yield from _normed_conv("conv_post", n_bins, d, 7)
    for i in range(5):  # odd places hold the activations, which have no weights
        n_in = config.d_mel if i == 0 else config.d_f0
        yield from _normed_conv(f"f0_predictor.condnet.{2 * i}", config.d_f0, n_in, 3)
    yield from _linear("f0_predictor.classifier", 1, config.d_f0)


def source_kernels(config: VocoderConfig) -> tuple[int, ...]:
    """Kernel of each stage's source convolution: twice the rates still to come, 1 where none is left."""
    kernels = []
    for i in range(len(config.up_rates)):
        stride = 1
        for rate in config.up_rates[i + 1 :]:
            stride *= rate
        kernels.append(2 * stride if stride > 1 else 1)
    return tuple(kernels)


def _res_block(name: str, width: int, kernel: int, config: VocoderConfig) -> Named:
    n = len(config.res_dilations)
    for part in ("convs1", "convs2"):
        for i in range(n):
            yield from _normed_conv(f"{name}.{part}.{i}", width, width, kernel)
    for part in ("activations1", "activations2"):
        for i in range(n):
            yield f"{name}.{part}.{i}.alpha", (width,)
