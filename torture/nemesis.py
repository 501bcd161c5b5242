"""Does to processes, and to what they need, what a round's faults say."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from harness.peer import Peer

from telephony_tts.engines.remote.connection import STALE_NS
from telephony_tts.engines.remote.messages import KEEP_ALIVE_MS
from torture import violations as v
from torture.histories import Fault
from torture.sandbox import memory_group
from torture.subject import Subject
from torture.surroundings import Surroundings
from torture.violations import Violation

MS = 1_000_000
_AFTER_STOP_NS, _BUSY_SHARE = 30 * MS, 1 / 8
"""After a stop a process has this time to catch up, or this share of the stop if that is longer."""
_FLOOD = 400
_FREED_NS = 1000 * MS
"""A server notices by then that connections were closed, and has their descriptors again."""
_PROBE_S = 3.0
_NO_NAMES_S = 14.0
"""At most. A turn waits for an engine for 10 s."""
_FOUND_AGAIN_NS = 4000 * MS
"""A name that a client has asked for in vain is asked for again this soon: the last question waits for 2 s."""
_SQUEEZED_BYTES = 256 * 1024
_FRONT_STARTS_NS = 6000 * MS
"""A front is ready again this soon after it was killed, on a busy machine too."""
RECOVERY_NS = 500 * MS
"""Speech comes so soon after the killed process is ready again."""


def kills(kind: str) -> bool:
    return kind.startswith("kill")


def makes_engine_stale(faults: tuple[Fault, ...]) -> bool:
    """Whether stops keep the engine silent for so long that the telephony server rightly takes no new calls.

    Faults run one after the other, so a stop that is due during another begins when that one ends. Between stops less
    than `KEEP_ALIVE_MS` apart, the engine may send nothing.
    """
    begin_ms = end_ms = -KEEP_ALIVE_MS
    for fault in faults:
        if fault.kind != "stop_engine":
            continue
        if fault.at_ms > end_ms + KEEP_ALIVE_MS:
            begin_ms = end_ms = fault.at_ms
        end_ms = max(end_ms, fault.at_ms) + fault.n
        if (end_ms - begin_ms + KEEP_ALIVE_MS) * MS >= STALE_NS:
            return True
    return False


async def run_faults(faults: tuple[Fault, ...], subject: Subject, around: Surroundings) -> None:
    begin_s = time.monotonic()
    for fault in faults:
        await asyncio.sleep(max(0, begin_s + fault.at_ms / 1000 - time.monotonic()))
        around.tally.counts[f"fault {fault.kind}"] += 1
        match fault.kind:
            case "stop_server" | "stop_front":
                fronts = subject.fronts()
                await _stop(fronts[fault.n % len(fronts)], fault.n, around)
            case "stop_engine" if subject.engine is not None:
                await _stop(subject.engine.pid, fault.n, around)
            case "stop_bridge" if subject.bridge is not None:
                await _stop(subject.bridge.pid, fault.n, around)
            case "stop_asterisk" if subject.asterisk is not None:
                await _stop(subject.asterisk.pid, fault.n, around)
            case "kill_asterisk" if subject.asterisk is not None:
                around.may_break = True
                os.kill(subject.asterisk.pid, signal.SIGKILL)
                await asyncio.to_thread(subject.start_asterisk)
                around.asterisk = subject.asterisk
            case "step_clock":
                subject.server.send_signal(signal.SIGUSR2)
            case "squeeze_memory":
                await _squeeze_memory(subject.fronts()[0], fault.n, around)
            case "lose_names":
                await _lose_names(subject, fault.n, around)
            case "kill_front":
                await _kill_front(subject, fault.n, around)
            case "kill_engine" if subject.engine is not None:
                subject.engine.kill()
                subject.engine.wait()
                await asyncio.to_thread(subject.start_engine)
                await _recovers(around, "engine")
            case "stop_cosyvoice2":
                await _stop(subject.cosyvoice2_pid(), fault.n, around)
            case "kill_cosyvoice2":
                os.kill(subject.cosyvoice2_pid(), signal.SIGKILL)
            case "kill_bridge" if subject.bridge is not None:
                around.may_break = True
                subject.bridge.kill()
                subject.bridge.wait()
                await asyncio.to_thread(subject.start_bridge)
                around.media_port = subject.media_port
                await _recovers(around, "bridge")
            case "use_up_descriptors":
                await _use_up_descriptors(fault.n, around)
            case "fill_disk" if subject.disk is not None:
                await asyncio.to_thread(_fill, subject.disk)


def _fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb") as filler:
        filler.write(bytes(1_000_000))


async def stop_for(pid: int, ms: int) -> None:
    """SIGSTOP, and SIGCONT after this time."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(ms / 1000)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def _stop(pid: int, ms: int, around: Surroundings) -> None:
    begin_ns = time.monotonic_ns()
    await stop_for(pid, ms)
    _note_stop(begin_ns, around)


def _note_stop(begin_ns: int, around: Surroundings) -> None:
    now_ns = time.monotonic_ns()
    around.stops.add(begin_ns, now_ns + max(_AFTER_STOP_NS, round((now_ns - begin_ns) * _BUSY_SHARE)))


async def _squeeze_memory(pid: int, ms: int, around: Surroundings) -> None:
    """The process gets no new memory for this time: when it needs more, it waits."""
    begin_ns = time.monotonic_ns()
    with memory_group() as group:
        if group is None:
            around.tally.counts["fault squeeze_memory, not possible here"] += 1
            return
        group.take(pid)
        group.limit(_SQUEEZED_BYTES)
        around.has_memory = False
        await asyncio.sleep(ms / 1000)
        around.tally.counts["waits for memory"] += group.n_waits()
    await asyncio.sleep(_AFTER_STOP_NS / 1e9)
    around.has_memory = True
    _note_stop(begin_ns, around)


async def _lose_names(subject: Subject, n: int, around: Surroundings) -> None:
    """The DNS server falls silent, and an engine comes back that has to be found again. Later the server answers, and
    soon after it the engines speak that were not found."""
    names = subject.names
    if names is None or subject.engine is None:
        around.tally.counts["fault lose_names, not possible here"] += 1
        return
    names.is_silent = True
    try:
        subject.engine.kill()
        subject.engine.wait()
        await asyncio.to_thread(subject.start_engine)
        await asyncio.sleep(n * _NO_NAMES_S / 700)
    finally:
        names.is_silent = False
    for lang in ("zh", "de"):
        await _recovers(around, f"names of {lang}", lang=lang, within_ns=_FOUND_AGAIN_NS)


async def _kill_front(subject: Subject, n: int, around: Surroundings) -> None:
    fronts = subject.fronts()
    now_ns = time.monotonic_ns()
    # The other front speaks at once, unless it was killed a moment ago: then the one speaks that is ready first.
    is_alone = now_ns < around.front_starts_until_ns
    around.may_break, around.front_starts_until_ns = True, now_ns + _FRONT_STARTS_NS
    os.kill(fronts[n % len(fronts)], signal.SIGKILL)
    await _recovers(around, "front", within_ns=_FRONT_STARTS_NS if is_alone else RECOVERY_NS)


async def _recovers(around: Surroundings, what: str, *, lang: str = "", within_ns: int = RECOVERY_NS) -> None:
    """A new call speaks soon after the process is there again. `lang`: of its text, which may choose the engine."""
    begin_ns = time.monotonic_ns()
    await first_speech(around.port, lang=lang)
    took_ns = time.monotonic_ns() - begin_ns
    lost_ns = around.stops.within(begin_ns, time.monotonic_ns())
    around.tally.n_checked[v.RECOVERY] += 1
    around.tally.counts[f"recovery ms {what}"] = max(around.tally.counts[f"recovery ms {what}"], took_ns // MS)
    if took_ns - lost_ns > within_ns:
        found = f"a new call spoke {took_ns / MS:.0f} ms after the {what} was ready again"
        around.tally.violations.append(Violation(v.RECOVERY, found))


class _Probe(Peer):
    """A bot that says a word and waits for its speech."""

    def __init__(self, lang: str) -> None:
        super().__init__(f"/v1/stream?audio=none{'&lang=' + lang if lang else ''}")
        self.spoke = asyncio.get_running_loop().create_future()

    def on_message(self, payload: bytes, at_ns: int) -> None:
        if payload.startswith(b'{"type":"started"') and not self.spoke.done():
            self.spoke.set_result(True)
        elif payload.startswith(b'{"type":"error"') and not self.spoke.done():
            self.spoke.set_result(False)


async def first_speech(port: int, within_s: float = 20, *, lang: str = "") -> None:
    """Return when a new call has begun to speak; it is tried again until then."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        probe = _Probe(lang)
        try:
            await asyncio.wait_for(probe.connect(port), 2)
            probe.send({"type": "say", "turn": "x", "text": "aaa."})
            if await asyncio.wait_for(probe.spoke, _PROBE_S):
                return
        except (OSError, TimeoutError):
            pass
        finally:
            if probe.transport is not None:
                probe.transport.abort()
        await asyncio.sleep(0.02)


async def _use_up_descriptors(hold_ms: int, around: Surroundings) -> None:
    """Open connections until the server has no descriptor left, hold them, and let go."""
    begin_ns = time.monotonic_ns()
    opened: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(_FLOOD):
            end = socket.socket()
            end.setblocking(False)
            opened.append(end)
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(loop.sock_connect(end, ("127.0.0.1", around.port)), 0.5)
        await asyncio.sleep(hold_ms / 1000)
    finally:
        for end in opened:
            end.close()
        around.no_descriptors.add(begin_ns, time.monotonic_ns() + _FREED_NS)
