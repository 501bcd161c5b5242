"""What a caller hears for the Korean text that a bot writes, and that it does not depend on how the text arrives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_rows import heard, read_in_pieces, rows, said_in_call

from telephony_tts.text.normalizer import normalize, normalize_spans
from telephony_tts.text.settled import settled_spans

HERE = Path(__file__).parent
UNREAD = re.compile(r"[0-9~*#/_^<>\\|=@%&+$€£¥₩℃°㎡㎞㎖×÷½]")
"""What an engine would speak in its own way, or swallow."""


ORDINARY, KINDS = rows(HERE / "ordinary.txt"), rows(HERE / "kinds.txt")


@pytest.mark.parametrize(("written", "spoken"), [*ORDINARY, *KINDS])
def test_reading(written: str, spoken: str) -> None:
    said = normalize(written, "ko")
    assert heard(said) == heard(spoken)
    assert not UNREAD.search(said), said
    assert normalize(written) == said, "the language is seen"


def test_the_data_is_there() -> None:
    assert len(ORDINARY) > 300 and len(KINDS) > 150


@pytest.mark.parametrize("first", range(0, len(ORDINARY) - 4, 4))
def test_a_stream_is_read_as_the_whole_text(first: int) -> None:
    """Cut at every place, and character by character."""
    text = " ".join(written for written, _ in ORDINARY[first : first + 4])
    whole = read_in_pieces([text], "ko")
    assert read_in_pieces(list(text), "ko") == whole
    for cut in range(1, len(text)):
        assert read_in_pieces([text[:cut], text[cut:]], "ko") == whole


@pytest.mark.parametrize("written", [written for written, _ in [*ORDINARY, *KINDS]])
def test_what_settles_early_is_what_the_sentence_says(written: str) -> None:
    said = normalize(written, "ko")
    for n_arrived in range(len(written)):
        spans = settled_spans(written[:n_arrived], "ko")
        assert said.startswith("".join(span.spoken for span in spans))


def test_a_code_of_the_call_stays_a_code() -> None:
    codes: set[str] = set()
    assert said_in_call("내선 123번으로 연결합니다.", "ko", codes) == "내선 일이삼번으로 연결합니다."
    assert said_in_call("123이 맞으신가요?", "ko", codes) == "일이삼이 맞으신가요?"
    assert said_in_call("123개 남았습니다.", "ko", codes) == "백이십삼개 남았습니다.", "what is counted is an amount"
    assert said_in_call("123이 맞으신가요?", "ko", set()) == "백이십삼이 맞으신가요?", "in another call it is not known"


WRITTEN = """
    482913 1234 12 3 0 09 1,234 3.5 2026.11.29 2026-11-29 11/30 3/4 09:30 1:1 010-1234-5678 **** XXXX 12가 A4
    v2.1 7XK29Q kg ㎡ ℃ % %p 원 개 번 시 분 대 명 만 월 일 ~ - – * # / _ ^ < > = + & @ $ ₩ €
    × ÷ ½ ² ㅎㅎ ㅠㅠ ^^ 네 인증번호 비밀번호는 을 입니다. a@b.com www.a.kr 제 No. PM , . : ( ) " '
"""
_PIECES = st.sampled_from(WRITTEN.split())
_ANY = st.lists(st.one_of(_PIECES, st.just(" "), st.text(max_size=1)), max_size=14).map("".join)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(_ANY)
def test_nothing_is_left_unread(text: str) -> None:
    spans = normalize_spans(text, "ko")
    assert "".join(text[span.start : span.end] for span in spans) == text
    said = "".join(span.spoken for span in spans)
    if re.search("[가-힣]", text):
        assert not UNREAD.search(said), (text, said)
    said.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["1", "1,", "1.", "1-", "1 ", "가1", "~", "-", "*", "#", "1/", "1:", "A1", "₩1", "12가", "XX", "ㅋ"]
)
def test_time_is_linear(piece: str) -> None:
    """A quadratic pattern would take minutes and hit the faulthandler timeout."""
    assert not UNREAD.search(normalize("가" + (piece * 20_000)[:20_000], "ko"))
