"""Properties for every text: no error, spans that cover it, no digit left, linear cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.text.languages.english.numbers import DIGITS
from telephony_tts.text.normalizer import is_speakable, normalize, normalize_spans

_PIECES = st.sampled_from(
    [
        "$",
        "€",
        "￥",
        "1,234",
        "12:30",
        "3.14",
        "0042",
        "2024",
        "5",
        "00",
        "pm",
        "p.m.",
        "Jan",
        "5th",
        "No.",
        "验证码",
        "订单",
        "年",
        "月",
        "点",
        "元",
        "个",
        "第",
        "万",
        "-",
        "–",
        "~",
        "/",
        ".",
        ",",
        ":",
        "，。",
        "（",
        "）",
        "v1.2",
        "a@b.com",
        "http://",
        "www.x.com",
        "**",
        "*",
        "_",
        "`",
        "#",
        "&",
        "@",
        "%",
        "+",
        "=",
        "<",
        ">",
        "<b>",
        "[",
        "](",
        ")",
        "|",
        "1/2",
        "kg",
        "°C",
        "USD",
        "+86",
        "(555)",
        "Dr.",
        "Mon-",
        "XXXX1",
        "****",
        "24/7",
        "²",
        "½",
        "①",
        "٣",
        "😀",
        "code",
        "is",
    ]
)
_WRITTEN = st.lists(st.one_of(_PIECES, st.just(" "), st.text(max_size=2)), max_size=12).map("".join)
_ANY = st.one_of(_WRITTEN, st.text(alphabet=st.characters(), max_size=40))
_LANGUAGES = st.sampled_from([None, "en", "zh", "ja", "ko", "fr", "zh-Hant-TW", "nonsense"])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(_ANY, _LANGUAGES)
def test_spans_cover_the_text_and_agree_with_normalize(text: str, lang: str | None) -> None:
    spans = normalize_spans(text, lang)
    at = 0
    for span in spans:
        assert span.start == at < span.end
        at = span.end
    assert at == len(text)
    assert "".join(span.spoken for span in spans) == normalize(text, lang)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(_ANY, st.sampled_from(["en", "zh"]))
def test_no_digit_is_left_and_speech_can_be_encoded(text: str, lang: str) -> None:
    text = re.sub("[\u0370-\u1fff\u3041-\u31ff\ua4d0-\ud7ff\ufb50-\uffff]", "", text)
    spoken = normalize(text, lang)
    assert not re.search(r"\d", spoken)
    spoken.encode()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9), min_size=1, max_size=8),
    st.sampled_from(",.?!;"),
)
def test_plain_words_stay_as_they_are(words: list[str], mark: str) -> None:
    text = " ".join(words) + mark
    assert normalize(text, "en") == text


@settings(max_examples=200, deadline=None)
@given(st.text("好的请您稍等我帮查一下", min_size=1, max_size=30))
def test_plain_mandarin_stays_as_it_is(text: str) -> None:
    assert [span.spoken for span in normalize_spans(text, "zh")] == [text]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_WRITTEN, st.sampled_from(["en", "zh"]))
def test_normalising_twice_keeps_words(text: str, lang: str) -> None:
    """Normalising twice never makes a digit and never removes all words."""
    once = normalize(text, lang)
    assert not re.search(r"[0-9]", normalize(once, lang))
    assert not is_speakable(once) or normalize(once, lang).strip()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 999_999))
def test_a_code_is_never_an_amount(number: int) -> None:
    digits = f"{number:06d}"
    english = normalize(f"Your verification code is {digits}.", "en")
    words = dict(zip("0123456789", DIGITS, strict=True))
    assert english == f"Your verification code is {' '.join(words[d] for d in digits)}."
    mandarin = normalize(f"验证码{digits}", "zh")
    assert mandarin == "验证码" + digits.translate(str.maketrans("0123456789", "零幺二三四五六七八九"))


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "a",
        "1,",
        "1.",
        "1-",
        "1 ",
        "a.",
        "a@",
        "-",
        "*",
        "_",
        "<",
        "<!--",
        "[",
        "](",
        "<a x=1 ",
        "$",
        "(0",
        "验证码",
        "\udc00",
        "x",
    ],
)
def test_long_runs(piece: str, lang: str) -> None:
    """A quadratic pattern would take minutes and hit the faulthandler timeout."""
    text = (piece * 20_000)[:20_000]
    assert not re.search("[0-9]", normalize(text, lang))


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_hundred_thousand_characters(lang: str) -> None:
    text = ("Your code is 482913, pay $1,234.50 by 12/31 to a@b.com. 验证码482913，¥5 " * 2000)[:100_000]
    assert not re.search("[0-9]", normalize(text, lang))


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("text", ["5" + "x" * 220, "5" + "x*" * 110, "+" + "5" * 230 + "x", "1-" * 110 + "x"])
def test_runs_that_almost_match_a_rule_take_linear_time(text: str, lang: str) -> None:
    """Pinned: matching a mask of many x took exponential time and blocked the event loop of all calls."""
    assert "".join(span.spoken for span in normalize_spans(text, lang)) == normalize(text, lang)
