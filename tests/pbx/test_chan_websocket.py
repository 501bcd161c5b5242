"""Calls over Asterisk's chan_websocket: the audio arrives unchanged in both directions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from asterisk_peer import Asterisk, asterisk
from compare import compare
from conversation import CALLER, TEXT, assert_each_hears_its_own, hear_out, is_loud, settle, tell
from peer_process import wait_until
from phones import calling
from rtp_end import RtpExchange
from shipped import shipped_asterisk
from speaking_server import SpeakingServer, speaking_process, speaking_server, spoken

from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.doors.asterisk import leg as asterisk_leg
from telephony_tts.runtime.clock import NS_PER_S

pytestmark = [pytest.mark.peer, pytest.mark.timed]


@pytest.fixture
def server(pbx: Asterisk) -> Iterator[SpeakingServer]:
    with speaking_server() as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        yield server


@pytest.mark.parametrize(
    ("extension", "codec"),
    [("wstext-ulaw", "ulaw"), ("wsjson-ulaw", "ulaw"), ("wsjson-alaw", "alaw"), ("wsjson-slin", "ulaw"),
     ("wsjson-slin16", "ulaw"), ("wsearly-ulaw", "ulaw")],
)  # fmt: skip
def test_audio_is_unchanged_in_both_directions(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, extension: str, codec: str
) -> None:
    with calling(media, pbx.sip_port, extension, codec=codec) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call(), inbound="binary") as bot:
            bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=8000)
            call = bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            done = bot.event("done")
            said = spoken(CALLER)
            tell(phone, bot, said)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    # slin16 goes through Asterisk's resampler, which is not as good as ours.
    compare(heard.pcm, spoken(TEXT)).require(snr_db=30 if "16" not in extension else 20)
    assert done["underruns"] == 0 and (heard.holes, heard.n_lost, heard.n_duplicates) == ([], 0, 0)
    compare(np.frombuffer(bytes(bot.caller), "<i2").astype(np.int16), said).require(
        snr_db=30 if "16" not in extension else 20
    )
    assert call["call"] == call["parameters"]["channel_id"]


def test_with_the_shipped_files_the_call_has_a_name_and_the_bot_gets_the_callers_number(media: RtpExchange) -> None:
    with speaking_server() as server, shipped_asterisk(server.media_uri) as pbx:
        with calling(media, pbx.sip_port, "700") as (phone,):
            phone.wait_answered()
            name = server.only_call()
            with server.bot(name) as bot:
                call = bot.event("call")
                settle(phone)
                bot.say(TEXT, "a")
                bot.event("done")
                bot.send(type="close")
                phone.wait_ended()
        pbx.wait_for_no_channel()
        assert pbx.complaints() == []
    assert call["call"] == name != call["parameters"]["channel_id"]
    assert call["parameters"]["TTS_CALL"] == name and call["parameters"]["TTS_FROM"]
    compare(phone.rtp.heard().pcm, spoken(TEXT)).require()


def test_a_barge_in_silences_the_phone_within_60_ms(pbx: Asterisk, media: RtpExchange, server: SpeakingServer) -> None:
    with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            for n in range(5):
                bot.say(TEXT, f"t{n}")
                bot.event("started")
                begun_s = time.monotonic()
                time.sleep(0.7 + n / 100)
                cleared_s = bot.send(type="clear")
                cleared = bot.event("cleared")
                time.sleep(0.4)
                loud = [packet.arrival_ns / 1e9 for packet in phone.rtp.audio_packets() if is_loud(packet)]
                loud = [at_s for at_s in loud if at_s > begun_s - 0.2]
                assert max(loud) - cleared_s < 0.060, f"speech {1000 * (max(loud) - cleared_s):.0f} ms after clear"
                # The server's report of what was heard matches what the phone had received when it was interrupted.
                n_before = sum(at_s <= cleared_s for at_s in loud)
                assert abs(cleared["heard_ms"] - 20 * n_before) <= 60
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")


def test_a_server_stall_of_most_of_a_second_is_inaudible(pbx: Asterisk, media: RtpExchange) -> None:
    """The speech of that time is already in Asterisk's queue."""
    with speaking_process() as (media_uri, bots, pid):
        pbx.configure(MEDIA_URI=media_uri)
        with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
            phone.wait_answered()
            bot = bots.next()
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("started")
            time.sleep(0.3)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(pid, signal.SIGCONT)
            done = bot.event("done")
            hear_out(phone)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    heard = compare(phone.rtp.heard().pcm, spoken(TEXT))
    assert heard.breaks == [] and done["underruns"] == 0
    heard.require()


def test_a_clear_empties_a_full_queue_and_speech_continues(pbx: Asterisk, media: RtpExchange) -> None:
    """No configuration allows this: sending so far ahead that Asterisk's queue is too short."""
    with speaking_server(ahead_ms=30_000, asterisk_lead_ms=25_000) as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
            phone.wait_answered()
            call = server.only_call()
            with server.bot(call) as bot:
                bot.event("call")
                settle(phone)
                bot.say(" ".join([TEXT] * 14), "long")  # 27 s; there is room for 20
                bot.event("started")
                wait_until(lambda: server.asterisk_leg(call)._is_full, "XOFF", 5)
                time.sleep(0.5)
                bot.send(type="clear")
                cleared = bot.event("cleared")
                bot.say(TEXT, "next")
                bot.event("done")
                hear_out(phone)
                phone.hang_up()
                phone.wait_ended()
                bot.event("hangup")
    assert 400 <= cleared["heard_ms"] <= 1500
    compare(phone.rtp.heard().pcm[cleared["heard_ms"] * 8 :], spoken(TEXT)).require()


def test_a_paused_queue_continues_also_after_a_clear(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAUSE_MEDIA stops the phone's RTP, and FLUSH_MEDIA does not end the pause."""
    monkeypatch.setattr(asterisk_leg, "_ASK_EVERY_NS", NS_PER_S)
    with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
        phone.wait_answered()
        call = server.only_call()
        with server.bot(call) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("started")
            time.sleep(0.3)
            server.command(call, "PAUSE_MEDIA")
            bot.event("done")
            hear_out(phone)
            first = phone.rtp.audio_packets()
            bot.say(TEXT, "b")
            bot.event("started")
            server.command(call, "PAUSE_MEDIA")
            bot.send(type="clear")
            bot.event("cleared")
            bot.say(CALLER, "c")
            bot.event("done")
            hear_out(phone)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    assert max(b.arrival_ns - a.arrival_ns for a, b in pairwise(first)) > 200_000_000, "it truly was paused"
    whole = decode_ulaw(b"".join(packet.payload for packet in first))
    compare(whole, spoken(TEXT)).require()  # nothing is lost by it
    compare(phone.rtp.heard().pcm, spoken(CALLER)).require()


def test_marks_are_within_a_frame_of_their_place(pbx: Asterisk, media: RtpExchange, server: SpeakingServer) -> None:
    with calling(media, pbx.sip_port, "wstext-ulaw") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.send(type="text", turn="a", text="one two three four five. ")
            bot.send(type="mark", name="middle", turn="a")
            bot.send(type="text", turn="a", text="six seven eight nine ten.", last=True)
            bot.event("done")
            hear_out(phone)
            phone.hang_up()
            phone.wait_ended()
    at_s = {event.get("name"): at for at, event in bot.events if event["type"] == "mark"}
    place_ms = next(event["end_ms"] for _, event in bot.events if event["type"] == "sentence")
    packets = phone.rtp.audio_packets()
    first = next(filter(is_loud, packets))
    # The frame that contains the mark's place was sent this many frames after the first.
    place_ns = next(p.arrival_ns for p in packets if p.timestamp - first.timestamp >= place_ms * 8 // 160 * 160)
    assert -20 <= 1000 * at_s["middle"] - place_ns / 1e6 <= 45


def test_digits_arrive_and_the_bot_can_hang_up(pbx: Asterisk, media: RtpExchange, server: SpeakingServer) -> None:
    with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            phone.rtp.dial("15*#")
            assert [bot.event("dtmf")["digit"] for _ in range(4)] == ["1", "5", "*", "#"]
            bot.say(TEXT, "a")
            bot.send(type="close")
            phone.wait_ended()
    # Hung up after the last word, not before.
    compare(phone.rtp.heard().pcm, spoken(TEXT)).require()
    pbx.wait_for_no_channel()


def test_a_phone_gets_unbroken_silence_while_the_bot_says_nothing(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer
) -> None:
    with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            time.sleep(3)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
    assert heard.holes == [] and len(heard.pcm) > 2.8 * 8000 and set(heard.codes) == {0xFF}


@pytest.mark.alone
def test_20_calls_at_once_each_get_their_own_audio(pbx: Asterisk, media: RtpExchange) -> None:
    with speaking_process() as (media_uri, bots, _):
        pbx.configure(MEDIA_URI=media_uri)
        with calling(media, pbx.sip_port, *["wsjson-ulaw"] * 20) as phones:
            for phone in phones:
                phone.wait_answered(20)
            assert_each_hears_its_own(phones, [bots.next() for _ in phones])


def test_a_killed_asterisk_ends_its_calls_and_a_new_one_reconnects(media: RtpExchange) -> None:
    with speaking_server() as server:
        with asterisk(MEDIA_URI=server.media_uri) as first, calling(media, first.sip_port, "wsjson-ulaw") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                bot.say(TEXT * 3, "a")
                bot.event("started")
                first.process.signal(signal.SIGKILL)
                assert bot.event("cleared")["reason"] == "hangup"
                bot.event("hangup")
        with asterisk(MEDIA_URI=server.media_uri) as second, calling(media, second.sip_port, "wsjson-ulaw") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                settle(phone)
                bot.say(TEXT, "a")
                bot.event("done")
                hear_out(phone)
                compare(phone.rtp.heard().pcm, spoken(TEXT)).require()
                phone.hang_up()
                phone.wait_ended()
                bot.event("hangup")


@pytest.mark.parametrize("n_calls", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_calls_in_sequence_leave_nothing_behind(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, n_calls: int
) -> None:
    n_descriptors = []
    for n in range(n_calls):
        with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.say("hello there.", "a")
                bot.event("started")
                if n % 3 == 0:
                    bot.send(type="close", now=True)
                    phone.wait_ended()
                else:
                    phone.hang_up()
                    phone.wait_ended()
                    bot.event("hangup")
        wait_until(lambda: not server.n_calls, "the call is gone", 5)
        n_descriptors.append(len(os.listdir("/proc/self/fd")))
    assert max(n_descriptors[10:]) <= max(n_descriptors[:10]) + 1
    pbx.wait_for_no_channel()
