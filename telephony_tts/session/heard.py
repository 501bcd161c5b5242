"""What the caller heard: from a place in the audio to a place in the bot's text, and back for marks.

Word timings from the engine are exact. Without timings a sentence counts as spoken at an even pace. The result is
always a prefix of the bot's text that ends at a word (at a character in Chinese). A number counts as heard only when
all of it was heard.
"""

from __future__ import annotations

from telephony_tts.session.marks import MarkState
from telephony_tts.session.turn import Part, Turn
from telephony_tts.text.characters import is_cjk, is_hangul

# Speaking rates for a sentence without timings whose length is not known yet.
_CHARS_PER_S = 14.0
_CJK_CHARS_PER_S = 4.5
ATTACHED = ".,;:!?…。，、；：！？)]}”’\"'）】」』》"


def heard_offset(turn: Turn, position: int) -> int:
    """How many characters of `turn.text` were heard after `position` samples of its audio."""
    offset = 0
    for part in turn.parts:
        if part.start_sample is None or position <= part.start_sample:
            break
        if part.end_sample is not None and position >= part.end_sample:
            offset = part.sentence.end
            continue
        offset = max(offset, part.sentence.start + _offset_in_part(part, position, turn.settings.rate_hz))
        break
    return _cut_at_word(turn.text, offset)


def mark_sample(turn: Turn, offset: int) -> int | None:
    """The sample by which all text before `offset` is spoken. None while that is not known."""
    last_end = 0
    offset = len(turn.text[:offset].rstrip())
    for part in turn.parts:
        if part.sentence.start >= offset:
            break
        if part.sentence.end > offset:
            return _sample_in_part(part, offset)
        if part.end_sample is None:
            return None
        last_end = part.end_sample
    covered = turn.parts[-1].sentence.end if turn.parts else 0
    if covered >= offset or turn.text_exhausted or not turn.text[covered:offset].strip():
        return last_end
    return None


def place_marks(turn: Turn) -> None:
    """Place each mark whose place in the audio is known now, in order."""
    while (mark := turn.marks.first(MarkState.ASKED)) is not None:
        sample = mark_sample(turn, mark.offset)
        if sample is None:
            return
        turn.marks.place(mark, sample)


def _offset_in_part(part: Part, position: int, rate_hz: int) -> int:
    assert part.utterance is not None and part.start_sample is not None
    spoken = part.utterance.text
    if part.words:
        n_spoken = 0
        for end_char, end_sample in part.words:
            if end_sample > position:
                break
            n_spoken = end_char
        return _to_source(part, n_spoken)
    if part.end_sample is not None:
        n_samples = part.end_sample - part.start_sample
    else:
        n_cjk = sum(stands_alone(c) for c in spoken)
        n_samples = int(rate_hz * (n_cjk / _CJK_CHARS_PER_S + (len(spoken) - n_cjk) / _CHARS_PER_S))
    fraction = (position - part.start_sample) / max(1, n_samples)
    return _to_source(part, min(len(spoken), int(fraction * len(spoken))))


def _sample_in_part(part: Part, offset: int) -> int | None:
    """The sample at which the sentence is spoken up to source `offset`. None until the timing of its word is known."""
    wanted = offset - part.sentence.start
    for end_char, end_sample in part.words:
        if _to_source(part, end_char) >= wanted:
            return end_sample
    if part.words or part.end_sample is None or part.start_sample is None or part.utterance is None:
        return part.end_sample
    n_spoken = _to_spoken(part, wanted)
    n_samples = part.end_sample - part.start_sample
    at: int = part.start_sample + n_samples * n_spoken // max(1, len(part.utterance.text))
    return at


def _to_source(part: Part, n_spoken: int) -> int:
    """Offset in the sentence of spoken character `n_spoken`. Inside a number that is read out: the number's start."""
    at = 0
    for span in part.spans:
        end = at + len(span.spoken)
        if n_spoken < end:
            verbatim = len(span.spoken) == span.end - span.start
            return span.start + (n_spoken - at if verbatim else 0)
        at = end
    return part.spans[-1].end if part.spans else 0


def _to_spoken(part: Part, offset: int) -> int:
    at = 0
    for span in part.spans:
        if offset < span.end:
            verbatim = len(span.spoken) == span.end - span.start
            return at + (max(0, offset - span.start) if verbatim else 0)
        at += len(span.spoken)
    return at


def _cut_at_word(text: str, offset: int) -> int:
    offset = min(offset, len(text))
    if 0 < offset < len(text) and _joins(text[offset - 1], text[offset]):
        while offset > 0 and _joins(text[offset - 1], text[offset]):
            offset -= 1
    else:
        while 0 < offset < len(text) and text[offset] in ATTACHED:
            offset += 1
    # Space behind the last word that was heard belongs to the unheard text.
    while offset > 0 and text[offset - 1].isspace():
        offset -= 1
    return offset


def _joins(left: str, right: str) -> bool:
    """True if the two characters belong to one word."""
    return (
        (left.isalnum() or left in "'’-") and (right.isalnum() or right in "'’-")
        and not stands_alone(left) and not stands_alone(right)
    )


def stands_alone(char: str) -> bool:
    """Whether an ideograph or kana, which ends a word by itself. Korean is written in words."""
    return is_cjk(char) and not is_hangul(char)
