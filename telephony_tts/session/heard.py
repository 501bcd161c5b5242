"""What the caller heard: from a place in the audio to a place in the bot's text, and back for marks.

Word timings from the engine are exact. Without timings a sentence counts as spoken at an even pace. The result is
always a prefix of the bot's text that ends at a word (at a character in Chinese). A number counts as heard only when
all of it was heard.
"""

from __future__ import annotations

from telephony_tts.session.digits import Digits
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


def is_in_insert(turn: Turn, position: int) -> bool:
    """Whether the caller hears an insert at `position`."""
    return any(
        part.insert is not None and part.start_sample is not None and part.start_sample < position
        and (part.end_sample is None or position < part.end_sample)
        for part in turn.parts
    )  # fmt: skip


def boundary_sample(turn: Turn, position: int) -> int:
    """The sample of the last word boundary that was heard by `position`. Inside a sound it is `position` itself, and
    inside tones the begin or the end of a tone."""
    rate_hz = turn.settings.rate_hz
    for part in turn.parts:
        if part.start_sample is None or position <= part.start_sample:
            break
        if isinstance(part.insert, Digits) and (part.end_sample is None or position < part.end_sample):
            heard_ms = (position - part.start_sample) * 1000 // rate_hz
            return part.start_sample + part.insert.resume_ms(heard_ms) * rate_hz // 1000
        if part.insert is not None or (part.end_sample is not None and position >= part.end_sample):
            continue
        if part.words:
            return max((sample for _, sample in part.words if sample <= position), default=part.start_sample)
        assert part.utterance is not None
        text, n_samples = part.utterance.text, _n_samples(part, turn.settings.rate_hz)
        n_spoken = min(len(text), (position - part.start_sample) * len(text) // max(1, n_samples))
        while 0 < n_spoken < len(text) and joins(text[n_spoken - 1], text[n_spoken]):
            n_spoken -= 1
        return min(position, part.start_sample + n_samples * n_spoken // max(1, len(text)))
    return position


def has_keys(turn: Turn, begin: int, end: int) -> bool:
    """Whether keys, or the silence around them, are within these samples of the turn."""
    return any(
        isinstance(part.insert, Digits) and part.start_sample is not None and part.start_sample < end
        and (part.end_sample is None or begin < part.end_sample)
        for part in turn.parts
    )  # fmt: skip


def tones_end(turn: Turn, position: int) -> int:
    """The sample at which the last tones in the audio end that were heard by `position`; else 0."""
    return max(
        (
            part.end_sample for part in turn.parts
            if isinstance(part.insert, Digits) and not part.insert.by_message
            and part.end_sample is not None and part.end_sample <= position
        ),
        default=0,
    )  # fmt: skip


def mark_sample(turn: Turn, offset: int, n_inserts: int = 0) -> int | None:
    """The sample by which all text before `offset` and the first `n_inserts` inserts are heard. None while that is not
    known."""
    last_end = 0
    offset = len(turn.text[:offset].rstrip())
    for part in turn.parts:
        if part.insert is not None:
            if part.n_inserts > n_inserts:
                break
        elif part.sentence.start >= offset:
            break
        elif part.sentence.end > offset:
            return _sample_in_part(part, offset)
        if part.end_sample is None:
            return None
        last_end = part.end_sample
    if n_inserts and (not turn.parts or turn.parts[-1].n_inserts < n_inserts):
        return None  # the insert is not among the parts yet
    covered = turn.parts[-1].sentence.end if turn.parts else 0
    if covered >= offset or turn.text_exhausted or not turn.text[covered:offset].strip():
        return last_end
    return None


def start_of(part: Part, offset: int) -> int:
    """The sample at which the word at `offset` of a sentence begins. All the audio of the sentence has come."""
    assert part.start_sample is not None and part.end_sample is not None
    if not part.words:
        return _even_sample(part, offset)
    return next((at for n, at in part.word_starts if source_offset(part, n) >= offset), part.end_sample)


def end_of(part: Part, offset: int) -> int:
    """The sample at which a sentence is spoken up to `offset`. All the audio of the sentence has come."""
    sample = _sample_in_part(part, part.sentence.start + offset)
    assert sample is not None
    return sample


def place_marks(turn: Turn) -> None:
    """Place each mark whose place in the audio is known now, in order."""
    while (mark := turn.marks.first(MarkState.ASKED)) is not None:
        sample = mark_sample(turn, mark.offset, mark.n_inserts)
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
        return source_offset(part, n_spoken)
    fraction = (position - part.start_sample) / max(1, _n_samples(part, rate_hz))
    return source_offset(part, min(len(spoken), int(fraction * len(spoken))))


def _n_samples(part: Part, rate_hz: int) -> int:
    """The length of a sentence; an estimate until all its audio has come."""
    assert part.utterance is not None and part.start_sample is not None
    if part.end_sample is not None:
        return part.end_sample - part.start_sample
    return int(rate_hz * typical_s(part.utterance.text))


def typical_s(spoken: str) -> float:
    """About how long it takes to say a text, in seconds."""
    n_cjk = sum(stands_alone(c) for c in spoken)
    return n_cjk / _CJK_CHARS_PER_S + (len(spoken) - n_cjk) / _CHARS_PER_S


def _sample_in_part(part: Part, offset: int) -> int | None:
    """The sample at which the sentence is spoken up to source `offset`. None until the timing of its word is known."""
    wanted = _without_signs(part, offset - part.sentence.start)
    if wanted == 0:
        return part.start_sample
    for end_char, end_sample in part.words:
        if source_offset(part, end_char) >= wanted:
            return end_sample
    if part.words or part.end_sample is None or part.start_sample is None or part.utterance is None:
        return part.end_sample
    return _even_sample(part, wanted)


def _without_signs(part: Part, offset: int) -> int:
    """`offset` of a sentence, without the signs and blanks before it that are not spoken. They belong to no word of the
    engine."""
    text = part.sentence.text
    while offset > 0 and not text[offset - 1].isalnum():
        span = next((span for span in part.spans if span.start < offset <= span.end), None)
        if span is not None and span.spoken and not span.is_written:
            break  # it is read as a word
        offset -= 1
    return offset


def _even_sample(part: Part, offset: int) -> int:
    """The sample at `offset` of a sentence that is spoken at an even pace."""
    assert part.utterance is not None and part.start_sample is not None and part.end_sample is not None
    n_samples = part.end_sample - part.start_sample
    return part.start_sample + n_samples * _to_spoken(part, offset) // max(1, len(part.utterance.text))


def source_offset(part: Part, n_spoken: int) -> int:
    """Offset in the sentence of spoken character `n_spoken`. Inside a number that is read out: the number's start."""
    at = 0
    for span in part.spans:
        end = at + len(span.spoken)
        if n_spoken < end:
            return span.start + (n_spoken - at if span.is_written else 0)
        at = end
    return part.spans[-1].end if part.spans else 0


def _to_spoken(part: Part, offset: int) -> int:
    at = 0
    for span in part.spans:
        if offset < span.end:
            return at + (max(0, offset - span.start) if span.is_written else 0)
        at += len(span.spoken)
    return at


def _cut_at_word(text: str, offset: int) -> int:
    offset = min(offset, len(text))
    if 0 < offset < len(text) and joins(text[offset - 1], text[offset]):
        while offset > 0 and joins(text[offset - 1], text[offset]):
            offset -= 1
    else:
        while 0 < offset < len(text) and text[offset] in ATTACHED:
            offset += 1
    # Space behind the last word that was heard belongs to the unheard text.
    while offset > 0 and text[offset - 1].isspace():
        offset -= 1
    return offset


def joins(left: str, right: str) -> bool:
    """True if the two characters belong to one word."""
    return (
        (left.isalnum() or left in "'’-") and (right.isalnum() or right in "'’-")
        and not stands_alone(left) and not stands_alone(right)
    )


def stands_alone(char: str) -> bool:
    """Whether an ideograph or kana, which ends a word by itself. Korean is written in words."""
    return is_cjk(char) and not is_hangul(char)
