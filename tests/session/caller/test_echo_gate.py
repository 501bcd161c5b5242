"""The echo gate by levels alone: the caller, our echo, and line noise."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from world import World

from telephony_tts.session.caller.echo_gate import EchoGate
from telephony_tts.session.caller.talkspurt import Change, TalkSpurt
from telephony_tts.session.settings import BargeInSettings, SessionSettings

MS = 1_000_000
WINDOW_MS = 32


def our_levels(n_slots: int, seed: int = 1) -> list[float]:
    """Speech-like: syllables of five slots between -30 and -12 dBov, and every third of a second a pause."""
    rng = np.random.default_rng(seed)
    syllables = rng.uniform(-30, -12, n_slots // 5 + 1)
    return [-100.0 if n % 60 >= 50 else float(syllables[n // 5]) for n in range(n_slots)]


class EchoPath:
    """We speak. `opens` lets one window pass, in which the line has a level, or the echo of `echo_db`."""

    def __init__(self, echo_db: float = -15.0, delay_ms: int = 120, late_ms: int = 0) -> None:
        self.gate = EchoGate(-45.0)
        self.levels = our_levels(3000)
        self.echo_db, self.delay_ms = echo_db, delay_ms + late_ms
        self.n_windows = 0
        for n, level in enumerate(self.levels[:10]):
            self.gate.playing(n * 20 * MS, level)
        self._n_sent = 10

    def echo(self) -> float:
        """The level of the echo in the next window: the mean power of the slots that it covers."""
        end_ms = (self.n_windows + 1) * WINDOW_MS - self.delay_ms
        covered = [self.levels[at // 20] for at in range(end_ms - WINDOW_MS, end_ms) if at >= 0]
        power = np.mean(10 ** (np.array(covered) / 10)) if covered else 0.0
        return float(10 * np.log10(power + 1e-10)) + self.echo_db

    def opens(self, level_dbov: float | None = None) -> bool:
        now_ms = (self.n_windows + 1) * WINDOW_MS
        while self._n_sent * 20 <= now_ms + 200:
            self.gate.playing(self._n_sent * 20 * MS, self.levels[self._n_sent])
            self._n_sent += 1
        echo = self.echo()
        self.n_windows += 1
        return self.gate.opens(max(-65.0, echo if level_dbov is None else max(level_dbov, echo)), now_ms * MS)

    def pass_by(self, seconds: float) -> int:
        """How often our echo alone would open the gate, if the network took all of it for speech."""
        spurt = TalkSpurt(BargeInSettings(enabled=True))
        n_windows = round(seconds * 1000 / WINDOW_MS)
        changes = [spurt.feed(1.0, self.opens(), WINDOW_MS, n * WINDOW_MS) for n in range(n_windows)]
        return changes.count(Change.BEGAN)


@pytest.mark.parametrize("echo_db", [-10.0, -17.0, -30.0])
@pytest.mark.parametrize("delay_ms", [20, 110, 200, 300])
def test_an_echo_does_not_open_the_gate(echo_db: float, delay_ms: int) -> None:
    assert EchoPath(echo_db, delay_ms).pass_by(50) == 0


def test_a_peer_that_plays_late_has_a_late_echo() -> None:
    told, untold = EchoPath(-10, 100, late_ms=800), EchoPath(-10, 100, late_ms=800)
    told.gate.peer_is_late(800 * MS)
    assert told.pass_by(30) == 0
    assert untold.pass_by(30) > 0, "without the peer's marks the gate cannot know the delay"


def test_a_caller_as_loud_as_we_are_opens_the_gate_sooner_on_a_line_with_a_weak_echo() -> None:
    n_open = {}
    for echo_db in (-10, -30):
        line = EchoPath(echo_db)
        line.pass_by(5)
        n_open[echo_db] = sum(line.opens(-20.0) for _ in range(20))
    assert n_open[-10] >= 10
    assert n_open[-30] >= 18


def test_a_caller_during_our_speech_is_not_learned_as_an_echo() -> None:
    line = EchoPath(-25)
    line.pass_by(5)
    opened = [line.opens(-22.0) for _ in range(30)]
    assert sum(opened) >= 25 and all(opened[:6])
    assert line.pass_by(10) == 0


def test_the_gate_learns_a_line_that_gets_louder() -> None:
    line = EchoPath(-30)
    line.pass_by(10)
    line.echo_db = -12
    line.pass_by(10)
    assert line.pass_by(20) == 0


def test_dropped_speech_has_no_echo() -> None:
    gate = EchoGate(-45.0)
    for n in range(20):
        gate.playing(n * 20 * MS, -15.0)
    assert not gate.opens(-30.0, 0)
    gate.emptied(0)
    assert not gate.opens(-30.0, 100 * MS), "speech that was heard before may still echo"
    assert gate.opens(-30.0, 600 * MS)


def test_in_our_silence_the_noise_floor_counts_and_line_noise_raises_it() -> None:
    gate = EchoGate(-45.0)
    assert not gate.opens(-46.0, 0)
    assert gate.opens(-44.0, 32 * MS)
    rng = np.random.default_rng(3)
    assert not any([gate.opens(float(rng.normal(-36, 1.0)), n * 32 * MS) for n in range(2, 300)][60:])
    assert gate.opens(-24.0, 300 * 32 * MS)
    for n in range(301, 400):
        gate.opens(-10.0, n * 32 * MS)
    assert gate.opens(-27.0, 400 * 32 * MS), "a caller is detected in any noise"


@pytest.mark.parametrize("lead_ms", [200, 2000])
def test_a_call_without_audio_from_the_caller_keeps_only_speech_that_may_still_echo(lead_ms: int) -> None:
    settings = SessionSettings(first_clause_chars=0, barge_in=BargeInSettings(enabled=True), lead_ms=lead_ms)
    world = World(settings, peer=True, voice_model=lambda: None)
    world.say("a" * 1200 + ".", "a")
    world.run(10_000)
    n_early = len(world.session.caller._gate._played)
    world.run(40_000)
    assert n_early == pytest.approx(len(world.session.caller._gate._played), abs=2)
    kept = [heard_ns for heard_ns, _ in world.session.caller._gate._played]
    assert kept[0] <= world.now_ns - 3000 * MS, "a peer may report that it plays 3 s late"
    assert world.now_ns + (lead_ms - 100) * MS <= kept[-1], "the engine gives 100 ms at a time"


class CountedDeque(deque[tuple[int, float]]):
    """Counts how many of its entries are read."""

    n_read = 0

    def __getitem__(self, n: Any) -> Any:
        self.n_read += 1
        return super().__getitem__(n)

    def __reversed__(self) -> Any:
        for n in range(len(self) - 1, -1, -1):
            yield self[n]

    def __iter__(self) -> Any:
        for n in range(len(self)):
            yield self[n]


def test_a_window_costs_no_more_if_a_minute_of_speech_was_sent_ahead() -> None:
    n_read, opened = {}, {}
    for n_ahead in (10, 3000):
        gate = EchoGate(-45.0)
        gate._played = played = CountedDeque()
        for n, level in enumerate(our_levels(300 + n_ahead)):
            gate.playing((n - 300) * 20 * MS, level)
        opened[n_ahead] = [gate.opens(-30.0 + n, n * 10 * MS) for n in range(20)]
        n_read[n_ahead] = played.n_read
    assert n_read[3000] <= 1.5 * n_read[10]
    assert True in opened[10] and False in opened[10]
    assert opened[3000] == opened[10]
