"""The environment of the real client packages, and how a test runs one of their drivers in it.

Bot frameworks and vendor SDKs do not share an environment with the server: their requirements clash with each other and
with ours. They live in `.peers/bots`, a virtual environment that the first test which needs it makes.
"""

from __future__ import annotations

import base64
import faulthandler
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from forked_process import ForkServer, fork_server

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / ".peers"
REQUIREMENTS = HERE / "bots.txt"
DRIVERS = HERE / "drivers"
INSTALL_S = 300
"""The longest that an installation may take."""
FORK_SERVERS: dict[Path, ForkServer] = {}
"""Fork servers with the imports of a driver, by the driver's path."""
_ENDS = ExitStack()
_MAKING = threading.Lock()


def bots_python() -> Path:
    """The interpreter of the environment, which is made on first use and again when `bots.txt` changed.

    It takes 390 MB and half a minute. Processes that run tests at the same time wait for the one that installs.
    """
    folder = PEERS / "bots"
    python = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    wanted = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    PEERS.mkdir(exist_ok=True)
    with only_one(PEERS / "bots.lock"):
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        faulthandler.cancel_dump_traceback_later()  # the limit of a test is shorter than that of an installation
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=INSTALL_S)
        installed = subprocess.run(
            # This environment's pip: another copy would take longer to unpack than to run. `--no-deps`: the list is
            # complete, and pipecat and livekit-agents name packages that no text-to-speech service needs.
            [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-compile", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"the clients were not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return python


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a file lock. It is released when its holder ends, however it ends."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def drive(
    script: str, *arguments: str, timeout_s: float = 30, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run a driver to its end and return what its client's user saw, in order.

    `script` is a file name in `drivers`, whose docstring says what it takes and reports. Each event has its name in
    `event` and its time since the driver's start in `at_s`. Bytes, such as `audio`, are `bytes`. `environment` is added
    to the variables that the driver sees.

    Raises AssertionError, with the driver's stderr and its last events, when it fails or takes longer than `timeout_s`.
    """
    python, path = bots_python(), DRIVERS / script
    variables = driver_variables(environment or {})
    try:
        if environment:
            # An SDK may read them when it is imported.
            start = subprocess.run
        else:
            with _MAKING:
                if path not in FORK_SERVERS:
                    # For its children, which cannot get it from `-X faulthandler`.
                    early = {**variables, "PYTHONFAULTHANDLER": "1"}
                    FORK_SERVERS[path] = _ENDS.enter_context(fork_server(path, environment=early, python=python))
                start = FORK_SERVERS[path].run
        command = [str(python), "-X", "faulthandler", str(path), *arguments]
        run = start(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=variables,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise AssertionError(
            f"{script} took longer than {timeout_s} s\n{printed(late.stdout)}\n{decoded_text(late.stderr)}"
        ) from None
    except BaseException:
        FORK_SERVERS.pop(path, None)  # it may have ended, and the next run needs one
        raise
    assert run.returncode == 0, (
        f"{script} ended with {run.returncode}\n{printed(run.stdout)}\n{decoded_text(run.stderr)[-6000:]}"
    )
    return [with_bytes(json.loads(line)) for line in run.stdout.splitlines()]


def end_fork_servers() -> None:
    """End the fork servers, which wait for another run of a driver."""
    FORK_SERVERS.clear()
    _ENDS.close()


def driver_variables(added: Mapping[str, str]) -> dict[str, str]:
    """The variables of a driver: its own packages, no proxy before the loopback address, no key of this machine."""
    # Without PYTHONDONTWRITEBYTECODE, with which each run would compile the packages again and take 3 s longer.
    unwanted = ("PYTHONPATH", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.endswith(("_API_KEY", "_BASE_URL"))
    }
    # A run that is late is killed, and its output is shown.
    own = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "PYTHONUNBUFFERED": "1"}
    return {**kept, **own, **added}


def with_bytes(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its base64 fields, `{"base64": ...}`, as bytes."""
    return {
        name: base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value
        for name, value in event.items()
    }


def printed(stdout: bytes | None) -> str:
    """The last events of a driver that failed, each short enough to read."""
    return "\n".join(line[:300] for line in decoded_text(stdout).splitlines()[-20:])


def decoded_text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")
