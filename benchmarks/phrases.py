"""Phrases that are kept: from the complete sentence to its first frame, as the server reports it.

Each call says one of twenty phrases again and again, and interrupts it after its first frame. Three servers with the
embedded voice: one without kept phrases, one that has them in memory, and one that was just started and has them on
disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, placed_here
from websockets.asyncio.client import ClientConnection, connect

_EXAMPLES = """examples:
  python benchmarks/phrases.py                              about a minute
  python benchmarks/phrases.py --calls 1,50 --turns 2000
"""
_ENDINGS = ("today", "this morning", "this afternoon", "tonight", "again")
_PHRASES = tuple(
    f"{opening} {ending}."
    for opening in (
        "Thank you for calling us", "Please hold the line, we will be with you soon",
        "All our colleagues are talking to other customers", "I could not find your contract in our system",
    )
    for ending in _ENDINGS
)  # fmt: skip
_PAUSE_S = 0.15


def main() -> None:
    flags = report.parser("phrases", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", default="1,20", help="numbers of calls, separated by commas (default %(default)s)")
    flags.add_argument("--turns", type=int, default=1000, help="turns of each kind (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.turns = "1", 8
    windows = []
    phrases = _PHRASES[:4] if chosen.quick else _PHRASES
    for calls in (int(word) for word in chosen.calls.split(",")):
        windows += _windows(calls, phrases, chosen)
    report.table(
        "complete sentence to first frame in ms, as the server reports it",
        ("calls", "phrases", "turns", "p50", "p95", "p99", "max", "found"),
        [
            (
                w["calls"], w["kept"], ms["n"],
                *(ms.get(k, "-") for k in ("p50", "p95", "p99", "max")), w["found"],
            )
            for w in windows
            for ms in [w["ms"]]
        ],
    )
    report.save(chosen, windows)


def _windows(calls: int, phrases: Sequence[str], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    windows = []
    with tempfile.TemporaryDirectory() as folder:
        on = ["--set", "phrases.enabled=true", "--set", f"phrases.folder={folder}"]
        for kept, settings, turns in (("off", [], chosen.turns), ("memory", on, chosen.turns), ("disk", on, None)):
            server_core, load_core = cores()
            with (
                ServerProcess("serve", settings, core=server_core, priority=chosen.priority) as server,
                placed_here(load_core, chosen.priority),
            ):
                told, found = asyncio.run(_measure(server.port, calls, phrases, turns, is_warm=kept == "memory"))
            ms = report.percentiles(told)
            windows.append({"calls": calls, "kept": kept, "ms": ms, "found": found})
            print(f"  {calls} calls, {kept}: {windows[-1]['ms']}", flush=True)
    return windows


async def _measure(
    port: int, calls: int, phrases: Sequence[str], turns: int | None, *, is_warm: bool
) -> tuple[list[float], dict[str, int]]:
    """(first audio of each turn, what came of the sentences). Without `turns` each phrase is said once by one call."""
    url = f"ws://127.0.0.1:{port}/v1/stream?audio=binary&pace="
    if is_warm:
        await asyncio.gather(*(_warm(url, phrase) for phrase in phrases))
    before = await _found(port)
    if turns is None:
        told = await _call(url, 0, list(phrases))
    else:
        per_call = max(1, turns // calls)
        lists = [random.Random(n).choices(phrases, k=per_call) for n in range(calls)]
        by_call = await asyncio.gather(*(_call(url, n / calls, said) for n, said in enumerate(lists)))
        told = [ms for call in by_call for ms in call]
    after = await _found(port)
    return told, {name: round(after[name] - before[name]) for name in after if after[name] != before[name]}


async def _warm(url: str, phrase: str) -> None:
    """Say a phrase twice, to its end, so that it is in memory and on disk."""
    async with connect(url + "burst") as socket:
        for _ in range(2):
            await socket.send(json.dumps({"type": "say", "text": phrase}))
            await _until(socket, "done")


async def _call(url: str, phase: float, phrases: list[str]) -> list[float]:
    told = []
    async with connect(url + "realtime") as socket:
        await asyncio.sleep(phase * _PAUSE_S)
        for phrase in phrases:
            await socket.send(json.dumps({"type": "say", "text": phrase}))
            told.append(float((await _until(socket, "started"))["first_audio_ms"]))
            await socket.send('{"type":"clear"}')
            await _until(socket, "cleared")
            await asyncio.sleep(_PAUSE_S)
    return told


async def _until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async for message in socket:
        if isinstance(message, str):
            event: dict[str, Any] = json.loads(message)
            if event["type"] == kind:
                return event
            if event["type"] == "error":
                raise RuntimeError(event)
    raise RuntimeError("the server has left")


async def _found(port: int) -> dict[str, float]:
    """The server's counts of what came of its sentences."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    mark = 'telephony_tts_phrases_total{found="'
    return {line[len(mark) : line.index('"}')]: float(line.split()[-1]) for line in lines if line.startswith(mark)}


if __name__ == "__main__":
    main()
