"""What a caller hears for the Mandarin text that a bot writes, and that it does not depend on how the text arrives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_rows import heard, read_in_pieces, rows, said_in_call

from telephony_tts.text.languages.chinese import CHINESE
from telephony_tts.text.normalizer import normalize, normalize_spans
from telephony_tts.text.reader import read
from telephony_tts.text.settled import settled_spans

_HAN = re.compile("[\u4e00-\u9fff]")
HERE = Path(__file__).parent
UNREAD = re.compile(r"[0-9~*#/_^<>\\|=@%&+$€£¥₩℃°㎡㎞㎖×÷½]")
"""What an engine would speak in its own way, or swallow."""


ORDINARY, KINDS = rows(HERE / "ordinary.txt"), rows(HERE / "kinds.txt")


@pytest.mark.parametrize(("written", "spoken"), [*ORDINARY, *KINDS])
def test_reading(written: str, spoken: str) -> None:
    said = normalize(written, "zh")
    assert heard(said) == heard(spoken)
    assert not UNREAD.search(said), said
    if _HAN.search(written):  # marks alone do not make words Chinese
        assert normalize(written) == said, "the language is seen"


def test_the_data_is_there() -> None:
    assert len(ORDINARY) > 900 and len(KINDS) > 240


@pytest.mark.parametrize("first", range(0, len(ORDINARY) - 4, 4))
def test_a_stream_is_read_as_the_whole_text(first: int) -> None:
    """Cut at every place, and character by character."""
    text = "".join(written for written, _ in ORDINARY[first : first + 4])
    whole = read_in_pieces([text], "zh")
    assert read_in_pieces(list(text), "zh") == whole
    for cut in range(1, len(text)):
        assert read_in_pieces([text[:cut], text[cut:]], "zh") == whole


@pytest.mark.parametrize("written", [written for written, _ in [*ORDINARY, *KINDS]])
def test_what_settles_early_is_what_the_sentence_says(written: str) -> None:
    said = normalize(written, "zh")
    for n_arrived in range(len(written)):
        spans = settled_spans(written[:n_arrived], "zh")
        assert said.startswith("".join(span.spoken for span in spans))


def test_a_code_of_the_call_stays_a_code() -> None:
    codes: set[str] = set()
    assert said_in_call("分机302已接通。", "zh", codes) == "分机三零二已接通。"
    assert said_in_call("您要的是302吗？", "zh", codes) == "您要的是三零二吗？"
    assert said_in_call("还有302个。", "zh", codes) == "还有三百零二个。", "what is counted is an amount"
    assert said_in_call("您要的是302吗？", "zh", set()) == "您要的是三百零二吗？", "in another call it is not known"


WRITTEN = """
    482913 1234 12 3 2 0 09 1,234 3.5 2026.11.29 2026-11-29 11/30 3/4 09:30 1:1 010-12345678 **** XXXX 粤B·12345 A4
    v2.1 7XK29Q kg ㎡ ℃ % ‰ 元 个 次 时 分 号 楼 层 栋 室 万 月 日 期 折 转 至 到 ~ - – — * # / _ ^ < > = + & @ $ ₩ €
    × ÷ ½ ² 大 小 验证码 密码是 尾号 共 第 满 好的 a@b.com www.a.cn No. PM m² , . : ： ， 。 （ ） ( ) " ' 刘 某
"""
_PIECES = st.sampled_from(WRITTEN.split())
_ANY = st.lists(st.one_of(_PIECES, st.just(" "), st.text(max_size=1)), max_size=14).map("".join)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(_ANY)
def test_nothing_is_left_unread(text: str) -> None:
    text = "好" + text + "好"
    spans = normalize_spans(text, "zh")
    assert "".join(text[span.start : span.end] for span in spans) == text
    said = "".join(span.spoken for span in spans)
    if not re.search("[가-힣ぁ-ヿ]", text):
        assert not UNREAD.search(said), (text, said)
    said.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["1", "1,", "1.", "1-", "1 ", "好1", "~",
              "-", "*", "#", "1/", "1:", "A1", "¥1", "1至", "1'", "号码", "刘*"]
)
def test_time_is_linear(piece: str) -> None:
    """A quadratic pattern would take minutes and hit the faulthandler timeout."""
    assert not UNREAD.search(normalize("好" + (piece * 20_000)[:20_000], "zh"))


def test_a_run_of_x_that_hides_nothing_is_looked_at_once() -> None:
    """At each of its letters again, 20,000 of them took 2.5 seconds."""
    assert read("x" * 300, CHINESE) == [(0, 300, "x" * 300)]
