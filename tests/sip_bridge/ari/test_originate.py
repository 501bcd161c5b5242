"""POST /originate: who may order calls, how their outcome is reported, and bad HTTP requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from bridge_rig import BridgeRig, EndReasons, bridging, get, run, until
from standin_ari import SETTINGS, StandinAri, standin_ari
from standin_server import StandinServer, standin_server

pytestmark = pytest.mark.timed


@asynccontextmanager
async def sides(**settings: object) -> AsyncIterator[tuple[StandinAri, StandinServer, BridgeRig]]:
    async with standin_ari() as asterisk, standin_server() as server:
        given = {"ari__url": asterisk.url, **SETTINGS, **settings}
        async with bridging(server.url, **given) as rig:
            await until(lambda: asterisk.n_connections and "GET bridges" in asterisk.asked, "the bridge is connected")
            yield asterisk, server, rig


async def raw(port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await asyncio.wait_for(reader.read(), 8)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


async def order(rig: BridgeRig, body: object, token: str = "who-may-call") -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /originate HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(data)}\r\n\r\n"
    status, told = await raw(rig.http_port, head.encode() + data)
    return status, json.loads(told)


async def ringing(asterisk: StandinAri) -> str:
    """The channel of the called endpoint."""
    await until(lambda: any(name.endswith("-out") for name in asterisk.channels), "a telephone is called")
    return next(name for name in asterisk.channels if name.endswith("-out"))


def test_an_answered_call_joins_the_server_under_its_name() -> None:
    async def main() -> None:
        async with sides(ari__variables=["CAMPAIGN"]) as (asterisk, server, rig):
            wanted = {
                "endpoint": "PJSIP/+49301@trunk", "caller_id": "Shop <+4930999>", "call": "order-17", "timeout_s": 20,
                "variables": {"CAMPAIGN": "x", "GREETING": "hi", "TTS_CALL": "mine"},
            }  # fmt: skip
            assert await order(rig, wanted) == (201, {"call": "order-17", "state": "calling"})
            channel = await ringing(asterisk)
            query = asterisk.queries["POST channels"]
            assert (query["endpoint"], query["callerId"], query["timeout"]) == (
                "PJSIP/+49301@trunk", "Shop <+4930999>", "20",
            )  # fmt: skip
            assert asterisk.variables[channel] == wanted["variables"]
            assert not server.calls, "no telephone has answered"
            await asterisk.answer(channel)
            call = await server.call("order-17")
            await asterisk.bridged()
            told = call.start["parameters"]
            assert (told["CAMPAIGN"], told["GREETING"], told["TTS_CALL"]) == ("x", "hi", "order-17")
            assert f"POST channels/{channel}/answer" not in asterisk.asked
            await call.socket.close(1000)
            await asterisk.empty()
            assert f"DELETE channels/{channel}" in asterisk.asked, "there is no dialplan for it to go on in"

    run(main)


@pytest.mark.parametrize(("cause", "says"), [(17, "busy"), (19, "no answer"), (21, "rejected"), (1, "no such number")])
def test_with_wait_the_answer_tells_how_the_call_ended(cause: int, says: str) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, _, rig):
            asking = asyncio.create_task(order(rig, {"endpoint": "PJSIP/1", "call": "c", "wait": True}))
            await asterisk.hang_up(await ringing(asterisk), cause)
            status, told = await asking
            assert status == 409 and (told["error"], told["cause"], told["call"]) == ("not_answered", cause, "c")
            assert told["message"].endswith(says)
            asking = asyncio.create_task(order(rig, {"endpoint": "PJSIP/1", "wait": True}))
            channel = await ringing(asterisk)
            await asterisk.answer(channel)
            status, told = await asking
            assert status == 200 and told["state"] == "answered" and told["call"]
            await asterisk.hang_up(channel)
            await asterisk.empty()
        assert ended.counts == {"not_answered": 1, "hangup": 1}

    run(main)


def test_a_refusal_of_asterisk_is_reported() -> None:
    async def main() -> None:
        async with sides(ari__request_timeout_s=0.3) as (asterisk, _, rig):
            asterisk.refuse["POST channels"] = (500, "Allocation failed")
            status, told = await order(rig, {"endpoint": "PJSIP/absent"})
            assert status == 502 and told["error"] == "asterisk_refused" and "Allocation failed" in told["message"]
            assert "is that registered?" in told["message"]
            asterisk.refuse["POST channels"] = (400, "Endpoint not specified")
            status, told = await order(rig, {"endpoint": "PJSIP/absent"})
            assert status == 502 and told["message"].endswith("Endpoint not specified")
            asterisk.refuse.clear()
            asterisk.mute.add("POST channels")
            status, told = await order(rig, {"endpoint": "PJSIP/1"})
            assert status == 503 and told["error"] == "asterisk_lost"
            asterisk.mute.clear()
            asterisk.dead = True
            asterisk.cut()
            await until(lambda: asterisk._client is None, "the connection is lost")
            status, told = await order(rig, {"endpoint": "PJSIP/1"})
            assert status == 503 and told["error"] == "asterisk_lost"
            await until(lambda: not rig.bridge.n_calls, "no call is left")

    run(main)


def test_the_call_limit_and_unique_names_hold() -> None:
    async def main() -> None:
        async with sides(ari__max_calls=2) as (asterisk, _, rig):
            assert (await order(rig, {"endpoint": "PJSIP/1", "call": "a"}))[0] == 201
            status, told = await order(rig, {"endpoint": "PJSIP/1", "call": "a"})
            assert status == 503 and "the name a" in told["message"]
            assert (await order(rig, {"endpoint": "PJSIP/1", "call": "b"}))[0] == 201
            status, told = await order(rig, {"endpoint": "PJSIP/1", "call": "c"})
            assert status == 503 and "max_calls" in told["message"]
        # A call that still rings when the bridge stops is cancelled.
        assert not asterisk.channels

    run(main)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no json", "not JSON"), (b"[" * 60_000, "not JSON"), ([1], "object"), ({}, "endpoint: is missing"),
        ({"endpoint": 5}, "endpoint: must be"), ({"endpoint": "SIP/1"}, "must begin with PJSIP/"),
        ({"endpoint": "PJSIP/"}, "must begin with"), ({"endpoint": "PJSIP/1&PJSIP/2"}, "one endpoint"),
        ({"endpoint": "PJSIP/1,30,G(x^y)"}, "one endpoint"), ({"endpoint": "Local/x@internal"}, "must begin with"),
        ({"endpoint": "PJSIP/1\n"}, "printable"), ({"endpoint": "PJSIP/" + "1" * 300}, "256"),
        ({"endpoint": "PJSIP/1", "call": "a b"}, "call: must be"), ({"endpoint": "PJSIP/1", "nonsense": 1}, "nonsense"),
        ({"endpoint": "PJSIP/1", "timeout_s": 31}, "from 1 to 30"),
        ({"endpoint": "PJSIP/1", "timeout_s": True}, "from 1 to 30"),
        ({"endpoint": "PJSIP/1", "wait": 1}, "true or false"),
        ({"endpoint": "PJSIP/1", "variables": {"SHELL(rm)": "x"}}, "channel variables"),
        ({"endpoint": "PJSIP/1", "variables": {"X": 1}}, "channel variables"),
        ({"endpoint": "PJSIP/1", "variables": {f"X{n}": "" for n in range(41)}}, "at most 40"),
        ({"endpoint": "PJSIP/1", "caller_id": "a\r\nb"}, "caller_id"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_wrong_order_is_refused_with_the_reason(body: object, says: str) -> None:
    async def main() -> None:
        async with sides() as (asterisk, _, rig):
            status, told = await order(rig, body)
            assert status == 400 and told["error"] == "bad_request" and says in told["message"], told
            assert "POST channels" not in asterisk.asked

    run(main)


def test_a_wrong_token_is_refused_and_without_a_token_originate_is_off() -> None:
    async def main() -> None:
        async with sides() as (asterisk, _, rig):
            for token in ("", "who-may-cal", "who-may-callx", "wh\u00f6"):
                status, told = await order(rig, {"endpoint": "PJSIP/1"}, token)
                assert (status, told["error"]) == (401, "unauthorized")
            assert "POST channels" not in asterisk.asked
        async with sides(ari__originate__token=None) as (asterisk, _, rig):
            for token in ("", "None", "who-may-call"):
                status, told = await order(rig, {"endpoint": "PJSIP/1"}, token)
                assert status == 403 and "ari.originate.token" in told["message"]
        async with standin_server() as server, bridging(server.url) as rig:
            assert (await raw(rig.http_port, b"POST /originate HTTP/1.1\r\nContent-Length: 0\r\n\r\n"))[0] == 404

    run(main)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /originate HTTP/1.1\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /originate HTTP/1.1\r\n\r\n", 411),
        (b"POST /originate HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST /originate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /originate HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"POST /originate HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 413),
        (b"POST /originate HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"POST /originate HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"PUT /originate HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 405),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno header\r\n\r\n", 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_http_requests_get_the_right_status(request_bytes: bytes, status: int) -> None:
    async def main() -> None:
        async with sides() as (_, _, rig):
            assert (await raw(rig.http_port, request_bytes))[0] == status
            assert (await get(rig.http_port, "/healthz"))[0] == 200

    run(main)


def test_silent_and_vanished_http_clients_leave_nothing() -> None:
    async def main() -> None:
        async with sides() as (_, _, rig):
            for begin in (b"", b"POST /originate HTTP/1.1\r\nContent-Length: 5\r\n\r\nab", b"GET /met"):
                _, writer = await asyncio.open_connection("127.0.0.1", rig.http_port)
                writer.write(begin)
                await writer.drain()
                writer.close()
            _, silent = await asyncio.open_connection("127.0.0.1", rig.http_port)
            assert (await get(rig.http_port, "/healthz"))[0] == 200
        silent.close()

    run(main)
