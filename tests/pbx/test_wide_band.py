"""Wide band on a real Asterisk: a G.722 telephone and the bot hear each other at 16 kHz, on every way to the server.

The telephone's G.722 is FFmpeg's, and Asterisk's is its own. A G.711 telephone at the same extensions is the control:
what lies above the telephone band does not get through it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soxr
from ari_bridge import ari_bridge
from asterisk_peer import Asterisk
from compare import Kind, compare, moved
from conversation import CALLER, TEXT, hear_out, loud_at_s, settle, tell
from peer_process import wait_until
from phones import Phone, calling
from rtp_end import RtpExchange
from shipped import shipped_asterisk
from speaking_server import TONE, TONE_HZ, Bot, SpeakingServer, speaking_server, spoken
from test_audiosocket import bridge

from telephony_tts.audio.g711 import Pcm

pytestmark = [pytest.mark.peer, pytest.mark.timed]

ENGINE_HZ, WIDE_HZ = 24_000, 16_000

WAYS = {
    "chan_websocket plain": "wstext-slin16",
    "chan_websocket json": "wsjson-slin16",
    "audiosocket": "achannel-slin16",
    "ari websocket_client": "ari",
    "ari websocket_server": "ari",
    "ari rtp": "ari",
}


@contextmanager
def way_to_the_server(pbx: Asterisk, way: str, **ari: Any) -> Iterator[SpeakingServer]:
    """A server whose engine speaks at 24 kHz, and what is between it and Asterisk."""
    with ExitStack() as stack:
        dialled = f"ws://127.0.0.1:{pbx.http_port}/media"
        server = stack.enter_context(speaking_server(ENGINE_HZ, asterisk_dial=(dialled,)))
        pbx.configure(MEDIA_URI=server.media_uri)
        if way == "audiosocket":
            pbx.configure(AUDIOSOCKET=stack.enter_context(bridge(server.port)).address)
        elif way.startswith("ari"):
            stack.enter_context(ari_bridge(pbx, server.port, media=way.split()[1], **{"format": "auto", **ari}))
        yield server
        pbx.wait_for_no_channel()


@pytest.fixture(params=WAYS)
def way(pbx: Asterisk, request: pytest.FixtureRequest) -> Iterator[tuple[SpeakingServer, str]]:
    with way_to_the_server(pbx, request.param) as server:
        yield server, WAYS[request.param]


def wide(text: str) -> Pcm:
    """What the engine says, at 16 kHz."""
    return np.rint(soxr.resample(spoken(text, ENGINE_HZ).astype(float), ENGINE_HZ, WIDE_HZ)).astype(np.int16)


def level_db(pcm: Pcm, rate_hz: int, from_hz: float, to_hz: float) -> float:
    """The level of a band, in dB below full scale."""
    spectrum: npt.NDArray[np.complex128] = np.fft.rfft(pcm.astype(float))
    hz = np.fft.rfftfreq(len(pcm), 1 / rate_hz)
    power = 2 * np.sum(np.abs(spectrum[(hz >= from_hz) & (hz < to_hz)]) ** 2) / len(pcm) ** 2
    return float(10 * np.log10(power + 1e-12) - 20 * np.log10(32768))


@contextmanager
def on_the_line(
    media: RtpExchange, pbx: Asterisk, server: SpeakingServer, extension: str, codec: str
) -> Iterator[tuple[Phone, Bot]]:
    with calling(media, pbx.sip_port, extension, codec=codec) as (phone,):
        phone.wait_answered()
        with server.bot(server.only_call(), inbound="binary") as bot:
            bot.event("call")
            settle(phone)
            yield phone, bot
            phone.hang_up()
            phone.wait_ended()
            bot.event("hangup")


def test_a_g722_telephone_and_the_bot_hear_each_other_at_16_khz(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    server, extension = way
    said = wide(CALLER)
    with on_the_line(media, pbx, server, extension, "g722") as (phone, bot):
        bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=WIDE_HZ)
        bot.say(TEXT, "a")
        bot.event("done")
        tell(phone, bot, said)
        time.sleep(0.5)  # `tell` allows 200 ms on the way; what is missing here would be the test's own haste
        heard = phone.rtp.heard()
    assert (heard.n_lost, heard.n_duplicates) == (0, 0)
    caller = np.frombuffer(bytes(bot.caller), "<i2").astype(np.int16)
    for came, was in ((heard.pcm, wide(TEXT)), (caller, said)):
        # G.722 has 2 bits for a sample above 4 kHz: a noise 15 to 20 dB below this speech, and as loud as its fades.
        # A frame that is lost or comes twice would ruin the correlation.
        found = compare(came, moved(was, came))
        assert found.correlation > 0.98 and abs(found.gain_db) < 1, found
        assert {each.kind for each in found.breaks} <= {Kind.REPLACED}, found
        at = slice(max(0, found.delay), found.delay + len(was))
        upper = level_db(came[at], WIDE_HZ, 4200, 6500), level_db(was, WIDE_HZ, 4200, 6500)
        assert abs(upper[0] - upper[1]) < 1.5, f"above 4 kHz: {upper[0]:.1f} dB heard, {upper[1]:.1f} dB said"


def test_a_tone_above_the_telephone_band_is_heard_by_g722_telephones_only(
    pbx: Asterisk, media: RtpExchange, way: tuple[SpeakingServer, str]
) -> None:
    server, extension = way
    levels = {}
    for codec in ("g722", "ulaw"):
        with on_the_line(media, pbx, server, extension, codec) as (phone, bot):
            bot.say(TONE, "a")
            bot.event("done")
            hear_out(phone)
            heard = phone.rtp.heard().pcm
        rate_hz = WIDE_HZ if codec == "g722" else 8000
        levels[codec] = level_db(heard, rate_hz, TONE_HZ - 50, TONE_HZ + 50), level_db(heard, rate_hz, 100, 4000)
    assert levels["g722"][0] > -25 and levels["g722"][1] < -50, levels
    assert levels["ulaw"][1] < -50, f"it was folded into the telephone band: {levels}"


def test_the_bot_gets_nothing_above_4_khz_from_a_g711_telephone(pbx: Asterisk, media: RtpExchange) -> None:
    with (
        way_to_the_server(pbx, "chan_websocket json") as server,
        on_the_line(media, pbx, server, "wsjson-slin16", "ulaw") as (phone, bot),
    ):
        bot.send(type="config", inbound_codec="pcm", inbound_rate_hz=WIDE_HZ)
        said = spoken(CALLER)
        tell(phone, bot, said)
        time.sleep(0.5)
    caller = np.frombuffer(bytes(bot.caller), "<i2").astype(np.int16)
    assert len(caller) > 2 * len(said)
    assert level_db(caller, WIDE_HZ, 4200, 8000) < -70 < -35 < level_db(caller, WIDE_HZ, 200, 3400)


@pytest.mark.parametrize(
    ("codec", "leg"), [("g722", ("pcm", 16_000)), ("ulaw", ("ulaw", 8000)), ("alaw", ("alaw", 8000))]
)
@pytest.mark.parametrize("kind", ["websocket_client", "rtp"])
def test_auto_gives_each_telephone_what_it_can_hear(
    pbx: Asterisk, media: RtpExchange, kind: str, codec: str, leg: tuple[str, int]
) -> None:
    with (
        way_to_the_server(pbx, f"ari {kind}") as server,
        on_the_line(media, pbx, server, "ari", codec) as (_, bot),
    ):
        (event,) = [each for _, each in bot.events if each["type"] == "call"]
        bot.say("hello there.", "a")
        bot.event("done")
    # The bridge gives the server linear samples.
    assert (event["codec"], event["rate_hz"]) == (leg[0] if kind != "rtp" else "pcm", leg[1])


def test_a_barge_in_and_the_marks_are_as_exact_at_16_khz(pbx: Asterisk, media: RtpExchange) -> None:
    with (
        way_to_the_server(pbx, "chan_websocket plain") as server,
        on_the_line(media, pbx, server, "wstext-slin16", "g722") as (phone, bot),
    ):
        bot.send(type="text", turn="a", text="one two three four five. ")
        bot.send(type="mark", name="middle", turn="a")
        bot.send(type="text", turn="a", text="six seven eight nine ten.", last=True)
        bot.event("done")
        first_s = loud_at_s(phone)[0]
        at_s = next(at for at, event in bot.events if event.get("name") == "middle")
        place_ms = next(event["end_ms"] for _, event in bot.events if event["type"] == "sentence")
        assert -20 <= 1000 * (at_s - first_s) - place_ms <= 65
        for n in range(3):
            time.sleep(0.3)
            begun_s = time.monotonic()
            bot.say(TEXT, f"t{n}")
            bot.event("started")
            time.sleep(0.7 + n / 100)
            cleared_s = bot.send(type="clear")
            cleared = bot.event("cleared")
            time.sleep(0.4)
            loud = [at for at in loud_at_s(phone) if at > begun_s]
            assert loud[-1] - cleared_s < 0.060, f"speech {1000 * (loud[-1] - cleared_s):.0f} ms after clear"
            # What came after the clear was judged above: the caller had not heard it when the bot was interrupted.
            n_before = sum(at <= cleared_s for at in loud)
            assert abs(cleared["heard_ms"] - 20 * n_before) <= 60


@pytest.mark.parametrize("codec", ["g722", "ulaw"])
def test_the_shipped_extensions_choose_by_the_telephone(media: RtpExchange, codec: str) -> None:
    """configs/asterisk: 703 over the WebSocket, 704 over AudioSocket."""
    with (
        speaking_server(ENGINE_HZ) as server,
        bridge(server.port) as bridged,
        shipped_asterisk(server.media_uri, bridged.address) as pbx,
    ):
        for extension in ("703", "704"):
            with on_the_line(media, pbx, server, extension, codec) as (phone, bot):
                (event,) = [each for _, each in bot.events if each["type"] == "call"]
                bot.say(TONE, "a")
                bot.event("done")
                hear_out(phone)
                heard = phone.rtp.heard().pcm
            assert event["rate_hz"] == (WIDE_HZ if codec == "g722" else 8000), extension
            if codec == "g722":
                assert level_db(heard, WIDE_HZ, TONE_HZ - 50, TONE_HZ + 50) > -25
            wait_until(lambda: not server.n_calls, "the call is gone", 5)
        pbx.wait_for_no_channel()
        assert pbx.complaints() == []
