"""Autobahn's test suite against our WebSocket door.

    python -m torture.autobahn --json benchmarks/results/autobahn.json
    python -m torture.autobahn --cases '1.*' '7.*'  some of them

The suite plays a client of an echo server. So the door here is the class of our sockets, with a handler that sends each
message back. A text that is not UTF-8 ends the connection with 1007 here, as the suite expects; in a call it is an
error event (guarantee 4 of ARCHITECTURE.md). Compression (12 and 13) is left out: we do not speak it.

The suite needs Python 2.7. It is installed once, into `.peers/autobahn` (30 MB).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from telephony_tts.bench.machine import commit, machine
from telephony_tts.transport.connection import MAX_FRAGMENTS, CallConnection

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "autobahn.json"
VERSION = "0.8.2"
_PEER = ROOT / ".peers" / "autobahn"
_MAX_BYTES = 16 << 20
"""The largest messages of the suite, and the most that `server.max_message_bytes` can be."""
_MAX_UNSENT_BYTES = 64 << 20
PASSED = ("OK", "NON-STRICT", "INFORMATIONAL")
"""NON-STRICT: a mistake is noticed at the end of a message, not at its first wrong byte."""
REFUSED_BY_LIMIT = ("9.3.1", "9.3.2", "9.3.3", "9.4.1", "9.4.2", "9.4.3")
"""Messages of 4 MB in fragments of 64 to 1,024 bytes, which are more than MAX_FRAGMENTS."""
BY_THE_LIBRARY = {"7.1.5": "a close inside a message in fragments is answered with 1002, not with its own code"}
"""What the package websockets does otherwise, in a place where it does no harm: both sides are closing."""
_RUN = "import site, sys; site.addsitedir(sys.argv.pop(1)); from autobahntestsuite.wstest import run; run()"


class NoAutobahn(Exception):
    """The suite cannot be had here."""


def python2() -> str:
    """A Python 2.7. Raises NoAutobahn."""
    candidates = [shutil.which("python2.7"), *map(str, Path.home().glob(".pyenv/versions/2.7*/bin/python2.7"))]
    for candidate in candidates:
        if candidate is None:
            continue
        works = subprocess.run([candidate, "-m", "pip", "--version"], capture_output=True, check=False)
        if works.returncode == 0:
            return candidate
    raise NoAutobahn("Autobahn's test suite needs Python 2.7 with pip, for example of pyenv: pyenv install 2.7.18")


def install() -> str:
    """Install the suite once. Returns its Python. Raises NoAutobahn."""
    python = python2()
    if not (_PEER / ".installed").exists():
        shutil.rmtree(_PEER, ignore_errors=True)
        command = [python, "-m", "pip", "install", "--quiet", "--target", str(_PEER), f"autobahntestsuite=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoAutobahn(f"pip cannot install autobahntestsuite: {done.stderr[-500:]}")
        (_PEER / ".installed").touch()
    return python


async def echo(connection: ServerConnection) -> None:
    """Send each message back, until the connection is over."""
    assert isinstance(connection, CallConnection)
    connection.max_unsent_bytes = _MAX_UNSENT_BYTES

    def on_message(payload: bytes, is_text: bool) -> None:
        try:
            if is_text:
                payload.decode()
        except UnicodeDecodeError:
            connection.end(1007, "not UTF-8")
            return
        connection.send_now(payload, is_text)

    connection.listen(on_message, lambda is_writable: None)
    await connection.left


async def behaviours(cases: Sequence[str], leave_out: Sequence[str] = ()) -> dict[str, str]:
    """What the suite says of each case. Raises NoAutobahn."""
    python = await asyncio.to_thread(install)
    async with serve(
        echo,
        "127.0.0.1",
        0,
        create_connection=CallConnection,
        compression=None,
        max_size=_MAX_BYTES,
        ping_interval=None,
        close_timeout=2.0,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="autobahn-") as folder:
            spec = {
                "outdir": folder,
                "servers": [{"agent": "door", "url": f"ws://127.0.0.1:{port}", "options": {"version": 18}}],
                "cases": list(cases),
                "exclude-cases": ["12.*", "13.*", *leave_out],
                "exclude-agent-cases": {},
            }
            (Path(folder) / "spec.json").write_text(json.dumps(spec))
            command = [python, "-c", _RUN, str(_PEER), "--mode", "fuzzingclient", "--spec", f"{folder}/spec.json"]
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            told, _ = await process.communicate()
            index = Path(folder) / "index.json"
            if not index.exists():
                raise NoAutobahn(f"the suite ended with {process.returncode}: {told.decode(errors='replace')[-800:]}")
            found = json.loads(index.read_text())["door"]
    worse = {"OK": 0, "INFORMATIONAL": 0, "NON-STRICT": 1}
    # A case has one verdict for the messages and one for the closing handshake. The worse one counts.
    return {
        case: max(each["behavior"], each["behaviorClose"], key=lambda said: worse.get(said, 2))
        for case, each in found.items()
    }


def report(found: dict[str, str]) -> dict[str, Any]:
    failed = {case: said for case, said in found.items() if said not in PASSED}
    return {
        "suite": f"autobahntestsuite {VERSION}",
        "cases": len(found),
        "behaviours": dict(sorted(Counter(found.values()).items())),
        "refused_by_limit": {"max_fragments": MAX_FRAGMENTS, "cases": sorted(set(failed) & set(REFUSED_BY_LIMIT))},
        "by_the_library": {case: why for case, why in BY_THE_LIBRARY.items() if case in failed},
        "failed": {
            case: said for case, said in sorted(failed.items()) if case not in (*REFUSED_BY_LIMIT, *BY_THE_LIBRARY)
        },
        "commit": commit(),
        "machine": machine("cpu", ("websockets", "uvloop")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.autobahn", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", nargs="+", default=["*"], metavar="CASE", help="such as '7.*' (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    given = parser.parse_args()
    try:
        found = asyncio.run(behaviours(given.cases))
    except NoAutobahn as error:
        print(error, file=sys.stderr)
        return 2
    result = report(found)
    print(json.dumps(result, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
