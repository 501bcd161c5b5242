"""Sounds from files, and their loops."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from signals import speech_like, tone

from telephony_tts.audio.g711 import Pcm, encode_alaw, encode_ulaw
from telephony_tts.audio.included_sounds import INCLUDED
from telephony_tts.audio.sound import Sound, amplified, new_sound
from telephony_tts.audio.sound_file import read_sound
from telephony_tts.audio.wav import write_wav
from telephony_tts.runtime.errors import AudioError, FormatUnavailable

SPEECH = speech_like(4_000, 8_000)


def wav(tag: int, n_channels: int, rate_hz: int, n_bits: int, body: bytes, *, extensible: bool = False) -> bytes:
    width = n_channels * n_bits // 8
    fmt = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, n_channels, rate_hz, rate_hz * width, width, n_bits)
    if extensible:
        fmt += struct.pack("<HHIH", 22, n_bits, 0, tag) + bytes(14)
    head = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt
    head += b"LIST" + struct.pack("<I", 3) + b"abc\x00"  # an odd chunk, which is padded
    head += b"data" + struct.pack("<I", len(body))
    return b"RIFF" + struct.pack("<I", len(head) + len(body)) + head + body


def read(path: Path, content: bytes, *, max_s: float = 60, max_bytes: int = 1 << 20) -> Sound:
    path.write_bytes(content)
    return read_sound(str(path), max_s, max_bytes)


def int24(pcm: Pcm) -> bytes:
    return (pcm.astype("<i4") * 256).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


@pytest.mark.parametrize(
    ("tag", "n_bits", "body", "most_off"),
    [
        (1, 16, SPEECH.astype("<i2").tobytes(), 0),
        (1, 24, int24(SPEECH), 0),
        (1, 32, (SPEECH.astype("<i4") * 65536).tobytes(), 0),
        (1, 8, (SPEECH // 256 + 128).astype(np.uint8).tobytes(), 256),
        (3, 32, (SPEECH / 32768).astype("<f4").tobytes(), 0),
        (3, 64, (SPEECH / 32768).astype("<f8").tobytes(), 0),
        (6, 8, encode_alaw(SPEECH), 600),
        (7, 8, encode_ulaw(SPEECH), 600),
    ],
)
@pytest.mark.parametrize("extensible", [False, True])
def test_each_form_of_wav_has_its_samples(
    tmp_path: Path, tag: int, n_bits: int, body: bytes, most_off: int, extensible: bool
) -> None:
    sound = read(tmp_path / "a.wav", wav(tag, 1, 8_000, n_bits, body, extensible=extensible))
    assert sound.rate_hz == 8_000 and len(sound.pcm) == len(SPEECH)
    assert int(np.abs(sound.pcm.astype(int) - SPEECH).max()) <= most_off


@pytest.mark.parametrize("n_said", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_streamed_wav_is_read_to_its_end(tmp_path: Path, n_said: int) -> None:
    content = wav(1, 1, 8_000, 24, int24(SPEECH) + b"xx")
    place = content.index(b"data") + 4
    content = content[:place] + struct.pack("<I", n_said) + content[place + 4 :]
    content = content[:4] + struct.pack("<I", n_said) + content[8:]
    assert np.array_equal(read(tmp_path / "a.wav", content).pcm, SPEECH)


def test_the_channels_of_stereo_are_averaged(tmp_path: Path) -> None:
    left, right = tone(300, 800, 16_000), tone(700, 800, 16_000)
    body = np.stack((left, right), axis=1).astype("<i2").tobytes()
    sound = read(tmp_path / "a.wav", wav(1, 2, 16_000, 16, body))
    assert np.array_equal(sound.pcm, np.rint((left.astype(np.float32) + right) / 2).astype(np.int16))


@pytest.mark.parametrize("rate_hz", [4_000, 8_000, 11_025, 44_100, 48_000, 192_000])
def test_a_sound_of_any_rate_is_the_same_tone_at_8_khz(tmp_path: Path, rate_hz: int) -> None:
    body = tone(440, rate_hz, rate_hz).astype("<i2").tobytes()
    sound = read(tmp_path / "a.wav", wav(1, 1, rate_hz, 16, body)).at(8_000)
    assert len(sound.pcm) == 8_000
    assert int(np.abs(sound.pcm.astype(int) - tone(440, 8_000, 8_000)).max()) < 60, "also at both ends"


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 48_000])
def test_a_resampled_loop_has_no_click_where_it_begins_again(rate_hz: int) -> None:
    """The tone fits the loop a whole number of times, so two rounds of it are one long tone."""
    sound = new_sound(tone(441, 44_100, 44_100).astype(np.float32), 44_100).at(rate_hz)
    rounds = sound.cut(rate_hz // 2, 2 * rate_hz)
    true = tone(441, 3 * rate_hz, rate_hz)[rate_hz // 2 : rate_hz // 2 + 2 * rate_hz]
    assert int(np.abs(rounds.astype(int) - true).max()) < 60


def test_a_sound_shorter_than_the_filter_can_be_a_loop() -> None:
    sound = new_sound(tone(441, 100, 44_100).astype(np.float32), 44_100).at(8_000)
    assert len(sound.pcm) == 18
    assert len(sound.cut(5, 1000)) == 1000


def test_a_gain_is_applied_and_limited() -> None:
    loud = tone(440, 800, 8_000, amplitude=30_000)
    assert np.array_equal(amplified(loud, 0), loud)
    assert np.array_equal(amplified(loud, -20), np.rint(loud / np.float32(10)).astype(np.int16))
    assert 30_000 < int(amplified(loud, 12).max()) <= 32_767


# ----------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (wav(1, 1, 8_000, 16, b""), "no audio"),
        (wav(1, 1, 8_000, 16, bytes(100))[:-10], "truncated"),
        (wav(1, 1, 8_000, 16, b"")[:-8], "truncated"),
        (b"RIFF\x04\x00\x00\x00WAVE", "truncated"),
        (b"RIFF\x0c\x00\x00\x00WAVEdata\x00\x00\x00\x00", "before its format"),
        (b"RIFF\x0c\x00\x00\x00WAVEfmt \x02\x00\x00\x00\x01\x00", "a format of 2 bytes"),
        (wav(0x11, 1, 8_000, 4, bytes(100)), "0x0011 with 4 bits is not supported"),
        (wav(1, 0, 8_000, 16, bytes(100)), "0 channels"),
        (wav(1, 1, 0, 16, bytes(100)), "0 Hz"),
        (wav(1, 1, 384_000, 16, bytes(100)), "384000 Hz; 4000 to 192000"),
        (wav(3, 1, 8_000, 32, struct.pack("<f", float("nan"))), "not all numbers"),
        (wav(1, 1, 8_000, 16, bytes(2 * 8_001)), "1.0 s; the limit is 1 s"),
        (bytes(20_001), "20001 bytes; the limit is 20000"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(AudioError, match=why):
        read(tmp_path / "a.wav", content, max_s=1, max_bytes=20_000)


def test_a_folder_a_pipe_and_a_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    for path, why in ((tmp_path, "a folder"), (tmp_path / "pipe.wav", "not a file")):
        with pytest.raises(AudioError, match=why):
            read_sound(str(path), 1, 1000)
    with pytest.raises(FileNotFoundError):
        read_sound(str(tmp_path / "none.wav"), 1, 1000)


def test_a_file_of_4_gb_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.wav").open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(AudioError, match=r"4294967296 bytes; the limit is 33554432 \(sounds.max_mb\)"):
        read_sound(str(tmp_path / "a.wav"), 600, 32 << 20)


def test_a_text_with_the_name_of_a_wav_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    with pytest.raises(AudioError, match="cannot be read as audio"):
        read(tmp_path / "a.wav", b"Thank you for waiting.\n" * 100)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(FormatUnavailable, match=r"install -e '\.\[formats\]'"):
        read(tmp_path / "a.wav", b"Thank you for waiting.\n" * 100)


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    pytest.importorskip("av")
    write_wav(tmp_path / "secret.wav", SPEECH.tobytes(), "pcm", 8_000)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/secret.wav\n#EXT-X-ENDLIST\n"
    for content in (playlist, f"ffconcat version 1.0\nfile '{tmp_path}/secret.wav'\n"):
        with pytest.raises(AudioError, match="cannot be read as audio"):
            read(tmp_path / "a.m3u8", content.encode())


@pytest.mark.parametrize("name", ["mp3", "flac", "opus"])
def test_other_formats_are_read_by_ffmpeg(tmp_path: Path, name: str) -> None:
    pytest.importorskip("av")
    from telephony_tts.audio.containers import make_encoder

    encoder = make_encoder(name, 16_000)
    content = encoder.feed(tone(440, 32_000, 16_000)) + encoder.finish()
    sound = read(tmp_path / f"a.{name}", content).at(16_000)
    assert abs(len(sound.pcm) - 32_000) < 3_000
    middle = sound.pcm[8_000:24_000].astype(float)
    strength = abs(np.dot(middle, np.exp(-2j * np.pi * 440 * np.arange(16_000) / 16_000))) / 8_000
    assert strength == pytest.approx(10_000, rel=0.05)
    with pytest.raises(AudioError, match="the limit is 1 s"):
        read(tmp_path / f"a.{name}", content, max_s=1)


# ----------------------------------------------------------------------- included


@pytest.mark.parametrize("name", sorted(INCLUDED))
def test_an_included_sound_is_a_loop_at_the_level_of_speech(name: str) -> None:
    sound, again = INCLUDED[name](), INCLUDED[name]()
    assert np.array_equal(sound.pcm, again.pcm), "it is the same each time"
    assert int(np.abs(sound.pcm.astype(int)).max()) < 32_000
    loud = np.abs(sound.pcm) > 0.01 * np.abs(sound.pcm).max()
    assert 20 * np.log10(np.sqrt(np.mean(sound.pcm[loud].astype(float) ** 2)) / 32768) == pytest.approx(-20, abs=0.2)
    around = np.abs(np.diff(sound.cut(-800, 1600).astype(int)))
    assert int(around[799]) <= 2 * int(np.abs(np.diff(sound.pcm.astype(int))).mean() + 1), "no step at the joint"


def test_the_ring_back_tone_has_its_cadence() -> None:
    sound = INCLUDED["ringback"]().at(8_000)
    assert sound.duration_ms == 6_000
    tone_part, rest = sound.pcm[800:15_200].astype(float), sound.pcm[16_100:]
    assert int(np.abs(rest[: 4 * 8_000 - 300].astype(int)).max()) <= 2
    hz = np.fft.rfftfreq(len(tone_part), 1 / 8_000)
    strongest = hz[np.argsort(np.abs(np.fft.rfft(tone_part * np.hanning(len(tone_part)))))[-40:]]
    assert all(min(abs(each - 440), abs(each - 480)) < 3 for each in strongest[-4:])
