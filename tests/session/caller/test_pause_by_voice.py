"""The caller's voice pauses the speech: a short one is no interruption, a long one is. Real speech, simulated time."""

from __future__ import annotations

import numpy as np
import pytest
from speech_line import BOT, SpeechLine, speech

from telephony_tts.session.settings import BargeInSettings
from telephony_tts.wire import messages as m

SHORT = "No."
LONG = "Hold on, I have a question about the parcel that you lost last week."


def paused_by(text: str, **settings: int) -> SpeechLine:
    """A line on which the caller says `text` over our speech, four seconds after it began, and is then silent."""
    line = SpeechLine(BargeInSettings(enabled=True, action="pause", **settings))
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(8000, np.concatenate([speech(text, "en-gb"), np.zeros(8)]))
    return line


def test_a_short_voice_only_pauses() -> None:
    line = paused_by(SHORT)
    (paused_ms,), (resumed_ms,) = line.when(m.Paused), line.when(m.Resumed)
    (paused,) = line.of(m.Paused)
    assert paused.reason == "barge_in" and 4000 < paused_ms < 4500
    voice_ms = len(speech(SHORT, "en-gb")) / 8
    assert 4000 + voice_ms + 600 < resumed_ms < 4000 + voice_ms + 1100
    assert not [at_ms for at_ms in line.when(m.Frame) if paused_ms < at_ms < resumed_ms]
    assert line.when(m.MediaClear) and not line.when(m.Cleared)
    silent = line.of(m.CallerSpeech)[-1]
    assert (silent.state, silent.interrupted) == ("silent", False), "a pause has ended no turn"
    line.listen(30_000)
    assert line.when(m.Done), "all of it was spoken"


def test_a_long_voice_interrupts_after_all() -> None:
    line = paused_by(LONG, false_interruption_ms=1000)
    (paused,), (cleared,) = line.of(m.Paused), line.of(m.Cleared)
    assert cleared.reason == "barge_in" and cleared.heard_text == paused.heard_text
    assert cleared.heard_ms == paused.heard_ms
    (paused_ms,), (cleared_ms,) = line.when(m.Paused), line.when(m.Cleared)
    assert 600 < cleared_ms - paused_ms < 1300 and not line.when(m.Resumed)
    silent = line.of(m.CallerSpeech)[-1]
    assert (silent.state, silent.interrupted) == ("silent", True)


def test_a_bot_that_clears_in_time_gets_what_was_heard() -> None:
    line = SpeechLine(BargeInSettings(enabled=True, action="pause"))
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(700, speech(LONG, "en-gb"))
    assert line.when(m.Paused)
    line.send(m.Clear())
    (paused,), (cleared,) = line.of(m.Paused), line.of(m.Cleared)
    assert cleared.reason == "clear" and cleared.heard_text == paused.heard_text
    line.listen(9000)
    assert len(line.of(m.Cleared)) == 1 and not line.when(m.Resumed)
    assert line.of(m.CallerSpeech)[-1].interrupted is False, "the bot has ended the turn, not the caller"


def test_a_bot_takes_over_a_pause_by_voice() -> None:
    line = SpeechLine(BargeInSettings(enabled=True, action="pause"))
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(600, speech(SHORT, "en-gb"))
    line.send(m.PauseSpeech())
    line.listen(10_000)
    assert [paused.reason for paused in line.of(m.Paused)] == ["barge_in", "bot"] and not line.when(m.Resumed)
    line.send(m.ResumeSpeech())
    line.listen(30_000)
    assert line.when(m.Done)


def test_a_caller_who_coughs_again_pauses_again() -> None:
    line = paused_by(SHORT)
    assert len(line.when(m.Paused)) == 1
    line.listen(6000, speech(SHORT, "en-gb"))
    assert len(line.when(m.Paused)) == len(line.when(m.Resumed)) == 2
    line.listen(40_000)
    assert line.when(m.Done) and not line.when(m.Cleared)


def test_the_hold_off_also_follows_a_pause() -> None:
    line = SpeechLine(BargeInSettings(enabled=True, action="pause", hold_off_ms=1500))
    line.say(BOT, "a")
    line.listen(4000)
    line.send(m.PauseSpeech())
    line.listen(1000)
    line.send(m.ResumeSpeech())
    resumed_ms = line.now_ms
    line.listen(2500, speech(LONG, "en-gb"))
    _, paused_ms = line.when(m.Paused)
    assert 1500 <= paused_ms - resumed_ms < 1700


@pytest.mark.parametrize("action", ["clear", "pause"])
def test_a_bot_chooses_for_its_call(action: str) -> None:
    line = SpeechLine(BargeInSettings(enabled=True, action="pause" if action == "clear" else "clear"))
    line.send(m.Configure(barge_in_action=action))
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(1000, speech(SHORT, "en-gb"))
    assert bool(line.when(m.Paused)) == (action == "pause")
    assert bool(line.when(m.Cleared)) == (action == "clear")


def test_a_peer_that_sends_nothing_while_the_caller_is_silent() -> None:
    """The clock ends the caller's voice, and so the pause."""
    line = SpeechLine(BargeInSettings(enabled=True, action="pause"))
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(600, speech(SHORT, "en-gb"))
    assert line.when(m.Paused) and not line.when(m.Resumed)
    line.run(3000)
    assert len(line.of(m.Resumed)) == 1
