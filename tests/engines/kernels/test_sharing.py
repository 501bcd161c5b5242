"""Calls of the int8 kernels that idle threads help with: the same bits, no call missed, a free exit."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes, IdleLanes, SleepingLanes
from telephony_tts.engines.cosyvoice2.model.config import LmConfig
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, LayerNorm, Linear, RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.lm import DecoderLayer, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.weights import Int8Matrix
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.kernels import library
from telephony_tts.engines.kernels.library import (
    LeftContext,
    NormMish,
    Piece,
    Resnet,
    TransformerLayer,
    functions,
)

pytestmark = pytest.mark.slow  # it runs a compiler

PATIENCE_S = 20.0


@contextmanager
def waiting(lanes: IdleLanes, n: int) -> Iterator[list[threading.Thread]]:
    """`n` threads that wait until the end, and come back after other calls, as lanes do."""
    is_over = False

    def lane() -> None:
        while not is_over:
            n_seen = lanes.n_calls()
            if not is_over:
                lanes.wait(n_seen)

    threads = [threading.Thread(target=lane, daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        is_over = True
        lanes.call()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(n_rows: int) -> Callable[[], Tensor]:
    norm = LayerNorm(randn(40, seed=2), randn(40, seed=3), 1e-5)
    maps = [
        Int8Linear(Linear(randn(700, 40), randn(700, seed=1)), norm, in_15_bits=low, weights_in_15_bits=low, gelu=True)
        for low in (False, True)
    ]
    x = randn(n_rows, 40, seed=4)
    return lambda: torch.cat([each(x) for each in maps])


def normed() -> Tensor:
    x, weight, bias = randn(90, 40), randn(40, seed=1), randn(40, seed=2)
    functions().norm_mish(x.data_ptr(), 90, 40, weight.data_ptr(), bias.data_ptr(), 1e-5)
    return x


def attended() -> Tensor:
    """Two rows of five heads over 70 positions."""
    n_heads, d, n = 5, 12, 70
    qkv, out = randn(2, n, 3 * n_heads * d), torch.empty(2, n, n_heads * d)
    memory = torch.zeros(2 * n_heads * 80 * functions().bytes_per_position(d), dtype=torch.uint8)
    piece = Piece(memory.data_ptr(), 80, 0)
    functions().attend(qkv.data_ptr(), 2, n, n_heads, d, 0, 50, ctypes.addressof(piece), 1, out.data_ptr())
    return out


def transformed(n_rows: int) -> Callable[[], Tensor]:
    """Three transformer blocks behind another layer's keys and values, and all keys and values that they leave."""
    n, n_heads, d_head, d, d_ff, n_before, capacity = 50, 3, 12, 40, 90, 20, 80
    width = n_heads * d_head
    norms = [LayerNorm(randn(d, seed=seed), randn(d, seed=seed + 1), 1e-5) for seed in (2, 4)]
    maps = [
        (
            Int8Linear(Linear(randn(3 * width, d, seed=seed), None), norms[0]),
            Int8Linear(Linear(randn(d, width, seed=seed + 1), None), weights_in_15_bits=True),
            Int8Linear(Linear(randn(d_ff, d, seed=seed + 2), None), norms[1], gelu=True),
            Int8Linear(Linear(randn(d, d_ff, seed=seed + 3), None)),
        )
        for seed in (10, 20, 30)
    ]
    layers = (TransformerLayer * 3)(*(TransformerLayer(*(each.address for each in layer)) for layer in maps))
    before = randn(n_rows, n_before, 3 * width, seed=6)
    n_bytes = 4 * n_rows * n_heads * capacity * functions().bytes_per_position(d_head)

    def run() -> Tensor:
        assert maps
        x, out, memory = randn(n_rows, n, d, seed=5), torch.empty(n_rows, n_before, width), torch.zeros(n_bytes)
        memory = memory.to(torch.uint8)
        sizes, piece = (n_heads, d_head), Piece(memory.data_ptr(), capacity, 0)
        address = ctypes.addressof(piece)
        for layer in range(4):
            functions().attend(before.data_ptr(), n_rows, n_before, *sizes, layer, 50, address, 1, out.data_ptr())
        piece.n = n_before
        functions().transform(ctypes.addressof(layers), 3, 1, x.data_ptr(), n_rows, n, *sizes, 50, address, 1)
        return torch.cat([x.flatten(), memory.float()])

    return run


def language_model(n_rows: int) -> Callable[[], Tensor]:
    """A decode step of `n_rows` streams, and the cache that it leaves."""
    config = LmConfig(d_model=192, n_layers=2, n_heads=6, n_kv_heads=2, d_ff=200)
    d, n_qkv, norm = config.d_model, 320, RmsNorm(1 + 0.1 * randn(192, seed=5), 1e-6)
    layers = [
        DecoderLayer(
            qkv=Int8Matrix(randn(n_qkv, d, seed=seed), norm),
            qkv_bias=randn(n_qkv, seed=seed + 1),
            out=Int8Matrix(randn(d, d, seed=seed + 3)),
            gate_up=Int8Matrix(randn(2 * config.d_ff, d, seed=seed + 2), norm),
            down=Int8Matrix(randn(d, config.d_ff, seed=seed + 4)),
        )
        for seed in (10, 20)
    ]
    tables = {EmbeddingTable.CONTROL: torch.zeros(2, d)}
    lm = LanguageModel(config, tables, layers, torch.ones(d), Int8Matrix(randn(9, d)), torch.zeros(9))
    cache, x = lm.new_cache(n_rows, 60), randn(n_rows, d, seed=6)
    earlier = randn(*cache.data.shape, seed=7)

    def run() -> Tensor:
        cache.data[:] = earlier
        cache.lengths[:] = [40] * n_rows
        return torch.cat([lm.decode(x, list(range(n_rows)), cache).flatten(), cache.data.flatten()])

    return run


def residual() -> Callable[[], Tensor]:
    """A residual block of two rows, and the left contexts that it leaves."""
    n, d_in, d = 50, 36, 20
    maps = [Int8Linear(Linear(randn(d, k, seed=k), randn(d)), weights_in_15_bits=True) for k in (3 * d_in, 3 * d, d_in)]
    weight, bias, time_vector, x = randn(d, seed=7), randn(d, seed=8), randn(d, seed=9), randn(2, n, d_in, seed=10)
    norm = NormMish(weight.data_ptr(), bias.data_ptr(), 1e-5)
    block = Resnet(*(each.address for each in maps), norm, norm)
    before = randn(2, 2, d_in, seed=11), randn(2, 2, d, seed=12)

    def run() -> Tensor:
        assert weight is not None and bias is not None and maps
        after, y = [torch.empty_like(each) for each in before], torch.empty(2, n, d)
        pairs = zip(before, after, strict=True)
        lefts = (LeftContext * 2)(*(LeftContext(first.data_ptr(), later.data_ptr()) for first, later in pairs))
        addresses = ctypes.addressof(lefts), time_vector.data_ptr(), y.data_ptr()
        functions().resnet(ctypes.addressof(block), x.data_ptr(), 2, n, *addresses)
        return torch.cat([y.flatten(), *(each.flatten() for each in after)])

    return run


WORKS: dict[str, Callable[[], Callable[[], Tensor]]] = {
    "1 row": lambda: linear(1),
    "2 rows": lambda: linear(2),
    "90 rows": lambda: linear(90),
    "norm": lambda: normed,
    "heads": lambda: attended,
    "residual block": residual,
    "transformer blocks of 1 row": lambda: transformed(1),
    "transformer blocks of 2 rows": lambda: transformed(2),
    "ids of 1 stream": lambda: language_model(1),
    "ids of 26 streams": lambda: language_model(26),
}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("n_helpers", [1, 3])
def test_helped_calls_give_the_same_bits(name: str, n_helpers: int) -> None:
    work = WORKS[name]()
    wanted = work()
    with waiting(HelpingLanes(), n_helpers):
        for _ in range(300):
            assert torch.equal(work(), wanted)


def test_several_threads_are_helped_at_once() -> None:
    work, failures = linear(90), []
    wanted = work()
    end = time.monotonic() + 1.0

    def compute() -> None:
        while time.monotonic() < end:
            if not torch.equal(work(), wanted):
                failures.append("other bits")

    threads = [threading.Thread(target=compute) for _ in range(3)]
    lanes = HelpingLanes()
    with waiting(lanes, 2):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            lanes.call()  # helpers leave and come back all the time
            time.sleep(0.001)
    assert not failures


@pytest.mark.parametrize("kind", [HelpingLanes, SleepingLanes])
def test_a_call_before_the_wait_is_not_missed(kind: Callable[[], IdleLanes]) -> None:
    lanes = kind()
    n_seen = lanes.n_calls()
    lanes.call()
    thread = threading.Thread(target=lanes.wait, args=(n_seen,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [HelpingLanes, SleepingLanes])
def test_lanes_wait_until_they_are_called(kind: Callable[[], IdleLanes]) -> None:
    lanes = kind()
    thread = threading.Thread(target=lanes.wait, args=(lanes.n_calls(),), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    lanes.call()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_process_exits_while_lanes_sleep() -> None:
    program = """
import threading, time
from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes
lanes = HelpingLanes()
for _ in range(2):
    threading.Thread(target=lanes.wait, args=(lanes.n_calls(),), daemon=True).start()
time.sleep(0.2)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


MANY = r"""
#include "sharing.h"
#include <cstdio>

int main() {  // how many parts a helper computed for the last of 200 threads, one after the other
    std::atomic<bool> is_over{false};
    std::atomic<int> n_helped{0};
    std::thread helper([&] { while (!is_over) { unsigned seen = recalls(); if (!is_over) help(seen); } });
    while (!n_helping) std::this_thread::yield();
    for (int i = 0; i < 200; i++) std::thread([&] {
        const auto own = std::this_thread::get_id();
        n_helped = 0;
        for (int call = 0; call < (i == 199 ? 1000 : 1) && !n_helped; call++) share(8, [&](int) {
            if (std::this_thread::get_id() != own) n_helped++;
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        });
    }).join();
    is_over = true;
    recall();
    helper.join();
    std::printf("%d", n_helped.load());
}
"""


def test_threads_that_are_over_leave_their_place_to_others(tmp_path: Path) -> None:
    (tmp_path / "many.cpp").write_text(MANY)
    compiler = next(library.compilers())
    include = ["-I", str(library.SOURCES[0].parent)]
    subprocess.run([*compiler, "-std=c++17", "-pthread", *include, "many.cpp", "-o", "many"], cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "many"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(told) > 0
