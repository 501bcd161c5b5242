"""How packets become received audio, without a network; and how speech becomes packets, over loopback."""

from __future__ import annotations

import socket
import struct

import pytest
from peer_process import wait_until
from rtp_end import DTMF_PAYLOAD_TYPE, RtpEnd, RtpExchange, RtpPacket, lay_out

pytestmark = pytest.mark.slow

MS = 1_000_000


def packet(number: int, *, ssrc: int = 1, sequence: int | None = None, timestamp: int | None = None) -> RtpPacket:
    """The frame with this number, on time. Each of its bytes is the number."""
    return RtpPacket(
        number * 20 * MS, (number if sequence is None else sequence) & 0xFFFF,
        (number * 160 if timestamp is None else timestamp) & 0xFFFFFFFF, False, 0, ssrc, bytes([number % 256]) * 160,
    )  # fmt: skip


def numbers(codes: bytes) -> list[int]:
    return [codes[at] for at in range(0, len(codes), 160)]


def test_frames_are_placed_by_their_timestamps() -> None:
    heard = lay_out([packet(n) for n in (3, 4, 6, 5, 7)], "ulaw")
    assert numbers(heard.codes) == [3, 4, 5, 6, 7]
    assert (heard.n_reordered, heard.n_lost, heard.n_duplicates, heard.holes) == (1, 0, 0, [])
    assert heard.gaps_ms.tolist() == [20, 40, -20, 40] and len(heard.pcm) == 5 * 160


def test_a_lost_frame_is_silence_in_its_place() -> None:
    heard = lay_out([packet(n) for n in (0, 1, 4, 5)], "ulaw")
    assert numbers(heard.codes) == [0, 1, 255, 255, 4, 5]
    assert heard.holes == [(320, 320)] and heard.n_lost == 2


def test_a_pause_of_the_sender_is_a_hole_without_a_loss() -> None:
    heard = lay_out([packet(0), packet(1), packet(10, sequence=2), packet(11, sequence=3)], "ulaw")
    assert heard.holes == [(320, 8 * 160)] and heard.n_lost == 0


def test_a_packet_that_comes_twice_is_heard_once() -> None:
    heard = lay_out([packet(n) for n in (0, 1, 1, 2, 3, 1)], "ulaw")
    assert numbers(heard.codes) == [0, 1, 2, 3]
    assert (heard.n_duplicates, heard.n_lost, heard.n_reordered) == (2, 0, 0)


def test_counters_wrap() -> None:
    frames = [packet(n, sequence=0xFFFE + n, timestamp=0xFFFFFF00 + n * 160) for n in range(5)]
    heard = lay_out(frames, "ulaw")
    assert numbers(heard.codes) == [0, 1, 2, 3, 4]
    assert (heard.n_lost, heard.n_reordered, heard.holes) == (0, 0, [])


def test_another_source_continues_where_it_arrived() -> None:
    frames = [packet(0), packet(1), *(packet(n, ssrc=9, sequence=n + 500, timestamp=n * 160 + 77_777) for n in (2, 3))]
    heard = lay_out(frames, "ulaw")
    assert numbers(heard.codes) == [0, 1, 2, 3] and heard.n_lost == 0 and heard.holes == []


def test_no_packets_are_an_error() -> None:
    with pytest.raises(ValueError, match="no audio came"):
        lay_out([], "ulaw")


def test_one_end_receives_what_the_other_sends(media: RtpExchange) -> None:
    one, other = RtpEnd(media, "alaw"), RtpEnd(media, "alaw")
    said = bytes(n % 251 for n in range(5 * 160 + 40))
    one.say(said)
    one.dial("7#", duration_ms=60, pause_ms=40)
    one.start(other.port, silent=True)
    wait_until(lambda: one.n_queued() == 0 and len(other.packets) >= 16, "all has come", 5)
    one.stop()
    heard = other.heard()
    assert heard.codes[: len(said)] == said and set(heard.codes[len(said) : 6 * 160]) == {0xD5}
    assert other.digits() == "7#"
    events = [p for p in other.packets if p.payload_type == DTMF_PAYLOAD_TYPE]
    assert [(p.payload[0], bool(p.payload[1] & 0x80), int.from_bytes(p.payload[2:], "big")) for p in events[:5]] == [
        (7, False, 160), (7, False, 320), (7, True, 480), (7, True, 480), (7, True, 480),
    ]  # fmt: skip
    assert [p.marker for p in events[:5]] == [True, False, False, False, False]
    assert len({p.timestamp for p in events[:5]}) == 1
    assert other.audio_packets()[0].marker, "the first of a talk-spurt"
    assert [p.sequence - other.packets[0].sequence & 0xFFFF for p in other.packets] == list(range(len(other.packets)))


def test_a_silent_phone_sends_nothing_and_others_send_silence(media: RtpExchange) -> None:
    one, other, third = RtpEnd(media), RtpEnd(media), RtpEnd(media)
    one.start(third.port, silent=True)
    other.start(third.port)
    wait_until(lambda: len(third.packets) >= 5, "silence has come", 5)
    assert {p.payload for p in third.packets} == {b"\xff" * 160} and len({p.ssrc for p in third.packets}) == 1


def test_packets_that_are_not_rtp_are_ignored(media: RtpExchange) -> None:
    end = RtpEnd(media)
    good = struct.pack("!BBHII", 0x80, 0, 1, 160, 5) + b"\x01" * 160
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"x", b"\x00" * 172, good):
            sender.sendto(data, ("127.0.0.1", end.port))
        wait_until(lambda: end.packets, "the good one has come", 5)
    assert [p.payload for p in end.packets] == [b"\x01" * 160]
