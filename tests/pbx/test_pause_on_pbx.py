"""Pause and resume on a real Asterisk: the telephone hears the gap, and then the speech from a word's boundary on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import soxr
from ari_bridge import ari_bridge
from asterisk_peer import Asterisk
from compare import compare
from conversation import hear_out, loud_at_s, settle
from phones import calling
from rtp_end import RtpExchange
from speaking_server import MS_PER_CHAR, SpeakingServer, speaking_server, spoken
from test_audiosocket import bridge

from telephony_tts.audio.g711 import Pcm, encode_ulaw
from telephony_tts.engines.hibari.model import HibariModel

pytestmark = [pytest.mark.peer, pytest.mark.timed]

TEXT = (
    "your parcel left the depot on tuesday and will be with you soon but the driver will call you in the morning of"
    " that day so that someone is there to open the door."
)
WAYS = {
    "chan_websocket": "wsjson-ulaw", "audiosocket": "audiosocket", "ari websocket_client": "ari", "ari rtp": "ari",
}  # fmt: skip
FRAME = 160
N_PAUSES = 3


@pytest.fixture(params=WAYS)
def way(pbx: Asterisk, request: pytest.FixtureRequest) -> Iterator[tuple[SpeakingServer, str]]:
    with ExitStack() as stack:
        server = stack.enter_context(speaking_server())
        pbx.configure(MEDIA_URI=server.media_uri)
        if request.param == "audiosocket":
            pbx.configure(AUDIOSOCKET=stack.enter_context(bridge(server.port)).address)
        elif request.param.startswith("ari"):
            stack.enter_context(ari_bridge(pbx, server.port, media=request.param.split()[1]))
        yield server, WAYS[request.param]
        pbx.wait_for_no_channel()


def stretches(heard: Pcm) -> list[tuple[int, int]]:
    """(first sample, end) of each stretch of speech, between silences of 300 ms and more."""
    loud = [at for at in range(0, len(heard), FRAME) if np.abs(heard[at : at + FRAME].astype(int)).max() > 100]
    begins = [at for n, at in enumerate(loud) if n == 0 or at - loud[n - 1] > 15 * FRAME]
    ends = [at + FRAME for n, at in enumerate(loud) if n == len(loud) - 1 or loud[n + 1] - at > 15 * FRAME]
    return list(zip(begins, ends, strict=True))


def boundary_ms(heard_ms: int) -> int:
    """The last end of a word before this place."""
    ends = [0, *(n for n, char in enumerate(TEXT + " ") if char == " ")]
    return max(end * MS_PER_CHAR for end in ends if end * MS_PER_CHAR <= heard_ms)


def test_speech_goes_on_at_a_words_boundary_and_nothing_is_lost(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    server, extension = way
    pauses: list[tuple[dict[str, Any], dict[str, Any]]] = []
    moments: list[tuple[float, float]] = []
    """When each pause and each resume was sent, in s."""
    with calling(media, pbx.sip_port, extension) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.send(type="text", turn="a", text=TEXT)
            bot.send(type="mark", turn="a", name="end")
            bot.send(type="end", turn="a")
            bot.event("started")
            for n in range(N_PAUSES):
                time.sleep(1.0 + 0.07 * n)
                paused_s = bot.send(type="pause")
                paused = bot.event("paused")
                time.sleep(1.0)
                resumed_s = bot.send(type="resume")
                pauses.append((paused, bot.event("resumed")))
                moments.append((paused_s, resumed_s))
            assert bot.event("mark")["state"] == "played"
            done = bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard()
            loud = loud_at_s(phone)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    for paused_s, resumed_s in moments:
        assert max(at for at in loud if at < resumed_s) - paused_s < 0.060
        assert min(at for at in loud if at > resumed_s) - resumed_s < 0.100
    said = spoken(TEXT)
    found = stretches(heard.pcm)
    assert len(found) == N_PAUSES + 1, f"{len(found)} stretches of speech: {found}"
    assert done["underruns"] == 0
    assert sum(n for _, n in heard.holes) < 0.3 * 8000, "the telephone gets RTP in the pauses too"
    place_ms = 0
    is_hole = np.zeros(len(heard.pcm), bool)
    for at, n_missing in heard.holes:
        is_hole[at : at + n_missing] = True  # the way of the packets stood still; no speech was lost or repeated
    for n, (begin, end) in enumerate(found):
        there = heard.pcm[begin:end][~is_hole[begin:end]]
        n_samples = len(there)
        until_ms = place_ms + n_samples // 8
        if n < N_PAUSES:
            paused, resumed = pauses[n]
            assert found[n + 1][0] - end > 0.9 * 8000
            assert abs(paused["heard_ms"] - until_ms) <= 60, (paused, until_ms)
            assert resumed["from_ms"] == boundary_ms(paused["heard_ms"]), (resumed, paused)
            assert resumed["from_ms"] <= until_ms, f"heard up to {until_ms} ms, and again from {resumed}"
        else:
            assert abs(until_ms - len(said) // 8) <= 20
        # The first and the last frame may fade.
        part = said[place_ms * 8 :][FRAME : n_samples - 2 * FRAME]
        compare(there, part).require(correlation=0.999)
        place_ms = resumed["from_ms"]
    assert done["audio_ms"] >= len(said) // 8


def test_a_clear_in_a_pause_drops_the_rest_and_the_next_turn_is_heard_whole(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    server, extension = way
    answer = "of course, i will ask them."
    with calling(media, pbx.sip_port, extension) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("started")
            time.sleep(1.2)
            bot.send(type="pause")
            paused = bot.event("paused")
            time.sleep(0.6)
            bot.send(type="clear")
            cleared = bot.event("cleared")
            bot.say(answer, "b")
            bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard()
            bot.say(TEXT, "c")
            bot.event("started")
            time.sleep(0.5)
            bot.send(type="pause")
            bot.event("paused")
            phone.hang_up()  # while it is paused
            phone.wait_ended()
            assert bot.event("cleared")["reason"] == "hangup"
            bot.event("hangup")
    assert (cleared["heard_text"], cleared["heard_ms"]) == (paused["heard_text"], paused["heard_ms"])
    (_, first_end), (begin, end) = stretches(heard.pcm)
    assert begin - first_end > 0.5 * 8000
    compare(heard.pcm[begin:end], spoken(answer)[FRAME:-FRAME]).require()


def quick_word() -> Pcm:
    """A caller's word at 8 kHz, from its first sound on, and the silence behind it."""
    speech = HibariModel().speak("Yes, please.")
    wave = soxr.resample(speech.pcm.astype(np.float32) * 1.8, speech.sample_rate_hz, 8000, "HQ")
    wave = wave[int(np.argmax(np.abs(wave) > 0.02 * np.abs(wave).max())) :]
    return np.rint(np.concatenate([wave, np.zeros(4000)])).clip(-32768, 32767).astype(np.int16)


@pytest.mark.parametrize("way", ["chan_websocket", "audiosocket"], indirect=True)
def test_a_callers_quick_word_only_pauses_the_speech(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    server, extension = way
    word = quick_word()
    how = {"barge_in": "on", "barge_in_action": "pause", "min_speech_ms": 160, "hold_off_ms": 0}
    with calling(media, pbx.sip_port, extension) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call(), **how, resume_after_ms=700) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("started")
            time.sleep(1.2)
            phone.rtp.say(encode_ulaw(word))
            paused = bot.event("paused")
            resumed = bot.event("resumed")
            done = bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    assert paused["reason"] == "barge_in" and not [each for _, each in bot.events if each["type"] == "cleared"]
    said = spoken(TEXT)
    (begin, end), (again, last) = stretches(heard.pcm)
    assert again - end > 0.5 * 8000 and done["underruns"] == 0
    assert abs(paused["heard_ms"] - (end - begin) // 8) <= 60
    assert resumed["from_ms"] == boundary_ms(paused["heard_ms"]) and resumed["from_ms"] <= (end - begin) // 8
    compare(heard.pcm[again:last], said[resumed["from_ms"] * 8 :][FRAME:-FRAME]).require()


@pytest.mark.parametrize("way", ["chan_websocket", "audiosocket"], indirect=True)
def test_behind_a_jitter_buffer_the_speech_goes_on_too(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    """The telephone sends nothing behind the caller's word. Then chan_websocket sends messages without audio."""
    server, extension = way
    word = quick_word()
    how = {"barge_in": "on", "barge_in_action": "pause", "min_speech_ms": 160, "hold_off_ms": 0}
    with calling(media, pbx.sip_port, f"jitter-{extension}", silent=True) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call(), **how, resume_after_ms=700) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("started")
            time.sleep(1.0)
            phone.rtp.say(encode_ulaw(word[:-3200]))
            phone.wait_said()
            bot.event("paused")
            bot.event("caller", state="silent", within_s=2)
            bot.event("resumed", within_s=2)
            bot.event("done")
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
