from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import speech_like

from telephony_tts.audio import g711
from telephony_tts.audio.wav import Wav, WavWriter, read_wav, with_true_lengths, write_wav
from telephony_tts.runtime.errors import AudioError

SPEECH = speech_like(801, 8_000)
PAYLOADS = {
    "pcm": SPEECH.astype("<i2").tobytes(),
    "ulaw": g711.encode_ulaw(SPEECH),
    "alaw": g711.encode_alaw(SPEECH),
}
HEADER_BYTES = {"pcm": 44, "ulaw": 58, "alaw": 58}


def in_memory(codec: str, payload: bytes, rate_hz: int = 8_000) -> bytes:
    file = io.BytesIO()
    write_wav(file, payload, codec, rate_hz)
    return file.getvalue()


def chunks_of(content: bytes) -> dict[bytes, bytes]:
    assert content[:4] == b"RIFF" and content[8:12] == b"WAVE"
    assert struct.unpack_from("<I", content, 4)[0] == len(content) - 8
    place, chunks = 12, {}
    while place < len(content):
        name, n_bytes = struct.unpack_from("<4sI", content, place)
        chunks[name] = content[place + 8 : place + 8 + n_bytes]
        place += 8 + n_bytes + n_bytes % 2
    assert place == len(content)
    return chunks


def test_python_reads_our_pcm(tmp_path):
    path = tmp_path / "speech.wav"
    with WavWriter(path, "pcm", 24_000) as writer:
        for start in range(0, len(PAYLOADS["pcm"]), 100):
            writer.write(PAYLOADS["pcm"][start : start + 100])
    with wave.open(str(path)) as file:
        assert file.getparams()[:4] == (1, 2, 24_000, 801)
        assert file.readframes(10_000) == PAYLOADS["pcm"]


def test_we_read_pythons_pcm():
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(PAYLOADS["pcm"])
    buffer.seek(0)
    assert read_wav(buffer) == Wav("pcm", 16_000, PAYLOADS["pcm"])


@pytest.mark.parametrize(("codec", "tag"), [("alaw", 6), ("ulaw", 7)])
def test_g711_files_have_the_chunks_the_format_asks_for(codec, tag):
    chunks = chunks_of(in_memory(codec, PAYLOADS[codec]))
    assert list(chunks) == [b"fmt ", b"fact", b"data"]
    assert struct.unpack("<HHIIHHH", chunks[b"fmt "]) == (tag, 1, 8_000, 8_000, 1, 8, 0)
    assert struct.unpack("<I", chunks[b"fact"]) == (801,)
    assert chunks[b"data"] == PAYLOADS[codec]


def test_a_pcm_file_has_the_classic_header():
    chunks = chunks_of(in_memory("pcm", PAYLOADS["pcm"], 24_000))
    assert list(chunks) == [b"fmt ", b"data"]
    assert struct.unpack("<HHIIHH", chunks[b"fmt "]) == (1, 1, 24_000, 48_000, 2, 16)


def test_reading_gives_back_the_sound():
    assert np.array_equal(read_wav(io.BytesIO(in_memory("pcm", PAYLOADS["pcm"]))).pcm, SPEECH)
    for codec, decode in (("ulaw", g711.decode_ulaw), ("alaw", g711.decode_alaw)):
        recording = read_wav(io.BytesIO(in_memory(codec, PAYLOADS[codec])))
        assert np.array_equal(recording.pcm, decode(PAYLOADS[codec]))
        assert np.abs(recording.pcm.astype(int) - SPEECH).max() <= 512


@given(codec=st.sampled_from(["ulaw", "alaw"]), payload=st.binary(max_size=300), rate_hz=st.integers(1, 192_000))
@settings(deadline=None, derandomize=True)
def test_any_payload_comes_back(codec, payload, rate_hz):
    assert read_wav(io.BytesIO(in_memory(codec, payload, rate_hz))) == Wav(codec, rate_hz, payload)


@given(st.lists(st.binary(max_size=40)))
@settings(deadline=None, derandomize=True)
def test_pieces_make_the_same_file_as_the_whole(pieces):
    file = io.BytesIO()
    with WavWriter(file, "ulaw", 8_000) as writer:
        for piece in pieces:
            writer.write(piece)
    assert file.getvalue() == in_memory("ulaw", b"".join(pieces))


def test_a_file_object_is_patched_where_it_began_and_left_open_at_its_end():
    file = io.BytesIO()
    file.write(b"preface")
    write_wav(file, PAYLOADS["ulaw"], "ulaw", 8_000)
    assert not file.closed and file.tell() == len(file.getvalue())
    assert file.getvalue() == b"preface" + in_memory("ulaw", PAYLOADS["ulaw"])


class Pipe(io.RawIOBase):
    """Like standard output into a pipe: it takes bytes and cannot seek."""

    def __init__(self) -> None:
        self.received = b""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data) -> int:
        self.received += bytes(data)
        return len(data)


@pytest.mark.parametrize("codec", ["pcm", "ulaw", "alaw"])
def test_a_pipe_gets_a_file_of_unknown_length(codec):
    pipe = Pipe()
    write_wav(pipe, PAYLOADS[codec], codec, 8_000)
    assert pipe.received[4:8] == b"\xff\xff\xff\xff"
    assert pipe.received[HEADER_BYTES[codec] - 4 : HEADER_BYTES[codec]] == b"\xff\xff\xff\xff"
    assert read_wav(io.BytesIO(pipe.received)) == Wav(codec, 8_000, PAYLOADS[codec])


def test_a_file_whose_writer_was_killed_is_readable_to_its_end(tmp_path):
    with open(tmp_path / "cut.wav", "wb") as file:
        WavWriter(file, "ulaw", 8_000).write(PAYLOADS["ulaw"])
    assert read_wav(tmp_path / "cut.wav").payload == PAYLOADS["ulaw"]


@pytest.mark.parametrize("n_said", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000])
@pytest.mark.parametrize("codec", ["pcm", "ulaw"])
def test_a_streamed_file_is_read_to_its_end(codec, n_said):
    content = bytearray(in_memory(codec, PAYLOADS[codec])[: HEADER_BYTES[codec] + len(PAYLOADS[codec])])
    length = struct.pack("<I", n_said)
    content[4:8] = content[HEADER_BYTES[codec] - 4 : HEADER_BYTES[codec]] = length
    assert read_wav(io.BytesIO(content)).payload == PAYLOADS[codec]
    if codec == "pcm":
        assert read_wav(io.BytesIO(content + b"x")).payload == PAYLOADS[codec], "half a sample is dropped"
    with wave.open(io.BytesIO(with_true_lengths(in_memory("pcm", PAYLOADS["pcm"])))) as file:
        assert file.getnframes() == 801, "true lengths stay"


def test_a_file_without_audio_is_not_read_on_into_its_next_chunk():
    content = in_memory("pcm", b"") + b"LIST" + struct.pack("<I", 4) + b"abcd"
    content = content[:4] + struct.pack("<I", len(content) - 8) + content[8:]
    assert read_wav(io.BytesIO(content)).payload == b""


def test_an_exception_closes_the_file_with_right_lengths(tmp_path):
    with pytest.raises(ZeroDivisionError), WavWriter(tmp_path / "half.wav", "pcm", 8_000) as writer:
        writer.write(b"\x01\x00\x02\x00")
        raise ZeroDivisionError
    with wave.open(str(tmp_path / "half.wav")) as file:
        assert file.readframes(10) == b"\x01\x00\x02\x00"


def test_closing_twice_is_fine_and_writing_after_it_is_not():
    file = io.BytesIO()
    writer = WavWriter(file, "ulaw", 8_000)
    writer.close()
    writer.close()
    assert file.getvalue() == in_memory("ulaw", b"")
    with pytest.raises(AudioError, match="closed"):
        writer.write(b"\xff")


def test_other_chunks_are_skipped_with_their_padding():
    whole = in_memory("ulaw", PAYLOADS["ulaw"])
    with_list = whole[:12] + struct.pack("<4sI", b"LIST", 5) + b"hello\x00" + whole[12:]
    assert read_wav(io.BytesIO(with_list)).payload == PAYLOADS["ulaw"]


def test_extensible_pcm_is_pcm():
    guid = struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
    fmt = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 48_000, 96_000, 2, 16, 22, 16, 4) + guid
    content = b"RIFF\x00\x00\x00\x00WAVE" + struct.pack("<4sI", b"fmt ", len(fmt)) + fmt
    content += struct.pack("<4sI", b"data", 4) + b"\x01\x00\xff\xff"
    assert read_wav(io.BytesIO(content)).pcm.tolist() == [1, -1]


@pytest.mark.parametrize("codec", ["pcm", "ulaw", "alaw"])
def test_every_truncated_file_is_refused(codec):
    whole = in_memory(codec, PAYLOADS[codec])
    end = HEADER_BYTES[codec] + len(PAYLOADS[codec])
    for n in [*range(HEADER_BYTES[codec] + 3), end - 2, end - 1]:
        with pytest.raises(AudioError):
            read_wav(io.BytesIO(whole[:n]))


def altered(place: int, value: bytes, codec: str = "pcm") -> bytes:
    whole = in_memory(codec, PAYLOADS[codec])
    return whole[:place] + value + whole[place + len(value) :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"OggS" + bytes(60), "not a WAV"),
        (b"", "not a WAV"),
        (altered(8, b"AVI "), "not a WAV"),
        (altered(20, b"\x03\x00"), "0x0003 is not supported"),
        (altered(22, b"\x02\x00"), "2 channels"),
        (altered(34, b"\x18\x00"), "24-bit pcm"),
        (altered(24, b"\x00\x00\x00\x00"), "rate of 0"),
        (altered(12, b"junk"), "before its format"),
        (altered(16, b"\x04\x00\x00\x00"), "format of 4 bytes"),
        (altered(40, b"\x03\x00\x00\x00"), "whole number of samples"),
        (altered(36, b"junk"), "no data"),
        (altered(40, b"\x00\x00\x00\x70"), "truncated"),
    ],
)
def test_foreign_and_damaged_files_are_refused_in_words(content, message):
    with pytest.raises(AudioError, match=message):
        read_wav(io.BytesIO(content))


@given(place=st.integers(0, 57), value=st.binary(min_size=1, max_size=4), codec=st.sampled_from(["pcm", "ulaw"]))
@settings(deadline=None, derandomize=True)
def test_a_damaged_header_is_read_or_refused_and_nothing_else(place, value, codec):
    try:
        recording = read_wav(io.BytesIO(altered(place, value, codec)))
    except AudioError:
        return
    assert len(recording.payload) <= len(PAYLOADS[codec])


def test_what_cannot_be_written_is_refused():
    with pytest.raises(AudioError, match="opus"):
        WavWriter(io.BytesIO(), "opus", 8_000)
    with pytest.raises(AudioError, match="positive"):
        WavWriter(io.BytesIO(), "ulaw", 0)
