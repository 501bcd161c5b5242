"""ARI calls over RTP with stand-ins on both sides: what is heard, reported and left over."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from ari_rig import HEADER, packet, sides, sound, ulaw
from bridge_rig import EndReasons, get, noise, run, until
from dtmf_reader import heard_keys
from standin_ari import StandinAri
from standin_server import ServedCall

from sip_bridge import metrics
from telephony_tts.audio.dtmf import tones
from telephony_tts.audio.g711 import encode_ulaw

pytestmark = pytest.mark.timed


async def spoken_to(asterisk: StandinAri, media: str, n_bytes: int) -> bytes:
    """The speech that has come to Asterisk, as mu-law on one timeline, without the silence around it."""
    packets = asterisk.ports[media].packets
    await until(lambda: sum(set(each[12:]) != {0xFF} for each in packets) >= n_bytes // 160, "the speech has come")
    await asyncio.sleep(0.06)
    first, *rest = [HEADER.unpack(each[:12]) for each in packets]
    for n, (_, kind, sequence, timestamp, ssrc) in enumerate(rest, 1):
        assert (kind, ssrc) == (0, first[4])
        assert (sequence - first[2]) & 0xFFFF == n
        assert (timestamp - first[3]) & 0xFFFFFFFF >= 160 * n
    assert first[1] == 0x80, "the first has the marker"
    return b"".join(each[12:] for each in packets if set(each[12:]) != {0xFF})


def test_both_sides_hear_each_other_and_the_server_gets_the_callers_number() -> None:
    frames, said = noise(30, 1), noise(20, 2)

    async def main() -> None:
        async with sides(ari__variables=["LANG_OF_CALLER"]) as (asterisk, server, _):
            await asterisk.call("c-1", "4930123", TTS_CALL="order-9", LANG_OF_CALLER="de", OTHER="x")
            await asterisk.bridged()
            call = await server.call("order-9")
            assert call.start["parameters"] == {
                "LANG_OF_CALLER": "de", "TTS_CALL": "order-9", "TTS_CHANNEL": "c-1", "TTS_FROM": "4930123",
                "TTS_TO": "702", "TTS_DIRECTION": "in",
            }  # fmt: skip
            media = asterisk.media_of()
            assert set(*asterisk.bridges.values()) == {"c-1", media}
            await call.speak(frames, mark="end")
            assert await spoken_to(asterisk, media, 160 * 30) == ulaw(frames)
            await call.until(lambda: call.of("mark"), "the mark")
            port = asterisk.ports[media]
            for n, frame in enumerate(said):
                port.transport.sendto(packet(n, ulaw([frame])), asterisk.bridge_ports[media])
            await call.until(lambda: len(call.audio) == 320 * 20, "the caller is heard")
            assert bytes(call.audio) == sound(said)
            assert port.come_from == {asterisk.bridge_ports[media]}, "symmetric: sent from where it is heard"
            await asterisk.hang_up("c-1")
            await call.gone()
            assert call.of("stop") == [{"type": "stop", "reason": "hangup"}]
            await asterisk.empty()

    run(main)


@pytest.mark.parametrize(
    ("codecs", "format", "rate_hz"), [("(g722)", "g722", 16_000), ("(alaw)", "alaw", 8000), (None, "ulaw", 8000)]
)
def test_auto_asks_for_the_telephones_codec(codecs: str | None, format: str, rate_hz: int) -> None:
    kind = {"ulaw": 0, "alaw": 8, "g722": 9}[format]

    async def main() -> None:
        async with sides(ari__format="auto") as (asterisk, server, _):
            known = {} if codecs is None else {"CHANNEL(audionativeformat)": codecs}
            await asterisk.call("c-1", "4930123", **known)
            await asterisk.bridged()
            call = await server.call("c-1")
            media = asterisk.media_of()
            assert (call.start["codec"], call.start["rate_hz"]) == ("pcm", rate_hz)
            assert asterisk.formats[media] == format
            port = asterisk.ports[media]
            await until(lambda: len(port.packets) > 3, "RTP flows")
            assert {(each[1] & 0x7F, len(each)) for each in port.packets} == {(kind, 172)}
            for n in range(5):
                port.transport.sendto(packet(n, bytes(160), kind=kind), asterisk.bridge_ports[media])
            await call.until(lambda: len(call.audio) == 5 * rate_hz // 25, "the caller is heard")
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


@pytest.mark.parametrize("numbered", ["by the telephone", "by Asterisk"])
def test_a_key_in_the_audio_is_one_key_for_the_server_if_a_packet_is_lost(numbered: str) -> None:
    """Asterisk passes a telephone's numbers on. If it changes the codec, its own numbers have no gap."""
    tone = next(tones("5", 8000, 100, 100))
    wave = np.concatenate((np.zeros(800, np.int16), tone, np.zeros(640, np.int16)))
    codes, lost = encode_ulaw(wave), 7

    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call, media = await server.call("c-1"), asterisk.media_of()
            port = asterisk.ports[media]
            for n in range(len(codes) // 160):
                if n != lost:
                    number = n - (numbered == "by Asterisk" and n > lost)
                    each = packet(number, codes[160 * n : 160 * n + 160], at=160 * n)
                    port.transport.sendto(each, asterisk.bridge_ports[media])
                    await asyncio.sleep(0.02)
            await call.until(lambda: len(call.audio) == 2 * len(codes), "all of the caller's time")
            (key,) = heard_keys(np.frombuffer(bytes(call.audio), "<i2").astype(np.int16))
            assert key.digit == "5" and key.on_ms == pytest.approx(100, abs=5)
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


def test_digits_arrive_once_and_in_order_early_ones_included() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            for digit in "12":
                await asterisk.event("ChannelDtmfReceived", "c-1", digit=digit)
            call = await server.call("c-1")
            await asterisk.bridged()
            await asterisk.event("ChannelDtmfReceived", asterisk.media_of(), digit="7")
            await asterisk.event("ChannelDtmfReceived", "c-1", digit="#")
            await call.until(lambda: len(call.of("dtmf")) == 3, "three digits")
            await asyncio.sleep(0.05)
            assert [event["digit"] for event in call.of("dtmf")] == ["1", "2", "#"]
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


def test_the_bots_tones_are_sent_by_asterisk_to_the_callers_channel() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            assert call.start["dtmf"] is True
            for said in ({"digits": "12#w", "on_ms": 80, "off_ms": 70}, {"digits": "9"}, {"digits": "1&x=2"}):
                await call.socket.send(json.dumps({"type": "dtmf", **said}))
            await call.mark("behind")
            await call.until(lambda: call.of("mark"), "the mark")
            await until(lambda: len(asterisk.tones) == 2, "the tones")
            assert asterisk.tones == [("c-1", "12#w", "80", "70"), ("c-1", "9", "100", "100")]
            asterisk.refuse["POST dtmf"] = (412, "Channel not in Stasis")
            await call.socket.send(json.dumps({"type": "dtmf", "digits": "7"}))
            await call.speak(noise(5, 6), mark="still there")
            await call.until(lambda: len(call.of("mark")) == 2, "the call goes on")
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


def holds(call: ServedCall) -> list[str]:
    return [event["state"] for event in call.of("hold")]


def test_the_server_is_told_of_each_hold_of_the_caller() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            for kind in ("ChannelHold", "ChannelUnhold", "ChannelHold", "ChannelHold", "ChannelUnhold"):
                await asterisk.event(kind, "c-1")
            await asterisk.event("ChannelHold", asterisk.media_of())
            await asterisk.event("ChannelDtmfReceived", "c-1", digit="5")
            await call.until(lambda: call.of("dtmf"), "what came behind it")
            assert holds(call) == ["started", "ended"] * 2, "the media channel is no telephone"
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


def test_a_hold_before_the_server_has_joined_is_told_at_its_start() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.event("ChannelHold", "c-1")
            call = await server.call("c-1")
            await call.until(lambda: call.of("hold"), "the hold")
            assert holds(call) == ["started"]
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


def test_a_hold_ends_for_the_server_when_no_event_can_tell_its_end() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            await asterisk.event("ChannelHold", "c-1")
            await call.until(lambda: call.of("hold"), "the hold")
            asterisk.cut()
            await call.until(lambda: holds(call) == ["started", "ended"], "its end")
            await until(lambda: asterisk.n_connections == 2, "the bridge is connected again")
            await asterisk.event("ChannelHold", "c-1")
            await call.until(lambda: holds(call)[2:] == ["started"], "the next hold")
            await asterisk.hang_up("c-1")
            await asterisk.empty()

    run(main)


@pytest.mark.parametrize("after_bot", ["continue", "hangup"])
def test_a_transferred_call_goes_on_with_the_new_telephone(after_bot: str) -> None:
    """A Local channel, which rings, takes the caller's place in the bridge. It is in no dialplan."""

    async def main() -> None:
        async with sides(ari__after_bot=after_bot) as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            (bridge,) = asterisk.bridges
            await asterisk.transfer("c-1", "local-1")
            await call.until(lambda: holds(call) == ["started"], "it rings")
            await asterisk.event("ChannelHold", "c-1")  # of the old telephone, which is gone for us
            await asterisk.event("ChannelUnhold", "c-1")
            await asterisk.hang_up("c-1")
            await asterisk.state("local-1", "Ringing")
            await asterisk.event("ChannelDtmfReceived", "local-1", digit="5")
            await call.until(lambda: call.of("dtmf"), "a digit of the new telephone")
            assert holds(call) == ["started"] and call.closed is None
            await asterisk.state("local-1", "Up")
            await call.until(lambda: holds(call) == ["started", "ended"], "it has answered")
            assert list(asterisk.bridges) == [bridge] and len(server.calls) == 1, "it is the same call"
            await call.socket.close(1000)
            await asterisk.empty()
            assert "DELETE channels/local-1" in asterisk.asked
            assert not [each for each in asterisk.asked if each.endswith("/continue")]

    run(main)


def test_a_transfer_to_a_telephone_that_does_not_answer_ends_the_call() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            await asterisk.transfer("c-1", "local-1")
            await asterisk.hang_up("c-1")
            await asterisk.hang_up("local-1", 19)
            await call.gone()
            assert call.of("stop") == [{"type": "stop", "reason": "hangup"}]
            await asterisk.empty()

    run(main)


def test_clear_silences_within_a_frame() -> None:
    async def main() -> None:
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            for frame in noise(20, 3):  # far ahead, so that the queue is long
                await call.socket.send(frame)
            await call.mark("never")
            await asyncio.sleep(0.1)
            await call.clear()
            await asyncio.sleep(0.02)
            packets = asterisk.ports[asterisk.media_of()].packets
            n = len(packets)
            await until(lambda: len(packets) > n + 8, "more packets")
            assert {each[12:] for each in packets[n + 1 :]} == {b"\xff" * 160}
            assert call.of("mark") == []
            await asterisk.hang_up("c-1")

    run(main)


@pytest.mark.parametrize(
    ("after", "request_of_it"), [("continue", "POST channels/c-1/continue"), ("hangup", "DELETE channels/c-1")]
)
def test_queued_speech_is_played_when_the_bot_leaves_and_the_caller_is_released(after: str, request_of_it: str) -> None:
    frames = noise(10, 4)

    async def main() -> None:
        ended = EndReasons()
        async with sides(ari__after_bot=after) as (asterisk, server, rig):
            await asterisk.call("c-1")
            await asterisk.bridged()
            media = asterisk.media_of()
            packets = asterisk.ports[media].packets
            call = await server.call("c-1")
            for frame in frames:
                await call.socket.send(frame)
            await call.socket.close(1000)
            await asterisk.empty()
            assert b"".join(each[12:] for each in packets if set(each[12:]) != {0xFF}) == ulaw(frames)
            assert request_of_it in asterisk.asked
            await until(lambda: not rig.bridge.n_calls, "the call is over")
        assert ended.counts == {"finished": 1}

    run(main)


def test_packets_from_other_addresses_are_dropped_and_counted() -> None:
    async def main() -> None:
        before = metrics.value("telephony_sip_bridge_bad_input_total", kind="rtp_stranger")
        async with sides() as (asterisk, server, _):
            await asterisk.call("c-1")
            await asterisk.bridged()
            call = await server.call("c-1")
            media = asterisk.media_of()
            target = asterisk.bridge_ports[media]
            await until(lambda: asterisk.ports[media].packets, "RTP flows")
            loop = asyncio.get_running_loop()
            other_sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            loud, own = noise(1, 5), noise(1, 6)
            try:
                for n in range(5):
                    other_sender.sendto(packet(n, ulaw(loud)), target)
                asterisk.ports[media].transport.sendto(packet(0, ulaw(own)), target)
                await call.until(lambda: call.audio, "the caller's own")
                await asyncio.sleep(0.05)
            finally:
                other_sender.close()
            assert bytes(call.audio) == sound(own)
            assert metrics.value("telephony_sip_bridge_bad_input_total", kind="rtp_stranger") == before + 5
            await asterisk.hang_up("c-1")

    run(main)


def test_a_channel_that_returns_by_its_dialplan_is_a_new_call() -> None:
    async def main() -> None:
        async with sides(ari__request_timeout_s=1) as (asterisk, server, rig):
            await asterisk.call("c-1")
            await asterisk.bridged()
            asterisk.mute.add("DELETE bridges")  # the cleanup of the first call takes time
            (await server.call("c-1")).socket.transport.abort()  # the server is lost and the caller goes on
            await until(lambda: "c-1" not in asterisk.channels, "the caller is let go")
            server.calls.clear()
            await asterisk.call("c-1")
            again = await server.call("c-1")
            await asterisk.bridged()
            assert rig.bridge.n_calls == 2
            asterisk.mute.clear()
            await until(lambda: rig.bridge.n_calls == 1, "the first call is over")
            asterisk.bridges = {key: ids for key, ids in asterisk.bridges.items() if ids}
            await asterisk.hang_up("c-1")
            await again.gone()
            await asterisk.empty()
            await until(lambda: not rig.bridge.n_calls, "the calls are over")

    run(main)


@pytest.mark.alone
def test_40_calls_at_once_hear_their_own_speech_and_leave_nothing() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with sides() as (asterisk, server, rig):
            names = [f"c-{n}" for n in range(40)]
            for name in names:
                await asterisk.call(name)
            await asterisk.bridged(40)
            calls: list[ServedCall] = [await server.call(name) for name in names]
            speech = {name: noise(5, seed) for seed, name in enumerate(names)}
            await asyncio.gather(*(call.speak(speech[call.name]) for call in calls))
            for caller, media in asterisk.bridges.values():
                assert await spoken_to(asterisk, media, 800) == ulaw(speech[caller])
            for name in names:
                await asterisk.hang_up(name)
            await asterisk.empty()
            await until(lambda: not rig.bridge.n_calls, "the calls are over")
        assert ended.counts == {"hangup": 40}

    run(main)


def test_readyz_reports_asterisk_and_a_drain_lets_callers_go_on() -> None:
    async def main() -> None:
        async with sides(drain_s=5) as (asterisk, server, rig):
            await asterisk.call("c-1")
            await asterisk.bridged()
            assert await get(rig.http_port, "/readyz") == (200, "ready\n")
            call = await server.call("c-1")

            async def later() -> None:
                await until(lambda: rig.bridge.draining, "draining")
                assert await get(rig.http_port, "/readyz") == (503, "draining\n")
                await asterisk.call("c-2")
                await until(lambda: "c-2" not in asterisk.channels, "the second is let go")
                assert "POST channels/c-2/continue" in asterisk.asked and "c-2" not in server.calls
                assert "c-1" in asterisk.channels
                await call.socket.close(1000)
                await asterisk.empty()

            leaving = asyncio.create_task(later())
        await leaving

    run(main)
