"""The messages of FreeSWITCH's event socket: a reader for a stream that may be cut anywhere, and `sendmsg`. Pure.

A message has lines of `Name: value`, an empty line, and a body of Content-Length bytes. The body of an event has the
same form again, with percent-encoded values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 4 << 20
"""An event with all variables of a channel has some tens of kilobytes."""

_END = b"\n\n"

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
_APPLICATION = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_ARGUMENT = re.compile(r"[!-~](?:[ -~]{0,510}[!-~])?", re.ASCII)


class EslGarbage(Exception):
    """The peer does not speak the event socket's protocol; the connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class EslMessage:
    headers: dict[str, str]
    body: str

    @property
    def kind(self) -> str:
        return self.headers.get("Content-Type", "")


@dataclass(frozen=True, slots=True)
class EslEvent:
    """`name` is FreeSWITCH's name of the event; for a CUSTOM event it is the subclass."""

    name: str
    headers: dict[str, str]
    body: str

    def get(self, header: str) -> str:
        return self.headers.get(header, "")


class EslReader:
    def __init__(self) -> None:
        self._held = bytearray()
        self._headers: dict[str, str] | None = None
        self._n_body = 0

    def feed(self, data: bytes) -> list[EslMessage]:
        """The messages that are complete with `data`. Raises EslGarbage."""
        self._held += data
        messages: list[EslMessage] = []
        while True:
            if self._headers is None:
                end = self._held.find(_END)
                if max(end, len(self._held) if end < 0 else 0) > MAX_HEAD_BYTES:
                    raise EslGarbage(f"{MAX_HEAD_BYTES} bytes without the empty line that ends a message's head")
                if end < 0:
                    return messages
                head = bytes(self._held[:end]).decode("utf-8", "replace")
                del self._held[: end + len(_END)]
                if not head.strip():
                    continue
                self._headers = _headers(head)
                self._n_body = _length(self._headers)
            if len(self._held) < self._n_body:
                return messages
            body = bytes(self._held[: self._n_body]).decode("utf-8", "replace")
            del self._held[: self._n_body]
            messages.append(EslMessage(self._headers, body))
            self._headers = None


def is_uuid(text: str) -> bool:
    """Whether a channel's name can be used in a command. A dialplan may choose any name."""
    return _UUID.fullmatch(text) is not None


def execute(uuid: str, application: str, argument: str) -> str:
    """The lines that queue an application of the dialplan on a channel, without the empty line at the end.

    With `event-lock`, applications that are queued later wait until this one has ended. Raises ValueError for text that
    could add a line or a command, or be expanded: FreeSWITCH replaces `${name}` in the argument.
    """
    if not is_uuid(uuid):
        raise ValueError("a channel's name may only have letters, digits and hyphens")
    if _APPLICATION.fullmatch(application) is None:
        raise ValueError("an application's name may only have lower-case letters, digits and underscores")
    if _ARGUMENT.fullmatch(argument) is None or "$" in argument or "%" in argument:
        raise ValueError("an application's argument must be one line of visible ASCII without $ and %")
    return (
        f"sendmsg {uuid}\ncall-command: execute\nexecute-app-name: {application}\n"
        f"execute-app-arg: {argument}\nevent-lock: true"
    )


def event(message: EslMessage) -> EslEvent | None:
    """The event in a message of kind text/event-plain; None if it cannot be read."""
    head, _, rest = message.body.partition("\n\n")
    try:
        headers = {name: unquote(value) for name, value in _headers(head).items()}
        n_body = _length(headers)
    except EslGarbage:
        return None
    name = headers.get("Event-Name", "")
    if name == "CUSTOM":
        name = headers.get("Event-Subclass", "")
    # Content-Length counts bytes of UTF-8.
    body = rest.encode()[:n_body].decode("utf-8", "replace")
    return EslEvent(name, headers, body) if name else None


def _headers(head: str) -> dict[str, str]:
    headers = {}
    for line in head.split("\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise EslGarbage(f"{line[:80]!r} is not a header of an event socket: is this FreeSWITCH?")
        headers[name.strip()] = value.strip()
    return headers


def _length(headers: dict[str, str]) -> int:
    text = headers.get("Content-Length", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MAX_BODY_BYTES):
        raise EslGarbage(f"a message cannot have a Content-Length of {text[:20]!r}")
    return int(text)
