"""Another engine goes on with a sentence: nothing is said twice, nothing is lost, and heard text stays right.

The audio is the fake engine's tones, so what the caller hears is read from the frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tone_text import tone_text

from telephony_tts.engines.api import Chunk, Timing, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.words import words
from telephony_tts.session.effects import FeedText, Pull, Synthesize
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

MS = 1_000_000
RATE_HZ = 24_000
TEXT = "abc defg hij klmno pqr stuv wxyz"
SETTINGS = SessionSettings(codec="pcm", first_clause_chars=0, lead_ms=200, ahead_ms=2_000)


class Rig:
    """A session whose engines are played by the test: it gives their audio chunk by chunk."""

    def __init__(
        self, settings: SessionSettings = SETTINGS, *, timings: bool = True, ms_per_char: int = 60,
        estimated: float | None = None,
    ) -> None:
        """`estimated`: the engines estimate the times of words, which are the true ones times this."""
        self.now_ns = 10**9
        self.session = Session(settings, self.now_ns)
        self.timings, self.ms_per_char, self.estimated = timings, ms_per_char, estimated
        self.asked: list[Utterance] = []
        self.fed: list[FeedText] = []
        self.events: list[Any] = []
        self.frames: list[bytes] = []
        self.wants = False

    def pump(self) -> None:
        for effect in self.session.poll(self.now_ns):
            if isinstance(effect, Synthesize):
                self.asked.append(effect.utterance)
                self.wants = True
            elif isinstance(effect, Pull):
                self.wants = True
            elif isinstance(effect, FeedText):
                self.fed.append(effect)
            elif isinstance(effect, m.Frame):
                self.frames.append(effect.payload)
            else:
                self.events.append(effect)

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.session.receive(message, self.now_ns)
        self.pump()

    def run(self, ms: float) -> None:
        end_ns = self.now_ns + round(ms * MS)
        while (deadline_ns := self.session.deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.pump()
        self.now_ns = end_ns

    def chunks(self, text: str, rate_hz: int = RATE_HZ) -> list[Chunk]:
        pcm = render(text, sample_rate_hz=rate_hz, ms_per_char=self.ms_per_char)
        n_char, n_chunk = self.ms_per_char * rate_hz // 1000, rate_hz // 10
        n_told = n_char if self.estimated is None else round(n_char * self.estimated)
        timings = [Timing(start, end, start * n_told, end * n_told) for start, end in words(text)]
        return [
            Chunk(
                pcm[at : at + n_chunk], rate_hz,
                tuple(t for t in timings if at <= t.start_sample < at + n_chunk) if self.timings else (),
                estimates=self.estimated is not None,
            )
            for at in range(0, len(pcm), n_chunk)
        ]  # fmt: skip

    def give(self, chunks: list[Chunk], engine: str, pause_ms: float = 0) -> None:
        """The engine gives its audio as the session asks for it."""
        for chunk in chunks:
            while not self.wants:
                self.run(20)
            self.run(pause_ms)
            self.wants = False
            self.session.audio(self.asked[-1].id, chunk, self.now_ns, 0.0, engine)
            self.pump()

    def end(self) -> None:
        while not self.wants:
            self.run(20)
        self.session.audio_ended(self.asked[-1].id, self.now_ns)
        self.pump()

    def hand_over(self) -> Utterance:
        while not self.wants:
            self.run(20)
        rest = self.session.hand_over(self.asked[-1].id, self.now_ns)
        self.pump()
        assert rest is not None and rest.id == self.asked[-1].id
        return rest

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    @property
    def heard(self) -> str:
        return tone_text(np.frombuffer(b"".join(self.frames), "<i2").astype(np.int16))


def assert_all_said_once(heard: str, text: str, *, broken: int = 1) -> None:
    """All words in order. At most `broken` times a word that was broken off stands before the whole word."""
    left, n_broken = "".join(heard.split()), 0
    for word in text.split():
        while not left.startswith(word):
            n_broken += 1
            n_same = next((n for n in range(len(word), 0, -1) if left.startswith(word[:n])), 0)
            assert n_same > 0 and n_broken <= broken, f"{word!r} is not next in {left!r}; all is {heard!r}"
            left = left[n_same:]
        left = left.removeprefix(word)
    assert not left, f"{left!r} is too much in {heard!r}"


@pytest.mark.slow
@examples(max_examples=120, deadline=None)
@given(st.integers(0, 20), st.integers(0, 90), st.integers(0, 20))
@example(0, 0, 0)
@example(7, 0, 3)
@example(20, 60, 20)
def test_all_is_said_once_whenever_engines_die(n_first: int, pause_ms: int, n_second: int) -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    rig.give(rig.chunks(TEXT)[:n_first], "one", pause_ms)
    rest = rig.hand_over()
    rig.give(rig.chunks(rest.text, 16_000)[:n_second], "two", pause_ms)
    rest = rig.hand_over()
    rig.give(rig.chunks(rest.text), "three")
    rig.end()
    rig.run(10_000)
    assert_all_said_once(rig.heard, TEXT, broken=2)
    (spoken,), (done,) = rig.of(m.SentenceSpoken), rig.of(m.Done)
    assert spoken.text == TEXT and spoken.engines == done.engines
    assert abs(done.audio_ms - 20 * len(rig.frames)) < 1


def test_a_sentence_of_which_nothing_was_sent_is_spoken_by_one_engine() -> None:
    rig = Rig()
    rig.send(m.Say("first one. " + TEXT, "t"))
    rig.give(rig.chunks("first one."), "one")
    rig.end()
    rig.give(rig.chunks(TEXT)[:8], "one")
    assert rig.hand_over().text == TEXT
    rig.give(rig.chunks(TEXT), "two")
    rig.end()
    rig.run(10_000)
    assert rig.heard.split() == ["first", "one", *TEXT.split()]
    assert [event.engines for event in rig.of(m.SentenceSpoken)] == [["one"], ["two"]]
    (done,) = rig.of(m.Done)
    assert done.engines == ["one", "two"]


def test_what_was_not_sent_of_a_broken_word_is_dropped() -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    rig.give(rig.chunks(TEXT)[:10], "one")  # 1000 ms: 16 characters and two thirds, in the middle of "klmno"
    rest = rig.hand_over()
    assert rest.text == "klmno pqr stuv wxyz"
    rig.give(rig.chunks(rest.text), "two")
    rig.end()
    rig.run(10_000)
    assert rig.heard.split() == TEXT.split()
    assert rig.of(m.SentenceSpoken)[0].engines == ["one", "two"]


def test_a_word_that_was_sent_in_part_is_said_again() -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    rig.give(rig.chunks(TEXT)[:10], "one")
    rig.run(900)  # all was sent; the caller hears "klm"
    rest = rig.hand_over()
    assert rest.text == "klmno pqr stuv wxyz"
    rig.give(rig.chunks(rest.text), "two")
    rig.end()
    rig.run(10_000)
    assert rig.heard.split() == ["abc", "defg", "hij", "klmklmno", "pqr", "stuv", "wxyz"]


def test_speech_that_waited_for_its_engine_before_is_cut_at_the_right_place() -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    chunks = rig.chunks(TEXT)
    rig.give(chunks[:5], "one")
    rig.run(1_500)  # an underrun
    rig.give(chunks[5:14], "one")
    rest = rig.hand_over()
    assert rest.text == "stuv wxyz"
    rig.give(rig.chunks(rest.text), "two")
    rig.end()
    rig.run(10_000)
    assert rig.heard.replace(" ", "") == TEXT.replace(" ", "")


def test_without_timings_audio_is_kept_and_no_word_is_lost() -> None:
    for n_chunks in range(1, 19):
        rig = Rig(timings=False)
        rig.send(m.Say(TEXT, "t"))
        rig.give(rig.chunks(TEXT)[:n_chunks], "one")
        rig.run(50)
        rest = rig.hand_over()
        rig.give(rig.chunks(rest.text), "two")
        rig.end()
        rig.run(10_000)
        n_said = len(TEXT) - len(rest.text)
        assert TEXT.endswith(rest.text) and (n_said == 0 or TEXT[n_said - 1] == " ")
        assert "".join(rig.heard.split()).endswith("".join(rest.text.split()))
        assert n_said * 60 <= n_chunks * 100, "a word that was not said is lost"


@pytest.mark.parametrize("scale", [0.6, 0.8, 1.0, 1.6])
@pytest.mark.parametrize("pause_ms", [0, 90])
def test_with_estimated_times_nothing_is_lost_and_the_repetition_is_bounded(scale: float, pause_ms: int) -> None:
    letters = TEXT.replace(" ", "")
    for n_chunks in range(1, 20):
        rig = Rig(estimated=scale)
        rig.send(m.Say(TEXT, "t"))
        rig.give(rig.chunks(TEXT)[:n_chunks], "one", pause_ms)
        rig.run(50)
        rest = rig.hand_over()
        rig.give(rig.chunks(rest.text), "two")
        rig.end()
        rig.run(10_000)
        heard, again = rig.heard.replace(" ", ""), rest.text.replace(" ", "")
        assert letters.endswith(again) and heard.endswith(again)
        n_said, n_first = len(heard) - len(again), len(letters) - len(again)
        assert heard[:n_said] == letters[:n_said], "all audio of the first engine is kept"
        assert n_first <= n_said, f"{letters[n_said:n_first]!r} is lost"
        if n_first:
            assert TEXT[len(TEXT) - len(rest.text) - 1] == " ", "the second engine begins with a word"
        n_sure = n_said * 0.5 / scale
        assert n_first >= n_sure - len("klmno") - 1, "more is said again than the estimate may be wrong by"


def test_three_engines_with_estimated_times_lose_nothing() -> None:
    """Each engine begins no later than where the one before it was broken off. Each letter is in the text once."""
    letters = TEXT.replace(" ", "")
    for n_chunks in ((4, 3), (9, 5), (12, 12), (19, 1)):
        rig = Rig(estimated=0.6)
        rig.send(m.Say(TEXT, "t"))
        rest = TEXT
        for n in n_chunks:
            rig.give(rig.chunks(rest)[:n], "engine")
            rig.run(2_000)
            last_heard = rig.heard[-1]
            rest = rig.hand_over().text
            begin = len(letters) - len(rest.replace(" ", ""))
            assert begin <= letters.index(last_heard) + 1
        rig.give(rig.chunks(rest), "engine")
        rig.end()
        rig.run(10_000)
        assert set(letters) <= set(rig.heard) and rig.heard.replace(" ", "").endswith(rest.replace(" ", ""))


def test_estimated_times_of_the_first_engine_do_not_make_those_of_the_second_uncertain() -> None:
    rig = Rig(estimated=1.0)
    rig.send(m.Say(TEXT, "t"))
    rig.give(rig.chunks(TEXT)[:10], "one")
    rig.run(900)
    rest = rig.hand_over()
    assert rest.text == "hij klmno pqr stuv wxyz"
    rig.estimated = None
    rig.give(rig.chunks(rest.text)[:10], "two")  # 16 characters and two thirds: in the middle of "stuv"
    assert rig.hand_over().text == "stuv wxyz"


def test_marks_and_heard_text_follow_the_second_engine() -> None:
    for n_played_ms in (0, 300, 900):
        rig = Rig()
        rig.send(m.Text("abc defg hij klmno", "t"), m.Mark("here", "t"), m.Text(" pqr stuv wxyz", "t", last=True))
        rig.give(rig.chunks(TEXT)[:10], "one")
        rig.run(n_played_ms)
        rest = rig.hand_over()
        rig.ms_per_char = 120  # the second engine is slower
        began = len(rig.frames)
        rig.give(rig.chunks(rest.text), "two")
        while not rig.of(m.MarkReached):
            rig.run(20)
        rig.send(m.Clear())
        (cleared,) = rig.of(m.Cleared)
        assert cleared.heard_text == "abc defg hij klmno", n_played_ms
        assert "klmno" in rig.heard and len(rig.frames) > began


def test_heard_text_ends_at_the_last_word_of_the_first_engine() -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    rig.give(rig.chunks(TEXT)[:10], "one")
    rig.run(900)
    rig.hand_over()
    rig.run(3_000)
    rig.send(m.Clear())
    (cleared,) = rig.of(m.Cleared)
    assert cleared.heard_text == "abc defg hij"


@pytest.mark.parametrize("n_chunks", [0, 3])
def test_text_that_the_bot_still_writes_goes_to_the_next_engine(n_chunks: int) -> None:
    rig = Rig(SessionSettings(codec="pcm", first_clause_chars=0, text_mode="interleaved"))
    rig.send(m.Text("abc defg hij klmno pqr", "t"), m.Text(" st", "t"))
    (first,) = rig.asked
    given_text = first.text + "".join(feed.text for feed in rig.fed)
    assert first.more is not None and given_text
    rig.give(rig.chunks(given_text)[:n_chunks], "one")
    rig.run(500)
    rest = rig.hand_over()
    assert rest.more is not None and rest.more is not first.more
    assert rest.text == given_text if n_chunks == 0 else given_text.endswith(rest.text) and rest.text != given_text
    n_fed = len(rig.fed)
    rig.send(m.Text("uv wxyz", "t", last=True))
    later = "".join(feed.text for feed in rig.fed[n_fed:])
    assert rig.fed[-1].last
    rig.give(rig.chunks(rest.text + later), "two")
    rig.end()
    rig.run(10_000)
    assert_all_said_once(rig.heard, TEXT)


def test_an_engine_that_lacked_only_the_end_leaves_nothing_to_say() -> None:
    rig = Rig()
    rig.send(m.Say("abc def.", "t"))
    rig.give(rig.chunks("abc def."), "one")
    rig.run(100)
    rest = rig.hand_over()
    assert not any(char.isalnum() for char in rest.text)
    rig.end()
    rig.run(3_000)
    assert rig.heard.split() == ["abc", "def"] and rig.of(m.Done)[0].engines == ["one"]


def test_a_turn_that_is_over_is_not_handed_over() -> None:
    rig = Rig()
    rig.send(m.Say(TEXT, "t"))
    rig.send(m.Clear())
    assert rig.session.hand_over(rig.asked[-1].id, rig.now_ns) is None
