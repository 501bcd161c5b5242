"""Whole calls over real sockets, with a stand-in Asterisk and a stand-in server: what is heard, and when."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from bridge_rig import EndReasons, bridging, get, noise, run
from standin_asterisk import phone
from standin_server import ServedCall, standin_server

pytestmark = pytest.mark.timed

CALL = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


@pytest.mark.parametrize("plain_loop", [False, True], ids=["uvloop", "asyncio"])
def test_a_whole_call(plain_loop: bool) -> None:
    spoken, said = noise(60, 1), noise(50, 2)

    async def main() -> None:
        ended = EndReasons()

        async def script(call: ServedCall) -> None:
            await call.speak(spoken, mark="end")

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port, CALL) as up:
            await up.talk(said)
            await up.hears(60)
            call = await server.call("40325ec2-5efd-4bd3-805f-53576e581d13")
            await call.until(lambda: call.of("mark"), "the mark")
            up.send(0x03, b"5")
            await call.until(lambda: call.of("dtmf"), "the digit")
            up.hang_up()
            await call.gone()
            assert call.start == {
                "type": "start", "call": str(CALL), "codec": "pcm", "rate_hz": 8000, "ptime_ms": 20, "lead_ms": 100,
                "parameters": {"via": "audiosocket", "peer": "127.0.0.1"},
            }  # fmt: skip
            first = next(k for k, frame in enumerate(up.frames) if any(frame))
            assert up.frames[first : first + 60] == spoken, "every frame once, in order, without a hole"
            assert not any(map(any, up.frames[:first])) and not any(map(any, up.frames[first + 60 :]))
            assert b"".join(said).endswith(bytes(call.audio)), "all but what was said before the server was there"
            assert len(call.audio) >= 45 * 320
            assert call.of("mark") == [{"type": "mark", "name": "end"}]
            assert call.of("dtmf") == [{"type": "dtmf", "digit": "5"}]
            assert call.of("stop") == [{"type": "stop", "reason": "hangup"}]
            assert call.closed == (1000, "")
        assert ended.counts == {"hangup": 1}

    run(main, plain_loop=plain_loop)


def test_frames_keep_one_schedule() -> None:
    """A busy machine makes single frames late and none early, so the earliest ones show whether the schedule drifts.
    A long delay moves the schedule by whole frames.
    """

    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.hears_any(120)
            phases_ms = [(s - up.heard[0][0]) * 1000 - 20 * k for k, (s, _, _) in enumerate(up.heard)]
            drift_ms = min(phases_ms[60:]) - min(phases_ms[:60])
            assert abs((drift_ms + 10) % 20 - 10) < 3, phases_ms

    run(main)


def test_a_clear_silences_within_a_frame_and_drops_its_marks() -> None:
    async def main() -> None:
        cleared_s = 0.0

        async def script(call: ServedCall) -> None:
            nonlocal cleared_s
            for frame in noise(30, 3):
                await call.socket.send(frame)
            await call.mark("never")
            await call.until(lambda: call.of("dtmf"), "the digit")
            cleared_s = asyncio.get_running_loop().time()
            await call.clear()
            await call.mark("now")

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.hears(8)
            up.send(0x03, b"1")
            call = await server.call(up.name)
            await call.until(lambda: call.of("mark"), "the mark")
            n_heard = len(up.heard)
            await up.hears_any(n_heard + 40)
            late = [s - cleared_s for s, _, payload in up.heard if any(payload) and s > cleared_s]
            assert len(late) <= 1, f"speech after the clear: {late}"
            assert len(up.speech) < 20
            assert [mark["name"] for mark in call.of("mark")] == ["now"]

    run(main)


def test_marks_are_reported_at_their_places() -> None:
    frames = noise(20, 4)

    async def main() -> None:
        async def script(call: ServedCall) -> None:
            for k, frame in enumerate(frames):
                await call.socket.send(frame)
                await call.mark(f"m{k}")

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.hears(20)
            call = await server.call(up.name)
            await call.until(lambda: len(call.of("mark")) == 20, "all marks")
            heard_s = {payload: s for s, _, payload in up.heard}
            marked_s = [s for s, event in call.events if event["type"] == "mark"]
            assert [event["name"] for event in call.of("mark")] == [f"m{k}" for k in range(20)]
            off_s = [abs(marked_s[k] - heard_s[frame]) for k, frame in enumerate(frames)]
            assert sorted(off_s)[17] < 0.020, off_s

    run(main)


@pytest.mark.parametrize(
    ("kind", "rate_hz", "server_hz"), [(0x12, 16_000, 16_000), (0x13, 24_000, 24_000), (0x16, 48_000, 48_000)]
)
def test_wide_band_calls_are_not_resampled(kind: int, rate_hz: int, server_hz: int) -> None:
    spoken, said = noise(20, 5, rate_hz // 50), noise(20, 6, rate_hz // 50)

    async def main() -> None:
        async def script(call: ServedCall) -> None:
            await call.speak(spoken)

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.talk(said, kind)
            await up.hears(20)
            call = await server.call(up.name)
            assert call.start["rate_hz"] == server_hz
            assert up.speech == spoken
            assert {k for _, k, payload in up.heard if any(payload)} == {kind}
            assert b"".join(said).endswith(bytes(call.audio)) and call.audio

    run(main)


def test_a_caller_with_30_ms_frames_is_heard_and_gets_20_ms_frames() -> None:
    said, spoken = noise(20, 7, 240), noise(20, 8)

    async def main() -> None:
        async def script(call: ServedCall) -> None:
            await call.speak(spoken)

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.talk(said, every_s=0.030)
            await up.hears(20)
            call = await server.call(up.name)
            await call.until(lambda: b"".join(said).endswith(bytes(call.audio)) and len(call.audio) > 15 * 480, "all")
            assert up.speech == spoken

    run(main)


def test_queued_speech_is_played_when_the_bot_leaves_and_then_the_phone_is_hung_up() -> None:
    spoken = noise(25, 9)

    async def main() -> None:
        ended = EndReasons()

        async def script(call: ServedCall) -> None:
            for frame in spoken:
                await call.socket.send(frame)
            await call.socket.close(1000)

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            assert await up.is_over() == "hung up by the peer"
            assert up.speech == spoken
            assert not any(map(any, up.frames[-5:])), "100 ms of silence before the end, or Asterisk drops speech"
        assert ended.counts == {"finished": 1}

    run(main)


def test_a_silent_caller_stays_connected_and_hears_the_bot() -> None:
    spoken = noise(10, 10)

    async def main() -> None:
        async def script(call: ServedCall) -> None:
            await asyncio.sleep(2.3)  # longer than Asterisk keeps a call without any frame
            await call.speak(spoken)

        async with standin_server(script) as server, bridging(server.url) as rig, phone(rig.port) as up:
            await up.hears(10)
            assert up.speech == spoken

    run(main)


def test_the_token_goes_with_the_request() -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url, server__token="s3cret") as rig:
            async with phone(rig.port) as up:
                await server.call(up.name)
            assert server.headers[0]["authorization"] == "Bearer s3cret"

    run(main)


def test_health_and_metrics_tell_of_the_calls() -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            await server.call(up.name)
            await up.hears_any(10)
            assert await get(rig.http_port, "/healthz") == (200, "ok\n")
            assert await get(rig.http_port, "/readyz") == (200, "ready\n")
            status, body = await get(rig.http_port, "/metrics")
            assert status == 200 and "telephony_sip_bridge_calls_live 1.0" in body
            assert (await get(rig.http_port, "/nothing"))[0] == 404

    run(main)
