"""A peer that plays files: each sentence fills frames of its own, is made without a pause, and is heard when reported.

The peer below gathers frames up to the mark that ends a sentence, as FreeSWITCH's leg does, and takes 120 ms to begin
each file. A file's audio names its turn, so what was heard is judged by samples.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import MS, STEP, World

from telephony_tts.session.caller.played import Played
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

START_MS = 120.0
TEXT = "One two three four. Five six seven eight nine ten. Eleven twelve."


class FilePeer:
    """Plays what the session sends, file by file, on the world's clock."""

    def __init__(self, world: World, rate_hz: int = 8000, *, plays: bool = True, end_told_ms: float = 0) -> None:
        """`end_told_ms`: how long after its end a file is reported as played."""
        self.world = world
        self.plays = plays
        self.end_told_ms = end_told_ms
        self.files: list[np.ndarray] = []
        self.sent_ms: list[float] = []
        self.heard: list[tuple[float, float, int]] = []
        """(from ms, to ms, turn) of each file, as far as it was played."""
        self._gathered: list[bytes] = []
        self._marks: list[tuple[int, str]] = []
        self._queue: list[tuple[np.ndarray, list[tuple[int, str]]]] = []
        self._n_seen = len(world.log)
        self._generation = 0
        self._busy = False
        self.rate_hz = rate_hz
        start = m.MediaStart("c", "s", "pcm", rate_hz, ptime_ms=20, lead_ms=60_000, whole_sentences=True)
        world.session.attach_media(world.now_ns, marks=True, clears=True, start=start)
        world.pump()

    def run(self, ms: float) -> None:
        end_ms = self.world.now_ms + ms
        while self.world.now_ms < end_ms:
            self.look()
            self.world.run(min(5.0, end_ms - self.world.now_ms))
        self.look()

    def look(self) -> None:
        for effect in self.world.log[self._n_seen :]:
            if isinstance(effect, m.Frame):
                self._gathered.append(effect.payload)
            elif isinstance(effect, m.MediaMark):
                if not self._gathered:
                    # Behind the file that is playing: a mark of the bot, or the end of the turn.
                    (self._queue[-1][1] if self._queue else self._current).append((10**9, effect.name))
                    continue
                self._marks.append((sum(map(len, self._gathered)) // 2, effect.name))
                if effect.ends_sentence:
                    pcm = np.frombuffer(b"".join(self._gathered), "<i2")
                    self.files.append(pcm)
                    self.sent_ms.append(self.world.now_ms)
                    self._queue.append((pcm, self._marks))
                    self._gathered, self._marks = [], []
            elif isinstance(effect, m.MediaClear):
                self.stop()
                self._gathered, self._marks = [], []
        self._n_seen = len(self.world.log)
        if self._queue and not self._busy and self.plays:
            self._begin(*self._queue.pop(0))

    def stop(self) -> None:
        """Drop all files: they are neither played nor reported."""
        self._generation += 1
        self._busy = False
        self._queue.clear()
        if self.heard and self.heard[-1][1] > self.world.now_ms:
            self.heard[-1] = (self.heard[-1][0], self.world.now_ms, self.heard[-1][2])

    def _begin(self, pcm: np.ndarray, marks: list[tuple[int, str]]) -> None:
        self._busy, self._current, generation = True, marks, self._generation
        begun_ns = self.world.now_ns + round(START_MS * MS)
        turn = round(float(np.median(np.abs(pcm.astype(int)))) / STEP)

        def begins() -> None:
            if generation != self._generation:
                return
            length_ms = len(pcm) * 1000 / self.rate_hz
            self.heard.append((self.world.now_ms, self.world.now_ms + length_ms, turn))
            for at, name in list(marks):
                if at < len(pcm):
                    marks.remove((at, name))
                    self.world._at(begun_ns + at * 1_000_000_000 // self.rate_hz, lambda name=name: echo(name))
            self.world._at(begun_ns + round((length_ms + self.end_told_ms) * MS), ends)

        def echo(name: str) -> None:
            if generation == self._generation:
                self.world.session.receive(m.MediaMark(name), self.world.now_ns)

        def ends() -> None:
            if generation == self._generation:
                self._busy = False
                for _, name in marks:
                    echo(name)

        self.world._at(begun_ns, begins)


def sentence_ms(text: str) -> float:
    return 50.0 * len(text)


@pytest.mark.parametrize("rate_hz", [8000, 16000])
@pytest.mark.parametrize("chunk_interval_ms", [0, 30])
def test_each_sentence_is_one_file_of_whole_frames(rate_hz: int, chunk_interval_ms: float) -> None:
    world = World(chunk_interval_ms=chunk_interval_ms)
    peer = FilePeer(world, rate_hz)
    world.say(TEXT, "a")
    peer.run(9000)
    sentences = ["One two three four.", "Five six seven eight nine ten.", "Eleven twelve."]
    assert len(peer.files) == 3
    for pcm, sentence in zip(peer.files, sentences, strict=True):
        n_frame = rate_hz // 50
        n_spoken = round(sentence_ms(sentence) * rate_hz / 1000)
        assert len(pcm) == -(-n_spoken // n_frame) * n_frame
        # All of this sentence and nothing of the others: sound up to its last sample, silence behind it.
        loud = np.abs(pcm.astype(int)) > STEP // 2
        assert loud[n_frame : n_spoken - n_frame].all() and not loud[n_spoken:].any()
    assert len(world.of(m.Done)) == 1


def test_a_sentence_longer_than_what_is_made_ahead_is_made_without_a_pause() -> None:
    long = "word " * 120 + "end."  # 30 s
    world = World(SessionSettings(first_clause_chars=0, ahead_ms=2000), chunk_interval_ms=10)
    peer = FilePeer(world)
    world.say(long, "a")
    peer.run(4000)
    n_ms = sum(len(pcm) for pcm in peer.files) / 8
    assert peer.files and peer.sent_ms[0] < 0.2 * n_ms, "sent as fast as it is synthesised, not as it is played"


def test_no_sentence_is_made_much_before_it_is_needed() -> None:
    world = World(SessionSettings(first_clause_chars=0, ahead_ms=1000))
    peer = FilePeer(world)
    world.say("One two three four five six seven. " * 6, "a")
    peer.run(12_500)
    begun = [ms for ms, _ in world.submitted]
    assert len(begun) == 6
    for k, ms in enumerate(begun[2:], 2):
        ends_ms = peer.heard[k - 1][1]
        assert ends_ms - 1300 < ms < ends_ms, f"sentence {k} was asked for at {ms}, the one before ends at {ends_ms}"


def test_done_and_marks_come_when_the_peer_has_played_not_by_our_clock() -> None:
    """Six sentences take 720 ms more than their audio. Our schedule would end before the last sentence begins."""
    world = World(SessionSettings(first_clause_chars=0, mark_timeout_ms=300))
    peer = FilePeer(world)
    text = "One two three four. " * 8
    world.send(m.Text(text[:100], "a"))
    world.send(m.Mark("middle", "a"))
    world.send(m.Text(text[100:], "a", last=True))
    told: dict[str, float] = {}
    for _ in range(1200):
        peer.run(10)
        for event in world.events:
            if isinstance(event, m.MarkReached | m.Done):
                told.setdefault(getattr(event, "name", "done"), world.now_ms)
    assert len(peer.heard) == 8
    assert told["done"] == pytest.approx(peer.heard[-1][1], abs=25)
    assert told["middle"] == pytest.approx(peer.heard[4][1], abs=25)


@pytest.mark.parametrize("after_ms", [150, 300, 700, 1160, 1200, 1240, 1500, 2000])
def test_a_clear_reports_what_was_heard(after_ms: float) -> None:
    """Also between two files, when our clock goes on and nothing is heard."""
    world = World()
    peer = FilePeer(world)
    world.say(TEXT, "a")
    peer.run(after_ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    heard_ms = sum(min(to_ms, world.now_ms) - from_ms for from_ms, to_ms, _ in peer.heard)
    assert cleared.basis == "marks"
    assert cleared.heard_ms == pytest.approx(heard_ms, abs=25)
    peer.run(500)
    assert len(world.terminals("a")) == 1


def test_before_the_first_file_begins_nothing_was_heard() -> None:
    world = World()
    peer = FilePeer(world)
    world.say(TEXT, "a")
    peer.run(START_MS - 10)
    assert peer.files
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.heard_ms, cleared.basis) == ("", 0, "marks")


def test_after_cleared_no_frame_of_that_turn_is_sent_and_the_next_turn_is_whole() -> None:
    world = World(chunk_interval_ms=20)
    peer = FilePeer(world)
    world.say(TEXT, "a")
    peer.run(600)
    world.send(m.Clear())
    n_files = len(peer.files)
    world.say("Good bye now.", "b")
    peer.run(4000)
    later = [round(float(np.median(np.abs(pcm.astype(int)))) / STEP) for pcm in peer.files[n_files:]]
    assert later == [2], "only the second turn's"
    assert [len(world.terminals(turn)) for turn in "ab"] == [1, 1]


def test_a_turn_that_stays_when_another_is_cleared_is_played_whole() -> None:
    """The clear empties the peer. Its files of the second turn are sent again, from their beginning."""
    world = World()
    peer = FilePeer(world)
    world.say("One two three four five six seven eight nine ten.", "a")
    world.say("Eleven twelve thirteen.", "b")
    peer.run(1800)
    assert len(peer.files) == 2, "the peer has both"
    world.send(m.Clear("a"))
    peer.run(3000)
    spoken_ms = [to_ms - from_ms for from_ms, to_ms, turn in peer.heard if turn == 2]
    assert spoken_ms == [pytest.approx(sentence_ms("Eleven twelve thirteen."), abs=20)]
    assert isinstance(world.terminals("b")[0], m.Done)


def test_a_due_turn_that_never_began_is_played_whole_too() -> None:
    """By our schedule the second turn plays, but the peer has not begun the first."""
    world = World()
    peer = FilePeer(world, plays=False)
    world.say("One two.", "a")
    world.say("Eleven twelve thirteen.", "b")
    peer.run(900)
    world.send(m.Clear("a"))
    peer.look()
    peer.plays = True
    peer.run(3000)
    spoken_ms = [to_ms - from_ms for from_ms, to_ms, _ in peer.heard]
    assert spoken_ms == [pytest.approx(sentence_ms("Eleven twelve thirteen."), abs=20)]


def test_no_turn_is_done_and_no_mark_played_before_the_peer_has_played_it() -> None:
    """However long it takes. The leg ends the call if no report comes."""
    world = World(SessionSettings(first_clause_chars=0, mark_timeout_ms=300))
    peer = FilePeer(world, plays=False)
    world.send(m.Text("Eleven twelve.", "a"))
    world.send(m.Mark("end", "a"))
    world.send(m.End("a"))
    peer.run(9000)
    assert world.terminals("a") == [] == world.of(m.MarkReached)
    peer.plays = True
    peer.run(2000)
    assert [mark.state for mark in world.of(m.MarkReached)] == ["played"]
    assert [type(event) for event in world.terminals("a")] == [m.Done]


@pytest.mark.parametrize(
    ("again_ms", "cleared_ms", "heard_ms"),
    [(9000, 1500, 600), (1000, 1500, 600), (1000, 1700, 700), (1000, 2100, 1100)],
)
def test_a_peer_with_an_unknown_position_does_not_count_as_playing(
    again_ms: int, cleared_ms: int, heard_ms: int
) -> None:
    """Heard text does not shrink while the peer plays audio again, and grows after that."""
    world = World()
    peer = FilePeer(world, end_told_ms=10_000)
    world.say("One two three four five six seven eight nine ten.", "a")
    peer.run(START_MS + 600)
    world.send(m.MediaLost())
    end = [effect.name for effect in world.log if isinstance(effect, m.MediaMark)][-1]
    begun = m.MediaBegun(end, len(peer.files[0]))
    world._at(world.start_ns + again_ms * MS, lambda: world.session.receive(begun, world.now_ns))
    peer.run(cleared_ms - world.now_ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_ms == pytest.approx(heard_ms, abs=25)


def test_a_turn_that_was_heard_when_another_is_cleared_is_over_without_a_report_of_its_end() -> None:
    """The clear makes the peer drop its pending reports."""
    world = World()
    peer = FilePeer(world, end_told_ms=400)
    world.send(m.Text("One two three.", "a"))
    world.send(m.Mark("end", "a"))
    world.send(m.End("a"))
    world.say("Eleven twelve thirteen.", "b")
    peer.run(START_MS + sentence_ms("One two three.") + 100)
    assert world.terminals("a") == []
    world.send(m.Clear("b"))
    assert [mark.state for mark in world.of(m.MarkReached)] == ["played"]
    assert [type(event) for event in world.terminals("a")] == [m.Done]
    peer.run(3000)
    assert len(peer.heard) == 1


@pytest.mark.parametrize("stands_still_ms", [0, 700])
def test_a_turn_that_a_clear_of_another_interrupts_goes_on_where_the_peer_was(stands_still_ms: int) -> None:
    """Our schedule goes on while the peer stands still, so it does not count."""
    world = World()
    peer = FilePeer(world)
    world.say("One two three four five six seven eight nine ten.", "a")
    peer.run(20)
    world.say("Eleven twelve thirteen.", "b")
    peer.run(1000)
    if stands_still_ms:
        peer.stop()
        world.send(m.MediaLost())
        peer.run(stands_still_ms)
    world.send(m.Clear("b"))
    peer.run(4000)
    heard_ms = [to_ms - from_ms for from_ms, to_ms, _ in peer.heard]
    assert len(heard_ms) == 2
    assert sum(heard_ms) == pytest.approx(sentence_ms("One two three four five six seven eight nine ten."), abs=45)
    assert isinstance(world.terminals("a")[0], m.Done)


def test_the_echo_of_a_late_file_is_still_recognised() -> None:
    """The echo gate was told when each frame is due. When the file begins, all of these times move."""
    rng = np.random.default_rng(1)
    told_late, told_early = Played(10_000 * MS), Played(10_000 * MS)
    for n in range(100):
        payload = rng.bytes(160)
        told_late.add(payload, (n * 20 + 300) * MS)
        told_early.add(payload, n * 20 * MS)
    told_early.moved(300 * MS)
    assert np.array_equal(told_late.wave(0, 20_000), told_early.wave(0, 20_000))
    assert told_late.wave(0, 20_000).any()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 30)),
        st.tuples(st.just("run"), st.integers(1, 2500)),
        st.tuples(st.just("clear"), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(STEPS, st.sampled_from([0, 40, 150]))
def test_the_guarantees_hold_for_any_turns_and_clears(steps: list[tuple[str, int]], chunk_interval_ms: int) -> None:
    world = World(chunk_interval_ms=chunk_interval_ms)
    peer = FilePeer(world)
    said: dict[str, str] = {}
    n_marks = 0
    for what, n in steps:
        if what == "say":
            turn = f"t{len(said)}"
            said[turn] = "Word " * n + "end. Short one."
            world.send(m.Text(said[turn][:-5], turn))
            world.send(m.Mark(turn, turn))
            world.send(m.Text(said[turn][-5:], turn, last=True))
            n_marks += 1
        elif what == "run":
            peer.run(n)
        elif n < len(said):
            world.send(m.Clear(f"t{n}"))
        else:
            world.send(m.Clear())
        peer.look()
    for _ in range(40):
        if world.session.turns:
            peer.run(5000)
    numbers = {turn: number for number, turn in enumerate(world.turn_numbers, 1)}
    order = [effect for effect in world.log if isinstance(effect, m.Frame | m.Cleared | m.Done)]
    for turn in said:
        (end,) = world.terminals(turn)
        if isinstance(end, m.Done):
            files = [to_ms - from_ms for from_ms, to_ms, number in peer.heard if number == numbers[turn]]
            assert sum(files) >= sentence_ms(said[turn]) - 150, "all of it was heard"
        else:
            later = order[order.index(end) :]
            ours = [e for e in later if isinstance(e, m.Frame) and level(e.payload) == numbers.get(turn)]
            assert ours == [], "frames behind the turn's cleared"
            assert said[turn].startswith(end.heard_text)
    assert sorted(mark.name for mark in world.of(m.MarkReached)) == sorted(said) and n_marks == len(said)


def level(payload: bytes) -> int:
    return round(float(np.median(np.abs(np.frombuffer(payload, "<i2").astype(int)))) / STEP)
