"""The memory, energy and commit of a run."""

from __future__ import annotations

import asyncio
import mmap
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from telephony_tts.bench import machine
from telephony_tts.bench.machine import Meter, Rapl
from telephony_tts.engines.cosyvoice2.bench_subject import need_gpu
from telephony_tts.engines.cosyvoice2.hosting.loading import device_problem
from telephony_tts.runtime.errors import EngineUnavailable


def zone(folder: Path, name: str, uj: int, most: int = 1_000_000_000) -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{uj}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / name


def test_energy_counts_each_processor_once(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", 7_000_000)  # the cores of the first processor, which its figure includes
    rapl = Rapl(tmp_path)
    rapl.begin()
    zone(tmp_path, "intel-rapl:0", 3_500_000)
    zone(tmp_path, "intel-rapl:1", 6_000_000)
    zone(tmp_path, "intel-rapl:0:0", 9_000_000)
    assert rapl.joules() == 3.5


def test_a_counter_may_wrap_around(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 9_000_000, most=10_000_000)
    rapl = Rapl(tmp_path)
    rapl.begin()
    zone(tmp_path, "intel-rapl:0", 2_000_000, most=10_000_000)
    assert rapl.joules() == 3.0


def test_without_readable_counters_the_energy_is_none(tmp_path: Path) -> None:
    rapl = Rapl(tmp_path / "not there")
    rapl.begin()
    assert rapl.joules() is None
    only_root_reads = zone(tmp_path, "intel-rapl:0", 1)
    (only_root_reads / "energy_uj").unlink()
    rapl = Rapl(tmp_path)
    rapl.begin()
    assert rapl.joules() is None


def hold(n_bytes: int) -> None:
    """Hold new memory for a moment. The process may own unused gigabytes after other tests."""
    with mmap.mmap(-1, n_bytes) as held:
        held[::4096] = b"\1" * (n_bytes // 4096)


@pytest.mark.slow
@pytest.mark.skipif(not machine._forget_peak(), reason="the system cannot reset the peak")
def test_the_memory_peak_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)

    async def peaks() -> tuple[float, float]:
        async with Meter("cpu") as small:
            pass
        before = small.figures()["rss_peak_mib"]
        async with Meter("cpu") as large:
            hold(200 << 20)
        return before, large.figures()["rss_peak_mib"]

    hold(300 << 20)  # a peak before both runs
    before, during = asyncio.run(peaks())
    assert 190 <= during - before <= 230


@pytest.mark.skipif(not any(Path("/proc/self/task").glob("*/children")), reason="the kernel does not list children")
@pytest.mark.slow
def test_memory_includes_child_processes() -> None:
    program = "held = b'1' * (100 << 20); print('held', flush=True); input()"

    async def peak() -> float:
        async with Meter("cpu") as meter:
            return float(meter.figures()["rss_peak_mib"])

    alone = asyncio.run(peak())
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with_child = asyncio.run(peak())
        child.communicate("\n")
    assert 100 <= with_child - alone <= 160


class Gpu:
    """A driver that answers each sample with (milliwatts, bytes in use). After the last it waits for the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, looks: list[tuple[int | None, int]]) -> None:
        self.looks, self.n_seen, self.now_ns = looks, 0, 0
        self.enough, self.over = threading.Event(), threading.Event()
        monkeypatch.setattr(machine, "monotonic_ns", self.clock)
        monkeypatch.setattr(machine, "SAMPLE_S", 0)
        monkeypatch.setattr(machine, "POWERCAP", folder)
        for name, answer in (
            ("is_initialized", lambda: True), ("reset_peak_memory_stats", lambda device: None),
            ("max_memory_allocated", lambda device: 3 << 20), ("device_memory_used", self.used),
            ("power_draw", self.power),
        ):  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, answer)

    def clock(self) -> int:
        self.now_ns += 500_000_000
        return self.now_ns

    def used(self, device: str) -> int:
        if self.n_seen == len(self.looks):
            self.enough.set()
            self.over.wait(5)
            raise RuntimeError("it is over")
        self.n_seen += 1
        return self.looks[self.n_seen - 1][1]

    def power(self, device: str) -> int:
        milliwatts = None if self.over.is_set() else self.looks[self.n_seen - 1][0]
        if milliwatts is None:
            raise RuntimeError("no meter")
        return milliwatts

    async def measured(self) -> dict[str, object]:
        async with Meter("cuda") as meter:
            await asyncio.to_thread(self.enough.wait, 5)
            found = meter.figures()
            self.over.set()
        return found


def test_a_gpu_is_sampled_during_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Gpu(monkeypatch, tmp_path, [(100_000, 7 << 20), (300_000, 9 << 20), (None, 8 << 20)])
    found = asyncio.run(gpu.measured())
    assert (found["gpu_peak_mib"], found["gpu_used_peak_mib"]) == (3.0, 9.0)
    # Half a second at 100 W and half a second at 300 W.
    assert (found["energy_gpu_j"], found["energy_cpu_j"], found["energy_j"]) == (200.0, None, 200.0)


def test_a_gpu_whose_driver_reports_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    found = asyncio.run(Gpu(monkeypatch, tmp_path, [(None, 0), (None, 0)]).measured())
    assert (found["energy_gpu_j"], found["energy_j"], found["gpu_used_peak_mib"]) == (None, None, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error_at_once() -> None:
    need_gpu("cpu")
    with pytest.raises(EngineUnavailable, match=r"--device cuda:0: .*; .*, or --device cpu needs no GPU; .* doctor"):
        need_gpu("cuda:0")


def test_an_unusable_gpu_is_refused_with_the_engines_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU exists, but this PyTorch cannot use it."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    with pytest.raises(EngineUnavailable) as refused:
        need_gpu("cuda")
    assert f"--device cuda: {device_problem('cuda')}; " in refused.value.message and "7.5" in refused.value.message
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    need_gpu("cuda")


@pytest.mark.slow
def test_the_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "telephony_tts" / "bench"
    package.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(package / "machine.py"))
    assert machine.commit() is None, "not a checkout"

    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    assert machine.commit() is None, "a checkout without a commit"
    (package / "a.py").write_text("")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    head = git("rev-parse", "--short", "HEAD")
    assert machine.commit() == head
    (package / "a.py").write_text("1")
    assert machine.commit() == f"{head}+changes"
    installed = tmp_path / "venv" / "site-packages" / "telephony_tts" / "bench" / "machine.py"
    installed.parent.mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(installed))
    assert machine.commit() is None, "an installed package has no commit, although its environment is in a checkout"
