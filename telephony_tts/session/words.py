"""The words of a sentence as the bot wrote them, and when the caller hears each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from telephony_tts.session.heard import end_of, stands_alone, start_of
from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire.messages import WordsSpoken


def words_spoken(turn: Turn, part: Part) -> WordsSpoken:
    """The words of a part that has all its audio. Times are exact if the engine knows them."""
    words: list[dict[str, str | int]] = []
    rate_hz, last = turn.settings.rate_hz, part.start_sample or 0
    for start, end in _words(part.sentence.text):
        at = max(last, start_of(part, start))
        last = max(at, end_of(part, end))
        begin = part.sentence.start
        words.append({
            "text": part.sentence.text[start:end], "start_ms": at * 1000 // rate_hz, "end_ms": last * 1000 // rate_hz,
            "from": turn.begin_in_source(begin + start), "to": turn.in_source(begin + end),
        })  # fmt: skip
    basis = "engine" if part.words and not part.estimates else "estimate"
    return WordsSpoken(turn.id, turn.sentence_index(part), words, basis)


def _words(text: str) -> Iterator[tuple[int, int]]:
    """The places of the words of `text`: what stands between blanks, and each character of Chinese or Japanese by
    itself. Signs belong to the word before them."""
    for found in re.finditer(r"\S+", text):
        begin, last = found.start(), ""
        for n in range(*found.span()):
            if text[n].isalnum():
                if last and (stands_alone(text[n]) or stands_alone(last)):
                    yield begin, n
                    begin = n
                last = text[n]
        yield begin, found.end()
