"""Calls over AudioSocket through our bridge, in a process of its own: audio in both directions."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from asterisk_peer import Asterisk, free_port
from compare import compare, likeliest, moved
from conversation import CALLER, TEXT, assert_each_hears_its_own, hear_out, is_loud, settle, tell
from peer_process import PeerProcess, wait_until
from phones import calling
from rtp_end import RtpExchange
from shipped import shipped_asterisk
from speaking_server import SpeakingServer, speaking_process, speaking_server, spoken

from telephony_tts.audio.g711 import encode_ulaw

pytestmark = [pytest.mark.peer, pytest.mark.timed]


class Bridge:
    def __init__(self, process: PeerProcess, port: int, http_port: int) -> None:
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self._http_port = http_port

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        try:
            return self.ask("/readyz") != ""
        except OSError:
            return False

    def n_calls(self) -> int:
        name = "telephony_sip_bridge_calls_live"
        told = [line for line in self.ask("/metrics").splitlines() if line.startswith(name)]
        return sum(round(float(line.split()[-1])) for line in told)


@contextmanager
def bridge(server_port: int) -> Iterator[Bridge]:
    port, http_port = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "bridge.yaml"
        settings.write_text(
            f"server: {{url: 'ws://127.0.0.1:{server_port}/media/native'}}\n"
            f"audiosocket: {{port: {port}}}\nhttp: {{port: {http_port}}}\ndrain_s: 2\n"
        )
        command = [sys.executable, "-m", "sip_bridge.cli", "--config", str(settings)]
        process = PeerProcess("telephony-sip-bridge", command, Path(folder))
        try:
            running = Bridge(process, port, http_port)
            wait_until(running.is_ready, "the bridge listens", 15)
            yield running
            wait_until(lambda: running.n_calls() == 0, "the bridge has no call left", 5)
            process.signal(signal.SIGTERM)
            assert process.wait(5) and process.returncode() == 0, process.written()
        finally:
            process.stop()


@pytest.fixture
def server() -> Iterator[SpeakingServer]:
    with speaking_server() as server:
        yield server


@pytest.fixture
def bridged(pbx: Asterisk, server: SpeakingServer) -> Iterator[Bridge]:
    with bridge(server.port) as running:
        pbx.configure(AUDIOSOCKET=running.address)
        yield running


@pytest.mark.parametrize("extension", ["audiosocket", "achannel-slin"])
def test_audio_is_unchanged_in_both_directions(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, bridged: Bridge, extension: str
) -> None:
    with calling(media, pbx.sip_port, extension) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call(), inbound="binary") as bot:
            bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=8000)
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("done")
            said = spoken(CALLER)
            tell(phone, bot, said)
            heard = phone.rtp.heard()
            phone.rtp.dial("42#")
            assert [bot.event("dtmf")["digit"] for _ in range(3)] == ["4", "2", "#"]
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    compare(heard.pcm, spoken(TEXT)).require()
    compare(np.frombuffer(bytes(bot.caller), "<i2").astype(np.int16), said).require()
    assert (heard.holes, heard.n_lost, heard.n_duplicates) == ([], 0, 0)


CODECS = ("slin12", "slin16", "slin24", "slin32", "slin44", "slin48", "slin96", "slin192")
HALVED = ("slin44", "slin192")
"""At these two rates, Asterisk 22's own resampling halves the level."""


@pytest.mark.alone
def test_audio_arrives_both_ways_at_every_rate_of_asterisk(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, bridged: Bridge
) -> None:
    """A call at each rate at the same time, through Asterisk's resampler and, if the server lacks the rate, ours."""
    texts = [f"call {chr(97 + n)} speaks to its own caller only." for n in range(len(CODECS))]
    for text in texts:
        spoken(text)  # else the server renders all eight on its event loop, and every caller waits
    asked = [spoken(f"this is caller {chr(97 + n)} and no other one.") for n in range(len(CODECS))]
    with calling(media, pbx.sip_port, *(f"achannel-{codec}" for codec in CODECS)) as phones, ExitStack() as stack:
        for phone in phones:
            phone.wait_answered(20)
        wait_until(lambda: server.n_calls == len(phones), "the calls have come to the server", 5)
        bots = [stack.enter_context(server.bot(call, inbound="binary")) for call in server.calls()]
        for bot in bots:
            bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=8000)
            bot.event("call")
        for phone in phones:
            settle(phone)
        for bot, text in zip(bots, texts, strict=True):
            bot.say(text, "a")
        for bot in bots:
            assert bot.event("done")["underruns"] == 0
        for phone, said in zip(phones, asked, strict=True):
            phone.rtp.say(encode_ulaw(said))
        for phone in phones:
            phone.wait_said()
        time.sleep(0.4)  # what is on its way, and what resamplers hold back until more comes
        heard = [phone.rtp.heard() for phone in phones]
        for phone in phones:
            phone.hang_up()
        for phone in phones:
            phone.wait_ended()
        for bot in bots:
            bot.event("hangup")
    left = dict(zip(texts, bots, strict=True))
    for codec, each, said in zip(CODECS, heard, asked, strict=True):
        names = list(left)
        text = names[likeliest(each.pcm, [spoken(name) for name in names])]
        caller = np.frombuffer(bytes(left.pop(text).caller), "<i2").astype(np.int16)
        for came, was in ((each.pcm, spoken(text)), (caller, said)):
            found = compare(came, moved(was, came))
            found.require()
            assert codec in HALVED or abs(found.gain_db) < 0.1, (codec, found)
        assert (each.holes, each.n_lost, each.n_duplicates) == ([], 0, 0), codec


def test_a_barge_in_silences_the_phone(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, bridged: Bridge
) -> None:
    """Asterisk plays all audio that it was sent: AudioSocket has no clear. So little is sent ahead."""
    with calling(media, pbx.sip_port, "audiosocket") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            for n in range(5):
                bot.say(TEXT, f"t{n}")
                bot.event("started")
                time.sleep(0.7 + n / 100)
                cleared_s = bot.send(type="clear")
                bot.event("cleared")
                time.sleep(0.4)
                last_s = max(packet.arrival_ns / 1e9 for packet in phone.rtp.audio_packets() if is_loud(packet))
                assert last_s - cleared_s < 0.060, f"speech {1000 * (last_s - cleared_s):.0f} ms after clear"
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")


def test_the_bot_can_hang_up_after_its_last_word(
    pbx: Asterisk, media: RtpExchange, server: SpeakingServer, bridged: Bridge
) -> None:
    with calling(media, pbx.sip_port, "audiosocket") as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.send(type="close")
            phone.wait_ended()
    compare(phone.rtp.heard().pcm, spoken(TEXT)).require()
    pbx.wait_for_no_channel()


def test_with_the_shipped_files_the_calls_name_is_its_uuid(media: RtpExchange) -> None:
    with (
        speaking_server() as server,
        bridge(server.port) as bridged,
        shipped_asterisk(server.media_uri, bridged.address) as pbx,
        calling(media, pbx.sip_port, "701") as (phone,),
    ):
        phone.wait_answered()
        name = server.only_call()
        assert len(name) == 36 and name.count("-") == 4
        with server.bot(name) as bot:
            bot.event("call")
            settle(phone)
            bot.say(TEXT, "a")
            bot.event("done")
            hear_out(phone)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    compare(phone.rtp.heard().pcm, spoken(TEXT)).require()


@pytest.mark.alone
def test_20_calls_at_once_each_get_their_own_audio(pbx: Asterisk, media: RtpExchange) -> None:
    with speaking_process() as (media_uri, bots, _), bridge(int(media_uri.split(":")[2].split("/")[0])) as bridged:
        pbx.configure(AUDIOSOCKET=bridged.address)
        with calling(media, pbx.sip_port, *["audiosocket"] * 20) as phones:
            for phone in phones:
                phone.wait_answered(20)
            assert_each_hears_its_own(phones, [bots.next() for _ in phones])


def test_a_dead_server_ends_its_calls_and_the_bridge_goes_on(pbx: Asterisk, media: RtpExchange) -> None:
    with speaking_server() as server, bridge(server.port) as bridged:
        pbx.configure(AUDIOSOCKET=bridged.address)
        with calling(media, pbx.sip_port, "audiosocket") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                settle(phone)
                server.cut_off()
                phone.wait_ended()
        with calling(media, pbx.sip_port, "audiosocket") as (phone,):
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
