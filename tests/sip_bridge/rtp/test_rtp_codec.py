"""The formats of RTP: every one has 160 bytes for 20 ms, and what is decoded is what was said."""

from __future__ import annotations

import builtins
import struct
from typing import Any

import numpy as np
import pytest

from sip_bridge.app import SipBridge
from sip_bridge.config import load
from sip_bridge.rtp.codec import FORMATS, rtp_codec
from sip_bridge.rtp.packets import RtpReceiver, RtpSender
from telephony_tts.runtime.errors import FormatUnavailable

TYPES = {"ulaw": (0, 8000), "alaw": (8, 8000), "g722": (9, 16_000)}


def said(rate_hz: int) -> bytes:
    wave = 6000 * np.sin(2 * np.pi * 440 / rate_hz * np.arange(rate_hz))
    return np.rint(wave).astype("<i2").tobytes()


@pytest.mark.parametrize("format", FORMATS)
def test_speech_passes_both_ways_in_packets_of_160_bytes(format: str) -> None:
    codec = rtp_codec(format)
    assert (codec.payload_type, codec.rate_hz) == TYPES[format]
    sender = RtpSender(1, 0, 9, codec.payload_type)
    receiver = RtpReceiver(codec.payload_type)
    whole, n = said(codec.rate_hz), codec.rate_hz // 50 * 2
    heard = b""
    for number, at in enumerate(range(0, len(whole), n)):
        packet = sender.packet(codec.encode(whole[at : at + n]))
        assert len(packet) == 12 + 160 and packet[1] & 0x7F == codec.payload_type
        assert struct.unpack_from("!I", packet, 4)[0] == 160 * number, "the clock of G.722 is 8 kHz too"
        (codes,) = receiver.feed(packet, number)
        assert isinstance(codes, bytes)
        heard += codec.decode(codes)
    assert len(heard) == len(whole)
    # G.722's filters delay by 22 samples.
    ours, theirs = (np.frombuffer(each, "<i2").astype(float) for each in (whole, heard))
    lag = 22 if format == "g722" else 0
    rest = theirs[4000 + lag :] - ours[4000 : len(ours) - lag]
    assert np.sqrt(np.mean(rest**2)) < 0.04 * np.sqrt(np.mean(ours**2))


@pytest.mark.parametrize("format", FORMATS)
def test_a_lost_packet_is_a_hole_of_160_bytes(format: str) -> None:
    codec = rtp_codec(format)
    sender = RtpSender(1, 0, 9, codec.payload_type)
    receiver = RtpReceiver(codec.payload_type)
    packets = [sender.packet(codec.encode(said(codec.rate_hz)[: codec.rate_hz // 25])) for _ in range(6)]
    del packets[2]
    audio = [part for each in packets for part in receiver.feed(each, 0)] + receiver.due(10**9)
    assert [each if isinstance(each, int) else len(each) for each in audio] == [160] * 6
    assert [isinstance(each, int) for each in audio] == [False, False, True, False, False, False]


@pytest.mark.parametrize("format", FORMATS)
def test_a_packet_of_another_format_is_unreadable(format: str) -> None:
    codec = rtp_codec(format)
    receiver = RtpReceiver(codec.payload_type)
    for other, (kind, _) in TYPES.items():
        audio = receiver.feed(RtpSender(1, 0, 9, kind).packet(bytes(160)), 0)
        assert (audio == [bytes(160)]) == (other == format)
    assert receiver.n_unreadable == 2


@pytest.mark.parametrize(("format", "media", "needs"), [
    ("g722", "rtp", True), ("auto", "rtp", True), ("ulaw", "rtp", False), ("auto", "websocket_client", False),
])  # fmt: skip
def test_a_missing_package_is_reported_at_the_start(
    monkeypatch: pytest.MonkeyPatch, format: str, media: str, needs: bool
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    settings = {"ari.enabled": True, "ari.password": "x", "ari.media": media, "ari.format": format}
    config = load(None, settings, {})
    if needs:
        with pytest.raises(FormatUnavailable, match=r"install -e '\.\[formats\]'"):
            SipBridge(config)
    else:
        SipBridge(config)
