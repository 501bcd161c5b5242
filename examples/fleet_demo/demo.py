"""A fleet on this machine: two front processes, and three engine replicas on a Ray cluster. One replica is killed.

`make fleet-demo` starts all of it, lets calls speak, kills a replica with SIGKILL, and shows what the callers heard
and what the metrics counted. It takes about a minute, ends by itself, and leaves nothing running.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from callers import Caller
from websockets.exceptions import WebSocketException

APP = "fleet-demo"
BIN = Path(sys.executable).parent
TELEPHONY_TTS = (sys.executable, "-m", "telephony_tts")
START_S, REPLACED_S, END_S = 120.0, 60.0, 30.0
_EXAMPLES = """examples:
  make fleet-demo
  python examples/fleet_demo/demo.py --calls 12 --speak-s 20
"""
SHOWN = (
    ("telephony_tts_fronts", "front processes"),
    ("telephony_tts_calls_live", "calls now"),
    ('telephony_tts_turns_total{door="native",outcome="done"}', "turns spoken to their end"),
    ('telephony_tts_turns_total{door="native",outcome="error"}', "turns that failed"),
    ("telephony_tts_replicas_lost_total", "sentences that another replica went on with"),
    ("telephony_tts_underruns_total", "gaps in the speech"),
)
"""Series of /metrics, summed over their labels unless these are given, and what they are."""


class DemoFailed(Exception):
    """What did not work, and where to look."""


def main() -> int:
    flags = argparse.ArgumentParser(
        prog="demo.py", description=__doc__.splitlines()[0], epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    flags.add_argument("--calls", type=int, default=6, help="callers that all listen (default %(default)s)")
    flags.add_argument("--speak-s", type=float, default=15.0, help="seconds that they listen (default %(default)s)")
    chosen = flags.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
            return show(Path(folder), chosen.calls, chosen.speak_s)
    except DemoFailed as failure:
        print(f"fleet-demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def show(folder: Path, n_calls: int, speak_s: float) -> int:
    """Run the demo. Returns the exit status: 0 if no call was lost and no turn failed."""
    with ExitStack() as stack:
        say("a Ray cluster on this machine")
        cluster = stack.enter_context(ray_cluster(folder))
        config = folder / "fleet.yaml"
        config.write_text(
            f"server: {{host: 127.0.0.1, port: {free_port()}, processes: 2}}\n"
            "log: {level: warning}\n"
            "engines:\n  default: ray\n"
            f"  ray: {{address: '{cluster}', app: {APP}, engine: fake, replicas: 3, cpus: 1}}\n"
            "  fake: {rtf: 0.5}\n"
        )
        say("three replicas of an engine that makes tones in half their time: telephony-tts ray up")
        print(indented(command("ray", "up", "--config", str(config))))
        say("two front processes on one port: telephony-tts serve")
        port = stack.enter_context(server(config, folder / "server.log"))
        before = metrics(port)
        say(f"{n_calls} calls speak all the time")
        stop = threading.Event()
        callers = [Caller(f"call-{n}", port, stop) for n in range(n_calls)]
        for caller in callers:
            caller.start()
        stop.wait(speak_s / 3)
        victim = replicas()[0]
        say(f"kill -9 of a replica (process {victim}) while they speak")
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        stop.wait(speak_s * 2 / 3)
        stop.set()
        for caller in callers:
            caller.join(END_S)
        after = metrics(port)
        back_s = wait_for_replicas(victim, killed_s)
        return report(callers, before, after, back_s)


def report(callers: list[Caller], before: dict[str, float], after: dict[str, float], back_s: float | None) -> int:
    """Print what was seen. Returns the exit status."""
    print(f"\n{'call':<10}{'turns':>7}{'errors':>8}{'longest wait for a frame, ms':>31}   went on at another replica")
    for caller in callers:
        went_on = "yes" if caller.n_replaced else ""
        print(f"{caller.name:<10}{caller.n_done:>7}{len(caller.errors):>8}{caller.longest_wait_ms:>31.0f}   {went_on}")
        for error in caller.errors:
            print(f"    {error}")
    print(f"\n{'metric':<62}{'before':>8}{'after':>8}")
    for name, meaning in SHOWN:
        print(f"{meaning:<62}{total(before, name):>8.0f}{total(after, name):>8.0f}")
    found = "not seen within a minute" if back_s is None else f"{back_s:.1f} s after the kill"
    print(f"\nthree replicas again, without a hand: {found}")
    good = [caller for caller in callers if not caller.errors and caller.n_done]
    print(f"{len(good)} of {len(callers)} calls went on without an error")
    return 0 if len(good) == len(callers) and back_s is not None else 1


# ------------------------------------------------------------------ processes


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """A cluster of one node, as a child of this process. Yields its address."""
    ray = BIN / "ray"
    if not ray.exists():
        raise DemoFailed("Ray is not installed: .venv/bin/pip install -e '.[ray]', or run make fleet-demo")
    port = free_port()
    log = folder / "ray.log"
    started = [
        str(ray), "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=4",
        "--include-dashboard=false", "--disable-usage-stats", f"--object-store-memory={100_000_000}",
        f"--temp-dir={folder / 'ray'}",
    ]  # fmt: skip
    with child(started, log) as process:
        wait(lambda: can_connect(port), process, log, "the Ray cluster")
        yield f"127.0.0.1:{port}"


@contextmanager
def server(config: Path, log: Path) -> Iterator[int]:
    """The server. Yields its port when it is ready."""
    port = int(config.read_text().partition("port: ")[2].partition(",")[0])
    with child([*TELEPHONY_TTS, "serve", "--config", str(config)], log) as process:
        wait(lambda: answers(port), process, log, "the server")
        yield port


@contextmanager
def child(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own. It is asked to end, and killed if it does not."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, env=environment()
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def command(*arguments: str) -> str:
    """Run a command of telephony-tts. Returns what it printed."""
    ran = subprocess.run(
        [*TELEPHONY_TTS, *arguments], capture_output=True, text=True, timeout=START_S, env=environment(), check=False
    )
    if ran.returncode:
        raise DemoFailed(f"telephony-tts {' '.join(arguments)}: {(ran.stderr or ran.stdout).strip()}")
    return ran.stdout


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE")}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}


def replicas() -> list[int]:
    """The processes of the replicas. Ray names them in their titles."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                title = (folder / "cmdline").read_bytes()
                if b"ServeReplica" in title and APP.encode() in title:
                    found.append(int(folder.name))
    if not found:
        raise DemoFailed("no replica was found among the processes of this machine")
    return found


def wait_for_replicas(victim: int, killed_s: float) -> float | None:
    """How long after the kill there were three replicas again, as Ray says it. None if that was not seen."""
    while time.monotonic() - killed_s < REPLACED_S:
        if len(set(replicas()) - {victim}) >= 3:
            return time.monotonic() - killed_s
        time.sleep(0.2)
    return None


def wait(is_there: object, process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Wait until `is_there()` is true. Raises DemoFailed with the end of the log."""
    assert callable(is_there)
    end_s = time.monotonic() + START_S
    while not is_there():
        if process.poll() is not None or time.monotonic() > end_s:
            last = log.read_text(errors="replace").strip()[-1000:]
            raise DemoFailed(f"{what} did not start: {last}")
        time.sleep(0.2)


# -------------------------------------------------------------------- the port


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def can_connect(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def metrics(port: int) -> dict[str, float]:
    """All samples of /metrics by their names with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def total(samples: dict[str, float], name: str) -> float:
    """The sum of a series, over all labels unless `name` has them."""
    return sum(value for key, value in samples.items() if key == name or key.startswith(name + "{"))


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WebSocketException as error:
        sys.exit(f"fleet-demo: {error}")
