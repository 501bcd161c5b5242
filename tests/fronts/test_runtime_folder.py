"""The runtime folder: private, and removed after a server that was killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from telephony_tts.fronts.runtime_folder import RuntimeFolder, remove_stale
from telephony_tts.runtime.errors import ConfigError


def test_it_is_private_and_goes_at_the_end(short: Path) -> None:
    folder = RuntimeFolder.make(str(short))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700 and folder.path.parent == short
    assert folder.calls.is_dir() and folder.nonces.is_dir() and folder.metrics.is_dir()
    with_it = RuntimeFolder(folder.path)
    with_it.close()
    folder.remove()
    assert list(short.iterdir()) == []


def test_the_folder_of_a_running_server_stays(short: Path) -> None:
    one = RuntimeFolder.make(str(short))
    other = RuntimeFolder.make(str(short))
    assert one.path.is_dir() and other.path.is_dir() and one.path != other.path
    front = RuntimeFolder(one.path)
    one.close()  # its supervisor was killed, and a front still speaks
    assert remove_stale(short) == [] and one.path.is_dir()
    front.close()
    assert remove_stale(short) == [one.path] and not one.path.exists() and other.path.is_dir()
    other.remove()


@pytest.mark.slow
def test_the_folder_of_a_killed_server_is_removed_by_the_next(short: Path) -> None:
    program = (
        "import sys; from telephony_tts.fronts.runtime_folder import RuntimeFolder\n"
        "print(RuntimeFolder.make(sys.argv[1]).path, flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", program, short], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None
    left = Path(held.stdout.readline().strip())
    assert remove_stale(short) == [] and left.is_dir()
    held.send_signal(signal.SIGKILL)
    held.communicate()
    folder = RuntimeFolder.make(str(short))
    assert list(short.iterdir()) == [folder.path]
    folder.remove()


def test_what_is_not_ours_is_not_touched(short: Path) -> None:
    (short / "target").mkdir()
    (short / "target" / "lock").touch()
    (short / f"telephony-tts-{os.getuid()}-1-x").symlink_to(short / "target")
    (short / f"telephony-tts-{os.getuid()}-2-x").mkdir()  # without a lock: it is just being made
    assert remove_stale(short) == [] and (short / "target" / "lock").exists()


def test_a_place_that_cannot_be_used_is_named(short: Path) -> None:
    with pytest.raises(ConfigError, match=rf"server\.runtime_folder: cannot write in {short}/none"):
        RuntimeFolder.make(str(short / "none"))
    long = short / ("x" * 120)
    long.mkdir()
    with pytest.raises(ConfigError, match="too long"):
        RuntimeFolder.make(str(long))
