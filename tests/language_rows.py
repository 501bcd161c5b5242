"""The rows of text and reading in tests/text/<language>/, and a turn that arrives in pieces."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from telephony_tts.text.normalizer import normalize_spans, said_before
from telephony_tts.text.segmenter import Segmenter

_MARKED = re.compile(r"\{([^|{}]*)\|([^{}]*)\}")


def rows(file: Path) -> list[tuple[str, str]]:
    """What is written and what is said. A line is `written | said`, or has each part of it as `{written|said}`."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        if line and not line.startswith(("# ", "## ")):
            written, bar, said = line.partition(" | ")
            found.append((written, said) if bar else (_MARKED.sub(r"\1", line), _MARKED.sub(r"\2", line)))
    return found


def heard(text: str) -> str:
    """Letters only, as the ear has no blanks and marks."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).lower() if char.isalnum())


def read_in_pieces(pieces: list[str], lang: str, segmented_as: str | None = None) -> str:
    """What is said for a turn that arrives in `pieces`. `segmented_as`: the language of its sentences, if another."""
    segmenter, source, said, codes = Segmenter(segmented_as or lang), "".join(pieces), [], set[str]()
    sentences = [sentence for piece in pieces for sentence in segmenter.feed(piece)] + segmenter.flush()
    for sentence in sentences:
        spans = normalize_spans(sentence.text, lang, (), said_before(source, sentence.start), codes)
        said.append("".join(span.spoken for span in spans))
    return "\n".join(said)


def said_in_call(text: str, lang: str, codes: set[str]) -> str:
    """What is said in a call that has said `codes`."""
    return "".join(span.spoken for span in normalize_spans(text, lang, (), "", codes))
