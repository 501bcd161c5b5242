"""Faults between the bridge and an Asterisk with ARI. Each ends at most its own call, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from http import HTTPStatus

import pytest
from ari_rig import sides
from bridge_rig import BridgeRig, EndReasons, bridging, get, noise, run, until
from standin_ari import APP, PASSWORD, SETTINGS, USER, StandinAri, standin_ari
from standin_server import ServedCall, StandinServer, standin_server
from websockets.asyncio.client import connect

from sip_bridge import metrics
from sip_bridge.ari import application as ari
from sip_bridge.ari.config import AriConfig
from sip_bridge.ari.connection import connect_ari

pytestmark = pytest.mark.timed


async def assert_readiness(rig: BridgeRig, says: str) -> None:
    """Wait until /readyz has this status."""
    for _ in range(400):
        status, body = await get(rig.http_port, "/readyz")
        if says in body:
            assert (status == 200) == (says == "ready")
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"/readyz never says {says!r}, but {body!r}")


async def good_call(asterisk: StandinAri, server: StandinServer, name: str) -> ServedCall:
    """Make a call and check that it works."""
    await asterisk.call(name)
    call = await server.call(name)
    media = f"{next(key for key, ids in asterisk.bridges.items() if name in ids)}-media"
    frames = noise(3, 9)
    await call.speak(frames, mark=f"of {name}")
    await call.until(lambda: call.of("mark"), "the mark")
    packets = asterisk.ports[media].packets
    await until(lambda: sum(set(each[12:]) != {0xFF} for each in packets) == 3, "three frames of speech")
    return call


# ------------------------------------------------------------------------- the connection


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ari__password": "wrong"}, "ari.user and ari.password"),
        ({"ari__url": "/nowhere"}, "ari.url must end with /ari"),
    ],
)
def test_readyz_says_why_asterisk_refuses_the_bridge(settings: dict[str, str], says: str) -> None:
    async def main() -> None:
        async with standin_ari() as asterisk, standin_server() as server:
            given = {"ari__url": asterisk.url, **SETTINGS, **settings}
            if given["ari__url"].startswith("/"):
                given["ari__url"] = asterisk.url + "/nowhere"
            async with bridging(server.url, **given) as rig:
                await assert_readiness(rig, says)

    run(main)


def test_an_unreachable_asterisk_is_reported_with_http_conf() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as freed:
            port = freed.getsockname()[1]
        given = {**SETTINGS, "ari__url": f"ws://127.0.0.1:{port}/ari"}
        async with standin_server() as server, bridging(server.url, **given) as rig:
            await assert_readiness(rig, "is its HTTP server enabled in http.conf?")

    run(main)


def test_an_asterisk_that_never_answers_times_out_and_is_found_later() -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        given = {**SETTINGS, "ari__url": f"ws://127.0.0.1:{port}/ari", "ari__request_timeout_s": 0.2}
        async with standin_server() as server, bridging(server.url, **given) as rig:
            await assert_readiness(rig, "has not answered for 0.2 s")
            listener.close()
            await listener.wait_closed()
            await assert_readiness(rig, "no Asterisk at ari.url")
            async with StandinAri().running(port) as asterisk:
                await assert_readiness(rig, "ready")
                call = await good_call(asterisk, server, "c-1")
                await asterisk.hang_up("c-1")
                await call.gone()
                await asterisk.empty()

    run(main)


def test_an_asterisk_too_old_for_requests_over_the_websocket_is_reported() -> None:
    async def main() -> None:
        async with standin_ari() as asterisk, standin_server() as server:
            asterisk.mute.add("GET asterisk")
            given = {**SETTINGS, "ari__url": asterisk.url, "ari__request_timeout_s": 0.2}
            async with bridging(server.url, **given) as rig:
                await assert_readiness(rig, "need Asterisk 22.4")
                asterisk.mute.clear()
                await assert_readiness(rig, "ready")

    run(main)


def test_calls_stay_up_while_the_connection_is_lost() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")
            gone = await good_call(asterisk, server, "c-2")
            asterisk.dead = True
            asterisk.cut()
            await assert_readiness(rig, "asterisk: ")
            assert metrics.value("telephony_sip_bridge_ari_connected") == 0
            await call.speak(noise(2, 1), mark="meanwhile")
            await call.until(lambda: len(call.of("mark")) == 2, "speech goes on")
            await asterisk.hang_up("c-2")  # without an event
            assert gone.closed is None
            asterisk.dead = False
            await assert_readiness(rig, "ready")
            await gone.gone()
            await until(lambda: rig.bridge.n_calls == 1, "it is put away")
            assert call.closed is None
            await asterisk.hang_up("c-1")
            await call.gone()
            await asterisk.empty()
        assert ended.counts == {"hangup": 2}

    run(main)


def test_a_request_that_is_lost_with_the_connection_fails_at_once() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__request_timeout_s=30) as (asterisk, _, rig):
            asterisk.mute.add("POST externalMedia")
            await asterisk.call("c-1")
            await until(lambda: "POST channels/externalMedia" in asterisk.asked, "the request")
            asterisk.cut()
            await until(lambda: not rig.bridge.n_calls, "the call is over", 2)
            await asterisk.empty()
        assert ended.counts == {"asterisk_lost": 1}

    run(main)


def test_a_call_that_ends_while_the_connection_is_lost_is_cleaned_up_later() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")
            asterisk.dead = True
            asterisk.cut()
            await assert_readiness(rig, "asterisk: ")
            await call.socket.close(1000)
            await until(lambda: not rig.bridge.n_calls, "the call is over")
            assert len(asterisk.channels) == 2
            asterisk.dead = False
            await asterisk.empty()
            assert "POST channels/c-1/continue" in asterisk.asked

    run(main)


def test_a_restarted_asterisk_ends_its_calls_and_gives_new_ones() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig):
            calls = [await good_call(asterisk, server, f"c-{n}") for n in range(3)]
            asterisk.restart()
            for call in calls:
                await call.gone()
            await until(lambda: asterisk.n_connections == 2, "the bridge is back")
            again = await good_call(asterisk, server, "c-9")
            await asterisk.hang_up("c-9")
            await again.gone()
            await until(lambda: not rig.bridge.n_calls, "no call is left")
        assert ended.counts == {"hangup": 4}

    run(main)


def test_calls_end_if_asterisk_stays_unreachable() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__lost_timeout_s=0.3) as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")
            asterisk.dead = True
            asterisk.cut()
            await call.gone()
            assert call.of("stop") == [{"type": "stop", "reason": "asterisk_lost"}]
            await until(lambda: not rig.bridge.n_calls, "no call is left")
        assert ended.counts == {"asterisk_lost": 1}

    run(main)


def test_a_bridge_whose_application_is_taken_keeps_its_calls_and_does_not_reconnect() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")
            headers = {"Authorization": "Basic YnJpZGdlOnMzY3JldA=="}
            url = f"{asterisk.url}/events?app={APP}"
            async with connect(url, additional_headers=headers, proxy=None) as _other:
                await assert_readiness(rig, "another client has taken the application tts")
                await call.speak(noise(2, 1), mark="on")
                await call.until(lambda: len(call.of("mark")) == 2, "the call goes on")
                await asterisk.hang_up("c-1")  # its events go to the other client
                await call.gone()
                await asterisk.empty()
                await until(lambda: not rig.bridge.n_calls, "the call is over")
                assert asterisk.first is not None
                asterisk.first.transport.abort()
                await asyncio.sleep(0.6)
                assert asterisk.n_connections == 2, "the two must not take it from each other"
                await assert_readiness(rig, "another client has taken the application tts")

    run(main)


def test_unknown_messages_of_asterisk_are_ignored() -> None:
    async def main() -> None:
        before = metrics.value("telephony_sip_bridge_bad_input_total", kind="ari_message")
        async with sides() as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")
            nonsense: list[str | bytes] = [
                "no json", "[1]", "null", "[" * 100_000, b"\xff\x00", '{"type": 5}', '{"type": "StasisStart"}',
                '{"type": "ChannelDestroyed", "channel": {"id": 7}}', '{"type": "RESTResponse", "request_id": 1}',
                '{"type": "RESTResponse", "request_id": "999", "status_code": 200}',
                json.dumps({"type": "ChannelDtmfReceived", "channel": {"id": "c-1"}, "digit": "xx"}),
                json.dumps({"type": "SomethingOfNextYear", "channel": {"id": "c-1"}}),
                json.dumps({"type": "StasisEnd", "channel": {"id": "of no call"}}),
            ]  # fmt: skip
            for each in nonsense:
                await asterisk.send(each)
            await asterisk.event("ChannelDtmfReceived", "c-1", digit="5")
            await call.until(lambda: call.of("dtmf"), "the digit behind it all")
            assert rig.bridge.n_calls == 1
            await asterisk.hang_up("c-1")
            await call.gone()
        assert metrics.value("telephony_sip_bridge_bad_input_total", kind="ari_message") == before + 9

    run(main)


# --------------------------------------------------------------------------- the calls


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"refuse": {"POST answer": (409, "Channel not in Stasis")}}, "asterisk_refused"),
        ({"refuse": {"POST externalMedia": (500, "Internal error")}}, "asterisk_refused"),
        ({"refuse": {"POST bridges": (500, "Internal error")}}, "asterisk_refused"),
        ({"refuse": {"POST addChannel": (422, "Channel not in Stasis application")}}, "asterisk_refused"),
        ({"mute": {"POST answer"}}, "asterisk_lost"),
        ({"mute": {"POST externalMedia"}}, "asterisk_lost"),
        ({"mute": {"POST addChannel"}}, "asterisk_lost"),
        ({"media_answers": False}, "media_failed"),
    ],
    ids=str,
)
def test_a_failed_setup_ends_only_its_own_call(fault: dict[str, object], reason: str) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__request_timeout_s=0.3, ari__setup_timeout_s=0.8) as (asterisk, server, rig):
            call = await good_call(asterisk, server, "good")
            for name, value in fault.items():
                setattr(asterisk, name, value)
            await asterisk.call("bad")
            await until(lambda: "POST channels/bad/continue" in asterisk.asked, "the caller goes on")
            await until(lambda: rig.bridge.n_calls == 1, "the call is over")
            await until(lambda: len(asterisk.channels) == 2 and len(asterisk.bridges) == 1, "nothing is left of it")
            assert ended.counts == {reason: 1}
            await call.speak(noise(2, 1), mark="on")
            await call.until(lambda: len(call.of("mark")) == 2, "the other call goes on")
            asterisk.mute, asterisk.refuse, asterisk.media_answers = set(), {}, True
            again = await good_call(asterisk, server, "again")
            for each in ("good", "again"):
                await asterisk.hang_up(each)
            await call.gone()
            await again.gone()
            await asterisk.empty()

    run(main)


def test_a_media_channel_that_dies_ends_the_call() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, _):
            call = await good_call(asterisk, server, "c-1")
            await asterisk.hang_up(asterisk.media_of())
            await call.gone()
            await asterisk.empty()
            assert "POST channels/c-1/continue" in asterisk.asked
        assert ended.counts == {"finished": 1}

    run(main)


def test_a_server_that_refuses_or_dies_ends_its_calls() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig):
            await good_call(asterisk, server, "c-1")
            server.die()
            await asterisk.empty()
            server.refusal = (HTTPStatus.SERVICE_UNAVAILABLE, "all lines are busy\n")
            await asterisk.call("c-2")
            await until(lambda: "POST channels/c-2/continue" in asterisk.asked, "the caller goes on")
            await asterisk.empty()
            await until(lambda: not rig.bridge.n_calls, "no call is left")
        assert ended.counts == {"server_lost": 1, "server_refused": 1}

    run(main)


def test_a_server_that_may_not_dial_asterisk_is_reported_as_such() -> None:
    """The stand-in server has no /media/asterisk; tests/pbx uses the real one."""

    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__media="websocket_server") as (asterisk, _, _):
            asterisk.media_answers = False
            await asterisk.call("c-1")
            await until(lambda: "POST channels/c-1/continue" in asterisk.asked, "the caller goes on")
            await asterisk.empty()
            assert asterisk.queries["POST externalMedia"]["external_host"] == "INCOMING"
        assert ended.counts == {"server_refused": 1}

    run(main)


def test_a_call_over_the_limit_goes_on_in_its_dialplan() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__max_calls=1) as (asterisk, server, _):
            call = await good_call(asterisk, server, "c-1")
            await asterisk.call("c-2")
            await until(lambda: "POST channels/c-2/continue" in asterisk.asked, "the caller goes on")
            assert "POST channels/c-2/answer" not in asterisk.asked and "c-2" not in server.calls
            await asterisk.hang_up("c-1")
            await call.gone()
            await (await good_call(asterisk, server, "c-3")).speak(noise(1, 1))
            await asterisk.hang_up("c-3")
        assert ended.counts == {"hangup": 2, "refused": 1}

    run(main)


def test_a_hang_up_at_any_moment_leaves_nothing() -> None:
    async def main() -> None:
        async with sides() as (asterisk, _, rig):
            for n in range(30):
                await asterisk.call(f"c-{n}")
                await asyncio.sleep(0.0004 * n)
                await asterisk.hang_up(f"c-{n}")
            await until(lambda: not rig.bridge.n_calls, "no call is left")
            await asterisk.empty()
            await assert_readiness(rig, "ready")

    run(main)


def test_leftovers_of_a_killed_bridge_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ari, "_TIDY_S", 0.1)

    async def main() -> None:
        async with standin_ari() as asterisk, standin_server() as server:
            for name in ("c-1", f"{APP}-01234567-2-media", f"{APP}-01234567-3-media", "c-4", f"{APP}-01234567-4-media"):
                asterisk._add(name, "x", "Up", "")
            asterisk._add("of-another", "x", "Up", "")
            asterisk.channels["of-another"]["dialplan"]["app_data"] = "queue"
            asterisk.bridges = {
                f"{APP}-01234567-1": ["c-1"], f"{APP}-01234567-2": [f"{APP}-01234567-2-media"], "conference": [],
                f"{APP}-01234567-4": ["c-4", f"{APP}-01234567-4-media"],
            }  # fmt: skip
            async with bridging(server.url, ari__url=asterisk.url, **SETTINGS):
                # Objects that may be in use stay: a bridge with two channels, and those of other programs.
                kept = {"c-4", f"{APP}-01234567-4-media", "of-another"}
                await until(lambda: set(asterisk.channels) == kept, "the channels of no call are gone")
                await until(lambda: set(asterisk.bridges) == {f"{APP}-01234567-4", "conference"}, "and the bridges")
                assert "POST channels/c-1/continue" in asterisk.asked

    run(main)


def test_calls_end_if_asterisk_goes_while_the_application_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: they stayed for as long as Asterisk was away, and it counted as connected."""

    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__lost_timeout_s=0.3) as (asterisk, server, rig):
            call = await good_call(asterisk, server, "c-1")

            def fail(*_: object) -> None:
                asterisk.dead = True
                raise ZeroDivisionError("a bug of ours")

            monkeypatch.setattr(ari.AriApplication, "_choose_events", fail)
            asterisk.cut()
            await call.gone()
            await until(lambda: rig.bridge.n_calls == 0, "it is put away")
            assert metrics.value("telephony_sip_bridge_ari_connected") == 0
            assert (await get(rig.http_port, "/readyz"))[0] == 503
        assert ended.counts == {"asterisk_lost": 1}

    run(main)


def test_a_fault_with_an_event_that_waited_ends_no_other_call() -> None:
    """Pinned: events that came before the bridge was ready for them crashed the whole application."""

    async def main() -> None:
        heard: list[object] = []

        def on_event(event: object) -> None:
            heard.append(event)
            if len(heard) == 1:
                raise ZeroDivisionError("a bug of ours")

        async with standin_ari() as asterisk:
            account = AriConfig(enabled=True, url=asterisk.url, app=APP, user=USER, password=PASSWORD)
            connection, _ = await connect_ari(account)
            await asterisk.call("c-1")
            await asterisk.call("c-2")
            await until(lambda: len(connection._waiting) == 2, "both wait")
            connection.listen(on_event)
            assert len(heard) == 2 and not connection.left.done()
            await connection.close()

    run(main)
