"""Files of keys, lexicons and experiments that are read again while calls speak: what it does to the calls.

Calls speak all the time on one server. In every second window the three files are replaced again and again, each time
with SIGHUP. All frames of each turn must be those of the same sentence before, and no more frames may be late than in
the windows without a reload.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.lateness import lateness_between, metric_values, server_lateness
from harness.process import ServerProcess, cores
from websockets.asyncio.client import ClientConnection, connect

CALLS = 50
_SENTENCES = tuple(f"This is sentence number {n} of the calls, about Brand{n:05}." for n in range(10))
_TOKEN = "bench-token"
_PAUSE_S = 0.2
"""Between two reloads: keys, lexicon and experiments are replaced, then the signal is sent."""
_FRAME_MS, _LEAD_MS = 20, 200


class Call:
    """A call that speaks all the time. `turns` has the digest of the frames of each sentence, counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turns: Counter[tuple[str, str]] = Counter()
        self.errors: list[str] = []
        self.n_late = self.n_frames = 0

    async def run(self, port: int, ends: asyncio.Event, first: int, n_turns: float = math.inf) -> None:
        address = f"ws://127.0.0.1:{port}/v1/stream?audio=binary&call={self.name}"
        async with connect(
            address, additional_headers={"Authorization": f"Bearer {_TOKEN}"}, proxy=None, compression=None
        ) as bot:
            n = first
            while not ends.is_set() and n < first + n_turns:
                await self._hear(bot, _SENTENCES[n % len(_SENTENCES)], f"t{n}")
                n += 1

    async def _hear(self, bot: ClientConnection, sentence: str, turn: str) -> None:
        """One turn to its end."""
        await bot.send(json.dumps({"type": "say", "text": sentence, "turn": turn}))
        digest, first_ns, n = hashlib.sha256(), 0, 0
        while True:
            message = await bot.recv()
            if isinstance(message, bytes):
                now_ns = time.monotonic_ns()
                first_ns = first_ns or now_ns
                late_ms = (now_ns - first_ns) / 1e6 - max(0, n * _FRAME_MS - _LEAD_MS)
                self.n_late += late_ms > _FRAME_MS
                digest.update(message)
                n += 1
                continue
            event = json.loads(message)
            if event["type"] == "error":
                self.errors.append(event["code"])
                return
            if event["type"] == "done" and event["turn"] == turn:
                self.n_frames += n
                self.turns[sentence, digest.hexdigest()] += 1
                return


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """The row of this part. Windows with and without reloads alternate on one server."""
    calls, window_s, n_windows = (8, 0.8, 2) if chosen.quick else (CALLS, 15.0, 6)
    with tempfile.TemporaryDirectory(prefix="reload-") as folder:
        files = Files(Path(folder))
        files.write(0)
        with ServerProcess("serve", files.settings(), core=cores()[0], priority=chosen.priority) as server:
            found = asyncio.run(_windows(server.port, server.pid, files, calls, window_s, n_windows))
    late = {name: found[name]["over_20_ms_share"] for name in ("quiet", "reloading")}
    disturbed = found["wrong_turns"] + len(found["errors"])
    # Shares of a few frames vary by chance: twice the quiet share, or one frame of ten thousand, is no disturbance.
    is_reached = disturbed == 0 and late["reloading"] <= max(2 * late["quiet"], 1e-4)
    found["reached"] = is_reached
    found["rows"] = [
        {
            "what": f"reload of keys, lexicons, experiments beside {calls} calls: turns with another sound or an error",
            "reached": f"{disturbed} of {found['turns']} in {found['reloads']} reloads", "to_reach": "none",
        },
        {
            "what": "frames that the server sent more than 20 ms late, with reloads and without",
            "reached": f"{late['reloading']:.4%}, {late['quiet']:.4%}", "to_reach": "no more than without",
        },
    ]  # fmt: skip
    return found


async def _windows(
    port: int, pid: int, files: Files, calls: int, window_s: float, n_windows: int
) -> dict[str, Any]:
    ends, n_reloads = asyncio.Event(), 0
    reference = Call("reference")
    all_calls = [Call(f"call-{n}") for n in range(calls)]
    before_all = await _reloads(port)
    late: dict[str, list[dict[str, float]]] = {"quiet": [], "reloading": []}
    async with asyncio.TaskGroup() as group:
        # Each sentence once, before anything is read again.
        await reference.run(port, ends, 0, len(_SENTENCES))
        for n, call in enumerate(all_calls):
            group.create_task(call.run(port, ends, n))
        await asyncio.sleep(min(3.0, window_s))
        for n in range(n_windows):
            name = ("quiet", "reloading")[n % 2]
            before, end_s = await server_lateness(port), time.monotonic() + window_s
            while time.monotonic() < end_s:
                if name == "reloading":
                    n_reloads += 1
                    files.write(n_reloads)
                    os.kill(pid, signal.SIGHUP)
                await asyncio.sleep(_PAUSE_S)
            late[name].append(_between(before, await server_lateness(port)))
        ends.set()
    wanted = dict(sound for sound in reference.turns)
    turns = sum((call.turns for call in all_calls), Counter())
    wrong = sum(n for (sentence, digest), n in turns.items() if wanted[sentence] != digest)
    return {
        "calls": calls,
        "turns": turns.total(),
        "wrong_turns": wrong,
        "errors": sorted({code for call in all_calls for code in call.errors}),
        "reloads": n_reloads,
        "files_loaded": {name: n - before_all[name] for name, n in (await _reloads(port)).items()},
        "frames": sum(call.n_frames for call in all_calls),
        "frames_late_at_the_client": sum(call.n_late for call in all_calls),
        **{name: lateness_between(dict.fromkeys(whole, 0.0), whole) for name, parts in late.items()
           if (whole := _added(parts))},
    }  # fmt: skip


def _between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {bound: after[bound] - before[bound] for bound in after}


def _added(parts: list[dict[str, float]]) -> dict[str, float]:
    return {bound: sum(part[bound] for part in parts) for bound in parts[0]}


async def _reloads(port: int) -> dict[str, float]:
    """How often each kind of file was read again."""
    files = {
        name: await metric_values(port, f'telephony_tts_file_reloads_total{{file="{name}",outcome="')
        for name in ("keys", "experiments")
    }
    lexicons = await metric_values(port, 'telephony_tts_lexicon_reloads_total{outcome="')
    assert not any(each["failed"] for each in (*files.values(), lexicons)), "a file could not be used"
    return {**{name: each["loaded"] for name, each in files.items()}, "lexicons": lexicons["loaded"]}


class Files:
    """The files of the server. Every version is another one, and speaks the sentences alike."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def settings(self) -> list[str]:
        pairs = {
            "engines.default": "fake", "speech.lead_ms": _LEAD_MS, "keys.file": self._folder / "keys.yaml",
            "experiments.file": self._folder / "experiments.yaml", "keys.check_s": 0, "experiments.check_s": 0,
            "lexicons.check_s": 0, "lexicons.files": f"{{brands: {self._folder / 'brands.yaml'}}}",
            "lexicons.languages": '{"*": brands}',
        }  # fmt: skip
        return [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]

    def write(self, version: int) -> None:
        keys = "".join(f"  key{n}: {{token: token-{version}-{n}, calls: {n}}}\n" for n in range(200))
        self._replace("keys", f"keys:\n  bench: {{token: {_TOKEN}}}\n{keys}")
        words = "".join(f"Brand{n:05}: brand number {n}\n" for n in range(2000))
        self._replace("brands", f"{words}Version{version}: version {version}\n")
        # The calls of the benchmark are in no arm that another version changes: an arm is for calls of one key.
        arms = f"{{arms: {{a: {{share: {1 + version % 99}, speech: {{speed: 1.1}}}}}}, keys: [key1]}}"
        self._replace("experiments", f"experiments: {{e{version % 3}: {arms}}}\n")

    def _replace(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text)
        os.replace(part, self._folder / f"{name}.yaml")
