"""`benchmarks/gpu_check.py` with a device more, `--device pretend`: it computes on the CPU and is as strict as a GPU.

The engine under load runs on the CPU, in the same process. Networks have fewer layers and steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "engines" / "cosyvoice2"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_check


def _pretend() -> None:
    """Add the device, and make the tiny model cheaper."""
    import pretend_device
    import torch
    from few_steps import load_with_few_steps
    from gpu import devices, side
    from gpu.trace import Event

    from telephony_tts.engines.cosyvoice2.checkpoint import random_checkpoint
    from telephony_tts.engines.cosyvoice2.device import speech_model
    from telephony_tts.engines.cosyvoice2.model.flow import device_backend
    from telephony_tts.engines.cosyvoice2.model.graphs import Record
    from telephony_tts.engines.cosyvoice2.model.vocoder import recorded

    torch.set_num_threads(1)
    tiny = random_checkpoint.SIZES["tiny"]
    vocoder = replace(tiny.vocoder, res_kernels=(3, 7), res_dilations=(1, 3))
    random_checkpoint.SIZES["tiny"] = replace(tiny, vocoder=vocoder)
    side.load_model_directory = load_with_few_steps  # type: ignore[attr-defined]
    # Fewer shapes to record.
    speech_model.MAX_POSITIONS = 512
    device_backend.PREPARED_PAGES = (8,)  # type: ignore[assignment]
    recorded.MOST_ROWS = 2
    recorded.END_FRAMES, device_backend.END_TOKENS = range(6, 7), range(3, 4)

    class PretendedGpu(devices.CpuDevice):
        name = "pretend:0"
        engine_device = "cpu"

        def __init__(self) -> None:
            pretend_device.device()
            self.pretence = pretend_device.Pretence()

        def describe(self) -> dict[str, Any]:
            return {"gpu": "a pretended GPU"}

        def recorder(self) -> Record | None:
            return self.pretence.record

        @contextmanager
        def computing(self) -> Iterator[None]:
            with torch.inference_mode(), self.pretence:
                yield

        @contextmanager
        def waits(self) -> Iterator[list[str]]:
            found: list[str] = []
            n_before = len(self.pretence.waits)
            yield found
            found += self.pretence.waits[n_before:]

        def profiled(self, work: Callable[[], object]) -> list[Event]:
            self.pretence.launches.clear()
            work()
            names = self.pretence.launches.elements()
            return [
                {"ph": "X", "cat": "kernel", "name": name, "ts": 2.0 * i, "dur": 1.0} for i, name in enumerate(names)
            ]

    make = devices.make_device
    devices.make_device = lambda name: PretendedGpu() if name == "pretend" else make(name)


if __name__ == "__main__":
    if "--part" in sys.argv:
        _pretend()
    sys.exit(gpu_check.main(program=(sys.executable, __file__)))
