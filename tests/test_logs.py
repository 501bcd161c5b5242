"""Log lines can always be parsed and are private by default."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.app.config import LogSettings
from telephony_tts.runtime import logs


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def only(stream: io.StringIO) -> dict[str, Any]:
    (line,) = written(stream)
    return line


def to_stream(**settings: Any) -> io.StringIO:
    stream = io.StringIO()
    logs.setup(LogSettings(**settings), stream)
    return stream


def test_a_line_has_its_event_call_turn_and_fields_in_that_order() -> None:
    stream = to_stream()
    call = logs.get("telephony_tts.transport").bind(call="CA12", media="twilio")
    call.info("turn_done", audio_ms=1980, turn="t7")
    line = only(stream)
    assert list(line) == ["ts", "level", "event", "logger", "call", "turn", "media", "audio_ms"]
    assert line["event"] == "turn_done" and line["level"] == "info" and line["logger"] == "telephony_tts.transport"
    assert (line["call"], line["turn"], line["audio_ms"]) == ("CA12", "t7", 1980)
    assert line["ts"].endswith("Z") and len(line["ts"]) == len("2026-01-01T00:00:00.000Z")


def test_bound_fields_belong_to_their_logger_and_may_be_overridden() -> None:
    stream = to_stream()
    call = logs.get("x").bind(call="A", turn=None)
    turn = call.bind(turn="t1")
    turn.info("a")
    call.info("b")
    turn.info("c", turn="t2")
    assert [line.get("turn") for line in written(stream)] == ["t1", None, "t2"]
    assert [line["call"] for line in written(stream)] == ["A", "A", "A"]


def test_a_field_cannot_replace_a_key_of_the_line_or_break_the_record() -> None:
    stream = to_stream()
    logs.get("x").info("real", event="fake", name="n", message="m", msg_id=3, extra={"level": "fake", "args": (1,)})
    line = only(stream)
    assert (line["event"], line["level"]) == ("real", "info")
    assert (line["field_event"], line["field_level"]) == ("fake", "fake")
    assert (line["name"], line["args"], line["message"], line["msg_id"]) == ("n", [1], "m", 3)


def test_fields_a_library_gives_through_extra_are_kept() -> None:
    stream = to_stream()
    logging.getLogger("library").warning("took %d ms", 5, extra={"peer": "10.0.0.1"})
    line = only(stream)
    assert (line["event"], line["peer"], line["level"]) == ("took 5 ms", "10.0.0.1", "warning")


def test_an_exception_is_a_field_of_the_same_line() -> None:
    stream = to_stream()
    try:
        raise ValueError("no such\nvoice")
    except ValueError:
        logs.get("x").bind(call="c").exception("engine_failed", engine="hibari")
    line = only(stream)
    assert (line["error"]["type"], line["error"]["message"]) == ("ValueError", "no such\nvoice")
    assert "test_logs.py" in line["error"]["traceback"]
    assert (line["call"], line["engine"], line["level"]) == ("c", "hibari", "error")


# ------------------------------------------------------------------- spoken text


@pytest.mark.parametrize("format", ["json", "text"])
def test_only_the_length_of_spoken_text_is_logged_by_default(format: str) -> None:
    said = logs.speech("Your PIN is 4711.")
    private, open_ = to_stream(format=format), io.StringIO()
    logs.get("x").info("sentence", said=said, nested=[{"said": said}])
    assert "4711" not in private.getvalue() and "17" in private.getvalue()
    logs.setup(LogSettings(format=format, spoken_text=True), open_)
    logs.get("x").info("sentence", said=said)
    assert "4711" in open_.getvalue()


def test_spoken_text_does_not_leak_through_formatting_of_others() -> None:
    stream = to_stream()
    said = logs.speech("Your PIN is 4711.")
    logging.getLogger("library").info("about to say %s %r", said, said)
    assert "4711" not in stream.getvalue() and f"{said} {said!r} {[said]}".count("4711") == 0


def test_the_websocket_library_does_not_log_frames_unless_text_may_be_logged() -> None:
    stream = to_stream(level="debug")
    frames = logging.getLogger("websockets.server")
    frames.debug('< TEXT \'{"text":"Your PIN is 4711."}\'')
    logs.get("x").debug("ours")
    assert [line["event"] for line in written(stream)] == ["ours"]
    stream = to_stream(level="debug", spoken_text=True)
    frames.debug("< TEXT")
    assert only(stream)["event"] == "< TEXT"


def test_the_websocket_library_does_not_log_every_probe_of_readyz() -> None:
    stream = to_stream(level="info", spoken_text=True)
    connections = logging.getLogger("websockets.server")
    connections.info("connection open")
    connections.warning("trouble")
    assert [line["event"] for line in written(stream)] == ["trouble"]
    stream = to_stream(level="debug")
    connections.info("connection open")
    assert only(stream)["event"] == "connection open"


# -------------------------------------------------------------------- robustness


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


def test_values_of_any_type_are_written() -> None:
    stream = to_stream()
    logs.get("x").info(
        "e", nan=float("nan"), raw=b"\xff" * 160, odd=Unprintable(), table={1: {2}, (3, 4): None}, text="\ud800"
    )
    line = only(stream)
    assert line["nan"] == "nan" and line["raw"] == "<160 bytes>"
    assert line["odd"] == "<Unprintable: str() raised RuntimeError>"
    assert line["table"] == {"1": [2], "(3, 4)": None} and line["text"] == "\ud800"


@given(st.text(alphabet=st.characters(codec=None)), st.text(alphabet=st.characters(codec=None)))
def test_any_text_survives_json_on_one_ascii_line(event: str, text: str) -> None:
    record = logging.makeLogRecord({"msg": event.replace("%", ""), "fields": {"f": text}})
    line = logs.JsonFormatter().format(record)
    assert line.isascii() and len(line.splitlines()) == 1
    assert json.loads(line)["f"] == text


@given(st.text(alphabet=st.characters(codec=None)))
def test_any_text_stays_on_one_encodable_text_line(text: str) -> None:
    record = logging.makeLogRecord({"msg": text.replace("%", ""), "levelname": "INFO", "fields": {"f": text}})
    line = logs.TextFormatter().format(record)
    assert len(line.splitlines()) == 1
    line.encode("utf-8")


def test_a_text_line_is_readable_and_cannot_be_forged() -> None:
    stream = to_stream(format="text")
    logs.get("x").bind(call="CA1").info("turn_done", turn="t 7", ms=3, evil="a\nb call=CA2")
    (line,) = stream.getvalue().splitlines()
    assert line[12:] == ' info    turn_done call=CA1 turn="t 7" ms=3 evil="a\\nb call=CA2"'


def test_a_text_line_is_followed_by_its_traceback() -> None:
    stream = to_stream(format="text")
    try:
        raise ValueError("\ud800")
    except ValueError:
        logs.get("x").exception("failed")
    assert stream.getvalue().rstrip().endswith("ValueError: \\ud800")


# ------------------------------------------------------------------------- setup


def test_setting_up_again_replaces_stream_level_and_format() -> None:
    first = to_stream()
    second = to_stream(level="warning", format="text")
    logs.get("x").info("quiet")
    logs.get("x").warning("loud")
    assert first.getvalue() == ""
    assert "loud" in second.getvalue() and "quiet" not in second.getvalue()


def test_a_line_below_the_level_costs_no_formatting() -> None:
    to_stream(level="info")
    logs.get("x").debug("never", odd=Unprintable())
    assert not logs.get("x").isEnabledFor(logging.DEBUG)
