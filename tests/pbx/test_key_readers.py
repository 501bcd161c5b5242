"""Real receivers read each key once: our own, over a bed of any gain, and a caller's key of which a packet is lost."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest
from asterisk_peer import Asterisk
from conversation import loud_at_s
from key_readers import asterisk, multimon, spandsp
from peer_process import wait_until
from phones import calling
from rtp_end import RtpExchange
from speaking_server import speaking_server

from sip_bridge.rtp.codec import rtp_codec
from sip_bridge.rtp.concealment import Concealment
from sip_bridge.rtp.packets import RtpReceiver
from telephony_tts.audio.dtmf import KEYS, tones
from telephony_tts.audio.g711 import Pcm
from telephony_tts.session.settings import DtmfSettings
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_store import SoundStore

pytestmark = [pytest.mark.peer, pytest.mark.timed]

SIXTEEN = "".join(KEYS)
READERS = pytest.mark.parametrize("reader", [spandsp, multimon])
_MS = 1_000_000
_KEY_MS = 600
"""A key of 100 ms and the silence around it."""
_PHASES = range(20)
"""Where a key begins in its packet, in ms."""


def silence(n_ms: int) -> Pcm:
    return np.zeros(8 * n_ms, np.int16)


def said(keys: str, on_ms: int, off_ms: int, phase_ms: int = 0) -> Pcm:
    return np.concatenate((silence(200 + phase_ms), *tones(keys, 8000, on_ms, off_ms), silence(400)))


# ----------------------------------------------------------------- our own keys


@READERS
@pytest.mark.parametrize(("on_ms", "off_ms"), [(50, 40), (100, 100)])
def test_keys_of_the_least_length_are_read(reader: Callable[[Pcm], str], on_ms: int, off_ms: int) -> None:
    for phase_ms in range(10):
        assert reader(said(SIXTEEN, on_ms, off_ms, phase_ms)) == SIXTEEN


def test_asterisk_reads_keys_of_the_least_length(pbx: Asterisk) -> None:
    """Of 40 ms it misses one in some hundreds."""
    waves = [said(SIXTEEN, 50, 40, phase_ms) for phase_ms in _PHASES]
    assert asterisk(pbx, waves) == [SIXTEEN] * len(waves)


def test_keys_over_a_bed_of_any_gain_are_read(pbx: Asterisk, media: RtpExchange) -> None:
    """Each telephone records its call, and the receivers read the recordings."""
    beds = [("hold", 3), ("hold", 6), ("hold", 12), ("ringback", 3), ("ringback", 12), ("typing", 12)]
    keys = SIXTEEN * 10
    sounds = SoundStore(SoundSettings(), 2.0)
    with ExitStack() as stack:
        server = stack.enter_context(speaking_server(dtmf=DtmfSettings("tones", 50, 40), find_sound=sounds.find))
        pbx.configure(MEDIA_URI=server.media_uri)
        phones = stack.enter_context(calling(media, pbx.sip_port, *["wsjson-ulaw"] * len(beds)))
        for phone in phones:
            phone.wait_answered()
        wait_until(lambda: server.n_calls == len(beds), "the calls have come to the server", 5)
        bots = [stack.enter_context(server.bot(call)) for call in server.calls()]
        for bot, (name, gain_db) in zip(bots, beds, strict=True):
            bot.event("call")
            bot.send(type="play", name=name, under=True, gain_db=gain_db)
        wait_until(lambda: all(loud_at_s(phone, 1000) for phone in phones), "the beds are heard", 8)
        for bot in bots:
            for at in range(0, len(keys), 64):
                bot.send(type="dtmf", digits=keys[at : at + 64])
        for bot in bots:
            for _ in range(0, len(keys), 64):
                bot.event("done", within_s=40)
            bot.send(type="play", stop=True)
        heard = [phone.rtp.heard().pcm for phone in phones]
        for phone in phones:
            phone.hang_up()
        for phone in phones:
            phone.wait_ended()
        for bot in bots:
            bot.event("hangup")
    for bed, pcm in zip(beds, heard, strict=True):
        assert spandsp(pcm) == multimon(pcm) == keys, bed
    assert asterisk(pbx, heard) == [keys] * len(beds)


# -------------------------------------------------------- a caller's key with a lost packet


def with_a_lost_packet(key: str, phase_ms: int, n_into_key: int, format: str = "ulaw") -> Pcm | None:
    """A key as the bridge passes it on, without the packet of this number in it; None if the key has fewer packets."""
    codec, concealment = rtp_codec(format), Concealment(8000)
    receiver = RtpReceiver(codec.payload_type)
    wave = np.concatenate((silence(200 + phase_ms), *islice(tones(key, 8000, 100, 50), 1)))
    wave = np.concatenate((wave, silence(_KEY_MS)))[: 8 * _KEY_MS]
    lost = 200 // 20 + n_into_key
    if 20 * lost >= 300 + phase_ms:
        return None
    codes, came = codec.encode(wave.astype("<i2").tobytes()), b""
    for number in range(len(codes) // 160):
        now_ns = 20 * number * _MS
        packet = struct.pack("!BBHII", 0x80, codec.payload_type, number, 160 * number, 7)
        audio = receiver.due(now_ns)
        if number != lost:
            audio += receiver.feed(packet + codes[160 * number : 160 * number + 160], now_ns)
        for each in audio:
            came += concealment.missing(each) if isinstance(each, int) else concealment.heard(codec.decode(each))
    assert len(came) == 2 * len(wave)
    return np.frombuffer(came, "<i2").astype(np.int16)


@READERS
@pytest.mark.parametrize("n_into_key", range(6))
def test_a_key_is_read_once_whichever_packet_is_lost(reader: Callable[[Pcm], str], n_into_key: int) -> None:
    for phase_ms in _PHASES:
        waves = [with_a_lost_packet(key, phase_ms, n_into_key) for key in SIXTEEN]
        if (found := [wave for wave in waves if wave is not None]):
            assert reader(np.concatenate(found)) == SIXTEEN, phase_ms


@pytest.mark.parametrize("n_into_key", [1, 2, 3])
def test_asterisk_reads_a_key_once_whichever_packet_is_lost(pbx: Asterisk, n_into_key: int) -> None:
    def key_by_key(phase_ms: int) -> Sequence[Pcm]:
        waves = [with_a_lost_packet(key, phase_ms, n_into_key) for key in SIXTEEN]
        return [wave for wave in waves if wave is not None]

    assert asterisk(pbx, [np.concatenate(key_by_key(phase_ms)) for phase_ms in _PHASES]) == [SIXTEEN] * len(_PHASES)
