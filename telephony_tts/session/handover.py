"""An engine failed in the middle of a sentence: where the next engine goes on.

Nothing is lost, and as little as possible is said twice:

* none of the sentence was sent: the next engine speaks all of it;
* the engine knew when its words end: the next one goes on behind the last word that is complete. What was not sent of a
  broken word is dropped. If a part of the broken word was sent already, the word is said again;
* the engine estimated its words, or told nothing of them: all audio is kept. The engine may have been slower than was
  estimated, so the next one goes on behind the words that are sure, and some words are said twice.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from telephony_tts.engines.api import TextFeed, Utterance
from telephony_tts.session.heard import joins, typical_s
from telephony_tts.session.turn import Part, Turn

_SLOWEST = 0.5
"""Speech is at least this fast, compared with an estimate of its words. Slow voices speak at 0.6 times the usual rate,
and some begin with silence."""


def hand_over(turn: Turn, part: Part) -> Utterance:
    """Prepare `part` for another engine. Returns what that engine is to speak: the rest of the text, which may have no
    word, with a new feed if the bot still writes it."""
    text, is_whole = turn.given_text(part)
    _cut(turn, part, text)
    assert part.utterance is not None
    begin = part.engine_offset
    known = part.utterance.pronunciations
    return replace(
        part.utterance,
        text=text[begin:],
        more=None if is_whole else TextFeed(),
        is_private=part.utterance.is_private or part.utterance.more is not None,
        pronunciations=tuple(
            replace(each, start=each.start - begin, end=each.end - begin) for each in known if each.start >= begin
        ),
    )


def _cut(turn: Turn, part: Part, text: str) -> None:
    """Keep the audio up to the last complete word, and set where the next engine begins."""
    encoder = turn.encoder
    if part.engine_sample is None or part.start_sample is None:
        return  # this engine gave no audio: the next one begins where it began
    given_end = _given_end(turn, part)
    taken = encoder.n_taken_samples
    if part.start_sample >= taken:
        encoder.cut(part.start_sample)
        turn.marks.cut(part.start_sample)
        part.forget_audio()
        return
    # Of estimated words only those are sure that would be over if the engine was as slow as an engine can be.
    is_exact = bool(part.words) and not part.engine_estimates
    sure_end = given_end if is_exact else part.engine_sample + int((given_end - part.engine_sample) * _SLOWEST)
    n_known = bisect_right(part.words, sure_end, key=lambda word: word[1])
    sample = given_end
    if n_known < len(part.words):
        offset, begin = part.word_starts[n_known]  # the word that was broken off, or the first that is not sure
        sample = begin if is_exact else given_end
    elif part.words and part.words[-1][0] > part.engine_offset:
        offset = part.words[-1][0]
    else:
        offset = part.engine_offset + _estimate(turn, part, text[part.engine_offset :])
    end = encoder.cut(sample)
    turn.marks.cut(end)
    del part.words[n_known:], part.word_starts[n_known:]
    if offset > (part.words[-1][0] if part.words else 0) and sample == given_end:
        part.estimates = True
        part.words.append((offset, end))
        part.word_starts.append((offset, end))
    part.engine_offset = _next_word(text, offset)
    part.engine_sample = None
    part.engine_estimates = False


def _given_end(turn: Turn, part: Part) -> int:
    """Where the audio of the failed engine ends on the turn's timeline."""
    assert part.engine_sample is not None
    n_samples, rate_hz = part.engine_pcm
    return part.engine_sample + n_samples * turn.settings.rate_hz // rate_hz


def _estimate(turn: Turn, part: Part, text: str) -> int:
    """The least characters of `text` that the audio without timings has spoken. They end at a word."""
    n_samples, rate_hz = part.engine_pcm
    whole_s = typical_s(text) / turn.speaking.speed / _SLOWEST
    n_spoken = min(len(text) - 1, int(len(text) * n_samples / rate_hz / max(whole_s, 1e-9)))
    while n_spoken > 0 and joins(text[n_spoken - 1], text[n_spoken]):
        n_spoken -= 1
    return max(0, n_spoken)


def _next_word(text: str, offset: int) -> int:
    """The beginning of the first word behind `offset`."""
    while 0 < offset < len(text) and not text[offset].isalnum():
        offset += 1
    return offset
