"""The environment of the client packages: made once, made again for another list, and drivers that fail loudly."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import environment
import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own with a list of one small package; the path of the list."""
    listed = tmp_path / "list.txt"
    listed.write_text("sniffio==1.3.1\n")
    monkeypatch.setattr(environment, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(environment, "REQUIREMENTS", listed)
    return listed


def can_import(python: Path, name: str) -> bool:
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def test_it_is_made_once_and_again_when_the_list_changed(elsewhere: Path) -> None:
    python = environment.bots_python()
    assert can_import(python, "sniffio")
    (python.parent / "witness").touch()
    assert environment.bots_python() == python
    assert (python.parent / "witness").exists(), "it was made again for the same list"
    elsewhere.write_text("typing-extensions==4.16.0\n")
    assert environment.bots_python() == python
    assert can_import(python, "typing_extensions")
    assert not can_import(python, "sniffio"), "the old list's packages are still there"


def test_an_installation_that_failed_is_tried_again(elsewhere: Path) -> None:
    good = elsewhere.read_text()
    elsewhere.write_text("sniffio==0.0.0\n")
    with pytest.raises(AssertionError, match="the clients were not installed"):
        environment.bots_python()
    elsewhere.write_text(good)
    assert can_import(environment.bots_python(), "sniffio")


@pytest.fixture
def own_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of drivers that need no client's packages, and so run with this interpreter."""
    monkeypatch.setattr(environment, "bots_python", lambda: Path(environment.sys.executable))
    monkeypatch.setattr(environment, "DRIVERS", tmp_path)
    (tmp_path / "reporting.py").symlink_to(environment.HERE / "drivers" / "reporting.py")
    return tmp_path


def test_a_driver_that_gives_up_says_why_and_what_it_saw(own_drivers: Path) -> None:
    (own_drivers / "waits.py").write_text(
        "from reporting import Ear, arguments, report\n"
        "options = arguments(rate=8)\n"
        "ear = Ear(options.rate * 2 / 1000, options.within)\n"
        "print('a client that prints')\n"
        "ear.audio(b'\\x01\\x02', turn=1)\n"
        "for step in options.steps: ear.wait_in_thread(step)\n"
    )
    heard = environment.drive("waits.py", "http://127.0.0.1:1", "hear:100", "--rate", "8")
    assert [(event["event"], event["audio"], event["turn"]) for event in heard] == [("audio", b"\x01\x02", 1)]
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*\"event\": \"audio\".*gave up on 'wait:done'"):
        environment.drive("waits.py", "http://127.0.0.1:1", "wait:done", "--within", "0.2")
    with pytest.raises(AssertionError, match=r"(?s)longer than 1 s.*\"event\": \"audio\".*a client that prints"):
        environment.drive("waits.py", "http://127.0.0.1:1", "wait:done", "--within", "20", timeout_s=1)


def test_runs_of_a_driver_share_its_imports_and_nothing_else(
    own_drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_drivers / "client.py").write_text("import os\nIMPORTED_IN = os.getpid()\nUSERS = []\n")
    (own_drivers / "chosen.py").write_text("import os\nIMPORTED_IN = os.getpid()\n")
    (own_drivers / "uses.py").write_text(
        "import os, sys\n"
        "import client\n"
        "from reporting import report\n"
        "client.USERS.append(sys.argv[1])\n"
        "def later():\n"
        "    import chosen\n"
        "    return chosen.IMPORTED_IN\n"
        "report('ran', by=os.getpid(), shared=client.IMPORTED_IN, chosen=later(), users=client.USERS, name=__name__,\n"
        "       arguments=sys.argv[1:], folder=os.getcwd(), variable=os.environ.get('OF_A_RUN'),\n"
        "       input=sys.stdin.read())\n"
    )
    (one,) = environment.drive("uses.py", "one")
    monkeypatch.setenv("OF_A_RUN", "set")
    monkeypatch.chdir(tmp_path)
    (two,) = environment.drive("uses.py", "chosen", "--more")
    assert two["by"] != one["by"] != one["shared"] == two["shared"] != two["by"]
    assert one["chosen"] == one["by"] and two["chosen"] == two["shared"]
    assert (two["users"], two["name"], two["arguments"]) == (["chosen"], "__main__", ["chosen", "--more"])
    assert (two["folder"], two["variable"], one["variable"], two["input"]) == (str(tmp_path), "set", None, "")
    (alone,) = environment.drive("uses.py", "three", environment={"OF_AN_IMPORT": "1"})
    assert alone["by"] == alone["shared"], "its import has not seen the variable"
    assert is_running(one["shared"])
    environment.end_fork_servers()
    assert not is_running(one["shared"])


def test_a_run_that_is_late_or_killed_leaves_no_process(own_drivers: Path) -> None:
    (own_drivers / "dies.py").write_text(
        "import os, signal, sys, time\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "if sys.argv[2] == 'late': time.sleep(60)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pids = own_drivers / "pid"
    with pytest.raises(AssertionError, match=r"dies\.py ended with -9"):
        environment.drive("dies.py", str(pids), "killed")
    with pytest.raises(AssertionError, match=r"dies\.py took longer than 2 s"):
        environment.drive("dies.py", str(pids), "late", timeout_s=2)
    end_s = time.monotonic() + 5
    while is_running(int(pids.read_text())):
        assert time.monotonic() < end_s, "it runs on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether it is neither gone nor a zombie: its parent was killed, and process 1 may not have taken it yet."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_an_import_that_starts_a_thread_is_refused(own_drivers: Path) -> None:
    (own_drivers / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (own_drivers / "uses.py").write_text("import threaded\n")
    with pytest.raises(AssertionError, match="the fork server has ended"):
        environment.drive("uses.py")


def test_a_driver_runs_again_after_its_fork_server_has_died(own_drivers: Path) -> None:
    (own_drivers / "fatal.py").write_text("import os\nos._exit(3)\n")
    (own_drivers / "uses.py").write_text(
        "from reporting import report\ndef later():\n    import fatal\nreport('ran')\n"
    )  # fmt: skip
    with pytest.raises(AssertionError, match="the fork server has ended"):
        environment.drive("uses.py", "fatal")
    assert [event["event"] for event in environment.drive("uses.py", "well")] == ["ran"]
    with pytest.raises(AssertionError):
        environment.end_fork_servers()
