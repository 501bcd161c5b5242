"""The messages on ARI's WebSocket: REST requests, their answers, and events. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIGITS = frozenset("0123456789*#ABCD")

EVENTS = ("StasisStart", "StasisEnd", "ChannelDestroyed", "ChannelDtmfReceived", "ChannelHold", "ChannelUnhold",
          "ChannelStateChange")  # fmt: skip
"""The events that are read."""


@dataclass(frozen=True, slots=True)
class AriChannel:
    """A channel in a message. `application` is its dialplan application with the first argument."""

    id: str
    name: str = ""
    state: str = ""
    number: str = ""
    caller: str = ""
    extension: str = ""
    application: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class AriAnswer:
    """The answer to a request. `body` is its JSON, None if it has none."""

    request_id: str
    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class ChannelEntered:
    """A channel has entered the application (StasisStart). `replaces` is the channel whose place it takes, because that
    one has transferred its call; empty if it takes none."""

    channel: AriChannel
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class ChannelLeft:
    """A channel has left the application or has ended. `cause` is a cause of Q.850, 0 if Asterisk gives none."""

    channel_id: str
    cause: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class AriDigit:
    channel_id: str
    digit: str


@dataclass(frozen=True, slots=True)
class AriHold:
    """The channel's telephone plays nothing from now on, because it is on hold or rings; or it plays again."""

    channel_id: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class ApplicationReplaced:
    """Another client has taken the application; no more events come."""


@dataclass(frozen=True, slots=True)
class BadAriMessage:
    why: str


ChannelEvent = ChannelEntered | ChannelLeft | AriDigit | AriHold
AriMessage = AriAnswer | ChannelEvent | ApplicationReplaced | BadAriMessage


def request(
    request_id: str, method: str, uri: str, query: Mapping[str, str] | None = None, body: object = None
) -> bytes:
    """The text of a request. `uri` must be percent-encoded already, `query` must not."""
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
    """Read one message of Asterisk; None for an event that is not used. Never raises."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return BadAriMessage(f"a message of {len(payload)} bytes is not JSON")
    if not isinstance(message, dict):
        return BadAriMessage("a message is not a JSON object")
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
        replaced = channel_of(message.get("replace_channel"))
        return ChannelEntered(channel, "" if replaced is None else replaced.id)
    if kind in ("ChannelHold", "ChannelUnhold"):
        return AriHold(channel.id, kind == "ChannelHold")
    if kind == "ChannelStateChange":
        return AriHold(channel.id, channel.state != "Up")
    if kind == "ChannelDtmfReceived":
        digit = message.get("digit")
        if not isinstance(digit, str) or digit not in DIGITS:
            return BadAriMessage(f"a digit is {str(digit)[:20]!r}")
        return AriDigit(channel.id, digit)
    cause = message.get("cause")
    return ChannelLeft(channel.id, cause if type(cause) is int else 0, str(message.get("cause_txt") or "")[:80])


def channel_of(value: object) -> AriChannel | None:
    """The channel in Asterisk's JSON; None if it is not a channel."""
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
    """A channel variable in the answer to the channel's creation, empty if it is missing."""
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
