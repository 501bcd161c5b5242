"""Where a Korean sentence ends, and that it ends there however the text arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from telephony_tts.text.segmenter import Segmenter

LINES = [
    line
    for line in (Path(__file__).parent / "endings.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
WITH_STOPS = """
만료일은 2026. 11. 29.입니다.|다음 안내입니다.
만료일은 2026. 11. 29. 입니다.
만료일은 2026. 11. 29.까지입니다.
만료일은 2026. 11. 29.(일)입니다.
만료일은 2026.11.29.입니다.
만료일은 26. 11. 29.입니다.
만료일은 26.11.29.입니다.
2026. 11.까지 접수합니다.
2026. 11. 29. ~ 2026. 12. 5. 접수합니다.
2026. 11. 29.부터 2026. 12. 5.까지입니다.
11. 29.까지입니다.
총 금액은 26.|다음은 배송입니다.
가. 성명 나. 연락처 다. 주소입니다.
다음과 같습니다.|가. 성명입니다.|나. 연락처입니다.
집에 가.|나는 남을게.
""".strip().splitlines()


def sentences(pieces: list[str]) -> list[str]:
    segmenter = Segmenter("ko")
    found = [sentence.text for piece in pieces for sentence in segmenter.feed(piece)]
    return found + [sentence.text for sentence in segmenter.flush()]


@pytest.mark.parametrize("line", [*LINES, *WITH_STOPS])
def test_where_sentences_end(line: str) -> None:
    text = line.replace("|", " ")
    assert sentences([text]) == line.split("|")
    assert sentences(list(text)) == line.split("|")
    for cut in range(1, len(text)):
        assert sentences([text[:cut], text[cut:]]) == line.split("|")


def test_a_sentence_ends_with_the_word_behind_it() -> None:
    """The caller does not wait for the end of the turn."""
    segmenter = Segmenter("ko")
    assert segmenter.feed("예약이 완료되었습니다 ") == []
    assert [sentence.text for sentence in segmenter.feed("감사 ")] == ["예약이 완료되었습니다"]
