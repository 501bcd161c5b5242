"""The head of an HTTP request, read as it arrives: whether it can be answered, and where it ends.

The WebSocket library parses the bytes behind a head as frames before the upgrade is answered. It closes the connection
without an answer when it cannot parse a head. So it only gets heads that passed here, without the bytes behind them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

MAX_LINE_BYTES = 8192
"""The same limit as the library's, for the request line and for each header, line break included."""

MAX_HEADERS = 128
"""The same limit as the library's."""

MAX_HEAD_BYTES = 65_536
"""Without it 128 headers of 8 KiB would be a megabyte for each connection."""

METHODS = ("GET", "HEAD")

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_FIRST_BYTE = re.compile(_TOKEN)
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"+) ([!-~]+) HTTP/([0-9]\.[0-9])")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HEADER = re.compile(rb"(" + _TOKEN + rb"+):[ \t]*([\t -~\x80-\xff]*)")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a head cannot be served: the status of the answer, and its text."""

    status: HTTPStatus
    text: str


CUT_OFF = Flaw(HTTPStatus.BAD_REQUEST, "the request ends before its head is complete\n")

_NO_HTTP = Flaw(HTTPStatus.BAD_REQUEST, "this is not an HTTP request; expected a line such as GET /healthz HTTP/1.1\n")
_BAD_HEADER = Flaw(HTTPStatus.BAD_REQUEST, "a header cannot be parsed; expected NAME: VALUE and CR LF at its end\n")
_BODY = Flaw(HTTPStatus.BAD_REQUEST, "a request with a body is not accepted; send GET without one\n")
_FRAMING = Flaw(
    HTTPStatus.BAD_REQUEST,
    "where the body ends is not clear; expected one Content-Length with digits, or one Transfer-Encoding: chunked\n",
)
_METHOD = Flaw(HTTPStatus.METHOD_NOT_ALLOWED, f"the method is not allowed; allowed are {' and '.join(METHODS)}\n")
_VERSION = Flaw(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "the HTTP version is not supported; expected HTTP/1.1\n")
_LONG_TARGET = Flaw(HTTPStatus.REQUEST_URI_TOO_LONG, f"the request line is longer than {MAX_LINE_BYTES} bytes\n")
_LARGE = Flaw(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"the headers are too large; the limits are {MAX_HEADERS} headers, {MAX_LINE_BYTES} bytes in each "
    f"and {MAX_HEAD_BYTES} bytes in all\n",
)


class RequestHead:
    """Takes bytes until the head is complete or has a flaw.

    `begun`: a byte has arrived. `flaw`: what is wrong, once it is known. For a complete head without a flaw, `whole`
    has its bytes, and `behind` has the bytes that came after it; `method`, `target` and `values` have what it says.

    With `any_method` every method may come, and a body with it: the caller checks both.
    """

    def __init__(self, *, any_method: bool = False) -> None:
        self.flaw: Flaw | None = None
        self.whole = b""
        self.behind = b""
        self.method = ""
        self.target = ""
        self._any_method = any_method
        self._is_1_0 = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._lengths: list[bytes] = []
        self._encodings: list[bytes] = []
        self._lines: list[bytes] = []
        self._line = bytearray()
        self._n_bytes = 0

    @property
    def begun(self) -> bool:
        return self._n_bytes > 0

    def values(self, name: str) -> list[str]:
        """Every value of a header, in order; `name` is in small letters. Bytes outside ASCII are read as Latin-1."""
        return [value.decode("latin-1") for each, value in self._headers if each == name.encode()]

    def pairs(self) -> list[tuple[str, str]]:
        """All headers in order: names in small letters, and values as `values` has them."""
        return [(name.decode(), value.decode("latin-1")) for name, value in self._headers]

    def feed(self, data: bytes) -> bool:
        """Take bytes. True if the head is complete or known to be wrong; do not call it again then."""
        if not self.begun and not _FIRST_BYTE.match(data):
            self.flaw = _NO_HTTP  # for example a TLS client, whose hello has no line break to wait for
            return True
        at = 0
        while True:
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            self._n_bytes += (end or len(data)) - at
            if len(self._line) > MAX_LINE_BYTES:
                self.flaw = _LARGE if self.method else _LONG_TARGET
                return True
            if self._n_bytes > MAX_HEAD_BYTES:
                self.flaw = _LARGE
                return True
            if not end:
                return False
            line, at = bytes(self._line), end
            self._line.clear()
            self._lines.append(line)
            if line == b"\r\n" and self.method:
                self.flaw = self._flaw_of_whole()
                self.whole, self.behind = b"".join(self._lines), data[at:]
                return True
            self.flaw = self._take_header(line) if self.method else self._take_request_line(line)
            if self.flaw is not None:
                return True

    def _take_request_line(self, line: bytes) -> Flaw | None:
        found = _REQUEST_LINE.fullmatch(line.removesuffix(b"\r\n"))
        if found is None:
            return _NO_HTTP
        if found[3] not in (b"1.0", b"1.1"):
            return _VERSION
        self.method, self.target = found[1].decode(), found[2].decode()
        self._is_1_0 = found[3] == b"1.0"
        return None

    def _take_header(self, line: bytes) -> Flaw | None:
        found = _HEADER.fullmatch(line.removesuffix(b"\r\n"))
        if found is None:
            return _BAD_HEADER
        name, value = found[1].lower(), found[2].strip(b" \t")
        self._headers.append((name, value))
        if name == b"content-length":
            self._lengths.append(value)
        elif name == b"transfer-encoding":
            self._encodings.append(value.lower())
        return _LARGE if len(self._headers) > MAX_HEADERS else None

    def _flaw_of_whole(self) -> Flaw | None:
        if not self._is_framed():
            return _FRAMING
        if self._any_method:
            return None
        if self.method not in METHODS:
            return _METHOD
        return _BODY if self._encodings or self._lengths not in ([], [b"0"]) else None

    def _is_framed(self) -> bool:
        """Whether it is clear where the body ends. A proxy that reads it otherwise would take a part of the body for a
        request of its own."""
        if self._encodings:
            return self._encodings == [b"chunked"] and not self._lengths and not self._is_1_0
        return all(_LENGTH.fullmatch(length) for length in self._lengths) and len(self._lengths) <= 1
