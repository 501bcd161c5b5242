"""Deepgram's two protocols as pure state machines: recorded conversations, refusals, and any input at all.

The client's side of the conversations was recorded from deepgram-sdk 7.16, pipecat 1.14 and livekit-agents 1.8.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.deepgram.codec import DeepgramSpeak, open_speak, refuse
from telephony_tts.doors.deepgram.flux import DeepgramFlux, open_flux
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Text,
    TurnSent,
    WarningEvent,
)
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, VendorDialect, VendorEvent, VendorOptions

DEFAULT = VendorOptions(rate_hz=8000)
MS = b"\0" * 16
"""A millisecond of audio in the format of `DEFAULT`."""


class Peer:
    """The client and the call around a dialect. `got` is what the client received: messages, audio as its length in
    bytes, and a close as (code, reason). `asked` is what reached the call."""

    def __init__(self, dialect: VendorDialect) -> None:
        self.dialect = dialect
        self.got: list[Any] = []
        self.asked: list[Step] = []
        self.playing: dict[str, Cleared] = {}
        """What each turn that is being heard ends with if it is cleared."""

    def say(self, kind: str, **fields: Any) -> list[Step]:
        return self.send(json.dumps({"type": kind, **fields}).encode())

    def send(self, data: bytes, is_text: bool = True) -> list[Step]:
        """Send a message. Returns the steps that went to the call."""
        asked: list[Step] = []
        for step in self.dialect.decode(data, is_text):
            if isinstance(step, Reply):
                self._receive(step.wire)
            elif isinstance(step, CloseSocket):
                self.got.append((step.code, step.reason))
            else:
                asked.append(step)
                if isinstance(step, Clear):
                    for turn in [turn for turn in self.playing if step.turn in (None, turn)]:
                        self.happens(self.playing.pop(turn))
        self.asked += asked
        return asked

    def happens(self, event: VendorEvent) -> None:
        for wire in self.dialect.event(event):
            if isinstance(wire, CloseSocket):
                self.got.append((wire.code, wire.reason))
            else:
                self._receive(wire)

    def hears(self, turn: str, n_ms: int) -> None:
        for wire in self.dialect.audio(turn, MS * n_ms, None):
            self._receive(wire)

    def _receive(self, wire: tuple[bytes, bool]) -> None:
        payload, is_text = wire
        self.got.append(json.loads(payload) if is_text else len(payload))

    def kinds(self) -> list[str]:
        """The types of the messages since the last call, "audio" for audio and the code of a close."""
        got, self.got = self.got, []
        return [
            item["type"] if isinstance(item, dict) else "audio" if isinstance(item, int) else str(item[0])
            for item in got
        ]


def cleared(turn: str, heard: str, unheard: str, heard_ms: int) -> Cleared:
    return Cleared(turn, heard, len(heard), heard_ms, unheard, "clock", "clear")


def refused(opened: VendorDialect | Refused) -> dict[str, Any]:
    """The body of a refusal, whose header says the same."""
    assert isinstance(opened, Refused)
    body: dict[str, Any] = json.loads(opened.body)
    headers = dict(opened.headers)
    assert headers["dg-request-id"] == body["request_id"]
    assert headers["dg-error"] == body["err_msg"][:200]
    return body


# ---------------------------------------------------------------------- /v1/speak


@pytest.fixture
def speak() -> Peer:
    return Peer(DeepgramSpeak(DEFAULT))


def test_the_greeting_names_the_model_that_was_asked_for() -> None:
    opened = open_speak("/v1/speak?model=aura-2-thalia-en")
    assert isinstance(opened, DeepgramSpeak)
    (greeting,) = opened.greeting()
    message = json.loads(greeting[0])
    assert message["type"] == "Metadata" and message["model_name"] == "aura-2-thalia-en"
    assert message["request_id"] == dict(opened.headers())["dg-request-id"]
    assert set(message) == {"type", "request_id", "model_name", "model_version", "model_uuid"}


def test_words_of_livekit_are_one_turn_and_are_joined_as_they_came(speak: Peer) -> None:
    for word in ("Good ", "morning, ", "friend. "):
        speak.say("Speak", text=word)
    speak.say("Flush")
    assert speak.asked == [Text("Good ", "0"), Text("morning, ", "0"), Text("friend. ", "0"), End("0")]
    assert speak.got == []
    speak.hears("0", 300)
    speak.happens(TurnSent("0"))
    assert speak.got == [4800, {"type": "Flushed", "sequence_id": 0}]


def test_each_flush_has_one_answer_in_order(speak: Peer) -> None:
    speak.say("Speak", text="One. ")
    speak.say("Flush")
    speak.say("Flush")  # without text: answered behind the one before it
    speak.say("Speak", text="Two. ")
    speak.say("Flush")
    assert speak.asked == [Text("One. ", "0"), End("0"), Text("Two. ", "1"), End("1")]
    assert speak.kinds() == []
    speak.happens(TurnSent("0"))
    assert speak.got == [{"type": "Flushed", "sequence_id": 0}, {"type": "Flushed", "sequence_id": 1}]
    speak.happens(TurnSent("1"))
    assert speak.got[2:] == [{"type": "Flushed", "sequence_id": 2}]
    speak.say("Flush")
    assert speak.got[3:] == [{"type": "Flushed", "sequence_id": 3}]


def test_nothing_of_the_interrupted_turn_follows_cleared(speak: Peer) -> None:
    """A Flushed that comes late would end pipecat's next turn before its audio."""
    speak.say("Speak", text="This is the first sentence. ")
    speak.say("Speak", text="And a second one that is longer than the first. ")
    speak.say("Flush")
    speak.hears("0", 700)
    speak.playing["0"] = cleared("0", "This", " is the first…", 700)
    speak.say("Clear")
    assert speak.kinds() == ["audio", "Cleared"]
    speak.say("Speak", text="Now the other turn. ")
    other = last_turn(speak)
    assert other != "0"
    speak.say("Flush")
    assert speak.kinds() == []
    speak.happens(TurnSent(other))
    assert speak.kinds() == ["Flushed"]


def test_a_clear_drops_text_that_was_not_flushed(speak: Peer) -> None:
    speak.say("Speak", text="Half a sent")
    assert speak.say("Clear") == [Clear()]
    assert speak.say("Speak", text="New. ") == [Text("New. ", "1")]


def test_close_speaks_the_rest_and_then_closes(speak: Peer) -> None:
    speak.say("Speak", text="Good")
    speak.say("Speak", text="bye.")
    assert speak.say("Close") == [End("0")]
    assert speak.kinds() == []
    assert speak.say("Speak", text="too late") == []
    speak.hears("0", 100)
    speak.happens(TurnSent("0"))
    assert speak.kinds() == ["audio", "Flushed", "1000"]


def test_close_without_text_closes_at_once(speak: Peer) -> None:
    speak.say("Close")
    assert speak.got == [(1000, "closed")]


def test_close_waits_for_a_flush_that_is_not_answered(speak: Peer) -> None:
    speak.say("Speak", text="One.")
    speak.say("Flush")
    speak.say("Close")
    assert speak.kinds() == []
    speak.happens(TurnSent("0"))
    assert speak.kinds() == ["Flushed", "1000"]


@pytest.mark.parametrize(
    "end",
    [
        ErrorEvent("engine_failed", "the engine gave up", turn="0"),
        Cleared("0", "", 0, 0, "One.", "clock", "barge_in"),
        TurnSent("0"),
    ],
)
def test_a_turn_that_ends_by_itself_is_flushed_and_the_next_text_is_another(speak: Peer, end: VendorEvent) -> None:
    speak.say("Speak", text="One.")
    speak.happens(end)
    assert speak.kinds() == (["Warning"] if isinstance(end, ErrorEvent) else [])
    speak.say("Flush")
    assert speak.kinds() == ["Flushed"]
    assert speak.say("Speak", text="Two.") == [Text("Two.", "1")]


def test_a_failed_turn_is_told_and_flushed(speak: Peer) -> None:
    speak.say("Speak", text="One.")
    speak.say("Flush")
    speak.happens(ErrorEvent("engine_failed", "the engine gave up", turn="0"))
    assert speak.got == [
        {"type": "Warning", "code": "ENGINE_FAILED", "description": "the engine gave up"},
        {"type": "Flushed", "sequence_id": 0},
    ]


def test_warnings_about_turns_stay_inside(speak: Peer) -> None:
    for code in ("no_active_turn", "empty_text", "turn_ended", "turn_timeout"):
        speak.happens(WarningEvent(code, "…", "0"))
    assert speak.got == []
    speak.happens(WarningEvent("language_mismatch", "the voice speaks English", "0"))
    assert speak.got == [
        {"type": "Warning", "code": "LANGUAGE_MISMATCH", "description": "the voice speaks English"}
    ]


BAD_MESSAGES = [
    (b"{not json", True, 1003, "MESSAGE-0000"),
    (b"[]", True, 1003, "MESSAGE-0000"),
    (b"\xff", True, 1003, "MESSAGE-0000"),
    (b'{"type":"Flush"}', False, 1003, "MESSAGE-0000"),
    (b'{"type":"Shout"}', True, 1008, "DATA-0000"),
    (b'{"text":"Hello"}', True, 1008, "DATA-0000"),
    (b'{"type":["Speak"]}', True, 1008, "DATA-0000"),
    (b'{"type":"Speak"}', True, 1008, "DATA-0000"),
    (b'{"type":"Speak","text":7}', True, 1008, "DATA-0000"),
]


@pytest.mark.parametrize(("data", "is_text", "close_code", "code"), BAD_MESSAGES)
def test_what_cannot_be_read_closes_with_the_vendors_codes(
    speak: Peer, data: bytes, is_text: bool, close_code: int, code: str
) -> None:
    assert speak.send(data, is_text) == []
    ((closed, reason),) = speak.got
    assert closed == close_code and reason.startswith(f"{code}: ")


def test_2001_characters_are_too_many(speak: Peer) -> None:
    assert speak.say("Speak", text="x" * 2000) == [Text("x" * 2000, "0")]
    speak.say("Speak", text="x" * 2001)
    assert speak.got == [(1009, 'BIG-0001: "text" has 2001 characters; the limit is 2000')]


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
@pytest.mark.parametrize(
    ("query", "codec", "rate_hz"),
    [
        ("", "pcm", 24_000),
        ("encoding=linear16&sample_rate=8000", "pcm", 8_000),
        ("encoding=linear16&sample_rate=16000", "pcm", 16_000),
        ("sample_rate=32000", "pcm", 32_000),
        ("sample_rate=44100", "pcm", 44_100),
        ("sample_rate=48000&container=none&mip_opt_out=false&tag=a&tag=b&expressivity=2&bit_rate=1", "pcm", 48_000),
        ("encoding=mulaw&sample_rate=8000", "ulaw", 8_000),
        ("encoding=alaw", "alaw", 8_000),
    ],
)
def test_audio_formats(path: str, query: str, codec: str, rate_hz: int) -> None:
    opened = open_speak(f"{path}?{query}") if path == "/v1/speak" else open_flux(f"{path}?{query}")
    assert not isinstance(opened, Refused)
    assert (opened.options.codec, opened.options.rate_hz) == (codec, rate_hz)


def test_the_other_options_are_read() -> None:
    opened = open_speak("/v1/speak?model=aura-2-celeste-es&speed=1.2&call=CA1")
    assert isinstance(opened, DeepgramSpeak)
    options = opened.options
    assert (options.voice, options.lang, options.speed, options.call) == ("aura-2-celeste-es", "es", 1.2, "CA1")
    english = open_flux("/v2/speak?model=flux-alexis-en")
    assert isinstance(english, DeepgramFlux) and english.options.lang is None


@pytest.mark.parametrize(
    ("query", "code", "named"),
    [
        ("encoding=mp3", "UNSUPPORTED_AUDIO_FORMAT", "mp3"),
        ("sample_rate=11025", "UNSUPPORTED_AUDIO_FORMAT", "11025"),
        ("encoding=mulaw&sample_rate=24000", "UNSUPPORTED_AUDIO_FORMAT", "24000"),
        ("speed=1.6", "INVALID_QUERY_PARAMETER", "1.6"),
        ("speed=0", "INVALID_QUERY_PARAMETER", "0"),
        ("speed=fast", "INVALID_QUERY_PARAMETER", "fast"),
    ],
)
def test_options_of_v1_that_are_refused(query: str, code: str, named: str) -> None:
    body = refused(open_speak(f"/v1/speak?{query}"))
    assert body["err_code"] == code and named in body["err_msg"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("encoding=opus", "UNSUPPORTED_AUDIO_FORMAT"),
        ("speed=1.55", "SPEED_OUT_OF_RANGE"),
        ("speed=1.07", "SPEED_INCREMENT_INVALID"),
        ("speed=nan", "SPEED_OUT_OF_RANGE"),
    ],
)
def test_options_of_v2_that_are_refused(query: str, code: str) -> None:
    assert refused(open_flux(f"/v2/speak?{query}"))["err_code"] == code


def test_a_model_that_does_not_exist_is_refused_in_the_vendors_words() -> None:
    body = refused(refuse(400, "unknown_voice", "fake has no voice 'Zoe'"))
    assert body["err_code"] == "Bad Request"
    assert body["err_msg"].startswith("Bad Request: No such model/language/tier combination found.")
    assert refuse(400, "x", "a\r\nb: Zoë").headers[1] == ("dg-error", "a??b: Zo?")


# ---------------------------------------------------------------------- /v2/speak


@pytest.fixture
def flux() -> Peer:
    return Peer(DeepgramFlux(DEFAULT))


def spoken(flux: Peer, text: str, n_ms: int) -> str:
    """A speech that was sent to its end. Returns its id."""
    flux.say("Speak", text=text)
    turn = last_turn(flux)
    flux.say("Flush")
    flux.hears(turn, n_ms)
    flux.happens(TurnSent(turn))
    return turn


def last_turn(peer: Peer) -> str:
    return next(step.turn or "" for step in reversed(peer.asked) if isinstance(step, Text))


def test_the_greeting_of_flux() -> None:
    opened = open_flux("/v2/speak?model=flux-alexis-en&encoding=linear16&sample_rate=8000")
    assert isinstance(opened, DeepgramFlux)
    (greeting,) = opened.greeting()
    message = json.loads(greeting[0])
    assert message["type"] == "Connected" and message["model_name"] == "flux-alexis-en"
    assert set(message) == {"type", "request_id", "model_name", "model_version", "model_uuids"}


def test_tokens_of_pipecat_are_one_speech(flux: Peer) -> None:
    for token in ("Good", " morning", ", friend."):
        flux.say("Speak", text=token)
    turn = last_turn(flux)
    assert re.fullmatch("dg_sp_[0-9a-f]{12}", turn)
    assert flux.got == [{"type": "SpeechStarted", "speech_id": turn}]
    flux.say("Flush")
    assert flux.asked == [Text("Good", turn), Text(" morning", turn), Text(", friend.", turn), End(turn)]
    flux.hears(turn, 900)
    flux.happens(TurnSent(turn))
    assert flux.got[2:] == [
        {"type": "Flushed", "speech_id": turn},
        {
            "type": "SpeechMetadata", "speech_id": turn, "audio_duration_ms": 900, "input_character_count": 21,
            "billable_character_count": 21,
            "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
        },
    ]  # fmt: skip


def test_a_speech_begins_when_the_one_before_it_is_over(flux: Peer) -> None:
    flux.say("Speak", text="One. ")
    one = last_turn(flux)
    flux.say("Flush")
    flux.say("Speak", text="Two. ")
    two = last_turn(flux)
    flux.say("Flush")
    assert flux.kinds() == ["SpeechStarted"]
    flux.happens(TurnSent(one))
    flux.hears(two, 10)
    assert flux.kinds() == ["Warning", "Flushed", "SpeechMetadata", "SpeechStarted", "audio"]


def test_an_interrupt_without_an_offset_tells_what_we_know(flux: Peer) -> None:
    first = spoken(flux, "Hello. ", 500)
    flux.say("Speak", text="Sure, I can help you cancel. Let me pull up your account.")
    second = last_turn(flux)
    flux.hears(second, 2000)
    flux.kinds()
    flux.playing[second] = cleared(second, "Sure, I can help", " you cancel. Let me pull up your account.", 900)
    assert flux.say("Interrupt") == [Clear()]
    assert flux.got == [
        {
            "type": "SpeechInterrupted", "audio_played_ms": 1400, "text_spoken": "Sure, I can help",
            "text_remaining": " you cancel. Let me pull up your account.",
            "metadata": {
                "speech_id": second, "audio_duration_ms": 2000, "input_character_count": 57,
                "billable_character_count": 57,
                "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
            },
        }
    ]  # fmt: skip
    assert first != second


def test_nothing_of_an_interrupted_speech_follows(flux: Peer) -> None:
    """A SpeechMetadata that comes late would end pipecat's next turn before its audio."""
    flux.say("Speak", text="One two three four.")
    one = last_turn(flux)
    flux.say("Flush")
    flux.hears(one, 100)
    flux.playing[one] = cleared(one, "One", " two three four.", 60)
    flux.say("Interrupt")
    flux.kinds()
    flux.say("Speak", text="Five.")
    five = last_turn(flux)
    flux.say("Flush")
    flux.hears(five, 50)
    flux.happens(TurnSent(five))
    assert five != one
    assert flux.kinds() == ["SpeechStarted", "audio", "Flushed", "SpeechMetadata"]


def test_an_offset_counts_from_the_beginning_of_the_session(flux: Peer) -> None:
    first = spoken(flux, "Hello. ", 500)
    flux.say("Speak", text="One two three. ")
    second = last_turn(flux)
    flux.say("Flush")
    flux.hears(second, 1000)
    flux.say("Speak", text="Not begun.")
    third = last_turn(flux)
    flux.kinds()
    flux.playing = {
        first: cleared(first, "Hello.", " ", 500),
        second: cleared(second, "One two", " three. ", 700),
        third: cleared(third, "", "Not begun.", 0),
    }
    asked = flux.say("Interrupt", playback_offset={"type": "time_ms", "value": 1200})
    assert asked == [Clear(third, 0), Clear(second, 700), Clear(first, 1200)]
    (told,) = flux.got
    assert (told["audio_played_ms"], told["metadata"]["speech_id"]) == (1200, second)
    assert (told["text_spoken"], told["text_remaining"]) == ("One two", " three. Not begun.")
    # The rest of the second speech was never heard, so the third begins at 1200.
    flux.say("Speak", text="Four.")
    fourth = last_turn(flux)
    flux.hears(fourth, 300)
    flux.playing[fourth] = cleared(fourth, "Four.", "", 100)
    assert flux.say("Interrupt", playback_offset={"type": "time_ms", "value": 1300}) == [Clear(fourth, 100)]


@pytest.mark.parametrize("offset", [{"type": "time_ms", "value": 800}, {"type": "time_ms", "value": 700}])
def test_an_offset_must_advance(flux: Peer, offset: dict[str, Any]) -> None:
    flux.say("Speak", text="One two.")
    one = last_turn(flux)
    flux.hears(one, 1000)
    flux.playing[one] = cleared(one, "One", " two.", 800)
    flux.say("Interrupt")
    flux.say("Speak", text="Three.")
    flux.kinds()
    assert flux.say("Interrupt", playback_offset=offset) == []
    assert flux.got[0]["code"] == "INVALID_INTERRUPT_OFFSET"
    assert flux.say("Interrupt", playback_offset=None) == [Clear()]  # SDKs send null for what was not given


@pytest.mark.parametrize(
    "offset",
    [7, [], {"type": "time_ms"}, {"value": -1}, {"value": True}, {"value": "7"}, {"type": "bytes", "value": 7}],
)
def test_an_offset_that_cannot_be_read_is_ignored(flux: Peer, offset: Any) -> None:
    flux.say("Speak", text="One two.")
    flux.kinds()
    assert flux.say("Interrupt", playback_offset=offset) == []
    assert flux.got[0]["code"] == "INVALID_INTERRUPT_OFFSET"


def test_an_interrupt_of_nothing_is_a_warning(flux: Peer) -> None:
    spoken(flux, "Hello. ", 500)
    flux.kinds()
    flux.say("Interrupt")
    assert [(message["type"], message["code"]) for message in flux.got] == [("Warning", "NO_ACTIVE_SPEECH")]
    flux.say("Flush")
    assert [message["code"] for message in flux.got] == ["NO_ACTIVE_SPEECH"] * 2


def test_a_speech_that_was_sent_and_is_still_heard_can_be_interrupted(flux: Peer) -> None:
    """The audio is sent ahead, so most interruptions come after SpeechMetadata."""
    one = spoken(flux, "One two three.", 1000)
    flux.kinds()
    flux.playing[one] = cleared(one, "One", " two three.", 300)
    flux.say("Interrupt")
    (told,) = flux.got
    assert (told["text_spoken"], told["text_remaining"], told["audio_played_ms"]) == ("One", " two three.", 300)


def test_in_a_call_of_a_media_leg_our_knowledge_counts_and_not_the_clients_offset() -> None:
    flux = Peer(DeepgramFlux(VendorOptions(rate_hz=8000, call="CA1")))
    flux.say("Speak", text="One. Two.")
    one = last_turn(flux)
    flux.say("Flush")
    flux.hears(one, 800)  # silence, for the caller hears it elsewhere
    flux.playing[one] = cleared(one, "One.", " Two.", 410)
    assert flux.say("Interrupt", playback_offset={"type": "time_ms", "value": 5000}) == [Clear()]
    told = flux.got[-1]
    assert (told["audio_played_ms"], told["text_spoken"]) == (410, "One.")
    assert told["metadata"]["audio_duration_ms"] == 800


def test_a_speech_that_something_else_interrupts_is_told_and_ends(flux: Peer) -> None:
    """The caller's voice, for example. The client still waits for SpeechMetadata."""
    flux.say("Speak", text="One two.")
    one = last_turn(flux)
    flux.say("Flush")
    flux.hears(one, 500)
    flux.kinds()
    flux.happens(Cleared(one, "One", 3, 200, " two.", "marks", "barge_in"))
    assert flux.got[0]["text_spoken"] == "One"
    assert flux.kinds() == ["SpeechInterrupted", "Flushed", "SpeechMetadata"]
    flux.say("Close")
    assert flux.got[0]["total_audio_duration_ms"] == 200


def test_text_without_a_word_ends_with_a_warning_and_no_audio(flux: Peer) -> None:
    turn = spoken(flux, " … ", 0)
    messages = [message for message in flux.got if isinstance(message, dict)]
    assert [message["type"] for message in messages] == ["SpeechStarted", "Warning", "Flushed", "SpeechMetadata"]
    assert messages[1]["code"] == "NO_SYNTHESIZABLE_TEXT"
    assert (messages[3]["speech_id"], messages[3]["audio_duration_ms"]) == (turn, 0)


def test_configure(flux: Peer) -> None:
    assert flux.say("Configure") == []
    assert flux.say("Configure", speed=1.1) == [Configure(speed=1.1)]
    assert flux.say("Configure", speed=9) == []
    assert flux.say("Configure", speed=1.07) == []
    assert flux.say("Configure", speed="fast") == []
    assert flux.say("Configure", speed=10**400) == []
    assert flux.send(b'{"type":"Configure","speed":1e999}') == []
    flux.say("Configure")
    for message in flux.got:
        message.pop("description", None)
    failure = {"type": "ConfigureFailure", "code": "SPEED_OUT_OF_RANGE", "field": "speed"}
    assert flux.got == [
        {"type": "ConfigureSuccess", "applied": {}},
        {"type": "ConfigureSuccess", "applied": {"speed": 1.1}},
        failure | {"value": 9},
        failure | {"code": "SPEED_INCREMENT_INVALID", "value": 1.07},
        failure,
        failure,
        failure,
        {"type": "ConfigureSuccess", "applied": {"speed": 1.1}},
    ]


@pytest.mark.parametrize("steps", range(10, 31))
def test_every_speed_of_the_vendor_is_accepted(flux: Peer, steps: int) -> None:
    assert flux.say("Configure", speed=steps / 20) == [Configure(speed=steps / 20)]


def test_close_of_flux_tells_the_totals(flux: Peer) -> None:
    spoken(flux, "Hello.\x07", 500)
    flux.say("Speak", text="Bye.")
    bye = last_turn(flux)
    flux.kinds()
    assert flux.say("Close") == [End(bye)]
    assert flux.say("Speak", text="too late") == []
    flux.hears(bye, 250)
    flux.happens(TurnSent(bye))
    assert flux.got[-2:] == [
        {"type": "SessionMetadata", "total_audio_duration_ms": 750, "total_input_character_count": 11,
         "total_billable_character_count": 10},
        (1000, "closed"),
    ]  # fmt: skip
    assert flux.kinds() == ["audio", "SpeechMetadata", "SessionMetadata", "1000"]


@pytest.mark.parametrize(("data", "is_text", "close_code", "code"), BAD_MESSAGES)
def test_an_error_of_flux_is_told_and_closes(
    flux: Peer, data: bytes, is_text: bool, close_code: int, code: str
) -> None:
    assert flux.send(data, is_text) == []
    told, (closed, reason) = flux.got
    assert (told["type"], told["code"], closed) == ("Error", code, close_code)
    assert reason == f"{code}: {told['description']}"


def test_a_failed_speech_ends_and_the_connection_goes_on(flux: Peer) -> None:
    flux.say("Speak", text="One.")
    flux.say("Flush")
    flux.happens(ErrorEvent("engine_failed", "the engine gave up", turn=last_turn(flux)))
    assert flux.kinds() == ["SpeechStarted", "Warning", "Flushed", "SpeechMetadata"]
    flux.happens(ErrorEvent("idle", "no message for too long", fatal=True))
    assert (flux.got[0]["type"], flux.got[0]["code"]) == ("Error", "NET-0004")


# ---------------------------------------------------------------------- anything

_MESSAGES = st.builds(
    lambda kind, fields: json.dumps({"type": kind, **fields}).encode(),
    st.sampled_from(["Speak", "Flush", "Clear", "Interrupt", "Configure", "Close", "", None, 3]),
    st.dictionaries(
        st.sampled_from(["text", "speed", "playback_offset", "type"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "value"]), inner),
        ),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("opened", [DeepgramSpeak, DeepgramFlux])
@given(inputs=st.lists(st.tuples(st.binary() | _MESSAGES, st.booleans() | st.just(True)), max_size=12), data=st.data())
def test_no_input_raises(opened: type[DeepgramSpeak | DeepgramFlux], inputs: list[Any], data: st.DataObject) -> None:
    peer = Peer(opened(DEFAULT))
    for payload, is_text in inputs:
        peer.send(payload, is_text)
        turns = [step.turn for step in peer.asked if isinstance(step, Text) and step.turn is not None]
        if turns:
            turn = data.draw(st.sampled_from(turns))
            peer.playing[turn] = cleared(turn, "a", "b", 3)
            if data.draw(st.booleans()):
                peer.happens(TurnSent(turn))
    assert all(isinstance(step, Text | End | Clear | Configure) for step in peer.asked)


@given(st.text())
def test_no_target_raises(target: str) -> None:
    for opened in (open_speak(f"/v1/speak?{target}"), open_flux(f"/v2/speak?{target}")):
        if not isinstance(opened, Refused):
            assert opened.options.speed is None or 0.5 <= opened.options.speed <= 2
