"""Media legs other than Twilio's, against a peer that follows the documentation: our own protocol, and Asterisk's.

tests/pbx runs a real Asterisk. The cases here are those that it produces too rarely.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from dtmf_reader import heard_keys
from media_peer import MEDIA_START, PLAIN_START, START, leg, waiting_asterisk
from rig import Bot, correlation, decoded, rendering, run, serving, until
from websockets.exceptions import InvalidStatus

from telephony_tts.app.config import load
from telephony_tts.app.settings import transport_settings
from telephony_tts.audio.encoder import CODECS
from telephony_tts.doors.asterisk.door import lead_ms

pytestmark = pytest.mark.timed

SENTENCE = "Your parcel left the depot on Tuesday."


def heard(frames: list[bytes], codec: str) -> np.ndarray[Any, Any]:
    return CODECS[codec].decode(b"".join(frames))


# ----------------------------------------------------------------- our own protocol


@pytest.mark.parametrize("takes", [True, False])
def test_tones_are_a_message_for_a_leg_that_takes_them_and_else_audio(takes: bool) -> None:
    async def main() -> None:
        start = START | ({"dtmf": True} if takes else {})
        async with serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            await bot.send({"type": "dtmf", "digits": "1"})
            assert "no media leg" in (await bot.event("warning", code="dtmf_not_supported"))["message"]
            await peer.tell(start | {"dtmf": "yes"})  # wrong, so it is not a start
            await peer.tell(start)
            await bot.event("call")
            await bot.send({"type": "dtmf", "digits": "12#"})
            if takes:
                await peer.hears('{"type":"dtmf","digits":"12#","on_ms":100,"off_ms":100}', within="the tones")
                assert len([e for e in bot.events if e["type"] == "warning"]) == 1
            else:
                assert (await bot.event("started"))["turn"] == "t1"
                await until(lambda: len(peer.frames) >= 30, "600 ms of tones")
                keys = heard_keys(heard(peer.frames, "ulaw"))
                assert "".join(key.digit for key in keys) == "12#" and not any(key.faults() for key in keys)
                assert not [said for said in peer.said if "dtmf" in said and "error" not in said]

    run(main)


@pytest.mark.parametrize(
    ("codec", "rate_hz", "bot_first"), [("ulaw", 8000, True), ("pcm", 16000, True), ("alaw", 8000, False)]
)
def test_a_call_in_our_own_protocol(codec: str, rate_hz: int, bot_first: bool) -> None:
    async def main() -> None:
        start = START | {"codec": codec, "rate_hz": rate_hz}
        async with serving() as rig, leg(rig, "/media/native") as peer:
            if not bot_first:
                await peer.tell(start)
                await until(lambda: len(rig.server.registry), "the call")
            async with rig.bot(call="c1") as bot:
                if bot_first:
                    await bot.say(SENTENCE, "a")  # before anything is known of the leg
                    await asyncio.sleep(0.05)
                    await peer.tell(start)
                else:
                    await bot.say(SENTENCE, "a")
                call = await bot.event("call")
                assert (call["codec"], call["rate_hz"], call["parameters"]) == (codec, rate_hz, {"from": "+49"})
                n_marks = 0
                while not bot.terminals("a"):
                    for said in peer.said[n_marks:]:
                        await peer.tell(said)  # played
                    n_marks = len(peer.said)
                    await asyncio.sleep(0.02)
                assert {len(frame) for frame in peer.frames} == {rate_hz // 50 * CODECS[codec].bytes_per_sample}
                expected = rendering([SENTENCE], rate_hz)
                assert correlation(heard(peer.frames, codec), expected) > 0.99
                await peer.tell({"type": "dtmf", "digit": "7"}, {"type": "nonsense"})
                assert (await bot.event("dtmf"))["digit"] == "7"
                await peer.hears('"unknown_type"', within="its mistake")
                await peer.tell({"type": "stop"})
                assert (await bot.event("hangup"))["reason"] == "hangup"
                assert await peer.closed() == 1000

    run(main)


def test_no_audio_follows_a_clear_in_our_own_protocol() -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            await peer.tell(START)
            await bot.say(SENTENCE * 3, "a")
            await until(lambda: len(peer.frames) > 10, "speech")
            await bot.send({"type": "clear"})
            await bot.event("cleared")
            await peer.hears('{"type":"clear"}', within="the clear")
            await asyncio.sleep(0.2)
            at = peer.order.index('{"type":"clear"}')
            assert not any(isinstance(each, bytes) for each in peer.order[at:])

    run(main)


@pytest.mark.parametrize("form", ["base64", "binary"])
def test_the_bot_hears_the_caller_at_the_rate_of_its_choice(form: str) -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            wish = {"inbound": form, "inbound_codec": "pcm", "inbound_rate_hz": 16000}
            await bot.send({"type": "config", **wish})
            await peer.tell(START)
            await bot.event("call")
            t = np.arange(8000) / 8000
            tone = np.rint(8000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
            payload = CODECS["ulaw"].encode(tone)
            for i in range(0, 8000, 160):
                await peer.tell(payload[i : i + 160])
            await until(lambda: len(_inbound(bot)) == 32000, "a second of it")
            pcm = np.frombuffer(_inbound(bot), "<i2")
            expected = np.rint(8000 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000))
            assert np.corrcoef(pcm[232:], expected[200:-32])[0, 1] > 0.999

    run(main)


def _inbound(bot: Bot) -> bytes:
    in_json = [base64.b64decode(event["media"]["payload"]) for event in bot.events if event.get("event") == "media"]
    return b"".join([*in_json, *bot.frames])


# --------------------------------------------------------------------------- Asterisk


@pytest.mark.parametrize("start", [MEDIA_START, PLAIN_START], ids=["json", "plain"])
def test_asterisk_gets_answers_in_its_dialect_and_a_steady_stream_of_frames(start: Any) -> None:
    async def main() -> None:
        is_json = start is MEDIA_START
        async with serving() as rig, leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2") as bot:
            await peer.tell(start)
            await until(lambda: len(peer.frames) >= 25, "silence")
            assert set(peer.frames) == {b"\xff" * 160}
            assert peer.order[0] == ('{"command":"ANSWER"}' if is_json else "ANSWER")
            await bot.say(SENTENCE, "a")
            await peer.hears("1.1", within="a mark of the speech")
            marks = [said for said in peer.said if "MARK_MEDIA" in said]
            names = [json.loads(mark)["correlation_id"] if is_json else mark.split()[1] for mark in marks]
            assert names[:2] == ["0.0", "1.1"], "the first one stands before all speech"
            await bot.send({"type": "clear"})
            await peer.hears("FLUSH_MEDIA", "GET_STATUS", within="the clear")
            await bot.event("cleared")
            await bot.send({"type": "close"})
            await peer.hears("HANGUP", within="the end")
            assert await peer.closed() == 1000

    run(main)


def test_speech_waits_in_asterisks_queue_in_messages_of_several_frames() -> None:
    """The frame size, the beginning and end of the speech, and the marks are sent between the frames."""

    async def main() -> None:
        async with (
            serving(asterisk_lead_ms=500) as rig, leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2") as bot
        ):  # fmt: skip
            await peer.tell(MEDIA_START)
            await bot.event("call")
            call = rig.server.registry.find("1.2")
            assert call is not None and call.session.settings.lead_ms == 500
            await bot.say(SENTENCE, "a")
            await peer.hears("STOP_MEDIA_BUFFERING", within="the end of the turn")
            await until(lambda: isinstance(peer.order[-1], bytes), "silence")
            await bot.send({"type": "close", "now": True})
            await peer.closed()
        order = peer.order
        start = order.index('{"command":"START_MEDIA_BUFFERING"}')
        stop = order.index('{"command":"STOP_MEDIA_BUFFERING"}')
        assert "MARK_MEDIA" in str(order[stop + 1]), "the turn's last mark is behind all of it"
        # The first frame goes alone, followed by the mark that tells when it is heard.
        assert "MARK_MEDIA" in str(order[start - 1])
        speech = [each for each in order[start - 2 : stop] if isinstance(each, bytes)]
        assert correlation(decoded(speech), rendering([SENTENCE])) > 0.99
        n_frames = [len(each) / 160 for each in speech]
        assert all(n.is_integer() for n in n_frames) and max(n_frames) <= 25 and sum(n_frames) > 4 * len(n_frames)
        behind = [each for each in order[stop:] if isinstance(each, bytes)]
        assert behind and set(behind) == {b"\xff" * 160}, "silence goes frame by frame"

    run(main)


def test_no_more_speech_waits_in_asterisk_than_is_made_ahead() -> None:
    assert lead_ms(transport_settings(load(None, {}, {}))) == 1000
    assert lead_ms(transport_settings(load(None, {"speech.ahead_ms": 500}, {}))) == 500
    assert lead_ms(transport_settings(load(None, {"asterisk.lead_ms": 60}, {}))) == 60
    # With less than a frame the silence between turns would always be ahead of the turn.
    assert lead_ms(transport_settings(load(None, {"speech.ahead_ms": 0, "speech.lead_ms": 0}, {}))) == 60


def test_a_queue_that_is_not_empty_after_a_flush_is_flushed_again_and_not_for_ever() -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2") as bot:
            await peer.tell(MEDIA_START)
            await bot.say(SENTENCE, "a")
            await until(lambda: any(set(frame) != {0xFF} for frame in peer.frames), "speech")
            await bot.send({"type": "clear"})
            await peer.hears("FLUSH_MEDIA", within="the clear")
            for _ in range(6):
                await peer.tell({"event": "STATUS", "channel_id": "1.2", "queue_length": 200, "media_paused": True})
                await asyncio.sleep(0.05)
            n_flushes = sum("FLUSH_MEDIA" in said for said in peer.said)
            assert n_flushes == 3
            assert any("CONTINUE_MEDIA" in said for said in peer.said), "FLUSH_MEDIA does not undo a pause"

    run(main)


def test_frames_wait_here_while_asterisks_queue_is_full() -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/asterisk") as peer, rig.bot(call="1.2"):
            await peer.tell({"event": "MEDIA_XON"}, MEDIA_START, {"event": "MEDIA_XON"})  # reversed: nothing is lost
            await until(lambda: len(peer.frames) >= 5, "silence")
            await peer.tell({"event": "MEDIA_XOFF"})
            await asyncio.sleep(0.1)
            n_frames = len(peer.frames)
            await asyncio.sleep(0.3)
            assert len(peer.frames) == n_frames
            await peer.tell({"event": "MEDIA_XON"})
            await until(lambda: len(peer.frames) > n_frames, "silence again")

    run(main)


@pytest.mark.parametrize("path", ["/media/asterisk", "/media/native"])
def test_a_leg_without_the_token_is_refused(path: str) -> None:
    async def main() -> None:
        async with serving(tokens=("opensesame",)) as rig:
            for headers in ({}, {"Authorization": "Basic " + base64.b64encode(b"pbx:wrong").decode()},
                            {"Authorization": "Basic \xff"}):  # fmt: skip
                with pytest.raises(InvalidStatus) as refused:
                    async with leg(rig, path, **headers):
                        pass
                assert refused.value.response.status_code == 401
            basic = "Basic " + base64.b64encode(b"pbx:opensesame").decode()
            async with leg(rig, path, Authorization=basic) as peer:
                await peer.tell(MEDIA_START if path == "/media/asterisk" else START)
                await until(lambda: len(rig.server.registry), "the call")

    run(main)


# -------------------------------------------------------------- Asterisk dialled by us


@pytest.mark.parametrize("who_ends", ["bot", "asterisk", "who asked"])
def test_a_waiting_asterisk_is_dialled_and_either_side_can_end_the_call(who_ends: str) -> None:
    async def main() -> None:
        async with (
            waiting_asterisk() as (url, came),
            serving(asterisk_dial=(url,), asterisk_lead_ms=500) as rig,
            leg(rig, f"/media/asterisk?dial={url}723df311") as control,
        ):
            peer = await asyncio.wait_for(came.get(), 5)
            await peer.tell(MEDIA_START)
            async with rig.bot(call="1.2") as bot:
                await bot.say(SENTENCE, "a")
                await until(lambda: any(set(frame) != {0xFF} for frame in peer.frames), "speech")
                call = rig.server.registry.find("1.2")
                assert call is not None and call.session.settings.lead_ms == 500
                if who_ends == "bot":
                    await bot.send({"type": "close", "now": True})
                elif who_ends == "asterisk":
                    await peer.socket.close()
                    await bot.event("hangup")
                else:
                    await control.socket.close()
                    await bot.event("hangup")
                assert await control.closed() == 1000
                await peer.closed()
                assert any("HANGUP" in said for said in peer.said) or who_ends == "asterisk"

    run(main)


@pytest.mark.parametrize("path", ["other/723", "media/../ari/channels", "media/%2e%2e/ari", "mediax/723"])
def test_only_addresses_allowed_by_the_configuration_are_dialled(path: str) -> None:
    async def main() -> None:
        async with waiting_asterisk() as (url, came), serving(asterisk_dial=(url,)) as rig:
            asked = url.removesuffix("media/") + path
            async with leg(rig, f"/media/asterisk?dial={quote(asked, safe='')}") as control:
                assert await control.closed() == 4400
            async with leg(rig, "/media/asterisk?dial=ws://127.0.0.2:1/media/1") as control:
                assert await control.closed() == 4400
            assert came.empty()

    run(main)


def test_an_unreachable_asterisk_is_reported_to_the_bot() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen
            url = f"ws://127.0.0.1:{taken.getsockname()[1]}/media/"
            async with serving(asterisk_dial=(url,)) as rig, leg(rig, f"/media/asterisk?dial={url}1") as control:
                assert await control.closed() == 1011
                assert "Asterisk" in (control.socket.close_reason or "")

    run(main)
