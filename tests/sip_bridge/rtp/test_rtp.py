"""RTP packets written and put in order: speech keeps its order and its timing whatever the network does."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.rtp.packets import RtpAudio, RtpReceiver, RtpSender

MS = 1_000_000
HOLE = b"\xfe" * 160
"""Stands in these tests for a packet whose audio is to be made up. Nothing is said that has this byte."""
_HEADER = struct.Struct("!BBHII")


def said(number: int) -> bytes:
    return bytes([number % 251]) * 160


def packet(
    number: int, codes: bytes | None = None, *, kind: int = 0, ssrc: int = 7, first: int = 0x80, at: int | None = None
) -> bytes:
    """`at` is the timestamp. It is that of a packet every 20 ms if it is not given."""
    codes = said(number) if codes is None else codes
    at = number * 160 if at is None else at
    return _HEADER.pack(first, kind, number & 0xFFFF, at & 0xFFFFFFFF, ssrc) + codes


def flat(audio: RtpAudio) -> bytes:
    return b"".join(HOLE[:1] * each if isinstance(each, int) else each for each in audio)


def feed(receiver: RtpReceiver, data: bytes, now_ns: int) -> bytes:
    return flat(receiver.feed(data, now_ns))


def due(receiver: RtpReceiver, now_ns: int) -> bytes:
    return flat(receiver.due(now_ns))


def heard(receiver: RtpReceiver, numbers: list[int], every_ms: int = 20) -> bytes:
    return b"".join(feed(receiver, packet(number), n * every_ms * MS) for n, number in enumerate(numbers))


def test_packets_in_order_are_returned_at_once() -> None:
    receiver = RtpReceiver()
    for number in range(65_530, 65_550):  # across the wrap of the counter
        assert feed(receiver, packet(number), number * 20 * MS) == said(number)
    assert (receiver.n_lost, receiver.n_late, receiver.n_doubled) == (0, 0, 0)


def test_reordered_packets_are_put_in_order() -> None:
    receiver = RtpReceiver()
    assert heard(receiver, [0, 2, 1, 3, 6, 5, 4, 7]) == b"".join(said(n) for n in range(8))
    assert (receiver.n_lost, receiver.n_late) == (0, 0)


def test_a_lost_packet_is_a_hole_and_a_late_one_is_dropped() -> None:
    receiver = RtpReceiver()
    assert heard(receiver, [0, 2, 3], every_ms=1) == said(0)
    assert feed(receiver, packet(4), 4 * MS) == b""
    assert feed(receiver, packet(5), 5 * MS) == HOLE + b"".join(said(n) for n in (2, 3, 4, 5))
    assert feed(receiver, packet(1), 6 * MS) == b"" and feed(receiver, packet(5), 7 * MS) == b""
    assert (receiver.n_lost, receiver.n_late) == (1, 2)


def test_waiting_audio_is_returned_after_60_ms_without_new_packets() -> None:
    receiver = RtpReceiver()
    assert heard(receiver, [0, 2]) == said(0)
    assert due(receiver, 79 * MS) == b""
    assert due(receiver, 80 * MS) == HOLE + said(2)
    assert due(receiver, 10_000 * MS) == b""


def test_a_packet_that_comes_twice_is_heard_once() -> None:
    receiver = RtpReceiver()
    assert heard(receiver, [0, 2, 2, 1, 1]) == said(0) + said(1) + said(2)
    assert (receiver.n_doubled, receiver.n_late) == (1, 1)


def test_a_long_loss_is_a_hole_of_at_most_200_ms() -> None:
    receiver = RtpReceiver()
    feed(receiver, packet(0), 0)
    assert feed(receiver, packet(500), MS) == b""
    assert due(receiver, 100 * MS) == HOLE * 10 + said(500)


def test_another_source_or_a_far_jump_restarts_the_stream() -> None:
    receiver = RtpReceiver()
    assert heard(receiver, [0, 2]) == said(0)
    # Waiting audio of the old source is not lost.
    assert feed(receiver, packet(9_000, ssrc=8), 21 * MS) == HOLE + said(2) + said(9_000)
    assert feed(receiver, packet(9_001, ssrc=8), 41 * MS) == said(9_001)
    assert feed(receiver, packet(30_000, ssrc=8), 61 * MS) == said(30_000)
    assert receiver.n_lost == 1


def test_one_stray_number_does_not_make_later_packets_late() -> None:
    """It was once accepted, and the caller was not heard until the numbers had caught up, 10 s here."""
    receiver = RtpReceiver()
    assert heard(receiver, [0, 1, 2]) == b"".join(said(n) for n in range(3))
    assert feed(receiver, packet(502), 60 * MS) == b""
    audio = b"".join(feed(receiver, packet(n), (60 + 20 * (n - 2)) * MS) for n in range(3, 40))
    assert audio.endswith(b"".join(said(n) for n in range(16, 40))), "200 ms are lost, and no more"
    assert receiver.n_late <= 10


def test_a_sender_that_restarts_a_little_farther_back_is_heard_again() -> None:
    """A re-invite may bring another sequence with the same source, against RFC 3550."""
    receiver = RtpReceiver()
    heard(receiver, list(range(800, 820)))
    audio = b"".join(feed(receiver, packet(n), (400 + 20 * n) * MS) for n in range(500, 550))
    assert audio == b"".join(said(n) for n in range(509, 550))
    assert receiver.n_late == 10


def test_late_packets_between_timely_ones_are_not_a_restart() -> None:
    """A path that is 400 ms longer brings a run of late packets, with newer ones in between."""
    receiver = RtpReceiver()
    audio = b""
    for n in range(100, 160):
        audio += feed(receiver, packet(n), n * 20 * MS)
        audio += feed(receiver, packet(n - 20), n * 20 * MS)
    assert audio == b"".join(said(n) for n in range(100, 160))
    assert receiver.n_late == 60


@pytest.mark.parametrize("n_bytes", [1, 80, 240, 1488])
def test_packets_of_any_length_are_heard_whole(n_bytes: int) -> None:
    """Ethernet carries 1,500 bytes."""
    receiver = RtpReceiver()
    codes = [bytes([n]) * n_bytes for n in range(5)]
    assert b"".join(feed(receiver, packet(n, each), n * 20 * MS) for n, each in enumerate(codes)) == b"".join(codes)


def test_a_packet_of_another_payload_type_is_a_gap_and_no_restart() -> None:
    receiver = RtpReceiver()
    assert feed(receiver, packet(0), 0) == said(0)
    assert feed(receiver, packet(30_000, kind=8, ssrc=9), 0) == b"", "A-law of another source"
    assert feed(receiver, packet(0, b"\x00" * 20, kind=72), 0) == b"", "RTCP on the same port"
    assert feed(receiver, packet(1), 20 * MS) == said(1)
    assert (receiver.n_unreadable, receiver.n_lost) == (2, 0)


def test_digits_and_comfort_noise_leave_no_gap() -> None:
    receiver = RtpReceiver()
    assert feed(receiver, packet(0), 0) == said(0)
    assert feed(receiver, packet(1, b"\x01\x0a\x00\xa0", kind=101), 0) == b""
    assert feed(receiver, packet(2, b"\x40", kind=13), 0) == b""
    assert feed(receiver, packet(3), 0) == said(3)
    assert (receiver.n_lost, receiver.n_unreadable) == (0, 0)


def test_packets_that_asterisk_did_not_get_are_a_hole_too() -> None:
    """If it changes the codec it numbers its packets without a gap, and only the timestamps tell."""
    receiver = RtpReceiver()
    times = [0, 1, 2, 4, 5, 8, 9, 10]
    audio = b"".join(feed(receiver, packet(n, at=160 * at), n * 20 * MS) for n, at in enumerate(times))
    assert audio == said(0) + said(1) + said(2) + HOLE + said(3) + said(4) + HOLE * 2 + said(5) + said(6) + said(7)
    assert receiver.n_lost == 3


@pytest.mark.parametrize("pause_ms", [220, 5_000, 1_000_000])
def test_a_pause_of_the_sender_is_no_hole(pause_ms: int) -> None:
    """Silence suppression: nothing is sent, and the timestamps go on."""
    receiver = RtpReceiver()
    audio, at = b"", 0
    for number in range(30):
        audio += feed(receiver, packet(number, at=at), at // 8 * MS)
        at += 160 + (number % 10 == 9) * 8 * pause_ms
    assert audio == b"".join(said(n) for n in range(30)) and receiver.n_lost == 0


def test_a_packet_lost_at_a_pause_is_a_hole_of_one_packet() -> None:
    receiver = RtpReceiver()
    heard(receiver, list(range(5)))
    assert feed(receiver, packet(6, at=6 * 160 + 40_000), 5_000 * MS) == b""
    assert due(receiver, 5_060 * MS) == HOLE + said(6)
    assert feed(receiver, packet(7, at=7 * 160 + 40_000), 5_080 * MS) == said(7)


@pytest.mark.parametrize("step", [0, 80, 159, 161, 320, 330, 480, -160])
def test_a_sender_with_a_wrong_clock_has_no_hole_in_every_packet(step: int) -> None:
    """G.722 whose clock counts samples, for example: two steps for a byte."""
    receiver = RtpReceiver()
    audio = b"".join(feed(receiver, packet(n, at=n * step), n * 20 * MS) for n in range(50))
    assert audio == b"".join(said(n) for n in range(50)) and receiver.n_lost == 0
    assert feed(receiver, packet(51, at=51 * step), 1_020 * MS) == b""
    assert due(receiver, 1_080 * MS) == HOLE + said(51), "a lost packet is still noticed"


def test_reordered_packets_behind_a_jump_are_no_loss() -> None:
    receiver = RtpReceiver()
    numbers = [0, 1, 2, 4, 3, 5, 7, 8, 6, 9]
    assert heard(receiver, numbers) == b"".join(said(n) for n in range(10))
    assert (receiver.n_lost, receiver.n_late) == (0, 0)


def test_headers_with_extensions_and_padding_are_read() -> None:
    receiver = RtpReceiver()
    sources = packet(0, bytes(8) + said(0), first=0x82)
    extension = packet(1, b"\xbe\xde\x00\x02" + bytes(8) + said(1), first=0x90)
    padded = packet(2, said(2) + b"\x00\x00\x03", first=0xA0)
    assert [feed(receiver, each, 0) for each in (sources, extension, padded)] == [said(0), said(1), said(2)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", bytes(12), packet(0, kind=8), packet(0, b""), packet(0, b"\x01\x02", first=0x90),
     packet(0, b"\xbe\xde\xff\xff", first=0x90), packet(0, b"\xff", first=0xA0), packet(0, b"x", first=0x8F)],
)  # fmt: skip
def test_other_packets_than_mu_law_rtp_are_counted(data: bytes) -> None:
    receiver = RtpReceiver()
    assert feed(receiver, data, 0) == b"" and receiver.n_unreadable == 1
    assert feed(receiver, packet(5), 0) == said(5)


@given(st.lists(st.binary(max_size=400), max_size=40))
def test_no_datagram_raises_or_is_held_forever(datagrams: list[bytes]) -> None:
    receiver = RtpReceiver()
    for n, data in enumerate(datagrams):
        feed(receiver, data, n * MS)
    due(receiver, 10_000 * MS)
    assert not receiver._held


@pytest.mark.slow
@given(st.integers(0, 2**16 - 1), st.integers(0, 2**32), st.lists(st.integers(0, 9), min_size=60, max_size=60))
def test_jitter_loss_and_doubles_never_change_the_order(first: int, seed: int, luck: list[int]) -> None:
    chance = random.Random(seed)
    sent = [(n * 20 + chance.uniform(0, 55), n) for n in range(len(luck)) if luck[n] > 0]
    sent += [(at + 1, n) for at, n in sent if luck[n] == 9]
    sent[:0] = [(0.0, 0)]
    receiver = RtpReceiver()
    audio = b""
    for at_ms, n in sorted(sent):
        audio += due(receiver, round(at_ms * MS))
        audio += feed(receiver, packet(first + n, bytes([n + 1]) * 160), round(at_ms * MS))
    audio += due(receiver, 10_000 * MS)
    frames = [audio[at] for at in range(0, len(audio), 160)]
    spoken = [frame - 1 for frame in frames if frame != HOLE[0]]
    assert spoken == sorted(set(spoken)), "in order, none twice"
    assert len(spoken) + receiver.n_late + receiver.n_doubled == len(sent)
    last = spoken[-1]
    assert len(frames) == last + 1, "as long as it was said"


def test_sent_packets_count_by_one_and_by_160_samples() -> None:
    sender = RtpSender(65_535, 2**32 - 160, 9)
    made = [sender.packet(said(n)) for n in range(3)]
    sender.skip(320)
    made.append(sender.packet(said(3)))
    read = [_HEADER.unpack(each[:12]) for each in made]
    assert read == [
        (0x80, 0x80, 65_535, 2**32 - 160, 9), (0x80, 0, 0, 0, 9), (0x80, 0, 1, 160, 9), (0x80, 0, 2, 640, 9),
    ]  # fmt: skip
    assert [each[12:] for each in made] == [said(n) for n in range(4)]
