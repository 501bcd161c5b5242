from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.text.languages.chinese import numbers as zh


def _parse(text: str) -> int:
    """The value of Mandarin number words, computed independently."""
    for name, scale in (("亿", 10**8), ("万", 10**4)):
        if name in text:
            high, _, low = text.rpartition(name)
            return _parse(high) * scale + _parse(low)
    total = 0
    for digit, unit in re.findall("([零一二三四五六七八九两])?([千百十])?", text.replace("零", "")):
        if digit or unit:
            value = "零一二三四五六七八九".index(digit.replace("两", "二")) if digit else 1
            total += value * {"千": 1000, "百": 100, "十": 10, "": 1}[unit]
    return total


@given(st.integers(0, 10**16 - 1))
def test_cardinal_reads_back(number: int) -> None:
    assert _parse(zh.cardinal(number)) == number


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (10, "十"),
        (12, "十二"),
        (110, "一百一十"),
        (200, "两百"),
        (1001, "一千零一"),
        (10111, "一万零一百一十一"),
        (20000, "两万"),
        (100000, "十万"),
        (10**8 + 10**5, "一亿零十万"),
        (10**12, "一万亿"),
    ],
)
def test_cardinal(number: int, spoken: str) -> None:
    assert zh.cardinal(number) == spoken


def test_digits_one_by_one() -> None:
    assert zh.digits("2018") == "二零一八"
    assert zh.code("110") == "幺幺零"
    assert zh.letters("SF12A") == "S F 幺二 A"
    assert zh.number("3.10") == "三点一零"
    assert zh.quantity("2") == "两"
