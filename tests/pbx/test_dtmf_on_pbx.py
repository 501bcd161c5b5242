"""The bot presses keys: the telephone on a real Asterisk gets them, in order with the speech."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest
from ari_bridge import ari_bridge
from asterisk_peer import Asterisk
from compare import compare
from conversation import hear_out, settle
from keys import keys_in
from phones import calling
from rtp_end import RtpExchange
from speaking_server import MS_PER_CHAR, SpeakingServer, speaking_server, spoken
from test_audiosocket import bridge

from telephony_tts.session.settings import DtmfSettings

pytestmark = [pytest.mark.peer, pytest.mark.timed]

BEFORE, AFTER = "please hold the line for a moment.", "that was the number of my order."
IN_THE_AUDIO = {
    "chan_websocket": "wsjson-ulaw", "audiosocket": "audiosocket", "ari websocket_client": "ari",
}  # fmt: skip


@pytest.fixture
def server(pbx: Asterisk, request: pytest.FixtureRequest) -> Iterator[SpeakingServer]:
    """A server on the way of the parameter."""
    way: str = request.param
    with ExitStack() as stack:
        running = stack.enter_context(speaking_server())
        pbx.configure(MEDIA_URI=running.media_uri)
        if way == "audiosocket":
            pbx.configure(AUDIOSOCKET=stack.enter_context(bridge(running.port)).address)
        elif way.startswith("ari"):
            stack.enter_context(ari_bridge(pbx, running.port, media=way.split()[1]))
        yield running
        pbx.wait_for_no_channel()


@pytest.mark.parametrize(("server", "extension"), list(IN_THE_AUDIO.items()), indirect=["server"])
def test_keys_are_tones_between_the_sentences(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, extension: str
) -> None:
    with calling(media, pbx.sip_port, extension) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.send(type="text", turn="a", text=BEFORE)
            bot.send(type="dtmf", digits="12#")
            bot.send(type="text", turn="a", text=AFTER, last=True)
            bot.event("done", turn="a")
            hear_out(phone)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    keys = keys_in(heard.pcm)
    assert "".join(each.key for each in keys) == "12#"
    first = compare(heard.pcm, spoken(BEFORE))
    last = compare(heard.pcm, spoken(AFTER))
    first.require()
    last.require()
    for each in keys:
        assert abs(each.end_ms - each.start_ms - 100) <= 20, each
        # −8 and −6 dBm0, where a sine of full scale has 3.14 dBm0.
        assert each.low_db == pytest.approx(-11.1, abs=1) and each.high_db == pytest.approx(-9.1, abs=1)
    starts = [each.start_ms for each in keys]
    assert [b - a for a, b in pairwise(starts)] == pytest.approx([200, 200], abs=20)
    # The speech before them ends where they begin, and the speech after them begins where they end.
    end_ms = first.delay // 8 + len(BEFORE) * MS_PER_CHAR
    assert abs(starts[0] - end_ms) <= 60 and abs(last.delay // 8 - keys[-1].end_ms - 100) <= 60
    assert phone.rtp.digits() == "", "they are not events too"


@pytest.mark.parametrize("server", ["ari rtp"], indirect=True)
def test_keys_over_ari_are_events_between_the_sentences(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer
) -> None:
    with calling(media, pbx.sip_port, "ari") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.say(BEFORE, "a")
            bot.send(type="dtmf", digits="12#")
            bot.say(AFTER, "b")
            bot.event("done", turn="b")
            hear_out(phone)
            heard = phone.rtp.heard()
            packets = list(phone.rtp.packets)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    assert phone.rtp.digits() == "12#"
    assert keys_in(heard.pcm) == [], "they are not in the audio too"
    compare(heard.pcm, spoken(BEFORE)).require()
    compare(heard.pcm, spoken(AFTER)).require()
    events = [packet.arrival_ns for packet in packets if packet.payload_type == 101]
    first_ns = heard.first_arrival_ns
    end_ms = compare(heard.pcm, spoken(BEFORE)).delay // 8 + len(BEFORE) * MS_PER_CHAR
    begin_ms = compare(heard.pcm, spoken(AFTER)).delay // 8
    assert (events[0] - first_ns) / 1e6 > end_ms - 60 and (events[-1] - first_ns) / 1e6 < begin_ms + 60


@pytest.mark.parametrize("digits", ["1234", "123456789012"])
@pytest.mark.parametrize("behind_speech", [False, True])
def test_no_word_behind_keys_over_ari_is_lost(
    pbx: Asterisk, media: RtpExchange, digits: str, behind_speech: bool
) -> None:
    """Asterisk sends no tone shorter than 100 ms, and drops audio while it sends one."""
    with (
        speaking_server(dtmf=DtmfSettings(on_ms=50, off_ms=40)) as server,
        ari_bridge(pbx, server.port, media="rtp"),
        calling(media, pbx.sip_port, "ari") as (phone,),
    ):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            if behind_speech:
                bot.say(BEFORE, "a")
            bot.send(type="dtmf", digits=digits)
            bot.say(AFTER, "b")
            bot.event("done", turn="b")
            hear_out(phone)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    assert phone.rtp.digits() == digits
    compare(heard.pcm, spoken(AFTER)).require()


@pytest.mark.parametrize("server", ["chan_websocket"], indirect=True)
def test_keys_are_tones_at_16_khz_too(pbx: Asterisk, media: RtpExchange, server: SpeakingServer) -> None:
    with calling(media, pbx.sip_port, "wsjson-slin16", codec="g722") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            assert bot.event("call")["rate_hz"] == 16_000
            settle(phone)
            bot.send(type="dtmf", digits="0A*")
            bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    keys = keys_in(heard.pcm, 16_000)
    assert "".join(each.key for each in keys) == "0A*"
    assert [each.end_ms - each.start_ms for each in keys] == pytest.approx([100] * 3, abs=20)
