"""What a request passes before its route, without a socket: the limits of bodies, and the end of a refused request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server_settings import transport_settings
from starlette.types import Message, Receive, Scope, Send

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api import gate
from telephony_tts.http_api.gate import Gate
from telephony_tts.http_api.responses import refusal
from telephony_tts.transport.server import Server
from telephony_tts.transport.settings import ServerSettings

END: Message = {"type": "http.request", "body": b"", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


def piece(data: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


class Exchange:
    """One request through the gate. `got` is the body that the application had; None if it was not asked."""

    def __init__(self, *messages: Message, path: str = "/tts/stream", method: str = "POST", **headers: str) -> None:
        self.left = list(messages)
        self.sent: list[Message] = []
        self.got: bytes | None = None
        self.is_broken = False
        self.n_dropped = 0
        """How often the rest of the request was dropped."""
        pairs = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope: Scope = {
            "type": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "method": method,
            "server": ("127.0.0.1", 8080), "headers": pairs,
            "state": {"is_broken": lambda: self.is_broken, "drop_rest": self.drop_rest},
        }  # fmt: skip

    async def receive(self) -> Message:
        if not self.left:
            if self.sent:
                return GONE
            await asyncio.Event().wait()
        return self.left.pop(0)

    def drop_rest(self) -> None:
        self.n_dropped += 1

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def through(self, **settings: Any) -> Exchange:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            message = await receive()
            assert not message["more_body"]
            self.got = message["body"]
            await send({"type": "http.response.start", "status": 200, "headers": []})

        server = Server(transport_settings(**settings), Catalog([FakeEngine()]))
        asyncio.run(Gate(app, server, lambda _path, error: refusal(error))(self.scope, self.receive, self.send))
        return self

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def code(self) -> str:
        code: str = json.loads(b"".join(m.get("body", b"") for m in self.sent))["error"]["code"]
        return code


def test_the_application_gets_the_body_whole() -> None:
    exchange = Exchange(piece(b"one "), piece(b""), piece(b"two", more=False)).through()
    assert (exchange.status, exchange.got) == (200, b"one two")


@pytest.mark.parametrize("size", [65_536 + 12 * 10, 65_536 + 12 * 10 + 1])
@pytest.mark.parametrize("announced", [True, False])
def test_the_limit_of_a_body_without_a_file(size: int, announced: bool) -> None:
    headers = {"Content_Length": str(size)} if announced else {}
    exchange = Exchange(piece(b"x" * size, more=False), **headers).through(request_chars=10)
    if size == 65_536 + 120:
        assert exchange.got is not None
    else:
        assert (exchange.status, exchange.code, exchange.got) == (413, "body_too_large", None)


def test_a_form_with_a_file_may_be_larger_and_never_larger_than_the_setting() -> None:
    kind = {"Content_Type": "Multipart/Form-Data; boundary=x"}
    data = b"x" * 200_000
    assert Exchange(piece(data, more=False), **kind).through(request_chars=10).got == data
    exchange = Exchange(piece(data, more=False), **kind).through(request_bytes=199_999)
    assert (exchange.status, exchange.got) == (413, None)


def test_a_refused_body_is_neither_read_nor_kept() -> None:
    exchange = Exchange(*[piece(b"x" * 100_000)] * 50, Content_Length="5000000").through(request_chars=10)
    assert (exchange.status, exchange.n_dropped, len(exchange.left)) == (413, 1, 50)
    assert dict(exchange.sent[0]["headers"])[b"connection"] == b"close"
    assert Exchange(END).through().n_dropped == 0


def test_a_request_without_a_key_has_its_body_unread() -> None:
    exchange = Exchange(piece(b"x"), END).through(server=ServerSettings(tokens=("key",)))
    assert (exchange.status, exchange.code, len(exchange.left)) == (401, "unauthorized", 2)
    assert Exchange(END, Authorization="Bearer key").through(server=ServerSettings(tokens=("key",))).status == 200
    assert Exchange(END, path="/docs", method="GET").through(server=ServerSettings(tokens=("key",))).status == 200


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_the_open_description_takes_no_body(method: str) -> None:
    """It needs no key, so a stranger could make the server hold as many bodies as there are connections."""
    exchange = Exchange(piece(b"x" * 99), piece(b"x"), END, path="/docs", method=method).through()
    assert exchange.status in (400, 413) and exchange.got is None


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_BODIES_AT_ONCE", 0.5)
    form = "multipart/form-data; boundary=b"
    crowded = Exchange(piece(b"x" * 600), END, Content_Type=form).through(vendors_request_bytes=1_000)
    assert (crowded.status, crowded.code) == (503, "busy")
    assert Exchange(piece(b"x" * 400), END, Content_Type=form).through(vendors_request_bytes=1_000).got == b"x" * 400


def test_a_charset_that_is_not_utf_8_is_refused() -> None:
    odd = Exchange(END, Content_Type="multipart/form-data; boundary=b; charset=punycode").through()
    assert (odd.status, odd.code) == (400, "bad_request")
    assert Exchange(END, Content_Type='application/json; charset="UTF-8"').through().status == 200


def test_a_client_that_is_gone_gets_nothing() -> None:
    exchange = Exchange(piece(b"x"), GONE).through()
    assert (exchange.sent, exchange.got) == ([], None)


def test_a_body_that_could_not_be_parsed_does_not_reach_the_application() -> None:
    exchange = Exchange(piece(b"x", more=False), GONE)
    exchange.is_broken = True
    exchange.through()
    assert (exchange.status, exchange.code, exchange.got) == (400, "bad_request", None)


def test_a_body_that_stops_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_PIECE_S", 0.0)
    exchange = Exchange(piece(b"x")).through()
    assert (exchange.status, exchange.code, exchange.got) == (408, "body_timeout", None)


def test_a_page_that_may_use_the_server_can_read_the_response() -> None:
    page = "https://good.example"
    exchange = Exchange(END, Origin=page).through(origins=(page,))
    assert (b"access-control-allow-origin", page.encode()) in exchange.sent[0]["headers"]
    exchange = Exchange(END, Origin="https://evil.example").through(origins=(page,))
    assert (exchange.status, exchange.code, exchange.got) == (403, "origin", None)
    assert b"access-control-allow-origin" not in dict(exchange.sent[0]["headers"])
