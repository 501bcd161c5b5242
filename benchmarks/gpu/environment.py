"""The machine, and the two ceilings that every figure is judged by: what the device multiplies and copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpu.check import Check
from gpu.side import PROMPT_S
from telephony_tts.bench import machine
from telephony_tts.engines.cosyvoice2.random_speech import random_model


def run(check: Check) -> None:
    """Units: machine, ceilings, weights."""
    part, device = check.run, check.device
    if part.wants("machine"):
        with part.unit("machine") as found:
            about = {**machine.machine("cpu"), **device.describe()}
            found(about)
            smi = about.get("nvidia_smi") or {}
            link = f"PCIe {smi.get('pcie.link.gen.current', '?')} x{smi.get('pcie.link.width.current', '?')}"
            part.tell(f"{about['gpu']}, driver {smi.get('driver_version', '?')}, {link}, {about['libraries']}")
    if part.wants("ceilings"):
        with device.computing(), part.unit("ceilings") as found:
            found(_ceilings(check))
    if part.wants("weights"):
        with part.unit("weights") as found:
            for size in sorted({"tiny", check.size}):
                part.tell(f"random weights, {size} size")
                with random_model("full" if size == "full" else "tiny", PROMPT_S, check.weights / size):
                    found({size: "written"})


def _ceilings(check: Check) -> dict[str, Any]:
    """Of random data: zeros multiply faster."""
    device = check.device
    is_gpu = device.name.startswith("cuda")
    n = 8192 if is_gpu else 64
    found: dict[str, Any] = {"n": n}
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (torch.randn(n, n, device=device.name).to(dtype) for _ in range(2))
        seconds = _seconds(device.synchronize, partial(torch.mm, a, b))
        found[f"{str(dtype).removeprefix('torch.')}_tflop_per_s"] = round(2 * n**3 / seconds / 1e12, 4)
    data = torch.randn(n * n * (16 if is_gpu else 1), device=device.name)
    copy = torch.empty_like(data)
    seconds = _seconds(device.synchronize, lambda: copy.copy_(data))
    found["copy_gb_per_s"] = round(2 * data.numel() * data.element_size() / seconds / 1e9, 1)
    return found


def _seconds(synchronize: Callable[[], None], work: Callable[[], object], n: int = 10) -> float:
    for _ in range(3):
        work()
    synchronize()
    begun = time.perf_counter()
    for _ in range(n):
        work()
    synchronize()
    return (time.perf_counter() - begun) / n
