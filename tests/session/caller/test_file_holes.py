"""FreeSWITCH drops 40 ms of the caller's audio where a file begins or ends. That must not end speech or delay barge-in.

The caller's voice is real speech. A hole takes two frames of it away; either the stream is just shorter, or nothing
comes in that time as well.
"""

from __future__ import annotations

import numpy as np
import pytest
from speech_line import BOT, CALLERS, Signal, SpeechLine, speech

from telephony_tts.session.settings import BargeInSettings
from telephony_tts.wire import messages as m

FRAME_MS = 20
BOTH_HOLES = pytest.mark.parametrize("is_gap", [False, True], ids=["shorter", "gap"])


def file_line(**barge_in: int) -> SpeechLine:
    """A line to a peer that plays files."""
    line = SpeechLine(BargeInSettings(enabled=True, **barge_in))  # type: ignore[arg-type]
    start = m.MediaStart("c", "s", "ulaw", 8000, ptime_ms=20, lead_ms=60_000, whole_sentences=True)
    line.session.attach_media(line.now_ns, marks=True, clears=True, start=start)
    return line


def speak(line: SpeechLine, said: Signal, holes: set[int], is_gap: bool) -> None:
    """The caller speaks. `holes` are the numbers of the frames that FreeSWITCH drops."""
    for n in range(len(said) // 160):
        if n not in holes:
            line.listen(FRAME_MS, said[n * 160 : (n + 1) * 160], clock=False)
        elif is_gap:
            line.run(FRAME_MS)
        if n in holes and n + 1 not in holes:
            line.send(m.MediaBegun("a mark", 0))


def boundary(frame: int) -> set[int]:
    """The end of a file, and the begin of the next file 40 ms later."""
    return {frame, frame + 1, frame + 4, frame + 5}


@pytest.mark.slow
@BOTH_HOLES
@pytest.mark.parametrize("silence_ms", [200, 500])
@pytest.mark.parametrize("first", range(0, 25, 2))
def test_a_hole_does_not_end_a_talk_spurt(silence_ms: int, first: int, is_gap: bool) -> None:
    """Two files a second, more than real calls have. 200 ms is the longest pause in this speech."""
    said = np.concatenate([speech(CALLERS[1], "en-gb")] * 2)
    line = file_line(silence_ms=silence_ms)
    line.listen(500, clock=False)
    holes = set().union(*(boundary(frame) for frame in range(20 + first, len(said) // 160 - 20, 25)))
    speak(line, said, holes, is_gap)
    assert len(line.when(m.CallerSpeech, state="speaking")) == 1
    assert line.when(m.CallerSpeech, state="silent") == []
    line.run(silence_ms + 200)
    line._play()
    assert len(line.when(m.CallerSpeech, state="silent")) == 1, "the clock still ends speech"


@pytest.mark.slow
@BOTH_HOLES
@pytest.mark.parametrize("text", CALLERS)
def test_speech_that_begins_with_a_file_interrupts_in_time(text: str, is_gap: bool) -> None:
    """A hole counts as voice if there is voice around it. Otherwise a single word would be too short to count."""
    said = speech(text, "en-gb")

    def delay_ms(holes: set[int]) -> float:
        line = file_line()
        line.say(BOT, "a")
        line.listen(4000, clock=False)
        assert line.when(m.Started) and not line.when(m.CallerSpeech)
        begun_ms = line.now_ms
        speak(line, said, holes, is_gap)
        (cleared_ms,) = line.when(m.Cleared, reason="barge_in")
        return cleared_ms - begun_ms

    whole_ms = delay_ms(set())
    assert whole_ms <= 600
    for first in range(0, 12):
        # If the stream only gets shorter, the audio behind the hole comes that much sooner.
        assert delay_ms({first, first + 1}) <= whole_ms + (40 if is_gap else 0) + 20
