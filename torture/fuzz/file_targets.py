"""Files and kept data: sounds, voices, phrases on disk, recordings; and the messages between our own processes."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tempfile
import wave
from contextlib import suppress
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

from telephony_tts.audio.sound_file import decode_sound
from telephony_tts.audio.wav import read_wav, wav_header
from telephony_tts.engines.api import Chunk, EngineStats, Pronunciation, Timing, Utterance, Voice
from telephony_tts.engines.phrase_store import DamagedPhrase, from_bytes, to_bytes
from telephony_tts.engines.remote import messages as remote
from telephony_tts.recording.replay import read_recording
from telephony_tts.runtime.errors import AudioError, ConfigError, EngineUnavailable, FormatUnavailable
from telephony_tts.transport.fronts import MovedSocket, unpacked
from torture.fuzz.judge import FuzzTarget
from torture.fuzz.scratch import FOLDER

_MOST_SOUND_S = 2.0
_MOST_LOAD_MS = 5_000.0
"""A model is loaded before there are calls. PyTorch looks through its own messages, which may quote the file."""
_PCM = np.arange(160, dtype=np.int16)


def read_sounds(data: bytes) -> None:
    """A WAV file, by the reader of telephone audio and by that of sounds."""
    with suppress(AudioError):
        assert read_wav(io.BytesIO(data)).pcm.dtype == np.int16
    read_container(data)


def read_container(data: bytes) -> None:
    try:
        sound = decode_sound(data, _MOST_SOUND_S)
    except (AudioError, FormatUnavailable):
        return
    assert sound.pcm.dtype == np.int16 and len(sound.pcm) <= _MOST_SOUND_S * sound.rate_hz


def read_phrase(data: bytes) -> None:
    with suppress(DamagedPhrase, ValueError, TypeError, KeyError, struct.error):  # those that PhraseStore handles
        from_bytes(data)


def read_signed_phrase(data: bytes) -> None:
    """The same with a right digest, as another program with access to the folder could write."""
    import hashlib

    from telephony_tts.engines.phrase_store import FORMAT

    body = FORMAT + data
    read_phrase(body + hashlib.sha256(body).digest()[:16])


def read_from_client(data: bytes) -> None:
    try:
        for message in remote.decode_from_client(data):
            assert isinstance(message, remote.FromClient)
            remote.encode(message)
    except remote.BadMessage as error:
        assert len(str(error)) < 500, str(error)[:200]


def read_from_server(data: bytes) -> None:
    try:
        for message in remote.decode_from_server(data):
            assert isinstance(message, remote.FromServer)
            remote.encode(message)
    except remote.BadMessage as error:
        assert len(str(error)) < 500, str(error)[:200]


def read_moved_socket(data: bytes) -> None:
    try:
        moved = unpacked(data)
    except ValueError:
        return
    assert unpacked(moved.packed()) == moved


def read_timeline(data: bytes) -> None:
    path = FOLDER / "20260101T000000Z-c1-0123456789ab.jsonl"
    path.write_bytes(data)
    with suppress(ConfigError):
        read_recording(path)


def read_voice(data: bytes) -> None:
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    (FOLDER / "v.safetensors").write_bytes(data)
    try:
        VoiceStore(FOLDER).load("v")
    except EngineUnavailable as error:
        assert len(error.message) < 1_000


def read_speakers(data: bytes) -> None:
    """spk2info.pt: `torch.load` may run no code."""
    from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info

    path = FOLDER / "spk2info.pt"
    path.write_bytes(data)
    with suppress(ConfigError):
        read_spk2info(path)
    assert not ran_code(), "the file has run code"


def ran_code() -> bool:
    """Whether a file of `pickle_that_runs` was unpickled without care."""
    return (FOLDER / "ran").exists()


@cache
def _containers() -> tuple[bytes, ...]:
    """A short tone in each format that needs FFmpeg; none without PyAV."""
    try:
        import av
    except ImportError:
        return ()
    files = []
    tone = (np.sin(np.arange(4_000) / 5) * 8_000).astype(np.int16).reshape(1, -1)
    for container, codec, rate_hz in (
        ("ogg", "libopus", 48_000),
        ("mp3", "mp3", 24_000),
        ("flac", "flac", 8_000),
        ("adts", "aac", 24_000),
        ("au", "pcm_mulaw", 8_000),
    ):
        out = io.BytesIO()
        try:
            with av.open(out, "w", format=container) as file:
                stream = file.add_stream(codec, rate=rate_hz, layout="mono")
                frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
                frame.rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
                resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=rate_hz)
                for each in [*resampler.resample(frame), None]:
                    for packet in stream.encode(each):
                        file.mux(packet)
        except av.error.FFmpegError:
            continue
        files.append(out.getvalue())
    return tuple(files)


@cache
def _voices() -> tuple[bytes, ...]:
    try:
        import torch

        from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
        from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore
    except ImportError:
        return ()
    features = PromptFeatures(
        torch.arange(50), torch.zeros(100, 80), torch.ones(192), "Hello.", (1, 2), {"source": "x"}
    )
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    try:
        return (VoiceStore(folder).save("v", features).read_bytes(),)
    finally:
        shutil.rmtree(folder)


@cache
def _speakers() -> tuple[bytes, ...]:
    try:
        import torch
    except ImportError:
        return ()
    whole, odd = io.BytesIO(), io.BytesIO()
    torch.save(
        {"a": {"embedding": torch.ones(1, 192)}, "b": {"speech_token": torch.arange(9), "prompt_text": "x"}}, whole
    )
    torch.save({"a": 1, "b": [None]}, odd)
    return whole.getvalue(), odd.getvalue(), pickle_that_runs(FOLDER / "ran")


def pickle_that_runs(proof: Path) -> bytes:
    """A pickle that makes the file `proof` when it is unpickled without care."""
    import pickle

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, (str(proof), "w")

    return pickle.dumps(Runs())


def _wav_file(n_channels: int, n_bytes: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(n_channels)
        file.setsampwidth(n_bytes)
        file.setframerate(16_000)
        file.writeframes(bytes(range(240)))
    return out.getvalue()


_UTTERANCE = Utterance(
    "u1",
    "Hello, tomato.",
    voice="en",
    lang="en",
    speed=1.1,
    seed=3,
    call="c",
    turn="t",
    pronunciations=(Pronunciation(7, 13, "ipa", "təˈmeɪtoʊ"),),
)
_CHUNK = Chunk(_PCM, 24_000, (Timing(0, 5, 0, 100),))
_VOICE = Voice("en", "fake", ("en",), 24_000, -1.5, "a voice")
_JSON_WORDS = (b'"rate_hz":', b'"timings":', b'"text":', b"NaN", b"Infinity", b"[1,2,3,4]")
_PHRASE = to_bytes((_CHUNK, _CHUNK))
_ROWS = (
    {"type": "recording", "by": "server", "ms": 0, "version": 1, "call": "c1"},
    {"type": "say", "by": "bot", "ms": 20, "turn": "t1", "text": "Hi."},
    {"type": "started", "by": "server", "ms": 60, "turn": "t1", "heard_ms": 80, "first_audio_ms": 40.5},
    {"type": "sentence", "by": "server", "ms": 60, "turn": "t1", "index": 0, "text": "Hi.",
     "start_ms": 0, "end_ms": 300},
    {"type": "words", "by": "server", "ms": 60, "turn": "t1", "index": 0,
     "words": [{"text": "Hi.", "from": 0, "to": 3, "start_ms": 0, "end_ms": 180}]},
    {"type": "heard", "by": "server", "ms": 80, "end_ms": 200},
    {"type": "text", "by": "bot", "ms": 90, "turn": "t2", "text": "And "},
    {"type": "text", "by": "bot", "ms": 95, "turn": "t2", "text": "more.", "last": True},
    {"type": "pause", "by": "bot", "ms": 100},
    {"type": "paused", "by": "server", "ms": 120, "turn": "t1", "reason": "pause"},
    {"type": "resumed", "by": "server", "ms": 180, "turn": "t1", "from_ms": 40},
    {"type": "mark", "by": "server", "ms": 190, "turn": "t1", "name": "m", "state": "played"},
    {"type": "dtmf", "by": "peer", "ms": 200, "digit": "5"},
    {"type": "dtmf", "by": "server", "ms": 200, "digit": "5"},
    {"type": "hole", "by": "server", "ms": 220, "end_ms": 240},
    {"type": "caller_audio", "by": "server", "ms": 250, "end_ms": 390},
    {"type": "caller", "by": "server", "ms": 300, "state": "speaking"},
    {"type": "caller", "by": "server", "ms": 390, "state": "silent", "spoken_ms": 90, "interrupted": True},
    {"type": "cleared", "by": "server", "ms": 400, "turn": "t1", "reason": "barge_in",
     "heard_ms": 300, "heard_text": "H"},
    {"type": "warning", "by": "server", "ms": 410, "code": "empty_text", "message": "no text"},
    {"type": "error", "by": "server", "ms": 500, "turn": "t2", "code": "engine_failed", "message": "it failed"},
    {"type": "error", "by": "server", "ms": 510, "code": "bad_message", "message": "no JSON"},
    {"type": "done", "by": "server", "ms": 900, "turn": "t3", "latency": {"queue_ms": 1.5}},
    {"type": "hangup", "by": "server", "ms": 990, "reason": "hangup"},
    {"type": "ended", "by": "server", "ms": 1000, "reason": "hangup"},
)

FILE_TARGETS = (
    FuzzTarget(
        "wav",
        read_sounds,
        (
            *(wav_header(codec, 8_000, 160) + bytes(160) for codec in ("pcm", "ulaw", "alaw")),
            wav_header("pcm", 8_000, None) + bytes(64),
            *(_wav_file(n, w) for n, w in ((1, 1), (2, 2), (1, 3), (2, 4))),
        ),
        (b"RIFF", b"WAVE", b"fmt ", b"data", b"\xff\xff\xff\xff", b"\xfe\xff", b"\x03\x00", b"LIST"),
    ),
    FuzzTarget(
        "container", read_container, (b"ID3",), (b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xff"), _containers
    ),
    FuzzTarget("phrase", read_phrase, (_PHRASE, _PHRASE[:-16]), (b"TTSPHRASE1\n",)),
    FuzzTarget("signed_phrase", read_signed_phrase, (_PHRASE[11:-16],), (b"[[160,24000,false,[]]]", b"[0,1,2,3]")),
    FuzzTarget(
        "engine_client_messages",
        read_from_client,
        (
            b"".join(
                map(
                    remote.encode,
                    (
                        remote.Attach(1, "x", 500),
                        remote.KeepAlive(1, ("en",)),
                        remote.Speak(1, _UTTERANCE, 10**9, True),
                        remote.MoreText(1, "more", True),
                        remote.TookAudio(1, 10**6),
                        remote.CancelSpeech(1),
                        remote.FindVoice(2, "v"),
                    ),
                )
            ),
        ),
        _JSON_WORDS,
    ),
    FuzzTarget(
        "engine_server_messages",
        read_from_server,
        tuple(
            map(
                remote.encode,
                (
                    remote.Attached(1, "fake", True, "x"),
                    remote.EngineStatus(
                        1, EngineStats(0, 1, 0.5, True, 100), voices=(_VOICE,), versions={"en": None}, counters={"n": 2}
                    ),
                    remote.SpokenAudio(1, _CHUNK),
                    remote.SpeechEnded(1, EngineUnavailable("no")),
                    remote.SpeechEnded(1),
                    remote.VoiceFound(2, _VOICE),
                ),
            )
        ),
        _JSON_WORDS,
    ),
    FuzzTarget(
        "moved_socket",
        read_moved_socket,
        (
            MovedSocket(
                "leg", 1, ("127.0.0.1", 80), ("::1", 9), b"read", b"GET / HTTP/1.1\r\n\r\n", b"unread", True
            ).packed(),
        ),
        (b'"stage":', b'"local":', b'["127.0.0.1",1]', b"Infinity"),
    ),
    FuzzTarget(
        "timeline",
        read_timeline,
        (b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS),),
        (b'"type":', b'"ms":', b'"turn":', b'"by":"bot"', b"\n"),
    ),
    FuzzTarget(
        "voice",
        read_voice,
        (b"\x02\0\0\0\0\0\0\0{}",),
        (b'"dtype":', b'"shape":', b'"data_offsets":', b"F32", b"I64", b'"__metadata__":'),
        _voices,
    ),
    FuzzTarget(
        "speakers",
        read_speakers,
        (b"PK\x03\x04",),
        (b"PK\x03\x04", b"PK\x01\x02", b"cos\nsystem\n", b"data.pkl", b"\x80\x02"),
        _speakers,
        most_ms=_MOST_LOAD_MS,
    ),
)
