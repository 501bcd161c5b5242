"""The least time that a second of speech can take on one core, beside the time that it takes.

The floor of a stage follows from the products and bytes that it needs, and from how fast this core multiplies and reads
memory. Both sides are measured here. Products are counted while the stage computes: those of our kernels call by call,
those of PyTorch's operations by its own formulas. Times are of one thread, full size, random weights:

  prompt           the language model reads voice and text, once for each utterance
  language model   25 ids of one stream, one after the other: all weights are read for each
  flow             a block of 25 tokens behind a prompt of 3.5 s and a first block: encoder, then ten Euler steps
  vocoder          the audio of 50 frames

Of two cores one can compute the language model beside the rest, so the least RTF is that of the longest stage, or half
of all. The first audio of the fast profile needs the prompt, 13 ids, one block, whose beginning is the end of the
voice's prompt, and the vocoder for the frames that are not held back. That is for one core; idle lanes may help with it
(`device/idle_lanes.py`), which this floor does not count.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu.devices import CpuDevice
from gpu.side import PROMPT_S, ModelSide, StageWork
from harness import report
from harness.synthesis import StageTimer, progress
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    TOKENS_PER_S,
)
from telephony_tts.engines.cosyvoice2.model.flow.int8_layers import Int8Resnet, Int8Transformers
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass
from telephony_tts.engines.cosyvoice2.model.kernel_conv import KernelConv
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, Linear
from telephony_tts.engines.cosyvoice2.model.lm.int8_decoder import Int8Decoder
from telephony_tts.engines.cosyvoice2.model.lm.weights import Int8Matrix
from telephony_tts.engines.cosyvoice2.model.vocoder.bfloat16_layers import Bfloat16SnakeConv
from telephony_tts.engines.cosyvoice2.model.weight_memory import WeightMemory
from telephony_tts.engines.cosyvoice2.profile import FAST
from telephony_tts.engines.cosyvoice2.random_speech import random_model
from telephony_tts.engines.cosyvoice2.settings import INT8, MIXED, Precision
from telephony_tts.engines.kernels import library as kernels

_EXAMPLES = """examples:
  python benchmarks/floors.py --keep DIR          two minutes; DIR keeps the random weights (2.6 GB)
  python benchmarks/floors.py --keep DIR --rounds 20
"""
PER_SECOND = ("language model", "flow", "vocoder")
PEAK_SOURCE = Path(__file__).parent / "harness" / "peak.cpp"
N_READ = 512 << 20
ROWS, WIDTH = 102, 1024
"""Of the products that are timed: about those of a block in both branches, in the shape of the flow's maps."""


def main() -> None:
    flags = report.parser("floors", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--rounds", type=int, default=5, help="of each stage (default %(default)s)")
    flags.add_argument("--keep", type=Path, metavar="DIR", help="keep the random weights there for the next run")
    chosen = flags.parse_args()
    if not kernels.available():
        raise SystemExit(f"int8 is not available: {kernels.problem()}")
    size: Any = "full"
    if chosen.quick:
        size, chosen.rounds = "tiny", 1
    torch.set_num_threads(1)
    with torch.inference_mode(), random_model(size, PROMPT_S, chosen.keep) as directory:
        progress("speeds")
        speeds = _speeds(0.02, N_READ >> 6, WIDTH >> 3, "-O1") if chosen.quick else _speeds(0.5, N_READ, WIDTH)
        progress("stages")
        side = ModelSide(CpuDevice(), directory, Precision(INT8, INT8, MIXED), 1)
        stages = _stages(side, chosen.rounds)
    for found in stages.values():
        found |= _floor(found, speeds)
    totals = {key: _totals(stages, key) for key in ("floor_s", "floor_of_maps_s", "floor_beside_s", "measured_s")}
    _show(speeds, stages, totals)
    del chosen.keep
    report.save(chosen, {"level": kernels.level(), "speeds": speeds, "stages": stages, "totals": totals})


# ------------------------------------------------------------------------------------- this core


def _speeds(seconds: float, n_read: int, width: int, *flags: str) -> dict[str, float]:
    """Giga-products (GMAC) and gigabytes a second. A product is a multiplication with its addition. `flags`: more
    of the compiler's."""
    x = torch.randn(ROWS, width)
    weight = torch.randn(width, width) / width**0.5
    quantised = Int8Linear(Linear(weight, None))
    square = torch.randn(width, width)
    wide, narrow = square.double(), square.bfloat16()
    n_map, n_square = ROWS * width**2, width**3
    found = {
        "int8, in registers": _registers(seconds, flags),
        "int8, a map of the kernels": n_map / _least_s(lambda: quantised(x), seconds),
        "float32": n_square / _least_s(lambda: F.linear(square, square), seconds),
        "float64": n_square / _least_s(lambda: F.linear(wide, wide), seconds),
        "bfloat16": n_square / _least_s(lambda: F.linear(narrow, narrow), seconds),
        "bytes read by one thread": _read_bytes(1, seconds, n_read),
        "bytes read by two threads": _read_bytes(2, seconds, n_read),
    }
    return {name: round(speed / 1e9, 2) for name, speed in found.items()}


def _least_s(work: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs of some seconds."""
    work()
    times, end = list[float](), time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def _registers(seconds: float, more: Sequence[str]) -> float:
    """Products a second of the kernels' own instruction, at the level of instructions in use."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "peak.so"
        flags = [*kernels.FLAGS, *more, *kernels.LEVELS[kernels.level()], str(PEAK_SOURCE), "-o", str(made)]
        subprocess.run([*next(iter(kernels.compilers())), *flags], check=True)
        run = ctypes.CDLL(str(made)).products_in_registers
    run.argtypes, run.restype = (ctypes.c_long, ctypes.c_void_p), ctypes.c_long
    values = torch.arange(64, dtype=torch.int32)
    n = 100_000
    return float(run(n, values.data_ptr())) / _least_s(lambda: run(n, values.data_ptr()), seconds)


def _read_bytes(n_threads: int, seconds: float, n_bytes: int) -> float:
    """Bytes that all threads read in a second. Each reads its own memory, allocated like the weights."""
    speeds, start = [0.0] * n_threads, threading.Barrier(n_threads)

    def read(i: int) -> None:
        torch.set_num_threads(1)
        values = WeightMemory().take(n_bytes).view(torch.int64).fill_(1)
        start.wait()
        speeds[i] = n_bytes / _least_s(values.sum, seconds)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(speeds)


# ---------------------------------------------------------------------------------------- stages


class Work(TorchDispatchMode):
    """What runs while it is active: products by kind, bytes of int8 weights, and seconds in the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[str, int] = defaultdict(int)
        self.weight_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry:
            with self:
                inner = func.decompose(*args, **kwargs)
            if inner is not NotImplemented:
                return inner
        out = func(*args, **kwargs)
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            dtype = next(arg.dtype for arg in args if isinstance(arg, Tensor))
            self.products[str(dtype).removeprefix("torch.")] += formula(*args, **kwargs, out_val=out) // 2
        return out

    def add_map(self, of: Int8Linear, n_rows: int) -> None:
        """A map of int8 weights. Rests of activations, and rests of weights, are products of their own."""
        n_each = 1 + of._map.with_low + (of._low is not None)
        self.products[f"{INT8} maps"] += n_rows * of.n * of.k * n_each
        self.weight_bytes += of.weights.numel() * (1 + (of._low is not None)) + of.scale.nbytes + of.bias.nbytes

    def add_attention(self, run: Int8Pass, qkv: Tensor) -> None:
        """Scores, and twice the values, because the weights of attention have two bytes."""
        n_rows, n, d = qkv.shape
        n_keys = n + sum(piece.n for piece in run._pieces)
        self.products[f"{INT8} attention"] += 3 * n_rows * n * n_keys * (d // 3)

    def add_conv(self, of: KernelConv | Bfloat16SnakeConv, y: Tensor) -> None:
        """A convolution whose result is y [B, T, C]."""
        shape = of._of
        kind = str(of._dtype).removeprefix("torch.") if isinstance(of, KernelConv) else "bfloat16"
        d_in = shape.d_in if isinstance(of, KernelConv) else shape.d
        self.products[kind] += y.numel() * d_in * shape.kernel


@contextmanager
def _replaced(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _kernels_seen(
    on_map: Callable[[Int8Linear, int], object],
    on_attention: Callable[[Int8Pass, Tensor], object],
    on_conv: Callable[[KernelConv | Bfloat16SnakeConv, Tensor], object],
    seconds: dict[str, float],
) -> Iterator[None]:
    """Tells of every call of the kernels, and adds its seconds to those of its kind."""

    def timed(
        kind: str, tell: Callable[..., object], tell_after: Callable[..., object] = _ignore
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(work: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                tell(*args)
                begun = time.perf_counter()
                result = work(*args, **kwargs)
                seconds[kind] += time.perf_counter() - begun
                tell_after(args[0], result)
                return result

            return run

        return make

    def rows(of: Int8Linear, x: Tensor, *_: object) -> None:
        on_map(of, x.numel() // of.k)

    def windows(of: Int8Linear, x: Tensor, n_steps: int) -> None:
        on_map(of, x.shape[0] * (x.shape[1] - n_steps + 1))

    def layers(of: Int8Decoder, x: Tensor, *_: object) -> None:
        for layer, _bias in of._kept:
            for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
                assert isinstance(matrix, Int8Matrix)
                on_map(matrix.linear, x.shape[0])

    def blocks(of: Int8Transformers, x: Tensor, context: Int8Pass, *_: object) -> None:
        n_rows = x.numel() // x.shape[-1]
        for each in of.blocks:
            for one in (each.qkv, each.out, each.ff_1, each.ff_2):
                on_map(one, n_rows)
            on_attention(context, x.new_empty(*x.shape[:-1], each.qkv.n, device="meta"))

    def resnets(of: Int8Resnet, x: Tensor, *_: object) -> None:
        for one in (*(each.conv for each in of._blocks), of._skip):
            on_map(one.windows, x.numel() // x.shape[-1])

    with (
        _replaced(Int8Linear, "__call__", timed("maps", rows)),
        _replaced(Int8Linear, "of_windows", timed("maps", windows)),
        _replaced(Int8Decoder, "__call__", timed("maps", layers)),
        _replaced(Int8Transformers, "__call__", timed("transformers", blocks)),
        _replaced(Int8Resnet, "__call__", timed("resnets", resnets)),
        _replaced(KernelConv, "__call__", timed("convolutions", _ignore, on_conv)),
        _replaced(Bfloat16SnakeConv, "__call__", timed("residual blocks", _ignore, on_conv)),
    ):
        yield


def _stages(side: ModelSide, n_rounds: int) -> dict[str, dict[str, Any]]:
    """For a second of speech: seconds of each stage (medians), its parts, and what was counted."""
    works: dict[str, Callable[[StageWork], float | None]] = {
        "prompt": lambda work: work.prefill(),
        "language model": _ids,
        "flow": _block,
        "vocoder": lambda work: work.vocode(),
    }
    """Each returns the seconds of speech that it was for; None for one second."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in works.items():
        measured_s, parts = list[float](), list[dict[str, float]]()
        for turn in range(n_rounds + 2):  # the first one warms up, the second one is counted
            work = StageWork(side, 1)
            if name == "language model":
                work.prefill()
                work.decode()
            elif name == "flow":
                _block(work)  # the first block has the rest of the voice's prompt
            elif name == "vocoder":
                work.vocode()
            if turn == 0:
                run(work)
                continue
            if turn == 1:
                counted = Work()
                tell = counted.add_map, counted.add_attention, counted.add_conv
                with _kernels_seen(*tell, defaultdict(float)), counted:
                    n_counted = run(work) or 1.0
                if name == "language model":
                    counted.weight_bytes += round(TOKENS_PER_S * n_counted) * _kept_bytes(side)
                continue
            of_kernels: dict[str, float] = defaultdict(float)
            timer = StageTimer()
            with _kernels_seen(_ignore, _ignore, _ignore, of_kernels), timer.on(side.model):
                begun = time.perf_counter()
                n_run = run(work) or 1.0
                measured_s.append((time.perf_counter() - begun) / n_run)
            sampling = {"sampling": timer.seconds["LM sampling"]} if name == "language model" else {}
            parts.append({part: s / n_run for part, s in {**of_kernels, **sampling}.items()})
        of_parts = {part: round(statistics.median(each[part] for each in parts), 4) for part in parts[0]}
        total = statistics.median(measured_s)
        found[name] = {
            "measured_s": round(total, 4),
            "parts_s": {**of_parts, "all else": round(total - sum(of_parts.values()), 4)},
            "giga_products": {kind: round(n / n_counted / 1e9, 3) for kind, n in counted.products.items()},
            "gigabytes": round(counted.weight_bytes / n_counted / 1e9, 3) if name == "language model" else None,
        }
    return found


def _kept_bytes(side: ModelSide) -> int:
    """Of the keys and values that the next id reads."""
    cache = side.model.cache
    return cache.data[:, :, 0, :, : cache.lengths[0]].nbytes


def _ids(work: StageWork) -> float:
    """A second of ids or a little more: a call draws several."""
    n = 0
    while n < TOKENS_PER_S:
        n += work.decode()
    return n / TOKENS_PER_S


def _block(work: StageWork) -> None:
    work.begin_block()
    for _ in range(work.n_steps):
        work.flow_step()


def _ignore(*_: object) -> None:
    pass


def _floor(found: dict[str, Any], speeds: dict[str, float]) -> dict[str, float]:
    """Products and reading go on at once, so the longer of both is the floor.

    floor_s          products in registers
    floor_of_maps_s  products as fast as in a map, which reads rows and weights from a cache
    floor_beside_s   the same while another core reads memory too
    """
    registers, maps = "int8, in registers", "int8, a map of the kernels"
    alone_s, beside_s = (
        0.0 if found["gigabytes"] is None else found["gigabytes"] / speed
        for speed in (speeds["bytes read by one thread"], speeds["bytes read by two threads"] / 2)
    )

    def products_s(int8: str) -> float:
        return sum(n / speeds[int8 if kind.startswith(INT8) else kind] for kind, n in found["giga_products"].items())

    return {
        "floor_s": round(max(products_s(registers), alone_s), 6),
        "floor_of_maps_s": round(max(products_s(maps), alone_s), 6),
        "floor_beside_s": round(max(products_s(maps), beside_s), 6),
    }


def _totals(stages: dict[str, dict[str, Any]], key: str) -> dict[str, float]:
    """See the module."""
    lm, flow, vocoder = (stages[name][key] for name in PER_SECOND)
    n_ids, n_frames = FAST.first_tokens + LOOKAHEAD_TOKENS, FRAMES_PER_TOKEN * FAST.first_tokens - FAST.hold_frames
    first_s = stages["prompt"][key] + n_ids / TOKENS_PER_S * lm + flow + n_frames / BLOCK_FRAMES * vocoder
    return {
        "rtf_of_one_core": round(lm + flow + vocoder, 3),
        "rtf_of_two_cores": round(max(lm, flow, (lm + flow + vocoder) / 2), 3),
        "first_audio_s": round(first_s, 3),
    }


def _show(speeds: dict[str, float], stages: dict[str, dict[str, Any]], totals: dict[str, dict[str, float]]) -> None:
    report.table("this core, 10^9 products or bytes a second", ("what", "speed"), list(speeds.items()))
    keys = list(totals)
    report.table(
        f"a second of speech ({TOKENS_PER_S} ids, {BLOCK_FRAMES} frames) on one core",
        ("stage", *keys, "of which", "10^9 products, bytes"),
        [
            (
                name, *(found[key] for key in keys),
                ", ".join(f"{part} {s:.3f}" for part, s in found["parts_s"].items()),
                ", ".join(f"{kind} {n:.3g}" for kind, n in found["giga_products"].items())
                + (f", {found['gigabytes']:.3g} read" if found["gigabytes"] is not None else ""),
            )
            for name, found in stages.items()
        ],
    )  # fmt: skip
    report.table("in all", ("what", *keys), [(what, *(totals[key][what] for key in keys)) for what in totals[keys[0]]])


if __name__ == "__main__":
    main()
