"""A temporary folder of a process that was killed is removed by the next process, and no other folder is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from telephony_tts.engines.locked_folder import LockedFolder

pytestmark = pytest.mark.slow

HOLDER = """
import sys, time
from telephony_tts.engines.locked_folder import LockedFolder
print(LockedFolder(sys.argv[1]).name, flush=True)
time.sleep(60)
"""


def test_only_folders_of_killed_processes_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign = tmp_path / "mine-of-another-release"
    foreign.mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holders = []
    try:
        for _ in range(2):
            command = [sys.executable, "-c", HOLDER, "mine-"]
            holders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        names = []
        for holder in holders:
            assert holder.stdout is not None
            names.append(Path(holder.stdout.readline().strip()))
        (names[0] / "copy.so").write_bytes(b"x")
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        own = LockedFolder("mine-")
        assert not names[0].exists(), "its process was killed"
        assert names[1].exists() and foreign.exists()
        own.cleanup()
        own.cleanup()
        assert not Path(own.name).exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
