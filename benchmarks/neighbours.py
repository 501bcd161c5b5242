"""How late a call's frames and /healthz are beside HTTP requests with long texts of the worst shapes.

One call speaks without end and is paced. Beside it so many requests at once ask for the speech of one long text. Each
text consists of one hard shape: brackets, quotation marks, digits, letters without a blank, tags of SSML. Some of them
make no speech: then a neighbour loses only the server's work with the text. The call alone is measured first. The
requests come from a process of their own, so that they do not delay what measures the call.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import time
from multiprocessing.queues import Queue
from typing import Any

import uvloop
from harness import report
from harness.calls import BotPeer
from harness.lateness import frame_lateness_ms, watch_timers
from harness.long_texts import ask_all
from harness.process import ServerProcess

_EXAMPLES = """examples:
  python benchmarks/neighbours.py                       every shape, 60 requests at a time (SSML: 20)
  python benchmarks/neighbours.py --shapes brackets --requests 5
"""
LEAD_MS = 200
SHAPES = {
    "brackets": "(",
    "quotes": '"',
    "digits": "7",
    "letters": "a",
    "han": "中",
    "words": "word ",
    "numbers": "1-2/3 ",
    "ssml breaks": "<break/>",
    "ssml styles": '<prosody rate="90%">a</prosody>',
    "ssml readings": '<say-as interpret-as="characters">ab</say-as> ',
}
_SPEAK = ("<speak>", "</speak>")


def main() -> None:
    flags = report.parser("neighbours", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--shapes", default=",".join(SHAPES), help="shapes, separated by commas (default: all)")
    flags.add_argument("--requests", type=int, default=60, help="requests at a time (default %(default)s)")
    flags.add_argument("--ssml-requests", type=int, default=20, help="the same of SSML (default %(default)s)")
    flags.add_argument("--chars", type=int, default=100_000, help="characters of a text (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=6.0, help="measured time of a shape (default %(default)s)")
    chosen = flags.parse_args()
    shapes = chosen.shapes.split(",")
    for shape in shapes:
        if shape not in SHAPES:
            flags.error(f"no shape {shape!r}; the shapes are {', '.join(SHAPES)}")
    if chosen.quick:
        chosen.seconds, chosen.requests, chosen.ssml_requests, chosen.chars = 1.0, 3, 2, 20_000
    found: dict[str, dict[str, Any]] = {}
    for shape in ("alone", *shapes):
        found[shape] = _measured(shape, chosen)
        print(f"  {shape}: frames {found[shape]['late_ms']['max']:.0f} ms late at most", flush=True)
    report.table(
        f"a call and /healthz beside requests of {chosen.chars} characters",
        ("shape", "requests", "frames late, max ms", "p99 ms", "healthz max ms", "answered", "own lag max"),
        [
            (shape, r["requests"], r["late_ms"]["max"], r["late_ms"]["p99"], r["healthz_ms"]["max"],
             r["answered"], r["generator_lag_ms"]["max"])
            for shape, r in found.items()
        ],
    )  # fmt: skip
    report.save(chosen, found)


def _measured(shape: str, chosen: argparse.Namespace) -> dict[str, Any]:
    words = (
        "engines.default=fake", f"speech.lead_ms={LEAD_MS}", "limits.calls=200", f"limits.turn_chars={chosen.chars}",
        "limits.text_chars_per_s=0",
    )  # fmt: skip
    settings = [part for word in words for part in ("--set", word)]
    with ServerProcess("serve", ("--instant", *settings), priority=chosen.priority) as server:
        return uvloop.run(_window(server.port, shape, chosen))


def _text(shape: str, n_chars: int) -> str:
    if not shape.startswith("ssml"):
        return (SHAPES[shape] * n_chars)[:n_chars]
    n_times = (n_chars - len("".join(_SPEAK))) // len(SHAPES[shape])
    return f"{_SPEAK[0]}{SHAPES[shape] * n_times}{_SPEAK[1]}"


async def _window(port: int, shape: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The call speaks, then the requests come all at once."""
    bot = BotPeer("neighbour", audio="base64")
    await bot.connect(port)
    gc.collect()
    gc.freeze()  # a garbage collection in this process would look like a late frame
    bot.talk_without_end(0)
    await asyncio.sleep(1.0)
    n_requests = 0 if shape == "alone" else chosen.ssml_requests if shape.startswith("ssml") else chosen.requests
    body = b"" if shape == "alone" else json.dumps({"text": _text(shape, chosen.chars)}).encode()
    lag_ms: list[float] = []
    healthz_ms: list[float] = []
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Any] = spawn.Queue()
    asking = spawn.Process(target=ask_all, args=(port, body, n_requests, chosen.seconds, told))
    asking.start()
    await asyncio.to_thread(told.get)  # it has begun
    begun_ns = time.monotonic_ns()
    tasks = [asyncio.create_task(watch_timers(lag_ms)), asyncio.create_task(_watch_health(port, healthz_ms))]
    await asyncio.sleep(chosen.seconds)
    ended_ns = time.monotonic_ns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    bot.hang_up()
    statuses: list[str] = await asyncio.to_thread(told.get)
    asking.join()
    return {
        "requests": n_requests,
        "late_ms": report.percentiles(frame_lateness_ms(bot.arrivals_ns, begun_ns, ended_ns, LEAD_MS)),
        "healthz_ms": report.percentiles(healthz_ms),
        "generator_lag_ms": report.percentiles(lag_ms),
        "answered": ", ".join(f"{statuses.count(each)} × {each}" for each in sorted(set(statuses))),
    }


async def _watch_health(port: int, took_ms: list[float]) -> None:
    while True:
        begun_ns = time.monotonic_ns()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        await reader.read()
        took_ms.append((time.monotonic_ns() - begun_ns) / 1e6)
        writer.close()
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
