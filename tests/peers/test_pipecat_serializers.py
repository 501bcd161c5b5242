"""pipecat's serializers are the bot's side of a carrier's media stream, by other hands than ours.

What they send is what a carrier takes, so our legs must send the same. What they understand is what a carrier sends, so
our simulated carriers must be understood by them, and our codecs must read the same from the same messages.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from carrier_peers import ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from environment import drive
from twilio_peer import TwilioPeer

from telephony_tts.audio.encoder import CODECS
from telephony_tts.doors.exotel.codec import ExotelCodec
from telephony_tts.doors.plivo.codec import PlivoCodec
from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.doors.telnyx.codec import TelnyxCodec, TelnyxOptions
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.wire.media_stream import MediaStreamCodec
from telephony_tts.wire.messages import Frame, MediaAudio, MediaClear, MediaDtmf, MediaStart

pytestmark = [pytest.mark.peer, pytest.mark.slow]


class Recorder:
    """A socket that keeps what a simulated carrier sends."""

    close_code = close_reason = None

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, data: str) -> None:
        self.sent.append(data)

    async def __aiter__(self) -> AsyncIterator[str]:
        for nothing in ():
            yield nothing

    async def close(self) -> None:
        pass


async def of_a_call(platform: type[TwilioPeer], audio: bytes, **how: Any) -> list[str]:
    """What the simulated carrier sends in a call with 20 ms of the caller and a key."""
    socket = Recorder()
    peer = platform(socket, "v3:call-1", **how)  # type: ignore[arg-type]
    await peer.start(bot="sales")
    await peer.speak([audio])
    await peer.press("5")
    await peer.aclose()
    return socket.sent


CASES: list[tuple[str, type[TwilioPeer], MediaStreamCodec, dict[str, Any], tuple[str, str]]] = [
    ("twilio", TwilioPeer, TwilioCodec(), {}, ("ulaw", "ulaw")),
    ("twilio", SignalWirePeer, SignalWireCodec(), {}, ("ulaw", "ulaw")),
    ("telnyx", TelnyxPeer, TelnyxCodec(), {}, ("ulaw", "ulaw")),
    ("telnyx", TelnyxPeer, TelnyxCodec(TelnyxOptions("ulaw")), {"codec": "alaw"}, ("alaw", "ulaw")),
    ("telnyx", TelnyxPeer, TelnyxCodec(TelnyxOptions("alaw")), {}, ("ulaw", "alaw")),
    ("plivo", PlivoPeer, PlivoCodec(), {}, ("ulaw", "ulaw")),
    ("exotel", ExotelPeer, ExotelCodec(), {"codec": "pcm"}, ("pcm", "pcm")),
    ("exotel", ExotelPeer, ExotelCodec(), {"codec": "pcm", "rate_hz": 16000}, ("pcm", "pcm")),
]
NAMES = {"ulaw": "PCMU", "alaw": "PCMA", "pcm": "L16"}


@pytest.mark.parametrize(("serializer", "platform", "codec", "how", "codecs"), CASES)
def test_pipecat_and_our_codec_send_and_understand_the_same(
    serializer: str, platform: type[TwilioPeer], codec: MediaStreamCodec, how: dict[str, Any], codecs: tuple[str, str]
) -> None:
    heard_codec, spoken_codec = codecs
    rate_hz = how.get("rate_hz", 8000)
    tone = np.rint(9000 * np.sin(2 * np.pi * 500 * np.arange(rate_hz // 50) / rate_hz)).astype(np.int16)
    messages = asyncio.run(of_a_call(platform, CODECS[heard_codec].encode(tone), **how))
    events = drive(
        "pipecat_serializers.py", serializer, str(rate_hz), NAMES[heard_codec], NAMES[spoken_codec],
        base64.b64encode(tone.tobytes()).decode(), *messages,
    )  # fmt: skip
    assert [event["event"] for event in events] == ["start", "heard", "pressed", "sent", "sent"]
    start, heard, pressed, speech, interruption = events

    read = [message for data in messages if (message := codec.decode(data)) is not None]
    ours, audio, key = read
    assert isinstance(ours, MediaStart) and isinstance(audio, MediaAudio)
    assert (start["kind"], start["call"], start["stream"]) == (serializer, ours.call, ours.stream)
    assert heard["audio"] == CODECS[heard_codec].decode(audio.payload).tobytes()
    assert key == MediaDtmf(pressed["digit"])

    payload = CODECS[spoken_codec].encode(tone)
    assert json.loads(codec.encode(Frame(payload))[0]) == speech["message"]
    assert json.loads(codec.encode(MediaClear())[0]) == interruption["message"]
