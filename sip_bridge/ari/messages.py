"""What is said with Asterisk over ARI's WebSocket: requests of its REST interface, their answers, and events. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIGITS = frozenset("0123456789*#ABCD")

EVENTS = ("StasisStart", "StasisEnd", "ChannelDestroyed", "ChannelDtmfReceived")
"""What is read, besides answers."""


@dataclass(frozen=True, slots=True)
class AriChannel:
    """What Asterisk tells of one; `application` is the dialplan application it is in, with its first argument."""

    id: str
    name: str = ""
    state: str = ""
    number: str = ""
    caller: str = ""
    extension: str = ""
    application: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AriAnswer:
    """Of a request. `body` is the JSON of it, None where there is none."""

    request_id: str
    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class ChannelEntered:
    """A channel has come under our rule (StasisStart)."""

    channel: AriChannel


@dataclass(frozen=True, slots=True)
class ChannelLeft:
    """A channel has left it, or is no more. `cause` is Q.850's, 0 where none is told."""

    channel_id: str
    cause: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class AriDigit:
    channel_id: str
    digit: str


@dataclass(frozen=True, slots=True)
class ApplicationReplaced:
    """Another client has taken the application; its events come here no more."""


@dataclass(frozen=True, slots=True)
class BadAriMessage:
    why: str


AriMessage = AriAnswer | ChannelEntered | ChannelLeft | AriDigit | ApplicationReplaced | BadAriMessage


def request(
    request_id: str, method: str, uri: str, query: Mapping[str, str] | None = None, body: object = None
) -> bytes:
    """A request as the text of one WebSocket message. The parts of `uri` are quoted, those of `query` are not."""
    message: dict[str, object] = {
        "type": "RESTRequest",
        "transaction_id": request_id,
        "request_id": request_id,
        "method": method,
        "uri": uri,
    }
    if query:
        message["query_strings"] = [{"name": name, "value": value} for name, value in query.items()]
    if body is not None:
        message["content_type"] = "application/json"
        message["message_body"] = json.dumps(body)
    return json.dumps(message).encode()


def decode(payload: bytes) -> AriMessage | None:
    """Read one message of Asterisk; None for an event that means nothing here. Never raises."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return BadAriMessage(f"a message of {len(payload)} bytes is not JSON")
    if not isinstance(message, dict):
        return BadAriMessage("a message is no JSON object")
    kind = message.get("type")
    if kind == "RESTResponse":
        return _answer(message)
    if kind == "ApplicationReplaced":
        return ApplicationReplaced()
    if kind not in EVENTS:
        return None
    channel = channel_of(message.get("channel"))
    if channel is None:
        return BadAriMessage(f"{kind} names no channel")
    if kind == "StasisStart":
        return ChannelEntered(channel)
    if kind == "ChannelDtmfReceived":
        digit = message.get("digit")
        if not isinstance(digit, str) or digit not in DIGITS:
            return BadAriMessage(f"a digit is {str(digit)[:20]!r}")
        return AriDigit(channel.id, digit)
    cause = message.get("cause")
    return ChannelLeft(channel.id, cause if type(cause) is int else 0, str(message.get("cause_txt") or "")[:80])


def channel_of(value: object) -> AriChannel | None:
    """A channel as Asterisk tells it; None for what is none."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or not value["id"]:
        return None
    caller, plan = _object(value, "caller"), _object(value, "dialplan")
    return AriChannel(
        value["id"],
        _text(value, "name"),
        _text(value, "state"),
        _text(caller, "number"),
        _text(caller, "name"),
        _text(plan, "exten"),
        (_text(plan, "app_name"), _text(plan, "app_data").partition(",")[0]),
    )


def variable_of(body: object, name: str) -> str:
    """A channel variable in the answer to the channel's creation, empty if it is not told."""
    found = _object(body, "channelvars").get(name)
    return found if isinstance(found, str) else ""


def _answer(message: dict[str, Any]) -> AriMessage:
    request_id, status, text = message.get("request_id"), message.get("status_code"), message.get("message_body")
    if not isinstance(request_id, str) or type(status) is not int:
        return BadAriMessage("an answer names no request or has no status")
    try:
        body = json.loads(text) if isinstance(text, str) and text else None
    except (ValueError, RecursionError):
        body = None
    return AriAnswer(request_id, status, body)


def _object(value: object, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    return found[:256] if isinstance(found, str) else ""
