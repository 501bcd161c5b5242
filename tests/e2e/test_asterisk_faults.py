"""Faults on Asterisk's media WebSocket: only that call is affected, the log names the fault, and the neighbouring call
gets every frame on time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from log_lines import lines
from media_peer import MEDIA_START, Peer, leg, waiting_asterisk
from neighbour import neighbour
from raw_peer import frame, raw_peer
from rig import Bot, Rig, correlation, decoded, rendering, run, serving, until

from telephony_tts.doors.asterisk import dial as asterisk_dial

pytestmark = pytest.mark.timed

SENTENCE = "Your parcel left the depot on Tuesday."


@asynccontextmanager
async def calling(rig: Rig, **start: Any) -> AsyncIterator[tuple[Peer, Bot]]:
    """A call from Asterisk whose bot has joined."""
    async with leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2") as bot:
        await peer.tell(MEDIA_START | start)
        await bot.event("call")
        yield peer, bot


async def speaks(peer: Peer, bot: Bot, turn: str) -> None:
    """Speak a sentence. All of it must arrive, and its marks are answered."""
    n_frames, n_said = len(peer.frames), len(peer.said)
    await bot.say(SENTENCE, turn)
    while not bot.terminals(turn):
        for said in peer.said[n_said:]:
            message = json.loads(said)
            if message["command"] == "MARK_MEDIA":
                name = message["correlation_id"]
                await peer.tell({"event": "MEDIA_MARK_PROCESSED", "correlation_id": name})
        n_said = len(peer.said)
        await asyncio.sleep(0.02)
    assert bot.terminals(turn) == ["done"]
    frames = peer.frames[n_frames:]
    begun = next(k for k, frame in enumerate(frames) if set(frame) != {0xFF})
    pcm, wanted = decoded(frames[begun:]), rendering([SENTENCE])
    # A silent first frame looks like the silence between turns.
    assert max(correlation(pcm, wanted[k * 160 :]) for k in range(3)) > 0.99


def test_bad_order_and_garbage_are_refused_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2") as bot:
            await peer.tell(b"\x01" * 160, "", MEDIA_START | {"format": "opus"}, MEDIA_START)
            await bot.event("call")
            await peer.tell(
                MEDIA_START | {"channel_id": "9.9"}, "garbage", "{", "\x00" * 1000, b"", {"event": ["MEDIA_XOFF"]},
                {"event": "MEDIA_BUFFERING_COMPLETED", "correlation_id": "never asked for"},
                {"event": "MEDIA_MARK_PROCESSED", "correlation_id": "never sent"}, {"event": "MEDIA_XON"},
            )  # fmt: skip
            await speaks(peer, bot, "a")
            assert rig.server.registry.find("9.9") is None
            await bot.send({"type": "close"})

    run(main)
    refused = lines(caplog, "media_message_refused")
    assert [line["code"] for line in refused] == [
        "bad_order", "unsupported_codec", "bad_order", "unknown_type", "bad_json", "unknown_type", "unknown_type",
    ]  # fmt: skip
    assert "second MEDIA_START" in refused[2]["why"] and "garbage" in refused[3]["why"]
    assert {line["call"] for line in refused[3:]} == {"1.2"}


@pytest.mark.parametrize("wish", [{"inbound_codec": "pcm", "inbound_rate_hz": 8000}, {"barge_in": "on"}], ids=str)
def test_an_incomplete_sample_is_dropped(wish: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: a frame of an odd length, where samples have two bytes, ended the call as an internal error."""

    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig, format="slin16") as (peer, bot):
            await bot.send({"type": "config", "inbound": "base64", **wish})
            await peer.tell(b"\x01" * 641, b"\x01", b"", b"\x00" * 640)
            await until(lambda: any(event.get("event") == "media" for event in bot.events), "the whole one")
            assert not bot.terminals("a") and bot.closed is None
            await bot.send({"type": "close"})

    run(main)
    assert lines(caplog, "call_crashed") == []
    refused = lines(caplog, "media_message_refused")
    assert [line["why"] for line in refused] == [
        "641 bytes are not a whole number of samples of 2 bytes",
        "1 bytes are not a whole number of samples of 2 bytes",
    ]  # fmt: skip


def test_a_megabyte_of_text_ends_only_its_own_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig) as (peer, bot):
            await peer.tell("X" * 1_000_000)
            assert await peer.closed() == 1009
            await bot.event("hangup")

    run(main)
    (line,) = lines(caplog, "media_broken")
    assert (line["call"], line["code"]) == ("1.2", 1009) and "exceeds limit of 65536 bytes" in line["why"]


def test_a_flood_of_digits_and_queue_events() -> None:
    digit, full, room = {"event": "DTMF_END", "digit": "5"}, {"event": "MEDIA_XOFF"}, {"event": "MEDIA_XON"}

    async def main() -> None:
        async with (
            serving() as rig, neighbour(rig), raw_peer(rig.port, "/media/asterisk") as peer, rig.bot(call="1.2") as bot,
        ):  # fmt: skip
            await peer.send(MEDIA_START)
            await bot.event("call")
            await peer.send_bytes((frame(full) + frame(room)) * 10_000 + frame(digit) * 1_000 + frame("{") * 10_000)
            await until(lambda: sum(event["type"] == "dtmf" for event in bot.events) == 1_000, "all digits")
            n_bytes = len(peer.data)
            await bot.say(SENTENCE, "a")
            await bot.event("started")
            while len(peer.data) < n_bytes + 8_000:
                assert await peer.read()
            await bot.send({"type": "close", "now": True})

    run(main)


def test_a_late_xoff_after_its_xon_does_not_stop_the_audio_for_good(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig) as (peer, bot):
            await until(lambda: len(peer.frames) > 3, "silence")
            n_said = len(peer.said)
            await peer.tell({"event": "MEDIA_XON"}, {"event": "MEDIA_XOFF"})
            await until(lambda: any("GET_STATUS" in said for said in peer.said[n_said:]), "the question")
            n_frames = len(peer.frames)
            await peer.tell({"event": "STATUS", "queue_length": 0, "queue_full": False, "media_paused": False})
            await until(lambda: len(peer.frames) > n_frames, "silence again, without waiting for five answers", 2)
            await speaks(peer, bot, "a")
            await bot.send({"type": "close"})

    run(main)
    (line,) = lines(caplog, "xoff_without_xon")
    assert line["call"] == "1.2"


def test_cleared_is_sent_at_once_if_asterisk_never_confirms() -> None:
    """`cleared` reports what was heard by the marks received so far, and does not wait for more."""

    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig) as (peer, bot):
            await bot.say(SENTENCE, "a")
            # The mark before all speech, and the one behind the first frame.
            await until(lambda: sum("MARK_MEDIA" in said for said in peer.said) >= 2, "two marks")
            for mark in [json.loads(said) for said in peer.said if "MARK_MEDIA" in said][:2]:
                await peer.tell({"event": "MEDIA_MARK_PROCESSED", "correlation_id": mark["correlation_id"]})
            await asyncio.sleep(0.8)
            loop = asyncio.get_running_loop()
            asked_s = loop.time()
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="a")
            assert loop.time() - asked_s < 0.5
            assert cleared["reason"] == "clear" and cleared["basis"] == "marks"
            assert 600 <= cleared["heard_ms"] <= 1100 and SENTENCE.startswith(cleared["heard_text"])
            await peer.hears("FLUSH_MEDIA", "GET_STATUS", within="the clear")
            await speaks(peer, bot, "b")  # and no STATUS has come to this end
            assert sum("FLUSH_MEDIA" in said for said in peer.said) == 1
            await bot.send({"type": "close"})

    run(main)


def test_a_queue_of_a_thousand_million_frames_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig) as (peer, bot):
            await peer.tell({"event": "STATUS", "queue_length": 999_999_999, "media_paused": False})
            await speaks(peer, bot, "a")
            await bot.send({"type": "close"})

    run(main)
    (line,) = lines(caplog, "media_message_refused")
    assert line["call"] == "1.2" and "999999999" in line["why"]


def test_a_second_leg_for_a_live_call_is_refused_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig) as (peer, bot):
            async with leg(rig, "/media/asterisk") as second:
                await second.tell(MEDIA_START | {"connection_id": "another"})
                assert await second.closed() == 4409
            await speaks(peer, bot, "a")
            await bot.send({"type": "close"})

    run(main)
    assert lines(caplog, "refused") == [
        {
            "call": "1.2", "reason": "call_taken", "leg": "media", "why": "the call already has a media leg",
            "stream": "1.2",
        }
    ]  # fmt: skip


def test_an_asterisk_that_reads_nothing_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    """In the format with the most bytes a second, so that the sockets' buffers fill soon."""

    async def main() -> None:
        path = "/media/asterisk"
        async with serving(slow_reader_s=0.3) as rig, neighbour(rig), raw_peer(rig.port, path, 4096) as peer:
            await peer.send(MEDIA_START | {"format": "slin48"})
            await until(lambda: len(rig.server.registry) == 2, "its call")
            await until(lambda: len(rig.server.registry) == 1, "the end of a call whose peer reads nothing", 20)

    run(main)
    (line,) = lines(caplog, "slow_reader")
    assert line["for_s"] == 0.3


# -------------------------------------------------------------- Asterisk dialled by us


def test_a_dialled_asterisk_that_never_answers_is_reported_to_the_bot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asterisk_dial, "_OPEN_TIMEOUT_S", 0.3)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"ws://127.0.0.1:{mute.getsockname()[1]}/media/"
            path = f"/media/asterisk?dial={url}1"
            async with serving(asterisk_dial=(url,)) as rig, neighbour(rig), leg(rig, path) as control:
                assert await control.closed() == 1011
                assert "timed out" in (control.socket.close_reason or "")

    run(main)
    (line,) = lines(caplog, "asterisk_unreachable")
    assert "timed out" in line["why"]


def test_a_dialled_asterisk_without_a_start_event_is_not_reported_as_a_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            waiting_asterisk() as (url, came),
            serving(asterisk_dial=(url,), media_start_s=0.3) as rig,
            neighbour(rig),
            leg(rig, f"/media/asterisk?dial={url}1") as control,
        ):
            await came.get()
            assert await control.closed() == 1011
            assert control.socket.close_reason == "Asterisk: no start event came"

    run(main)
    assert lines(caplog, "media_never_started") == [{"dialect": "asterisk"}]


def test_a_dialled_asterisk_for_an_existing_call_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with (
            waiting_asterisk() as (url, came),
            serving(asterisk_dial=(url,)) as rig,
            neighbour(rig),
            calling(rig) as (peer, bot),
        ):
            async with leg(rig, f"/media/asterisk?dial={url}1") as control:
                await (await came.get()).tell(MEDIA_START)
                assert await control.closed() == 4409
            await speaks(peer, bot, "a")
            await bot.send({"type": "close"})

    run(main)
    (line,) = lines(caplog, "refused")
    assert (line["call"], line["reason"]) == ("1.2", "call_taken")


def test_a_dialled_asterisk_that_reads_nothing_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    """Like one that dialled us. Pinned: it was dropped only after two minutes, when a megabyte was waiting."""

    async def main() -> None:
        async with (
            waiting_asterisk() as (url, came),
            serving(asterisk_dial=(url,), slow_reader_s=0.3) as rig,
            neighbour(rig),
            leg(rig, f"/media/asterisk?dial={url}1") as control,
        ):
            peer = await came.get()
            await peer.tell(MEDIA_START | {"format": "slin48"})
            await until(lambda: len(rig.server.registry) == 2, "its call")
            peer.socket.transport.pause_reading()
            await asyncio.wait_for(control.socket.wait_closed(), 25)
            assert len(rig.server.registry) == 1
            peer.socket.transport.abort()

    run(main, within_s=60)
    (line,) = lines(caplog, "slow_reader")
    assert line["for_s"] == 0.3
