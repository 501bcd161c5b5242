"""The group in which a server gets no new memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torture.sandbox import MemoryGroup, memory_group, what_is_allowed

pytestmark = pytest.mark.slow

STARTS_ANOTHER = "import subprocess, sys; input(); print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"


def test_a_process_that_is_started_in_the_group_leaves_it_too() -> None:
    if not what_is_allowed()["memory pressure (cgroup)"].startswith("yes"):
        pytest.skip("this user may not make groups")
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ANOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        with memory_group() as group:
            assert group is not None
            group.take(parent.pid)
            parent.stdin.write("\n")
            child = int(parent.stdout.readline())
            inside = Path(f"/proc/{child}/cgroup").read_text(encoding="ascii")
        outside = Path(f"/proc/{child}/cgroup").read_text(encoding="ascii")
        subprocess.run(["kill", str(child)], check=True)
        parent.stdin.write("\n")
    assert "torture-" in inside and "torture-" not in outside


def test_the_limit_is_lifted_before_killing_is_allowed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: in the other order a server that waited for memory was killed, now and then."""
    for name in ("memory.limit_in_bytes", "memory.oom_control"):
        (tmp_path / name).touch()
    written = []
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.append((path.name, text)))
    group = MemoryGroup(tmp_path)
    group.limit(1000)
    group.limit(None)
    assert written == [
        ("memory.oom_control", "1"), ("memory.limit_in_bytes", "1000"),
        ("memory.limit_in_bytes", "-1"), ("memory.oom_control", "0"),
    ]  # fmt: skip
