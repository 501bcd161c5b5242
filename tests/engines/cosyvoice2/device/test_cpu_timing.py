"""The timing of the networks: it runs, in every precision that the machine has, and nothing else decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import SIZES
from telephony_tts.engines.cosyvoice2.device import cpu_timing
from telephony_tts.engines.cosyvoice2.device.cpu_timing import made_up, measure_cpu
from telephony_tts.engines.cosyvoice2.model.config import VocoderConfig
from telephony_tts.engines.kernels import library as kernels

TINY = SIZES["tiny"]


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by a millisecond at each look, so that the number of looks decides, not the machine. The
    caches then decide nothing, and to flush them before each run would be most of the work."""

    def clock() -> Iterator[int]:
        now_ns = 0
        while True:
            now_ns += 1_000_000
            yield now_ns

    for name in ("monotonic_ns", "thread_cpu_ns"):
        monkeypatch.setattr(cpu_timing, name, clock().__next__)
    for name in ("SMALLEST_FLUSH", "LARGEST_FLUSH"):
        monkeypatch.setattr(cpu_timing, name, 1 << 20)


@pytest.mark.slow
@pytest.mark.usefixtures("ticks")
def test_every_network_is_timed_in_every_precision() -> None:
    n_threads = torch.get_num_threads()
    try:
        timings = measure_cpu(TINY)
    finally:
        torch.set_num_threads(n_threads)
    floats = {"float32", "bfloat16"} | ({"int8"} if kernels.available() else set())
    assert set(timings.lm) == set(timings.flow) == floats and set(timings.vocoder) == {"float32", "mixed"}
    # A look takes 1 ms: one layer of two and the head make a token, and 25 of them a second.
    assert timings.lm["float32"] == pytest.approx(25 * (1 + 2) / 1000)
    if kernels.available():
        assert timings.lm_shared["int8"] == pytest.approx(timings.lm["int8"] / 4), "four rows in one step"
    assert timings.lm_shared["float32"] == timings.lm["float32"], "rows that are computed one by one"
    # Two of four stages, ten steps; one of two and of two layers, of which the latter run at twice the rate.
    assert timings.flow["float32"] == pytest.approx((2 + 10 * 4 / 2) / 1000)
    assert timings.slowdown >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("ticks")
def test_without_int8_nothing_is_timed_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    timings = measure_cpu(TINY)
    assert set(timings.lm) == set(timings.lm_shared) == set(timings.flow) == {"float32", "bfloat16"}


@pytest.mark.slow
def test_made_up_weights_have_the_shapes_and_keep_sizes() -> None:
    for shapes in checkpoint_shapes(TINY).values():
        state = made_up(shapes)
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == shapes
        assert all(tensor.isfinite().all() for tensor in state.values())
    matrix = made_up({"weight": (300, 200)})["weight"]
    assert 0.9 < float((torch.randn(100, 200) @ matrix.t()).std()) < 1.1


def test_the_vocoders_work_follows_its_blocks() -> None:
    full, one = VocoderConfig(), VocoderConfig(res_dilations=(3,))
    share = cpu_timing._block_work(full, 80, 15, 65) / cpu_timing._block_work(one, 80, 15, 65)
    assert 3.0 < share < 3.5, "three dilations for one, and the columns that they see beside their own"
    second, half = (cpu_timing._block_work(full, 80, 15, until) for until in (65, 40))
    assert 0.5 < half / second < 0.6


def test_a_hopeless_precision_runs_once() -> None:
    runs = {"slow": 0, "fast": 0}

    def work(name: str, seconds: float) -> cpu_timing.Timed:
        def run() -> tuple[float]:
            runs[name] += 1
            return (seconds,)

        return run

    best = cpu_timing._best_of_rounds({"fast": work("fast", 1.0), "slow": work("slow", 9.0)})
    assert best == {"fast": (1.0,), "slow": (9.0,)}
    assert runs["slow"] == 2 < runs["fast"], "the first run is not timed"
