"""The dialplan of these tests: each way in which Asterisk passes on a call's audio, tried once with an echo.

The servers here are the least that can answer; the project's own have their tests elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from asterisk_peer import Asterisk
from compare import compare
from peer_process import wait_until
from phones import Phone, calling
from rtp_end import FRAME_BYTES, RtpExchange
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from telephony_tts.audio.g711 import Pcm, encode_ulaw

pytestmark = [pytest.mark.peer, pytest.mark.timed]
CREDENTIALS = "Basic " + base64.b64encode(b"tts:tts").decode()


def speech(n: int = 4800) -> Pcm:
    """Noise below 2 kHz, so that a resampler's slope at the edge of the band does not matter."""
    spectrum = np.fft.rfft(np.random.default_rng(30).standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / 8000)
    sound = np.fft.irfft(spectrum * ((hz > 100) & (hz < 2000)), n)
    said: Pcm = np.rint(2500 * sound / np.sqrt(np.mean(sound**2))).astype(np.int16)
    return said


SAID = speech()


def assert_echo(phone: Phone) -> None:
    """The server's echo must equal the sent speech."""
    phone.wait_answered()
    # Connecting takes time, and speech sent before that is lost.
    phone.wait_heard(5)
    phone.rtp.say(encode_ulaw(SAID))
    phone.wait_said()
    n_heard = len(phone.rtp.audio_packets())
    phone.wait_heard(n_heard + 15)
    compare(phone.rtp.heard().pcm, SAID).require(correlation=0.999, snr_db=30)


class MediaEcho:
    """A WebSocket server that echoes every frame and records the rest."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.frame_bytes: set[int] = set()
        self.requests: list[tuple[str, str | None, str | None]] = []
        """(path, authorization, subprotocol)"""
        self.answer: str | None = None
        """The command to send when the media has started: an ANSWER before that is sometimes lost."""

    def __call__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        request = connection.request
        self.requests.append((request.path, request.headers.get("Authorization"), connection.subprotocol))
        with contextlib.suppress(ConnectionClosed):
            for message in connection:
                if isinstance(message, str):
                    self.texts.append(message)
                    if "MEDIA_START" in message and self.answer is not None:
                        connection.send(self.answer)
                else:
                    self.frame_bytes.add(len(message))
                    connection.send(message)


@pytest.fixture
def media_server(pbx: Asterisk) -> Iterator[MediaEcho]:
    echo = MediaEcho()
    with serve(echo, "127.0.0.1", 0, subprotocols=["media"], compression=None) as server:  # type: ignore[list-item]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            pbx.configure(MEDIA_URI=f"ws://127.0.0.1:{server.socket.getsockname()[1]}/media")
            yield echo
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("codec", "frame_bytes"), [("ulaw", 160), ("alaw", 160), ("slin", 320), ("slin16", 640)])
def test_chan_websocket_in_plain_text(
    pbx: Asterisk, media: RtpExchange, media_server: MediaEcho, codec: str, frame_bytes: int
) -> None:
    with calling(media, pbx.sip_port, f"wstext-{codec}") as (phone,):
        assert_echo(phone)
    pbx.wait_for_no_channel()
    assert media_server.texts[0].startswith("MEDIA_START ") and f"format:{codec}" in media_server.texts[0].split()
    assert media_server.frame_bytes == {frame_bytes}
    basic = "Basic " + base64.b64encode(b"pbx:secret").decode()
    assert media_server.requests == [("/media", basic, "media")]


def test_chan_websocket_in_json_with_the_call_in_the_url(
    pbx: Asterisk, media: RtpExchange, media_server: MediaEcho
) -> None:
    with calling(media, pbx.sip_port, "wsjson-ulaw") as (phone,):
        assert_echo(phone)
    start = json.loads(media_server.texts[0])
    assert start["event"] == "MEDIA_START" and start["format"] == "ulaw" and start["optimal_frame_size"] == FRAME_BYTES
    asked = parse_qs(urlsplit(media_server.requests[0][0]).query)
    assert asked["from"] == ["phone"] and asked["call"][0].startswith("test-")


def test_chan_websocket_answered_by_the_server(pbx: Asterisk, media: RtpExchange, media_server: MediaEcho) -> None:
    media_server.answer = json.dumps({"command": "ANSWER"})
    with calling(media, pbx.sip_port, "wsearly-ulaw") as (phone,):
        assert_echo(phone)


def test_no_media_server_ends_the_call(pbx: Asterisk, media: RtpExchange) -> None:
    pbx.configure(MEDIA_URI="ws://127.0.0.1:1/media")
    with calling(media, pbx.sip_port, "wstext-ulaw") as (phone,):
        phone.wait_answered()
        phone.wait_ended()
    assert "dial status CHANUNAVAIL" in pbx.log()


class AudioSocketEcho:
    """A TCP server that echoes every frame of audio and records the rest."""

    def __init__(self, listener: socket.socket) -> None:
        self.ids: list[uuid.UUID] = []
        self.digits = ""
        self.audio: set[tuple[int, int]] = set()
        """(kind, bytes) of the frames."""
        self._listener = listener

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, connection.makefile("rb") as stream:
                    while len(header := stream.read(3)) == 3:
                        kind, length = struct.unpack("!BH", header)
                        payload = stream.read(length)
                        if kind == 0x01:
                            self.ids.append(uuid.UUID(bytes=payload))
                        elif kind == 0x03:
                            self.digits += payload.decode()
                        else:
                            self.audio.add((kind, length))
                            connection.sendall(header + payload)


@pytest.fixture
def audio_server(pbx: Asterisk) -> Iterator[AudioSocketEcho]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        echo = AudioSocketEcho(listener)
        thread = threading.Thread(target=echo.run)
        thread.start()
        try:
            pbx.configure(AUDIOSOCKET=f"127.0.0.1:{listener.getsockname()[1]}")
            yield echo
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_the_audiosocket_application(pbx: Asterisk, media: RtpExchange, audio_server: AudioSocketEcho) -> None:
    call = uuid.uuid4()
    with calling(media, pbx.sip_port, f"audiosocket-{call}") as (phone,):
        assert_echo(phone)
        phone.rtp.dial("4")
        wait_until(lambda: audio_server.digits == "4", "the digit arrives", 5)
    pbx.wait_for_no_channel()
    assert audio_server.ids == [call] and audio_server.audio == {(0x10, 320)}
    with calling(media, pbx.sip_port, "audiosocket") as (phone,):
        phone.wait_answered()
        wait_until(lambda: len(audio_server.ids) == 2, "a UUID of Asterisk's own", 5)
    assert audio_server.ids[1] != call


@pytest.mark.parametrize(("codec", "kind", "n_bytes"), [("slin", 0x10, 320), ("slin16", 0x12, 640)])
def test_the_audiosocket_channel(
    pbx: Asterisk, media: RtpExchange, audio_server: AudioSocketEcho, codec: str, kind: int, n_bytes: int
) -> None:
    with calling(media, pbx.sip_port, f"achannel-{codec}") as (phone,):
        assert_echo(phone)
    assert len(audio_server.ids) == 1 and audio_server.audio == {(kind, n_bytes)}


def ari(pbx: Asterisk, method: str, path: str) -> Any:
    """One request to the Asterisk REST Interface; its answer, or None."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{pbx.http_port}/ari/{path}", method=method, headers={"Authorization": CREDENTIALS}
    )
    # No proxy for loopback, whatever the environment says.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def test_ari_has_the_call_and_its_media_over_a_websocket(pbx: Asterisk, media: RtpExchange) -> None:
    """Stasis, an external media channel that we connect to, and a bridge: the frames that come are the caller's."""
    events = f"ws://127.0.0.1:{pbx.http_port}/ari/events?app=tts&api_key=tts:tts"
    with connect(events, proxy=None, max_queue=None) as told_us, calling(media, pbx.sip_port, "ari") as (phone,):

        def event(kind: str, channel: str | None = None) -> dict[str, Any]:
            while True:
                told: dict[str, Any] = json.loads(told_us.recv(5))
                if told["type"] == kind and channel in (None, told["channel"]["id"]):
                    return told

        call = event("StasisStart")["channel"]["id"]
        ari(pbx, "POST", f"channels/{call}/answer")
        external = ari(
            pbx, "POST",
            "channels/externalMedia?app=tts&external_host=INCOMING&transport=websocket&encapsulation=none"
            "&connection_type=server&format=ulaw&transport_data=f(json)",
        )  # fmt: skip
        secret = external["channelvars"]["MEDIA_WEBSOCKET_CONNECTION_ID"]
        url = f"ws://127.0.0.1:{pbx.http_port}/media/{secret}"
        # With a bounded queue its reader would stop and not see a close.
        with connect(url, proxy=None, compression=None, max_queue=None) as audio:
            event("StasisStart", external["id"])
            bridge = ari(pbx, "POST", "bridges?type=mixing")["id"]
            ari(pbx, "POST", f"bridges/{bridge}/addChannel?channel={call},{external['id']}")
            phone.wait_answered()
            phone.rtp.say(encode_ulaw(SAID))
            heard = b""
            while len(heard) < 45 * FRAME_BYTES:
                message = audio.recv(5)
                if isinstance(message, bytes):
                    heard += message
            assert encode_ulaw(SAID) in heard
            ari(pbx, "DELETE", f"channels/{call}")
            phone.wait_ended()
            ari(pbx, "DELETE", f"bridges/{bridge}")
            ari(pbx, "DELETE", f"channels/{external['id']}")
