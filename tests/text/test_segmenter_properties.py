"""Properties for every text and every way of feeding it."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telephony_tts.text.segmenter import Segmenter, Sentence

_PIECES = """
您好 请稍等 订单号 谢谢 客服说 好的 吗 的 Hello please Thanks the It eSIM ok Dr. Mr. No. p.m. a.m.
U.S. Inc. e.g. ext. St. I. A. 1. 2. 3) (a) SF1234567890 ￥1,234.50 $29.99 3:30 11/20 2026-11-20
v2.3.1 192.168.0.1 0.5 ３．５ 12 % https://a.io/b?c=d jane@example.com example.com config.json 。 ！
？ ｡ …… … —— ... . ? ! ?! ， 、 ； ： , : ; - “ ” ‘ ’ 「 」 《 》 （ ） ( ) [ ] " ' ** * # • ~ 😊
👍🏽 안녕하세요 입니다 です と 3 é ² ½. ². ٣.
"""
PIECES = [*_PIECES.split(), "\ud800"]
BLANKS = ["", "", "", " ", " ", "  ", "\n", "\n\n", "\r\n", "\u3000"]
OPTIONS = st.fixed_dictionaries(
    {"first_clause_chars": st.sampled_from([0, 1, 12]), "max_chars": st.sampled_from([16, 30, 60, 240])}
)
ATOM = re.compile(
    r"https?://[^\s，。！？；、）】」』”\u2e80-\u9fff]+[A-Za-z0-9/]|[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
    r"|\d+(?:[.,:/-]\d+)+|v\d+(?:\.\d+)+|(?:[A-Za-z0-9-]+\.)+(?:com|io|json)",
    re.ASCII,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(BLANKS)), max_size=40))
    return "".join(piece + blank for piece, blank in parts)


@st.composite
def chunked_texts(draw: st.DrawFn) -> list[str]:
    text = draw(texts() | st.text(max_size=120))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=30)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def run(chunks: list[str], options: dict[str, int]) -> list[Sentence]:
    segmenter = Segmenter(**options)  # type: ignore[arg-type]
    sentences = [sentence for chunk in chunks for sentence in segmenter.feed(chunk)]
    return sentences + segmenter.flush()


def content(text: str) -> str:
    return "".join(char for char in text if char.isalnum())


def assert_offsets(sentences: list[Sentence], source: str) -> None:
    last = 0
    for sentence in sentences:
        assert last <= sentence.start < sentence.end <= len(source)
        assert sentence.text == source[sentence.start : sentence.end] == sentence.text.strip()
        assert content(sentence.text)
        last = sentence.end
    assert content("".join(s.text for s in sentences)) == content(source)


@given(chunked_texts(), OPTIONS)
@example(list("At 6 p.m. Mr. Lee left. “好。”客服说 **Dr.** 3.5! ok"), {"first_clause_chars": 12, "max_chars": 16})
@example(["您好您好——您好您好 请稍等请稍等11/20 您好"], {"first_clause_chars": 0, "max_chars": 16})
def test_the_same_text_gives_the_same_sentences_however_it_is_fed(chunks: list[str], options: dict[str, int]) -> None:
    text = "".join(chunks)
    assert run(chunks, options) == run([text], options) == run(list(text), options)


@given(chunked_texts(), OPTIONS)
def test_sentences_are_the_source_in_order_and_no_content_is_lost(chunks: list[str], options: dict[str, int]) -> None:
    assert_offsets(run(chunks, options), "".join(chunks))


@given(chunked_texts(), OPTIONS, st.data())
def test_no_content_is_lost_across_timeouts(chunks: list[str], options: dict[str, int], data: st.DataObject) -> None:
    segmenter = Segmenter(**options)  # type: ignore[arg-type]
    sentences = []
    for chunk in chunks:
        sentences += segmenter.feed(chunk)
        for _ in range(data.draw(st.integers(0, 2))):
            sentences += segmenter.timeout()
    assert_offsets(sentences + segmenter.flush(), "".join(chunks))


@given(texts(), st.data())
@example("请看https://a.io/b?c=d，付￥1,234.50给jane.doe@example.com。", None)
def test_a_timeout_never_cuts_an_atom(text: str, data: st.DataObject | None) -> None:
    places = range(len(text) + 1) if data is None else [data.draw(st.integers(0, len(text)))]
    for place in places:
        segmenter = Segmenter()
        segmenter.feed(text[:place])
        cuts = {sentence.end for sentence in segmenter.timeout()}
        for atom in ATOM.finditer(text):
            assert not cuts & set(range(atom.start() + 1, atom.end())), (text[:place], atom.group())


@pytest.mark.slow
@given(texts(), OPTIONS)
def test_no_cut_falls_inside_an_atom(text: str, options: dict[str, int]) -> None:
    cuts = {sentence.end for sentence in run([text], options)}
    for glued in re.finditer(r"[^\s\u2e80-\u9fff]+", text):
        if len(glued.group()) < options["max_chars"] // 2:
            for atom in ATOM.finditer(text, glued.start(), glued.end()):
                assert not cuts & set(range(atom.start() + 1, atom.end())), atom.group()


@given(texts(), texts())
def test_reset_forgets_the_turn_before(before: str, after: str) -> None:
    segmenter = Segmenter()
    segmenter.feed(before)
    segmenter.reset()
    assert segmenter.pending == ""
    assert segmenter.feed(after) + segmenter.flush() == run([after], {})


@given(texts())
def test_the_pending_text_is_bounded(text: str) -> None:
    segmenter = Segmenter(max_chars=16)
    for char in text * 3:
        segmenter.feed(char)
        assert len(segmenter.pending) <= 16 + 100


ENDLESS = [
    "好",
    "a",
    "word ",
    "1",
    "1,",
    "1.",
    ".",
    "a.",
    "! ",
    "p.m. Mr. ",
    "(",
    "(.",
    '."',
    "**.",
    "“好。”张",
    "😊",
    " ",
    "\n",
    "，",
    "\ud800",
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ENDLESS)
@pytest.mark.parametrize("first_clause_chars", [0, 40])
def test_cost_and_memory_do_not_grow_with_the_turn(unit: str, first_clause_chars: int) -> None:
    def n_calls(n_chars: int) -> int:
        segmenter = Segmenter(first_clause_chars=first_clause_chars)
        count = 0

        def profile(_frame: FrameType, event: str, _arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        text = "a." + unit * (n_chars // len(unit))
        previous = sys.getprofile()
        sys.setprofile(profile)
        try:
            for char in text:
                segmenter.feed(char)
        finally:
            sys.setprofile(previous)
        assert len(segmenter.pending) <= 240 + 32 + 24
        return count

    once, twice = n_calls(1500), n_calls(3000)
    assert twice <= 2.6 * once + 1000
