"""Each event of a call is counted, once, by what it says."""

from __future__ import annotations

import pytest

from telephony_tts.runtime import logs
from telephony_tts.runtime.metrics import value
from telephony_tts.session.effects import UnderrunEnded
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.journal import Journal
from telephony_tts.wire import messages as m


def journal(call: str = "c1") -> Journal:
    return Journal(Session(SessionSettings(call=call), 0), logs.get("test"))


def now(name: str, labels: dict[str, str]) -> float:
    try:
        return value(f"telephony_tts_{name}", **labels)
    except KeyError:
        return 0.0  # it appears with its first event


CLEARED = m.Cleared("t1", "Good", 4, 300, " morning.", "clock", "clear")


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (m.CallerSilent(4000), "caller_silent_total", {}),
        (m.AnsweringMachineHeard("beep", beep_hz=1000), "answering_machines_total", {"cause": "beep"}),
        (m.AnsweringMachineHeard("greeting", greeting_ms=3000), "answering_machines_total", {"cause": "greeting"}),
        (m.CallerSpeech("silent", 0, 500, True), "caller_speech_total", {"outcome": "interrupted"}),
        (m.CallerSpeech("silent", 0, 500, False), "caller_speech_total", {"outcome": "none"}),
        (m.Paused("t1", "", 0, 0, "clock", "barge_in"), "pauses_total", {"reason": "barge_in"}),
        (m.WarningEvent("bad_markup", "x"), "bad_markup_total", {}),
        (m.MarkReached("m", "cleared"), "marks_total", {"state": "cleared"}),
        (m.Started("t1", 35.0), "first_audio_ms_count", {"door": "native"}),
        (CLEARED, "turns_total", {"door": "native", "outcome": "cleared"}),
        (m.ErrorEvent("engine_failed", "x", turn="t1"), "turns_total", {"door": "native", "outcome": "error"}),
        (m.ErrorEvent("bad_json", "x"), "errors_total", {"code": "bad_json"}),
    ],
)  # fmt: skip
def test_an_event_counts_once(event: m.ToBot, name: str, labels: dict[str, str]) -> None:
    before = now(name, labels)
    journal().note(event)
    assert now(name, labels) == before + 1


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (m.CallerSpeech("speaking", 0), "caller_speech_total"),
        (m.WarningEvent("empty_text", "x"), "bad_markup_total"),
        (m.ErrorEvent("bad_json", "x"), "turns_total"),
        (m.ErrorEvent("unknown_sound", "x", about="t1"), "turns_total"),
        (m.Resumed("t1", 100), "pauses_total"),
    ],
)
def test_an_event_that_ends_nothing_is_not_counted_as_an_end(event: m.ToBot, name: str) -> None:
    before = now(name, {})
    journal().note(event)
    assert now(name, {}) == before


def test_turns_count_for_the_door_of_the_bot() -> None:
    of_cartesia = {"door": "cartesia", "outcome": "cleared"}
    before, of_all = now("turns_total", of_cartesia), now("turns_total", {"outcome": "cleared"})
    of_bot = journal()
    of_bot.door = "cartesia"
    of_bot.note(CLEARED)
    assert (now("turns_total", of_cartesia), now("turns_total", {"outcome": "cleared"})) == (before + 1, of_all + 1)


def test_pauses_between_tones_are_no_tones() -> None:
    before = now("dtmf_sent_total", {"by": "message"})
    journal().note_tones("1ww2#", "message")
    assert now("dtmf_sent_total", {"by": "message"}) == before + 3


def test_names_of_any_length_and_any_characters_can_be_exemplars() -> None:
    """OpenMetrics allows 128 characters. The longest names of calls and turns have more."""
    of_bot = journal("c" * 128)
    before = now("underrun_ms_sum", {})
    of_bot.note_underrun(UnderrunEnded("\U0001f600" * 128, 250.0))
    of_bot.note(m.Started("t" * 128, 35.0))
    assert now("underrun_ms_sum", {}) == before + 250
