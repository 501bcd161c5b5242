"""What settles of a sentence is read the same whatever comes after it, and never unsettles."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.text.normalizer import normalize
from telephony_tts.text.settled import settled

HERE = Path(__file__).parent
CORPUS = [
    sentence.strip(" ¦")
    for line in (HERE / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
    for sentence in json.loads(line)["marked"].replace("¦", "").split("⏐")
]
WRITTEN = sorted({
    node.elts[0].value
    for node in ast.walk(ast.parse((HERE / "test_normalizer.py").read_text(encoding="utf-8")))
    if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant)
    and isinstance(node.elts[0].value, str)
})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Thank you for calling us today, I am", "Thank you for calling us"),
        ("I am so glad to see", "I am so"),
        ("I am so glad to", ""),
        ("Well, don't you think so, my dear friend", "Well, don't you think so,"),
        ("Sure — let me check that for you now", "Sure — let me check that"),
        ("Your balance is now forty dollars", "Your balance is"),
        ("Your balance is now $40 and that is all I know", ""),
        ("The word we had for it is e.g. this one and so on", "The word we had for"),
        ("We can do this in the sixth week of May 5", "We can do this in the sixth"),
        ("It works with any of the USD accounts you may", "It works with any"),
        ("She told me about it and said (as ever", "She told me about it"),
        ("She told me about it and said \"no way", "She told me about it"),
        ("She told me about it and **really** did", "She told me about"),
        ("All of this is one line\nand this the next one", "All of this"),
        ("Hello to all of you! I am so glad to be", ""),
        ("- an item that is plain otherwise and long", ""),
        ("3 words that are plain otherwise and long", ""),
        ("call me at exam", ""),
        ("It is at host:path and so on and on it goes now", ""),
        ("please write to me about it at exam", "please write to me about"),
        ("오늘 날씨가 정말 좋은 것 같네요", "오늘 날씨가 정말"),
        ("您好，很高兴为您服务请", "您好，很高兴为"),
        ("您好，很高兴", ""),
        ("您的余额已经查到了是300元整请问", "您的余额已经"),
        ("我们会在星期六为您送货上门请放心", "我们会在星期六为您送货上"),
        ("请您打开APP查看订单的物流信息", "请您打开APP查看订单的"),
        ("", ""),
        (" ", ""),
        (" I am so glad to see you now ", ""),
    ],
)
def test_examples(text: str, said: str) -> None:
    assert text[: settled(text)] == said


def check(whole: str, lang: str | None = None) -> None:
    """For every way of arrival: what settled is its own reading and the beginning of the reading of the whole."""
    said = normalize(whole, lang)
    before = 0
    for n_arrived in range(len(whole) + 1):
        n = settled(whole[:n_arrived])
        assert n >= before, f"{whole[:n_arrived]!r} unsettles"
        assert n <= n_arrived
        if n > before:
            piece = whole[before:n]
            assert "".join(normalize(piece, lang).split()) == "".join(piece.split())
            assert normalize(whole[:n], lang) == whole[:n]
            assert said[:n] == whole[:n]
            rest = said[n:]
            assert whole[:before] + piece + rest == said
            before = n


@pytest.mark.parametrize("lang", [None, "en", "zh", "ja", "ko", "fr"])
def test_the_corpora_of_sentences_and_of_readings(lang: str | None) -> None:
    assert len(CORPUS) > 400 and len(WRITTEN) > 100
    for text in [*CORPUS, *WRITTEN]:
        check(text, lang)


def test_much_of_plain_speech_settles() -> None:
    """Of a sentence of plain words all but the last few are spoken before it ends."""
    for text in [
        "I am sorry to hear that, let me have a look at your account and see what happened there.",
        "没有问题，我马上为您查看这个订单的配送情况，请您稍微等我片刻。",
    ]:
        assert settled(text) > 0.7 * len(text)


PLAIN = """
    I you the a plan B may May March Sat Sun Mon Fri am pm to of at no No fig min sec USD usd kg OK US is code your
    order room x xxxx call dial half key press well-known don't it’s o'clock 'tis café être 안녕하세요 오늘
    und version v http www exam mailto e g etc by between
"""
words = st.sampled_from(PLAIN.split())
odd = st.sampled_from(
    ["5", "4829", "2024", "1/2", "$5", "-5", "5kg", "5:30", "p.m.", "Dr.", "e.g.", "a@b.com", "x.com", "www.a.b", "w/o",
     "and/or", "**", "*a*", "_", "`", "#", "&", "&amp;", "<b>", "[", "](", "(", ")", '"', "“", "~", "—", "–", "-", "--",
     "...", ".", "!", "\n", "\t", "😀", "½", "①", "º", "|", "Ⅷ", "か", "カ", "؟", "%", "+", "=", "/", ":", "://"]
)  # fmt: skip
han = st.text("好的请您稍等我帮查一下今年周三点分秒元二十万两半到是为明天上午，、；：", min_size=1, max_size=12)
tokens = st.one_of(words, words, words, odd, han)
joints = st.sampled_from([" ", " ", " ", " ", "", ", ", ": ", ",", "，", "  ", " – ", "—", " - "])
texts = st.lists(st.tuples(tokens, joints), max_size=16).map(lambda pairs: "".join(t + j for t, j in pairs))
languages = st.sampled_from([None, "en", "zh", "ja", "ko", "und"])


@given(texts, languages)
@settings(max_examples=600, deadline=None)
def test_any_text(text: str, lang: str | None) -> None:
    check(text, lang)


@given(st.lists(words, min_size=5, max_size=9), st.lists(st.tuples(joints, tokens), max_size=6), languages)
@settings(max_examples=600, deadline=None)
def test_plain_words_and_then_anything(plain: list[str], tail: list[tuple[str, str]], lang: str | None) -> None:
    check(" ".join(plain) + "".join(j + t for j, t in tail), lang)


plain_han = st.text("好的请您稍等我帮查下这个问题，", min_size=6, max_size=14)


@given(plain_han, st.lists(tokens, max_size=5).map("".join), languages)
@settings(max_examples=600, deadline=None)
def test_plain_mandarin_and_then_anything(plain: str, tail: str, lang: str | None) -> None:
    check(plain + tail, lang)


@pytest.mark.parametrize("piece", ["a", "a ", "ab-", "a'", "好", "好，", " ", "- ", "-", ", ", "a, "])
def test_long_runs_cost_little(piece: str) -> None:
    """The faulthandler timeout is the bound."""
    assert settled((piece * 20_000)[:20_000]) >= 0
