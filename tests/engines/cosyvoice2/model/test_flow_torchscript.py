"""The flow on a CPU in bfloat16: packed weights, and an Euler step as one TorchScript call."""

from __future__ import annotations

import pytest
import torch
from freeze_flow import small_flow
from test_flow_steps import CALLS, N_STEPS, alone

from telephony_tts.engines.cosyvoice2.model import linear
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow import torchscript_step
from telephony_tts.engines.cosyvoice2.model.flow.host_backend import HostBackend
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowConv
from telephony_tts.engines.cosyvoice2.model.linear import Linear, PackedLinear, packing_is_exact

needs_packing = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16"
)


@needs_packing
def test_a_packed_linear_has_the_bits_of_a_plain_one() -> None:
    assert packing_is_exact()
    g = torch.Generator().manual_seed(1)
    for d_out, d_in, bias in ((48, 32, True), (96, 64, False)):
        b = torch.randn(d_out, generator=g).bfloat16()
        plain = Linear(torch.randn(d_out, d_in, generator=g).bfloat16(), b if bias else None)
        packed = PackedLinear(plain)
        x = torch.randn(2, 50, d_in, generator=g).bfloat16()
        assert torch.equal(packed(x), plain(x)) and torch.equal(packed(x[:, 20:23]), packed(x)[:, 20:23])
        assert torch.equal(packed.unpacked().weight, plain.weight) and packed.unpacked().bias is plain.bias


@needs_packing
def test_a_packed_convolution_has_the_bits_of_a_plain_one() -> None:
    g = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(48, 32, 3, generator=g).bfloat16(), torch.randn(48, generator=g).bfloat16()
    plain, packed = FlowConv(weight, bias), FlowConv(weight, bias)
    packed.pack()
    x = torch.randn(2, 50, 32, generator=g).bfloat16()
    assert torch.equal(packed(x), plain(x))


@needs_packing
@pytest.mark.parametrize("call", CALLS[:3])
def test_a_torchscript_step_equals_a_step_layer_by_layer(
    call: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript and Python have the same bits. Layer by layer is as near as bfloat16 is; all are near float32."""
    n_prompt, n_blocks, seed = call
    runs: list[int] = []
    quick, compiled = torchscript_step.velocity, torchscript_step.compiled()
    assert compiled is not quick
    monkeypatch.setattr(torchscript_step, "compiled", lambda: lambda *args: (runs.append(1), compiled(*args))[1])
    scripted = alone(small_flow(torch.bfloat16), n_prompt, n_blocks, seed)
    # The steps of the prompt, of two chunks and of the end.
    assert len(runs) == N_STEPS * (3 + (n_prompt >= BLOCK_TOKENS + LOOKAHEAD_TOKENS))
    monkeypatch.setattr(torchscript_step, "compiled", lambda: quick)
    assert torch.equal(alone(small_flow(torch.bfloat16), n_prompt, n_blocks, seed), scripted)
    flow = small_flow(torch.bfloat16)
    assert isinstance(flow.backend, HostBackend)
    flow.backend.velocity = flow.decoder.estimator.velocity
    in_layers, exact = alone(flow, n_prompt, n_blocks, seed), alone(small_flow(), n_prompt, n_blocks, seed)
    size = exact.square().mean().sqrt()
    errors = [float((mel - exact).square().mean().sqrt() / size) for mel in (scripted, in_layers)]
    assert 0 < errors[0] < 1.1 * errors[1] < 0.05
    assert float((scripted - in_layers).square().mean().sqrt() / size) < 0.03


@needs_packing
def test_a_new_shape_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript of other parts of the process is still optimised."""
    wanted = torch._C._get_graph_executor_optimize()
    seen = []
    script = torch.jit.ScriptFunction.__call__
    monkeypatch.setattr(
        torch.jit.ScriptFunction,
        "__call__",
        lambda *args: (seen.append(torch._C._get_graph_executor_optimize()), script(*args))[1],
    )
    torchscript_step.compiled.cache_clear()
    alone(small_flow(torch.bfloat16), 27, 1, 1)
    torchscript_step.compiled.cache_clear()
    assert seen and not any(seen) and torch._C._get_graph_executor_optimize() == wanted


def test_bfloat16_runs_without_torchscript_and_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("no longer part of torch")

    monkeypatch.setattr(torch.jit, "script", gone)
    torchscript_step.compiled.cache_clear()
    assert torchscript_step.compiled() is torchscript_step.velocity
    torchscript_step.compiled.cache_clear()
    monkeypatch.setattr(linear, "PackedLinear", gone)
    packing_is_exact.cache_clear()
    assert not packing_is_exact()
    assert alone(small_flow(torch.bfloat16), 27, 1, 1).isfinite().all()
    monkeypatch.undo()
    packing_is_exact.cache_clear()
