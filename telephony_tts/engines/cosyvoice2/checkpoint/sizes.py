"""The sizes of a checkpoint, from the shapes of its tensors and, where these are not enough, from its settings.

`cosyvoice2.yaml` is HyperPyYAML, whose tags build objects, draw seeds and refer to other values. It is read as plain
data: no tag builds anything, and `!ref <name>` becomes the value of that name (specification 1.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE2,
    COSYVOICE_300M,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_MELS,
    N_SPEECH_ROWS,
    FlowDecoderConfig,
    FlowEncoderConfig,
    LmConfig,
    ModelFamily,
    RelativeLmConfig,
    SamplingConfig,
    VocoderConfig,
    official_300m,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_V

Settings = Mapping[str, Any]
State = Mapping[str, Tensor]

MAX_SETTINGS_BYTES = 200_000
"""The largest settings file that is read. The official one has 7 kB."""
MAX_SETTINGS_NODES = 20_000
"""The most values in it. An aliased value counts each time. The official file has about 300."""
MAX_FACTORS = 4
MAX_SHOWN = 80
"""Characters of a wrong value that a message shows."""


class _PlainLoader(yaml.SafeLoader):
    """A SafeLoader that reads !new:x, !name:x, !ref and !apply:x as the plain data below them.

    Aliases are allowed up to MAX_SETTINGS_NODES values, but not inside the value that they stand for.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._n_nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        alias = self.check_event(yaml.AliasEvent)
        before = self._n_nodes
        node = super().compose_node(parent, index)
        if alias and id(node) not in self._sizes:
            raise yaml.YAMLError("an alias is inside the value that it stands for")
        self._n_nodes += self._sizes[id(node)] if alias else 1
        if self._n_nodes > MAX_SETTINGS_NODES:
            raise yaml.YAMLError(f"it has more than {MAX_SETTINGS_NODES} values, counting its aliases")
        self._sizes[id(node)] = self._n_nodes - before
        return node


def _as_plain(loader: yaml.SafeLoader, _tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return None


_PlainLoader.add_multi_constructor("!", _as_plain)


def read_settings(path: Path) -> dict[str, Any]:
    """cosyvoice2.yaml as plain data with its references resolved. Raises ValueError if it cannot be read."""
    try:
        data = yaml.load(settings_text(path), Loader=_PlainLoader)
        resolved = {key: _resolved(value, data) for key, value in data.items()} if isinstance(data, dict) else None
    except Exception as error:  # PyYAML raises KeyError, AttributeError and others for odd values
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ValueError(f"cannot be read, it is cut off, damaged or not YAML: {reason}") from error
    if resolved is None:
        raise ValueError("does not hold settings")
    return resolved


def settings_text(path: Path) -> str:
    """The text of a settings file. Raises ValueError if the file is too large, OSError if it cannot be read."""
    size = path.stat().st_size
    if size > MAX_SETTINGS_BYTES:
        raise ValueError(f"it has {size} bytes and should have at most {MAX_SETTINGS_BYTES}")
    return path.read_text(encoding="utf-8")


_REFERENCE = re.compile(r"<(\w+)>")


def _resolved(value: Any, names: Settings) -> Any:
    """Replaces `<a>` and `<a> * <b>` by the values of a and b. One level deep, so there can be no endless loop."""
    if isinstance(value, dict):
        return {key: _resolved(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, names) for item in value]
    if not isinstance(value, str):
        return value
    factors = [_REFERENCE.fullmatch(part.strip()) for part in value.split("*")]
    found = [names.get(match[1]) for match in factors if match]
    if len(found) != len(factors) or len(found) > MAX_FACTORS or any(item is None for item in found):
        return value
    if len(found) == 1:
        return found[0]
    return math.prod(found) if all(isinstance(item, int | float) for item in found) else value


def setting(settings: Settings, path: str, default: Any) -> Any:
    """The value at "a.b.c" in the type of the default. Raises ValueError for another type or a value not finite."""
    value: Any = settings
    for name in path.split("."):
        if not isinstance(value, Mapping) or value.get(name) is None:
            return default
        value = value[name]
    try:
        if isinstance(default, tuple):
            if value and isinstance(value[0], Sequence):  # one list of dilations for each kernel, all equal
                if any(item != value[0] for item in value):
                    raise ValueError("differs from block to block")
                value = value[0]
            if not value:
                raise ValueError("is empty")
            return tuple(int(item) for item in value)
        # YAML 1.1 reads "1e-6" as a word.
        found = type(default)(value)
        if isinstance(found, float) and not math.isfinite(found):
            raise ValueError("is not finite")
        return found
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{path} is {repr(value)[:MAX_SHOWN]}: {str(error)[:MAX_SHOWN]}") from error


def lacking_sections(settings: Settings) -> list[str]:
    """Sections that are missing, as in a file that was cut off. All settings that are read come before the last one."""
    lacking = [name for name in ("llm", "flow", "hift") if not isinstance(settings.get(name), Mapping)]
    if not lacking and "f0_predictor" not in settings["hift"]:
        lacking = ["hift.f0_predictor"]
    return lacking


def constant_problems(settings: Settings, family: ModelFamily = COSYVOICE2) -> list[str]:
    """The settings that contradict a constant of the model family on which this engine relies."""
    given = {"sample_rate": family.sample_rate_hz, "llm.speech_token_size": family.n_speech_tokens}
    if family is COSYVOICE2:
        given |= {
            "token_frame_rate": family.tokens_per_s,
            "token_mel_ratio": FRAMES_PER_TOKEN,
            "flow.pre_lookahead_len": LOOKAHEAD_TOKENS,
        }
    else:
        given["flow.input_frame_rate"] = family.tokens_per_s
    problems = []
    for path, value in given.items():
        found = setting(settings, path, value)
        if found != value:
            problems.append(f"{path} is {found} and should be {value} for {family.name}")
    return problems


def lm_config(state: State, settings: Settings, qwen: Settings) -> LmConfig:
    """Sizes of llm.pt. `qwen` is CosyVoice-BlankEN/config.json. Raises ValueError if they contradict each other."""
    n_text_rows, d_model = _shape(state, "llm.model.model.embed_tokens.weight", 2)
    _expect("llm_decoder.weight", _shape(state, "llm_decoder.weight", 2)[0], N_SPEECH_ROWS)
    d_ff = _shape(state, "llm.model.model.layers.0.mlp.gate_proj.weight", 2)[0]
    official = LmConfig()
    mix = setting(settings, "llm.mix_ratio", (official.n_mix_text, official.n_mix_speech))
    if len(mix) != 2 or min(mix) < 1:
        raise ValueError(f"llm.mix_ratio is {list(mix)}: give two numbers from 1 on, [text tokens, speech ids]")
    config = LmConfig(
        n_text_rows=n_text_rows,
        d_model=d_model,
        n_layers=_count(state, r"llm\.model\.model\.layers\.(\d+)\."),
        n_heads=setting(qwen, "num_attention_heads", official.n_heads),
        n_kv_heads=setting(qwen, "num_key_value_heads", official.n_kv_heads),
        d_ff=d_ff,
        norm_eps=setting(qwen, "rms_norm_eps", official.norm_eps),
        rope_theta=setting(qwen, "rope_theta", official.rope_theta),
        n_mix_text=mix[0],
        n_mix_speech=mix[1],
    )
    if config.n_heads < 1 or d_model % config.n_heads or config.n_kv_heads < 1 or config.n_heads % config.n_kv_heads:
        raise ValueError(f"{config.n_heads} heads with {config.n_kv_heads} key heads do not divide the width {d_model}")
    return config


def relative_lm_config(state: State, settings: Settings) -> RelativeLmConfig:
    """Sizes of llm.pt of CosyVoice-300M. Raises ValueError if they contradict each other."""
    n_text_rows, d_text = _shape(state, "text_embedding.weight", 2)
    n_heads, d_head = _shape(state, "llm.encoders.0.self_attn.pos_bias_u", 2)
    n_tokens = COSYVOICE_300M.n_speech_tokens
    _expect("llm_decoder.weight", _shape(state, "llm_decoder.weight", 2)[0], n_tokens + 1)
    for path in ("llm.llm.attention_heads", "llm.text_encoder.attention_heads"):
        _expect(path, setting(settings, path, n_heads), n_heads)
    return RelativeLmConfig(
        n_text_rows=n_text_rows,
        d_text=d_text,
        d_model=n_heads * d_head,
        n_heads=n_heads,
        d_ff=_shape(state, "llm.encoders.0.feed_forward.w_1.weight", 2)[0],
        n_text_layers=_count(state, r"text_encoder\.encoders\.(\d+)\."),
        n_layers=_count(state, r"llm\.encoders\.(\d+)\."),
        d_speaker=_shape(state, "spk_embed_affine_layer.weight", 2)[1],
        n_tokens=n_tokens,
    )


def sampling_config(settings: Settings) -> SamplingConfig:
    official = SamplingConfig()
    return SamplingConfig(
        top_p=setting(settings, "llm.sampling.top_p", official.top_p),
        top_k=setting(settings, "llm.sampling.top_k", official.top_k),
        window=setting(settings, "llm.sampling.win_size", official.window),
        max_repeat=setting(settings, "llm.sampling.tau_r", official.max_repeat),
    )


def encoder_config(state: State, settings: Settings, family: ModelFamily = COSYVOICE2) -> FlowEncoderConfig:
    """Sizes of the encoder in flow.pt. Raises ValueError if they contradict each other."""
    n_tokens, d_model = _shape(state, "input_embedding.weight", 2)
    d_out, d_speaker = _shape(state, "spk_embed_affine_layer.weight", 2)
    _expect("input_embedding.weight", n_tokens, family.n_speech_tokens)
    _expect("spk_embed_affine_layer.weight", d_out, N_MELS)
    n_heads = _shape(state, "encoder.encoders.0.self_attn.pos_bias_u", 2)[0]
    _expect("flow.encoder.attention_heads", setting(settings, "flow.encoder.attention_heads", n_heads), n_heads)
    return FlowEncoderConfig(
        n_tokens=n_tokens,
        d_model=d_model,
        n_heads=n_heads,
        d_ff=_shape(state, "encoder.encoders.0.feed_forward.w_1.weight", 2)[0],
        n_layers=_count(state, r"encoder\.encoders\.(\d+)\."),
        n_up_layers=_count(state, r"encoder\.up_encoders\.(\d+)\."),
        d_speaker=d_speaker,
        d_out=d_out,
    )


def decoder_config(state: State, settings: Settings) -> FlowDecoderConfig:
    """Sizes of the estimator in flow.pt. Raises ValueError if they contradict each other."""
    official = FlowDecoderConfig()
    stage = "decoder.estimator.down_blocks.0"
    n_channels, d_in, _ = _shape(state, f"{stage}.0.block1.block.0.weight", 3)
    d_inner = _shape(state, f"{stage}.1.0.attn1.to_q.weight", 2)[0]
    d_head = setting(settings, "flow.decoder.estimator.attention_head_dim", official.d_head)
    if d_head < 1 or d_inner % d_head:
        raise ValueError(f"attention_head_dim {d_head} does not divide the attention's width of {d_inner}")
    config = FlowDecoderConfig(
        n_channels=n_channels,
        n_heads=d_inner // d_head,
        d_head=d_head,
        n_blocks=_count(state, r"decoder\.estimator\.down_blocks\.0\.1\.(\d+)\."),
        n_mid_stages=_count(state, r"decoder\.estimator\.mid_blocks\.(\d+)\."),
        d_mel=_shape(state, "decoder.estimator.final_proj.weight", 3)[0],
        guidance=setting(settings, "flow.decoder.cfm_params.content.inference_cfg_rate", official.guidance),
    )
    _expect("decoder.estimator's input", d_in, config.d_in)
    return config


def vocoder_config(state: State, settings: Settings, family: ModelFamily = COSYVOICE2) -> VocoderConfig:
    """Sizes of hift.pt with today's names of weight norm. Raises ValueError if they contradict each other."""
    official = VocoderConfig() if family is COSYVOICE2 else official_300m().vocoder
    d_base, d_mel, _ = _shape(state, f"conv_pre{WEIGHT_V}", 3)
    n_stages = _count(state, r"ups\.(\d+)\.")
    n_blocks = _count(state, r"resblocks\.(\d+)\.")
    if n_stages < 1 or n_blocks % n_stages or d_base % (1 << n_stages):
        raise ValueError(f"{n_blocks} blocks and a width of {d_base} do not fit {n_stages} stages")
    up_rates = setting(settings, "hift.upsample_rates", official.up_rates)
    res_dilations = setting(settings, "hift.resblock_dilation_sizes", official.res_dilations)
    _expect("the number of hift.upsample_rates", len(up_rates), n_stages)
    return VocoderConfig(
        sample_rate_hz=official.sample_rate_hz,
        ramps_pitch=official.ramps_pitch,
        d_mel=d_mel,
        d_base=d_base,
        n_harmonics=_shape(state, "m_source.l_linear.weight", 2)[1] - 1,
        sine_amplitude=setting(settings, "hift.nsf_alpha", official.sine_amplitude),
        noise_std=setting(settings, "hift.nsf_sigma", official.noise_std),
        voiced_above_hz=setting(settings, "hift.nsf_voiced_threshold", official.voiced_above_hz),
        up_rates=up_rates,
        up_kernels=tuple(_shape(state, f"ups.{i}{WEIGHT_V}", 3)[2] for i in range(n_stages)),
        n_fft=_shape(state, f"conv_post{WEIGHT_V}", 3)[0] - 2,
        hop=setting(settings, "hift.istft_params.hop_len", official.hop),
        res_kernels=tuple(
            _shape(state, f"resblocks.{i}.convs1.0{WEIGHT_V}", 3)[2] for i in range(n_blocks // n_stages)
        ),
        res_dilations=res_dilations,
        source_res_kernels=tuple(
            _shape(state, f"source_resblocks.{i}.convs1.0{WEIGHT_V}", 3)[2] for i in range(n_stages)
        ),
        leaky_slope=setting(settings, "hift.lrelu_slope", official.leaky_slope),
        audio_limit=setting(settings, "hift.audio_limit", official.audio_limit),
        d_f0=_shape(state, f"f0_predictor.condnet.0{WEIGHT_V}", 3)[0],
    )


def _shape(state: State, name: str, n_dims: int) -> tuple[int, ...]:
    tensor = state.get(name)
    if tensor is None:
        raise ValueError(f"{name} is missing, and the sizes of other tensors are read from it")
    if tensor.dim() != n_dims:
        raise ValueError(f"{name} has the shape {list(tensor.shape)} and should have {n_dims} dimensions")
    return tuple(tensor.shape)


def _count(state: State, pattern: str) -> int:
    """One more than the largest index that the pattern finds. Raises ValueError if it exceeds the number of tensors."""
    count = max((int(match[1]) + 1 for match in map(re.compile(pattern).match, state) if match), default=0)
    if count > len(state):
        raise ValueError(f"a tensor has the index {count - 1}, but there are only {len(state)} tensors")
    return count


def _expect(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"{what} is {found} and should be {wanted}")
