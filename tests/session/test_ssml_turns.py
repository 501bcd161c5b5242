"""SSML in a turn: what the caller hears of it, and what the bot is told in its own characters."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import MS, World

from telephony_tts.engines.api import Chunk, Pronunciation, Utterance
from telephony_tts.runtime.errors import EngineError
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.wire import messages as m

PLAIN = SessionSettings(first_clause_chars=0)
SSML = SessionSettings(first_clause_chars=0, text_type="ssml")


class SsmlWorld(World):
    """A World that plays inserts as the catalog's player does. `ms_per_char` counts for normal speed."""

    def chunks_of(self, utterance: Utterance, number: int) -> list[Chunk]:
        if utterance.insert is None:
            return super().chunks_of(utterance, number)
        return list(itertools.islice(utterance.insert.chunks(), 400))


def speaking(text: str, world: World | None = None, **others: Any) -> World:
    """Say one turn "a" to its end."""
    world = world or SsmlWorld(SSML, **others)
    world.say(text, "a")
    world.run(60_000)
    return world


def spoken(world: World) -> list[str]:
    return [utterance.text for _, utterance in world.submitted]


def warnings(world: World) -> list[tuple[str, str]]:
    return [(event.code, event.message) for event in world.of(m.WarningEvent)]


def rests_ms(world: World) -> list[int]:
    """The lengths of the silences inside the frames that were sent."""
    quiet = [number == 0 for _, number, _ in world.frames]
    return [20 * len(list(group)) for is_quiet, group in itertools.groupby(quiet) if is_quiet]


# ------------------------------------------------------------------ which turns are SSML


@pytest.mark.parametrize(
    ("text_type", "of_turn", "expected"),
    [
        ("auto", None, ["One two."]),
        ("ssml", None, ["One two."]),
        ("text", "ssml", ["One two."]),
        ("auto", "text", ["One two."]),  # tags are left out of plain text too, but they mean nothing
    ],
)
def test_the_turn_or_the_call_says_what_it_is(text_type: str, of_turn: str | None, expected: list[str]) -> None:
    for message in (m.Say, m.Text):
        world = SsmlWorld(SessionSettings(first_clause_chars=0, text_type=text_type))
        text = '<speak>One <mark name="here"/>two.</speak>'
        world.send(message(text, "a", text_type=of_turn))
        world.send(m.End("a")) if message is m.Text else None
        world.run(5_000)
        assert [text.strip() for text in spoken(world)] == expected
        assert [mark.name for mark in world.of(m.MarkReached)] == (["here"] if of_turn != "text" else [])
        assert world.of(m.Done)[0].chars == len(text)


def test_a_config_message_says_it_for_the_turns_after_it() -> None:
    world = SsmlWorld(PLAIN)
    world.send(m.Configure(text_type="ssml"))
    speaking('One<mark name="m"/> two.', world)
    assert [mark.name for mark in world.of(m.MarkReached)] == ["m"]


def test_what_begins_with_speak_may_come_in_any_pieces() -> None:
    whole = '<speak>One<mark name="m"/> two.</speak>'
    for text in (whole, f' \n<?xml version="1.0"?>{whole}'):
        world = SsmlWorld(PLAIN)
        for char in text:
            world.send(m.Text(char, "a"))
        world.send(m.End("a"))
        world.run(5_000)
        assert [mark.name for mark in world.of(m.MarkReached)] == ["m"]
        assert world.of(m.Done)[0].chars == len(text)


@pytest.mark.parametrize("text", ["<speaker> on.", "<speak up. Please", "<spe", "< 3 is small.", "  ", "<speak"])
def test_what_only_looks_like_speak_is_plain_text(text: str) -> None:
    plain, streamed = World(SessionSettings(first_clause_chars=0, text_type="text")), SsmlWorld(PLAIN)
    plain.say(text, "a")
    for char in text:
        streamed.send(m.Text(char, "a"))
    streamed.send(m.End("a"))
    for world in (plain, streamed):
        world.run(5_000)
    assert spoken(streamed) == spoken(plain)
    assert warnings(streamed) == warnings(plain)
    assert [(e.text, e.start_ms) for e in streamed.of(m.SentenceSpoken)] == [
        (e.text, e.start_ms) for e in plain.of(m.SentenceSpoken)
    ]
    assert streamed.of(m.Done)[0].chars == len(text)


def test_text_that_is_held_back_belongs_to_the_turn() -> None:
    world = SsmlWorld(PLAIN)
    world.send(m.Text("<spe", "a"))
    world.run(3_000)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.unheard_text) == ("", "<spe")


def test_ssml_in_a_turn_that_began_as_plain_text_means_nothing() -> None:
    world = SsmlWorld(PLAIN)
    world.send(m.Text("One. ", "a"))
    world.send(m.Text('<speak>Two<break time="2s"/><mark name="m"/></speak>', "a", True, "ssml"))
    world.run(10_000)
    assert "".join(spoken(world)).split() == ["One.", "Two"]
    assert not world.of(m.MarkReached) and not warnings(world)
    assert max(rests_ms(world), default=0) < 500


# ------------------------------------------------------------------ what is heard


def test_a_break_is_silence_of_its_length() -> None:
    world = speaking('<speak>One two.<break time="700ms"/> Three.</speak>', ms_per_char=20)
    assert spoken(world) == ["One two.", "", "Three."]
    (rest_ms,) = [ms for ms in rests_ms(world) if ms > 100]
    assert 680 <= rest_ms <= 740
    assert abs(world.of(m.Done)[0].audio_ms - (8 * 20 + 700 + 6 * 20)) <= 20
    silent = [payload for _, number, payload in world.frames if number == 0]
    assert sum(payload == b"\xff" * 160 for payload in silent) >= 33, "the rest is silence and no quiet hum"


def test_ten_thousand_breaks_of_an_hour_are_a_minute_and_one_warning() -> None:
    limits = CallLimits(turn_chars=300_000, text_chars_per_s=0)
    world = SsmlWorld(SessionSettings(first_clause_chars=0, limits=limits, pace="burst"))
    world.say("<speak>One." + '<break time="3600s"/>' * 10_000 + "Two.</speak>", "a")
    world.run(200_000)
    assert 60_000 <= world.of(m.Done)[0].audio_ms <= 61_000
    assert [code for code, _ in warnings(world)] == ["bad_markup"]


def test_marks_are_reported_at_their_places() -> None:
    world = SsmlWorld(SSML, ms_per_char=50)
    world.say('One two<mark name="m1"/> three.<break time="1s"/><mark name="m2"/> Four.<mark name="m3"/>', "a")
    at_ms = {}
    for _ in range(400):
        world.run(10)
        for mark in world.of(m.MarkReached):
            at_ms.setdefault(mark.name, world.now_ms)
    assert at_ms == {
        "m1": pytest.approx(7 * 50, abs=30),
        "m2": pytest.approx(14 * 50 + 1000, abs=40),
        "m3": pytest.approx(14 * 50 + 1000 + 5 * 50, abs=60),
    }


def test_a_flood_of_marks_is_refused() -> None:
    world = SsmlWorld(SessionSettings(first_clause_chars=0, text_type="ssml", pending_marks=3))
    world.say("One." + '<mark name="m"/>' * 5, "a")
    world.run(5_000)
    assert sorted(mark.state for mark in world.of(m.MarkReached)) == ["cleared"] * 2 + ["played"] * 3
    assert {event.code for event in world.of(m.ErrorEvent)} == {"too_many_marks"}


def test_each_part_has_its_own_voice() -> None:
    settings = SessionSettings(first_clause_chars=0, text_type="ssml", voice="anna", speed=1.5)
    world = SsmlWorld(settings, knows_voice=lambda name: name in ("anna", "bert"))
    speaking(
        'Hello <voice name="bert">I am <lang xml:lang="fr-FR">Bert</lang></voice>. Now <prosody rate="fast">quick'
        '</prosody> and <prosody rate="50%">slow</prosody>.',
        world,
    )
    assert [(u.text, u.voice, u.lang, u.speed) for _, u in world.submitted] == [
        ("Hello", "anna", "en", 1.5),
        ("I am", "bert", "en", 1.5),
        ("Bert.", "bert", "fr-FR", 1.5),
        ("Now", "anna", "en", 1.5),
        ("quick", "anna", "en", 1.875),
        ("and", "anna", "en", 1.5),
        ("slow.", "anna", "en", 0.75),
    ]
    assert not warnings(world)


@pytest.mark.parametrize(("rate", "speed"), [("x-slow", 0.5), ("20%", 0.5), ("300%", 2.0), ("x-fast", 1.5)])
def test_the_speed_stays_in_its_limits(rate: str, speed: float) -> None:
    world = speaking(f'<prosody rate="{rate}">One.</prosody>')
    assert world.submitted[0][1].speed == speed


def test_an_unknown_voice_is_a_warning_and_the_turns_voice_goes_on() -> None:
    world = SsmlWorld(SSML, knows_voice=lambda name: name == "anna")
    text = '<voice name="stranger">One. </voice><voice name="anna">Two.</voice><voice name="none">Three.</voice>'
    speaking(text, world)
    assert [(u.text, u.voice) for _, u in world.submitted] == [("One.", None), ("Two.", "anna"), ("Three.", None)]
    assert [code for code, _ in warnings(world)] == ["unknown_voice"]


def test_paragraphs_are_cut() -> None:
    assert spoken(speaking("<p>One two</p><p><s>Three</s> <s>four</s></p>")) == ["One two", "Three", "four"]


def test_lines_of_pretty_markup_are_one_sentence() -> None:
    assert spoken(speaking("<speak>\n  One two\n  three.\n</speak>")) == ["One two   three."]


def test_emphasis_is_the_engines_tokens_where_they_are_allowed() -> None:
    text = "Pay <emphasis>now</emphasis>, <emphasis>all of it. Really</emphasis>."
    allowed = SessionSettings(first_clause_chars=0, text_type="ssml", control_tokens=("<strong>", "</strong>"))
    assert spoken(speaking(text, SsmlWorld(allowed))) == [
        "Pay <strong>now</strong>, <strong>all of it.</strong>", "<strong>Really</strong>.",
    ]  # fmt: skip
    assert spoken(speaking(text)) == ["Pay now, all of it.", "Really."]


def test_emphasis_without_effect_is_one_warning_a_turn() -> None:
    text = "Pay <emphasis>now</emphasis>, <emphasis>all of it. Really</emphasis>."
    world = speaking(text)
    world.say(text, "b")
    assert [code for code, _ in warnings(world)] == ["no_emphasis", "no_emphasis"]
    assert [warning.turn for warning in world.of(m.WarningEvent)] == ["a", "b"]
    assert "<strong>" in warnings(world)[0][1]
    one = SessionSettings(first_clause_chars=0, text_type="ssml", control_tokens=("<strong>",))
    assert len(warnings(speaking(text, SsmlWorld(one)))) == 1, "one of the two tokens is not enough"
    allowed = SessionSettings(first_clause_chars=0, text_type="ssml", control_tokens=("<strong>", "</strong>"))
    assert not warnings(speaking(text, SsmlWorld(allowed)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The <sub alias="World Wide Web Consortium">W3C</sub>.', "The World Wide Web Consortium."),
        ('Take <sub alias="5">V</sub> kg.', "Take five kilograms."),
        ('Code <say-as interpret-as="characters">a1-b</say-as>.', "Code A. one dash B."),
        ('Pin <say-as interpret-as="digits">2026</say-as>.', "Pin two zero two six."),
        ('On <say-as interpret-as="date" format="dmy">3/4/2026</say-as>.', "On April third, twenty twenty six."),
        ('At <say-as interpret-as="time">1430</say-as>.', "At fourteen thirty."),
        ('Call <say-as interpret-as="telephone">5550199</say-as>.', "Call five five five zero one nine nine."),
        ('Pay <say-as interpret-as="currency" format="EUR">3.50</say-as>.', "Pay three euros and fifty cents."),
        ('The <say-as interpret-as="ordinal">3</say-as>.', "The third."),
        ('尾号<say-as interpret-as="digits">2021</say-as>。', "尾号二零二幺。"),
        ('共<say-as interpret-as="cardinal">2021</say-as>。', "共两千零二十一。"),
        ('<say-as interpret-as="date">2026-11-23</say-as>到期。', "二零二六年十一月二十三日到期。"),
    ],
)
def test_readings(text: str, expected: str) -> None:
    world = speaking(text)
    assert spoken(world) == [expected]
    assert not warnings(world)
    (sentence,) = world.of(m.SentenceSpoken)
    assert sentence.text == text


def test_a_lexicon_reads_what_no_tag_reads() -> None:
    world = SsmlWorld(SSML)
    world.send(m.Configure(lexicon={"SQL": "sequel", "use SQL": "apply it", "DB": "data base"}))
    text = 'DB: use <sub alias="S Q L">SQL</sub>, <emphasis>then SQL</emphasis>.'
    assert spoken(speaking(text, world)) == ["data base: use S Q L, then sequel."]
    assert world.of(m.SentenceSpoken)[0].text == text


def test_no_sentence_ends_inside_a_reading() -> None:
    text = 'It is <sub alias="Doctor Who. Really">Dr. W. Ho! A</sub> again. <sub alias="Bye">...</sub>'
    assert spoken(speaking(text)) == ["It is Doctor Who. Really again.", "Bye"]


def test_phonemes_travel_with_the_utterance() -> None:
    world = speaking('Say <phoneme alphabet="ipa" ph="təˈmɑːtəʊ">tomato</phoneme> and <phoneme alphabet="x-sampa" '
                     'ph="p@&quot;teItoU">potato</phoneme>.')  # fmt: skip
    (utterance,) = [utterance for _, utterance in world.submitted]
    assert utterance.text == "Say tomato and potato."
    assert utterance.pronunciations == (
        Pronunciation(4, 10, "ipa", "təˈmɑːtəʊ"), Pronunciation(15, 21, "ipa", "pəˈteɪtoʊ"),
    )  # fmt: skip
    world = speaking('我在<phoneme alphabet="pinyin" ph="chong2 qing4">重庆</phoneme>。')
    assert world.submitted[0][1].pronunciations == (Pronunciation(2, 4, "pinyin", "chong2 qing4"),)


def test_a_turn_opens_no_sentence_early_if_it_is_markup() -> None:
    interleaved = SessionSettings(first_clause_chars=0, text_mode="interleaved")
    for begin, n_begun in (("I am looking at your account now", 1), ("<speak>I am looking at your account now", 0)):
        world = SsmlWorld(interleaved)
        world.send(m.Text(begin, "a"))
        world.run(100)
        assert len(world.submitted) == n_begun
        world.send(m.Text(", please.", "a", True))
        world.run(5_000)
        assert len(world.of(m.Done)) == 1


# ------------------------------------------------------------------ what the bot is told


def test_one_warning_a_turn() -> None:
    world = speaking("<speak><shout>One</shout> two & three.</b></speak>")
    assert spoken(world) == ["One two and three."]
    assert [code for code, _ in warnings(world)] == ["bad_markup"]
    assert "shout" in warnings(world)[0][1]
    world.say("Fine.", "b")
    assert len(warnings(world)) == 1


def test_a_turn_that_ends_inside_a_tag() -> None:
    world = speaking('One. Two <break time="3s')
    assert spoken(world) == ["One.", "Two"]
    assert [code for code, _ in warnings(world)] == ["bad_markup"]


def test_sentences_are_told_as_they_were_written() -> None:
    text = '<speak><emphasis>One</emphasis> &amp; two. <prosody rate="fast">Three.</prosody> <break/>Four</speak>'
    world = speaking(text)
    assert [event.text for event in world.of(m.SentenceSpoken)] == [
        "<speak><emphasis>One</emphasis> &amp; two.", '<prosody rate="fast">Three.</prosody>', "<break/>Four</speak>",
    ]  # fmt: skip
    assert world.of(m.Done)[0].chars == len(text)


def test_words_stand_where_the_bot_wrote_them() -> None:
    world = SsmlWorld(SSML)
    world.send(m.Configure(words="on"))
    text = '<speak>One <emphasis>two</emphasis>, <sub alias="World Wide Web">WWW</sub> &amp; more.</speak>'
    speaking(text, world)
    (words,) = world.of(m.WordsSpoken)
    assert [text[word["from"] : word["to"]] for word in words.words] == [
        "One", "two</emphasis>,", "WWW</sub>", "&amp;", "more.</speak>",
    ]  # fmt: skip


def test_the_characters_that_are_aligned_are_those_without_tags() -> None:
    world = SsmlWorld(SSML)
    world.say("<emphasis>One</emphasis> &amp; two.", "a")
    alignment = world.session.alignment("a")
    assert alignment is not None
    world.run(300)
    assert alignment.advance(8_000, is_whole=True).text == "One & two."


def test_the_limits_count_what_the_bot_wrote() -> None:
    limits = CallLimits(turn_chars=40)
    world = SsmlWorld(SessionSettings(first_clause_chars=0, text_type="ssml", limits=limits))
    world.send(m.Text("<emphasis>One</emphasis>", "a"))
    world.send(m.Text("<emphasis>two</emphasis>", "a"))
    assert [event.code for event in world.of(m.ErrorEvent)] == ["text_too_long"]
    world.say('<prosody rate="fast">One</prosody> two.', "b")
    assert [event.code for event in world.of(m.ErrorEvent)][1:] == []
    world.say('<prosody rate="fast">One</prosody> two three.', "c")
    assert [(event.code, event.turn) for event in world.of(m.ErrorEvent)][1:] == [("text_too_long", "c")]
    world.send(m.Status())
    assert [turn["chars"] for turn in world.of(m.StatusReport)[0].turns] == [24, 39]


def test_a_pause_tells_what_was_heard_with_its_tags() -> None:
    world = SsmlWorld(SSML)
    world.say("<emphasis>One</emphasis> two three four.", "a")
    world.run(380)
    world.send(m.PauseSpeech())
    (paused,) = world.of(m.Paused)
    assert (paused.heard_text, paused.heard_chars) == ("<emphasis>One</emphasis> two", 28)


TEXTS = [
    '<speak>One <emphasis>two</emphasis> three.<break time="300ms"/> <prosody rate="fast">Four five</prosody>, '
    '<sub alias="World Wide Web">WWW</sub> &amp; 12:30.</speak>',
    '<?xml version="1.0"?>\n<speak xml:lang="en">\n <p>One two</p><!-- x --> <s>three</s>\n<mark name="m"/></speak>',
    '<voice name="b">好的，<say-as interpret-as="digits">12</say-as>。</voice>请稍等<break/>谢谢',
    "One <x two </b>three &foo; <sub alias='y'>four <break time='1s'/> five",
    '<phoneme ph="x">One</phoneme><emphasis>two</emphasis>. <![CDATA[three < four]]> five',
]
"""The text without its tags is what `TAGS` leaves."""


@pytest.mark.slow
@given(
    text=st.sampled_from(TEXTS),
    cuts=st.lists(st.integers(1, 200), max_size=6),
    waits=st.lists(st.integers(0, 800), min_size=7, max_size=7),
    timings=st.booleans(),
    verb=st.sampled_from(["clear", "fail", "pause"]),
)
@settings(max_examples=300, deadline=None)
def test_heard_and_unheard_text_are_all_that_the_bot_wrote(
    text: str, cuts: list[int], waits: list[int], timings: bool, verb: str
) -> None:
    """At every place of an interruption, whatever has come of the text by then."""
    world = SsmlWorld(SSML, timings=timings, ms_per_char=30)
    sent = ""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for (begin, end), wait in zip(itertools.pairwise(places), waits, strict=False):
        world.send(m.Text(text[begin:end], "a"))
        sent += text[begin:end]
        world.run(wait)
    if verb == "pause":
        world.send(m.PauseSpeech())
        (paused,) = world.of(m.Paused)
        assert sent.startswith(paused.heard_text) and paused.heard_chars == len(paused.heard_text)
    if verb == "fail" and world.submitted:
        world.session.audio_failed(world.submitted[-1][1].id, EngineError("broken"), world.now_ns)
        world.pump()
    world.send(m.Clear())
    (ended,) = world.terminals("a")
    heard, unheard = ended.heard_text, ended.unheard_text
    assert heard + unheard == sent
    if isinstance(ended, m.Cleared):
        assert ended.heard_chars == len(heard)
    if verb == "pause":
        assert heard == paused.heard_text
    assert not any(tag.start() < len(heard) < tag.end() for tag in re.finditer("</?[a-z-]+[^<>]*>", text))
    assert not unheard.startswith("</") or not heard or heard[-1].isspace(), "a closing tag belongs to what was heard"
    if ended.heard_ms == 0:
        assert not heard
    before = [e.text for e in world.of(m.SentenceSpoken)]
    assert all(sentence in sent for sentence in before)


_PIECES = [
    "One two. ", "three", "好的。", " ", "&amp;", "&", "<", ">", "</", '"', "<speak>", "</speak>", "<x y=",
    "<mark name='m'/>", "<prosody rate='fast'>", "</prosody>", "<voice name='x'>", "<emphasis>", "</emphasis>", "<p>",
    "<sub alias='four. Five'>", "</sub>", "<say-as interpret-as='date'>", "3/4/2026", "</say-as>", "<!--", "-->",
    "<![CDATA[", "]]>", "<break time='80ms'/>", "\n",
]  # fmt: skip
_garbage = st.lists(st.sampled_from(_PIECES), max_size=20).map("".join) | st.text(max_size=40)


@pytest.mark.slow
@given(
    text=_garbage,
    at=st.integers(0, 200),
    waits=st.tuples(st.integers(0, 1500), st.integers(0, 1500)),
    begin=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_spoken_somehow(text: str, at: int, waits: tuple[int, int], begin: bool) -> None:
    """Garbage, in two pieces, with an interruption anywhere: nothing of it is lost, and nothing ends the call."""
    if begin:
        text = "<speak>" + text
    world = SsmlWorld(PLAIN if begin else SSML, ms_per_char=20)
    for piece, wait in zip((text[:at], text[at:]), waits, strict=True):
        world.send(m.Text(piece, "a"))
        world.run(wait)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_text + cleared.unheard_text == text
    world.send(m.Text(text, "b", True))
    world.run(120_000)
    (done,) = world.of(m.Done)
    assert done.chars == len(text)
    assert [code for code, _ in warnings(world)].count("bad_markup") <= 2


@pytest.mark.parametrize("at", range(len(TEXTS[0]) + 1))
def test_a_tag_may_be_cut_at_every_place(at: int) -> None:
    whole, cut = SsmlWorld(SSML, ms_per_char=10), SsmlWorld(SSML, ms_per_char=10)
    whole.send(m.Text(TEXTS[0], "a", True))
    cut.send(m.Text(TEXTS[0][:at], "a"))
    cut.send(m.Text(TEXTS[0][at:], "a", True))
    for world in (whole, cut):
        world.run(10_000)
    made = [[(u.text, u.speed, u.insert) for _, u in world.submitted] for world in (whole, cut)]
    assert made[0] == made[1]
    assert b"".join(p for *_, p in cut.frames) == b"".join(p for *_, p in whole.frames)
    assert [code for code, _ in warnings(cut)] == [code for code, _ in warnings(whole)] == ["no_emphasis"]


def test_the_heard_text_grows_with_the_speech_and_ends_whole() -> None:
    """The whole turn with its tags, one interruption every 20 ms."""
    before = ""
    for ms in range(0, 2_600, 20):
        world = SsmlWorld(SSML, ms_per_char=30)
        world.say(TEXTS[0], "a")
        world.run(ms)
        world.send(m.Clear())
        ends = world.of(m.Cleared)
        if not ends:
            assert world.of(m.Done)
            break
        heard = ends[0].heard_text
        assert heard.startswith(before), (before, heard)
        before = heard
    assert before.endswith("12:30.</speak>") or before.endswith("&amp;")


def test_a_late_media_leg_gets_the_turn_from_its_beginning() -> None:
    """Speech that was made for another codec is made again, with its voices and breaks."""
    world = SsmlWorld(SSML, media=False)
    world.say('One.<break time="500ms"/><voice name="b">Two.</voice>', "a")
    world.run(500)
    n_before = len(world.submitted)
    world.session.attach_media(world.now_ns, marks=False, clears=False, start=m.MediaStart("c", "s", "alaw", 8000))
    world.pump()
    world.run(5_000)
    again = [utterance for _, utterance in world.submitted[n_before:]]
    assert [(u.text, u.voice, u.insert is not None) for u in again] == [
        ("One.", None, False), ("", None, True), ("Two.", "b", False),
    ]  # fmt: skip
    assert np.isclose(world.of(m.Done)[0].audio_ms, 200 + 500 + 200, atol=30)
    assert world.now_ns > 500 * MS
