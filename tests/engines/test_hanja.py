"""Han and kana letters of a Korean text as hangul."""

from __future__ import annotations

import pytest

from telephony_tts.engines.espeak.hanja import in_hangul


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("(株)한국 前 회장", "(주)한국 전 회장"),
        ("會社", "회사"),
        ("女子와 男女", "여자와 남녀"),
        ("老人과 龍山", "노인과 용산"),
        ("李小龙 님", "이소  님"),
        ("田中 고객님", "전중 고객님"),
        ("ラーメン 주문", "라아메은 주문"),
        ("さくら 매장", "사쿠라 매장"),
        ("예약 3건, OK?", "예약 3건, OK?"),
        ("", ""),
    ],
)
def test_letters_in_hangul(written: str, said: str) -> None:
    assert in_hangul(written) == said


def test_offsets_stay_for_every_letter() -> None:
    letters = "".join(chr(code) for code in (*range(0x3041, 0x3100), *range(0x3400, 0xA000), *range(0xF900, 0xFB00)))
    said = in_hangul(letters)
    assert len(said) == len(letters)
    assert sum("가" <= char <= "힣" for char in said) > 4888
