"""The speech of the tests' calls, and checks that several tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from compare import compare, likeliest
from peer_process import wait_until
from phones import Phone
from rtp_end import SAMPLES_PER_BYTE, RtpPacket, decoded, lay_out
from speaking_server import Bot, spoken

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm, decode_ulaw
from telephony_tts.audio.g722 import G722Encoder

_WAY_SAMPLES = 1600
"""The audio at 8 kHz that may come before the speech: 200 ms that were in transit."""
TEXT = "your parcel left the depot on tuesday and will be with you soon."
CALLER = "i would like to know where my parcel is please."


def settle(phone: Phone) -> None:
    """Wait until the phone receives audio, so that its recording begins before the first word."""
    phone.wait_heard(5)


def hear_out(phone: Phone) -> None:
    """Wait until the phone has received silence after the last word. A mark, and so `done`, is reported when its frame
    is in transit."""

    def is_silent() -> bool:
        last = lay_out(phone.rtp.audio_packets()[-5:], phone.rtp.codec)
        return bool(np.abs(last.pcm.astype(int)).max() < 100)

    wait_until(is_silent, "silence behind the last word", 5)


def tell(phone: Phone, bot: Bot, said: Pcm) -> None:
    """The phone speaks, and the bot, which gets the caller's audio at the phone's rate, must receive all of it."""
    n_before, codec = len(bot.caller), phone.rtp.codec
    phone.rtp.say(encoded(codec, said))
    phone.wait_said()
    n_bytes = 2 * (len(said) + _WAY_SAMPLES * SAMPLES_PER_BYTE[codec])
    wait_until(lambda: len(bot.caller) - n_before > n_bytes, "the caller is heard", 5)


def encoded(codec: str, said: Pcm) -> bytes:
    """What a phone of this codec sends for `said`, at 16 kHz for G.722, else at 8 kHz."""
    return G722Encoder().feed(said[: len(said) // 320 * 320]) if codec == "g722" else CODECS[codec].encode(said)


def loud_at_s(phone: Phone, level: int = 100) -> list[float]:
    """The times of arrival of the packets that contain speech."""
    packets = phone.rtp.audio_packets()
    codec = phone.rtp.codec
    samples = decoded(codec, b"".join(packet.payload for packet in packets)).astype(int)
    ends = np.cumsum([len(packet.payload) * SAMPLES_PER_BYTE[codec] for packet in packets])
    parts = np.split(samples, ends[:-1])
    return [packet.arrival_ns / 1e9 for packet, part in zip(packets, parts, strict=True) if np.abs(part).max() > level]


def is_loud(packet: RtpPacket) -> bool:
    """Whether the packet contains speech; its codec is μ-law."""
    return bool(np.abs(decode_ulaw(packet.payload).astype(int)).max() > 100)


def assert_each_hears_its_own(phones: Sequence[Phone], bots: Sequence[Bot]) -> None:
    """All bots speak at once, a text each. Every phone must receive one text completely, and no two the same one. Then
    the phones hang up."""
    for phone in phones:
        settle(phone)
    texts = [f"call {chr(97 + i)} speaks to its own caller only." for i in range(len(bots))]
    for bot, text in zip(bots, texts, strict=True):
        bot.say(text, "a")
    for bot in bots:
        done = bot.event("done", within_s=20)
        assert done["underruns"] == 0, done
    for phone in phones:
        hear_out(phone)
    heard = [phone.rtp.heard() for phone in phones]
    for phone in phones:
        phone.hang_up()
    for phone in phones:
        phone.wait_ended()
    for bot in bots:
        bot.event("hangup")
    for each in heard:
        mine = texts.pop(likeliest(each.pcm, [spoken(text) for text in texts]))
        compare(each.pcm, spoken(mine)).require()
        assert each.holes == [] and each.n_lost == 0, (mine, each.holes, each.n_lost)
    assert texts == []
