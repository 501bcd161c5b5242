"""The steps of the engine on a device: graphs, places where the host waits, kernels, times, and a trace."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from gpu import trace
from gpu.check import Check
from gpu.side import PROMPT_S, ModelSide, StageWork
from telephony_tts.engines.cosyvoice2.random_speech import random_model, random_text
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.engines.cosyvoice2.text.prompting import Request

STAGES = ("prefill", "decode", "begin", "step_blocks", "vocode")
"""The runner's methods that are marked in the trace."""
WARM = 2
"""Runs before a stage is timed."""
BLOCKS = 3
"""Blocks of an utterance, each a second of speech, before a new one begins."""


def run(check: Check) -> None:
    """Units: graphs, waits, `times N` and `kernels N` for N utterances at once, trace."""
    plan, device = check.plan, check.device
    with random_model(check.size, PROMPT_S, check.weights / check.size) as directory, device.computing():
        side = ModelSide(device, directory, Precision.of(check.dtype), max(*plan.rows, plan.traced))
        with check.run.unit("graphs") as found:  # recorded in each process, so measured again
            found(_graphs(side))
        if check.run.wants("waits"):
            with check.run.unit("waits") as found:
                found(_waits(side))
        for n in plan.rows:
            if check.run.wants(f"times {n}"):
                check.run.tell(f"times of {n} at once")
                with check.run.unit(f"times {n}") as found:
                    found(_times(side, n, plan.repeats))
                    found(_floor(side, n, check))
        device.profiled(lambda: None)  # the first profile of a process takes seconds
        for n in plan.profiled_rows:
            if check.run.wants(f"kernels {n}"):
                check.run.tell(f"kernels of {n} at once")
                with check.run.unit(f"kernels {n}") as found:
                    found(_kernels(side, n))
        if check.run.wants("trace"):
            check.run.tell(f"a trace of {plan.traced} utterances")
            with check.run.unit("trace") as found:
                found(_trace(side, check))


def _graphs(side: ModelSide) -> dict[str, Any]:
    device = side.device
    device.synchronize()
    before_mib, begun = device.used_mib(), time.perf_counter()
    side.runner.prepare(lambda: None)
    device.synchronize()
    return {
        "graphs": 0 if side.recorded is None else side.recorded.n,
        "recording_failed": side.recorded is not None and not side.runner.graphs.records,
        "record_s": round(time.perf_counter() - begun, 2),
        "memory_mib": round(device.used_mib() - before_mib, 1),
        "ok": side.recorded is not None and side.runner.graphs.records,
    }


def _stages_of(work: StageWork) -> list[tuple[str, Callable[[], None], int]]:
    """Each stage, what computes it, and how many times in a row."""
    return [
        ("prefill", work.prefill, 1), ("decode", work.decode, 1), ("flow encoder", work.begin_block, 1),
        ("flow step", work.flow_step, work.n_steps), ("vocode", work.vocode, 1),
    ]  # fmt: skip


def _waits(side: ModelSide) -> dict[str, Any]:
    """Where the host waits for the device in each stage, after a first run that allocates."""
    device, work = side.device, StageWork(side, 1)
    for _, compute, n in _stages_of(work):
        for _ in range(n):
            compute()
    device.synchronize()
    found: dict[str, list[str]] = {}
    for stage, compute, n in _stages_of(work):
        with device.waits() as waits:
            for _ in range(n):
                compute()
        found[stage] = sorted(set(waits))
    with device.waits() as known:
        float(torch.ones(1).to(side.model.device))
    return {"waits": found, "detects": bool(known), "ok": not any(found.values()) and bool(known)}


def _times(side: ModelSide, n: int, repeats: int) -> dict[str, Any]:
    """Median milliseconds of each stage for n utterances at once; of decode and flow for one step."""
    device, work = side.device, StageWork(side, n)
    times: dict[str, list[float]] = {stage: [] for stage, _, _ in _stages_of(work)}
    for i in range(WARM + repeats):
        if i % BLOCKS == 0:
            work.renew()
        for stage, compute, n_times in _stages_of(work):
            for _ in range(n_times):
                device.synchronize()
                begun = time.perf_counter()
                compute()
                device.synchronize()
                if i >= WARM:
                    times[stage].append(1000 * (time.perf_counter() - begun))
    medians = {stage: statistics.median(values) for stage, values in times.items()}
    medians["decode"] /= work.n_ids
    return {"ms": {stage: round(ms, 3) for stage, ms in medians.items()}, "ids_in_a_call": work.n_ids}


def _floor(side: ModelSide, n: int, check: Check) -> dict[str, Any]:
    """The least times that follow from what the device was measured to multiply and copy."""
    ceilings = check.run.results.result("environment", "ceilings")
    if ceilings is None:
        return {}
    products, copies = ceilings[f"{check.dtype}_tflop_per_s"] * 1e12, ceilings["copy_gb_per_s"] * 1e9
    return {"floor_ms": side.work.floor_ms(n, products, copies)} if products and copies else {}


def _kernels(side: ModelSide, n: int) -> dict[str, Any]:
    """The profile of each stage for n utterances at once; of decode and flow for one step."""
    device, work = side.device, StageWork(side, n)
    found: dict[str, Any] = {}
    for _ in range(WARM):
        for _, compute, n_times in _stages_of(work):
            for _ in range(n_times):
                compute()
    device.synchronize()
    for stage, compute, n_times in _stages_of(work):
        events = device.profiled(compute)
        for _ in range(n_times - 1):
            compute()
        row = trace.summary(events)
        if stage == "decode":
            row["kernels"] = round(row["kernels"] / work.n_ids, 1)
            row["busy_ms"] = round(row["busy_ms"] / work.n_ids, 4)
        found[stage] = row
    return {"counts": device.counts, "stages": found}


def _trace(side: ModelSide, check: Check) -> dict[str, Any]:
    """Whole utterances through the core: the share of each stage, and how long the device was idle."""
    text = random_text(check.plan.traced_s)
    requests = [Request(text, seed) for seed in range(check.plan.traced)]
    side.spoken(requests)  # the voice becomes ready, and all shapes have run once
    runner: Any = side.runner

    def marked(stage: str) -> Callable[..., Any]:
        compute = getattr(type(runner), stage).__get__(runner)

        def work(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(trace.STAGE + stage):
                return compute(*args, **kwargs)

        return work

    for stage in STAGES:
        setattr(runner, stage, marked(stage))
    try:
        begun = time.perf_counter()
        events = side.device.profiled(lambda: side.spoken(requests))
        wall_s = time.perf_counter() - begun
    finally:
        for stage in STAGES:
            delattr(runner, stage)
    trace.write(events, check.out / f"trace-{check.dtype}.json.gz")
    speech_s = check.plan.traced * check.plan.traced_s
    whole = {"utterances": check.plan.traced, "speech_s": speech_s, "wall_s": round(wall_s, 2)}
    return {**whole, "counts": side.device.counts, **trace.summary(events), "stages": trace.by_stage(events)}
