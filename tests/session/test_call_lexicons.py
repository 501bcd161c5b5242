"""Lexicons in a call: which apply, and that heard text, marks and sentences stay the bot's characters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import World

from telephony_tts.engines.api import Pronunciation
from telephony_tts.session.effects import FeedText
from telephony_tts.session.lexicons import CallLexicon
from telephony_tts.session.settings import SessionSettings
from telephony_tts.text.lexicon import Lexicon, read_entry
from telephony_tts.wire import messages as m


def of(**entries: str) -> Lexicon:
    return Lexicon([read_entry(written, say) for written, say in entries.items()])


def world(lexicon: CallLexicon | None, **settings: Any) -> World:
    return World(replace(SessionSettings(first_clause_chars=0, lexicon=lexicon), **settings))


def everywhere(**entries: str) -> CallLexicon:
    return CallLexicon({"all": of(**entries)}, {"*": ("all",)})


def spoken(made: World) -> list[str]:
    return [utterance.text for _, utterance in made.submitted]


TEXT = "Our SQL is new. Call now."
# At 50 ms a character: "Our sequel is new." is 18 characters, of which "sequel" sounds from 200 to 500 ms.


def test_the_engine_gets_the_reading_and_the_bot_its_own_text() -> None:
    made = world(everywhere(SQL="sequel"))
    made.say(TEXT, "a")
    made.run(5000)
    assert spoken(made) == ["Our sequel is new.", "Call now."]
    assert [event.text for event in made.of(m.SentenceSpoken)] == ["Our SQL is new.", "Call now."]
    assert made.of(m.Done)[0].chars == len(TEXT)


@pytest.mark.parametrize(
    ("ms", "heard"),
    [(130, ""), (260, "Our"), (420, "Our"), (490, "Our"), (510, "Our SQL"), (660, "Our SQL is"), (910, TEXT[:15])],
)
@pytest.mark.parametrize("timings", [True, False])
def test_an_interruption_inside_a_replaced_word_reports_the_bots_text(ms: int, heard: str, timings: bool) -> None:
    made = World(SessionSettings(first_clause_chars=0, lexicon=everywhere(SQL="sequel")), timings=timings)
    made.say(TEXT, "a")
    made.run(ms)
    made.send(m.Clear())
    (cleared,) = made.of(m.Cleared)
    assert cleared.heard_text == heard
    assert cleared.heard_text + cleared.unheard_text == TEXT


def test_a_reading_as_long_as_its_words_is_heard_as_a_whole() -> None:
    lexicon = everywhere(**{"A B C": "hello"})
    made = World(SessionSettings(first_clause_chars=0, lexicon=lexicon), timings=False)
    text = "Say A B C now."
    made.say(text, "a")
    made.run(50 * len("Say hel"))
    made.send(m.Clear())
    assert made.of(m.Cleared)[0].heard_text == "Say"


def test_marks_behind_a_replaced_word_come_when_it_has_been_spoken() -> None:
    made = world(everywhere(SQL="sequel"))
    made.send(m.Text("Our SQL", "a"))
    made.send(m.Mark("behind", "a"))
    made.send(m.Text(" is new.", "a"))
    made.send(m.Mark("end", "a"))
    made.send(m.End("a"))
    reached: dict[str, float] = {}
    while made.now_ms < 2000:
        made.run(10)
        for mark in made.of(m.MarkReached):
            reached.setdefault(mark.name, made.now_ms)
    assert reached["behind"] == pytest.approx(50 * len("Our sequel"), abs=30)
    assert reached["end"] == pytest.approx(50 * len("Our sequel is new."), abs=30)


def test_later_scopes_win() -> None:
    shelf = {name: of(SQL=name) for name in ("all", "english", "voice", "token", "call")}
    lexicon = CallLexicon(shelf, {"*": ("all",), "en": ("english",)}, {"anna": ("voice",)})

    def read(found: CallLexicon, lang: str = "en", voice: str | None = None) -> str:
        (reading,) = found.readings("SQL", lang, voice)
        return reading.text

    assert read(lexicon, "de") == "all"
    assert read(lexicon, "en-GB") == "english"
    assert read(lexicon, voice="anna") == "voice"
    assert read(lexicon, voice="bert") == "english"
    with_token = lexicon.with_names(["token"])
    assert read(with_token, voice="anna") == "token"
    assert read(with_token.with_names(["call"]), voice="anna") == "call"
    assert read(with_token.with_own({"SQL": "own"})[0], voice="anna") == "own"


def test_a_lexicon_that_is_replaced_counts_at_the_next_sentence() -> None:
    shelf = {"all": of(SQL="sequel")}
    made = world(CallLexicon(shelf, {"*": ("all",)}))
    made.send(m.Text("SQL now.", "a"))
    made.send(m.Flush("a"))
    made.run(100)
    shelf["all"] = of(SQL="squeal")
    made.send(m.Text(" SQL later.", "a", True))
    made.run(5000)
    assert spoken(made) == ["sequel now.", "squeal later."]


def test_entries_of_the_call() -> None:
    made = world(None)
    made.send(m.Configure(lexicon={"SQL": "sequel"}))
    made.say("SQL one.")
    made.run(3000)
    made.send(m.Configure(voice="anna"))
    made.say("SQL two.")
    made.run(3000)
    made.send(m.Configure(lexicon={"two": "2"}))
    made.say("SQL two.")
    made.run(3000)
    made.send(m.Configure(lexicon={}))
    made.say("SQL two.")
    made.run(3000)
    assert spoken(made) == ["sequel one.", "sequel two.", "SQL two.", "SQL two."]
    assert made.session._intake.speaking.lexicon is None


def test_entries_that_cannot_be_used_are_warned_of_and_the_others_count() -> None:
    made = world(None)
    made.send(m.Configure(lexicon={"SQL": "sequel", "...": "dots", "/a+/": "x", "重庆": "chong2"}))
    made.say("SQL.")
    made.run(2000)
    warnings = made.of(m.WarningEvent)
    assert [warning.code for warning in warnings] == ["bad_lexicon_entry"] * 3
    assert "..." in warnings[0].message and "/a+/" in warnings[1].message and "重庆" in warnings[2].message
    assert spoken(made) == ["sequel."]


def test_a_sign_in_a_sentence_may_be_spoken() -> None:
    made = world(everywhere(**{"😀": "smile"}))
    made.say("Hello 😀 there.")
    made.run(3000)
    assert spoken(made) == ["Hello smile there."]


def test_pinyin_and_ipa_travel_with_the_utterance() -> None:
    made = world(everywhere(重庆="chong2 qing4", tomato="/təˈmɑːtoʊ/"))
    made.say("去重庆。")
    made.run(3000)
    made.say("1 tomato, please.")
    made.run(3000)
    first, second = (utterance for _, utterance in made.submitted)
    assert first.text == "去重庆。"
    assert first.pronunciations == (Pronunciation(1, 2, "pinyin", "chong2"), Pronunciation(2, 3, "pinyin", "qing4"))
    assert second.text == "one tomato, please."
    (sound,) = second.pronunciations
    assert second.text[sound.start : sound.end] == "tomato" and (sound.alphabet, sound.value) == ("ipa", "təˈmɑːtoʊ")


# ------------------------------------------------------------------ interleaved


def write(made: World, text: str) -> None:
    for n, word in enumerate(text.split(" ")):
        made.send(m.Text(word if n == 0 else " " + word, "a"))
        made.run(20)
    made.send(m.End("a"))
    made.run(8000)


def given_to_engine(made: World) -> list[str]:
    feeds = [effect for effect in made.log if isinstance(effect, FeedText)]
    return [
        utterance.text + "".join(feed.text for feed in feeds if feed.utterance_id == utterance.id)
        for _, utterance in made.submitted
    ]


@pytest.mark.parametrize(
    ("text", "whole", "first"),
    [
        (
            "Please note that all of our SQL Server hosts are down.",
            "Please note that all of our the data base hosts are down.",
            "Please note that",
        ),
        (
            "We have a lot of new SQL Serves products for you.",
            "We have a lot of new sequel Serves products for you.",
            "We have a",
        ),
        (
            "It is in the old and small New York office now.",
            "It is in the old and small big city office now.",
            "It is in",
        ),
        (
            "It is in the old and small New Jersey office now.",
            "It is in the old and small New Jersey office now.",
            "It is in",
        ),
    ],
)
def test_an_open_sentence_is_read_as_the_whole_one(text: str, whole: str, first: str) -> None:
    entries = {"SQL Server": "the data base", "SQL": "sequel", "New York": "big city"}
    made = world(everywhere(**entries), text_mode="interleaved")
    write(made, text)
    assert given_to_engine(made) == [whole]
    assert made.submitted[0][1].text == first and made.submitted[0][1].more is not None
    (done,) = made.of(m.Done)
    assert done.chars == len(text)
    assert [event.text for event in made.of(m.SentenceSpoken)] == [text]


def test_with_sounds_a_sentence_is_not_opened() -> None:
    made = world(everywhere(tomato="/təˈmɑːtoʊ/"), text_mode="interleaved")
    write(made, "Please take a tomato from the basket over there.")
    assert made.submitted[0][1].more is None
    assert made.submitted[0][1].pronunciations[0].value == "təˈmɑːtoʊ"


def test_a_lexicon_named_for_the_call_and_a_new_bot() -> None:
    made = world(CallLexicon({"call": of(SQL="sequel")}))
    made.say("SQL one.")
    made.session.use_lexicons(["call"])
    made.say("SQL two.")
    made.run(5000)
    made.session.new_bot(made.session.settings.limits)
    made.say("SQL three.")
    made.run(5000)
    assert spoken(made) == ["SQL one.", "sequel two.", "SQL three."]


def test_a_voice_that_is_written_with_its_engine_has_its_lexicons() -> None:
    lexicon = CallLexicon({"names": of(SQL="sequel")}, {}, {"anna": ("names",)})
    for voice, n in (("anna", 1), ("cosyvoice2/anna", 1), ("cosyvoice2/bob", 0)):
        assert len(lexicon.readings("SQL", "en", voice)) == n
