"""What a caller hears for the English text that a bot writes, and that it does not depend on how the text arrives."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from telephony_tts.text.normalizer import normalize, normalize_spans, said_before
from telephony_tts.text.segmenter import Segmenter
from telephony_tts.text.settled import settled_spans

HERE = Path(__file__).parent
UNREAD = re.compile(r"[0-9~*#/_^<>\\|=@%&+$€£¥₹℃°²×÷½]")
"""What an engine would speak in its own way, or swallow."""


def _lines(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    rows = (line.partition(" | ") for line in lines if line and not line.startswith("# "))
    return [(written, spoken) for written, _, spoken in rows]


ORDINARY, KINDS = _lines("ordinary.txt"), _lines("kinds.txt")


def heard(text: str) -> str:
    """Words only, without marks."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("'", "")
    return " ".join("".join(char if char.isalnum() else " " for char in plain).split())


@pytest.mark.parametrize(("written", "spoken"), [*ORDINARY, *KINDS])
def test_reading(written: str, spoken: str) -> None:
    said = normalize(written, "en")
    assert heard(said) == heard(spoken)
    assert not UNREAD.search(said), said


def test_the_data_is_there() -> None:
    assert len(ORDINARY) > 200 and len(KINDS) > 100


def _read_in_pieces(pieces: list[str]) -> str:
    """What is said for a turn that arrives in `pieces`."""
    segmenter, source, said, codes = Segmenter("en"), "".join(pieces), [], set[str]()
    sentences = [sentence for piece in pieces for sentence in segmenter.feed(piece)] + segmenter.flush()
    for sentence in sentences:
        spans = normalize_spans(sentence.text, "en", (), said_before(source, sentence.start), codes)
        said.append("".join(span.spoken for span in spans))
    return "\n".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(ORDINARY) - 3, 6))
def test_a_stream_is_read_as_the_whole_text(first: int) -> None:
    """Cut at every place, and character by character."""
    text = " ".join(written for written, _ in ORDINARY[first : first + 3])
    whole = _read_in_pieces([text])
    assert _read_in_pieces(list(text)) == whole
    for cut in range(1, len(text)):
        assert _read_in_pieces([text[:cut], text[cut:]]) == whole


@pytest.mark.slow
@pytest.mark.parametrize("written", [written for written, _ in [*ORDINARY, *KINDS]])
def test_what_settles_early_is_what_the_sentence_says(written: str) -> None:
    said = normalize(written, "en")
    for n_arrived in range(len(written)):
        spans = settled_spans(written[:n_arrived], "en")
        assert said.startswith("".join(span.spoken for span in spans))


def test_a_code_of_the_call_stays_a_code() -> None:
    codes: set[str] = set()
    assert _said("Your code is 123.", codes) == "Your code is one two three."
    assert _said("I repeat: 123.", codes) == "I repeat: one two three."
    assert _said("We have 123 days left.", codes) == "We have one hundred twenty three days left."
    assert _said("I repeat: 123.", set()) == "I repeat: one hundred twenty three.", "in another call it is not known"


def _said(text: str, codes: set[str]) -> str:
    return "".join(span.spoken for span in normalize_spans(text, "en", (), "", codes))


@pytest.mark.parametrize("lang", ["en-GB", "en-AU", "en-IN", "en_SG"])
def test_regions_that_put_the_day_first(lang: str) -> None:
    assert normalize("Due 03/12.", lang) == "Due the third of December."
    assert normalize("Due 03/12/2026.", lang) == "Due the third of December, twenty twenty six."
    assert normalize("Due 12/25.", lang) == "Due the twenty fifth of December.", "there is no month 25"
    assert normalize("Due 03/12.", "en-US") == normalize("Due 03/12.", "en") == "Due March twelfth."
