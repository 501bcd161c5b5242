"""The flow on a CPU in bfloat16: weights laid out for it, and a step in one call."""

from __future__ import annotations

import pytest
import torch
from freeze_flow import small_flow
from test_flow_steps import CALLS, N_STEPS, alone

from telephony_tts.engines.cosyvoice2.model import linear
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow import quick as flow_quick
from telephony_tts.engines.cosyvoice2.model.flow.layers import Conv
from telephony_tts.engines.cosyvoice2.model.linear import Linear, PackedLinear, packs

needs_packing = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor does not know bfloat16"
)


@needs_packing
def test_a_packed_linear_has_the_bits_of_a_plain_one() -> None:
    assert packs()
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
    plain, packed = Conv(weight, bias), Conv(weight, bias)
    packed.pack()
    x = torch.randn(2, 50, 32, generator=g).bfloat16()
    assert torch.equal(packed(x), plain(x))


@needs_packing
@pytest.mark.parametrize("call", CALLS[:3])
def test_in_one_call_a_step_is_what_it_is_in_many(
    call: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TorchScript and as Python to the bit, as layers of their own up to bfloat16, and all of them near float32."""
    n_prompt, n_blocks, seed = call
    runs: list[int] = []
    quick, compiled = flow_quick.velocity, flow_quick.compiled()
    assert compiled is not quick
    monkeypatch.setattr(flow_quick, "compiled", lambda: lambda *args: (runs.append(1), compiled(*args))[1])
    scripted = alone(small_flow(torch.bfloat16), n_prompt, n_blocks, seed)
    # Steps of the prompt, of two chunks and of the end.
    assert len(runs) == N_STEPS * (3 + (n_prompt >= BLOCK_TOKENS + LOOKAHEAD_TOKENS))
    monkeypatch.setattr(flow_quick, "compiled", lambda: quick)
    assert torch.equal(alone(small_flow(torch.bfloat16), n_prompt, n_blocks, seed), scripted)
    flow = small_flow(torch.bfloat16)
    flow.decoder.estimator.quick = None
    in_layers, exact = alone(flow, n_prompt, n_blocks, seed), alone(small_flow(), n_prompt, n_blocks, seed)
    size = exact.square().mean().sqrt()
    errors = [float((mel - exact).square().mean().sqrt() / size) for mel in (scripted, in_layers)]
    assert 0 < errors[0] < 1.1 * errors[1] < 0.05
    assert float((scripted - in_layers).square().mean().sqrt() / size) < 0.03


@needs_packing
def test_a_new_shape_is_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where something else in the process wants TorchScript optimised, it still is."""
    wanted = torch._C._get_graph_executor_optimize()
    seen = []
    script = torch.jit.ScriptFunction.__call__
    monkeypatch.setattr(
        torch.jit.ScriptFunction,
        "__call__",
        lambda *args: (seen.append(torch._C._get_graph_executor_optimize()), script(*args))[1],
    )
    flow_quick.compiled.cache_clear()
    alone(small_flow(torch.bfloat16), 27, 1, 1)
    flow_quick.compiled.cache_clear()
    assert seen and not any(seen) and torch._C._get_graph_executor_optimize() == wanted


def test_without_torchscript_and_packed_weights_bfloat16_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("no longer part of torch")

    monkeypatch.setattr(torch.jit, "script", gone)
    flow_quick.compiled.cache_clear()
    assert flow_quick.compiled() is flow_quick.velocity
    flow_quick.compiled.cache_clear()
    monkeypatch.setattr(linear, "PackedLinear", gone)
    packs.cache_clear()
    assert not packs()
    assert alone(small_flow(torch.bfloat16), 27, 1, 1).isfinite().all()
    monkeypatch.undo()
    packs.cache_clear()
