"""Replaces `auto` in the settings: measures this machine or reads what was measured, and looks at the memory.

`choice` decides; this module finds the facts for it. It raises EngineUnavailable before anything large is loaded if the
model cannot fit into memory.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from telephony_tts.engines.cosyvoice2.choice import (
    CpuTimings,
    EngineChoice,
    choose,
    is_auto,
    without_timings,
)
from telephony_tts.engines.cosyvoice2.device.cpu_timing import TIMING_VERSION, measure_cpu
from telephony_tts.engines.cosyvoice2.device.memory_need import MemoryNeed, memory_need, n_weights
from telephony_tts.engines.cosyvoice2.hosting.kept_timings import Machine, keep_timings, read_timings, timings_file
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.settings import INT8, Precision, Settings
from telephony_tts.engines.kernels import library as kernels
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import EngineUnavailable
from telephony_tts.runtime.machine_limits import CpuShare, cpu_model, cpu_share, memory_free

log = logging.getLogger(__name__)

SMALL = 30_000_000
"""A model of fewer weights is one for tests, such as `models random` writes. It is fast without any choice, so no time
is spent on timing. CosyVoice2-0.5B has 639 million."""
SWITCHES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", kernels.LEVEL_VARIABLE)
"""Environment variables with which libraries leave out instructions of the processor."""


def settle(settings: Settings, sizes: ModelConfig | None) -> tuple[Settings, EngineChoice]:
    """The settings without `auto`, and why they became so. The choice is logged.

    `sizes`: of the model that is about to be loaded; None skips the look at the memory.
    Raises EngineUnavailable if int8 is set and this machine lacks it, or if the model does not fit into memory.
    """
    asked = settings.precision, settings.n_lanes, settings.n_threads
    if settings.device != "cpu":
        return _settled(settings, without_timings(*asked))
    problem = kernels.problem()
    if INT8 in (settings.precision.lm, settings.precision.flow) and problem is not None:
        raise EngineUnavailable(
            f"cosyvoice2 cannot compute in int8: {problem}. Mend that, or set lm_dtype and flow_dtype to auto "
            "(engines.cosyvoice2)"
        )
    free = memory_free()

    def fits(precision: Precision) -> bool:
        return sizes is None or free is None or memory_need(sizes, precision, settings.n_slots).total <= free

    if sizes is not None and n_weights(sizes) < SMALL:
        choice = without_timings(*asked)
    elif is_auto(*asked):
        timings = timings_of_this_cpu()
        choice = choose(*asked, timings if problem is None else timings.without_int8(), cpu_share(), fits, problem)
        if problem is None:
            choice = replace(choice, reasons=(*choice.reasons, f"instructions for int8: {kernels.level()}"))
        log.info("cosyvoice2 chooses for %s, %s", cpu_model(), cpu_share())
    else:
        choice = EngineChoice(settings.precision, settings.n_lanes or 1, settings.n_threads or 1)
    settings, choice = _settled(settings, choice)
    if sizes is not None and free is not None and not fits(choice.precision):
        settings, choice = _in_small_memory(settings, choice, sizes, free)
    for reason in choice.reasons:
        log.info("cosyvoice2: %s", reason)
    for warning in choice.warnings:
        log.warning("cosyvoice2: %s", warning)
    return settings, choice


def timings_of_this_cpu(measure: Callable[[], CpuTimings] = measure_cpu) -> CpuTimings:
    """Read from the user's cache directory, or measured in about two seconds and kept there."""
    machine = this_machine(cpu_share())
    file = timings_file(machine)
    kept = None if file is None else read_timings(file, machine)
    if kept is not None:
        log.debug("the timings of this CPU are in %s", file)
        return kept
    log.info("cosyvoice2 times this CPU, once for its settings")
    begun = monotonic_ns()
    timings = measure()
    problem = "there is no cache directory" if file is None else keep_timings(file, machine, timings)
    if problem is None:
        log.info("timed in %.1f s; kept in %s, delete it to time again", (monotonic_ns() - begun) / NS_PER_S, file)
    else:
        log.info("the timings are not kept, so each start takes two seconds more: %s", problem)
    return timings


def this_machine(share: CpuShare) -> Machine:
    """What the timings depend on."""
    try:
        version = importlib.metadata.version("telephony-tts")
    except importlib.metadata.PackageNotFoundError:
        version = "checkout"
    switches = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    return {
        "cpu": cpu_model(),
        "share": str(share),
        "instructions": f"{torch.backends.cpu.get_cpu_capability()}, int8 {kernels.level()}",
        "switches": " ".join(f"{name}={value}" for name, value in sorted(switches.items())),
        "torch": torch.__version__,
        "telephony-tts": f"{version}, timing {TIMING_VERSION}",
    }


def where_kept() -> Path | None:
    """The file with the timings of this machine, whether it exists or not."""
    return timings_file(this_machine(cpu_share()))


def _settled(settings: Settings, choice: EngineChoice) -> tuple[Settings, EngineChoice]:
    return (
        replace(settings, precision=choice.precision, n_lanes=choice.n_lanes, n_threads=choice.n_threads),
        choice,
    )


def _in_small_memory(
    settings: Settings, choice: EngineChoice, sizes: ModelConfig, free: int
) -> tuple[Settings, EngineChoice]:
    """The settings with as many slots as fit. Raises EngineUnavailable if not even the weights fit."""

    def need(n_slots: int) -> MemoryNeed:
        return memory_need(sizes, choice.precision, n_slots)

    least, wanted, precision = need(1), need(settings.n_slots).total, _named(choice.precision)
    if least.weights > free:
        raise EngineUnavailable(
            f"cosyvoice2 needs {_gib(least.total)} of memory with {precision}, {_gib(least.weights)} for its weights "
            f"alone, and {_gib(free)} are free. Give it more (of the machine, or of its control group), or use the "
            "embedded voice (engines.default: hibari)"
        )
    n_slots = next((n for n in range(settings.n_slots, 0, -1) if need(n).total <= free), 1)
    fewer = "" if n_slots == settings.n_slots else f", so it has {n_slots} slots instead of {settings.n_slots}"
    short = need(n_slots).total > free
    warning = (
        f"{_gib(wanted)} of memory are needed with {precision} and {settings.n_slots} slots, and {_gib(free)} are "
        f"free{fewer}"
        + (f". It still needs {_gib(need(n_slots).total)}: the system may end it while it speaks" if short else "")
    )
    return replace(settings, n_slots=n_slots), replace(choice, warnings=(*choice.warnings, warning))


def _named(precision: Precision) -> str:
    return f"{precision.lm}/{precision.flow}/{precision.vocoder}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
