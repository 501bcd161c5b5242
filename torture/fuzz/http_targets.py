"""What stands before a call: heads of requests, signatures of carriers, origins, and addresses that may be fetched."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from urllib.parse import urlsplit

import h11
from websockets.uri import parse_uri

from telephony_tts.app.config import doors
from telephony_tts.doors.asterisk.dial import may_dial
from telephony_tts.doors.genesys.http_signature import SignatureVerifier
from telephony_tts.doors.plivo import codec as plivo
from telephony_tts.doors.twilio import codec as twilio
from telephony_tts.doors.vonage import codec as vonage
from telephony_tts.transport import origins
from telephony_tts.transport.call_address import call_in, call_of_http
from telephony_tts.transport.door import Doors
from telephony_tts.transport.request_head import MAX_HEAD_BYTES, RequestHead
from telephony_tts.transport.sound_fetch import SoundAddress
from telephony_tts.wire.fields import CALL_NAME
from torture.fuzz.judge import FuzzTarget
from torture.fuzz.telephone_targets import pieces

_LENIENT = re.compile(rb"[\s\x00]*(content-length|transfer-encoding)[\s\x00]*:", re.IGNORECASE)
_LINE_ENDS = re.compile(rb"\r\n|\n|\r|\x0b|\x0c|\x85")

_DOORS = Doors(doors())


def read_head(data: bytes) -> None:
    """The head of a request, as the listening socket, the server behind it and a lenient proxy read it."""
    whole, cut = RequestHead(any_method=True), RequestHead(any_method=True)
    body = data[1:]
    done = whole.feed(body) if body else False
    for piece in pieces(data):
        if cut.feed(piece):
            break
    assert (cut.flaw, cut.whole) == (whole.flaw, whole.whole), "a head depends on where it is cut"
    if not done or whole.flaw is not None:
        return
    assert whole.whole + whole.behind == body and len(whole.whole) <= MAX_HEAD_BYTES
    lengths, encodings = whole.values("content-length"), whole.values("transfer-encoding")
    n_framing = sum(_LENIENT.match(line) is not None for line in _LINE_ENDS.split(whole.whole))
    assert n_framing == len(lengths) + len(encodings) <= 1, "a proxy may see another end of the body"
    for name in (call_in(whole, _DOORS), call_of_http(whole.target)):
        assert name is None or CALL_NAME.fullmatch(name)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.receive_data(whole.whole)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return  # it is refused there, so nothing of it is served
    assert isinstance(event, h11.Request), event
    assert (event.method.decode(), event.target.decode()) == (whole.method, whole.target)
    seen = [
        value.decode("latin-1") for name, value in event.headers if name in (b"content-length", b"transfer-encoding")
    ]
    assert [value.lower() for value in seen] == [value.lower() for value in lengths + encodings]


_GENESYS = SignatureVerifier("key", b"secret")
_VONAGE = vonage.TokenVerifier("secret")


def read_signatures(data: bytes) -> None:
    """Headers of handshakes, one on a line. No input is signed with the secrets here, which the seeds do not hold."""
    lines = data.decode("latin-1").split("\n")
    first, second, third = [*lines, "", "", ""][:3]
    assert not twilio.verify("secret", "wss://a.example/media/twilio?" + second, first)
    assert not plivo.verify_v3("secret", "wss://a.example/media/plivo?" + second, first, third)
    assert _VONAGE.flaw(first, 1_800_000_000) is not None
    headers = {"signature-input": first, "signature": second, "host": third, "x-api-key": "key"}
    assert _GENESYS.flaw(headers, "/media/genesys", (third,), 1_800_000_000) is not None


_ALLOWED_SOUNDS = SoundAddress.of("https://sounds.example:8443/en/")
_ALLOWED_DIALS = ("ws://pbx.example:8088/media/", "wss://pbx.example/ws")


def read_addresses(data: bytes) -> None:
    """Addresses that a bot or a program asks for. What is allowed must lead to the listed host and path."""
    url = data.decode("latin-1")
    with suppress(ValueError):
        address = SoundAddress.of(url)
        if address.is_within(_ALLOWED_SOUNDS):
            parts = urlsplit(url)
            assert (parts.scheme, parts.hostname, parts.port) == ("https", "sounds.example", 8443)
            assert address.target.startswith("/en/") and not set(address.target) & set(" \r\n\0\\#")
            assert ".." not in re.split(r"[/\\]|%2f|%5c", address.path.lower().replace("%2e", ".")), address.path
        str(address.names_the_machine)
    if may_dial(url, _ALLOWED_DIALS):
        try:
            dialled = parse_uri(url)
        except Exception:  # the library refuses it, so nothing is dialled
            return
        assert dialled.host == "pbx.example" and dialled.port in (8088, 443), dialled
        assert dialled.path.startswith(("/media/", "/ws")) and ".." not in dialled.path.split("/"), dialled.path
        assert not set(dialled.resource_name) & set(" \r\n\0"), dialled.resource_name


def read_origins(data: bytes) -> None:
    """An Origin and a Host, one on a line. A page of a foreign name may use neither a loopback nor an open server."""
    origin, _, host = data.decode("latin-1").partition("\n")
    for local, listed, has_tokens in (("127.0.0.1", (), False), ("10.0.0.5", (), False), ("::1", (), True)):
        if not origins.is_allowed(origin, host, local, listed, None, has_tokens=has_tokens):
            continue
        page = origins.parse_origin(origin)
        assert page is not None
        is_address = True
        try:
            ipaddress.ip_address(page.host.strip("[]"))
        except ValueError:
            is_address = False
        assert is_address or origins.is_loopback(page.host), f"{page.host} may use a server at {local}"


_GET = b"\x06GET /v1/stream?call=c1 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
_POST = (
    b"\x02POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
)

HTTP_TARGETS = (
    FuzzTarget(
        "request_head",
        read_head,
        (
            _GET,
            _POST,
            b"\x06POST /calls/c1/v1/speak HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"\x01GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"\x03GET http://a/b?c HTTP/1.1\r\nhost:\tx \r\nX: \xff\r\n\r\n",
        ),
        (
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding : chunked\r\n",
            b"Transfer-Encoding: identity, chunked\r\n",
            b"Content-Length: +5\r\n",
            b"Content-Length: 5, 5\r\n",
            b" folded\r\n",
            b"\r\n\r\n",
            b"HTTP/1.1",
            b"HTTP/2.0",
            b"Expect: 100-continue\r\n",
            b"Host: y\r\n",
            b"\rTransfer-Encoding: chunked\r\n",
        ),
    ),
    FuzzTarget(
        "signatures",
        read_signatures,
        (
            b'sig1=("@request-target" "@authority" "audiohook-organization-id" "audiohook-session-id" '
            b'"audiohook-correlation-id" "x-api-key");keyid="key";nonce="VGhpc0lzQVZlcnlSYW5kb20";alg="hmac-sha256";'
            b"created=1800000000;expires=1800000010\nsig1=:" + b"A" * 43 + b"=:\na.example",
            b"eyJhbGciOiJIUzI1NiJ9.eyJpYXQiOjE4MDAwMDAwMDAsImV4cCI6MTgwMDAwMDMwMH0.AAAA\na=b\nn",
            b"eyJhbGciOiJub25lIn0.eyJpYXQiOjE4MDAwMDAwMDB9.\na\nn",
            b"YWJj,ZGVm\nx=%20y\nnonce",
        ),
        (b"sig1=", b';nonce="', b";created=", b"eyJhbGciOiJub25lIn0", b".", b"==", b","),
    ),
    FuzzTarget(
        "addresses",
        read_addresses,
        (
            b"https://sounds.example:8443/en/a.wav?x=1",
            b"https://sounds.example:8443/en/%2e%2e/a",
            b"ws://pbx.example:8088/media/c1",
            b"wss://pbx.example/ws",
            b"ws://pbx.example:8088@evil.example/media/x",
            b"https://[::1]:8443/en/",
        ),
        (
            b"@",
            b"\\",
            b"%2e%2e",
            b"%2f",
            b"..",
            b"#",
            b"?",
            b"evil.example",
            b"//",
            b"[::ffff:127.0.0.1]",
            b":8088",
            b";",
            b"\t",
        ),
    ),
    FuzzTarget(
        "origins",
        read_origins,
        (
            b"https://a.example\na.example",
            b"http://localhost:3000\nlocalhost:3000",
            b"null\nx",
            b"http://10.0.0.5\n10.0.0.5",
            b"http://[::1]:80\n[::1]",
            b"chrome-extension://abc\nabc",
        ),
        (b"localhost", b".localhost", b"127.0.0.1", b"[::1]", b"@", b":", b"\n", b"://"),
    ),
)
