"""A telephone that holds the call by re-INVITE, or transfers it, on a real Asterisk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from ari_bridge import ari_bridge
from asterisk_peer import Asterisk
from compare import compare
from conversation import hear_out, settle
from phones import Phone, calling, waiting
from rtp_end import RtpExchange
from speaking_server import MS_PER_CHAR, Bot, SpeakingServer, speaking_server, spoken
from test_audiosocket import bridge
from test_pause_on_pbx import FRAME, TEXT, WAYS, boundary_ms, stretches

pytestmark = [pytest.mark.peer, pytest.mark.timed]


@contextmanager
def ari_call(pbx: Asterisk, media: RtpExchange, kind: str = "rtp") -> Iterator[tuple[Phone, Bot, SpeakingServer]]:
    with speaking_server() as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with ari_bridge(pbx, server.port, media=kind), calling(media, pbx.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                settle(phone)
                yield phone, bot, server
        pbx.wait_for_no_channel()


def say_with_marks(bot: Bot) -> None:
    """TEXT, with a mark in its middle and one at its end."""
    half = TEXT.index(" but ") + 1
    bot.send(type="text", turn="a", text=TEXT[:half])
    bot.send(type="mark", turn="a", name="middle")
    bot.send(type="text", turn="a", text=TEXT[half:], last=True)
    bot.send(type="mark", turn="a", name="end")


def told(bot: Bot, *kinds: str) -> list[dict[str, Any]]:
    return [event for _, event in bot.events if event["type"] in kinds]


@pytest.mark.parametrize("direction", ["sendonly", "inactive"])
def test_speech_waits_while_the_telephone_is_on_hold(pbx: Asterisk, media: RtpExchange, direction: str) -> None:
    with ari_call(pbx, media) as (phone, bot, _):
        say_with_marks(bot)
        bot.event("started")
        time.sleep(1.0)
        phone.hold(direction)
        bot.event("hold", state="started", within_s=2)
        paused = bot.event("paused", reason="hold")
        time.sleep(0.1)
        n_packets = len(phone.rtp.audio_packets())
        time.sleep(3.0)
        assert len(phone.rtp.audio_packets()) == n_packets, "it plays nothing"
        assert not told(bot, "mark", "done", "resumed")
        phone.unhold()
        bot.event("hold", state="ended", within_s=2)
        resumed = bot.event("resumed")
        done = bot.event("done")
        hear_out(phone)
        heard = phone.rtp.heard()
        phone.hang_up()
        phone.wait_ended()
        bot.event("hangup")
    assert [(mark["name"], mark["state"]) for mark in told(bot, "mark")] == [("middle", "played"), ("end", "played")]
    assert done["chars"] == len(TEXT) and done["underruns"] == 0
    said, (first, last) = spoken(TEXT), stretches(heard.pcm)
    until_ms = (first[1] - first[0]) // 8
    assert abs(paused["heard_ms"] - until_ms) <= 60, (paused, until_ms)
    assert TEXT.startswith(paused["heard_text"]) and len(paused["heard_text"]) * MS_PER_CHAR <= until_ms + 60
    assert resumed["from_ms"] == boundary_ms(paused["heard_ms"]) and resumed["from_ms"] <= until_ms
    compare(heard.pcm[first[0] : first[1]], said[FRAME : until_ms * 8 - 2 * FRAME]).require(correlation=0.999)
    compare(heard.pcm[last[0] : last[1]], said[resumed["from_ms"] * 8 :][FRAME:-FRAME]).require(correlation=0.999)


def test_what_is_said_into_a_hold_is_heard_behind_it(pbx: Asterisk, media: RtpExchange) -> None:
    with ari_call(pbx, media) as (phone, bot, _):
        phone.hold()
        bot.event("hold", state="started", within_s=2)
        say_with_marks(bot)
        time.sleep(3.0)
        assert not told(bot, "started", "mark", "done")
        phone.unhold()
        bot.event("hold", state="ended", within_s=2)
        assert bot.event("started")["first_audio_ms"] < 200
        bot.event("done")
        hear_out(phone)
        heard = phone.rtp.heard()
        phone.hang_up()
        phone.wait_ended()
        bot.event("hangup")
    (begin, end) = stretches(heard.pcm)[-1]
    compare(heard.pcm[begin:end], spoken(TEXT)[FRAME:-FRAME]).require(correlation=0.999)
    assert not told(bot, "warning")


def test_in_a_blind_transfer_speech_waits_until_the_new_telephone_answers(pbx: Asterisk, media: RtpExchange) -> None:
    with waiting(media, pbx.sip_port, ring_ms=2500) as ((other,), port), ari_call(pbx, media) as (phone, bot, _):
        say_with_marks(bot)
        bot.event("started")
        time.sleep(1.0)
        phone.transfer(f"dial-{port}")
        bot.event("hold", state="started", within_s=2)
        paused = bot.event("paused", reason="hold")
        phone.hang_up()
        phone.wait_ended()
        assert not told(bot, "mark", "done", "resumed", "hangup")
        other.wait_answered()
        bot.event("hold", state="ended", within_s=2)
        resumed = bot.event("resumed")
        bot.event("done")
        hear_out(other)
        heard = other.rtp.heard()
        bot.send(type="close")
        other.wait_ended()
    assert resumed["from_ms"] == boundary_ms(paused["heard_ms"])
    assert [(mark["name"], mark["state"]) for mark in told(bot, "mark")] == [("middle", "played"), ("end", "played")]
    # The new telephone is still answering when the first frames come.
    rest = spoken(TEXT)[resumed["from_ms"] * 8 :]
    (begin, end) = stretches(heard.pcm)[-1]
    assert (end - begin) // 8 > len(rest) // 8 - 150
    compare(heard.pcm[end - 8000 : end], rest[-8000 + 2 * FRAME : -FRAME]).require(correlation=0.999)


@pytest.mark.parametrize("way", ["chan_websocket", "audiosocket", "ari websocket_client"])
def test_without_an_event_of_a_hold_the_missing_audio_is_told(pbx: Asterisk, media: RtpExchange, way: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(speaking_server())
        pbx.configure(MEDIA_URI=server.media_uri)
        if way == "audiosocket":
            pbx.configure(AUDIOSOCKET=stack.enter_context(bridge(server.port)).address)
        elif way.startswith("ari"):
            stack.enter_context(ari_bridge(pbx, server.port, media=way.split()[1]))
        (phone,) = stack.enter_context(calling(media, pbx.sip_port, WAYS[way]))
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            for turn in "abc":
                bot.say(TEXT, turn)
            bot.event("started")
            time.sleep(1.0)
            phone.hold()
            held_s = time.monotonic()
            warning = bot.event("warning", code="no_caller_audio")
            assert 4.8 < time.monotonic() - held_s < 6.0
            assert "may be on hold" in warning["message"]
            phone.unhold()
            bot.send(type="clear")
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    pbx.wait_for_no_channel()
    assert len(told(bot, "warning")) == 1 and not told(bot, "hold")
