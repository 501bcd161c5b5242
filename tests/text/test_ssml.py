"""SSML: every tag, every cut of the stream, and every mistake that a bot or a stranger can make in it."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from telephony_tts.text.ssml import (
    MOST_BREAK_MS,
    MOST_BREAKS,
    MOST_DEPTH,
    MOST_SILENCE_MS,
    MOST_TAG_CHARS,
    MarkupBreak,
    MarkupCut,
    MarkupEmphasis,
    MarkupEvent,
    MarkupMark,
    MarkupReading,
    MarkupStyle,
    SsmlReader,
    begins_with_speak,
)


def read(*pieces: str) -> tuple[list[MarkupEvent], SsmlReader]:
    """The events of a whole turn, with runs of text as one event."""
    reader = SsmlReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return joined([*events, *reader.close()]), reader


def joined(events: list[MarkupEvent]) -> list[MarkupEvent]:
    together: list[MarkupEvent] = []
    for event in events:
        if isinstance(event, str) and together and isinstance(together[-1], str):
            together[-1] += event
        else:
            together.append(event)
    return together


def said(*pieces: str) -> str:
    return "".join(event for event in read(*pieces)[0] if isinstance(event, str))


def events(text: str) -> list[MarkupEvent]:
    found, reader = read(text)
    assert reader.problem is None, reader.problem
    return found


def problem(text: str) -> str:
    found = read(text)[1].problem
    assert found is not None
    return found


# ------------------------------------------------------------------ tags


def test_text_and_breaks() -> None:
    assert events('<speak>Hello <break time="500ms"/>there.<break strength="strong"/></speak>') == [
        "Hello ", MarkupBreak(500), "there.", MarkupBreak(700),
    ]  # fmt: skip
    assert events("<break/><break time='1.5s'/><break time='+250ms'></break>") == [
        MarkupBreak(400), MarkupBreak(1500), MarkupBreak(250),
    ]  # fmt: skip
    assert events('a<break strength="none"/>b<break time="0s"/>') == ["ab"]


def test_the_time_of_a_break_counts_before_its_strength() -> None:
    assert events('<break strength="weak" time="2s"/>') == [MarkupBreak(2000)]


def test_marks() -> None:
    assert events('One<mark name="after &quot;one&quot;"/>, two<mark name="b"></mark>') == [
        "One", MarkupMark('after "one"'), ", two", MarkupMark("b"),
    ]  # fmt: skip
    assert "name" in problem("<mark/>") and "name" in problem(f'<mark name="{"x" * 257}"/>')


def test_styles_nest_and_come_back() -> None:
    text = '<prosody rate="fast">a <voice name="anna">b <prosody rate="80%">c</prosody></voice> d</prosody>e'
    assert events(text) == [
        MarkupStyle(rate=1.25), "a ", MarkupStyle("anna", None, 1.25), "b ", MarkupStyle("anna", None, 1.0),
        "c", MarkupStyle(rate=1.25), " d", MarkupStyle(), "e",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "factor"),
    [("x-slow", 0.5), ("slow", 0.75), ("medium", None), ("default", None), ("fast", 1.25), ("x-fast", 1.5),
     ("120%", 1.2), ("+20%", 1.2), ("-20%", 0.8), ("1.2", 1.2), (" 90% ", 0.9), ("9999", 10.0), ("1%", 0.1)],
)  # fmt: skip
def test_rates(rate: str, factor: float | None) -> None:
    found = events(f'<prosody rate="{rate}">a</prosody>')
    assert found == (["a"] if factor is None else [MarkupStyle(rate=pytest.approx(factor)), "a"])


@pytest.mark.parametrize("rate", ["+0.5", "-100%", "0", "quick", "1e9", "--5%", "nan", "%"])
def test_a_rate_that_is_none_changes_nothing(rate: str) -> None:
    assert read(f'<prosody rate="{rate}">a</prosody>')[0] == ["a"]
    assert "rate" in problem(f'<prosody rate="{rate}">a</prosody>')


def test_languages() -> None:
    assert events('<speak xml:lang="en-GB">Say <lang xml:lang="fr-FR">oui</lang> now.</speak>') == [
        MarkupStyle(lang="en-GB"), "Say ", MarkupStyle(lang="fr-FR"), "oui", MarkupStyle(lang="en-GB"),
        " now.",
    ]  # fmt: skip
    assert "xml:lang" in problem(f'<lang xml:lang="{"x" * 36}">a</lang>')


def test_a_style_still_holds_for_the_end_of_its_sentence() -> None:
    assert events('<prosody rate="fast">Go</prosody>. Now.') == [
        MarkupStyle(rate=1.25), "Go.", MarkupStyle(), " Now.",
    ]  # fmt: skip


def test_paragraphs_and_sentences_end_sentences() -> None:
    assert events("<p>One</p><s>Two</s>") == [
        MarkupCut(), "One", MarkupCut(), MarkupCut(), "Two", MarkupCut(),
    ]  # fmt: skip


def test_emphasis() -> None:
    on, off = MarkupEmphasis(True), MarkupEmphasis(False)
    assert events('a <emphasis level="strong">b</emphasis> <emphasis>c</emphasis>') == [
        "a ", on, "b", off, " ", on, "c", off,
    ]  # fmt: skip
    assert events('<emphasis level="none">a</emphasis><emphasis level="reduced">b</emphasis>') == ["ab"]
    assert events("<emphasis>a<emphasis>b</emphasis>c</emphasis>") == [on, "abc", off]


def test_readings() -> None:
    assert events('<sub alias="World Wide Web">WWW</sub>') == ["WWW", MarkupReading("sub", 3, "World Wide Web")]
    assert events('<phoneme alphabet="x-sampa" ph="t@&quot;mA:t@U">tomato</phoneme>') == [
        "tomato", MarkupReading("phoneme", 6, 't@"mA:t@U', "x-sampa"),
    ]  # fmt: skip
    assert events('<phoneme ph="x">a</phoneme>')[1] == MarkupReading("phoneme", 1, "x", "ipa")
    assert events('<phoneme alphabet="py" ph="chong2 qing4">重庆</phoneme>')[1] == MarkupReading(
        "phoneme", 2, "chong2 qing4", "pinyin"
    )
    assert events('<say-as interpret-as="date" format="dmy"> 3/4/2026 </say-as>') == [
        " 3/4/2026 ", MarkupReading("say-as", 10, "date", "dmy"),
    ]  # fmt: skip
    assert events("<say-as interpret-as='spell-out'>AB</say-as>")[1] == MarkupReading("say-as", 2, "characters")


def test_a_reading_is_given_at_once_when_it_is_complete() -> None:
    reader = SsmlReader()
    assert reader.feed('Call <sub alias="the') == ["Call "]
    assert reader.feed(' bank">B') == []
    assert reader.feed("NK") == []
    assert joined(reader.feed("</sub> now")) == ["BNK", MarkupReading("sub", 3, "the bank"), " now"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("<sub>a</sub>", "alias"),
        ('<sub alias="x"> </sub>', "no text"),
        ('<phoneme alphabet="runes" ph="x">a</phoneme>', "runes"),
        ("<phoneme>a</phoneme>", "ph"),
        ('<phoneme alphabet="pinyin" ph="chong2">重庆</phoneme>', "syllable"),
        ('<phoneme alphabet="pinyin" ph="chong qing">重庆</phoneme>', "syllable"),
        ('<say-as interpret-as="poetry">a</say-as>', "poetry"),
        ("<say-as>a</say-as>", "interpret-as"),
        (f'<sub alias="x">{"a" * 201}</sub>', "200"),
        ('<sub alias="x">a', "not closed"),
    ],
)
def test_a_reading_that_means_nothing_is_plain_text(text: str, hint: str) -> None:
    assert not any(isinstance(event, MarkupReading) for event in read(text)[0])
    assert said(text) == text[text.index(">") + 1 :].split("</")[0]
    assert hint in problem(text)


def test_tags_inside_a_reading_mean_nothing_but_marks_come_behind_it() -> None:
    found, reader = read('<sub alias="x">a<mark name="m"/><prosody rate="fast"><break/>b</prosody></sub>c')
    assert found == ["ab", MarkupReading("sub", 2, "x"), MarkupMark("m"), "c"]
    assert reader.problem is not None


# ------------------------------------------------------------------ characters


def test_entities() -> None:
    assert said("a &lt; b &amp;&amp; c &gt; d &quot;e&quot; &apos;f&apos;") == "a < b && c > d \"e\" 'f'"
    assert said("&#65;&#x42;&#x4e2d;") == "AB中"
    assert said("one&#10;two&nbsp;three") == "one two three"


@pytest.mark.parametrize("entity", ["&#0;", "&#7;", "&#xD800;", "&#x110000;", "&#9999999;"])
def test_an_entity_of_no_character_is_left_out(entity: str) -> None:
    assert said(f"a{entity}b") == "ab"
    assert entity in problem(f"a{entity}b")


def test_what_is_no_entity_is_text() -> None:
    for text in ("AT&T", "a & b", "&", "&foo;", "&&", "&#;", "&#x;", "&;", "x &toolongtobeone; y"):
        assert said(text) == text
        assert "&" in problem(text)


def test_an_escaped_tag_is_no_tag() -> None:
    assert events("&lt;break time=&quot;1s&quot;/&gt;") == ['<break time="1s"/>']


def test_comments_instructions_and_cdata() -> None:
    text = '<?xml version="1.0"?><!-- <break/> -- > --><speak>a<!--x-->b<![CDATA[<c> & ]] d]]>e</speak>'
    assert said(text) == "ab<c> & ]] de"


def test_entities_cannot_be_defined() -> None:
    bomb = '<!DOCTYPE s [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><speak>&b;&b; x</speak>'
    assert said(bomb) == "&b;&b; x"


def test_lines_are_no_ends_of_sentences() -> None:
    assert said("<speak>\n\tOne\r\n  two\n</speak>") == "  One    two "


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("<shout>Hi</shout> <amazon:effect name='x'>there</amazon:effect>", "Hi there"),
        ("a </emphasis> b", "a  b"),
        ('<emphasis>a <prosody rate="fast">b</emphasis> c</prosody> d', "a b c d"),
        ("<emphasis>a", "a"),
        ("<speak>a", "a"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("I <3 you", "I <3 you"),
        ("a<b", "a<b"),
        ("<", "<"),
        ("a <break time='1s' b", "a b"),
        ("a <break time=", "a "),
        ("a <break time='3s", "a "),
        ("a <break time=3s Hello", "a Hello"),
        ("a <break time='3s Hello", "a Hello"),
        ("a <break time='3s Hello' you", "a you"),
        ("a <break <break time='1s'/>b", "a b"),
        ("a </prosody", "a "),
        ('<speak a="b>c <emphasis>d</emphasis>', ">c d"),
        ("<!-- a", " a"),
        ("<?a", "a"),
        ("<!a", "a"),
        ("<!-", "-"),
        ("<![CDATA[a", "a"),
        ("<![CDATA", "[CDATA"),
        ("<break time=1s>a", "a"),
        ("<break time='soon'/>a", "a"),
        ("<break strength='huge'/>a", "a"),
        ("</speak lang='x'>a", "a"),
        ("<sub alias='x'>a</speak>b</sub>", "ab"),
    ],
)
def test_malformed_markup_is_spoken_without_its_tags(text: str, spoken: str) -> None:
    assert said(text) == spoken
    assert problem(text)


def test_the_first_problem_is_kept() -> None:
    assert "shout" in problem("<shout>a</shout></b>&foo;")


def test_names_are_read_in_any_case() -> None:
    assert events('<SPEAK><Break TIME="1s"/></SPEAK>') == [MarkupBreak(1000)]


# ------------------------------------------------------------------ bombs


def test_ten_thousand_breaks_of_an_hour() -> None:
    found, reader = read('<break time="3600s"/>' * 10_000)
    silences = [event.ms for event in found if isinstance(event, MarkupBreak)]
    assert silences[0] == MOST_BREAK_MS and sum(silences) == MOST_SILENCE_MS
    assert len(read('<break time="1ms"/>' * 10_000)[0]) == MOST_BREAKS
    assert reader.problem is not None and "too much silence" in reader.problem


def test_deep_nesting() -> None:
    deep = "<prosody rate='fast'>" * 5_000 + "a" + "</prosody>" * 5_000 + "b"
    found, reader = read(deep)
    assert said(deep) == "ab"
    assert found[-2:] == [MarkupStyle(), "b"]
    inside = "<p>" * (MOST_DEPTH - 1) + "<prosody rate='fast'>" + "<p>" * 3 + "a " + "</p>" * 3 + "b </prosody>c"
    assert [event for event in read(inside)[0] if not isinstance(event, MarkupCut)] == [
        MarkupStyle(rate=1.25), "a b ", MarkupStyle(), "c",
    ]  # fmt: skip
    assert reader.problem is not None and str(MOST_DEPTH) in reader.problem


def test_a_huge_attribute_and_a_huge_tag() -> None:
    assert read(f'<voice name="{"x" * 600}">a</voice>')[0] == ["a"]
    assert said(f'<sub alias="{"x" * MOST_TAG_CHARS}">a</sub>b').endswith('ab')


def test_a_flood_of_entities() -> None:
    assert said("&amp;" * 5_000) == "&" * 5_000
    assert said("&#" * 5_000) == "&#" * 5_000


@pytest.mark.parametrize(
    "piece", ["<", "<a ", "<!--", "<a b='", "<![CDATA[", "&", "<sub alias='x'>", "</", "<?", "<![", "]]", "<a>'>'"]
)
def test_a_flood_takes_linear_time(piece: str) -> None:
    """In one piece, and by single characters. The bound is hundreds of times what a common text needs."""
    text = piece * (20_000 // len(piece))
    begun = time.process_time()
    read(text)
    read(*text)
    assert time.process_time() - begun < 2.0


# ------------------------------------------------------------------ properties

_PIECES = [
    "Hello", " ", "there. ", "重庆", "3/4/2026", "&amp;", "&", "&#65;", "&lt;", "<", ">", "'", '"', "/", "=", "]]>",
    '<break time="1s"/>', "<break", "<mark name='m'/>", '<prosody rate="fast">', "</prosody>", "<emphasis>",
    "</emphasis>", '<sub alias="x y">', "</sub>", '<say-as interpret-as="date">', "</say-as>", "<!--", "<![CDATA[",
    "<?", "<!DOCTYPE x [", "<speak>", "</speak>", "<voice name='anna'>", "</voice>", "<p>", "</p>", "<x:y z>", "</",
    "<a b='c", ".", ",", "\n", "-->",
]  # fmt: skip
markup = st.lists(st.sampled_from(_PIECES), max_size=30).map("".join) | st.text(max_size=60)


def consistent(reader: SsmlReader, text: str, source: str) -> None:
    """The map goes forwards only, and each character that was no entity stands where the map says."""
    places = [reader.map.source(offset) for offset in range(len(text) + 1)]
    assert reader.map.n_chars == len(text)
    assert places == sorted(places) and places[-1] <= len(source) and places[0] == 0
    for offset, char in enumerate(text):
        at = reader.map.begin(offset)
        assert places[offset] <= at
        assert source[at] in (char, "&") or (char == " " and source[at].isspace())


@pytest.mark.slow
@given(markup, st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=400)
@example("<sub alias='x'>" + "a" * 300 + "<mark name='m'/></sub>b", [5, 100, 250, 320])
@example("<a b='" + "x" * 1200 + "'>c", [3, 900, 1100])
@example("<![CDATA[a]] b]]]>c<![CDATA[" + "d" * 99 + "]]>e", [12, 20])
@example("a<!-- b -- c --->d<?e?f?>g<!DOCTYPE h [<!ENTITY i 'j'>]>k", [])
@example("a<!--" + "x" * 1200 + "-->b &#65 &#x &amp &unknownname; &a", [])
@example('<sub alias="a &lt; b">c<mark name="d"/></emphasis> e</sub><prosody rate="fast">f</prosody>..., g', [])
def test_any_cut_of_the_text_gives_the_same_events(text: str, cuts: list[int]) -> None:
    whole, reader = read(text)
    cuts = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for parts in (pieces, list(text)):
        found, other = read(*parts)
        assert found == whole
        assert other.problem == reader.problem
        assert vars(other.map) == vars(reader.map)
    consistent(reader, "".join(event for event in whole if isinstance(event, str)), text)


@given(st.text(st.characters(exclude_characters="<&\n\r\t"), max_size=80))
def test_text_without_markup_is_itself(text: str) -> None:
    whole, reader = read(text)
    assert whole == ([text] if text else [])
    assert [reader.map.source(offset) for offset in range(len(text) + 1)] == list(range(len(text) + 1))


def test_closing_tags_belong_to_what_was_heard_and_opening_tags_to_what_follows() -> None:
    source = "<speak><emphasis>One</emphasis> <!--x--><break/><emphasis>two &amp; three</emphasis></speak>"
    text, reader = said(source), read(source)[1]
    assert text == "One two & three"

    def heard(word: str) -> str:
        return source[: reader.map.source(text.index(word) + len(word))]

    assert heard("One") == "<speak><emphasis>One</emphasis>"
    assert heard("two") == "<speak><emphasis>One</emphasis> <!--x--><break/><emphasis>two"
    assert heard("&") == "<speak><emphasis>One</emphasis> <!--x--><break/><emphasis>two &amp;"
    assert heard("three") == source
    assert reader.map.source(0) == 0
    assert source[reader.map.source(4) :].startswith("<!--x-->"), "behind the blank"
    assert source[reader.map.begin(4) :].startswith("two")


# ------------------------------------------------------------------ <speak


@pytest.mark.parametrize(
    "text",
    [
        "<speak>", "<speak >x", " \n<speak version='1.1' xmlns=\"http://x/y\">", '<?xml version="1.0"?>\n<speak>',
        "<SPEAK>", "<speak/>",
    ],
)  # fmt: skip
def test_what_begins_with_speak(text: str) -> None:
    assert begins_with_speak(text) is True
    first = text.index(">", text.lower().index("<speak"))
    assert begins_with_speak(text[:first]) is None
    assert all(begins_with_speak(text[:n]) is not False for n in range(len(text)))


@pytest.mark.parametrize(
    "text",
    [
        "Hello", "<", "<s", "<b>", "<speaker>", "<speak up", "<speak <b>", "<speak" + " " * MOST_TAG_CHARS, "x<speak>",
        "<?xml" + "x" * 1000,
    ],
)  # fmt: skip
def test_what_does_not(text: str) -> None:
    expected = None if text in ("<", "<s", "<speak up") else False
    assert begins_with_speak(text) is expected
