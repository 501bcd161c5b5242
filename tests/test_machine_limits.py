"""The processor, its cores and the memory that a process may use, as the kernel's files say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telephony_tts.engines.cosyvoice2.choice import most_lanes
from telephony_tts.runtime.machine_limits import cpu_model, cpu_share, memory_free

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)


V2 = {"proc/self/cgroup": "0::/pods/one\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/pods/one\n4:memory:/pods/one\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({**V2, "sys/fs/cgroup/pods/one/cpu.max": "50000 100000"}, 0.5),
        ({**V2, "sys/fs/cgroup/pods/one/cpu.max": "max 100000"}, None),
        # The tightest limit counts, wherever it is.
        ({**V2, "sys/fs/cgroup/pods/one/cpu.max": "300000 100000", "sys/fs/cgroup/pods/cpu.max": "200000 100000"}, 2.0),
        # A container sees its own group as the root, and the kernel's path does not exist there.
        ({**V2, "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({**V1, "sys/fs/cgroup/cpu/pods/one/cpu.cfs_quota_us": "-1",
          "sys/fs/cgroup/cpu/pods/one/cpu.cfs_period_us": "100000"}, None),
        ({**V1, "sys/fs/cgroup/cpu/pods/one/cpu.cfs_quota_us": "100000",
          "sys/fs/cgroup/cpu/pods/one/cpu.cfs_period_us": "100000"}, 1.0),
        ({**V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "25000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000"}, 0.5),
        ({**V2, "sys/fs/cgroup/pods/one/cpu.max": "nonsense"}, None),
        ({**V2, "sys/fs/cgroup/pods/one/cpu.max": "0 0"}, None),
        ({"proc/self/cgroup": "\n:\nx\n", "sys/fs/cgroup/cpu.max": ""}, None),
    ],
)  # fmt: skip
def test_the_quota_of_a_control_group(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    share = cpu_share(write(tmp_path, files))
    assert (share.n_cpus, share.quota) == (4, quota)
    assert share.usable == (4 if quota is None else quota)


def test_two_logical_processors_of_a_core(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {topology.format(cpu): siblings for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"])}
    share = cpu_share(write(tmp_path, files))
    assert (share.n_cpus, share.n_cores) == (4, 2)
    assert str(share) == "4 CPUs (2 cores)"
    assert cpu_share(tmp_path / "nowhere").n_cores == 4


def test_the_affinity_counts_not_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7}, raising=False)
    share = cpu_share(tmp_path)
    assert (share.n_cpus, most_lanes(share), str(share)) == (1, 1, "1 CPU")


@pytest.mark.parametrize(
    ("files", "free_mib"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 4096 kB\n"}, 4),
        ({**V2, "proc/meminfo": "MemAvailable: 10240 kB\n",
          "sys/fs/cgroup/pods/one/memory.max": str(8 * MIB), "sys/fs/cgroup/pods/one/memory.current": str(6 * MIB),
          "sys/fs/cgroup/pods/one/memory.stat": f"anon 1\ninactive_file {MIB}\n"}, 3),
        ({**V2, "proc/meminfo": "MemAvailable: 10240 kB\n",
          "sys/fs/cgroup/pods/one/memory.max": "max", "sys/fs/cgroup/pods/one/memory.current": "1"}, 10),
        ({**V2, "sys/fs/cgroup/pods/memory.max": str(MIB), "sys/fs/cgroup/pods/memory.current": str(2 * MIB)}, 0),
        ({**V1, "sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes": str(8 * MIB),
          "sys/fs/cgroup/memory/pods/one/memory.usage_in_bytes": str(6 * MIB),
          "sys/fs/cgroup/memory/pods/one/memory.stat": f"total_inactive_file {MIB}\n"}, 3),
        ({**V1, "sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes": "9223372036854771712",
          "sys/fs/cgroup/memory/pods/one/memory.usage_in_bytes": "1"}, None),
    ],
)  # fmt: skip
def test_free_memory(tmp_path: Path, files: dict[str, str], free_mib: int | None) -> None:
    assert memory_free(write(tmp_path, files)) == (None if free_mib is None else free_mib * MIB)


def test_the_processor_has_a_name_and_numbers(tmp_path: Path) -> None:
    first = "processor: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    text = f"{first}\nprocessor: 1\nmodel: 9\n"
    assert cpu_model(write(tmp_path, {"proc/cpuinfo": text})) == "AMD EPYC (26/2/1)"
    assert cpu_model(tmp_path / "nowhere") != ""


def test_this_machine_can_be_read() -> None:
    assert cpu_model() and cpu_share().usable > 0
    free = memory_free()
    assert free is None or free > 0
