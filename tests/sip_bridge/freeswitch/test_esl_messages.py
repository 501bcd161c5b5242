"""The event socket's messages from any split of the stream."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.freeswitch.esl_messages import MAX_HEAD_BYTES, EslGarbage, EslMessage, EslReader, event, execute

GREETING = b"Content-Type: auth/request\n\n"
REPLY = b"Content-Type: command/reply\nReply-Text: +OK accepted\n\n"
ANSWER = b"Content-Type: api/response\nContent-Length: 5\n\ntrue\n"
BODY = '{"file":"/tmp/ü\n\n_0.tmp.r8"}'
INNER = (
    "Event-Name: CUSTOM\nEvent-Subclass: mod_audio_stream%3A%3Aplay\nUnique-ID: 7dd5e34e\n"
    f"Content-Length: {len(BODY.encode())}\n\n{BODY}"
)
EVENT = f"Content-Length: {len(INNER.encode())}\nContent-Type: text/event-plain\n\n{INNER}".encode()
STREAM = GREETING + REPLY + ANSWER + EVENT + REPLY


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_split_of_the_stream_gives_the_same_messages(cuts: list[int]) -> None:
    reader, messages = EslReader(), []
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        messages += reader.feed(STREAM[start:end])
    assert [message.kind for message in messages] == [
        "auth/request", "command/reply", "api/response", "text/event-plain", "command/reply",
    ]  # fmt: skip
    assert messages[1].headers["Reply-Text"] == "+OK accepted"
    assert messages[2].body == "true\n"


def test_an_event_has_its_subclass_for_a_name_and_its_body_whole() -> None:
    (message,) = EslReader().feed(EVENT)
    found = event(message)
    assert found is not None
    assert (found.name, found.get("Unique-ID"), found.body) == ("mod_audio_stream::play", "7dd5e34e", BODY)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n\n\n",
        b"Content-Length: -1\n\n",
        b"Content-Length: 99999999999\n\n",
        b"Content-Length: 9000000\n\n",
        b"x" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_another_protocol_is_refused(garbage: bytes) -> None:
    with pytest.raises(EslGarbage):
        EslReader().feed(garbage)


@given(st.binary(max_size=200))
def test_only_esl_garbage_is_raised(data: bytes) -> None:
    try:
        messages = EslReader().feed(data)
    except EslGarbage:
        return
    assert all(isinstance(message, EslMessage) for message in messages)


@given(st.text(max_size=200))
def test_an_event_that_cannot_be_read_is_none(body: str) -> None:
    found = event(EslMessage({"Content-Type": "text/event-plain"}, body))
    assert found is None or found.name


# ------------------------------------------------------------------- commands

UUID = "7dd5e34e-5db4-4edb-a166-757e5d29b941"
FILE = f"/tmp/{UUID}_0.tmp.r8"


def test_an_application_is_queued_by_these_lines() -> None:
    assert execute(UUID, "playback", FILE).split("\n") == [
        f"sendmsg {UUID}", "call-command: execute", "execute-app-name: playback", f"execute-app-arg: {FILE}",
        "event-lock: true",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uuid", "application", "argument"),
    [
        ("", "playback", FILE),
        ("a b", "playback", FILE),
        (f"{UUID}\ncall-command: hangup", "playback", FILE),
        (f"{UUID}\n\napi shutdown", "playback", FILE),
        ("a" * 65, "playback", FILE),
        (UUID, "", FILE),
        (UUID, "Playback", FILE),
        (UUID, "playback\nloops: -1", FILE),
        (UUID, "playback: x", FILE),
        (UUID, "playback", ""),
        (UUID, "playback", " " + FILE),
        (UUID, "playback", FILE + " "),
        (UUID, "playback", FILE + "\n"),
        (UUID, "playback", FILE + "\r"),
        (UUID, "playback", FILE + "\0"),
        (UUID, "playback", FILE + "\nlead-frames: 5"),
        (UUID, "playback", FILE + "\n\napi shutdown"),
        (UUID, "playback", "${system(reboot)}"),
        (UUID, "playback", "$${password}"),
        (UUID, "playback", "/tmp/%0aapi"),
        (UUID, "playback", "/tmp/ü"),
        (UUID, "playback", "x" * 513),
    ],
)
def test_text_that_could_be_more_than_one_application_is_refused(uuid: str, application: str, argument: str) -> None:
    with pytest.raises(ValueError, match=r"may only have|must be one line"):
        execute(uuid, application, argument)


@given(st.text(max_size=80), st.text(max_size=40), st.text(max_size=600))
def test_a_command_has_five_lines_or_is_refused(uuid: str, application: str, argument: str) -> None:
    try:
        lines = execute(uuid, application, argument)
    except ValueError:
        return
    assert len(lines.splitlines()) == len(lines.split("\n")) == 5 and lines.isascii()
