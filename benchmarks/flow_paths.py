"""Ways to compute one Euler step of the flow on a CPU, with one thread: time and error of each.

Times are processor time of the thread, so that other work on the machine adds only what it does to caches and memory.
Paths are timed in turn. Errors are relative to float32, for random weights at full size.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import pathlib
import re
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from harness import report
from harness.flow_weights import EstimatorWeights
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import SIZES, random_state
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS, N_SPEECH_TOKENS, ModelConfig
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE
from telephony_tts.engines.cosyvoice2.model.flow.decoder import Estimator
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import STEP_PIECE, HostPass, PassRecord, PassStorage
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock

_EXAMPLES = """examples:
  python benchmarks/flow_paths.py                        what the server can use
  python benchmarks/flow_paths.py --paths 'onnx dynamic, joined' int8
  python benchmarks/flow_paths.py --list
"""
PAST_FRAMES = 200
N_BLOCKS = PAST_FRAMES // BLOCK_FRAMES + 1
"""The stream's length in blocks. The last block is timed; all of them are compared."""
LAST = N_BLOCKS - 1
BASE = "float32"


class Path(Protocol):
    """Computes velocities, and keeps for each Euler step what it has seen of the stream."""

    def __call__(self, k: int, features: Tensor, times: Tensor, *, keep: bool) -> Tensor:
        """Step k, features [2, T, 320] and times [n_stages, C] in float32 -> velocity [2, T, 80].

        Unless `keep`, the step is forgotten: the next call of step k sees the same past.
        """


@dataclass
class Model:
    """What a path is made from."""

    config: ModelConfig
    state: dict[str, Tensor]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Euler steps, frames of a block, frames of the stream."""
        return self.config.flow_decoder.n_steps, BLOCK_FRAMES, N_BLOCKS * BLOCK_FRAMES


class EnginePath:
    """What the server computes: `Flow` on a CPU."""

    def __init__(self, model: Model, dtype: torch.dtype, weights: Any = "float") -> None:
        state = {name: value.to(dtype) for name, value in model.state.items()}
        flow = Flow.from_state(model.config, state, weights)
        estimator: Estimator = flow.decoder.estimator
        self._dtype = estimator.dtype
        self._velocity = estimator.velocity
        self._storage = PassStorage(estimator.layout(), estimator.time_1.weight, estimator.dtype, STEP_PIECE)
        self._past: list[tuple[PassRecord, int] | None] = [None] * flow.decoder.n_steps
        self._pass = Int8Pass if estimator.is_int8 else HostPass

    def __call__(self, k: int, features: Tensor, times: Tensor, *, keep: bool) -> Tensor:
        new, past = PassRecord(), self._past[k]
        before, n_past = ([past[0]], past[1]) if past else ([], 0)
        context = self._pass(self._storage, before, new, (n_past, n_past, BLOCK_TOKENS))
        v: Tensor = self._velocity(features.to(self._dtype), times[:, None].to(self._dtype), context)
        if keep:
            self._past[k] = new, n_past + BLOCK_TOKENS
        return v.float()


def _onnx(model: Model, **options: Any) -> Path:
    from harness.flow_onnx import GraphOptions, OnnxPath

    weights = EstimatorWeights.of(model.config.flow_decoder, model.state)
    return OnnxPath(weights, GraphOptions(**options), model.sizes)


PATHS: dict[str, Callable[[Model], Path]] = {
    BASE: functools.partial(EnginePath, dtype=torch.float32),
    "bfloat16": functools.partial(EnginePath, dtype=torch.bfloat16),
    "int8": functools.partial(EnginePath, dtype=torch.float32, weights="int8"),
    **{
        f"onnx {products}, {attention}": functools.partial(_onnx, products=products, attention=attention)
        for products in ("float32", "dynamic", "shared", "blocks")
        for attention in ("none", "joined", "in_place", "pieces", "op_with_past", "flash")
        if (products, attention) != ("shared", "in_place")  # nothing there orders writing keys before reading them
    },
    "onnx dynamic, in_place, skip_norm": functools.partial(_onnx, products="dynamic", skip_norm=True),
    "onnx blocks of 64, in_place": functools.partial(_onnx, products="blocks", block_size=64),
}
"""To add a path, add a line: what makes it from a `Model`."""


@dataclass
class Stream:
    """Real activations: a stream of random tokens through the encoder, in blocks."""

    flow: Flow
    whole: FlowBlock

    @classmethod
    def random(cls, model: Model, seed: int) -> Stream:
        flow = Flow.from_state(model.config, model.state)
        g = torch.Generator().manual_seed(seed)
        n_tokens, n_prompt = N_BLOCKS * BLOCK_TOKENS, PAST_FRAMES // BLOCK_FRAMES // 2 * BLOCK_TOKENS
        tokens = torch.randint(N_SPEECH_TOKENS, (1, n_tokens), generator=g)
        mel = torch.randn(1, 2 * n_prompt, model.config.flow_decoder.d_mel, generator=g) * 2 - 5
        embedding = torch.randn(1, model.config.flow_encoder.d_speaker, generator=g)
        return cls(flow, flow.begin_whole(tokens[:, :n_prompt], tokens[:, n_prompt:], mel, embedding))

    def step(self, path: Path, block: int, k: int, x: Tensor, *, keep: bool) -> tuple[Tensor, Tensor, float]:
        """-> the next x, the velocity of both branches, seconds of processor time of the path"""
        frames, seen = slice(block * BLOCK_FRAMES, (block + 1) * BLOCK_FRAMES), dict[str, Any]()

        def velocity(features: Tensor, times: Tensor, _: object) -> Tensor:
            begun = time.thread_time()
            seen["v"] = path(k, features, times[:, 0], keep=keep)
            seen["seconds"] = time.thread_time() - begun
            v: Tensor = seen["v"]
            return v

        mu, cond = self.whole.mu[:, frames], self.whole.cond[:, frames]
        decoder = self.flow.decoder
        features = decoder._features(x, mu, self.whole.spk, cond)
        v = velocity(features, decoder.stage_times[:, k : k + 1], None)
        return x + decoder.euler_times[k][1] * decoder._guided(v), v, seen["seconds"]

    def noise(self, block: int) -> Tensor:
        return self.whole.x[:, block * BLOCK_FRAMES : (block + 1) * BLOCK_FRAMES]


@dataclass
class Trial:
    """A path, what it has computed, and how long it took."""

    name: str
    path: Path
    build_s: float
    memory_mib: float
    compile_s: float = 0.0
    """Of the first step after the past that is timed."""
    mels: list[Tensor] = field(default_factory=list)
    velocities: list[Tensor] = field(default_factory=list)
    """of the last block, all from the x of the base"""
    step_ms: list[float] = field(default_factory=list)

    def compute_block(self, stream: Stream, block: int) -> None:
        x = stream.noise(block)
        for k in range(stream.flow.decoder.n_steps):
            x = stream.step(self.path, block, k, x, keep=True)[0]
        self.mels.append(x)


def main() -> None:
    flags = report.parser("flow_paths", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument(
        "--paths", nargs="+", default=["float32", "bfloat16", "int8"], metavar="NAME",
        help=f"regular expressions of names (default %(default)s); {BASE} is always measured",
    )  # fmt: skip
    flags.add_argument("--list", action="store_true", help="print the names of all paths and end")
    flags.add_argument("--mid-stages", type=int, help="of the estimator, of its own width (default: all)")
    flags.add_argument("--rounds", type=int, default=5, help="rounds of ten steps for each path (default %(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="of tokens, voice and weights (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.list:
        print("\n".join(PATHS))
        return
    names = [name for name in PATHS if name == BASE or any(re.fullmatch(word, name) for word in chosen.paths)]
    torch.set_num_threads(1)
    config = SIZES["tiny" if chosen.quick else "full"]
    if chosen.mid_stages:
        config = dataclasses.replace(
            config, flow_decoder=dataclasses.replace(config.flow_decoder, n_mid_stages=chosen.mid_stages)
        )
    model = Model(config, random_state(FLOW_FILE, checkpoint_shapes(config)[FLOW_FILE], chosen.seed))
    with torch.inference_mode():
        results = measure(model, names, 1 if chosen.quick else chosen.rounds, chosen.seed)
    base = results[0]["median_ms"]
    report.table(
        f"one Euler step of {BLOCK_FRAMES} frames x 2 after {PAST_FRAMES}, one thread",
        ("path", "min ms", "median ms", "of base", "velocity dB", "mel dB", "build s", "first s", "MiB"),
        [
            (
                r["path"], r["min_ms"], r["median_ms"], r["median_ms"] / base, r["velocity_db"], r["mel_db"],
                r["build_s"], r["first_step_s"], r["memory_mib"],
            )
            for r in results
        ],
    )  # fmt: skip
    report.save(chosen, results)


def measure(model: Model, names: Sequence[str], n_rounds: int, seed: int) -> list[dict[str, Any]]:
    """Of each path the figures of its line; the base comes first. A path that fails is printed and left out."""
    stream = Stream.random(model, seed)
    trials: list[Trial] = []
    for name in names:
        try:
            trials.append(_begun(name, model, stream))
        except Exception as error:
            if name == BASE:
                raise
            print(f"  {name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
    xs = [stream.noise(LAST)]
    for k in range(stream.flow.decoder.n_steps):
        xs.append(stream.step(trials[0].path, LAST, k, xs[k], keep=False)[0])
    for _ in range(n_rounds):
        for trial in trials:
            steps = [stream.step(trial.path, LAST, k, x, keep=False) for k, x in enumerate(xs[:-1])]
            trial.velocities = [v for _, v, _ in steps]
            trial.step_ms += [1e3 * seconds for _, _, seconds in steps]
    for trial in trials:
        trial.compute_block(stream, LAST)
    return [_figures(trial, trials[0]) for trial in trials]


def _begun(name: str, model: Model, stream: Stream) -> Trial:
    """The path has computed all blocks but the last, and has been tried with that."""
    before, begun = _resident_mib(), time.perf_counter()
    path = PATHS[name](model)
    trial = Trial(name, path, time.perf_counter() - begun, _resident_mib() - before)
    for block in range(LAST):
        trial.compute_block(stream, block)
    begun = time.perf_counter()
    stream.step(path, LAST, 0, stream.noise(LAST), keep=False)
    trial.compile_s = time.perf_counter() - begun
    print(f"  {name}: made in {trial.build_s:.1f} s, first step {trial.compile_s:.1f} s", flush=True)
    return trial


def _figures(trial: Trial, base: Trial) -> dict[str, Any]:
    is_base = trial is base
    return {
        "path": trial.name,
        "min_ms": round(min(trial.step_ms), 2),
        "median_ms": round(statistics.median(trial.step_ms), 2),
        "velocity_db": None if is_base else _distance_db(trial.velocities, base.velocities),
        "mel_db": None if is_base else _distance_db(trial.mels, base.mels),
        "build_s": round(trial.build_s, 2),
        "first_step_s": round(trial.compile_s, 2),
        "memory_mib": round(trial.memory_mib),
    }


def _distance_db(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Mean square of the difference, relative to that of the signal about its mean."""
    ours_joined, theirs_joined = torch.cat(ours, dim=1).double(), torch.cat(theirs, dim=1).double()
    signal = theirs_joined - theirs_joined.mean()
    return round(float(10 * torch.log10((ours_joined - theirs_joined).square().mean() / signal.square().mean())), 1)


def _resident_mib() -> float:
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
