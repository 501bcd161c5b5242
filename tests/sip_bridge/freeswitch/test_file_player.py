"""The files of one call, on a clock of the test, with a FreeSWITCH that only records its commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.freeswitch.file_player import FilePlayer

MS = 1_000_000


class PlayerWorld:
    """`told` has the commands to FreeSWITCH and the reports to the server, in order.

    `is_new`: the player has got no message of the server yet; another bridge may have had the call before.
    """

    def __init__(self, is_new: bool = False) -> None:
        self.told: list[str] = []
        self.removed: list[str] = []
        self.now_ns = 0
        self.player = FilePlayer(self)
        if not is_new:
            self.player.greeted(1, 0)

    def play(self, path: str) -> None:
        self.told.append(f"play {path}")

    def stop(self, *, empties_queue: bool = True) -> None:
        self.told.append("stop" if empties_queue else "stop_playing")

    def report(self, what: str, number: int | None = None) -> None:
        self.told.append(what if number is None else f"{what} {number}")

    def remove(self, path: str) -> None:
        self.removed.append(path)

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.player.add(number, f"/f{number}", self.now_ns)

    def begun(self, number: int) -> None:
        self.player.begun(f"/f{number}", self.now_ns)

    def ended(self, number: int, was_broken: bool = False) -> None:
        self.player.ended(f"/f{number}", was_broken, self.now_ns)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and call the player at its deadlines."""
        end_ns = self.now_ns + ms * MS
        while self.player.deadline_ns is not None and self.player.deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, self.player.deadline_ns)
            self.player.poll(self.now_ns)
        self.now_ns = end_ns

    def taken(self) -> list[str]:
        told, self.told = self.told, []
        return told


def test_files_are_played_one_after_the_other_and_removed() -> None:
    world = PlayerWorld()
    world.add(1, 2)
    world.begun(1)
    assert world.taken() == ["play /f1", "playing 1"]
    world.pass_ms(60_000)
    world.ended(1)
    assert world.taken() == ["played 1", "play /f2"]
    world.begun(2)
    world.ended(2)
    assert world.taken() == ["playing 2", "played 2"]
    assert world.removed == ["/f1", "/f2"] and world.player.deadline_ns is None


def test_a_clear_stops_the_playing_file_and_drops_waiting_ones() -> None:
    world = PlayerWorld()
    world.add(1, 2, 3)
    world.begun(1)
    world.taken()
    world.player.clear(4, world.now_ns)
    assert world.taken() == ["stop"]
    world.add(4)
    assert world.taken() == [], "not before the break is known to be done: it would hit this one"
    world.pass_ms(34)
    world.ended(1, was_broken=True)
    assert world.taken() == ["play /f4"]
    assert world.removed == ["/f2", "/f3", "/f1"]


def test_cleared_files_are_not_reported() -> None:
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.begun(1)
    world.ended(1)
    assert world.taken() == ["play /f1", "stop", "stop"], "stopped again, because the first came too early for it"


def test_a_break_without_an_event_does_not_block_the_next_file() -> None:
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.add(2)
    world.taken()
    world.pass_ms(499)
    assert world.taken() == []
    world.pass_ms(2)
    assert world.taken() == ["play /f2"]


def test_a_file_whose_event_comes_after_its_clear_is_never_played() -> None:
    world = PlayerWorld()
    world.player.clear(3, world.now_ns)
    world.add(2, 3)
    assert world.taken() == ["play /f3"] and world.removed == ["/f2"]


def test_a_clear_keeps_files_from_its_number_on() -> None:
    world = PlayerWorld()
    world.add(5, 6)
    world.begun(5)
    world.taken()
    world.player.clear(5, world.now_ns)
    assert world.taken() == []
    world.player.clear(7, world.now_ns)
    world.ended(5, was_broken=True)
    world.add(7)
    assert world.taken() == ["stop", "play /f7"]


def test_a_file_stopped_by_another_program_is_played_again_once() -> None:
    """A break that found nothing to stop may have this effect later."""
    world = PlayerWorld()
    world.add(1)
    world.begun(1)
    world.ended(1, was_broken=True)
    world.taken()
    world.pass_ms(149)
    assert world.taken() == []
    world.pass_ms(2)
    world.begun(1)
    assert world.taken() == ["play /f1", "playing 1"]
    world.ended(1, was_broken=True)
    world.pass_ms(200)
    assert world.taken() == ["failed 1"], "not reported as heard, and not for ever"


def test_a_clear_between_two_tries_sends_no_break() -> None:
    world = PlayerWorld()
    world.add(1, 2)
    world.begun(1)
    world.ended(1, was_broken=True)
    world.taken()
    world.player.clear(2, world.now_ns)
    assert world.taken() == ["play /f2"]


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_file_that_cannot_be_played_is_reported(how: str) -> None:
    world = PlayerWorld()
    world.add(1, 2)
    if how == "refused":
        world.player.refused("/f1", world.now_ns)
    else:
        world.pass_ms(3001)
    assert world.taken() == ["play /f1", "failed 1", "play /f2"]


def test_after_a_lost_connection_files_stop_and_are_requested_again() -> None:
    world = PlayerWorld()
    world.add(1, 2)
    world.begun(1)
    world.taken()
    world.player.lost_touch(world.now_ns)
    assert world.taken() == ["stop", "again"] and world.removed == ["/f2", "/f1"]
    world.add(3)
    world.pass_ms(501)
    assert world.taken() == ["play /f3"]


def test_the_files_of_a_call_first_seen_in_its_middle_are_requested_again() -> None:
    """Another bridge had the call before. It may have played earlier files, and one may still play."""
    world = PlayerWorld(is_new=True)
    world.add(4)
    assert world.taken() == ["stop", "again"] and world.removed == ["/f4"]
    world.player.clear(5, world.now_ns)  # the server sends this first, so that no file is played twice
    world.add(4, 5, 6)
    world.begun(5)
    world.ended(5)
    assert world.taken() == ["play /f5", "playing 5", "played 5", "play /f6"] and world.removed == ["/f4", "/f4", "/f5"]


def test_a_call_first_seen_by_its_first_file_is_played() -> None:
    world = PlayerWorld(is_new=True)
    world.add(1, 2)
    assert world.taken() == ["play /f1"] and world.removed == []


def test_a_call_first_seen_by_a_clear_is_silenced_and_later_files_are_played() -> None:
    world = PlayerWorld(is_new=True)
    world.player.clear(3, world.now_ns)
    assert world.taken() == ["stop"], "the bridge before may have begun a file"
    world.add(3)
    assert world.taken() == ["play /f3"]


@pytest.mark.parametrize(("is_new", "following", "told"), [(True, 4, ["stop", "again"]), (True, 1, []), (False, 4, [])])
def test_the_hello_tells_whether_the_call_had_another_bridge(is_new: bool, following: int, told: list[str]) -> None:
    world = PlayerWorld(is_new)
    world.player.greeted(following, world.now_ns)
    world.player.greeted(following, world.now_ns)
    assert world.taken() == told


def test_new_speech_waits_only_for_the_reply_to_a_break() -> None:
    """The break has emptied FreeSWITCH's queue, so no event comes for a file that had not begun."""
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.add(2)
    assert world.taken() == ["play /f1", "stop"]
    world.player.stopped(world.now_ns)
    assert world.taken() == ["play /f2"] and world.removed == ["/f1"]
    world.begun(2)
    world.ended(2)
    assert world.taken() == ["playing 2", "played 2"]


def test_the_reply_to_a_break_is_not_the_end_of_a_playing_file() -> None:
    world = PlayerWorld()
    world.add(1)
    world.begun(1)
    world.player.clear(2, world.now_ns)
    world.player.stopped(world.now_ns)
    world.add(2)
    assert world.taken() == ["play /f1", "playing 1", "stop"]
    world.ended(1, was_broken=True)
    assert world.taken() == ["play /f2"]


def test_a_cleared_file_that_begins_late_is_stopped_and_the_next_stays_queued() -> None:
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.add(2)
    world.player.stopped(world.now_ns)
    assert world.taken() == ["play /f1", "stop", "play /f2"]
    world.begun(1)
    assert world.taken() == ["stop_playing"]
    world.ended(1, was_broken=True)
    world.begun(2)
    world.ended(2)
    assert world.taken() == ["playing 2", "played 2"] and world.removed == ["/f1", "/f2"]


def test_a_cleared_file_that_begins_very_late_is_stopped_too() -> None:
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.pass_ms(501)
    world.taken()
    world.begun(1)
    assert world.taken() == ["stop_playing"]


def test_a_file_that_is_stopped_by_the_break_for_the_one_before_is_played_again() -> None:
    """The first break had already ended the file."""
    world = PlayerWorld()
    world.add(1)
    world.player.clear(2, world.now_ns)
    world.add(2)
    world.player.stopped(world.now_ns)
    world.begun(1)
    world.begun(2)
    world.ended(2, was_broken=True)
    world.taken()
    world.pass_ms(151)
    world.begun(2)
    world.ended(2)
    assert world.taken() == ["play /f2", "playing 2", "played 2"]


def test_a_call_that_is_over_leaves_no_file() -> None:
    world = PlayerWorld()
    world.add(1, 2, 3)
    world.begun(1)
    world.player.forget_files()
    assert world.removed == ["/f2", "/f3", "/f1"]
    world.ended(1)
    assert world.removed == ["/f2", "/f3", "/f1"], "each once"


def test_a_file_does_not_fail_while_the_event_socket_is_lost() -> None:
    """Its deadline once ran on, and the server ended the call just before it would have sent the file again."""
    world = PlayerWorld()
    world.add(1)
    assert world.player.deadline_ns is not None, "it should begin soon"
    world.taken()
    world.player.forget_files()
    world.pass_ms(60_000)
    assert world.taken() == []
    world.player.lost_touch(world.now_ns)
    assert world.taken() == ["stop", "again"]


def test_files_of_other_programs_are_ignored() -> None:
    world = PlayerWorld()
    world.begun(9)
    world.ended(9)
    world.player.refused("/f9", 0)
    world.add(1)
    world.begun(9)
    world.ended(9, was_broken=True)
    assert world.taken() == ["play /f1"]


STEPS = st.lists(
    st.sampled_from(["add", "clear", "begun", "ended", "broken", "stopped", "late", "refused", "lost", "over", "wait"]),
    min_size=1, max_size=40,
)  # fmt: skip


@given(STEPS, st.booleans())
def test_at_any_time_one_file_plays_and_no_cleared_one(steps: list[str], is_new: bool) -> None:
    world = PlayerWorld(is_new)
    n_added, cleared = 3 if is_new else 0, 0
    asked: str | None = None
    for step in steps:
        match step:
            case "add":
                n_added += 1
                world.add(n_added)
            case "clear":
                cleared = n_added + 1
                world.player.clear(cleared, world.now_ns)
            case "begun" if asked:
                world.player.begun(asked, world.now_ns)
            case "ended" | "broken" if asked:
                world.player.ended(asked, step == "broken", world.now_ns)
            case "stopped":
                world.player.stopped(world.now_ns)
            case "late" if world.player._late:
                world.player.begun(world.player._late, world.now_ns)
            case "over":
                world.player.forget_files()
            case "refused" if asked:
                world.player.refused(asked, world.now_ns)
            case "lost":
                world.player.lost_touch(world.now_ns)
            case "wait":
                world.pass_ms(100)
        for told in world.taken():
            what, _, which = told.partition(" ")
            if what == "play":
                assert int(which.removeprefix("/f")) >= cleared
                asked = which
            elif which:
                assert int(which) >= cleared, told
    world.pass_ms(60_000)
    assert len(set(world.removed)) == len(world.removed), "each file is removed once"
