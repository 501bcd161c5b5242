"""A piece of text spoken by a blocking synthesiser, and how pieces become the chunks of an utterance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from telephony_tts.engines.api import Chunk, Pcm, Timing
from telephony_tts.engines.words import pieces, without_endless_words

CHUNK_MS = 200
LEAD_MS = 10.0
"""Silence kept before the first sound, so that the onset of an "f" or "h" is not cut."""

_WINDOW_MS = 5
_END_TRAIL_MS = 120.0
_SENTENCE_TRAIL_MS, _CLAUSE_TRAIL_MS, _SPACE_TRAIL_MS = 300.0, 180.0, 40.0
"""Silence kept after a piece inside an utterance: after a sentence, a clause or a word."""


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """The PCM of a piece of text and the timings of its words. The PCM is empty if nothing is heard. `estimates`: the
    timings are estimated."""

    pcm: Pcm
    sample_rate_hz: int
    timings: tuple[Timing, ...] = ()
    estimates: bool = False

    def chunks(self, start_char: int, start_sample: int) -> Iterator[Chunk]:
        """Chunks of at most 200 ms. The first has the timings, moved to the place of the piece in the utterance."""
        timings = tuple(
            Timing(
                t.start_char + start_char,
                t.end_char + start_char,
                t.start_sample + start_sample,
                t.end_sample + start_sample,
            )
            for t in self.timings
        )
        n_chunk = self.sample_rate_hz * CHUNK_MS // 1000
        for start in range(0, len(self.pcm), n_chunk):
            pcm, begun = self.pcm[start : start + n_chunk], timings if start == 0 else ()
            yield Chunk(pcm, self.sample_rate_hz, begun, estimates=self.estimates)


Speak = Callable[[str, int, float], SpokenPiece | Iterator[SpokenPiece]]
"""Speak a piece, given its text, its index, and the milliseconds of silence to keep after it. It may come in parts,
whose characters all count from the beginning of the piece."""


Cut = Callable[[str], Sequence[tuple[int, int]]]
"""Where to cut a text: spans that cover it."""


def speak_pieces(text: str, speak: Speak, cancelled: Callable[[], bool], cut: Cut = pieces) -> Iterator[Chunk]:
    """Speak piece after piece. The first chunks are ready before later pieces are made."""
    text = without_endless_words(text)
    spans = cut(text)
    n_before = 0
    for index, (start, end) in enumerate(spans):
        if cancelled():
            return
        trail_ms = _END_TRAIL_MS if index == len(spans) - 1 else _trail_ms(text[start:end])
        speech = speak(text[start:end], index, trail_ms)
        for part in (speech,) if isinstance(speech, SpokenPiece) else speech:
            yield from part.chunks(start, n_before)
            n_before += len(part.pcm)


def trimmed(
    speech: SpokenPiece, level_dbfs: float, trail_ms: float, *, begins: bool = True, ends: bool = True
) -> SpokenPiece:
    """The piece without the silence around it. Sound is a 5 ms window with an RMS above `level_dbfs`.

    10 ms are kept before the first sound and `trail_ms` after the last. The first word begins with the first sound,
    and no word ends after the last. A part that does not begin or end a piece keeps its silence there.
    """
    start, end = _sounding(speech.pcm, speech.sample_rate_hz, level_dbfs)
    if not begins:
        start = 0
    if not ends:
        end = len(speech.pcm)
    if start == end:
        return SpokenPiece(speech.pcm[:0], speech.sample_rate_hz)
    first = max(0, start - round(LEAD_MS * speech.sample_rate_hz / 1000))
    last = end + round(trail_ms * speech.sample_rate_hz / 1000)
    timings = [
        replace(
            t,
            start_sample=min(max(t.start_sample, start), end) - first,
            end_sample=min(max(t.end_sample, start), end) - first,
        )
        for t in speech.timings
    ]
    if timings and begins:
        timings[0] = replace(timings[0], start_sample=start - first)
    return replace(speech, pcm=speech.pcm[first:last], timings=tuple(timings))


def share_time(spans: Sequence[tuple[int, int]], start_sample: int, end_sample: int) -> list[Timing]:
    """The timings of words that divide a time by their number of letters plus one."""
    if not spans:
        return []
    shares = np.cumsum([0] + [end - start + 1 for start, end in spans])
    edges = (start_sample + shares * ((end_sample - start_sample) / shares[-1])).astype(int).tolist()
    return [Timing(*span, *edge) for span, edge in zip(spans, pairwise(edges), strict=True)]


def _sounding(pcm: Pcm, sample_rate_hz: int, level_dbfs: float) -> tuple[int, int]:
    """`[start, end)` in samples, from the first window above the level to the last; (0, 0) without one."""
    n_window = sample_rate_hz * _WINDOW_MS // 1000
    n_windows = -(-len(pcm) // n_window)
    padded = np.zeros(n_windows * n_window, np.float32)
    padded[: len(pcm)] = pcm
    power = np.square(padded.reshape(n_windows, n_window)).mean(axis=1)
    loud = np.flatnonzero(power > (32768.0 * 10 ** (level_dbfs / 20)) ** 2)
    if not len(loud):
        return 0, 0
    return int(loud[0]) * n_window, min(len(pcm), (int(loud[-1]) + 1) * n_window)


def _trail_ms(piece: str) -> float:
    last = piece.rstrip("\"'”’)] \t\n")[-1:]
    if last in ".!?…。！？":
        return _SENTENCE_TRAIL_MS
    return _CLAUSE_TRAIL_MS if last in ",;:—，、；：" else _SPACE_TRAIL_MS
