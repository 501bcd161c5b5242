"""What telephone systems send to the bridge: AudioSocket, RTP, ARI, FreeSWITCH's event socket; and orders for calls."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

from sip_bridge.ari import messages as ari
from sip_bridge.ari.config import OriginateConfig
from sip_bridge.ari.originate import Originator
from sip_bridge.audiosocket.connection import READ_BYTES
from sip_bridge.audiosocket.frames import AudioSocketReader
from sip_bridge.freeswitch.esl_messages import EslGarbage, EslReader, event, execute
from sip_bridge.freeswitch.speech_files import is_folder, is_speech_file
from sip_bridge.rtp.packets import RtpReceiver, RtpSender
from torture.fuzz.judge import FuzzTarget

_MOST_FILLED_BYTES = 1_600 + 4 * 65_536
_MOST_AUDIOSOCKET_BYTES = 2 * READ_BYTES


def pieces(data: bytes) -> Iterator[bytes]:
    """The input in pieces, as a network may cut it. The first byte decides where."""
    size = (1, 2, 3, 7, 64, 1_500, 65_536)[data[0] % 7] if data else 1
    if len(data) > 1_024:
        size = max(size, 64)  # so that the pieces of a long input are not the subject
    for at in range(1, len(data), size):
        yield data[at : at + size]


def read_audiosocket(data: bytes) -> None:
    """Two reads of a connection at most: it reads 8 kB at a time, and lets the other calls run between them."""
    data = data[: 1 + _MOST_AUDIOSOCKET_BYTES]
    whole, cut = AudioSocketReader(), AudioSocketReader()
    expected = whole.feed(data[1:])
    found = [frame for piece in pieces(data) for frame in cut.feed(piece)]
    assert found == expected, "the frames depend on where the stream is cut"


def read_rtp(data: bytes) -> None:
    """Packets of one call, each behind its length in two bytes. Time goes on by 20 ms with each."""
    receiver, at, now_ns = RtpReceiver(), 0, 0
    while at + 2 <= len(data):
        n = int.from_bytes(data[at : at + 2], "big") % 2_048
        given = receiver.feed(data[at + 2 : at + 2 + n], now_ns) + receiver.due(now_ns)
        n_bytes = sum(each if isinstance(each, int) else len(each) for each in given)
        assert n_bytes <= _MOST_FILLED_BYTES, f"{n_bytes} bytes of audio from one packet"
        assert len(receiver._held) <= 5, "packets are kept that are not awaited"
        at, now_ns = at + 2 + n, now_ns + 20_000_000


def read_esl(data: bytes) -> None:
    reader = EslReader()
    try:
        for piece in pieces(data):
            for message in reader.feed(piece):
                found = event(message)
                if found is None:
                    continue
                found.name.encode()
                path, channel = found.get("File"), found.get("Unique-ID")
                if is_speech_file(path, channel):
                    assert is_folder(path[: path.rfind("/") + 1]) and ".." not in path.split("/")
                    assert "\n" not in path
                try:
                    told = execute(channel, "playback", path)
                except ValueError:
                    continue
                assert told.count("\n") == 4, "an argument has added a line to a command"
    except EslGarbage:
        pass


def read_ari(data: bytes) -> None:
    message = ari.decode(data)
    if isinstance(message, ari.AriAnswer):
        ari.channel_of(message.body)
        ari.variable_of(message.body, "UNICASTRTP_LOCAL_PORT")
    if isinstance(message, ari.BadAriMessage):
        assert len(message.why) < 200


_ORDERS = Originator(OriginateConfig(endpoints=("PJSIP/",), token="t"), None)  # type: ignore[arg-type]  # makes no call


def read_order(data: bytes) -> None:
    try:
        order, _ = _ORDERS._read(data)
    except ValueError as error:
        told = json.dumps({"message": str(error)})  # as the answer is written
        assert told.isascii() and len(told) < 1_000
        return
    assert order.endpoint.startswith("PJSIP/") and not set(order.endpoint) & set(" ,&|()^\"'\\\n\r")
    for text in (order.caller_id, order.call):
        assert "\n" not in text and "\r" not in text


def _frame(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(2, "big") + payload


def _packets(*packets: bytes) -> bytes:
    return b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets)


def _esl(*messages: str) -> bytes:
    return b"\x06" + "".join(messages).encode()


_NAMED = b"\x06" + _frame(0x01, uuid.UUID(int=7).bytes)
_AUDIO = [RtpSender(65_534 + n, 160 * n, 9).packet(bytes(160)) for n in range(5)]
_EVENT = (
    "Event-Name: CUSTOM\nEvent-Subclass: mod_audio_stream%3A%3Aplay\nUnique-ID: 5b2c7c3e-1111-4222-8333-444455556666\n"
    "File: /tmp/5b2c7c3e-1111-4222-8333-444455556666_1.tmp.r8\nContent-Length: 2\n\n{}"
)
_CHANNEL = {
    "id": "1.2",
    "name": "PJSIP/x",
    "state": "Up",
    "caller": {"number": "1", "name": "x"},
    "connected": {},
    "dialplan": {"exten": "7", "app_name": "Stasis", "app_data": "tts,a"},
}

TELEPHONE_TARGETS = (
    FuzzTarget(
        "audiosocket",
        read_audiosocket,
        (
            _NAMED + _frame(0x10, bytes(320)) + _frame(0x03, b"5") + _frame(0x00, b""),
            _NAMED + _frame(0x12, bytes(640)) + _frame(0xFF, b"\x01") + _frame(0x42, b"x") + _frame(0x10, b"xyz"),
            b"\x00" + _NAMED[1:] + _frame(0x18, bytes(64)) * 3,
            b"\x06GET / HTTP/1.1\r\n\r\n",
        ),
        (b"\x10\x01\x40", b"\x01\x00\x10", b"\x03\x00\x01", b"\x00\x00\x00", b"\xff\x00\x00", b"\x10\xff\xff"),
    ),
    FuzzTarget(
        "rtp",
        read_rtp,
        (
            _packets(*_AUDIO),
            _packets(_AUDIO[0], _AUDIO[2], _AUDIO[1], _AUDIO[1], _AUDIO[4]),
            _packets(b"\x91\x80\x00\x01" + bytes(8) + b"csrc" + b"\xbe\xde\x00\x01" + bytes(4) + bytes(160)),
            _packets(b"\xa0\x80\x00\x01" + bytes(8) + bytes(156) + b"\0\0\0\x04", b"\x80\x65" + bytes(14)),
        ),
        (b"\x80\x00", b"\x80\x80", b"\x90\x00", b"\xa0\x00", b"\xff\xff", b"\x00\xac", b"\x00\x0c"),
    ),
    FuzzTarget(
        "esl",
        read_esl,
        (
            _esl("Content-Type: auth/request\n\n", "Content-Type: command/reply\nReply-Text: +OK accepted\n\n"),
            _esl(f"Content-Length: {len(_EVENT)}\nContent-Type: text/event-plain\n\n{_EVENT}"),
            _esl("Content-Type: text/disconnect-notice\nContent-Length: 4\n\nbye\n"),
        ),
        (b"\n\n", b"Content-Length: ", b"Content-Type: text/event-plain", b"Unique-ID: ", b"File: /", b"%0A", b": "),
    ),
    FuzzTarget(
        "ari",
        read_ari,
        tuple(
            json.dumps(message).encode()
            for message in (
                {"type": "StasisStart", "channel": _CHANNEL, "args": ["a"]},
                {"type": "ChannelDestroyed", "channel": _CHANNEL, "cause": 16, "cause_txt": "Normal"},
                {"type": "ChannelDtmfReceived", "channel": _CHANNEL, "digit": "5"},
                {
                    "type": "RESTResponse",
                    "request_id": "r1",
                    "status_code": 200,
                    "message_body": json.dumps({**_CHANNEL, "channelvars": {"UNICASTRTP_LOCAL_PORT": "9"}}),
                },
                {"type": "ApplicationReplaced"},
            )
        ),
        (b'"type":', b'"channel":', b'"cause":', b'"digit":', b'"message_body":'),
    ),
    FuzzTarget(
        "order",
        read_order,
        (
            json.dumps(
                {
                    "endpoint": "PJSIP/100",
                    "caller_id": "Shop <+49>",
                    "call": "c1",
                    "variables": {"LANG": "de"},
                    "timeout_s": 30,
                    "wait": True,
                }
            ).encode(),
            b'{"endpoint": "Local/1@x"}',
        ),
        (b'"endpoint":', b'"variables":', b"PJSIP/", b'"timeout_s":', b"&", b"^"),
    ),
)
