"""A peer that always gets frames: silence between turns and in gaps, and little of it before speech."""

from __future__ import annotations

import numpy as np
import pytest
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

PTIME_MS = 20
LEAD_MS = 100
SILENT = b"\xff" * 160
LONG = "one two three four five six seven eight nine ten eleven twelve."


def filled(**kwargs: object) -> World:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=LEAD_MS), media=False, **kwargs)  # type: ignore[arg-type]
    world.session.attach_media(world.now_ns, marks=False, clears=True, fills=True)
    world.pump()
    return world


class TelephonePeer:
    """Plays a frame every 20 ms, from when the first frame came."""

    def __init__(self, world: World, until_ms: float | None = None) -> None:
        self.holes: list[tuple[float, float]] = []
        self.most_ms = 0.0
        end_ms = world.frames[0][0]
        for at_ms, _, _ in world.frames:
            if at_ms > end_ms:
                self.holes.append((end_ms, at_ms))
            end_ms = max(end_ms, at_ms) + PTIME_MS
            self.most_ms = max(self.most_ms, end_ms - at_ms)
        self.end_ms = end_ms
        if until_ms is not None and end_ms < until_ms:
            self.holes.append((end_ms, until_ms))


def heard(world: World) -> list[int]:
    """The turns in the order in which they were heard, each stretch once; 0 is silence."""
    turns = [turn for _, turn, _ in world.frames]
    return [turn for i, turn in enumerate(turns) if i == 0 or turns[i - 1] != turn]


def spoken_ms(world: World) -> float:
    """The time from the first frame of speech to the last."""
    speech = [i for i, (_, turn, _) in enumerate(world.frames) if turn]
    return (speech[-1] + 1 - speech[0]) * PTIME_MS


def test_a_call_without_speech_gets_silence_at_most_a_frame_and_a_half_ahead() -> None:
    world = filled()
    world.run(1000)
    peer = TelephonePeer(world, 1000)
    assert peer.holes == [] and peer.most_ms <= 1.5 * PTIME_MS
    assert {payload for _, _, payload in world.frames} == {SILENT}
    assert not world.events, "silence causes no event"


def test_speech_begins_even_with_the_least_lead_and_the_longest_frames() -> None:
    """Silence is sent half a frame before the buffer ends. With a smaller lead it always came before speech."""
    world = World(SessionSettings(first_clause_chars=0, lead_ms=60, ptime_ms=60), media=False)
    world.session.attach_media(world.now_ns, marks=False, clears=True, fills=True)
    world.run(1000)
    world.say(LONG, "a")
    world.run(5000)
    assert [done.turn for done in world.of(m.Done)] == ["a"]


def test_a_leg_that_makes_its_own_silence_gets_no_silence() -> None:
    world = World()
    world.run(1000)
    assert world.frames == []


def test_silence_and_a_turn_follow_each_other_without_a_hole() -> None:
    world = filled(first_audio_ms=35)
    world.run(333)
    world.say(LONG, "a")
    world.run(5000)
    assert heard(world) == [0, 1, 0]
    peer = TelephonePeer(world, 5333)
    assert peer.holes == [] and peer.most_ms <= LEAD_MS + 1.5 * PTIME_MS
    (done,) = world.of(m.Done)
    assert abs(spoken_ms(world) - done.audio_ms) <= PTIME_MS, "its last frame is nearly silent"
    begun_ms = next(at_ms for at_ms, turn, _ in world.frames if turn == 1)
    assert 333 + 35 <= begun_ms <= 333 + 35 + 1, "it waits only for silence that the peer has already"


def test_two_turns_in_a_row_have_no_silence_between() -> None:
    world = filled()
    world.say(LONG, "a")
    world.say(LONG, "b")
    world.run(8000)
    assert TelephonePeer(world, 8000).holes == []
    assert abs(spoken_ms(world) - sum(done.audio_ms for done in world.of(m.Done))) <= PTIME_MS


@pytest.mark.parametrize("late_ms", [150, 400, 1010])
def test_the_gap_of_a_late_engine_is_filled_and_the_schedule_moves_by_it(late_ms: int) -> None:
    """Each chunk of 100 ms takes longer than it lasts."""
    world = filled(chunk_interval_ms=late_ms)
    world.say(LONG, "a")
    world.run(60_000)
    assert TelephonePeer(world, 60_000).holes == []
    (done,) = world.of(m.Done)
    assert done.underruns > 0
    assert heard(world).count(1) > 3, "silence was heard between"
    n_speech = sum(turn == 1 for _, turn, _ in world.frames)
    # The first and the last frame of a stretch may hold a little silence.
    assert done.audio_ms // PTIME_MS - 2 * done.underruns <= n_speech <= done.audio_ms // PTIME_MS


def test_after_a_gap_the_turn_is_over_when_the_peer_has_played_it() -> None:
    """Silence in the peer's buffer is heard before the rest of the speech."""
    world = filled(chunk_interval_ms=155)
    world.say(LONG, "a")
    while not world.of(m.Done):
        world.run(1)
    over_ms = world.now_ms
    last = max(i for i, (_, turn, _) in enumerate(world.frames) if turn)
    world.frames = world.frames[: last + 1]
    assert over_ms - 2 * PTIME_MS <= TelephonePeer(world).end_ms <= over_ms + 1


def test_a_clear_in_a_gap_is_followed_by_silence_at_once() -> None:
    world = filled(chunk_interval_ms=1000)
    world.say(LONG, "a")
    world.run(500)
    for _ in range(20):
        world.run(1)
        if world.frames[-1][0] > world.now_ms - 1:
            break
    assert world.frames[-1][2] == SILENT, "a frame of silence was just sent"
    world.frames.clear()
    world.send(m.Clear())
    assert [at_ms for at_ms, _, _ in world.frames] == [world.now_ms]


def test_a_clear_sends_silence_at_once_and_drops_the_silence_ahead() -> None:
    world = filled()
    world.say(LONG, "a")
    world.run(600)
    world.frames.clear()
    world.send(m.Clear())
    world.run(400)
    assert world.of(m.MediaClear) and heard(world) == [0]
    assert world.frames[0][0] == 600, "the peer's buffer is empty: at once"
    assert TelephonePeer(world, 1000).holes == []


def test_a_peer_that_is_behind_catches_up_in_the_silence() -> None:
    world = filled()
    world.run(500)
    world.frames.clear()
    world.session.peer_holds(10, world.now_ns)
    world.run(1000)
    assert 190 <= world.frames[0][0] - 500 <= 200, "the peer has 200 ms to play"
    assert [at_ms for at_ms, _, _ in world.frames] == pytest.approx(
        [world.frames[0][0] + PTIME_MS * i for i in range(len(world.frames))]
    )
    world.session.peer_holds(1, world.now_ns)
    n_before = len(world.frames)
    world.run(100)
    assert len(world.frames) - n_before in (4, 5), "no silence is left out"


def test_a_socket_that_is_full_gets_no_silence_and_later_not_all_that_was_missed() -> None:
    world = filled()
    world.run(100)
    world.session.writable(False)
    world.frames.clear()
    world.run(2000)
    assert world.frames == []
    world.session.writable(True)
    world.pump()
    world.run(20)
    assert len(world.frames) <= 2


def test_silence_missed_in_a_stall_is_not_sent_later() -> None:
    world = filled()
    world.run(100)
    world.frames.clear()
    world.jump(500)
    world.run(1000)
    assert TelephonePeer(world).most_ms <= 1.5 * PTIME_MS


@pytest.mark.parametrize(("codec", "rate_hz", "silence"), [("alaw", 8000, b"\xd5"), ("pcm", 16000, b"\0\0")])
def test_silence_is_in_the_legs_own_codec(codec: str, rate_hz: int, silence: bytes) -> None:
    world = World(media=False)
    start = m.MediaStart("c", "s", codec, rate_hz, ptime_ms=30)
    world.session.attach_media(world.now_ns, marks=False, clears=True, fills=True, start=start)
    world.pump()
    world.run(300)
    assert {payload for _, _, payload in world.frames} == {silence * (rate_hz * 30 // 1000)}
    assert len(world.frames) in (10, 11)
    assert np.frombuffer(world.frames[0][2], np.uint8).size == len(silence) * rate_hz * 30 // 1000
