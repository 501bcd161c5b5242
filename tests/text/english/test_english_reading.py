"""What a caller hears for the English text that a bot writes, and that it does not depend on how the text arrives."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from language_rows import read_in_pieces, rows, said_in_call

from telephony_tts.text.normalizer import normalize
from telephony_tts.text.settled import settled_spans

HERE = Path(__file__).parent
UNREAD = re.compile(r"[0-9~*#/_^<>\\|=@%&+$€£¥₹℃°²×÷½]")
"""What an engine would speak in its own way, or swallow."""


ORDINARY, KINDS = rows(HERE / "ordinary.txt"), rows(HERE / "kinds.txt")


def heard(text: str) -> str:
    """Words only, without marks."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("'", "")
    return " ".join("".join(char if char.isalnum() else " " for char in plain).split())


@pytest.mark.parametrize(("written", "spoken"), [*ORDINARY, *KINDS])
def test_reading(written: str, spoken: str) -> None:
    said = normalize(written, "en")
    assert heard(said) == heard(spoken)
    assert heard(read_in_pieces([written], "en")) == heard(spoken), "no sentence ends inside"
    assert not UNREAD.search(said), said


def test_the_data_is_there() -> None:
    assert len(ORDINARY) > 200 and len(KINDS) > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(ORDINARY) - 3, 6))
def test_a_stream_is_read_as_the_whole_text(first: int) -> None:
    """Cut at every place, and character by character."""
    text = " ".join(written for written, _ in ORDINARY[first : first + 3])
    whole = read_in_pieces([text], "en")
    assert read_in_pieces(list(text), "en") == whole
    for cut in range(1, len(text)):
        assert read_in_pieces([text[:cut], text[cut:]], "en") == whole


@pytest.mark.slow
@pytest.mark.parametrize("written", [written for written, _ in [*ORDINARY, *KINDS]])
def test_what_settles_early_is_what_the_sentence_says(written: str) -> None:
    said = normalize(written, "en")
    for n_arrived in range(len(written)):
        spans = settled_spans(written[:n_arrived], "en")
        assert said.startswith("".join(span.spoken for span in spans))


def test_a_code_of_the_call_stays_a_code() -> None:
    codes: set[str] = set()
    assert said_in_call("Your code is 123.", "en", codes) == "Your code is one two three."
    assert said_in_call("I repeat: 123.", "en", codes) == "I repeat: one two three."
    assert said_in_call("We have 123 days left.", "en", codes) == "We have one hundred twenty three days left."
    assert said_in_call("I repeat: 123.", "en", set()) == "I repeat: one hundred twenty three.", "another call"


@pytest.mark.parametrize("lang", ["en-GB", "en-AU", "en-IN", "en_SG"])
def test_regions_that_put_the_day_first(lang: str) -> None:
    assert normalize("Due 03/12.", lang) == "Due the third of December."
    assert normalize("Due 03/12/2026.", lang) == "Due the third of December, twenty twenty six."
    assert normalize("Due 12/25.", lang) == "Due the twenty fifth of December.", "there is no month 25"
    assert normalize("Due 03/12.", "en-US") == normalize("Due 03/12.", "en") == "Due March twelfth."
