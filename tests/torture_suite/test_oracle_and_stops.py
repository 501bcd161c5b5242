"""What the oracle excuses by a stop of its own process, and what it does not."""

from __future__ import annotations

import asyncio
import time

import pytest

from torture import violations as v
from torture.doors import _closes
from torture.links import BotLink
from torture.oracle import NativeOracle
from torture.surroundings import PING_S, Surroundings
from torture.violations import Stops, Tally
from torture.witnesses import Neighbour, wrong_lines

MS = 1_000_000
TEXT = "aaa."
UNANSWERED = f"read from the socket: a ping was not answered for {PING_S:g} s"


def with_frames_missing(n_missing: int, *stops_ms: tuple[int, int], has_media: bool = True) -> list[str]:
    """What is wrong with a turn of 400 ms, of which so many frames had not been read at its `done`, at 1,400 ms."""
    tally, stops = Tally(), Stops()
    for begin_ms, end_ms in stops_ms:
        stops.add(begin_ms * MS, end_ms * MS)
    oracle = NativeOracle(tally, stops, has_media=has_media, is_lossy=True)
    oracle.event({"type": "ready"}, 0)
    oracle.sent({"type": "say", "turn": "b1", "text": TEXT}, 900 * MS, "a")
    oracle.event({"type": "started", "turn": "b1", "first_audio_ms": 1}, 1000 * MS)
    for number in range(20 - n_missing):
        oracle.frame(b"\xff" * 160, (1000 + 20 * number) * MS)
    told = {"type": "done", "turn": "b1", "chars": len(TEXT), "audio_ms": 400, "underruns": 0}
    oracle.event(told, 1400 * MS)
    oracle.finish(1500 * MS, is_torn=True)
    return [each.what for each in tally.violations if each.check == v.DONE and "frames came" in each.what]


@pytest.mark.parametrize("n_missing", [0, 3])
def test_events_may_be_read_a_little_before_the_frames_of_the_media_leg(n_missing: int) -> None:
    assert with_frames_missing(n_missing) == []


def test_more_missing_frames_are_found() -> None:
    assert with_frames_missing(5) == ["b1 has 400 ms of audio, and 15 frames came"]
    assert len(with_frames_missing(5, (1000, 1200))) == 1, "that stop was over"


def test_a_stop_just_before_the_event_excuses_the_frames_of_its_length() -> None:
    assert with_frames_missing(5, (1330, 1400)) == []
    assert len(with_frames_missing(10, (1330, 1400))) == 1


def test_on_one_socket_nothing_excuses_a_missing_frame() -> None:
    assert len(with_frames_missing(1, (1000, 1400), has_media=False)) == 1


def closed_neighbour(reason: str, stopped_s: float) -> list[str]:
    """What is wrong with a neighbour whose connection the server has closed, after a stop of this length."""

    async def work() -> list[str]:
        around = Surroundings(0, Tally(), Stops())
        now_ns = time.monotonic_ns()
        around.stops.add(now_ns - round(stopped_s * 1e9), now_ns)
        neighbour = Neighbour(around, 1)
        neighbour.transport = asyncio.Transport()
        neighbour.write = lambda _: None  # type: ignore[method-assign]
        neighbour.close_code, neighbour.close_reason = 1011, reason
        neighbour.closed.set_result(None)
        assert not await neighbour.turn()
        return [each.what for each in around.tally.violations]

    return asyncio.run(work())


def test_a_connection_that_missed_a_ping_is_lost_by_a_long_stop_only() -> None:
    lost = ["neighbour 1 lost its connection, which was closed with 1011"]
    assert closed_neighbour(UNANSWERED, PING_S) == []
    assert closed_neighbour(UNANSWERED, 1) == lost
    assert closed_neighbour("internal error", PING_S) == lost


def test_a_call_whose_media_leg_missed_a_ping_may_be_over() -> None:
    """The server ends it as usual: the bot's connection closes with 1000, before its time."""

    def judged(stopped_s: float) -> list[str]:
        async def work() -> list[str]:
            around = Surroundings(0, Tally(), Stops())
            now_ns = time.monotonic_ns()
            around.stops.add(now_ns - round(stopped_s * 1e9), now_ns)
            oracle = NativeOracle(around.tally, around.stops, has_media=True)
            bot, media = BotLink("/v1/stream", around, oracle), BotLink("/v1/stream", around, oracle)
            bot.telephone = media
            for link, code, reason in ((bot, 1000, ""), (media, 1011, UNANSWERED)):
                link.close_code, link.close_reason = code, reason
                link.closed.set_result(None)
            await _closes(bot, around, None)
            return [each.what for each in around.tally.violations]

        return asyncio.run(work())

    assert judged(PING_S) == []
    assert judged(1) == ["closed with 1000, expected an open call"]


def test_a_traceback_in_a_log_is_told_with_its_error() -> None:
    log = 'a line\nTraceback (most recent call last):\n  File "x.py", line 1\n    f()\nMemoryError: no\nmore\n'
    (found,) = wrong_lines(log, may_fail=True)
    assert found.endswith("f() | MemoryError: no") and "more" not in found
