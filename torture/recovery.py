"""Kills processes while calls speak, and measures how soon speech is back and which calls were lost.

    python -m torture recovery --kills 5
    python -m torture recovery --victims cosyvoice2,cosyvoice2_stop      CosyVoice2's own process, with a tiny model

A call that a killed process held is lost; no other call may be. The process is started again at once, by its supervisor
or by this program in place of one. The next speech must be heard within 500 ms after the process is ready again.
`cosyvoice2_stop` stops the process for 100 to 700 ms in place of killing it: then no turn may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any

from harness.peer import Peer
from harness.report import percentiles, table

from torture import report
from torture.asterisk_door import PhoneCall, phone_call
from torture.histories import COSYVOICE2
from torture.letters import FrameReader
from torture.links import AudioSocketLink
from torture.nemesis import RECOVERY_NS, stop_for
from torture.runner import in_loop
from torture.sandbox import NO_TORCH, has_asterisk, has_torch
from torture.subject import Subject
from torture.surroundings import Surroundings, watch_lag
from torture.violations import Stops, Tally
from torture.witnesses import watching_cores

MS = 1_000_000
VICTIMS = ("engine", "front", "bridge", "asterisk", "cosyvoice2", "cosyvoice2_stop")
_SHAPES = {
    "engine": "engine", "front": "fronts", "bridge": "bridge", "asterisk": "asterisk", "cosyvoice2": COSYVOICE2,
    "cosyvoice2_stop": COSYVOICE2,
}  # fmt: skip
_OPTIONAL: dict[str, tuple[Callable[[], bool], str]] = {
    "asterisk": (has_asterisk, "it was not fetched; --victims asterisk fetches it (95 MB)"),
    "cosyvoice2": (has_torch, NO_TORCH),
    "cosyvoice2_stop": (has_torch, NO_TORCH),
}
"""Victims that not every checkout has: whether this one does, and else why not."""
_N_CALLS = 6
_N_COMPUTED = 2
"""So many calls at once, where a model on the CPU computes their speech."""
_STOPS_MS = (100, 400, 700)
_BY_PHONE = 2
"""So many of the calls come through the real Asterisk."""
_TEXT = "aaa aaaa aaa."
_WITHIN_S = 40.0
_AGAIN_S = 0.05
_EVERY_S = 0.005


@dataclass(frozen=True)
class Recovery:
    """One kill, or one row of stops. Times are from the kill, but `speaks_ms` is from when the process was ready again;
    0 if there was speech before that. `stops_ms` of it could not run at all."""

    victim: str
    restart_ms: float
    """How long the process was away: until it was ready again, or went on."""
    speaks_ms: float
    stops_ms: float
    calls: int
    on_it: int
    """Calls that the killed process held, which cannot be saved."""
    lost: int
    lost_needlessly: int
    noticed_ms: float
    """By then the bots of all lost calls knew."""
    failed: int = 0
    """Turns that ended with an error, after which the bot said the next one."""
    failed_needlessly: int = 0
    """Those of them for which nothing was killed."""
    silent: int = 0
    """Calls that were not lost, and said nothing after the process was ready again."""
    problem: str = ""
    """What else did not hold. Without speech that is back in time, nothing is measured."""

    @property
    def holds(self) -> bool:
        is_soon = self.speaks_ms - self.stops_ms <= RECOVERY_NS / MS
        all_know = self.lost - self.lost_needlessly == self.on_it
        is_needless = self.lost_needlessly or self.failed_needlessly or self.silent
        return is_soon and all_know and not is_needless and not self.problem


class SteadyCall(Peer):
    """A bot that says one short turn after the other. `telephone` is the other end of its call, if it has one."""

    def __init__(self, name: str, audio: str = "binary", telephone: Any = None) -> None:
        super().__init__(f"/v1/stream?call={name}&audio={audio}")
        self.name = name
        self.telephone = telephone
        self.started_ns: list[int] = []
        self.said_ns: list[int] = []
        """When each turn was sent that has started."""
        self._sent_ns: dict[str, int] = {}
        self.failed_ns: list[int] = []
        self.audio_ns = 0
        """When the last frame came."""
        self.closed_ns = 0
        self._n = 0

    def say(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._n += 1
            self._sent_ns[f"t{self._n}"] = time.monotonic_ns()
            self.send({"type": "say", "turn": f"t{self._n}", "text": _TEXT})

    def on_message(self, payload: bytes, at_ns: int) -> None:
        told = json.loads(payload)
        match told["type"]:
            case "ready" | "done":
                self.say()
            case "started":
                self.started_ns.append(at_ns)
                self.said_ns.append(self._sent_ns.pop(told["turn"]))
            case "error" if told.get("turn"):
                self.failed_ns.append(at_ns)
                asyncio.get_running_loop().call_later(_AGAIN_S, self.say)

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        self.audio_ns = at_ns

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_ns = time.monotonic_ns()
        super().connection_lost(exc)

    @property
    def is_lost(self) -> bool:
        return bool(self.closed_ns)

    def speaks_again_ns(self, killed_ns: int, ready_ns: int) -> int | None:
        """When the first turn started that the process spoke which came after the killed one. A turn that was sent
        before the kill and started before the new process was ready was spoken by the old one."""
        turns = zip(self.said_ns, self.started_ns, strict=True)
        return next((at_ns for said_ns, at_ns in turns if said_ns > killed_ns or at_ns > ready_ns), None)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        if isinstance(self.telephone, AudioSocketLink) and self.telephone.transport is not None:
            self.telephone.transport.abort()


class Scene:
    """A running subject with calls that speak."""

    def __init__(self, subject: Subject, around: Surroundings, stack: AsyncExitStack) -> None:
        self.subject = subject
        self.around = around
        self._stack = stack
        self.calls: list[SteadyCall] = []
        self._n = 0

    async def direct(self) -> SteadyCall:
        """A call whose audio is on the bot's socket."""
        self._n += 1
        return await self._connect(SteadyCall(f"R{self._n}"))

    async def bridged(self) -> tuple[SteadyCall, asyncio.Future[int]]:
        """A call through the bridge, and when its telephone hears speech."""
        name, reader = uuid.uuid4(), FrameReader("pcm")
        heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_audio(payload: bytes, at_ns: int) -> None:
            if not heard.done() and reader.letter(payload):
                heard.set_result(at_ns)

        telephone = AudioSocketLink(name.bytes, on_audio)
        call = await self._connect(SteadyCall(str(name), "none", telephone))
        await asyncio.get_running_loop().create_connection(lambda: telephone, "127.0.0.1", self.subject.media_port)
        return call, heard

    async def phoned(self, extension: str) -> tuple[SteadyCall, PhoneCall]:
        """A call through the real Asterisk."""
        phone = await self._stack.enter_async_context(phone_call(self.around, self.around.telephones, extension))
        return await self._connect(SteadyCall(phone.name, "none", phone)), phone

    async def _connect(self, call: SteadyCall) -> SteadyCall:
        await asyncio.wait_for(call.connect(self.subject.port), 5)
        self.calls.append(call)
        self._stack.callback(call.close)
        return call

    async def all_speak(self) -> None:
        """Wait until each call has begun its second turn."""
        await _until(lambda: all(len(call.started_ns) > 1 for call in self.calls), "all calls speak")


async def _until(true: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + _WITHIN_S
    while not true():
        if time.monotonic() > end_s:
            raise RuntimeError(f"not within {_WITHIN_S:.0f} s: {what}")
        await asyncio.sleep(_EVERY_S)


@dataclass
class _Killed:
    """What a kill did: when it was, when the process was ready again, when there was speech, whose calls it held."""

    at_ns: int
    ready_ns: int
    speech_ns: int
    held: list[SteadyCall]
    begun_ns: int = 0
    """When the first of several stops was. 0: there was one kill."""
    problem: str = ""


async def _kill_engine(scene: Scene) -> _Killed:
    """All calls stay. Each of them must speak again."""
    for _ in range(_N_CALLS):
        await scene.direct()
    await scene.all_speak()
    subject, calls = scene.subject, list(scene.calls)
    assert subject.engine is not None
    at_ns = time.monotonic_ns()
    subject.engine.kill()
    await asyncio.to_thread(subject.start_engine)
    ready_ns = time.monotonic_ns()
    return _Killed(at_ns, ready_ns, await _all_speak_again(calls, at_ns, ready_ns), [])


async def _all_speak_again(calls: Sequence[SteadyCall], killed_ns: int, ready_ns: int) -> int:
    """When the last of these calls, without the lost ones, spoke again."""

    def spoke_ns() -> list[int | None]:
        return [call.speaks_again_ns(killed_ns, ready_ns) for call in calls if not call.is_lost]

    await _until(lambda: None not in spoke_ns(), "all calls speak again")
    return max((at_ns for at_ns in spoke_ns() if at_ns is not None), default=ready_ns)


async def _kill_front(scene: Scene) -> _Killed:
    """New calls are taken by the other front at once, and by the new one when it is ready."""
    for _ in range(_N_CALLS):
        await scene.direct()
    await scene.all_speak()
    subject, number = scene.subject, 0
    held = [call for call in scene.calls if subject.owner(call.name) == number]
    n_ready = len(_ready_lines(subject, number))
    at_ns = time.monotonic_ns()
    os.kill(subject.front_pid(number), signal.SIGKILL)
    await _speaks_at_once(scene)
    await _until(lambda: len(_ready_lines(subject, number)) > n_ready, "the new front is ready")
    ready_ns = time.monotonic_ns()
    while time.monotonic_ns() < ready_ns + _WITHIN_S * 1e9:
        # Several at once: the kernel chooses the front of each.
        calls = await asyncio.gather(*(scene.direct() for _ in range(_N_CALLS)))
        owners = [subject.owner(call.name) for call in calls]
        spoken = [await _speaks(call) for call in calls]
        its_own = zip(calls, owners, spoken, strict=True)
        if first := [call.started_ns[0] for call, owner, is_spoken in its_own if is_spoken and owner == number]:
            return _Killed(at_ns, ready_ns, min(first), held)
        for call in calls:
            call.close()
        await asyncio.sleep(_AGAIN_S)
    raise RuntimeError("the new front gets no call")


def _ready_lines(subject: Subject, front: int) -> list[dict[str, Any]]:
    return [line for line in subject.logged("ready") if line.get("front") == front]


async def _speaks_at_once(scene: Scene) -> None:
    """A new call speaks while a front is away."""
    while True:
        with suppress(OSError):
            if await _speaks(await scene.direct()):
                return
        await asyncio.sleep(_EVERY_S)


async def _speaks(call: SteadyCall) -> bool:
    """Whether the call speaks; False if it is lost before that."""
    await _until(lambda: call.started_ns or call.is_lost, "a new call speaks")
    return bool(call.started_ns)


async def _kill_bridge(scene: Scene) -> _Killed:
    for _ in range(_N_CALLS // 2):
        await scene.direct()
    held = [(await scene.bridged())[0] for _ in range(_N_CALLS - len(scene.calls))]
    await scene.all_speak()
    subject = scene.subject
    assert subject.bridge is not None
    at_ns = time.monotonic_ns()
    subject.bridge.kill()
    await asyncio.to_thread(subject.start_bridge)
    ready_ns = time.monotonic_ns()
    _, heard = await scene.bridged()
    return _Killed(at_ns, ready_ns, await asyncio.wait_for(heard, _WITHIN_S), held)


async def _kill_asterisk(scene: Scene) -> _Killed:
    """The time to dial and to be answered is the telephone's, so it is not counted as the recovery's."""
    for _ in range(_N_CALLS - _BY_PHONE):
        await scene.direct()
    held = [(await scene.phoned(extension))[0] for extension in ("700", "701")]
    await scene.all_speak()
    subject = scene.subject
    at_ns = time.monotonic_ns()
    os.kill(subject.asterisk.pid, signal.SIGKILL)
    await asyncio.to_thread(subject.start_asterisk)
    scene.around.asterisk = subject.asterisk
    ready_ns = time.monotonic_ns()
    dialled_ns = time.monotonic_ns()
    _, phone = await scene.phoned("700")
    reader = FrameReader()
    while True:
        for payload, came_ns in phone.new_frames():
            if reader.letter(payload):
                return _Killed(at_ns, ready_ns, came_ns - (phone.answered_ns - dialled_ns), held)
        if time.monotonic_ns() - ready_ns > _WITHIN_S * 1e9:
            raise RuntimeError("the telephone hears no speech")
        await asyncio.sleep(_EVERY_S)


async def _computed_calls(scene: Scene) -> None:
    """Begin all calls at once: while one speaks, a server without time to compute refuses the next one."""

    async def is_let_in() -> bool:
        try:
            await asyncio.gather(*(scene.direct() for _ in range(_N_COMPUTED)))
        except ConnectionError:
            for call in scene.calls:
                call.close()
            scene.calls.clear()
            return False
        return True

    end_s = time.monotonic() + _WITHIN_S
    while not await is_let_in():
        if time.monotonic() > end_s:
            raise RuntimeError(f"the server refuses calls for {_WITHIN_S:.0f} s")
        await asyncio.sleep(_AGAIN_S)
    await scene.all_speak()


async def _kill_cosyvoice2(scene: Scene) -> _Killed:
    """The server starts its engine's process again. All calls stay, and each of them must speak again."""
    await _computed_calls(scene)
    subject, calls = scene.subject, list(scene.calls)
    n_ready = subject.log_text().count(_READY_AGAIN)
    at_ns = time.monotonic_ns()
    os.kill(subject.cosyvoice2_pid(), signal.SIGKILL)
    await _until(lambda: subject.log_text().count(_READY_AGAIN) > n_ready, "the speech engine is ready again")
    ready_ns = time.monotonic_ns()
    return _Killed(at_ns, ready_ns, await _all_speak_again(calls, at_ns, ready_ns), [])


_READY_AGAIN = "the speech engine is ready again"


async def _stop_cosyvoice2(scene: Scene) -> _Killed:
    """Speech was made ahead, and the process goes on where it was. The longest pause of the speech behind a stop
    counts."""
    await _computed_calls(scene)
    subject, calls = scene.subject, list(scene.calls)
    pid, begun_ns, worst_ns, worst = subject.cosyvoice2_pid(), time.monotonic_ns(), -1, (0, 0, 0)
    for ms in _STOPS_MS:
        at_ns = time.monotonic_ns()
        await stop_for(subject.cosyvoice2_pid(), ms)
        again_ns = time.monotonic_ns()
        await _until(lambda: all(c.is_lost or c.audio_ns > again_ns for c in calls), "all calls speak on")  # noqa: B023
        spoke_ns = max(call.audio_ns for call in calls)
        if spoke_ns - again_ns > worst_ns:
            worst_ns, worst = spoke_ns - again_ns, (at_ns, again_ns, spoke_ns)
        await asyncio.sleep(_BETWEEN_STOPS_S)
    return _Killed(*worst, [], begun_ns, "" if subject.cosyvoice2_pid() == pid else "the stopped process was replaced")


_BETWEEN_STOPS_S = 0.5


_KILLS: dict[str, Callable[[Scene], Awaitable[_Killed]]] = {
    "engine": _kill_engine, "front": _kill_front, "bridge": _kill_bridge, "asterisk": _kill_asterisk,
    "cosyvoice2": _kill_cosyvoice2, "cosyvoice2_stop": _stop_cosyvoice2,
}  # fmt: skip


async def recover(victim: str, subject: Subject) -> Recovery:
    """Kill this process once while calls speak."""
    stops = Stops()
    around = Surroundings(subject.port, Tally(), stops, media_port=subject.media_port, asterisk=subject.asterisk)
    async with AsyncExitStack() as stack:
        stack.enter_context(watching_cores(lambda: [os.getpid(), *subject.pids()], stops))
        if subject.asterisk is not None:
            from harness.pbx_peers import exchange

            around.telephones = stack.enter_context(exchange())
        lag = asyncio.create_task(watch_lag(stops))
        stack.callback(lag.cancel)
        scene = Scene(subject, around, stack)
        killed = await _KILLS[victim](scene)
        with suppress(RuntimeError):
            await _until(lambda: all(call.is_lost for call in killed.held), "the bots of the lost calls know it")
        begun_ns, ready_ns = killed.begun_ns or killed.at_ns, killed.ready_ns
        calls = [call for call in scene.calls if call.started_ns and call.started_ns[0] < begun_ns]
        others = [call for call in calls if call not in killed.held]
        with suppress(RuntimeError):
            await _all_speak_again(others, ready_ns, ready_ns)
        lost = [call for call in calls if call.is_lost]
        n_failed = sum(at_ns > begun_ns for call in calls for at_ns in call.failed_ns)
        return Recovery(
            victim, (ready_ns - killed.at_ns) / MS, max(0, killed.speech_ns - ready_ns) / MS,
            stops.within(ready_ns, killed.speech_ns) / MS, len(calls), len(killed.held), len(lost),
            sum(call not in killed.held for call in lost),
            max((call.closed_ns - killed.at_ns for call in lost), default=0) / MS,
            n_failed, n_failed if killed.begun_ns else 0,
            sum(not call.is_lost and call.speaks_again_ns(ready_ns, ready_ns) is None for call in others),
            killed.problem,
        )  # fmt: skip


def measure(victim: str, n_kills: int, *, defects: Sequence[str] = ()) -> list[Recovery]:
    """Kill this process so often, each time in a new server. If something does not happen in time, that is told as the
    problem of this kill."""
    found = []
    for _ in range(n_kills):
        with Subject(_SHAPES[victim], defects=defects) as subject:
            try:
                found.append(in_loop(recover(victim, subject)))
            except RuntimeError as error:
                found.append(Recovery(victim, 0, 0, 0, 0, 0, 0, 0, 0, problem=str(error)))
    return found


def run_recovery(chosen: argparse.Namespace) -> int:
    """Measure all victims, print and keep what was found. 1 if something did not hold."""
    victims = (chosen.victims or ",".join(VICTIMS)).split(",")
    if unknown := [victim for victim in victims if victim not in VICTIMS]:
        raise SystemExit(f"--victims: {', '.join(unknown)} is not one of {', '.join(VICTIMS)}")
    for name, (is_there, why_not) in _OPTIONAL.items():
        if name in victims and not is_there():
            if chosen.victims and name != "asterisk":
                raise SystemExit(f"--victims {name}: {why_not}")
            if not chosen.victims:
                print(f"{name}: not tried, because {why_not}")
                victims.remove(name)
    found = {}
    for victim in victims:
        found[victim] = measure(victim, chosen.kills, defects=chosen.defect)
        if chosen.json is not None:
            save(chosen, {victim: found[victim]})
    rows = [
        (
            victim, len(each), _worst(r.restart_ms for r in each), _worst(r.speaks_ms for r in each),
            _worst(r.stops_ms for r in each), sum(r.calls for r in each), sum(r.on_it for r in each),
            sum(r.lost for r in each), sum(r.lost_needlessly for r in each), _worst(r.noticed_ms for r in each),
            sum(r.failed for r in each), sum(r.silent for r in each), "yes" if all(r.holds for r in each) else "no",
        )
        for victim, each in found.items()
    ]  # fmt: skip
    columns = ("victim", "times", "away ms", "speech after it ms", "stops ms", "calls", "held by it", "lost",
               "lost needlessly", "noticed ms", "failed turns", "silent", "held")  # fmt: skip
    table("recovery after kill -9, or a stop (the worst of all)", columns, rows)
    for problem in (f"{r.victim}: {r.problem}" for each in found.values() for r in each if r.problem):
        print(problem)
    return 0 if all(r.holds for each in found.values() for r in each) else 1


def save(chosen: argparse.Namespace, found: Mapping[str, Sequence[Recovery]]) -> None:
    """Write what was found of these victims. What earlier runs have found of others stays, with the machine, commit and
    settings of their runs."""
    known = report.saved(chosen.json).get("recovery", {"victims": {}})
    of_run = {name: known[name] for name in ("machine", "commit", "settings", "held") if name in known}
    victims = {victim: {**of_run, **each} for victim, each in known["victims"].items()}
    for victim, each in found.items():
        victims[victim] = {
            **report.about(chosen),
            "held": all(r.holds for r in each),
            "restart_ms": percentiles([r.restart_ms for r in each]),
            "speech_after_restart_ms": percentiles([r.speaks_ms for r in each]),
            "kills": [asdict(r) for r in each],
        }
    report.save(chosen, "recovery", {"held": all(each["held"] for each in victims.values()), "victims": victims})


def _worst(values: Any) -> str:
    return f"{max(values, default=0):.0f}"
