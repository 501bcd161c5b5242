"""ElevenLabs' protocols as a state machine. Messages of clients are those that elevenlabs 2.78, pipecat 1.14 and
livekit-agents 1.8 send."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.doors.elevenlabs.codec import (
    FORMATS,
    MAX_CONTEXTS,
    OWN_VOICE,
    ElevenLabsStream,
    open_stream,
    refuse,
)
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Flush,
    SpokenText,
    Text,
    TurnSent,
    WarningEvent,
)
from telephony_tts.wire.vendor import CloseSocket, Credential, Refused, Reply, Step

MULTI = "/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM/multi-stream-input"
SINGLE = "/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM/stream-input"
PIPECAT = f"{MULTI}?model_id=eleven_flash_v2_5&output_format=pcm_24000&auto_mode=true"
LIVEKIT = (
    f"{MULTI}?model_id=eleven_turbo_v2_5&output_format=mp3_22050_32&enable_ssml_parsing=false&enable_logging=true"
    "&inactivity_timeout=180&apply_text_normalization=auto&sync_alignment=true&auto_mode=true"
)


def dialect(target: str = MULTI) -> ElevenLabsStream:
    opened = open_stream(target)
    assert isinstance(opened, ElevenLabsStream)
    return opened


def decode(stream: ElevenLabsStream, *messages: dict[str, Any]) -> list[Step]:
    return [step for message in messages for step in stream.decode(json.dumps(message).encode(), True)]


def shown(steps: Any) -> list[Any]:
    """The steps or wires, with JSON as a dict."""
    found = []
    for step in steps:
        wire = step.wire if isinstance(step, Reply) else step
        found.append(json.loads(wire[0]) if isinstance(wire, tuple) else wire)
    return found


def cleared(turn: str, reason: str = "clear") -> Cleared:
    return Cleared(turn, "", 0, 0, "", "clock", reason)


def final(context: str) -> dict[str, Any]:
    return {"contextId": context, "isFinal": True}


# --------------------------------------------------------------------- handshake


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ("mp3", "pcm", 44_100)),
        ("output_format=ulaw_8000", ("", "ulaw", 8_000)),
        ("output_format=alaw_8000", ("", "alaw", 8_000)),
        ("output_format=pcm_22050", ("", "pcm", 22_050)),
        ("output_format=mp3_22050_32", ("mp3", "pcm", 22_050)),
        ("output_format=opus_48000_64", ("opus", "pcm", 48_000)),
    ],
)
def test_the_output_format_decides_container_codec_and_rate(query: str, expected: tuple[str, str, int]) -> None:
    options = dialect(f"{MULTI}?{query}").options
    assert (options.container, options.codec, options.rate_hz) == expected


def test_an_unknown_format_is_refused_in_the_vendors_form() -> None:
    refused = open_stream(f"{MULTI}?output_format=pcm_11025")
    assert isinstance(refused, Refused) and refused.status == 400
    detail = json.loads(refused.body)["detail"]
    assert detail["status"] == "output_format_not_allowed"
    assert all(name in detail["message"] for name in FORMATS)


def test_refusals_have_the_vendors_names() -> None:
    names = [json.loads(refuse(401, code, "no").body)["detail"] for code in ("INVALID_AUTH", "BUSY", "unknown_voice")]
    assert [name["status"] for name in names] == ["invalid_api_key", "system_busy", "voice_not_found"]
    assert names[0]["message"] == "no"


def test_the_voice_is_in_the_path_and_the_language_in_the_query() -> None:
    options = dialect("/v1/text-to-speech/my%20voice/stream-input?language_code=de&call=CA1").options
    assert (options.voice, options.lang, options.call) == ("my voice", "de", "CA1")
    assert dialect(f"{MULTI}?language_code=not+a+language").options.lang is None


def test_the_vendors_voices_are_twenty_letters_and_digits_or_pipecats_none() -> None:
    assert OWN_VOICE.fullmatch("21m00Tcm4TlvDq8ikWAM") and OWN_VOICE.fullmatch("None")
    assert not OWN_VOICE.fullmatch("tone")


# ------------------------------------------------------------------ one text


SDK_BEGIN = {
    "text": " ", "try_trigger_generation": True, "voice_settings": None,
    "generation_config": {"chunk_length_schedule": [50]},
}  # fmt: skip


def test_the_sdk_speaks_one_text_and_the_connection_closes_behind_it() -> None:
    stream = dialect(f"{SINGLE}?model_id=eleven_flash_v2_5&output_format=pcm_8000")
    assert decode(stream, SDK_BEGIN) == []
    assert decode(stream, {"text": "Hello ", "try_trigger_generation": True}) == [Text("Hello ", "1")]
    assert decode(stream, {"text": "you. ", "try_trigger_generation": True}) == [Text("you. ", "1")]
    assert decode(stream, {"text": ""}) == [End("1")]
    assert decode(stream, {"text": "too late"}) == []
    spoken = SpokenText("Hi", 0, (0.0, 40.4, 80.2))
    assert shown(stream.audio("1", b"\x01\x02", spoken)) == [
        {
            "audio": base64.b64encode(b"\x01\x02").decode(),
            "alignment": alignment("Hi", [0, 40], [40, 40]),
            "normalizedAlignment": alignment("Hi", [0, 40], [40, 40]),
            "isFinal": None,
        }
    ]
    assert shown(stream.event(TurnSent("1"))) == [{"audio": None, "isFinal": True}, CloseSocket(1000, "closed")]


def test_only_the_sdk_takes_one_message_for_each_piece_and_only_until_its_text_is_complete() -> None:
    """Others begin with a schedule or with the trigger, not with both, and read all the time."""
    for first in (
        {"text": " ", "voice_settings": {"speed": 1.0}, "generation_config": {"chunk_length_schedule": [120, 160]}},
        {"text": " ", "try_trigger_generation": True},
        {**SDK_BEGIN, "text": "Hello. "},
        {**SDK_BEGIN, "generation_config": None},
        {**SDK_BEGIN, "try_trigger_generation": "true"},
    ):
        stream = dialect(SINGLE)
        decode(stream, first, {"text": "Hello. ", "try_trigger_generation": True})
        assert not stream.options.whole_pieces
    many = dialect(MULTI)
    decode(many, SDK_BEGIN)
    assert not many.options.whole_pieces
    stream = dialect(SINGLE)
    decode(stream, SDK_BEGIN)
    assert stream.options.whole_pieces
    decode(stream, {"text": "Hello. "})
    assert stream.options.whole_pieces
    decode(stream, {"text": ""})
    assert not stream.options.whole_pieces


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        # What elevenlabs 2.78 sends for "It costs ", "$42", ".50 today." and the like.
        (["It costs ", "$42. ", "50 today. "], "It costs $42.50 today. "),
        (["It ", "costs ", "$42. ", "50 ", "today. "], "It costs $42.50 today. "),
        (["$42. ", "50 today. "], "$42.50 today. "),
        (["about ", "1, ", "234, ", "567 ", "people "], "about 1,234,567 people "),
        (["at ", "10: ", "30 ", "today. "], "at 10:30 today. "),
        # A sentence that ends with a number, and one that begins with one: a token such as " 50" is cut in two.
        (["It costs $42. 50 people came. "], "It costs $42. 50 people came. "),
        (["It costs $42. ", "50 people came. "], "It costs $42. 50 people came. "),
        (["It costs $42. ", " 50 people came. "], "It costs $42.  50 people came. "),
        (["It ", "costs ", "$42. ", " ", "50 ", "people ", "came. "], "It costs $42.  50 people came. "),
        (["It costs ", "$42. ", " ", "Fine. "], "It costs $42.  Fine. "),
        (["It costs ", "42. ", "Fine. "], "It costs 42. Fine. "),
        (["It costs ", "$42. "], "It costs $42. "),
    ],
)
def test_the_sdks_cuts_inside_numbers_are_mended(pieces: list[str], text: str) -> None:
    stream = dialect(SINGLE)
    decode(stream, SDK_BEGIN)
    steps = decode(stream, *({"text": piece} for piece in pieces), {"text": ""})
    assert "".join(step.text for step in steps if isinstance(step, Text)) == text
    assert steps[-1] == End("1")


def test_other_clients_pieces_are_left_as_they_are() -> None:
    stream = dialect(SINGLE)
    steps = decode(stream, {"text": " "}, {"text": "$42. "}, {"text": "50 today. "})
    assert [step.text for step in steps if isinstance(step, Text)] == ["$42. ", "50 today. "]



def alignment(chars: str, starts: list[int], durations: list[int]) -> dict[str, Any]:
    return {
        "chars": list(chars), "charStartTimesMs": starts, "charDurationsMs": durations,
        "charsStartTimesMs": starts, "charsDurationsMs": durations,
    }  # fmt: skip


def test_an_end_without_text_is_final_at_once() -> None:
    assert shown(decode(dialect(SINGLE), {"text": ""})) == [
        {"audio": None, "isFinal": True}, CloseSocket(1000, "closed")
    ]  # fmt: skip


def test_one_text_has_no_contexts() -> None:
    stream = dialect(SINGLE)
    assert decode(stream, {"text": "Hello. ", "context_id": "a", "close_context": True, "close_socket": True}) == [
        Text("Hello. ", "1")
    ]
    assert "contextId" not in shown(stream.audio("1", b"", SpokenText("H", 0, (0.0, 1.0))))[0]


def test_pieces_are_joined_as_they_come_without_auto_mode() -> None:
    pieces = ["Bal", "ance", " is", " 4", "2", "."]
    steps = decode(dialect(), *({"text": piece, "context_id": "a"} for piece in pieces))
    assert steps == [Text(piece, "1") for piece in pieces]


# ------------------------------------------------------------------- contexts


def test_pipecats_turn_is_spoken_to_its_end_with_a_space_behind_each_sentence() -> None:
    stream = dialect(PIPECAT)
    assert decode(stream, {"text": " ", "context_id": "a"}) == []
    assert decode(stream, {"text": "One two.", "context_id": "a"}) == [Text("One two. ", "1"), Flush("1")]
    assert decode(stream, {"text": "Three.", "context_id": "a"}) == [Text("Three. ", "1"), Flush("1")]
    assert decode(stream, {"context_id": "a", "flush": True}) == [Flush("1")]
    assert decode(stream, {"context_id": "a", "close_context": True}) == [End("1")]
    assert shown(stream.event(TurnSent("1"))) == [final("a")]
    assert decode(stream, {"context_id": "a", "close_context": True}) == []


def test_a_second_close_stops_what_is_still_spoken() -> None:
    stream = dialect(PIPECAT)
    close = {"context_id": "a", "close_context": True}
    decode(stream, {"text": "One two.", "context_id": "a"}, {"context_id": "a", "flush": True}, close)
    assert shown(decode(stream, close)) == [Clear("1"), final("a")]
    assert shown(stream.event(cleared("1"))) == []
    assert list(stream.audio("1", b"late", None)) == []
    assert decode(stream, close) == []


def test_livekits_turn_ends_with_an_empty_text_that_flushes() -> None:
    stream = dialect(LIVEKIT)
    steps = decode(
        stream,
        {"text": " ", "voice_settings": {}, "context_id": "a"},
        {"text": "Hello there. ", "context_id": "a", "flush": True},
        {"text": "", "context_id": "a", "flush": True},
        {"context_id": "a", "close_context": True},
    )
    assert steps == [Text("Hello there. ", "1"), Flush("1"), Flush("1"), End("1")]


def test_livekits_interruption_closes_behind_text_and_stops_at_once() -> None:
    stream = dialect(LIVEKIT)
    decode(stream, {"text": "Hello there. ", "context_id": "a", "flush": True})
    assert shown(decode(stream, {"context_id": "a", "close_context": True})) == [Clear("1"), final("a")]
    assert decode(stream, {"text": "Next. ", "context_id": "b", "flush": True}) == [Text("Next. ", "2"), Flush("2")]


def test_a_context_that_never_had_text_is_final_at_once() -> None:
    stream = dialect(LIVEKIT)
    decode(stream, {"text": " ", "context_id": "a"})
    assert shown(decode(stream, {"context_id": "a", "close_context": True})) == [final("a")]


def test_an_unknown_context_is_neither_opened_nor_answered_by_a_flush_or_a_close() -> None:
    stream = dialect()
    assert decode(stream, {"context_id": "x", "flush": True}, {"context_id": "x", "close_context": True}) == []
    assert decode(stream, {"text": "", "context_id": "x"}, {"text": ""}) == []
    assert shown(decode(stream, {"close_socket": True})) == [CloseSocket(1000, "closed")]


def test_text_after_a_close_is_dropped_with_one_error_until_the_context_is_opened_again() -> None:
    stream = dialect()
    decode(stream, {"text": "Hello. ", "context_id": "a"}, {"context_id": "a", "close_context": True})
    late = {"text": "late ", "context_id": "a"}
    (error,) = shown(decode(stream, late, late))
    assert error["error"] == "context_closed" and error["contextId"] == "a"
    again = decode(stream, {"text": " ", "context_id": "a"}, {"text": "New. ", "context_id": "a"})
    assert again == [Text("New. ", "2")]


def test_text_for_a_context_that_is_speaking_its_last_words_is_dropped_with_an_error() -> None:
    stream = dialect()
    decode(stream, {"text": "Hello. ", "context_id": "a"}, {"context_id": "a", "flush": True},
           {"context_id": "a", "close_context": True})  # fmt: skip
    (error,) = shown(decode(stream, {"text": "late ", "context_id": "a"}))
    assert error["error"] == "context_closed"
    assert shown(stream.event(TurnSent("1"))) == [final("a")]


def test_messages_without_a_context_share_one() -> None:
    stream = dialect()
    assert decode(stream, {"text": "Hello. "}) == [Text("Hello. ", "1")]
    assert shown(stream.audio("1", b"x", None))[0]["contextId"] == "default"


def test_a_sixth_context_with_text_ends_the_connection() -> None:
    stream = dialect()
    for n in range(20):
        assert decode(stream, {"text": " ", "context_id": f"empty{n}"}) == []
    for n in range(MAX_CONTEXTS):
        assert decode(stream, {"text": "Hi. ", "context_id": f"c{n}"}) == [Text("Hi. ", str(n + 1))]
    error, close = shown(decode(stream, {"text": "Hi. ", "context_id": "more"}))
    assert error["error"] == "max_active_conversations"
    assert isinstance(close, CloseSocket) and close.code == 1008


def test_contexts_that_wait_for_no_more_text_do_not_count() -> None:
    stream = dialect()
    for n in range(20):
        steps = decode(
            stream, {"text": "Hi. ", "context_id": f"c{n}"}, {"context_id": f"c{n}", "flush": True},
            {"context_id": f"c{n}", "close_context": True},
        )  # fmt: skip
        assert steps[-1] == End(str(n + 1))


@pytest.mark.slow
def test_ten_thousand_contexts_leave_little_behind() -> None:
    stream = dialect()
    for n in range(10_000):
        close = {"context_id": f"c{n}", "close_context": True}
        decode(stream, {"text": " ", "context_id": f"e{n}"}, {"text": "Hi. ", "context_id": f"c{n}"}, close, close)
    assert len(stream._contexts) <= 64 and len(stream._over) <= 256 and not stream._of_turn


def test_close_socket_speaks_all_contexts_to_their_end_and_then_closes() -> None:
    stream = dialect()
    decode(stream, {"text": "One.", "context_id": "a"}, {"text": "Two. ", "context_id": "b"})
    assert decode(stream, {"close_socket": True}) == [Text(" ", "1"), End("1"), End("2")]
    assert decode(stream, {"text": "late", "context_id": "c"}) == []
    assert shown(stream.event(TurnSent("1"))) == [final("a")]
    assert shown(stream.event(TurnSent("2"))) == [final("b"), CloseSocket(1000, "closed")]


def test_close_socket_closes_at_once_when_nothing_is_spoken() -> None:
    stream = dialect()
    decode(stream, {"text": " ", "context_id": "a"})
    assert shown(decode(stream, {"close_socket": True})) == [final("a"), CloseSocket(1000, "closed")]


# ----------------------------------------------------------- turns of one context


def test_text_behind_a_turn_that_ended_by_itself_begins_another() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"})
    assert shown(stream.event(TurnSent("1"))) == []
    assert decode(stream, {"text": "Two. ", "context_id": "a"}) == [Text("Two. ", "2")]
    decode(stream, {"context_id": "a", "flush": True}, {"context_id": "a", "close_context": True})
    assert shown(stream.event(TurnSent("2"))) == [final("a")]


def test_text_that_comes_while_a_turn_that_ended_by_itself_is_still_sent_is_not_lost() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"})
    steps = []
    for step in stream.decode(b'{"text": "Two. ", "context_id": "a"}', True):
        steps.append(step)
        if step == Text("Two. ", "1"):
            assert list(stream.event(ErrorEvent("turn_closed", "ended", about="1"))) == []
    assert steps == [Text("Two. ", "1"), Text("Two. ", "2")]
    decode(stream, {"context_id": "a", "flush": True}, {"context_id": "a", "close_context": True})
    assert shown(stream.event(TurnSent("1"))) == []
    assert shown(stream.event(TurnSent("2"))) == [final("a")]


def test_a_context_whose_text_was_all_spoken_is_final_when_it_is_closed() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"})
    list(stream.event(TurnSent("1")))
    closing = decode(stream, {"context_id": "a", "flush": True}, {"context_id": "a", "close_context": True})
    assert shown(closing) == [final("a")]


# ------------------------------------------------------------------- alignment


def test_times_begin_where_the_characters_before_ended() -> None:
    """pipecat adds up the last end of each message."""
    stream = dialect(PIPECAT)
    decode(stream, {"text": "Hi you.", "context_id": "a"})
    sent = [
        shown(stream.audio("1", b"x", SpokenText("Hi", 0, (0.0, 30.6, 61.2))))[0],
        shown(stream.audio("1", b"x", SpokenText("", 2, (61.2,))))[0],
        shown(stream.audio("1", b"x", SpokenText(" yo", 2, (61.2, 140.0, 200.5, 240.4))))[0],
    ]
    assert sent[0]["alignment"] == alignment("Hi", [0, 31], [31, 30])
    assert sent[1]["alignment"] is None
    assert sent[2]["normalizedAlignment"] == alignment(" yo", [0, 79, 139], [79, 60, 40])


def test_with_sync_alignment_times_count_from_the_beginning_of_the_context() -> None:
    """livekit takes times as they are."""
    stream = dialect(LIVEKIT)
    decode(stream, {"text": "Hi you. ", "context_id": "a"})
    list(stream.audio("1", b"x", SpokenText("Hi you.", 0, tuple(float(n) for n in range(0, 800, 100)))))
    list(stream.event(TurnSent("1")))
    decode(stream, {"text": "Next. ", "context_id": "a"})
    (later,) = shown(stream.audio("2", b"x", SpokenText("N", 0, (0.0, 50.0))))
    assert later["alignment"] == alignment("N", [700], [50])


# --------------------------------------------------------------------- settings


@pytest.mark.parametrize(("asked", "given"), [(1.2, 1.2), (0.25, 0.5), (4, 2.0), (10**400, 2.0)])
def test_a_contexts_speed_is_kept_within_what_can_be_spoken(asked: float, given: float) -> None:
    stream = dialect()
    opening = {"text": " ", "context_id": "a", "voice_settings": {"speed": asked, "stability": 0.5}}
    assert decode(stream, opening) == []
    assert decode(stream, {"text": "Hi. ", "context_id": "a"}) == [Configure(speed=given), Text("Hi. ", "1")]


@pytest.mark.parametrize("settings_", [None, {}, {"speed": None}, {"speed": "fast"}, {"speed": True}, [], 1])
def test_settings_without_a_usable_speed_change_nothing(settings_: Any) -> None:
    stream = dialect()
    assert decode(stream, {"text": "Hi. ", "context_id": "a", "voice_settings": settings_}) == [Text("Hi. ", "1")]


def test_a_context_without_settings_does_not_inherit_the_speed_of_another() -> None:
    stream = dialect()
    decode(stream, {"text": "Hi. ", "context_id": "a", "voice_settings": {"speed": 1.2}})
    assert decode(stream, {"text": "Hi. ", "context_id": "b"}) == [Configure(speed=1.0), Text("Hi. ", "2")]


@pytest.mark.parametrize("field", [{"xi_api_key": "k"}, {"authorization": "Bearer k"}])
def test_a_key_in_the_first_message_is_a_credential(field: dict[str, str]) -> None:
    assert decode(dialect(), {"text": " ", "context_id": "a", **field}) == [Credential("k")]


# ----------------------------------------------------------------------- errors


def test_a_failure_ends_its_context_only() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"}, {"text": "Two. ", "context_id": "b"})
    error, end = shown(stream.event(ErrorEvent("engine_failed", "it broke", turn="1")))
    assert (error["error"], error["message"], error["contextId"]) == ("engine_failed", "it broke", "a")
    assert end == final("a")
    assert shown(stream.audio("2", b"x", None))[0]["contextId"] == "b"


def test_a_failure_of_the_only_text_ends_the_connection() -> None:
    stream = dialect(SINGLE)
    decode(stream, {"text": "One. "})
    error, close = shown(stream.event(ErrorEvent("engine_failed", "it broke", turn="1")))
    assert error["message"] == "it broke" and close == CloseSocket(1011, "it broke")


def test_the_callers_voice_ends_a_context_and_its_late_text_is_not_spoken() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"})
    assert shown(stream.event(cleared("1", "barge_in"))) == [final("a")]
    (error,) = shown(decode(stream, {"text": "late ", "context_id": "a"}))
    assert error["error"] == "context_closed"


def test_refused_text_is_an_error_of_its_context() -> None:
    stream = dialect()
    decode(stream, {"text": "One. ", "context_id": "a"})
    (error,) = shown(stream.event(ErrorEvent("text_too_long", "too much", about="1")))
    assert (error["error"], error["contextId"]) == ("text_too_long", "a")


def test_warnings_have_no_message() -> None:
    assert list(dialect().event(WarningEvent("empty_text", "nothing to say", "1"))) == []


@pytest.mark.parametrize(
    ("data", "is_text"),
    [(b"{", True), (b"[]", True), (b"\xff", True), (b"\x00\x01", False), (b'{"text": 1}', True),
     (b'{"text": "x", "context_id": 7}', True), (b'{"text": "x", "flush": "yes"}', True)],
)  # fmt: skip
def test_what_cannot_be_read_is_answered_and_ends_the_connection(data: bytes, is_text: bool) -> None:
    stream = dialect()
    error, close = shown(stream.decode(data, is_text))
    assert error["message"] and error["code"] == 1008
    assert isinstance(close, CloseSocket) and close.code == 1008
    assert list(stream.decode(b'{"text": "Hi. "}', True)) == []


def test_text_beyond_the_limit_is_an_error() -> None:
    error, _ = shown(decode(dialect(), {"text": "x" * 40_001}))
    assert error["error"] == "text_too_long"


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.one_of(st.text(max_size=8), st.sampled_from(["", " ", "Hi. "]), st.none(), st.integers()),
        "context_id": st.one_of(st.sampled_from(["a", "b", "c"]), st.text(max_size=3), st.integers(), st.none()),
        "flush": st.one_of(st.booleans(), st.none()),
        "close_context": st.one_of(st.booleans(), st.none()),
        "close_socket": st.sampled_from([False, False, False, True]),
        "voice_settings": st.one_of(st.none(), st.fixed_dictionaries({"speed": st.floats(allow_nan=False)})),
        "xi_api_key": st.one_of(st.none(), st.text(max_size=4)),
    },
)
RAW = st.one_of(st.binary(max_size=40), MESSAGES.map(lambda message: json.dumps(message).encode()))


@settings(deadline=None)
@given(st.sampled_from([MULTI, SINGLE, PIPECAT, LIVEKIT]), st.lists(st.tuples(RAW, st.booleans(), st.integers(0, 9))))
def test_any_messages_and_events_give_steps(target: str, history: list[tuple[bytes, bool, int]]) -> None:
    """Nothing raises, and no audio goes to a turn that is over."""
    stream = dialect(target)
    live: set[str] = set()
    for data, is_text, event in history:
        for step in stream.decode(data, is_text):
            if isinstance(step, Text) and step.turn is not None:
                live.add(step.turn)
            if isinstance(step, Clear) and step.turn in live:
                live.remove(step.turn)
                list(stream.event(cleared(step.turn)))
        turn = str(event)
        if turn in live:
            live.remove(turn)
            happened = (TurnSent(turn), cleared(turn, "barge_in"), ErrorEvent("x", "y", turn=turn))[event % 3]
            list(stream.event(happened))
            assert list(stream.audio(turn, b"x", None)) == []


@settings(deadline=None)
@given(st.text())
def test_any_target_gives_a_dialect_or_a_refusal(target: str) -> None:
    assert isinstance(open_stream(target), ElevenLabsStream | Refused)


def test_ssml_is_parsed_where_the_client_asks_for_it() -> None:
    for asked, text_type in (("true", "ssml"), ("false", None)):
        steps = decode(dialect(f"{SINGLE}?enable_ssml_parsing={asked}"), {"text": "Wait. <break time='1s'/> "})
        assert [step for step in steps if isinstance(step, Text)] == [
            Text("Wait. <break time='1s'/> ", "1", text_type=text_type)
        ]
