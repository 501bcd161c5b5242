"""Bad messages of ARI and bad RTP affect only their own call. A second call gets every frame, and the log names the
call and the fault."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from ari_rig import beside, media_of, packet, sides, sound, ulaw
from bridge_rig import EndReasons, bridging, get, noise, run, until
from log_lines import lines
from standin_ari import APP, SETTINGS, StandinAri, standin_ari
from standin_asterisk import phone
from standin_server import ServedCall, StandinServer, standin_server

from sip_bridge import metrics
from sip_bridge.ari import application as ari
from sip_bridge.ari.config import AriConfig
from sip_bridge.config import TtsServerConfig
from sip_bridge.rtp.media import RtpMedia, is_port_free

pytestmark = pytest.mark.timed


async def up(asterisk: StandinAri, server: StandinServer, name: str) -> tuple[ServedCall, str]:
    """A bridged call and its media channel."""
    await asterisk.call(name)
    await until(lambda: any(len(ids) == 2 for ids in asterisk.bridges.values() if name in ids), "it is bridged")
    return await server.call(name), media_of(asterisk, name)


# ------------------------------------------------------------------------- the connection


def test_an_ari_that_never_answers_does_not_affect_audiosocket_calls(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        mute = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{mute.sockets[0].getsockname()[1]}/ari"
        retries = metrics.value("telephony_sip_bridge_ari_connect_retries_total")
        given = {**SETTINGS, "ari__url": url, "ari__request_timeout_s": 0.2}
        async with standin_server() as server, bridging(server.url, **given) as rig, phone(rig.port) as caller:
            call = await server.call(caller.name)
            frames, said = noise(50, 1), noise(50, 2)
            await asyncio.gather(call.speak(frames), caller.talk(said))
            await caller.hears(50)
            await call.until(lambda: len(call.audio) >= 16_000, "the caller's audio")
            assert caller.speech == frames and bytes(call.audio) == b"".join(said)
            tried = "telephony_sip_bridge_ari_connect_retries_total"
            await until(lambda: metrics.value(tried) >= retries + 3, "it is tried again")
            assert (await get(rig.http_port, "/readyz"))[0] == 503
        mute.close()
        await mute.wait_closed()

    run(main)
    # Logged once, not for each attempt.
    assert lines(caplog, "asterisk_lost") == [
        {"why": "Asterisk accepts at ari.url and has not answered for 0.2 s", "calls": 0}
    ]


def test_a_crash_of_the_ari_application_ends_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All applications are in one task group: an exception of one of them once ended every call of the bridge."""
    right, n_faults = ari.connect_ari, 0

    async def wrong(settings: AriConfig) -> Any:
        nonlocal n_faults
        n_faults += 1
        if n_faults <= 2:
            raise ZeroDivisionError("a bug in the bridge")
        return await right(settings)

    monkeypatch.setattr(ari, "connect_ari", wrong)
    monkeypatch.setattr("sip_bridge.app._RESTART_PAUSE_S", 0.2)

    async def main() -> None:
        async with sides() as (asterisk, server, rig), phone(rig.port) as caller:
            call = await server.call(caller.name)
            await until(lambda: n_faults == 3, "it is begun anew")
            frames = noise(5, 1)
            await call.speak(frames)
            await caller.hears(5)
            assert caller.speech == frames
            async with beside(asterisk, server):
                pass

    run(main)
    assert lines(caplog, "application_crashed") == [{"application": "AriApplication"}] * 2


def test_a_connection_that_closes_during_the_setup_of_media_ends_only_that_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__request_timeout_s=30) as (asterisk, server, rig), beside(asterisk, server):
            asterisk.mute.add("POST externalMedia")
            await asterisk.call("c-1")
            await until(lambda: asterisk.asked.count("POST channels/externalMedia") == 2, "the request")
            asterisk.cut()
            await until(lambda: rig.bridge.n_calls == 1, "its end", 3)
            asterisk.mute.clear()
            await until(lambda: "c-1" not in asterisk.channels, "the caller goes on in the dialplan")
            await until(lambda: len(asterisk.channels) == 2 and len(asterisk.bridges) == 1, "and nothing is left of it")
            assert ended.counts == {"asterisk_lost": 1}

    run(main)
    (line,) = [each for each in lines(caplog, "asterisk_lost") if each.get("call") == "c-1"]
    assert line["why"] == "the connection to Asterisk was lost"


def test_a_far_too_long_message_closes_the_connection_and_ends_no_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, rig), beside(asterisk, server):
            await asterisk.send('"' + "x" * 9_000_000 + '"')
            await until(lambda: asterisk.n_connections == 2, "a new connection")
            assert rig.bridge.n_calls == 1
            again, _ = await up(asterisk, server, "c-1")
            await asterisk.hang_up("c-1")
            await again.gone()

    run(main)
    (line,) = lines(caplog, "asterisk_lost")
    assert line["calls"] == 1 and "closed by us: 1009 frame with 9000002 bytes exceeds limit" in line["why"]


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("GET channels", None),
        ("GET channels", {"message": "busy"}),
        ("GET channels", [{"id": "beside"}, {"name": "without an id"}]),
        ("GET bridges", None),
        ("GET bridges", "no list"),
    ],
    ids=str,
)
def test_a_list_that_cannot_be_read_ends_no_call(
    what: str, body: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bridge once read it as an empty list and ended every call."""
    monkeypatch.setattr(ari, "_TIDY_S", 0.05)

    async def main() -> None:
        async with sides() as (asterisk, server, _), beside(asterisk, server):
            right = asterisk._do

            async def wrong(method: str, path: list[str], *rest: Any) -> tuple[int, Any]:
                return (200, body) if f"{method} {'/'.join(path)}" == what else await right(method, path, *rest)

            asterisk._do = wrong  # type: ignore[method-assign]
            n_asked = len(asterisk.asked)
            await until(lambda: asterisk.asked[n_asked:].count(what) >= 4, "four looks")
            asterisk._do = right  # type: ignore[method-assign]

    run(main)
    why = lines(caplog, "not_tidied")[0]["why"]
    assert why.startswith("Asterisk's answer is not the list") or why == "Asterisk's list has a channel without an id"


# ------------------------------------------------------------------------------ channels


def test_an_event_of_an_unknown_channel_means_that_the_call_has_hung_up(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig), beside(asterisk, server):
            await asterisk.event("StasisStart", "ghost", args=[])
            await until(lambda: ended.counts == {"hangup": 1}, "its end")
            await until(lambda: rig.bridge.n_calls == 1, "nothing is left of it")
            assert "POST channels/ghost/answer" in asterisk.asked and "ghost" not in server.calls
            assert not any(
                "externalMedia" in each for each in asterisk.asked[asterisk.asked.index("POST channels/ghost/answer") :]
            )

    run(main)
    (line,) = lines(caplog, "hangup")
    assert line["call"] == "ghost" and "404 Channel not found" in line["why"]


@pytest.mark.parametrize("after", ["POST answer", "POST externalMedia", "POST bridges", "POST addChannel"])
def test_a_hang_up_after_any_setup_step_leaves_nothing(
    after: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig), beside(asterisk, server):
            right = asterisk._do

            async def hangs_up(
                method: str, path: list[str], query: Any, body: Any, after_it: list[Any]
            ) -> tuple[int, Any]:
                answer = await right(method, path, query, body, after_it)
                step = f"{method} {path[-1] if len(path) != 2 or path[1] == 'externalMedia' else path[0]}"
                if step == after and "c-1" in asterisk.channels:
                    after_it.insert(0, lambda: asterisk.hang_up("c-1"))
                return answer

            asterisk._do = hangs_up  # type: ignore[method-assign]
            await asterisk.call("c-1")
            await until(lambda: ended.counts == {"hangup": 1}, "its end")
            await until(lambda: rig.bridge.n_calls == 1, "the call is over")
            await until(lambda: len(asterisk.channels) == 2 and len(asterisk.bridges) == 1, "nothing is left of it")

    run(main)
    assert lines(caplog, "call_crashed") == lines(caplog, "not_cleaned") == []


def test_a_channel_that_starts_twice_is_one_call() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig), beside(asterisk, server):
            await asterisk.call("c-1")
            await asterisk.event("StasisStart", "c-1", args=[])
            call = await server.call("c-1")
            await until(
                lambda: len(asterisk.bridges) == 2 and all(len(ids) == 2 for ids in asterisk.bridges.values()),
                "bridged",
            )
            media = media_of(asterisk, "c-1")
            for name in ("c-1", media, media):
                await asterisk.event("StasisStart", name, args=[])
            frames = noise(5, 1)
            await call.speak(frames, mark="end")
            await call.until(lambda: call.of("mark"), "the mark")
            heard = b"".join(each[12:] for each in asterisk.ports[media].packets if set(each[12:]) != {0xFF})
            assert heard == ulaw(frames)
            assert rig.bridge.n_calls == 2 and asterisk.asked.count("POST channels/c-1/answer") == 1
            await asterisk.hang_up("c-1")
            await call.gone()
            await asterisk.event("StasisStart", media, args=[])  # of an ended call
            await asterisk.event("StasisEnd", "c-1")
            await until(lambda: rig.bridge.n_calls == 1, "one call less")
            assert ended.counts == {"hangup": 1}

    run(main)


def test_a_refused_token_is_logged_and_the_caller_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig), beside(asterisk, server):
            server.refusal = (HTTPStatus.UNAUTHORIZED, "a token is needed\n")
            await asterisk.call("c-1")
            await until(lambda: "POST channels/c-1/continue" in asterisk.asked, "the caller goes on")
            await until(lambda: rig.bridge.n_calls == 1, "the call is over")
            assert ended.counts == {"server_refused": 1}
            server.refusal = None
            again, _ = await up(asterisk, server, "c-2")
            await asterisk.hang_up("c-2")
            await again.gone()

    run(main)
    (line,) = lines(caplog, "server_refused")
    assert line["call"] == "c-1" and "HTTP 401" in line["why"] and "TELEPHONY_SIP_BRIDGE_TOKEN" in line["why"]


def test_digits_over_twenty_a_second_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        before = metrics.value("telephony_sip_bridge_bad_input_total", kind="digit_flood")
        async with sides() as (asterisk, server, _), beside(asterisk, server):
            call, _ = await up(asterisk, server, "c-1")
            for n in range(500):
                await asterisk.event("ChannelDtmfReceived", "c-1", digit=str(n % 10))
            flood = "telephony_sip_bridge_bad_input_total"
            await until(lambda: metrics.value(flood, kind="digit_flood") - before >= 400, "most are left out")
            await asyncio.sleep(1.05)
            await asterisk.event("ChannelDtmfReceived", "c-1", digit="#")
            await call.until(lambda: call.of("dtmf")[-1]["digit"] == "#", "a digit behind it")
            assert [event["digit"] for event in call.of("dtmf")[:20]] == [str(n % 10) for n in range(20)]
            await asterisk.hang_up("c-1")
            await call.gone()

    run(main)
    assert lines(caplog, "bad_input") == [
        {"call": "c-1", "kind": "digit_flood", "why": "more than 20 digits in a second; the rest is left out"}
    ]


def test_a_second_stop_ends_the_drain_even_if_asterisk_does_not_answer() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides(drain_s=30, ari__request_timeout_s=0.3) as (asterisk, server, rig):
            call, _ = await up(asterisk, server, "c-1")
            asterisk.mute |= {"POST continue", "DELETE channels", "DELETE bridges"}

            async def hurry() -> None:
                await until(lambda: rig.bridge.draining, "draining")
                await asyncio.sleep(0.1)
                assert call.closed is None, "it is let finish"
                for _ in range(3):
                    rig.bridge.stop_at_once()
                await call.gone()
                assert call.of("stop") == [{"type": "stop", "reason": "drain"}]

            hurrying = asyncio.create_task(hurry())
        await hurrying
        assert ended.counts == {"drain": 1}

    run(main, within_s=10)


# ----------------------------------------------------------------------------------- RTP


def test_rtp_from_another_address_is_dropped_and_logged_with_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _), beside(asterisk, server):
            call, media = await up(asterisk, server, "c-1")
            target, own = asterisk.bridge_ports[media], noise(3, 6)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other_sender:
                other_sender.bind(("127.0.0.2", 0))
                for n in range(50):
                    other_sender.sendto(packet(n, ulaw(noise(1, 5))), target)
                    if n % 20 == 0:
                        asterisk.ports[media].transport.sendto(packet(n // 20, ulaw([own[n // 20]])), target)
                port = other_sender.getsockname()[1]
            await call.until(lambda: len(call.audio) >= 960, "the caller's own")
            await asyncio.sleep(0.1)
            assert bytes(call.audio) == sound(own)
            assert asterisk.ports[media].come_from == {target}, "and nothing is sent to him"
            (line,) = lines(caplog, "bad_input")
            assert line == {
                "call": "c-1", "kind": "rtp_stranger",
                "why": f"an RTP packet from 127.0.0.2:{port}, which is not Asterisk's end",
            }  # fmt: skip
            await asterisk.hang_up("c-1")

    run(main)


def test_unreadable_packets_are_dropped_and_the_others_heard(caplog: pytest.LogCaptureFixture) -> None:
    said = noise(8, 11)
    codes = [ulaw([frame]) for frame in said]
    long = noise(1, 12, 1488)

    def sends() -> list[bytes]:
        extension = b"\xbe\xde\x00\x01" + bytes(4)
        return [
            packet(0, codes[0]),
            b"", b"\x80", bytes(12), b"\x80\xc8" + bytes(26),
            packet(1, b""), packet(1, codes[1], kind=8), packet(1, codes[1] * 300),
            packet(1, bytes(8) + codes[1], first=0x82),
            packet(2, extension + codes[2], first=0x90),
            packet(3, codes[3] + b"\x00\x00\x03", first=0xA0),
            packet(4, b"\x05\x0a\x00\xa0", kind=101),
            packet(20_000, codes[4], ssrc=99),  # a re-invite: another source with other numbers
            packet(20_001, codes[5], ssrc=99),
            packet(20_001, codes[5], ssrc=99),
            packet(20_002, ulaw(long), ssrc=99),
            packet(20_003, codes[6], ssrc=99),
            packet(40_000, codes[7], ssrc=99),
        ]  # fmt: skip

    async def main() -> None:
        async with sides() as (asterisk, server, _), beside(asterisk, server):
            call, media = await up(asterisk, server, "c-1")
            for each in sends():
                asterisk.ports[media].transport.sendto(each, asterisk.bridge_ports[media])
                await asyncio.sleep(0.002)
            wanted = sound([*said[:6], *long, *said[6:]])
            await call.until(lambda: len(call.audio) >= len(wanted), "all that is speech")
            await asyncio.sleep(0.1)
            assert bytes(call.audio) == wanted
            assert lines(caplog, "bad_input") == [
                {"call": "c-1", "kind": "rtp_unreadable", "why": "a packet is not RTP, or not in the call's format"}
            ]
            await asterisk.hang_up("c-1")

    run(main)


def on_a_loop(act: Callable[[RtpMedia], None], **settings: Any) -> None:
    async def main() -> None:
        over: list[Any] = []
        server = TtsServerConfig(url="ws://127.0.0.1:9/media/native")
        media = RtpMedia(AriConfig(**settings), server, lambda *why: over.append(why), lambda digits: None)
        try:
            await media.open()
            act(media)
        finally:
            await media.close("hangup")

    run(main)


def told_of(address: str, port: int = 4000) -> dict[str, Any]:
    return {"channelvars": {"UNICASTRTP_LOCAL_ADDRESS": address, "UNICASTRTP_LOCAL_PORT": str(port)}}


@pytest.mark.parametrize("address", ["", "0.0.0.0", "pbx.example"])
def test_a_host_name_as_rtp_address_is_refused(address: str) -> None:
    """Every packet would need a lookup, and no received packet would match the address."""

    def act(media: RtpMedia) -> None:
        with pytest.raises(ValueError, match=r"put an IP address into ari\.url, not pbx\.example"):
            media.created(told_of(address), "c-1", {})

    on_a_loop(act, url="ws://pbx.example:8088/ari")


def test_an_unreachable_rtp_address_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def act(media: RtpMedia) -> None:
        media.created(told_of("192.0.2.1"), "c-1", {})
        for _ in range(3):
            media._send_frame(0)

    on_a_loop(act)  # unreachable from 127.0.0.1
    (line,) = lines(caplog, "rtp_not_sent")
    assert line["call"] == "c-1" and line["to"] == "192.0.2.1" and line["why"]


# ------------------------------------------------------------- what a killed bridge leaves


def test_an_rtp_call_of_a_killed_bridge_is_found_and_its_caller_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Caller and media channel were in a bridge without a sender: the caller heard silence until the hang-up."""
    monkeypatch.setattr(ari, "_TIDY_S", 0.1)

    def killed(asterisk: StandinAri, number: int, caller: str, port: int) -> str:
        name = f"{APP}-01234567-{number}"
        asterisk._add(caller, "PJSIP/phone", "Up", "")
        asterisk._add(f"{name}-media", f"UnicastRTP/127.0.0.1:{port}-0x7f28980189{number}0", "Up", "")
        asterisk.bridges[name] = [caller, f"{name}-media"]
        return name

    async def main() -> None:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alive,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead,
        ):
            for each in (alive, dead):
                each.bind(("127.0.0.1", 0))
            free_port = dead.getsockname()[1]
            dead.close()
            async with standin_ari() as asterisk, standin_server() as server:
                gone = killed(asterisk, 1, "c-1", free_port)
                stays = killed(asterisk, 2, "c-2", alive.getsockname()[1])
                far = killed(asterisk, 3, "c-3", free_port)
                asterisk.channels[f"{far}-media"]["name"] = f"UnicastRTP/192.0.2.1:{free_port}-0x1"
                given = {"ari__url": asterisk.url, **SETTINGS}
                async with bridging(server.url, **given), beside(asterisk, server):
                    await until(lambda: gone not in asterisk.bridges, "it is put away")
                    assert "c-1" not in asterisk.channels and f"{gone}-media" not in asterisk.channels
                    assert "POST channels/c-1/continue" in asterisk.asked
                    n_looks = asterisk.asked.count("GET channels")
                    await until(lambda: asterisk.asked.count("GET channels") >= n_looks + 4, "four more looks")
                    # Another process still uses the first port. The second is on another machine, which may be alive.
                    assert {stays, far} < set(asterisk.bridges) and {"c-2", "c-3"} < set(asterisk.channels)

    caplog.set_level("INFO")
    run(main)
    assert {"request": "POST channels", "name": "c-1"} in lines(caplog, "leftover")


def test_is_port_free_accepts_only_ports_that_can_be_bound() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert not is_port_free("127.0.0.1", port)
    assert is_port_free("127.0.0.1", port)
    assert not is_port_free("192.0.2.1", port), "another machine's"
    assert not is_port_free("127.0.0.1", 99_999)
