"""The time of an event loop that all texts share."""

from __future__ import annotations

import asyncio

import pytest

from telephony_tts.transport import text_work as module
from telephony_tts.transport.text_work import TextWork, text_work

MS = 1_000_000


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 0
        monkeypatch.setattr(module, "monotonic_ns", lambda: self.ns)


class LongText:
    """A text with so many pieces of 1.5 ms. `log` gets its name for each."""

    def __init__(self, name: str, n_pieces: int, work: TextWork, clock: Clock, log: list[str]) -> None:
        self._name, self._n_left, self._work, self._clock, self._log = name, n_pieces, work, clock, log
        self._n_slices = 0

    def go_on(self) -> None:
        while self._n_left:
            if not self._work.may_work():
                self._work.wait(self._n_slices, self.go_on)
                self._n_slices += 1
                return
            self._clock.ns += 1_500_000
            self._n_left -= 1
            self._log.append(self._name)


async def turns_of(log: list[str]) -> list[list[str]]:
    """What is logged in each turn of the loop, until nothing more is."""
    found: list[list[str]] = []
    for _ in range(100):
        found.append(log[:])
        log.clear()
        await asyncio.sleep(0)
    return [each for each in found if each]


def test_all_texts_together_get_one_slice_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, work, log = Clock(monkeypatch), TextWork(), []
        for name in "abcdef":
            LongText(name, 4, work, clock, log).go_on()
        assert log == ["a", "a", "a"], "4 ms are over"
        turns = await turns_of(log)
        assert all(len(turn) == 3 for turn in turns) and sum(map(len, turns)) == 24
        assert clock.ns == 24 * 1_500_000

    asyncio.run(main())


def test_a_short_text_does_not_wait_for_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, work, log = Clock(monkeypatch), TextWork(), []
        for name in "abcd":
            LongText(name, 1000, work, clock, log).go_on()
        for _ in range(20):
            await asyncio.sleep(0)
        log.clear()
        LongText("short", 2, work, clock, log).go_on()
        for _ in range(2):
            await asyncio.sleep(0)
        assert log.count("short") == 2

    asyncio.run(main())


def test_long_texts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, work, log = Clock(monkeypatch), TextWork(), []
        for name in "abcd":
            LongText(name, 1000, work, clock, log).go_on()
        for _ in range(40):
            await asyncio.sleep(0)
        shares = [log.count(name) for name in "abcd"]
        assert max(shares) - min(shares) <= 6, shares

    asyncio.run(main())


def test_each_loop_has_its_own() -> None:
    async def main() -> TextWork:
        assert text_work() is text_work()
        return text_work()

    assert asyncio.run(main()) is not asyncio.run(main())
