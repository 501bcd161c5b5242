"""Calls that our bridge controls by ARI on a real Asterisk: over each of the three media, in both directions."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from ari_bridge import AriBridge, ari_bridge
from asterisk_peer import Asterisk, asterisk
from compare import compare
from conversation import CALLER, TEXT, assert_each_hears_its_own, hear_out, is_loud, tell
from peer_process import PeerProcess, wait_until
from phones import Phone, calling, waiting
from rtp_end import RtpExchange
from shipped import FILES, shipped_asterisk
from speaking_server import SpeakingServer, speaking_process, speaking_server, spoken

pytestmark = [pytest.mark.peer, pytest.mark.timed]

ROOT = Path(__file__).resolve().parents[2]
MEDIA = ("websocket_client", "websocket_server", "rtp")
SHORT = "your parcel left the depot."


@dataclass
class Rig:
    asterisk: Asterisk
    server: SpeakingServer
    bridge: AriBridge


@contextmanager
def rig_of(pbx: Asterisk, media: str, **settings: object) -> Iterator[Rig]:
    dialled = f"ws://127.0.0.1:{pbx.http_port}/media"
    with speaking_server(asterisk_dial=(dialled,)) as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with ari_bridge(pbx, server.port, media=media, **settings) as bridge:
            yield Rig(pbx, server, bridge)


@pytest.fixture(params=MEDIA)
def rig(pbx: Asterisk, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig_of(pbx, request.param) as rig:
        yield rig
        nothing_is_left(pbx)


def nothing_is_left(pbx: Asterisk, within_s: float = 5.0) -> None:
    pbx.wait_for_no_channel(within_s)
    wait_until(lambda: bridges(pbx) == 0, "no bridge is left in Asterisk", within_s)


def bridges(pbx: Asterisk) -> int:
    """How many bridges Asterisk has, by the lines of its list below the head."""
    return len([line for line in pbx.cli("bridge show all").splitlines()[1:] if line.strip()])


def loud(phone: Phone) -> list[float]:
    """The arrival times in seconds of the packets that contain speech."""
    return [packet.arrival_ns / 1e9 for packet in phone.rtp.audio_packets() if is_loud(packet)]


def test_audio_arrives_in_both_directions(media: RtpExchange, rig: Rig) -> None:
    with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
        phone.wait_answered()
        name = rig.server.only_call()
        with rig.server.bot(name, inbound="binary") as bot:
            bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=8000)
            call = bot.event("call")
            phone.wait_heard(5)
            bot.say(TEXT, "a")
            done = bot.event("done")
            said = spoken(CALLER)
            tell(phone, bot, said)
            heard = phone.rtp.heard()
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    compare(heard.pcm, spoken(TEXT)).require(snr_db=30)
    assert done["underruns"] == 0 and (heard.holes, heard.n_lost, heard.n_duplicates) == ([], 0, 0)
    compare(np.frombuffer(bytes(bot.caller), "<i2").astype(np.int16), said).require(snr_db=30)
    told = call["parameters"]
    assert call["call"] == name == told["TTS_CALL"] == told["TTS_CHANNEL"]
    assert (told["TTS_FROM"], told["TTS_TO"], told["TTS_DIRECTION"]) == ("phone", "ari", "in")


def test_digits_arrive_once(media: RtpExchange, rig: Rig) -> None:
    with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
        phone.wait_answered()
        with rig.server.bot(rig.server.only_call()) as bot:
            bot.event("call")
            phone.wait_heard(5)
            phone.rtp.dial("15*#1")
            phone.wait_said()
            time.sleep(0.5)
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")
    assert [event["digit"] for _, event in bot.events if event["type"] == "dtmf"] == list("15*#1")


def test_a_barge_in_silences_the_phone_within_60_ms(media: RtpExchange, rig: Rig) -> None:
    with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
        phone.wait_answered()
        with rig.server.bot(rig.server.only_call()) as bot:
            bot.event("call")
            phone.wait_heard(5)
            for n in range(4):
                bot.say(TEXT, f"t{n}")
                bot.event("started")
                time.sleep(0.7 + n / 100)
                cleared_s = bot.send(type="clear")
                bot.event("cleared")
                time.sleep(0.4)
                after_s = max(loud(phone)) - cleared_s
                assert -0.2 < after_s < 0.060, f"speech until {1000 * after_s:.0f} ms after clear"
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")


def test_after_the_bot_leaves_the_speech_ends_and_the_dialplan_continues(media: RtpExchange, rig: Rig) -> None:
    with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
        phone.wait_answered()
        with rig.server.bot(rig.server.only_call()) as bot:
            bot.event("call")
            phone.wait_heard(5)
            bot.say(SHORT, "a")
            bot.send(type="close")
            phone.wait_ended()
    compare(phone.rtp.heard().pcm, spoken(SHORT)).require()
    # Stasis(tts), then Hangup(): it is the dialplan that has hung up.
    assert re.search(r"Executing \[ari@phones:2\] Hangup", rig.asterisk.log()), rig.asterisk.log()


def test_a_hang_up_by_asterisk_ends_the_call(media: RtpExchange, rig: Rig) -> None:
    with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
        phone.wait_answered()
        with rig.server.bot(rig.server.only_call()) as bot:
            bot.event("call")
            bot.say(TEXT * 3, "a")
            bot.event("started")
            (caller,) = [name for name in rig.asterisk.channels() if name.startswith("PJSIP/")]
            rig.asterisk.cli(f"channel request hangup {caller}")
            assert bot.event("cleared")["reason"] == "hangup"
            bot.event("hangup")
        phone.wait_ended()


def test_a_caller_who_hangs_up_at_once_leaves_nothing_behind(media: RtpExchange, rig: Rig) -> None:
    for _ in range(5):
        with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
            phone.wait_answered()
            phone.hang_up()
            phone.wait_ended()
    wait_until(lambda: not rig.server.n_calls and not rig.bridge.n_calls, "no call is left", 5)
    assert rig.bridge.ready()[0] == 200


@pytest.mark.alone
@pytest.mark.parametrize("kind", MEDIA)
def test_12_calls_at_once_each_get_their_own_audio(
    pbx: Asterisk, media: RtpExchange, tmp_path: Path, kind: str
) -> None:
    """The server and the bridge are processes of their own, as in a call centre: here they would wait for the
    telephones and bots of all calls, which hold the interpreter's lock."""
    dialled = f"ws://127.0.0.1:{pbx.http_port}/media"
    with speaking_process(asterisk_dial=(dialled,)) as (media_uri, bots, _):
        pbx.configure(MEDIA_URI=media_uri)
        port = int(media_uri.split(":")[2].split("/")[0])
        with bridge_process(pbx, port, tmp_path, kind), calling(media, pbx.sip_port, *["ari"] * 12) as phones:
            for phone in phones:
                phone.wait_answered(20)
            assert_each_hears_its_own(phones, [bots.next() for _ in phones])
            nothing_is_left(pbx)


def test_many_calls_in_sequence_leave_nothing_behind(media: RtpExchange, rig: Rig) -> None:
    n_descriptors = []
    for n in range(14):
        with calling(media, rig.asterisk.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with rig.server.bot(rig.server.only_call()) as bot:
                bot.say("hello there.", "a")
                bot.event("started")
                if n % 3 == 0:
                    bot.send(type="close", now=True)
                else:
                    phone.hang_up()
                    bot.event("hangup")
                phone.wait_ended()
        wait_until(lambda: not rig.server.n_calls and not rig.bridge.n_calls, "the call is gone", 5)
        n_descriptors.append(len(os.listdir("/proc/self/fd")))
    assert max(n_descriptors[7:]) <= max(n_descriptors[:7]) + 1


def test_an_outgoing_call_and_its_bots_speech(media: RtpExchange, rig: Rig) -> None:
    with waiting(media, rig.asterisk.sip_port) as ((phone,), port):
        status, told = rig.bridge.originate(
            endpoint=f"PJSIP/phone/sip:phone@127.0.0.1:{port}", call="order-17", caller_id="Shop <4930999>",
            variables={"LANG_OF_BOT": "de", "TTS_CALL": "another"}, wait=True,
        )  # fmt: skip
        assert (status, told) == (200, {"call": "order-17", "state": "answered"})
        with rig.server.bot("order-17") as bot:
            call = bot.event("call")
            phone.wait_heard(5)
            bot.say(SHORT, "a")
            bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard()
            bot.send(type="close")
            phone.wait_ended()
    compare(heard.pcm, spoken(SHORT)).require()
    assert call["call"] == "order-17" and call["parameters"]["TTS_DIRECTION"] == "out"
    assert call["parameters"]["LANG_OF_BOT"] == "de"
    assert call["parameters"]["TTS_TO"].startswith("PJSIP/phone/")


def test_an_unanswered_outgoing_call_is_reported(pbx: Asterisk, media: RtpExchange) -> None:
    with rig_of(pbx, "websocket_client") as rig:
        with waiting(media, pbx.sip_port, ring_ms=5000) as (_, port):
            status, told = rig.bridge.originate(
                endpoint=f"PJSIP/phone/sip:phone@127.0.0.1:{port}", timeout_s=1, wait=True
            )
            assert status == 409 and told["error"] == "not_answered" and told["message"].endswith("no answer"), told
        status, told = rig.bridge.originate(endpoint="PJSIP/absent-there")
        assert status == 502 and told["error"] == "asterisk_refused", told
        assert rig.bridge.originate(token="another", endpoint="PJSIP/1")[0] == 401
        assert rig.bridge.originate(endpoint="Local/echo@phones")[0] == 400
        nothing_is_left(pbx)


def test_the_dialplan_sets_the_calls_name_and_parameters(pbx: Asterisk, media: RtpExchange) -> None:
    with rig_of(pbx, "websocket_client", call_variable="UNIQUEID", variables=["CHANNEL_OF_NOBODY", "EXTEN"]) as rig:
        with calling(media, pbx.sip_port, "ari") as (phone,):
            phone.wait_answered()
            name = rig.server.only_call()
            with rig.server.bot(name) as bot:
                told = bot.event("call")["parameters"]
                phone.hang_up()
                phone.wait_ended()
                bot.event("hangup")
        assert name == told["UNIQUEID"] == told["TTS_CALL"] and told["EXTEN"] == "ari"
        assert "CHANNEL_OF_NOBODY" not in told


@pytest.mark.parametrize("kind", MEDIA)
def test_an_unreachable_server_ends_only_the_call(pbx: Asterisk, media: RtpExchange, kind: str) -> None:
    pbx.configure(MEDIA_URI="ws://127.0.0.1:1/media/asterisk")
    with ari_bridge(pbx, 1, media=kind) as bridge:
        with calling(media, pbx.sip_port, "ari") as (phone,):
            phone.wait_answered()
            phone.wait_ended()
        assert bridge.ready()[0] == 200
        nothing_is_left(pbx)


@contextmanager
def bridge_process(
    pbx: Asterisk, server_port: int, folder: Path, media: str = "websocket_client"
) -> Iterator[PeerProcess]:
    """The bridge as users start it."""
    settings = {
        "server.url": f"ws://127.0.0.1:{server_port}/media/native", "audiosocket.port": 0, "http.port": 0,
        "ari.enabled": "true", "ari.url": f"ws://127.0.0.1:{pbx.http_port}/ari", "ari.user": "tts",
        "ari.password": "tts", "ari.app": "tts", "ari.websocket_client": "tts_media", "ari.media": media,
    }  # fmt: skip
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "sip_bridge.cli"]
    process = PeerProcess("bridge", [*program, *flags], folder)
    try:
        wait_until(lambda: '"asterisk_connected"' in process.written(), "the bridge is connected", 20)
        yield process
    finally:
        process.stop()


def test_a_stopping_bridge_lets_the_call_finish(pbx: Asterisk, media: RtpExchange, tmp_path: Path) -> None:
    with speaking_server() as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with bridge_process(pbx, server.port, tmp_path) as process, calling(media, pbx.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                phone.wait_heard(5)
                process.signal(signal.SIGTERM)
                wait_until(lambda: '"draining"' in process.written(), "the bridge drains", 5)
                bot.say(SHORT, "a")
                bot.send(type="close")
                phone.wait_ended()
            assert process.wait(5) and process.returncode() == 0, process.written()
        compare(phone.rtp.heard().pcm, spoken(SHORT)).require()
    nothing_is_left(pbx)


def test_a_call_outlives_a_killed_bridge_and_the_next_bridge_cleans_up(
    pbx: Asterisk, media: RtpExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sip_bridge.ari.application._TIDY_S", 0.5)
    with speaking_server() as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with bridge_process(pbx, server.port, tmp_path) as process, calling(media, pbx.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                bot.event("call")
                phone.wait_heard(5)
                process.signal(signal.SIGKILL)
                process.wait(5)
                with ari_bridge(pbx, server.port, media="websocket_client"):
                    time.sleep(1.5)  # three looks at what is left over
                    bot.say(SHORT, "a")
                    bot.send(type="close")
                    phone.wait_ended()
                    nothing_is_left(pbx)
        compare(phone.rtp.heard().pcm, spoken(SHORT)).require()


def test_the_next_bridge_returns_a_call_without_media_to_the_dialplan(
    pbx: Asterisk, media: RtpExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `rtp` the media pass through the bridge itself. Here the dialplan continues and hangs up."""
    monkeypatch.setattr("sip_bridge.ari.application._TIDY_S", 0.5)
    with (
        speaking_server() as server,
        bridge_process(pbx, server.port, tmp_path, "rtp") as process,
        calling(media, pbx.sip_port, "ari") as (phone,),
    ):
        phone.wait_answered()
        with server.bot(server.only_call()) as bot:
            bot.event("call")
            phone.wait_heard(5)
            process.signal(signal.SIGKILL)
            process.wait(5)
            bot.event("hangup")
            time.sleep(0.5)
            assert pbx.channels(), "the call has not ended yet"
            with ari_bridge(pbx, server.port, media="rtp"):
                phone.wait_ended()
                nothing_is_left(pbx)


def test_the_shipped_files_need_no_change(media: RtpExchange) -> None:
    """configs/asterisk with configs/sip_bridge.yaml: extension 702 and the account of ari.conf."""
    shipped = yaml.safe_load((FILES.parent / "sip_bridge.yaml").read_text())["ari"]
    account = {"user": shipped["user"], "app": shipped["app"], "websocket_client": shipped["websocket_client"]}
    with speaking_server() as server, shipped_asterisk(server.media_uri, "127.0.0.1:9092") as pbx:
        with (
            ari_bridge(pbx, server.port, media=shipped["media"], password="change-this", **account),
            calling(media, pbx.sip_port, "702") as (phone,),
        ):
            phone.wait_answered()
            with server.bot(server.only_call()) as bot:
                told = bot.event("call")["parameters"]
                phone.wait_heard(5)
                bot.say(SHORT, "a")
                bot.send(type="close")
                phone.wait_ended()
        assert told["TTS_TO"] == "702"
        compare(phone.rtp.heard().pcm, spoken(SHORT)).require()
        nothing_is_left(pbx)


@pytest.mark.parametrize("kind", MEDIA)
def test_a_killed_asterisk_ends_its_calls_and_a_new_one_reconnects(media: RtpExchange, kind: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(asterisk())
        rig = stack.enter_context(rig_of(first, kind, lost_timeout_s=0.5))
        with calling(media, first.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with rig.server.bot(rig.server.only_call()) as bot:
                bot.event("call")
                bot.say(TEXT * 3, "a")
                bot.event("started")
                first.process.signal(signal.SIGKILL)
                assert bot.event("cleared")["reason"] == "hangup"
                bot.event("hangup")
            wait_until(lambda: not rig.bridge.n_calls, "the bridge has forgotten it", 5)
            status, why = rig.bridge.ready()
            assert status == 503 and "asterisk" in why, why
        ports = {"SIP_PORT": str(first.sip_port), "HTTP_PORT": str(first.http_port)}
        first.stop()
        second = stack.enter_context(asterisk(MEDIA_URI=rig.server.media_uri, **ports))
        rig.bridge.wait_ready()
        with calling(media, second.sip_port, "ari") as (phone,):
            phone.wait_answered()
            with rig.server.bot(rig.server.only_call()) as bot:
                bot.event("call")
                phone.wait_heard(5)
                bot.say(SHORT, "a")
                bot.event("done")
                hear_out(phone)
                compare(phone.rtp.heard().pcm, spoken(SHORT)).require()
                phone.hang_up()
                phone.wait_ended()
                bot.event("hangup")
        nothing_is_left(second)
