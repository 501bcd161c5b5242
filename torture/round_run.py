"""Runs one round against a running server, and judges what is left when it is over."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack

from standstill import Standstills, standstills

from torture import carriers, nemesis
from torture import violations as v
from torture.bad_network import bad_network
from torture.doors import run_call
from torture.histories import CARRIERS, COSYVOICE2, HTTP_DOORS, JOINED, VENDORS, CallHistory, Round, Step, make_call
from torture.recordings import judge_recordings
from torture.subject import Holdings, Subject
from torture.surroundings import Surroundings, watch_lag
from torture.violations import Stops, Tally, Violation
from torture.witnesses import speak_beside, watching_cores, wrong_lines

MS = 1_000_000
_CALL_S = 60.0
_STALLS_EVERY_S = 0.01
_REMOVED_BY_THE_NEXT = "telephony-tts-espeak-"
"""The next start removes these, and a new front may still be starting when the round ends."""
_FOREIGN_FILES = (".ses",)
"""A file of onnxruntime, one for all its processes."""
_QUIET_S = 8.0
_CLOSED_S = 3.0
_WRITTEN_S = 0.3
"""The thread that writes recordings has written all by then, when no call lives."""
_WARM_DOORS = ("native", *CARRIERS, *VENDORS, *HTTP_DOORS, JOINED)
_WARM_SEEDS = (24, 40)
"""Of calls that say little and do not wait. They end in different ways."""
_WARM_CALL = CallHistory(
    "native", 1, 0, (*[Step(0, "config")] * 30, *[Step(0, "play")] * 3), "close_now",
    {"codec": "ulaw", "rate": 8000, "ptime_ms": 20, "audio": "binary", "lead_ms": 200},
)  # fmt: skip
"""Sounds and the model that detects voices are loaded by threads that stay: as many as have work at once."""
_THREADS_SPARE = 2
"""Pools start threads when there is more to do at once."""


async def run_round(whole: Round, subject: Subject) -> Tally:
    """What was checked and what was found."""
    stops = Stops()
    around = _around(subject, stops)
    kinds = {fault.kind for fault in whole.faults}
    around.asterisk = subject.asterisk
    around.may_fail = bool(kinds & {"kill_engine", "kill_cosyvoice2"})
    around.may_lose_names = "lose_names" in kinds
    around.may_refuse = (
        bool(kinds & {"use_up_descriptors", "kill_engine"})
        or whole.shape == COSYVOICE2
        or nemesis.makes_engine_stale(whole.faults)
    )
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: around.crashes.append(f"{context.get('message')}: {context.get('exception')!r}")
    )
    if any(call.door in CARRIERS for call in whole.calls):
        carriers.prepare()
    begin_ns = time.monotonic_ns()
    with watching_cores(lambda: [os.getpid(), *subject.pids()], stops), standstills() as machine:
        async with AsyncExitStack() as stack:
            around.proxy_port = await stack.enter_async_context(bad_network(subject.port, whole.seed))
            if subject.asterisk is not None:
                from harness.pbx_peers import exchange

                around.telephones = stack.enter_context(exchange())
            lag = asyncio.create_task(watch_lag(stops))
            watch = asyncio.create_task(_take_over(machine, stops, begin_ns))
            try:
                await _run(whole, subject, around)
            finally:
                lag.cancel()
                watch.cancel()
    await quiet(subject)
    await asyncio.sleep(_WRITTEN_S)
    # Recordings alone fill a small disk, also in a history that was shortened by its faults.
    may_lack_ends = around.may_break or subject.disk is not None or "use_up_descriptors" in kinds
    judge_recordings(
        subject.recordings, around.recorded, around.tally, may_lack_ends=may_lack_ends,
        no_descriptors=around.no_descriptors, may_be_full=subject.disk is not None,
    )  # fmt: skip
    around.tally.counts["rounds"] += 1
    around.tally.counts[f"rounds {whole.shape}"] += 1
    around.tally.counts["stops ms"] += stops.total_ns // MS
    around.tally.n_checked[v.OWN] += 1
    around.tally.violations += [Violation(v.OWN, crash) for crash in around.crashes[:5]]
    return around.tally


def _around(subject: Subject, stops: Stops) -> Surroundings:
    address = subject.sounds.address
    return Surroundings(subject.port, Tally(), stops, media_port=subject.media_port, sound_address=address)


async def _take_over(machine: Standstills, stops: Stops, begin_ns: int) -> None:
    """Note the stalls of the machine, which a host may cause that no process sees."""
    n_known = 0
    while True:
        stalls = machine.list()
        for stall in stalls[n_known:]:
            if stall.end_ns > begin_ns:
                stops.add(stall.begin_ns, stall.end_ns)
        n_known = len(stalls)
        await asyncio.sleep(_STALLS_EVERY_S)


async def _run(whole: Round, subject: Subject, around: Surroundings) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    ready = [loop.create_future() for _ in range(whole.n_neighbours)]
    async with asyncio.TaskGroup() as group:
        neighbours = [
            group.create_task(speak_beside(n, around, stop, lambda done=done: done.done() or done.set_result(None)))
            for n, done in enumerate(ready)
        ]
        if ready:
            await asyncio.wait(ready, timeout=30)
        faults = group.create_task(nemesis.run_faults(whole.faults, subject, around))
        calls = [group.create_task(_at_its_time(call, n, around)) for n, call in enumerate(whole.calls)]
        await asyncio.wait([faults, *calls])
        stop.set()
    worst_ns = max((task.result() for task in neighbours), default=0)
    around.tally.counts["neighbours' worst lateness ms"] = max(0, worst_ns // MS)


async def _at_its_time(call: CallHistory, number: int, around: Surroundings) -> None:
    await asyncio.sleep(call.start_ms / 1000)
    try:
        async with asyncio.timeout(_CALL_S):
            await run_call(call, number, around)
    except TimeoutError:
        around.tally.violations.append(Violation(v.CLOSE, f"{call.door}: not over after {_CALL_S:.0f} s", number))


async def warm_up(subject: Subject) -> Holdings:
    """Two calls through each door, one after the other, and what the server holds after them."""
    around = _around(subject, Stops())
    doors = {"bridge": ("native", "bridge"), "names": ("native", "no_bot", "far_engine")}.get(
        subject.shape, _WARM_DOORS
    )
    for n, seed in enumerate(_WARM_SEEDS):
        calls = (make_call(seed, (door,), n_steps=1) for door in doors)
        await asyncio.gather(*(run_call(call, n, around) for call in (*calls, *[_WARM_CALL] * 4)))
    await quiet(subject)
    return subject.holdings()


async def quiet(subject: Subject) -> int:
    """Wait until the server has no call; how many are left if it has them for too long. -1: it does not tell."""
    end_s = time.monotonic() + _QUIET_S
    n_live = -1
    while time.monotonic() < end_s:
        try:
            n_live = await asyncio.to_thread(subject.n_live_calls)
        except OSError:
            n_live = -1
        if n_live == 0:
            await asyncio.sleep(0.3)
            return 0
        await asyncio.sleep(0.1)
    return n_live


def _of_others(before: Holdings, after: Holdings) -> list[tuple[str, int, int]]:
    """What the other processes held and hold, those that were not started again."""
    found = []
    for name in before.others.keys() & after.others.keys():
        had, (n_descriptors, n_threads) = before.others[name], after.others[name]
        found.append((f"descriptors of the {name}", had[0], n_descriptors))
        found.append((f"threads of the {name}", had[1] + _THREADS_SPARE, n_threads))
    return found


async def judge_rest(subject: Subject, before: Holdings, tally: Tally) -> Holdings:
    """What the server holds after a round must be what it held before it. The other end of a call may close a little
    later than the server does."""
    n_live, end_s = await quiet(subject), time.monotonic() + _CLOSED_S
    while True:
        try:
            after = subject.holdings()
        except TimeoutError as error:
            tally.violations.append(Violation(v.LEAKS, str(error)))
            return before
        held = [
            ("calls", 0, abs(n_live)),
            ("descriptors", before.descriptors, after.descriptors),
            ("tasks", before.tasks, after.tasks),
            ("threads", before.threads + _THREADS_SPARE, after.threads),
            ("temporary files", before.files, after.files),
            *_of_others(before, after),
        ]
        if time.monotonic() > end_s or all(n_after <= n_before for _, n_before, n_after in held):
            break
        await asyncio.sleep(0.2)
    for name, n_before, n_after in held:
        tally.n_checked[v.LEAKS] += 1
        if n_after > n_before:
            tally.violations.append(Violation(v.LEAKS, f"{n_after} {name} are left, {n_before} were there before"))
    return after


_CRASH, _CRASH_CHARS = "Fatal Python error", 2000
"""What the interpreter writes when a signal such as SIGABRT ends it."""
_EXPECTED_LINES = {"names": ("bot_unreachable",)}
"""The errors in the log that a shape of the server asks for."""


def judge_end(subject: Subject, tally: Tally, *, may_fail: bool, was_killed: bool = False) -> None:
    """Drain, and read the logs. `was_killed`: a process of the server could not remove its temporary folder."""
    expected = _EXPECTED_LINES.get(subject.shape, ())
    for name, status in subject.drain().items():
        tally.n_checked[v.DRAIN] += 1
        if status != 0:
            crash = subject.log_text().partition(_CRASH)[1:]
            what = f"the {name} ended with {status} after SIGTERM {''.join(crash)[:_CRASH_CHARS]}"
            tally.violations.append(Violation(v.DRAIN, what.rstrip()))
    left = sorted(path.name for path in (subject.folder / "tmp").iterdir() if path.name not in _FOREIGN_FILES)
    if was_killed:
        left = [name for name in left if not name.startswith(_REMOVED_BY_THE_NEXT)]
    tally.n_checked[v.LEAKS] += 1
    if left:
        tally.violations.append(Violation(v.LEAKS, f"temporary files after the end: {', '.join(left[:5])}"))
    tally.n_checked[v.LOGS] += 1
    for line in wrong_lines(subject.log_text(), may_fail=may_fail, expected=expected)[:5]:
        tally.violations.append(Violation(v.LOGS, line))
