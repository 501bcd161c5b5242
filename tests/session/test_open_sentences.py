"""`text_mode: interleaved`: a sentence is spoken while the bot still writes it, and ends with its text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from world import World

from telephony_tts.runtime.errors import EngineError
from telephony_tts.session.effects import CancelSynthesis, FeedText, Synthesize
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.text.normalizer import detect_lang, normalize_spans, said_before
from telephony_tts.wire import messages as m

SETTINGS = SessionSettings(first_clause_chars=0, text_mode="interleaved")
SENTENCE = "I am looking at your account now, please stay with me."


def new_world(settings: SessionSettings = SETTINGS, **shape: Any) -> World:
    return World(settings, **shape)


def write(world: World, text: str, *, turn: str | None = None, last: bool = False, pause_ms: float = 0) -> None:
    """The bot's model writes word by word."""
    words = text.split(" ")
    for n, word in enumerate(words):
        world.send(m.Text(word if n == 0 else " " + word, turn, last and n == len(words) - 1))
        world.run(pause_ms)


def fed(world: World, utterance_id: str | None = None) -> list[tuple[str, bool]]:
    feeds = [effect for effect in world.log if isinstance(effect, FeedText)]
    return [(feed.text, feed.last) for feed in feeds if utterance_id in (None, feed.utterance_id)]


def given_to_engine(world: World) -> list[str]:
    """The whole text of each utterance that the engine got."""
    return [utterance.text + "".join(text for text, _ in fed(world, utterance.id)) for _, utterance in world.submitted]


def test_speech_begins_with_the_first_certain_words_and_the_rest_follows() -> None:
    world = new_world()
    write(world, "I am looking at your account now, please")
    (began,) = world.of(m.Started)
    assert [(u.text, u.more is not None) for _, u in world.submitted] == [("I am looking", True)]
    assert fed(world) == [(" at", False), (" your", False)]
    world.run(450)
    assert len(world.frames) > 20 and world.of(m.SentenceSpoken) == [] == world.of(m.Done)
    write(world, " stay with me.", last=True)
    world.run(5000)
    assert given_to_engine(world) == [SENTENCE]
    assert [last for _, last in fed(world)].count(True) == 1 and fed(world)[-1][1]
    (spoken,) = world.of(m.SentenceSpoken)
    assert (spoken.text, spoken.index, spoken.start_ms) == (SENTENCE, 0, 0)
    (done,) = world.of(m.Done)
    assert done.chars == len(SENTENCE) and abs(done.audio_ms - 50 * len(SENTENCE)) <= 20
    assert began.first_audio_ms == 0 and done.latency["first_audio_ms"] == 0


def test_first_audio_counts_from_the_beginning_of_the_part_not_from_the_end_of_its_sentence() -> None:
    world = new_world(first_audio_ms=70)
    write(world, SENTENCE, pause_ms=40, last=True)
    world.run(5000)
    (started,) = world.of(m.Started)
    (done,) = world.of(m.Done)
    assert started.first_audio_ms == 70
    assert done.latency["text_to_sentence_ms"] == 200  # the blank behind the fifth word comes with the sixth
    assert done.latency["queue_ms"] == 0


def test_a_complete_sentence_is_not_opened() -> None:
    texts = ["Your parcel is here, and I am glad. ", "It came on May 5 at 3 p.m. ", "Anything else?"]
    plain, open_ = World(replace(SETTINGS, text_mode="sentence")), new_world()
    for world in (plain, open_):
        world.send(m.Text("".join(texts)))
        world.run(100)
        world.send(m.Text(" Tell me.", last=True))
        world.run(20_000)
    assert len(plain.of(m.SentenceSpoken)) == 4
    assert open_.log == plain.log and not fed(open_)


def test_sentence_mode_never_opens() -> None:
    world = World(replace(SETTINGS, text_mode="sentence"))
    write(world, SENTENCE, pause_ms=10, last=True)
    world.run(9000)
    assert [(u.text, u.more) for _, u in world.submitted] == [(SENTENCE, None)] and not fed(world)


def test_a_number_holds_back_the_rest_and_is_read_with_its_sentence() -> None:
    world = new_world()
    write(world, "I can tell you that the code is 4829 and", pause_ms=10)
    assert given_to_engine(world) == ["I can tell you that the"]
    write(world, " it is not long. So what would you like to do", pause_ms=10, last=True)
    world.run(20_000)
    assert given_to_engine(world)[0] == "I can tell you that the code is four eight two nine and it is not long."
    assert [spoken.text for spoken in world.of(m.SentenceSpoken)] == [
        "I can tell you that the code is 4829 and it is not long.", "So what would you like to do",
    ]  # fmt: skip


def test_mandarin_is_spoken_while_it_is_written() -> None:
    world = new_world()
    text = "没有问题，我马上为您查看这个订单的配送情况，请您稍等片刻。"
    for char in text:
        world.send(m.Text(char))
        world.run(20)
    assert len(world.submitted[0][1].text) == 6 and len(fed(world)) > 5
    world.send(m.End())
    world.run(9000)
    assert given_to_engine(world) == [text]
    assert world.submitted[0][1].lang == "zh"


def test_a_cut_inside_spoken_text_joins_the_next_sentence_to_it() -> None:
    """A pause ends the text at a clause, though the engine has words behind it already."""
    world = new_world()
    write(world, "I have your account here, and I can see that it is all")
    assert given_to_engine(world) == ["I have your account here, and I can see that"]
    world.run(600)
    assert not any(last for _, last in fed(world)), "the first pause ends the sentence at its comma"
    write(world, " fine.", last=True)
    world.run(9000)
    whole = "I have your account here, and I can see that it is all fine."
    assert given_to_engine(world) == [whole]
    assert [spoken.text for spoken in world.of(m.SentenceSpoken)] == [whole]


def test_an_open_sentence_ends_at_the_text_timeout() -> None:
    world = new_world()
    world.send(m.Text("I am looking at your account"))
    world.run(1100)
    assert fed(world)[-1][1], "the second pause lets the last word go"
    world.run(5000)
    assert [spoken.text for spoken in world.of(m.SentenceSpoken)] == ["I am looking at your account"]
    write(world, " and it is fine.", last=True)
    world.run(9000)
    assert given_to_engine(world) == ["I am looking at your account", "and it is fine."]


def test_a_pause_before_half_a_number_ends_the_part_before_it() -> None:
    world = new_world()
    world.send(m.Text("I am looking at order 48"))
    world.run(3000)
    assert given_to_engine(world) == ["I am looking at order"] and fed(world)[-1][1]
    world.send(m.Text("15 now.", last=True))
    world.run(9000)
    assert given_to_engine(world)[1] == "four eight one five now.", "the number of an order"


def test_flush_and_the_end_of_the_turn_end_the_sentence() -> None:
    for ending in (m.Flush(), m.End(), m.Close()):
        world = new_world()
        write(world, "I am looking at your account and")
        world.send(ending)
        assert fed(world)[-1][1], ending
        world.run(9000)
        assert given_to_engine(world) == ["I am looking at your account and"]
        assert len(world.of(m.SentenceSpoken)) == 1
        assert len(world.of(m.Done)) == (not isinstance(ending, m.Flush))


def test_an_end_without_more_text_ends_the_sentence() -> None:
    world = new_world()
    write(world, "I have your account here, and I")
    assert given_to_engine(world) == ["I have your account"]
    world.send(m.Text(" can"))
    assert given_to_engine(world) == ["I have your account here,"]
    world.run(600)
    assert fed(world)[-1] == ("", True), "a pause ends the text at the clause that was given already"
    world.send(m.End())
    world.run(9000)
    assert given_to_engine(world) == ["I have your account here,", "and I can"]
    assert len(world.of(m.Done)) == 1


def test_an_end_without_a_sound_of_its_own_ends_the_sentence() -> None:
    world = new_world()
    write(world, "I am looking at your account now 😀 😀")
    world.send(m.End())
    world.run(9000)
    assert given_to_engine(world)[0].rstrip() == "I am looking at your account now"
    assert len(world.of(m.Done)) == 1 and len(world.of(m.SentenceSpoken)) == 1


def test_a_clear_ends_the_open_part_and_late_text_is_dropped() -> None:
    world = new_world()
    write(world, "I am looking at your account now, please", turn="a", pause_ms=100)
    utterance = world.submitted[0][1]
    world.send(m.Clear())
    assert world.cancelled == [utterance.id] and not world.open
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_text + cleared.unheard_text == "I am looking at your account now, please"
    assert cleared.heard_text == "I am"
    assert cleared.unheard_text.startswith(" looking")
    n_feeds = len(fed(world))
    write(world, " stay with me.", turn="a", last=True)
    world.run(3000)
    assert len(fed(world)) == n_feeds and len(world.submitted) == 1
    assert [warning.code for warning in world.of(m.WarningEvent)] == ["turn_ended"]


def test_the_heard_part_of_an_open_sentence_can_reach_into_its_fed_text() -> None:
    for timings in (True, False):
        world = new_world(replace(SETTINGS, text_timeout_ms=60_000), timings=timings, ms_per_char=100)
        write(world, "I am looking at your account now, please stay")
        world.run(1550)
        world.send(m.Clear())
        (cleared,) = world.of(m.Cleared)
        assert cleared.heard_text in ("I am looking at", "I am looking at your"), timings
        assert cleared.heard_text + cleared.unheard_text == "I am looking at your account now, please stay"


def test_no_sentence_opens_while_text_waits_to_be_cut() -> None:
    world = new_world()
    text = "I am looking at your account now and will be back with you soon"
    world.send(m.Text(" " * 2010 + text))
    world.run(100)
    world.send(m.Text(".", last=True))
    world.run(9000)
    assert given_to_engine(world) == [text + "."]
    assert [spoken.text for spoken in world.of(m.SentenceSpoken)] == [text + "."]


def test_a_hang_up_and_a_failure_end_the_open_part() -> None:
    world = new_world()
    write(world, "I am looking at your account now, please")
    world.send(m.MediaStop("hangup"))
    assert world.cancelled == [world.submitted[0][1].id] and world.finished is not None

    world = new_world()
    write(world, "I am looking at your account now, please")
    world.session.audio_failed(world.submitted[0][1].id, EngineError("broken"), world.now_ns)
    world.pump()
    assert world.cancelled == [world.submitted[0][1].id]
    (error,) = world.of(m.ErrorEvent)
    assert (error.code, error.turn) == ("engine_failed", "t1") and not world.of(m.Cleared)
    world.say("Next.")
    world.run(3000)
    assert [done.turn for done in world.of(m.Done)] == ["t2"]


def test_an_engine_that_ends_before_its_text_has_failed() -> None:
    world = new_world()
    write(world, "I am looking at your account now, please", pause_ms=50)
    world.session.audio_ended(world.submitted[0][1].id, world.now_ns)
    world.pump()
    (error,) = world.of(m.ErrorEvent)
    assert error.turn == "t1" and "before it had the end" in error.message
    assert world.cancelled == [world.submitted[0][1].id] and not world.of(m.SentenceSpoken)
    assert error.heard_text + error.unheard_text == "I am looking at your account now, please"


def test_the_engine_timeout_counts_from_the_end_of_the_text() -> None:
    patient = replace(SETTINGS, engine_timeout_ms=2000, text_timeout_ms=60_000, limits=CallLimits(turn_idle_s=0))
    world = new_world(patient, first_audio_ms=1e9)
    write(world, "I am looking at your account now, please")
    world.run(30_000)
    assert world.of(m.ErrorEvent) == [], "the bot is silent, not the engine"
    world.send(m.Text(" stay. So"))
    world.run(1900)
    assert fed(world)[-1][1] and world.of(m.ErrorEvent) == []
    world.run(200)
    (error,) = world.of(m.ErrorEvent)
    assert "no audio for 2 s" in error.message


def test_silence_while_the_bot_writes_is_not_an_underrun() -> None:
    world = new_world(replace(SETTINGS, text_timeout_ms=60_000))
    write(world, "I am looking at your account now, please")
    world.run(8000)
    write(world, " stay with me.", last=True)
    world.run(8000)
    (done,) = world.of(m.Done)
    assert done.underruns == 0
    late = new_world(chunk_interval_ms=300)
    write(late, SENTENCE, last=True)
    late.run(20_000)
    assert late.of(m.Done)[0].underruns > 0, "an engine that has its text counts as late"


def test_a_mark_in_an_open_sentence_is_reported_at_its_word() -> None:
    for timings in (True, False):
        world = new_world(timings=timings)
        write(world, "I am looking")
        world.send(m.Mark("m1"))
        write(world, " at your account now, please stay with me.", last=True)
        world.run(350)
        assert world.of(m.MarkReached) == []
        world.run(400 if timings else 8000)
        assert [mark.name for mark in world.of(m.MarkReached)] == ["m1"]
        world.run(9000)
        assert len(world.of(m.Done)) == 1


def test_the_next_turn_waits_for_an_open_sentence() -> None:
    world = new_world()
    write(world, "I am looking at your account now, please", turn="a")
    world.say("Good bye.", "b")
    world.run(400)
    assert [u.turn for _, u in world.submitted] == ["a"]
    world.send(m.Text(" stay.", "a", last=True))
    world.run(9000)
    assert [done.turn for done in world.of(m.Done)] == ["a", "b"]


PIECES = [
    "I am looking at your account now", ", and it is fine for me", " 4829", " $5", ".", ". ", " Good",
    " morning to all", " of you and yours", "! ", "\n", " (as ever)", " \"so he said\"", " e.g. this", " **this**",
    "，请您稍等我帮您查询", "您好", "。", " 😀", " a@b.com", "May", " the USD", ": ", " — no", "  ", ", ",
    " at 5 pm", " was $1,250.40", " is your new code", " and you can see it there", "单号是4711", "，已经交给快递员",
]  # fmt: skip
STEPS = st.tuples(st.sampled_from(PIECES), st.sampled_from([0, 0, 5, 30, 200, 600, 1100]))


def readings(text: str, before: str) -> list[list[str]]:
    """The words of a complete sentence as they may be read behind `before`.

    A Chinese sentence may begin with so many English words that it is English so far. Its first numbers are then read
    in English (`text/settled.py`).
    """

    def read(part: str, lang: str | None, before: str) -> str:
        return "".join(span.spoken for span in normalize_spans(part, lang, (), before))

    words = [read(text, None, before).split()]
    first_han = re.search("[\u4e00-\u9fff]", text)
    if detect_lang(text) == "zh" and first_han and len(text[: first_han.start()].split()) >= 3:
        n = first_han.start()
        words.append((read(text[:n], "en", before) + read(text[n:], "zh", "")).split())
    return words


LOOKING = ("I am looking at your account now", 0)


@pytest.mark.slow
@example([*[LOOKING] * 5, (" was $1,250.40", 600), *[LOOKING] * 2, ("，请您稍等我帮您查询", 600)], 0, False, 400)
@given(
    st.lists(STEPS, min_size=1, max_size=14),
    st.sampled_from([0, 24]),
    st.booleans(),
    st.sampled_from([0, 40, 400]),
)
@examples(max_examples=300, deadline=None, derandomize=True)
def test_the_spoken_text_is_the_bots_text_however_it_arrives(
    steps: list[tuple[str, int]], first_clause_chars: int, timings: bool, first_audio_ms: int
) -> None:
    world = new_world(
        replace(SETTINGS, first_clause_chars=first_clause_chars), timings=timings, first_audio_ms=first_audio_ms,
        ms_per_char=15,
    )  # fmt: skip
    for piece, pause_ms in steps:
        world.send(m.Text(piece, "a"))
        world.run(pause_ms)
    world.send(m.End("a"))
    world.run(120_000)
    assert len(world.of(m.Done)) == 1
    spoken = world.of(m.SentenceSpoken)
    assert [s.index for s in spoken] == list(range(len(world.submitted)))
    begun_in = [utterance.lang for _, utterance in world.submitted]
    at = 0
    source = "".join(piece for piece, _ in steps)
    for sentence, said in zip(spoken, given_to_engine(world), strict=True):
        place = source.index(sentence.text, at)
        if begun_in[sentence.index] == detect_lang(sentence.text):
            before = said_before(source, place)
            assert said.split() in readings(sentence.text, before), "read like a complete sentence"
        assert not any(char.isdigit() for char in said)
        assert not any(char.isalpha() for char in source[at:place]), "no word is left out or said twice"
        at = place + len(sentence.text)
    assert not any(char.isalpha() for char in source[at:])
    for effect in world.log:
        if isinstance(effect, Synthesize):
            is_open = effect.utterance.more is not None
            assert [last for _, last in fed(world, effect.utterance.id)].count(True) == is_open
    assert not world.open and not any(isinstance(effect, CancelSynthesis) for effect in world.log)
    for sentence, said in zip(spoken, given_to_engine(world), strict=True):
        assert abs(sentence.end_ms - sentence.start_ms - len(said) * 15) <= 5, "all of its audio is the sentence's"
