"""Behind the reading stands nothing that an engine would read in its own way, or swallow: no digit, unit or sign."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.text.rewriting import spoken_spans

SIGN = re.compile(r"[~～〜∼*/#_^<>\\|{}]")
UNREAD = re.compile(r"[0-9０-９=+%‰$€£¥￥₩₹฿¢°℃℉²³½¼¾×÷±≤≥≠≈√№§&@→㎡㎏①-⑳Ⅰ-Ⅻ℡]")
WORDS = {
    "en": ["your balance is", "call", "room", "the code", "by", "and", "ok", "until", "size", "about"],
    "zh": ["您的余额是", "请拨打", "房间", "验证码", "到", "和", "好的", "大约", "尺寸"],
    "ja": ["残高は", "お電話は", "部屋", "コードは", "まで", "です", "はい", "約", "サイズは"],
    "ko": ["잔액은", "전화", "호실", "코드는", "까지", "네", "약", "크기는", "입니다"],
}
SHAPES = [
    "5", "1,234", "0.5", "12:30", "9:00-18:00", "10%", "50%~60%", "$5", "₩5,000", "¥300", "€9.99", "£7", "₹100",
    "2026-11-29", "11/29", "5/5", "1-800-555-0199", "0102", "#5", "#hello", "*5#", "5*3", "a_b", "A-12", "x^2",
    "2^10", "<5", ">5", "<b>", "≥5", "~5", "5~6", "~", "*", "/", "#", "_", "^", "<", ">", "km/h", "60km/h",
    "5kg", "20°C", "20℃", "5m²", "½", "3½", "1/2", "a/b", "and/or", "24/7", "w/o", "n²", "x³", "№5", "5‰", "5'",
    "5+3", "5-3", "5=5", "±5", "3×4", "6÷2", "√9", "@me", "a@b.co", "www.a.co/b_c", "C:\\x", "{a}", "[1]",
    "a..b", "①", "⑩", "㎡", "5㎏", "℡", "§5", "→", "A&B", "`x`", "$x$", "~~a~~", "~?", "1st", "No.5", "v1.2.3",
    "192.168.0.1", "Ⅲ", "5G", "MP3", "24h", "3D", "+82-10-1234-5678", "(02) 123-4567", "12万", "3.5亿", "5만",
    "¢5", "5¢", "฿5", "5°", "^_^", ":)", "<3", ">_<", "1,2,3", "2:1", "16:9", "0x1F", "5s", "10,000.50", "-5",
    "−5℃",
]  # fmt: skip


def spoken(text: str, lang: str) -> str:
    return "".join(span.spoken for span in spoken_spans(text, lang))


@pytest.mark.parametrize("lang", WORDS)
def test_no_digit_unit_or_sign_is_left_of_any_shape_in_any_place(lang: str) -> None:
    left = {}
    for shape in SHAPES:
        for word in WORDS[lang]:
            for text in (f"{word} {shape}.", f"{word}{shape}", f"{shape} {word}", f"{word} {shape} {WORDS[lang][0]}."):
                said = spoken(text, lang)
                assert not SIGN.search(said), (text, said)
                if UNREAD.search(said):
                    left[text] = said
    assert not left


@pytest.mark.parametrize(
    ("lang", "zero", "by"),
    [("en", "zero", " by "), ("zh", "零", "乘"), ("ja", "ゼロ", "かける"), ("ko", "공", "곱하기")],
)
def test_a_hexadecimal_code_is_no_product(lang: str, zero: str, by: str) -> None:
    for code in ("0x80070005", "0x8007000A", "0xC000021A"):
        said = spoken(f"{WORDS[lang][3]} {code}.", lang)
        assert by not in said and said.count(zero) == code.count("0"), said
    assert by in spoken(f"{WORDS[lang][0]} 30x40.", lang)


@pytest.mark.parametrize("lang", ["zh", "ja", "ko"])
def test_the_address_of_a_network_card_is_read_one_by_one(lang: str) -> None:
    address = "3C:4D:5E:00:1A:2B"
    assert spoken(address, lang) == spoken(address.replace(":", ""), lang)


@given(st.sampled_from(sorted(WORDS)), st.lists(st.sampled_from([*SHAPES, "~", "*", "/", "#", "_", "^", "<", ">"])))
@settings(deadline=None, max_examples=300, derandomize=True)
def test_no_sign_is_left_of_shapes_that_follow_each_other(lang: str, shapes: list[str]) -> None:
    text = WORDS[lang][0] + " ".join(shapes) + WORDS[lang][1]
    assert not SIGN.search(spoken(text, lang)), spoken(text, lang)
