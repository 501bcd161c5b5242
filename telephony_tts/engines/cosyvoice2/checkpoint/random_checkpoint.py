"""Writes random checkpoints in the official layout, for tests and for measurements without the official weights.

The sizes are the official ones or tiny ones. The scale of the random weights keeps every activation finite, the pitch
near 150 Hz and the audio near -20 dBFS. Such a model makes noises, and the directory says so.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import (
    LONG_WORD,
    README_300M,
    SIZES_300M,
    preset_speakers,
    settings_300m,
    write_ranks,
)
from telephony_tts.engines.cosyvoice2.checkpoint.standin_onnx import speaker_graph, token_graph
from telephony_tts.engines.cosyvoice2.model.config import (
    EOS,
    FILL,
    N_SPEECH_TOKENS,
    UNUSED_STOP,
    FlowDecoderConfig,
    FlowEncoderConfig,
    LmConfig,
    ModelConfig,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.file_names import (
    FIRST_SETTINGS_NAME,
    FLOW_FILE,
    LM_FILE,
    RANDOM_MARK,
    RANKS_FILE,
    SETTINGS_NAMES,
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENIZER_DIR,
    TOKENS_ONNX,
    VOCODER_FILE,
)
from telephony_tts.engines.cosyvoice2.model.lm.lm import TEXT_HEAD
from telephony_tts.engines.cosyvoice2.model.state import Shape
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_G, WEIGHT_V
from telephony_tts.engines.cosyvoice2.text.tokenizer import SPECIAL_TOKENS
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import byte_letters
from telephony_tts.runtime.errors import ConfigError

Size = Literal["tiny", "full"]
FamilyName = Literal["cosyvoice2", "300m"]
"""CosyVoice2-0.5B, and CosyVoice-300M-SFT."""

SIZES: dict[Size, ModelConfig] = {
    "full": ModelConfig(),
    "tiny": ModelConfig(
        lm=LmConfig(n_text_rows=512, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=128),
        flow_encoder=FlowEncoderConfig(d_model=32, n_heads=4, d_ff=64, n_layers=2, n_up_layers=2),
        flow_decoder=FlowDecoderConfig(n_channels=32, n_heads=2, d_head=16, n_blocks=1, n_mid_stages=2),
        vocoder=VocoderConfig(d_base=32, d_f0=16),
    ),
}

EOS_BIAS = 3.2
"""Logits are near N(0, 1). With this bias speech ends about 2 s after it may end, on average."""
EOS_BIAS_300M = 2.6
"""Of fewer ids, at twice as many a second."""
NEVER = -20.0
NEVER_AT_ALL = -1e4
"""So low that no number of draws reaches it. float16 has this number."""
F0_HZ, F0_SPREAD_HZ = 150.0, 5.0
LOG_MAGNITUDE = -0.5
LOG_MEL = -5.0
PROMPT_TOKENS = 87
"""3.5 s, as long as the prompt of the official demonstration."""

README = """# A random checkpoint

The files have the names, keys and shapes of CosyVoice2-0.5B ({size} size) and random weights (seed {seed}), made by
`telephony-tts models random`. It makes noises, not speech: it is for tests and for measuring speed.
The tokenizer and the two ONNX graphs are small stand-ins. Fetch the official model with `telephony-tts models pull`.
"""


def write_random_checkpoint(
    path: Path,
    size: Size = "tiny",
    seed: int = 0,
    *,
    endless: bool = False,
    prompt_tokens: int = PROMPT_TOKENS,
    family: FamilyName = "cosyvoice2",
) -> None:
    """Writes a model directory of 6 MB (tiny) or 2.6 GB (full, 1.7 GB of 300m). The same seed gives the same weights.

    `endless`, for measurements: the model never ends its speech by itself, so it is as long as its text allows.
    `prompt_tokens` is the length of the prompt of the voice `prompted`. If it is 0, `preset` is the only voice. The
    voices of the family 300m have no prompts.
    Raises ConfigError if the directory holds anything but a random checkpoint of this family.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())) and not (path / RANDOM_MARK).is_file():
        raise ConfigError(f"{path} is not empty and is not a random checkpoint: give a new directory")
    other = SETTINGS_NAMES[0] if family == "300m" else FIRST_SETTINGS_NAME
    if (path / other).exists():
        raise ConfigError(f"{path} is a random checkpoint of the other model family: give a new directory")
    if family == "300m":
        _write_300m(path, size, seed, endless=endless)
        return
    config = SIZES[size]
    (path / TOKENIZER_DIR).mkdir(parents=True, exist_ok=True)
    special = {"endless": True, "prompt_tokens": prompt_tokens} if endless else {}
    _write_json(path / RANDOM_MARK, {"random": True, "size": size, "seed": seed, **special})
    (path / "README.md").write_text(README.format(size=size, seed=seed), encoding="utf-8")
    (path / SETTINGS_NAMES[0]).write_text(_settings(config), encoding="utf-8")
    assert isinstance(config.lm, LmConfig)
    write_tokenizer(path / TOKENIZER_DIR, config.lm)
    (path / SPEAKER_ONNX).write_bytes(speaker_graph(seed))
    (path / TOKENS_ONNX).write_bytes(token_graph(seed))
    torch.save(_speakers(config, seed, prompt_tokens), path / SPEAKERS_FILE)
    for name, shapes in checkpoint_shapes(config).items():
        torch.save(random_state(name, shapes, seed, endless=endless), path / name)


def _write_300m(path: Path, size: Size, seed: int, *, endless: bool) -> None:
    config = SIZES_300M[size]
    path.mkdir(parents=True, exist_ok=True)
    special = {"endless": True} if endless else {}
    _write_json(path / RANDOM_MARK, {"random": True, "family": "300m", "size": size, "seed": seed, **special})
    (path / "README.md").write_text(README_300M.format(size=size, seed=seed), encoding="utf-8")
    (path / FIRST_SETTINGS_NAME).write_text(settings_300m(config), encoding="utf-8")
    write_ranks(path / RANKS_FILE, [*_spelt_words(), f" {LONG_WORD}"])
    torch.save(preset_speakers(config, _generator(seed, SPEAKERS_FILE)), path / SPEAKERS_FILE)
    for name, shapes in checkpoint_shapes(config).items():
        torch.save(random_state(name, shapes, seed, endless=endless), path / name)


def random_state(file: str, shapes: dict[str, Shape], seed: int, *, endless: bool = False) -> dict[str, Tensor]:
    """The tensors of one file. Each has a generator of its own, so its values do not depend on the other tensors."""
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        state[name] = _random_tensor(name, shape, _generator(seed, f"{file}/{name}"))
    for name in shapes:
        if name.endswith(WEIGHT_G):
            direction = state[name.removesuffix(WEIGHT_G) + WEIGHT_V]
            state[name] = direction.flatten(1).norm(dim=1)[:, None, None]
    if file == LM_FILE and "text_embedding.weight" in shapes:
        end = len(state["llm_decoder.bias"]) - 1
        state["llm_decoder.weight"][end] *= 0.1  # so that the bias decides when speech ends
        state["llm_decoder.bias"][end] = NEVER_AT_ALL if endless else EOS_BIAS_300M
    elif file == LM_FILE:
        state[TEXT_HEAD] = state["llm.model.model.embed_tokens.weight"]  # tied, as in the official file
        state["llm_decoder.weight"][EOS] *= 0.1  # so that the bias decides when speech ends
        stops = [NEVER_AT_ALL] * 3 if endless else [EOS_BIAS, NEVER, NEVER]
        state["llm_decoder.bias"][[EOS, UNUSED_STOP, FILL]] = torch.tensor(stops)
    if file == FLOW_FILE:
        state["decoder.estimator.final_proj.bias"] += LOG_MEL
    if file == VOCODER_FILE:
        state["conv_post.bias"][: len(state["conv_post.bias"]) // 2] = LOG_MAGNITUDE
        state["f0_predictor.classifier.bias"][:] = F0_HZ
    return state


def _random_tensor(name: str, shape: Shape, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith(("embedding.weight", "embed_tokens.weight")):
        return noise.mul_(0.5)
    if name.endswith(".alpha"):
        return noise.mul_(0.1).add_(1.0)
    if name.endswith(".bias") or "pos_bias" in name:
        return noise.mul_(0.02)
    if len(shape) == 1:  # weights of norms
        return noise.mul_(0.05).add_(1.0)
    return noise.mul_(_gain(name) / math.sqrt(_fan_in(name, shape)))


def _fan_in(name: str, shape: Shape) -> int:
    if name.startswith("ups."):
        return 2 * shape[0]  # [in, out, kernel] with strides of about half a kernel
    return math.prod(shape[1:])


def _gain(name: str) -> float:
    """Damps residual branches, whose sum would grow with depth. The last layers get the scale of their unit."""
    if name == "f0_predictor.classifier.weight":
        return 4.0 * F0_SPREAD_HZ
    if name == "m_source.l_linear.weight":
        return 3.0
    if name.startswith("conv_post."):
        return 0.25
    if ".convs2." in name:
        return 0.3
    return 1.0


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def _speakers(config: ModelConfig, seed: int, n_prompt: int) -> dict[str, dict[str, Tensor]]:
    """A preset speaker, and a speaker with a prompt if `n_prompt` is not 0: layouts (a) and (b) (specification 3.4)."""
    random = _generator(seed, SPEAKERS_FILE)
    embedding = torch.randn(1, config.flow_encoder.d_speaker, generator=random)
    tokens = torch.randint(N_SPEECH_TOKENS, (1, n_prompt), generator=random, dtype=torch.int32)
    feat = torch.randn(1, 2 * n_prompt, config.flow_encoder.d_out, generator=random).mul_(2.0).sub_(5.0)
    text = torch.randint(256, (1, 20), generator=random, dtype=torch.int32)
    n_tokens, n_frames = torch.tensor([n_prompt]).int(), torch.tensor([2 * n_prompt]).int()
    prompted = {
        "prompt_text": text,
        "prompt_text_len": torch.tensor([20]).int(),
        "llm_prompt_speech_token": tokens,
        "llm_prompt_speech_token_len": n_tokens,
        "flow_prompt_speech_token": tokens,
        "flow_prompt_speech_token_len": n_tokens,
        "prompt_speech_feat": feat,
        "prompt_speech_feat_len": n_frames,
        "llm_embedding": embedding,
        "flow_embedding": embedding,
    }
    preset = {"preset": {"embedding": embedding}}
    return {**preset, "prompted": prompted} if n_prompt else preset


# -------------------------------------------------------------------------- tokenizer

_WORDS = """the and you for that your with this are have will can please call account number order today thank hello
what when time from our one two three four five six seven eight nine ten help is of to in it on my we at be or"""
_HAN = "你好的是一我在有不人这他们来了上个大中为到说时请您谢"


def _spelt_words() -> list[str]:
    """Words and characters that are single tokens in a random checkpoint."""
    return [*(f" {word}" for word in _WORDS.split()), *_HAN]


def write_tokenizer(directory: Path, config: LmConfig) -> None:
    """Writes a vocabulary of all bytes, and merges that make some words and characters single tokens."""
    letters = byte_letters()
    vocabulary = {letter: i for i, letter in enumerate(letters.values())}
    merges: list[str] = []
    for word in _spelt_words():
        spelt = [letters[byte] for byte in word.encode()]
        left = spelt[0]
        for letter in spelt[1:]:
            if left + letter not in vocabulary:
                vocabulary[left + letter] = len(vocabulary)
                merges.append(f"{left} {letter}")
            left += letter
    _write_json(directory / "vocab.json", vocabulary)
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    added = {
        str(len(vocabulary) + i): {"content": token, "special": True} for i, token in enumerate(SPECIAL_TOKENS[:3])
    }
    _write_json(directory / "tokenizer_config.json", {"random": True, "added_tokens_decoder": added})
    qwen = {
        "model_type": "qwen2",
        "random": True,
        "vocab_size": config.n_text_rows,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": True,
    }
    _write_json(directory / "config.json", qwen)


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# --------------------------------------------------------------------------- settings


def _settings(config: ModelConfig) -> str:
    """cosyvoice2.yaml with the official keys and tags, as far as speech depends on them."""
    lm, encoder, decoder, hift = config.lm, config.flow_encoder, config.flow_decoder, config.vocoder
    assert isinstance(lm, LmConfig)
    dilations = [list(hift.res_dilations)] * len(hift.res_kernels)
    return f"""# Random weights: see README.md
__set_seed1: !apply:random.seed [1986]
sample_rate: 24000
llm_input_size: {lm.d_model}
llm_output_size: {lm.d_model}
spk_embed_dim: {encoder.d_speaker}
qwen_pretrain_path: ''
token_frame_rate: 25
token_mel_ratio: 2
chunk_size: 25
num_decoding_left_chunks: -1
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: {encoder.n_tokens}
    mix_ratio: [{lm.n_mix_text}, {lm.n_mix_speech}]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {config.sampling.top_p}
        top_k: {config.sampling.top_k}
        win_size: {config.sampling.window}
        tau_r: {config.sampling.max_repeat}
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: {encoder.d_model}
    output_size: {encoder.d_out}
    spk_embed_dim: !ref <spk_embed_dim>
    vocab_size: {encoder.n_tokens}
    input_frame_rate: !ref <token_frame_rate>
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {encoder.d_model}
        attention_heads: {encoder.n_heads}
        linear_units: {encoder.d_ff}
        num_blocks: {encoder.n_layers}
        static_chunk_size: !ref <chunk_size>
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        in_channels: 240
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: euler
                t_scheduler: cosine
                inference_cfg_rate: {decoder.guidance}
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: {decoder.d_in}
            out_channels: {decoder.d_mel}
            channels: [{decoder.n_channels}]
            attention_head_dim: {decoder.d_head}
            n_blocks: {decoder.n_blocks}
            num_mid_blocks: {decoder.n_mid_stages}
            num_heads: {decoder.n_heads}
            act_fn: gelu
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
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
