"""Calls through a real FreeSWITCH with mod_audio_stream, with bridges that are late, killed, or not alone.

`tests/sip_bridge/freeswitch` has the same with a stand-in, which runs everywhere.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from compare import compare
from conversation import hear_out, loud_at_s, settle
from freeswitch_peer import BridgeProcess, FreeSwitch, bridge_process, freeswitch, needs_freeswitch
from peer_process import wait_until
from phones import Phone, calling
from rtp_end import RtpExchange
from speaking_server import RATE_HZ, TONE, Bot, SpeakingServer, speaking_server, spoken
from test_wide_band import ENGINE_HZ, WIDE_HZ, level_db, wide

from telephony_tts.audio.g711 import Pcm

pytestmark = [pytest.mark.peer, pytest.mark.timed, needs_freeswitch]

FIRST = "your parcel left the depot on tuesday and will be with you soon."
SECOND = "please keep the number of your order at hand until then."
LONG = "a sentence of some six seconds, which " + "goes on and on and on, " * 6 + "has its end here."
_QUIET_S = 0.3
"""Words of one text have no such pause."""


@pytest.fixture(scope="module")
def line() -> Iterator[tuple[SpeakingServer, FreeSwitch]]:
    with speaking_server() as server, freeswitch(server.port) as switch:
        yield server, switch


@contextmanager
def on_the_line(
    media: RtpExchange, server: SpeakingServer, switch: FreeSwitch, extension: str = "700", codec: str = "ulaw"
) -> Iterator[tuple[Phone, Bot]]:
    """A telephone and its bot. The bot has left when the body ends, and with it the call."""
    before = set(server.calls())
    with calling(media, switch.sip_port, extension, codec=codec) as (phone,):
        phone.wait_answered()
        wait_until(lambda: set(server.calls()) - before, "the call has come to the server", 5)
        (name,) = set(server.calls()) - before
        with server.bot(name) as bot:
            bot.event("call")
            settle(phone)
            yield phone, bot


def heard(phone: Phone, text: str, from_s: float = 0.0) -> None:
    """The telephone has received the whole text. FreeSWITCH may slip by a frame, so it is compared in pieces."""
    pcm = phone.rtp.heard(round(from_s * 1e9)).pcm
    said: Pcm = spoken(text)
    for at in range(0, len(said) - 4000, 4000):
        found = compare(pcm, said[at : at + 4000])
        assert found.correlation > 0.99, f"{text[:20]}, {at / 8000} s: {found}"


def longest_pause_s(phone: Phone, from_s: float) -> float:
    """The longest time without speech between the first and the last speech from a time on."""
    loud_s = [at_s for at_s in loud_at_s(phone) if at_s > from_s]
    return max(np.diff(loud_s))


# ---------------------------------------------------------------- calls that no bridge has


def test_a_call_that_ended_before_any_bridge_ran_is_ended_by_the_first(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    server, switch = line
    with on_the_line(media, server, switch) as (phone, bot):
        name = server.only_call()
        bot.leave()
        time.sleep(0.5)
        assert phone.ended_ns is None, "nothing but a bridge ends it"
        assert server.n_calls == 0
        assert switch.cli(f"uuid_audio_stream {name} send_text x") == "+OK Success", "no stream listens"
        with bridge_process(switch):
            phone.wait_ended(8)
    wait_until(lambda: switch.n_channels() == 0, "no channel left", 5)


def test_a_call_that_ended_while_its_bridge_was_killed_is_ended_by_the_next(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    server, switch = line
    with ExitStack() as stack:
        bridge = stack.enter_context(bridge_process(switch))
        phone, bot = stack.enter_context(on_the_line(media, server, switch))
        bot.say(FIRST, "a")
        bot.event("done")
        bridge.process.signal(signal.SIGKILL)
        time.sleep(0.1)
        bot.leave()
        time.sleep(0.4)
        with bridge_process(switch):
            phone.wait_ended(8)
    wait_until(lambda: switch.n_channels() == 0, "no channel left", 5)
    assert "telephony_tts" not in switch.cli("hash_dump db telephony_tts")


def test_a_call_ends_after_the_last_resort_unless_a_bridge_has_it(media: RtpExchange) -> None:
    with speaking_server() as server, freeswitch(server.port, last_resort_s=3) as switch:
        with bridge_process(switch), on_the_line(media, server, switch) as (phone, bot):
            bot.say(FIRST, "a")
            bot.event("done")
            time.sleep(3)
            assert phone.ended_ns is None
            assert switch.cli("show tasks").count("telephony_tts_") == 1, "the bridge has put it off"
            bot.leave()
            phone.wait_ended()
        with on_the_line(media, server, switch) as (phone, bot):
            begun_s = time.monotonic()
            phone.wait_ended(8)
            assert 1 < time.monotonic() - begun_s < 5


def test_a_killed_bridge_does_not_silence_its_sentence_for_long(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    """Pinned: the sentence came again behind 2.2 s of silence."""
    server, switch = line
    with ExitStack() as stack:
        bridge = stack.enter_context(bridge_process(switch))
        phone, bot = stack.enter_context(on_the_line(media, server, switch))
        said_s = time.monotonic()
        bot.say(LONG, "a")
        wait_until(lambda: loud_at_s(phone), "the first sound", 5)
        time.sleep(1)
        bridge.process.signal(signal.SIGKILL)
        with bridge_process(switch):
            bot.event("done", within_s=20)
            hear_out(phone)
            assert longest_pause_s(phone, said_s) < _QUIET_S
            heard(phone, LONG, said_s)
            bot.leave()
            phone.wait_ended()


def test_speech_that_was_cleared_without_a_bridge_ends_when_a_bridge_is_back(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    server, switch = line
    with ExitStack() as stack:
        bridge = stack.enter_context(bridge_process(switch))
        phone, bot = stack.enter_context(on_the_line(media, server, switch))
        bot.say(LONG, "a")
        wait_until(lambda: loud_at_s(phone), "the first sound", 5)
        bridge.process.signal(signal.SIGKILL)
        bridge.process.wait(5)
        bot.send(type="clear")
        bot.event("cleared")
        with bridge_process(switch):
            ready_s = time.monotonic()
            hear_out(phone)
            assert loud_at_s(phone)[-1] - ready_s < 1.0
            said_s = time.monotonic()
            bot.say(SECOND, "b")
            bot.event("done")
            hear_out(phone)
            heard(phone, SECOND, said_s)
            bot.leave()
            phone.wait_ended()


# ------------------------------------------------------------------------ two bridges


def test_a_bridge_that_drains_and_a_new_one_each_play_the_speech_of_their_own_calls(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    """Pinned: the old bridge killed new calls, and both acted on the files of its own."""
    server, switch = line
    with ExitStack() as stack:
        old = stack.enter_context(bridge_process(switch, drain_s="60"))
        older = stack.enter_context(on_the_line(media, server, switch))
        old.process.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in old.log(), "the old bridge drains", 5)
        new = stack.enter_context(bridge_process(switch))
        newer = stack.enter_context(on_the_line(media, server, switch))
        for text in (FIRST, SECOND):
            said_s = time.monotonic()
            for _, bot in (older, newer):
                bot.say(text, text[:6])
            for phone, bot in (older, newer):
                bot.event("done", turn=text[:6])
                hear_out(phone)
                heard(phone, text, said_s)
                n_ms = 1000 * (loud_at_s(phone)[-1] - next(at for at in loud_at_s(phone) if at > said_s))
                assert n_ms == pytest.approx(len(spoken(text)) / 8, abs=120), "once"
        assert "other_bridge" in new.log()
        newer[1].leave()
        newer[0].wait_ended()
        assert older[0].ended_ns is None and old.process.running()
        older[1].leave()
        older[0].wait_ended()
        assert old.process.wait(5), "it ends with its last call"


def test_of_two_bridges_exactly_one_takes_each_call(line: tuple[SpeakingServer, FreeSwitch]) -> None:
    _, switch = line
    n_calls = 40
    with bridge_process(switch) as one, bridge_process(switch) as other:
        for _ in range(n_calls):
            switch.cli("bgapi originate {origination_caller_id_number=1}loopback/700/default &park")
        wait_until(lambda: n_live(one) + n_live(other) >= n_calls, "all calls are taken", 10)
        time.sleep(1.5)
        entries = re.findall(r"/uuid_audio_stream:(\w+)", switch.cli("hash_dump db telephony_tts"))
        assert len(entries) == n_calls == n_live(one) + n_live(other)
        assert sorted(map(entries.count, set(entries))) == sorted(filter(None, (n_live(one), n_live(other))))
        switch.cli("hupall")
        wait_until(lambda: n_live(one) + n_live(other) == 0, "all are over", 10)


def n_live(bridge: BridgeProcess) -> int:
    return round(bridge.metric("telephony_sip_bridge_calls_live"))


def test_a_bridge_that_is_killed_beside_another_leaves_its_call_to_that_one(
    media: RtpExchange, line: tuple[SpeakingServer, FreeSwitch]
) -> None:
    server, switch = line
    with ExitStack() as stack:
        one = stack.enter_context(bridge_process(switch))
        phone, bot = stack.enter_context(on_the_line(media, server, switch))
        other = stack.enter_context(bridge_process(switch))
        bot.say(FIRST, "a")
        bot.event("done")
        one.process.signal(signal.SIGKILL)
        one.process.wait(5)
        said_s = time.monotonic()
        bot.say(SECOND, "b")
        bot.event("done")
        hear_out(phone)
        heard(phone, SECOND, said_s)
        assert n_live(other) == 1
        bot.leave()
        phone.wait_ended()


# --------------------------------------------------------------------------- wide band


def test_a_g722_telephone_hears_the_bot_at_16_khz(media: RtpExchange) -> None:
    """The dialplan with `mono 16k` and `?rate=16000`. A G.711 telephone has nothing above the telephone band."""
    with speaking_server(ENGINE_HZ) as server, freeswitch(server.port) as switch, bridge_process(switch):
        for codec in ("g722", "ulaw"):
            with on_the_line(media, server, switch, "716", codec) as (phone, bot):
                bot.say(FIRST, "a")
                bot.event("done")
                hear_out(phone)
                if codec == "g722":
                    pcm = phone.rtp.heard().pcm
                    assert compare(pcm, wide(FIRST)).correlation > 0.985
                    above_db = [level_db(each, WIDE_HZ, 4200, 6800) for each in (pcm, wide(FIRST))]
                    assert above_db[0] == pytest.approx(above_db[1], abs=2)
                said_s = time.monotonic()
                bot.say(TONE, "b")
                bot.event("done")
                hear_out(phone)
                pcm = phone.rtp.heard(round(said_s * 1e9)).pcm
                level = level_db(pcm, WIDE_HZ if codec == "g722" else RATE_HZ, 0, 8000)
                assert level > -25 if codec == "g722" else level < -60, "a tone above the telephone band"
                bot.leave()
                phone.wait_ended()
