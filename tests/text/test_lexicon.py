"""Entries of a lexicon: how they are written, and where they match."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.text.lexicon import (
    BadEntry,
    Entry,
    Lexicon,
    PatternSearch,
    find_readings,
    may_begin,
    read_entry,
)
from telephony_tts.text.rewriting import Reading, spoken_spans


class Patterns(PatternSearch):
    """Patterns for tests, by the standard library."""

    def __init__(self, *patterns: str) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def find(self, text: str) -> Iterator[tuple[int, int, int, Sequence[str | None]]]:
        for number, pattern in enumerate(self._patterns):
            for match in pattern.finditer(text):
                yield number, match.start(), match.end(), (match.group(), *match.groups())



def of(entries: dict[str, str]) -> Lexicon:
    return Lexicon(read_entry(written, say) for written, say in entries.items())


def read(text: str, *lexicons: Lexicon, lang: str = "en") -> str:
    return "".join(span.spoken for span in spoken_spans(text, lang, (), find_readings(text, lexicons)))


@pytest.mark.parametrize(
    ("entries", "text", "spoken"),
    [
        ({"SQL": "sequel"}, "Our SQL, SQL's and MySQL.", "Our sequel, sequel's and MySQL."),
        ({"SQL": "sequel"}, "sql is not SQL", "sql is not sequel"),
        ({"sql": "sequel"}, "sql is SQL", "sequel is sequel"),
        ({"New York": "the city"}, "New York and New Yorkers", "the city and New Yorkers"),
        ({"New": "old", "New York": "the city"}, "New York, New Yorker", "the city, old Yorker"),
        ({"C++": "see plus plus"}, "C++ and C++17", "see plus plus and see plus plus seventeen"),
        ({".NET": "dot net"}, "ASP.NET", "ASP dot net"),
        ({"5G": "five gee"}, "5G, 15G", "five gee, fifteen G"),
        ({"O'Neil": "oh neel"}, "O’Neil", "oh neel"),
        ({"straße": "street"}, "STRASSE Straße", "STRASSE street"),
        ({"重庆": "Chongqing"}, "我在重庆吗", "我在Chongqing吗"),
        ({"서울": "Seoul"}, "서울은", "Seoul은"),
        ({"😀": "smile"}, "Hi 😀 there", "Hi smile there"),
    ],
)
def test_where_entries_match(entries: dict[str, str], text: str, spoken: str) -> None:
    lang = "zh" if "在" in text else "ko" if "은" in text else "en"
    assert read(text, of(entries), lang=lang) == spoken


def test_case_may_be_said() -> None:
    assert read("SQL sql", Lexicon([read_entry("SQL", "sequel", "any")])) == "sequel sequel"
    assert read("SQL sql", Lexicon([read_entry("sql", "sequel", "exact")])) == "SQL sequel"


def test_what_is_said_is_never_matched_again() -> None:
    assert read("cat dog", of({"cat": "dog", "dog": "cat"})) == "dog cat"
    assert read("cat", of({"cat": "cat cat"})) == "cat cat"


def test_what_is_said_is_normalised_with_its_sentence() -> None:
    assert read("Only bucks5.", of({"bucks5": "$5"})) == "Only five dollars."


def test_the_longest_match_counts_and_of_equal_ones_the_last_lexicon() -> None:
    first, second = of({"SQL": "first", "SQL Server": "the first server"}), of({"SQL": "second"})
    assert read("SQL", first, second) == "second"
    assert read("SQL", second, first) == "first"
    assert read("SQL Server and SQL", first, second) == "the first server and second"


def test_an_exact_entry_wins_over_one_for_any_case() -> None:
    assert read("US us", of({"us": "ourselves", "US": "America"})) == "America ourselves"


def test_a_pattern_says_its_groups() -> None:
    entries = [read_entry(r"/ACME-(\d+)/", "acme $1"), read_entry("/(q)|(b)x/", "$1$2 costs $$5")]
    both = Lexicon(entries, Patterns(r"ACME-(\d+)", "(q)|(b)x"), [1, 2])
    assert read("Take ACME-12 now", both) == "Take acme twelve now"
    assert read("bx", both) == "b costs five dollars"


def test_a_pattern_inside_a_word_is_set_apart() -> None:
    entries = Lexicon([read_entry("/ACME/", "acme")], Patterns("ACME"), [0])
    assert read("xACMEy", entries) == "x acme y"


def test_a_literal_and_a_pattern_compete_by_length() -> None:
    entries = Lexicon([read_entry("ACME", "short"), read_entry("/ACME-1/", "long")], Patterns("ACME-1"), [0])
    assert read("ACME ACME-1", entries) == "short long"


def test_an_expansion_is_bounded() -> None:
    entries = Lexicon([read_entry("/(.+)/", "$1 " * 50)], Patterns("(.+)"), [1])
    text = "word " * 30
    assert read(text, entries) == text


@pytest.mark.parametrize(
    ("say", "syllables"),
    [
        ("chong2 qing4", ("chong2", "qing4")),
        ("chóng qìng", ("chong2", "qing4")),
        ("Chong2  qing", ("chong2", "qing5")),
        ("lǜ lü4", ("lv4", "lv4")),
        ("lu:4 nv3", ("lv4", "nv3")),
        ("Chongqing", ()),
        ("chong qing", ()),
        ("mountain city", ()),
    ],
)
def test_pinyin_is_known_by_its_tones(say: str, syllables: tuple[str, ...]) -> None:
    assert read_entry("重庆", say).syllables == syllables


def test_pinyin_goes_with_each_character() -> None:
    assert find_readings("去重庆。", [of({"重庆": "chong2 qing4"})]) == [
        Reading(1, 2, "重", ("pinyin", "chong2")),
        Reading(2, 3, "庆", ("pinyin", "qing4")),
    ]
    some = Lexicon([Entry("重庆", "", True, syllables=("chong2", ""))])
    assert find_readings("去重庆。", [some]) == [Reading(1, 2, "重", ("pinyin", "chong2"))]


def test_ipa_goes_with_the_word_as_it_is_written() -> None:
    assert find_readings("A Tomato!", [of({"tomato": "/təˈmɑːtoʊ/"})]) == [
        Reading(2, 8, "Tomato", ("ipa", "təˈmɑːtoʊ"))
    ]


@pytest.mark.parametrize(
    ("written", "say", "why"),
    [
        ("", "x", "empty"),
        ("  ", "x", "empty"),
        ("SQL", "", "no reading"),
        ("SQL", "  ", "no reading"),
        ("SQL", "...", "nothing to speak"),
        ("...", "dots", "only punctuation"),
        ("。", "stop", "only punctuation"),
        ("x" * 101, "x", "limit is 100"),
        ("x", "x" * 301, "limit is 300"),
        ("a\x00b", "x", "cannot be printed"),
        ("重庆", "chong2", "2 characters and 1 syllables"),
    ],
)
def test_entries_that_cannot_be_right(written: str, say: str, why: str) -> None:
    with pytest.raises(BadEntry, match=why):
        read_entry(written, say)


@pytest.mark.parametrize(
    ("text", "n_certain"),
    [
        ("We use it", 9),
        ("We use S", 7),
        ("We use SQL", 7),
        ("We use SQL ", 7),
        ("We use SQLite", 13),
        ("We use SQL Server", 7),
        ("Is it New", 6),
        ("Is it New ", 6),
        ("Is it New Y", 6),
        ("Is it New Deal", 14),
    ],
)
def test_the_beginning_that_no_entry_changes(text: str, n_certain: int) -> None:
    assert may_begin(text, [of({"SQL": "sequel", "New York": "the city"})]) == n_certain


def test_nothing_is_certain_before_patterns_and_sounds() -> None:
    assert may_begin("Some text", [Lexicon([read_entry("/x/", "ex")], Patterns("x"), [0])]) == 0
    assert may_begin("Some text", [of({"tomato": "/x/"})]) == 0


_LETTERS = st.sampled_from("aAbB 重庆.-'+1")


@given(
    st.text(_LETTERS, max_size=30),
    st.dictionaries(st.text(_LETTERS, min_size=1, max_size=6), st.sampled_from(["x", "a b", "5", "重"]), max_size=6),
)
def test_readings_are_in_order_and_what_is_certain_stays(text: str, entries: dict[str, str]) -> None:
    known = []
    for written, say in entries.items():
        try:
            known.append(read_entry(written, say))
        except BadEntry:
            continue
    made = Lexicon(known)
    at = 0
    for reading in find_readings(text, [made]):
        assert at <= reading.start < reading.end <= len(text)
        at = reading.end
    for n_known in range(len(text)):
        n_certain = may_begin(text[:n_known], [made])
        assert all(reading.start >= n_certain for reading in find_readings(text, [made]))
