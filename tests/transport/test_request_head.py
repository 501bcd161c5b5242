"""The head of a request: the same result however it is cut, and no head passes that the library cannot parse."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.http11 import Request
from websockets.server import ServerProtocol

from telephony_tts.transport.request_head import MAX_HEADERS, MAX_LINE_BYTES, RequestHead

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

_words = st.sampled_from([b"GET", b"HEAD", b"POST", b"/", b"/a?b=c", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b" "])
_parts = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\0", b"Host: x\r\n", b"Content-Length: 0\r\n", b"content-length:7\r\n",
     b"Transfer-Encoding: chunked\r\n", b"X:\xff\r\n", b"x y: z\r\n", b"a" * 300, GET]
)  # fmt: skip
heads = st.one_of(
    st.lists(st.one_of(_words, _parts, st.binary(max_size=4)), max_size=12).map(b"".join),
    st.lists(_parts, max_size=8).map(lambda parts: b"GET / HTTP/1.1\r\n" + b"".join(parts)),
)


def fed(data: bytes, sizes: list[int]) -> RequestHead:
    """The head after `data` came in pieces of these sizes, repeated. `behind` has the bytes that were not taken."""
    head, at, n = RequestHead(), 0, 0
    while at < len(data):
        size = sizes[n % len(sizes)]
        at, n = at + size, n + 1
        if head.feed(data[at - size : at]):
            head.behind += data[at:]
            break
    return head


@given(heads, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_how_it_is_cut_does_not_matter(data: bytes, sizes: list[int]) -> None:
    whole, cut = fed(data, [len(data) or 1]), fed(data, sizes)
    assert (cut.flaw, cut.whole, cut.begun) == (whole.flaw, whole.whole, whole.begun)
    if whole.whole and whole.flaw is None:
        assert cut.behind == whole.behind and whole.whole + whole.behind == data


@given(heads)
def test_what_passes_the_library_parses(data: bytes) -> None:
    head = fed(data, [len(data) or 1])
    if head.flaw is None and head.whole:
        protocol = ServerProtocol()
        protocol.receive_data(head.whole)
        (request,) = protocol.events_received()
        assert isinstance(request, Request) and request.method in ("GET", "HEAD")
        assert protocol.handshake_exc is None and not protocol.data_to_send()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * (MAX_LINE_BYTES - 16) + b" HTTP/1.1\r\n\r\n", None),
        (b"GET /" + b"x" * (MAX_LINE_BYTES - 15) + b" HTTP/1.1\r\n\r\n", HTTPStatus.REQUEST_URI_TOO_LONG),
        (b"x" * MAX_LINE_BYTES, None),
        (b"x" * (MAX_LINE_BYTES + 1), HTTPStatus.REQUEST_URI_TOO_LONG),
        (GET[:-2] + b"x: y\r\n" * (MAX_HEADERS - 1) + b"\r\n", None),
        (GET[:-2] + b"x: y\r\n" * MAX_HEADERS, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (GET[:-2] + b"x:" + b"y" * (MAX_LINE_BYTES - 4) + b"\r\n\r\n", None),
        (GET[:-2] + b"x:" + b"y" * (MAX_LINE_BYTES - 3) + b"\r\n\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (GET[:-2] + (b"x:" + b"y" * 996 + b"\r\n") * 66, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)  # fmt: skip
def test_the_limits_are_exact(data: bytes, status: HTTPStatus | None) -> None:
    for sizes in ([len(data)], [1]):
        head = fed(data, sizes)
        assert (head.flaw.status if head.flaw else None) == status
        if status is None and head.whole:
            protocol = ServerProtocol()
            protocol.receive_data(head.whole)
            assert len(protocol.events_received()) == 1, "the library's limit is lower"


def test_any_method_lets_a_body_pass_and_parses_the_head() -> None:
    data = b"POST /originate?x=1 HTTP/1.1\r\nContent-Length: 2\r\nX-A: 1\r\nx-a:\t\xe92 \r\n\r\n{}"
    refused, head = RequestHead(), RequestHead(any_method=True)
    assert refused.feed(data) and refused.flaw is not None and refused.flaw.status is HTTPStatus.METHOD_NOT_ALLOWED
    assert head.feed(data) and head.flaw is None and head.behind == b"{}"
    assert (head.method, head.target) == ("POST", "/originate?x=1")
    assert head.values("x-a") == ["1", "\u00e92"] and head.values("content-length") == ["2"] and not head.values("host")
    broken = RequestHead(any_method=True)
    assert broken.feed(b"POST / HTTP/1.1\r\nno header\r\n") and broken.flaw is not None


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5, 5\r\n", "Content-Length: +5\r\n",
        "Content-Length: -1\r\n", "Content-Length: 0x5\r\n", "Content-Length: \r\n", f"Content-Length: {'9' * 19}\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n", "Transfer-Encoding: \x0bchunked\r\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("any_method", [True, False])
def test_a_body_whose_end_is_not_clear_is_refused(headers: str, any_method: bool) -> None:
    head = RequestHead(any_method=any_method)
    assert head.feed(f"POST /tts/stream HTTP/1.1\r\n{headers}\r\n".encode())
    assert head.flaw is not None and head.flaw.status == 400


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("headers", ["Content-Length: 5\r\n", "Transfer-Encoding: Chunked\r\n", ""])
def test_a_body_whose_end_is_clear_is_let_in_for_any_method(headers: str, version: str) -> None:
    head = RequestHead(any_method=True)
    assert head.feed(f"POST /tts/stream HTTP/{version}\r\n{headers}\r\nhello".encode())
    assert (head.flaw is None) == (version == "1.1" or not headers.startswith("Transfer")) and head.behind == b"hello"
