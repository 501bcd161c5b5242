"""Marks that are written and never spoken."""

from __future__ import annotations

import pytest

from telephony_tts.text.markdown import strip


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("**bold** and *italic* and __both__", "bold and italic and both"),
        ("It's **very *nested* bold**", "It's very nested bold"),
        ("# Heading", "Heading"),
        ("- one\n* two\n+ three", "one two three"),
        ("- [x] done", "done"),
        ("> quoted", "quoted"),
        ("[click](http://a.example/b_c?x=1) here", "click here"),
        ("![a cat](cat.png)", "a cat"),
        ("`code` and ~~gone~~ here", "code and  here"),
        ("네~~ 확인해 드릴게요~~", "네 확인해 드릴게요"),
        ("a | b", "a , b"),
        ("|---|---|", ""),
        ("---", ""),
        ("one<br/>two", "one two"),
        ('<speak>Wait<break time="500ms"/>now</speak>', " Wait now "),
        ("fish &amp; chips &lt; 5", "fish & chips < 5"),
        ("a < b and c > d", "a < b and c > d"),
        ("5*3, 按*键, press * now", "5*3, 按*键, press * now"),
        ("snake_case a@b_c.example", "snake_case a@b_c.example"),
        ("card ****1234", "card ****1234"),
        ("dial **21*5551234#, then **stop**", "dial **21*5551234#, then stop"),
        ("按**05*和**04*", "按**05*和**04*"),
        ("**5*3** and **5** and **5# block**", "5*3 and 5 and 5# block"),
        ("call *21*5551234# or *2* times", "call *21*5551234# or 2 times"),
        ("press *, then **2*. 按*或*键", "press *, then **2*. 按*或*键"),
        ("press *and hold* 1, 按*这个*键", "press and hold 1, 按这个键"),
        ("1️⃣ ok 👍🏽", "1 ok "),
        ("hello😀world", "hello world"),
        ("A→B", "A B"),
        ("a\x00b\udc00c\u200bd", "abcd"),
        ("１２３ｋｇ％", "123kg%"),
        (r"2 \* 3", "2 * 3"),
        ("text[^1] more", "text more"),
    ],
)
def test_strip(written: str, left: str) -> None:
    assert strip(written).text == left


def test_origins_point_at_the_written_characters() -> None:
    written = "**a** &amp; １😀b"
    stripped = strip(written)
    assert stripped.text == "a & 1 b"
    assert [written[i] for i in stripped.origins[:-1]] == ["a", " ", "&", " ", "１", "😀", "b"]
    assert stripped.origins[-1] == len(written)
