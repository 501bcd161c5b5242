"""Times the networks on this CPU in each precision that it has, in about two seconds.

It runs the networks' own code at the official widths, with fewer layers and made-up weights: one of 24 layers of the
language model, two of 14 stages of the flow's estimator, one of three dilations of the vocoder. What remains is in
proportion. The choice for CosyVoice-300M is made by the same timings: its layers are the same or nearly as wide. Before
each run other data fills the processor's caches, because a whole network does not fit into them either. The precisions
take turns. The fastest run of each counts, by the time that its thread had a core: other programs on this machine
should not decide.

    language model   one id of one stream, and of four at once, behind 300 positions
    flow             a block of 50 frames behind 200: the encoder, and one of the ten Euler steps in both branches
    vocoder          a chunk of 50 frames with the context that it sees
    two lanes        the language model and the flow at the same time, in two threads
"""

from __future__ import annotations

import math
import os
import statistics
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import flow_outline, lm_outline, vocoder_outline
from telephony_tts.engines.cosyvoice2.choice import BY_EXACTNESS, WORTH, CpuTimings
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_MELS,
    N_SPEECH_TOKENS,
    SAMPLES_PER_FRAME,
    TOKENS_PER_S,
    LmConfig,
    ModelConfig,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.model.state import Shape
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_G
from telephony_tts.engines.cosyvoice2.model.vocoder.reach import Reach, spans
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.settings import INT8, MIXED
from telephony_tts.engines.kernels import library as kernels
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns, thread_cpu_ns

TIMING_VERSION = 5
"""Raise it when other work is timed, or in another way: kept timings of other versions are not read."""
ROUNDS_S = 0.2
"""For the runs of one network, beside the time to make its weights."""
LEAST_ROUNDS, MOST_ROUNDS = 2, 12
HOPELESS = 3.0
"""A precision whose first run takes this many times as long as that of another one is not run again."""
PAIR_S = 0.1
"""For the runs of both networks at once, and for those of each alone just before."""
N_SHARED = 4
"""Streams that draw ids together, as in a batch of a CPU (`Runner`)."""
N_POSITIONS = 300
N_PROMPT_TOKENS = 4 * BLOCK_TOKENS + LOOKAHEAD_TOKENS
"""Of the voice: 200 frames, and the tokens that the last of them looks ahead at."""
SMALLEST_FLUSH, LARGEST_FLUSH = 32 << 20, 128 << 20
"""Bytes read between two runs. A larger cache is one of a machine with many cores, of which a lane has a part."""
_NOT_READ = ("speech_embedding.weight", "embed_tokens.weight")
"""Weights that nothing reads here."""
CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")

Timed = Callable[[], tuple[float, ...]]
"""Does its work once and returns seconds, one for each part of it."""


def measure_cpu(official: ModelConfig | None = None) -> CpuTimings:
    """Seconds of one core for a second of speech of a model of these sizes; by default those of the official model.

    The calling thread computes with one thread of PyTorch from now on.
    """
    config = official or ModelConfig()
    torch.set_num_threads(1)
    with torch.inference_mode():
        flush = CacheFlush()
        ids, blocks = lm_works(config, flush), flow_works(config, flush)
        lm, flow = _best_of_rounds(ids), _best_of_rounds(blocks)
        vocoder = _best_of_rounds(vocoder_works(config, flush))
        fast_lm, fast_flow = ids[_fastest(lm)], blocks[_fastest(flow)]
        slowdown = _slowdown(fast_lm, fast_flow)
        two_threads = _two_threads(fast_flow)
    return CpuTimings(
        lm={name: TOKENS_PER_S * times[0] for name, times in lm.items()},
        lm_shared={name: TOKENS_PER_S * times[1] for name, times in lm.items()},
        flow={name: times[0] for name, times in flow.items()},
        vocoder={name: times[0] for name, times in vocoder.items()},
        slowdown=slowdown,
        two_threads=two_threads,
    )


class CacheFlush:
    """Reads more bytes than the caches hold. The processor then has nothing left of the last run."""

    def __init__(self) -> None:
        n_bytes = SMALLEST_FLUSH
        with suppress(OSError, ValueError):
            n_bytes = int(CACHE_SIZE.read_text(encoding="ascii").strip().removesuffix("K")) << 10
        n_bytes = min(max(n_bytes * 5 // 4, SMALLEST_FLUSH), LARGEST_FLUSH)
        self._other = torch.ones(n_bytes // 8, dtype=torch.int64)

    def __call__(self) -> None:
        self._other.sum()


def made_up(shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Weights of these names and shapes, float32. Their values repeat, and no layer makes its input much larger."""
    noise = torch.rand(1 << 18, generator=torch.Generator().manual_seed(0)).sub_(0.5)
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name.endswith(_NOT_READ):
            state[name] = torch.zeros(1).expand(shape)
            continue
        n = math.prod(shape)
        values = noise.repeat(-(-n // len(noise)))[:n].view(shape)
        if len(shape) == 1 or name.endswith(WEIGHT_G):
            state[name] = values.mul_(0.1).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            state[name] = values.mul_((12 / math.prod(shape[1:])) ** 0.5)
    return state


def _in(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) if tensor.is_contiguous() else tensor for name, tensor in state.items()}


def _lm_precisions() -> list[str]:
    return ["float32", "bfloat16", *([INT8] if kernels.available() else [])]


def _many_rows_precisions(*narrow: str) -> list[str]:
    """float32 and `narrow`, without those in bfloat16 if its products are hopeless: to time them would take seconds."""
    wide, weight = torch.ones(2 * BLOCK_FRAMES, 256), torch.ones(1024, 256)
    product_s = []
    for dtype in (torch.float32, torch.bfloat16):
        x, w = wide.to(dtype), weight.to(dtype)
        product_s.append(min(_seconds(lambda x=x, w=w: F.linear(x, w)) for _ in range(3)))  # type: ignore[misc]
    is_hopeless = product_s[1] > HOPELESS * product_s[0]
    usable = {"bfloat16": not is_hopeless, MIXED: not is_hopeless, INT8: kernels.available()}
    return ["float32", *(name for name in narrow if usable[name])]


# ---------------------------------------------------------------------- the networks


def lm_works(config: ModelConfig, flush: CacheFlush) -> dict[str, Timed]:
    """-> seconds for an id of one stream, and of each of N_SHARED streams."""
    assert isinstance(config.lm, LmConfig)
    sizes = replace(config.lm, n_layers=1, n_text_rows=1)
    state = made_up(lm_outline(sizes, {}).shapes)

    def work(name: str) -> Timed:
        if name == INT8:
            lm = LanguageModel.from_state(sizes, state, weights="int8")
        else:
            lm = LanguageModel.from_state(sizes, _in(state, getattr(torch, name)))
        cache = lm.new_cache(N_SHARED, N_POSITIONS + 1)
        x = torch.randn(N_SHARED, sizes.d_model, generator=torch.Generator().manual_seed(0)).to(lm.dtype)

        def seconds(n: int) -> float:
            cache.lengths[:] = [N_POSITIONS] * N_SHARED
            flush()
            # The head first: it also brings the interpreter's own data back into the caches.
            head = _seconds(lambda: lm.logits(x[:n]))
            return head + config.lm.n_layers * _seconds(lambda: lm.decode(x[:n], list(range(n)), cache))

        # Rows that are not exact in a batch are computed one by one (`device.lm_steps`).
        if lm.rows_are_exact:
            return lambda: (seconds(1), seconds(N_SHARED) / N_SHARED)

        def alone() -> tuple[float, float]:
            once = seconds(1)
            return once, once

        return alone

    return {name: work(name) for name in _lm_precisions()}


def flow_works(config: ModelConfig, flush: CacheFlush) -> dict[str, Timed]:
    """-> seconds for a block, which is a second of speech."""
    full_encoder, full_decoder = config.flow_encoder, config.flow_decoder
    encoder = replace(full_encoder, n_layers=1, n_up_layers=1)
    decoder = replace(full_decoder, n_mid_stages=0, n_steps=2)
    n_stages = 2
    encoder_share = (full_encoder.n_layers + FRAMES_PER_TOKEN * full_encoder.n_up_layers) / (1 + FRAMES_PER_TOKEN)
    step_share = full_decoder.n_steps * (full_decoder.n_mid_stages + n_stages) / n_stages
    sizes = replace(config, flow_encoder=encoder, flow_decoder=decoder)
    state = made_up(flow_outline(encoder, decoder, {}).shapes)
    ids = [i % N_SPEECH_TOKENS for i in range(BLOCK_TOKENS + LOOKAHEAD_TOKENS)]

    def work(name: str) -> Timed:
        # As `SpeechModel.load` makes it.
        if name == INT8:
            flow = Flow.from_state(sizes, state, weights="int8")
        else:
            flow = Flow.from_state(sizes, _in(state, getattr(torch, name)))
        voice = _voice(flow, encoder.d_speaker)
        new, ahead = ids[: BLOCK_TOKENS - LOOKAHEAD_TOKENS], ids[-LOOKAHEAD_TOKENS:]

        def seconds() -> tuple[float]:
            request = BlockRequest(flow.start(voice), new, ahead)
            flush()
            begun = thread_cpu_ns()
            (block,) = flow.begin([request])
            begin_s = (thread_cpu_ns() - begun) / NS_PER_S
            block.k = 1  # in int8 the first step computes one branch only
            flush()
            return (encoder_share * begin_s + step_share * _seconds(lambda: flow.step([block])),)

        return seconds

    return {name: work(name) for name in _many_rows_precisions("bfloat16", INT8)}


def _voice(flow: Flow, d_speaker: int) -> FlowPrompt:
    """A voice of N_PROMPT_TOKENS."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.arange(N_PROMPT_TOKENS)[None] % N_SPEECH_TOKENS
    mel = torch.randn(1, FRAMES_PER_TOKEN * N_PROMPT_TOKENS, N_MELS, generator=generator)
    block = flow.begin_prompt(tokens, mel, torch.randn(1, d_speaker, generator=generator).to(flow.dtype))
    while not block.done:
        flow.step([block])
    return block.prompt()


def vocoder_works(config: ModelConfig, flush: CacheFlush) -> dict[str, Timed]:
    """-> seconds for a second of speech."""
    full = config.vocoder
    middle = full.res_dilations[len(full.res_dilations) // 2]
    sizes = replace(full, res_dilations=(middle,), d_f0=1)  # the pitch is not timed: it is alike in all precisions
    state = made_up(vocoder_outline(sizes, {}).shapes)
    n_context = Reach.of(full).decode
    n_frames = BLOCK_FRAMES + 2 * n_context
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(1, N_MELS, n_frames, generator=generator)
    source = torch.randn(1, 1, n_frames * SAMPLES_PER_FRAME, generator=generator).mul_(0.1)
    chunk = n_context, n_context + BLOCK_FRAMES
    share = _block_work(full, n_frames, *chunk) / _block_work(sizes, n_frames, *chunk)

    def work(name: str) -> Timed:
        if name == MIXED:
            vocoder = Vocoder.mixed(sizes, state)
        else:
            vocoder = Vocoder.from_state(sizes, state, dtype=getattr(torch, name))

        def seconds() -> tuple[float]:
            flush()
            return (share * _seconds(lambda: vocoder.decode(mel, source, *chunk)),)

        return seconds

    return {name: work(name) for name in _many_rows_precisions(MIXED)}


def _block_work(config: VocoderConfig, n_frames: int, first: int, until: int) -> int:
    """Multiplications of the residual blocks, which are most of the vocoder's, for these frames."""
    n = 0
    for i, stage in enumerate(spans(config, n_frames, first, until).stages):
        square, n_convs = (config.d_base >> (i + 1)) ** 2, 2 * len(config.res_dilations)
        n += len(stage.inside) * square * n_convs * sum(config.res_kernels)
        n += len(stage.source) * square * n_convs * config.source_res_kernels[i]
    return n


# --------------------------------------------------------------------------- timing


def _since(begun_ns: int) -> float:
    return (monotonic_ns() - begun_ns) / NS_PER_S


def _seconds(work: Callable[[], object]) -> float:
    """Of this thread's own computing."""
    begun = thread_cpu_ns()
    work()
    return (thread_cpu_ns() - begun) / NS_PER_S


def _best_of_rounds(works: Mapping[str, Timed]) -> dict[str, tuple[float, ...]]:
    """The least seconds of each part of each work. The works take turns."""
    for work in works.values():
        work()  # the first run of a product also chooses and builds its code
    best: dict[str, tuple[float, ...]] = {}
    begun, n = monotonic_ns(), 0
    while n < LEAST_ROUNDS or (n < MOST_ROUNDS and _since(begun) < ROUNDS_S):
        for name, work in works.items():
            if name in best and best[name][0] > HOPELESS * min(times[0] for times in best.values()):
                continue
            times = work()
            best[name] = tuple(map(min, best.get(name, times), times))
        n += 1
    return best


def _fastest(times: Mapping[str, tuple[float, ...]]) -> str:
    """The precision that `choice.choose` takes."""
    least = min(map(statistics.fmean, times.values()))
    return next(name for name in BY_EXACTNESS if name in times and statistics.fmean(times[name]) <= WORTH * least)


def _slowdown(one: Timed, other: Timed) -> float:
    """Computing time of both works side by side in two threads, divided by that alone: the mean of both. At least 1.

    It shows what they share: memory, caches, and the units of a core that shows itself as two. It does not show that
    they wait for the interpreter's lock, because that looks like other programs that run at this moment.
    """
    alone = [_least_for(work, PAIR_S / 2) for work in (one, other)]
    together = [0.0, 0.0]
    start = threading.Barrier(2)

    def run(i: int, work: Timed) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            start.wait()
            together[i] = _least_for(work, PAIR_S)

    second = threading.Thread(target=run, args=(1, other), name="cosyvoice2-timing")
    second.start()
    run(0, one)
    second.join()
    return max(1.0, statistics.fmean(both / single for both, single in zip(together, alone, strict=True)))


def _least_for(work: Timed, seconds: float) -> float:
    times: list[float] = []
    begun = monotonic_ns()
    while len(times) < LEAST_ROUNDS or _since(begun) < seconds:
        times.append(work()[0])
    return min(times)


def _two_threads(work: Callable[[], object]) -> float:
    """Time of the work with two threads of PyTorch, divided by that with one. 1 on a machine with less than four CPUs,
    where lanes need them."""
    if (os.cpu_count() or 1) < 4:
        return 1.0

    def least_s() -> float:
        times: list[float] = []
        for _ in range(3):
            begun = monotonic_ns()
            work()
            times.append(_since(begun))
        return min(times)

    one = least_s()
    torch.set_num_threads(2)
    try:
        work()
        return least_s() / one
    finally:
        torch.set_num_threads(1)
