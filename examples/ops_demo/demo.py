"""An experiment of two voices on this machine: the server, a real Prometheus, and callers. The report compares them.

`make ops-demo` starts all of it. Half of the calls speak with the voice en-gb in place of en-us. It changes the
experiment while calls speak, prints the report of `telephony-tts experiments report` and the audit line of a call, and
ends by itself after about a minute. It fetches Prometheus once (60 MB), and leaves nothing running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "asterisk_demo")]

from callers import Calls, make_calls  # noqa: E402
from debian_packages import PeerUnavailable, Unpacked, install  # noqa: E402

KEY, EXPERIMENT = "demo-team", "british-voice"
START_S, END_S, SCRAPED_S = 60.0, 30.0, 30.0
_EXAMPLES = """examples:
  make ops-demo
  python examples/ops_demo/demo.py --calls 400 --at-once 20
"""
EXPERIMENTS = """\
experiments:
  {name}:
    keys: [{key}]
    arms:
      en-gb: {{share: {share}, voice: espeak/en-gb}}
    stop: {{after_calls: 50, errors: 0.1, underruns: 0.5}}
"""


class DemoFailed(Exception):
    """What did not work, and where to look."""


def main() -> int:
    flags = argparse.ArgumentParser(
        prog="demo.py", description=__doc__.splitlines()[0], epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    flags.add_argument("--calls", type=int, default=160, help="calls of the experiment (default %(default)s)")
    flags.add_argument("--at-once", type=int, default=12, help="calls at a time (default %(default)s)")
    chosen = flags.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="ops-") as folder:
            return show(Path(folder), chosen.calls, chosen.at_once)
    except (DemoFailed, PeerUnavailable) as failure:
        print(f"ops-demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def show(folder: Path, n_calls: int, at_once: int) -> int:
    """Run the demo. Returns the exit status: 0 if no call failed and Prometheus has all calls."""
    with ExitStack() as stack:
        say("a named key, as `telephony-tts keys new` makes it, and a file of experiments")
        token = secrets.token_hex(16)
        (folder / "keys.yaml").write_text(f"keys:\n  {KEY}: {{token: {token}, calls: {at_once + 2}}}\n")
        write_experiments(folder, share=50)
        port = free_port()
        config, log = folder / "server.yaml", folder / "server.log"
        config.write_text(
            f"server: {{host: 127.0.0.1, port: {port}}}\n"
            "engines: {default: espeak}\nspeech: {voice: espeak/en-us}\n"
            "keys: {file: keys.yaml}\nexperiments: {file: experiments.yaml}\nlog: {level: warning}\n"
            "limits: {max_frame_lateness_ms: 10000}\n"  # a busy machine must not refuse the callers
        )
        say("the server: telephony-tts serve")
        server = stack.enter_context(child([*telephony_tts(), "serve", "--config", str(config)], log))
        wait(lambda: answers(f"http://127.0.0.1:{port}/readyz"), server, log, "the server")
        say("Prometheus, which scrapes it every second")
        prometheus = stack.enter_context(running_prometheus(folder, port))
        wait_until_scraped(prometheus, 0)
        say(f"{n_calls} calls, {at_once} at a time; half of them speak with another voice")
        before_s = time.monotonic()
        calls = asyncio.run(make_calls(f"ws://127.0.0.1:{port}", token, n_calls, at_once))
        for arm, n in sorted(calls.by_arm.items()):
            print(f"    {n} calls: {arm}")
        wait_until_scraped(prometheus, calls.n_done)
        since_s = int(time.monotonic() - before_s) + 60
        say(f"telephony-tts experiments report --prometheus {prometheus} --since {since_s}s")
        report = folder / "report.json"
        flags = ("--prometheus", prometheus, "--since", f"{since_s}s", "--json", str(report))
        print(command("experiments", "report", *flags))
        say("the arm gets all calls from now on: its share is changed in the file, then kill -HUP")
        write_experiments(folder, share=100)
        server.send_signal(signal.SIGHUP)
        later = asyncio.run(until_all_in("en-gb", f"ws://127.0.0.1:{port}", token))
        say("the audit line of the last call")
        print(f"    {audit_lines(log)[-1]}")
        return verdict(calls, later, json.loads(report.read_text()))


def verdict(calls: Calls, later: Calls, report: dict[str, object]) -> int:
    """Print whether all went well. Returns the exit status."""
    for error in [*calls.errors, *later.errors]:
        print(f"    {error}")
    experiments = report["experiments"]
    assert isinstance(experiments, dict)
    counted = {arm: round(each["calls"]) for arm, each in experiments[EXPERIMENT]["arms"].items()}
    print(f"\n{calls.n_done} calls ended well; Prometheus has {counted}")
    is_well = not calls.errors and not later.errors and set(counted) == {"control", "en-gb"}
    return 0 if is_well else 1


def write_experiments(folder: Path, share: int) -> None:
    """Put the file in place at once, so that the server never reads half of it."""
    part = folder / "experiments.part"
    part.write_text(EXPERIMENTS.format(name=EXPERIMENT, key=KEY, share=share))
    os.replace(part, folder / "experiments.yaml")


async def until_all_in(arm: str, url: str, token: str) -> Calls:
    """Make calls until five in a row have this arm. Their ids are those of earlier calls of both arms."""
    end_s = time.monotonic() + END_S
    while True:
        calls = await make_calls(url, token, 5, 1)
        if calls.errors or set(calls.by_arm) == {arm}:
            print(f"    5 of 5 calls: {arm}")
            return calls
        if time.monotonic() > end_s:
            raise DemoFailed(f"the new file is not used: {calls.by_arm}")


def audit_lines(log: Path) -> list[str]:
    """The lines of the audit log. They are written at every log level."""
    return [line for line in log.read_text().splitlines() if '"call_audit"' in line]


# ------------------------------------------------------------------ Prometheus


def ensure_prometheus() -> Unpacked:
    """Debian's Prometheus, unpacked into `.peers/prometheus` once. Raises PeerUnavailable."""
    return install(ROOT / ".peers" / "prometheus", ("prometheus",), "trixie", 60)


@contextmanager
def running_prometheus(folder: Path, port: int) -> Iterator[str]:
    """A Prometheus that scrapes the server. Yields its address."""
    unpacked, own = ensure_prometheus(), free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: telephony-tts, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    log = folder / "prometheus.log"
    started = unpacked.command(
        "usr/bin/prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}", "--log.level=warn",
    )  # fmt: skip
    with child(started, log) as process:
        wait(lambda: answers(f"http://127.0.0.1:{own}/-/ready"), process, log, "Prometheus")
        yield f"http://127.0.0.1:{own}"


def wait_until_scraped(prometheus: str, n_calls: int) -> None:
    """Wait until Prometheus has the metrics of the experiment, and so many calls that have ended."""
    query = "sum(telephony_tts_experiment_sums_total%7Bsum%3D%22calls%22%7D)"
    end_s = time.monotonic() + SCRAPED_S
    n_seen = -1.0
    while n_seen < n_calls:
        if time.monotonic() > end_s:
            raise DemoFailed(f"Prometheus has {max(0, n_seen):.0f} of {n_calls} calls")
        time.sleep(0.5)
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?query={query}", timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
        n_seen = float(found[0]["value"][1]) if found else n_seen


# ------------------------------------------------------------------- processes


def telephony_tts() -> tuple[str, ...]:
    return sys.executable, "-m", "telephony_tts"


@contextmanager
def child(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end, and killed if it does not."""
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def command(*arguments: str) -> str:
    """Run a command of telephony-tts. Returns what it printed."""
    ran = subprocess.run([*telephony_tts(), *arguments], capture_output=True, text=True, timeout=START_S, check=False)
    if ran.returncode:
        raise DemoFailed(f"telephony-tts {' '.join(arguments)}: {(ran.stderr or ran.stdout).strip()}")
    return ran.stdout


def wait(is_there: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Wait until `is_there()` is true. Raises DemoFailed with the end of the log."""
    end_s = time.monotonic() + START_S
    while not is_there():
        if process.poll() is not None or time.monotonic() > end_s:
            last = log.read_text(errors="replace").strip()[-1000:]
            raise DemoFailed(f"{what} did not start: {last}")
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
