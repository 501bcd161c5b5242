"""The messages between a front (the client) and an engine server, and their bytes. Pure.

Both sides talk over one bidirectional gRPC stream, `METHOD`. Each gRPC message holds one or more frames, one after the
other. So one write carries what many utterances have at that moment. A frame is

    u8 kind | u32 key | u32 n_json | u32 n_pcm        little-endian
    n_json bytes of JSON, an object in UTF-8; n_json may be 0 for an empty object
    n_pcm bytes of mono signed 16-bit PCM, little-endian; only in `audio`

`key` names an utterance; the client chooses it and never uses it again on the same stream. It is 0 in frames that
belong to no utterance.

| kind | frame | from | JSON |
|---|---|---|---|
| 1 | attach | client | `protocol`, `client`, `window_ms`. The first frame |
| 2 | keep_alive | client | `number`, `versions_of`: voices |
| 3 | speak | client | the fields of the utterance, `deadline_in_ns`, `is_open` |
| 4 | more_text | client | `text`, `is_last` |
| 5 | took | client | `audio_ns`: how much audio the listener has taken since the last `took` |
| 6 | cancel | client | – |
| 7 | find_voice | client | `name` |
| 65 | attached | server | `protocol`, `engine`, `streams_text`, `software`, `reads_digits` |
| 66 | status | server | see `EngineStatus`. The answer to each keep_alive; also sent when draining begins |
| 67 | audio | server | `rate_hz`, `queued_ns`, `estimates`, `timings`: 4 numbers each, as in `Timing` |
| 68 | ended | server | `error`, if there is one: `code`, `message`, `retryable`, `retry_after_ms` |
| 69 | voice_found | server | `voice` or null |

The stream is also the lease of the client's utterances. The client sends `keep_alive` every `KEEP_ALIVE_MS`. The server
cancels all utterances of a client that sends nothing for a second, or whose stream ends. `ended` is sent when the
engine holds nothing for the utterance, also after `cancel`.

The server computes at most `window_ms` of audio beyond what the client reported with `took`.

Times are nanoseconds on the sender's clock only as differences: `deadline_in_ns` counts from the moment of sending.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, LangSource, Pronunciation, Timing, Utterance, Voice
from telephony_tts.runtime.errors import (
    EngineError,
    EngineUnavailable,
    ReplicaLost,
    TelephonyTTSError,
    UnknownVoice,
    UnsupportedText,
)

PROTOCOL = 1
"""Raised when a peer of the version before would misunderstand this one."""
SERVICE = "telephony_tts.Engine"
METHOD = f"/{SERVICE}/Attach"
KEEP_ALIVE_MS = 200
MAX_MESSAGE_BYTES = 4_000_000
"""Of one gRPC message."""
MAX_TEXT_CHARS = 200_000
"""Of one utterance. A sentence has a few hundred."""
MAX_PCM_BYTES = 1_000_000
REPLICA_LOST = "replica_lost"
"""The code of an error that says that this replica cannot go on, and that another one may."""
_HEADER = struct.Struct("<BIII")
_PCM = np.dtype("<i2")
_RATES_HZ = range(8_000, 192_001)


class BadMessage(ValueError):
    """The peer sent bytes that are not a message of this protocol. The text says which part."""


@dataclass(frozen=True, slots=True)
class Attach:
    """The client's first message. `window_ms`: see the module text."""

    protocol: int
    client: str
    window_ms: int


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The client is there. The answer has the versions of the voices `versions_of`."""

    number: int
    versions_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speak:
    """A new utterance. `is_open`: more of its text follows. `deadline_in_ns`: None for no deadline."""

    key: int
    utterance: Utterance
    deadline_in_ns: int | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class MoreText:
    key: int
    text: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class TookAudio:
    key: int
    audio_ns: int


@dataclass(frozen=True, slots=True)
class CancelSpeech:
    key: int


@dataclass(frozen=True, slots=True)
class FindVoice:
    """A question for a voice that the server does not list. `key` numbers the question."""

    key: int
    name: str


@dataclass(frozen=True, slots=True)
class Attached:
    """The server's first message. `software`: the package and its version."""

    protocol: int
    engine: str
    streams_text: bool
    software: str = ""
    reads_digits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine's state. `number`: that of the `KeepAlive` which this answers.

    `stats` counts the utterances of all clients. `n_yours` and `n_yours_waiting`: how many of them are this client's,
    and how many of these have given no audio yet. `voices`: None if they are as in the last status; `removable` comes
    with them and names those that can be removed. `recent_voices`: those that spoke last, so that they are ready to
    speak.
    """

    number: int
    stats: EngineStats
    is_draining: bool = False
    n_yours: int = 0
    n_yours_waiting: int = 0
    voices: tuple[Voice, ...] | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    recent_voices: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    removable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpokenAudio:
    key: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The engine holds nothing for the utterance any more."""

    key: int
    error: TelephonyTTSError | None = None


@dataclass(frozen=True, slots=True)
class VoiceFound:
    key: int
    voice: Voice | None


FromClient = Attach | KeepAlive | Speak | MoreText | TookAudio | CancelSpeech | FindVoice
FromServer = Attached | EngineStatus | SpokenAudio | SpeechEnded | VoiceFound

# --------------------------------------------------------------------- encode


def encode(message: FromClient | FromServer) -> bytes:
    """The frame of a message."""
    match message:
        case Attach():
            given = {"protocol": message.protocol, "client": message.client, "window_ms": message.window_ms}
            return _frame(1, 0, given)
        case KeepAlive():
            return _frame(2, 0, {"number": message.number, "versions_of": list(message.versions_of)})
        case Speak():
            return _frame(3, message.key, _utterance_fields(message))
        case MoreText():
            return _frame(4, message.key, {"text": message.text, "is_last": message.is_last})
        case TookAudio():
            return _frame(5, message.key, {"audio_ns": message.audio_ns})
        case CancelSpeech():
            return _frame(6, message.key)
        case FindVoice():
            return _frame(7, message.key, {"name": message.name})
        case Attached():
            known = {"protocol": message.protocol, "engine": message.engine, "streams_text": message.streams_text}
            return _frame(65, 0, {**known, "software": message.software, "reads_digits": list(message.reads_digits)})
        case EngineStatus():
            return _frame(66, 0, _status_fields(message))
        case SpokenAudio():
            chunk = message.chunk
            return _frame(67, message.key, _chunk_fields(chunk), np.ascontiguousarray(chunk.pcm, _PCM).tobytes())
        case SpeechEnded():
            return _frame(68, message.key, {} if message.error is None else {"error": _error_fields(message.error)})
        case VoiceFound():
            voice = None if message.voice is None else _voice_fields(message.voice)
            return _frame(69, message.key, {"voice": voice})


def _frame(kind: int, key: int, fields: Mapping[str, object] | None = None, pcm: bytes = b"") -> bytes:
    # A lone surrogate in a text stays one, because JSON escapes it.
    head = json.dumps(fields, separators=(",", ":")).encode("ascii") if fields else b""
    return _HEADER.pack(kind, key, len(head), len(pcm)) + head + pcm


def _utterance_fields(message: Speak) -> dict[str, object]:
    spoken = message.utterance
    return {
        "id": spoken.id,
        "text": spoken.text,
        "voice": spoken.voice,
        "lang": spoken.lang,
        "lang_source": spoken.lang_source,
        "speed": spoken.speed,
        "seed": spoken.seed,
        "instruct": spoken.instruct,
        "call": spoken.call,
        "turn": spoken.turn,
        "follows": spoken.follows,
        "can_wait": spoken.can_wait,
        "is_private": spoken.is_private,
        "has_digits": spoken.has_digits,
        "pronunciations": [[each.start, each.end, each.alphabet, each.value] for each in spoken.pronunciations],
        "deadline_in_ns": message.deadline_in_ns,
        "is_open": message.is_open,
    }


def _chunk_fields(chunk: Chunk) -> dict[str, object]:
    fields: dict[str, object] = {"rate_hz": chunk.sample_rate_hz}
    if chunk.timings:
        fields["timings"] = [[t.start_char, t.end_char, t.start_sample, t.end_sample] for t in chunk.timings]
    if chunk.queued_ns:
        fields["queued_ns"] = chunk.queued_ns
    if chunk.estimates:
        fields["estimates"] = True
    return fields


def _status_fields(status: EngineStatus) -> dict[str, object]:
    stats = status.stats
    fields: dict[str, object] = {
        "number": status.number,
        "n_queued": stats.n_queued,
        "n_running": stats.n_running,
        "load": stats.load,
        "is_ready": stats.is_ready,
        "retry_after_ms": stats.retry_after_ms,
        "is_draining": status.is_draining,
        "n_yours": status.n_yours,
        "n_yours_waiting": status.n_yours_waiting,
        "counters": dict(status.counters),
    }
    if status.voices is not None:
        fields["voices"] = [_voice_fields(voice) for voice in status.voices]
    if status.removable:
        fields["removable"] = list(status.removable)
    if status.versions:
        fields["versions"] = dict(status.versions)
    if status.recent_voices:
        fields["recent_voices"] = list(status.recent_voices)
    return fields


def _voice_fields(voice: Voice) -> dict[str, object]:
    return {
        "name": voice.name,
        "languages": list(voice.languages),
        "rate_hz": voice.sample_rate_hz,
        "gain_db": voice.gain_db,
        "description": voice.description,
    }


def _error_fields(error: TelephonyTTSError) -> dict[str, object]:
    return {
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "retry_after_ms": error.retry_after_ms,
    }


# --------------------------------------------------------------------- decode


def decode_from_client(data: bytes) -> list[FromClient]:
    """The messages in the bytes of one gRPC message. Raises BadMessage."""
    return [_decoded(_CLIENT_KINDS, *frame) for frame in _frames(data)]


def decode_from_server(data: bytes) -> list[FromServer]:
    """The messages in the bytes of one gRPC message. Raises BadMessage."""
    return [_decoded(_SERVER_KINDS, *frame) for frame in _frames(data)]


def _frames(data: bytes) -> Iterator[tuple[int, int, Mapping[str, Any], bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise BadMessage(f"a frame's header needs {_HEADER.size} bytes, and {len(data) - at} are left")
        kind, key, n_json, n_pcm = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if n_json + n_pcm > len(data) - at:
            raise BadMessage(f"a frame of kind {kind} needs {n_json + n_pcm} bytes, and {len(data) - at} are left")
        yield kind, key, _object(data[at : at + n_json]), data[at + n_json : at + n_json + n_pcm]
        at += n_json + n_pcm


def _object(text: bytes) -> Mapping[str, Any]:
    if not text:
        return {}
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a frame's JSON cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise BadMessage("a frame's JSON is not an object")
    return read


_Decoder = Callable[[int, Mapping[str, Any], bytes], Any]


def _decoded(kinds: Mapping[int, _Decoder], kind: int, key: int, fields: Mapping[str, Any], pcm: bytes) -> Any:
    decoder = kinds.get(kind)
    if decoder is None:
        raise BadMessage(f"no frame of kind {kind} comes from this side")
    try:
        return decoder(key, fields, pcm)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BadMessage):
            raise
        raise BadMessage(f"a frame of kind {kind} has wrong fields: {type(error).__name__} {error}") from None


def _typed(fields: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
    value = fields.get(name, default)
    if value is ...:
        raise BadMessage(f"{name} is missing")
    # JSON has no other whole numbers, and True is an int to isinstance.
    if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise BadMessage(f"{name} is {type(value).__name__}")
    return value


def _text(fields: Mapping[str, Any], name: str, default: Any = ...) -> Any:
    return _typed(fields, name, str, default)


def _whole(fields: Mapping[str, Any], name: str, default: Any = ...) -> Any:
    return _typed(fields, name, int, default)


def _number(fields: Mapping[str, Any], name: str, default: Any = ...) -> float:
    return float(_typed(fields, name, (int, float), default))


def _flag(fields: Mapping[str, Any], name: str, default: Any = False) -> bool:
    return bool(_typed(fields, name, bool, default))


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _typed(fields, name, list, [])
    if not all(isinstance(value, str) for value in values):
        raise BadMessage(f"{name} has other values than texts")
    return tuple(values)


def _one_of(fields: Mapping[str, Any], name: str, choices: tuple[str, ...], default: str) -> str:
    value = fields.get(name, default)
    if value not in choices:
        raise BadMessage(f"{name} is not one of {', '.join(choices)}")
    return str(value)


def _decode_speak(key: int, fields: Mapping[str, Any], _: bytes) -> Speak:
    text = _text(fields, "text")
    if len(text) > MAX_TEXT_CHARS:
        raise BadMessage(f"text has {len(text)} characters; the most are {MAX_TEXT_CHARS}")
    speed = _number(fields, "speed", 1.0)
    if not 0.01 <= speed <= 100:
        raise BadMessage(f"speed is {speed:g}")
    utterance = Utterance(
        _text(fields, "id"),
        text,
        voice=_text(fields, "voice", None),
        lang=_text(fields, "lang", None),
        lang_source=cast(LangSource, _one_of(fields, "lang_source", get_args(LangSource), "bot")),
        speed=speed,
        seed=_whole(fields, "seed", None),
        instruct=_text(fields, "instruct", None),
        call=_text(fields, "call", ""),
        turn=_text(fields, "turn", ""),
        follows=_flag(fields, "follows"),
        can_wait=_flag(fields, "can_wait"),
        is_private=_flag(fields, "is_private"),
        has_digits=_flag(fields, "has_digits"),
        pronunciations=tuple(_pronunciation(each, len(text)) for each in _typed(fields, "pronunciations", list, [])),
    )
    return Speak(key, utterance, _whole(fields, "deadline_in_ns", None), _flag(fields, "is_open"))


def _pronunciation(fields: list[Any], n_chars: int) -> Pronunciation:
    start, end, alphabet, value = fields
    is_right = isinstance(start, int) and isinstance(end, int) and isinstance(value, str)
    if not is_right or not 0 <= start < end <= n_chars or alphabet not in ("ipa", "pinyin"):
        raise BadMessage("a pronunciation is wrong")
    return Pronunciation(start, end, cast(Literal["ipa", "pinyin"], alphabet), value)


def _decode_status(_: int, fields: Mapping[str, Any], __: bytes) -> EngineStatus:
    stats = EngineStats(
        _whole(fields, "n_queued"),
        _whole(fields, "n_running"),
        _number(fields, "load"),
        _flag(fields, "is_ready"),
        _whole(fields, "retry_after_ms", 0),
    )
    voices = _typed(fields, "voices", list, None)
    versions = _typed(fields, "versions", dict, {})
    if not all(value is None or isinstance(value, str) for value in versions.values()):
        raise BadMessage("versions has other values than texts")
    counters = _typed(fields, "counters", dict, {})
    return EngineStatus(
        _whole(fields, "number"),
        stats,
        _flag(fields, "is_draining"),
        _whole(fields, "n_yours", 0),
        _whole(fields, "n_yours_waiting", 0),
        None if voices is None else tuple(_voice(voice) for voice in voices),
        versions,
        _texts(fields, "recent_voices"),
        {name: float(value) for name, value in counters.items()},
        _texts(fields, "removable"),
    )


def _voice(fields: Any) -> Voice:
    if not isinstance(fields, dict):
        raise BadMessage("a voice is not an object")
    return Voice(
        _text(fields, "name"),
        "",
        _texts(fields, "languages"),
        _rate_hz(fields),
        _number(fields, "gain_db", 0.0),
        _text(fields, "description", ""),
    )


def _rate_hz(fields: Mapping[str, Any]) -> int:
    rate_hz: int = _whole(fields, "rate_hz")
    if rate_hz not in _RATES_HZ:
        raise BadMessage(f"rate_hz is {rate_hz}")
    return rate_hz


def _decode_audio(key: int, fields: Mapping[str, Any], pcm: bytes) -> SpokenAudio:
    if not pcm or len(pcm) % 2 or len(pcm) > MAX_PCM_BYTES:
        raise BadMessage(f"audio of {len(pcm)} bytes")
    timings = tuple(_timing(each) for each in _typed(fields, "timings", list, []))
    # astype copies only on a machine with the other byte order.
    samples = np.frombuffer(pcm, _PCM).astype(np.int16, copy=False)
    queued_ns, estimates = _whole(fields, "queued_ns", 0), _flag(fields, "estimates")
    return SpokenAudio(key, Chunk(samples, _rate_hz(fields), timings, queued_ns, estimates))


def _timing(fields: list[Any]) -> Timing:
    start_char, end_char, start_sample, end_sample = fields
    if not all(type(value) is int and value >= 0 for value in fields):
        raise BadMessage("a timing is wrong")
    return Timing(start_char, end_char, start_sample, end_sample)


def _decode_ended(key: int, fields: Mapping[str, Any], _: bytes) -> SpeechEnded:
    error = _typed(fields, "error", dict, None)
    return SpeechEnded(key, None if error is None else _error(error))


_ERRORS: dict[str, type[EngineError]] = {each.code: each for each in (UnknownVoice, UnsupportedText, EngineUnavailable)}


def _error(fields: Mapping[str, Any]) -> EngineError:
    """Every error of an engine is an EngineError here. Its code is kept, but for `REPLICA_LOST`."""
    code = _text(fields, "code", EngineError.code)
    if code == REPLICA_LOST:
        return ReplicaLost(_text(fields, "message"), retry_after_ms=_whole(fields, "retry_after_ms", None))
    return _ERRORS.get(code, EngineError)(
        _text(fields, "message"),
        code=code,
        retryable=_flag(fields, "retryable", True),
        retry_after_ms=_whole(fields, "retry_after_ms", None),
    )


def _decode_found(key: int, fields: Mapping[str, Any], _: bytes) -> VoiceFound:
    voice = fields.get("voice")
    return VoiceFound(key, None if voice is None else _voice(voice))


_CLIENT_KINDS: dict[int, _Decoder] = {
    1: lambda _, f, __: Attach(_whole(f, "protocol"), _text(f, "client", ""), _whole(f, "window_ms")),
    2: lambda _, f, __: KeepAlive(_whole(f, "number"), _texts(f, "versions_of")),
    3: _decode_speak,
    4: lambda key, f, __: MoreText(key, _text(f, "text"), _flag(f, "is_last")),
    5: lambda key, f, __: TookAudio(key, _whole(f, "audio_ns")),
    6: lambda key, _, __: CancelSpeech(key),
    7: lambda key, f, __: FindVoice(key, _text(f, "name")),
}
_SERVER_KINDS: dict[int, _Decoder] = {
    65: lambda _, f, __: Attached(
        _whole(f, "protocol"),
        _text(f, "engine"),
        _flag(f, "streams_text"),
        _text(f, "software", ""),
        _texts(f, "reads_digits"),
    ),
    66: _decode_status,
    67: _decode_audio,
    68: _decode_ended,
    69: _decode_found,
}
