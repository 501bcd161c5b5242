"""What FreeSWITCH's event socket says, from any split of the stream, and what it is told in more than one line. Pure.

A message is lines of `Name: value`, an empty line, and a body of Content-Length bytes. An event is such a message whose
body is one more of the same, with percent-encoded values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 4 << 20
"""An event with every variable of a channel is some tens of kilobytes."""

_END = b"\n\n"

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
_APPLICATION = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_ARGUMENT = re.compile(r"[!-~](?:[ -~]{0,510}[!-~])?", re.ASCII)


class EslGarbage(Exception):
    """What came cannot be the event socket's; the connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class EslMessage:
    headers: dict[str, str]
    body: str

    @property
    def kind(self) -> str:
        return self.headers.get("Content-Type", "")


@dataclass(frozen=True, slots=True)
class EslEvent:
    """`name` is FreeSWITCH's, for a CUSTOM event its subclass."""

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
        """The messages that are complete now. Raises EslGarbage."""
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
    """Whether a channel's name can stand in a command: FreeSWITCH lets dialplans choose any."""
    return _UUID.fullmatch(text) is not None


def execute(uuid: str, application: str, argument: str) -> str:
    """The lines that queue an application of the dialplan on a channel, without the empty line at the end.

    `event-lock` keeps what is queued later until the application has ended. Raises ValueError for anything that could
    add a line, be another command, or be expanded: FreeSWITCH replaces `${name}` in the argument.
    """
    if not is_uuid(uuid):
        raise ValueError("a channel's name may only have letters, digits and hyphens")
    if _APPLICATION.fullmatch(application) is None:
        raise ValueError("an application's name may only have small letters, digits and underscores")
    if _ARGUMENT.fullmatch(argument) is None or "$" in argument or "%" in argument:
        raise ValueError("an application's argument must be one line of visible ASCII without $ and %")
    return (
        f"sendmsg {uuid}\ncall-command: execute\nexecute-app-name: {application}\n"
        f"execute-app-arg: {argument}\nevent-lock: true"
    )


def event(message: EslMessage) -> EslEvent | None:
    """The event in a message of kind text/event-plain; None where it cannot be read."""
    head, _, rest = message.body.partition("\n\n")
    try:
        headers = {name: unquote(value) for name, value in _headers(head).items()}
        n_body = _length(headers)
    except EslGarbage:
        return None
    name = headers.get("Event-Name", "")
    if name == "CUSTOM":
        name = headers.get("Event-Subclass", "")
    # The length counts bytes, and is there for whoever reads from a stream; here the message has an end already.
    body = rest.encode()[:n_body].decode("utf-8", "replace")
    return EslEvent(name, headers, body) if name else None


def _headers(head: str) -> dict[str, str]:
    headers = {}
    for line in head.split("\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise EslGarbage(f"{line[:80]!r} is no header of an event socket: is this FreeSWITCH?")
        headers[name.strip()] = value.strip()
    return headers


def _length(headers: dict[str, str]) -> int:
    text = headers.get("Content-Length", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MAX_BODY_BYTES):
        raise EslGarbage(f"a message cannot have a Content-Length of {text[:20]!r}")
    return int(text)
