"""Tokens for the engine pass the normaliser unchanged; the text between them is read as usual."""

from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.text.normalizer import normalize_spans

CONTROL = ("[laughter]", "<strong>", "</strong>", "<|endofprompt|>")


def said(text: str, lang: str | None = None, control: tuple[str, ...] = CONTROL) -> str:
    return "".join(span.spoken for span in normalize_spans(text, lang, control))


def test_only_the_given_tokens_pass() -> None:
    text = "That is <strong>42</strong> [laughter] [cough] of them."
    assert said(text) == "That is <strong>forty two</strong> [laughter]  of them."
    assert said(text, control=()) == "That is forty two   of them."
    assert said("高兴地说<|endofprompt|>你有3个[laughter]。") == "高兴地说<|endofprompt|>你有三个[laughter]。"


def test_the_language_of_the_whole_text_decides() -> None:
    assert said("共 [laughter]3[laughter] 个") == "共 [laughter]三[laughter] 个"


@given(st.lists(st.sampled_from([*CONTROL, "3", " of ", "$4.50", "[", "<", "好", "*a*", "\n- "]), max_size=12))
def test_spans_cover_the_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    spans = normalize_spans(text, None, CONTROL)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])][: len(spans)]
    assert (spans[-1].end if spans else 0) == len(text)
    for token in CONTROL:
        assert said(text).count(token) == text.count(token)
