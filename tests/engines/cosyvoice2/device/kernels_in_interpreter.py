"""Runs the kernels of `triton_kernels` in Triton's interpreter, on a CPU: prints how far each is from PyTorch.

A JSON object: the name of a comparison, and its largest distance.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device import sampling
from telephony_tts.engines.cosyvoice2.model import triton_kernels as kernels
from telephony_tts.engines.cosyvoice2.model.config import FlowDecoderConfig, LmConfig, VocoderConfig
from telephony_tts.engines.cosyvoice2.model.flow import triton_kernels as flow_kernels
from telephony_tts.engines.cosyvoice2.model.flow.decoder import EstimatorStage, StepContext
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import EstimatorBatch, PassMemory
from telephony_tts.engines.cosyvoice2.model.flow.fused_layers import FusedTransformers
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PassLayout
from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.fused_decoder import FusedDecoder
from telephony_tts.engines.cosyvoice2.model.lm.lm import DecoderLayer, KvCache, LanguageModel, rotate_
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.cosyvoice2.model.vocoder import layers as vocoder_layers
from telephony_tts.engines.cosyvoice2.model.vocoder import triton_kernels as vocoder_kernels
from telephony_tts.engines.cosyvoice2.model.vocoder import vocoder as vocoder_vocoder
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import VocoderReader
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import ChunkStep
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder

found: dict[str, float] = {}


def compare(name: str, ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    found[name] = float((ours.double() - theirs.double()).abs().max())


def norms() -> None:
    x, added, weight, bias = torch.randn(3, 20), torch.randn(3, 20), torch.randn(20), torch.randn(20)
    total, normed = kernels.rms_norm(x, weight, 1e-6, added)
    compare("sum before a norm", total, x + added)
    compare("rms norm", normed, RmsNorm(weight, 1e-6)(x + added))
    compare("layer norm", flow_kernels.layer_norm(x, weight, bias, 1e-5)[1], F.layer_norm(x, (20,), weight, bias, 1e-5))
    rows = added.repeat_interleave(2, dim=0)
    expected = F.mish(F.layer_norm(torch.cat([x, 9 * x]), (20,), weight, bias, 1e-5)) + rows
    compare("norm and mish", flow_kernels.norm_mish(torch.cat([x, 9 * x]), weight, bias, 1e-5, added), expected)


def activations() -> None:
    pair = torch.randn(3, 14)
    compare("gate", kernels.gated(pair), F.silu(pair[:, :7]) * pair[:, 7:])


def numbers() -> None:
    seeds, n_drawn = torch.randint(-(2**62), 2**62, (13,)), torch.randint(0, 500, (13,))
    for i, (ours, theirs) in enumerate(
        zip(kernels.uniforms(seeds, n_drawn), sampling.uniforms(seeds, n_drawn), strict=True)
    ):
        compare(f"uniform {i}", ours, theirs)
    tables = [torch.randn(n, 10) for n in (2, 5, 3)]
    of_table, ids = torch.tensor([1, 0, 2, 1, 2]), torch.tensor([4, 1, 0, 0, 2])
    expected = torch.stack([tables[i][row] for i, row in zip(of_table, ids, strict=True)])
    compare("embeddings of three tables", kernels.embedded(of_table, ids, tables), expected)
    two = kernels.embedded(of_table[:2], ids[:2], tables[:2])
    compare("embeddings of two tables", two, expected[:2])


def windows() -> None:
    x, contexts = torch.randn(4, 6, 10), torch.randn(4, 50)
    before, n_frames = contexts[:, 7:27].view(4, 2, 10), torch.tensor([6, 6, 4, 2])
    joined = torch.cat([before, x], dim=1)
    rows, after = flow_kernels.windows(x, before, n_frames)
    compare("windows", rows, joined.unfold(1, 3, 1).transpose(2, 3).reshape(24, 30))
    ends = [of_row[n : n + 2] for of_row, n in zip(joined, n_frames.tolist(), strict=True)]
    compare("left context of the next block", after, torch.stack(ends))


def language_model(dtype: torch.dtype, prompt_rows: int) -> None:
    """Prompts of two slots in one batch, then a decode step of both, against each slot by itself. The first prompt goes
    on behind ids that PyTorch has read, over the border of a block of keys."""
    config = LmConfig(n_text_rows=8, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=48)

    def matrix(n: int, d: int, norm: bool = False) -> FloatMatrix:
        scale = RmsNorm(torch.rand(d).to(dtype) + 0.5, 1e-6) if norm else None
        return FloatMatrix((torch.randn(n, d) / d**0.5).to(dtype), scale)

    layers = [
        DecoderLayer(
            matrix(128, 64, True), torch.randn(128).to(dtype), matrix(64, 64), matrix(96, 64, True), matrix(64, 48)
        )
        for _ in range(2)
    ]
    final = torch.rand(64).to(dtype) + 0.5
    tables = {EmbeddingTable.CONTROL: torch.zeros(2, 64, dtype=dtype)}
    kernels.PROMPT_ROWS = prompt_rows  # whether they are read row by row
    model = LanguageModel(config, tables, layers, final, matrix(10, 64), torch.zeros(10, dtype=dtype))
    ours, theirs = (KvCache(config, 3, 150, dtype) for _ in range(2))
    fused = FusedDecoder(layers, RmsNorm(final, config.norm_eps), kernels)  # type: ignore[arg-type]
    model.extend(torch.randn(126, 64).to(dtype), 0, theirs)
    ours.data.copy_(theirs.data)
    prompts = torch.randn(5, 64).to(dtype), torch.randn(3, 64).to(dtype)
    alone = [model.extend(x, slot, theirs) for slot, x in enumerate(prompts)]
    slots = torch.tensor([0] * 5 + [1] * 3)
    together = fused(torch.cat(prompts), slots, torch.tensor([*range(126, 131), *range(3)]), ours)
    name = f"{prompt_rows} rows, {dtype}"
    compare(f"prompts, {name}", together, torch.cat(alone))
    compare(f"keys and values, {name}", ours.data, theirs.data)
    new = torch.randn(2, 64).to(dtype)
    expected = model.decode(new, [1, 0], theirs)
    compare(f"a decode step, {name}", fused(new, torch.tensor([1, 0]), torch.tensor([3, 131]), ours), expected)


def turned() -> None:
    cache, heads = torch.zeros(2, 2, 2, 8, 16), torch.randn(2, 8, 16)
    rotary, positions = torch.randn(2, 8, 16), torch.tensor([7, 0])
    rotary[0, :, 8:], rotary[1, :, 8:] = rotary[0, :, :8], -rotary[1, :, :8]
    expected = heads.clone()
    rotate_(expected[:, :6], *rotary[:, positions][:, :, None])
    kernels.turn_and_keep(heads, rotary, torch.tensor([1, 0]), positions, cache)
    compare("turned queries", heads[:, :4], expected[:, :4])
    compare("turned keys", torch.stack([cache[0, 1, :, 7], cache[0, 0, :, 0]]), expected[:, 4:6])


def flow_stage(n: int, dtype: torch.dtype) -> None:
    """A stage of the estimator for two blocks: one behind a past, and a short one at the start (100 frames) or a spare
    row (50 frames). Triton's interpreter takes milliseconds for each row of each kernel."""
    d_in = 48
    config = FlowDecoderConfig(n_channels=16, n_heads=2, d_head=16, n_blocks=2, n_mid_stages=0)
    shapes = {
        "s.0.mlp.1.weight": (16, config.d_time), "s.0.mlp.1.bias": (16,),
        "s.0.res_conv.weight": (16, d_in, 1), "s.0.res_conv.bias": (16,),
    }  # fmt: skip
    for i, d in ((1, d_in), (2, 16)):
        block = f"s.0.block{i}.block"
        shapes |= {f"{block}.0.weight": (16, d, 3), f"{block}.0.bias": (16,)}
        shapes |= {f"{block}.2.weight": (16,), f"{block}.2.bias": (16,)}
    for block in ("s.1.0", "s.1.1"):
        shapes |= {f"{block}.attn1.to_{name}.weight": (32, 16) for name in "qkv"}
        shapes |= {f"{block}.{name}.{part}": (16,) for name in ("norm1", "norm3") for part in ("weight", "bias")}
        shapes |= {f"{block}.attn1.to_out.0.weight": (16, 32), f"{block}.attn1.to_out.0.bias": (16,)}
        shapes |= {f"{block}.ff.net.0.proj.weight": (64, 16), f"{block}.ff.net.0.proj.bias": (64,)}
        shapes |= {f"{block}.ff.net.2.weight": (16, 64), f"{block}.ff.net.2.bias": (16,)}
    state = {name: (torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for name, shape in shapes.items()}
    layout = PassLayout(n_rows=2, n_heads=2, d_head=16, rates=(2, 2), contexts=((2, d_in), (2, 16)))
    random = PassMemory(layout, 9, torch.zeros(1, dtype=dtype))
    for kv in random.kv:
        kv[:, :, 2:].normal_()
    random.contexts[1:].normal_()
    is_short = n == 100
    own = [[5, 1], [7, 8] if is_short else [1, 1]]
    table = torch.tensor([[2, 3, 4, 0, *own[0]], [0, 0, 0, 0, *own[1]]])[:, : 4 + n // 50]
    n_past, n_frames = torch.tensor([150, 0]), torch.tensor([n, n - 6 if is_short else n])
    ends = torch.tensor([[4, 0], [5, 6 if is_short else 1]])
    features, times = torch.randn(4, n, d_in).to(dtype), torch.randn(1, 4, 16).to(dtype)
    made = []
    for is_fused in (False, True):
        memory = PassMemory(layout, 9, torch.zeros(1, dtype=dtype))
        for kept, kv in zip(memory.kv, random.kv, strict=True):
            kept.copy_(kv)
        memory.contexts.copy_(random.contexts)
        stage = EstimatorStage(config, FlowReader(dict(state)), "s", d_in, 0)
        batch = EstimatorBatch(memory, n_past, n_frames, ends, table, flow_kernels if is_fused else None)
        if is_fused:
            stage.resnet.fuse(flow_kernels)  # type: ignore[arg-type]
            stage.fused = FusedTransformers(stage.transformers, flow_kernels)  # type: ignore[arg-type]
        y = stage(features, StepContext(times, batch))
        batch.commit()
        made.append((y, memory))
    (plain, theirs), (fused, ours) = made
    name = f"{n} frames, {dtype}"
    compare(f"a stage of the flow, {name}", fused[:2], plain[:2])
    if is_short:
        compare(f"a short block, {name}", fused[2:4, : n - 6], plain[2:4, : n - 6])
    for layer, (kept, kv) in enumerate(zip(ours.kv, theirs.kv, strict=True)):
        compare(f"pages {layer}, {name}", kept[:, :, 4:12], kv[:, :, 4:12])
    compare(f"contexts, {name}", ours.contexts[5:7], theirs.contexts[5:7])


def vocoder_state(config: VocoderConfig) -> dict[str, Tensor]:
    """Random weights, with which values are about 1 between the layers and audio is far from its limits."""
    outline = VocoderReader({}, outline=True)
    Vocoder.read(config, outline)
    state = {name: torch.randn(shape) for name, shape in outline.shapes.items()}
    for name, weight in state.items():
        if name.endswith("alpha"):
            weight.abs_().add_(0.3)
        elif name.endswith("original0"):
            weight.abs_().add_(1).mul_(0.05 if "post" in name else 0.2)
        else:
            weight.div_(weight[0].numel() ** 0.5 if weight.dim() > 1 else 5)
    state["f0_predictor.classifier.weight"] *= 100
    state["f0_predictor.classifier.bias"] += 60
    return state


def vocoder(dtype: torch.dtype, n_rows: int) -> None:
    """Whole chunks of several utterances, by the kernels and by PyTorch: at the beginning, in the middle, the end.

    The convolutions that the kernels feed have padded channels, as on a GPU."""
    config = VocoderConfig(
        d_base=24, d_f0=12, n_harmonics=3, up_rates=(3, 2, 2), up_kernels=(7, 4, 6), res_kernels=(3, 5, 7),
        source_res_kernels=(3, 5, 7), res_dilations=(1, 2),
    )  # fmt: skip
    state = vocoder_state(config)
    plain = Vocoder.from_state(config, state, dtype, torch.float64)
    with patch.object(vocoder_layers, "on_accelerator", lambda _: True):
        fused = Vocoder.from_state(config, state, dtype, torch.float64)
    joints = [ContinuousJoint(plain, CounterNoise(seed, config.n_harmonics + 1)) for seed in range(n_rows)]
    for name, n, is_last in (("first", 30, False), ("second", 25, False), ("last", 3, True)):
        chunks = [joint.steps(torch.randn(1, config.d_mel, n), last=is_last) for joint in joints]
        steps = [next(chunk) for chunk in chunks]
        assert all(isinstance(step, ChunkStep) for step in steps)
        inputs = ChunkStep.stacked(steps)  # type: ignore[arg-type]
        expected = steps[0].computed(inputs)  # type: ignore[attr-defined]
        with patch.object(vocoder_vocoder, "vocoder_kernels", lambda _: vocoder_kernels):
            made = replace(steps[0], vocoder=fused).computed(inputs)  # type: ignore[type-var]
        for part, ours, theirs in zip(("audio", "source", "cycles", "voicing"), made, expected, strict=True):
            compare(f"{part} of the {name} chunk, {n_rows} rows, {dtype}", ours, theirs)
        for chunk, result in zip(chunks, ChunkStep.results(expected), strict=True):
            with suppress(StopIteration):
                chunk.send(result)


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    torch.set_num_threads(1)
    with torch.inference_mode():
        norms()
        activations()
        numbers()
        windows()
        turned()
        for dtype in (torch.float32, torch.float16):
            language_model(dtype, 1)
        language_model(torch.float32, 100)
        flow_stage(100, torch.float32)
        flow_stage(50, torch.float16)
        vocoder(torch.float32, 3)
        vocoder(torch.float16, 1)
    print(json.dumps(found))
