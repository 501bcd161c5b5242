"""The figures that a bot gets about its call and its turns."""

from __future__ import annotations

from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire.messages import SentenceSpoken, StatusReport

_MS = 1_000_000


def latency(turn: Turn) -> dict[str, float | None]:
    """Where the time of a turn's first sentence went, in milliseconds. Empty if no sentence was complete; None for what
    had not happened yet when the turn ended."""
    if not turn.parts:
        return {}
    first = turn.parts[0]
    return {
        "text_to_sentence_ms": _span_ms(turn.begun_ns, first.ready_ns),
        "queue_ms": _span_ms(first.ready_ns, first.begun_ns),
        "first_pcm_ms": _span_ms(first.begun_ns, first.first_pcm_ns),
        "first_audio_ms": turn.first_audio_ms,
    }


def stages(turn: Turn) -> dict[str, tuple[int, int]]:
    """When each stage before the turn was heard began and ended, in order. A turn that ended early has not all."""
    first = turn.parts[0] if turn.parts else None
    if first is None:
        return {}
    found: dict[str, tuple[int, int]] = {}
    begin_ns = turn.begun_ns
    for name, end_ns in (("text", first.ready_ns), ("queue", first.begun_ns), ("first_audio", turn.first_frame_ns)):
        if end_ns is None:
            break
        # Another turn's clear may have had this one synthesised again.
        found[name] = begin_ns, max(begin_ns, end_ns)
        begin_ns = found[name][1]
    return found


def status(call: str, has_media: bool, turns: list[Turn], buffered_ms: int, n_underruns: int) -> StatusReport:
    """A snapshot of the call."""
    speaking = next((turn.id for turn in turns if turn.first_frame_ns is not None), None)
    return StatusReport(
        call=call,
        media="attached" if has_media else "waiting",
        speaking=speaking,
        turns=[
            {"turn": turn.id, "chars": turn.n_source_chars, "closed": turn.closed, "speaking": turn.id == speaking}
            for turn in turns
        ],
        buffered_chars=sum(turn.waiting_chars for turn in turns),
        buffered_ms=max(0, buffered_ms),
        underruns=n_underruns,
    )


def _span_ms(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else round((end_ns - begin_ns) / _MS, 3)


def sentence_spoken(turn: Turn, part: Part) -> SentenceSpoken:
    """The text of a part that has all its audio, and its place in the turn's audio."""
    assert part.start_sample is not None and part.end_sample is not None
    rate_hz = turn.settings.rate_hz
    start_ms, end_ms = part.start_sample * 1000 // rate_hz, part.end_sample * 1000 // rate_hz
    text = turn.text_of(part.sentence)
    return SentenceSpoken(turn.id, turn.sentence_index(part), text, start_ms, end_ms, speakers([part]))


def speakers(parts: list[Part]) -> list[str] | None:
    """The engines that spoke, in order, each once. None if they are not reported."""
    return list(dict.fromkeys(name for part in parts for name in part.engines)) or None
