"""Requests about the voices of an engine server, and their bytes. Pure.

Each is a gRPC call of its own beside the stream of `messages`, so a recording of megabytes delays no audio. A request
and its answer are

    u32 n_json | n_json bytes of JSON, an object | the bytes of a file

in pieces of at most `PIECE_BYTES`, each of which is a gRPC message.

| method | request | file | answer | file |
|---|---|---|---|---|
| AddVoice | `name`, `text`, and maybe `replace`, `denoise`, `record` | a recording | see below | its voice |
| StoreVoice | `name` | a voice that another replica made | – | – |
| RemoveVoice | `name` | – | – | – |
| CheckRecording | `denoise` | a recording | what was found (docs/http-voices.md) | – |
| ReduceNoise | – | a recording | – | a WAV file |

The answer to AddVoice has `kept_s`, `source_s`, `description`, `warnings`. An answer with `error` (`code`, `message`,
`retryable`, `retry_after_ms`) says why it was not done.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from telephony_tts.engines.remote.messages import BadMessage
from telephony_tts.runtime.errors import EngineError, TelephonyTTSError

ADD, STORE, REMOVE = "AddVoice", "StoreVoice", "RemoveVoice"
CHECK, DENOISE = "CheckRecording", "ReduceNoise"
PIECE_BYTES = 1_000_000
MAX_BYTES = 64_000_000
"""Of a request or an answer: a recording of 30 s has a few million."""
_LENGTH = struct.Struct("<I")


def packed(fields: Mapping[str, object], file: bytes = b"") -> bytes:
    """As bytes, for `unpacked`."""
    head = json.dumps(fields).encode("ascii")
    return _LENGTH.pack(len(head)) + head + file


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The opposite of `packed`. Raises BadMessage for other bytes."""
    if len(data) < _LENGTH.size:
        raise BadMessage(f"{len(data)} bytes are no request about voices")
    end = _LENGTH.size + int(_LENGTH.unpack_from(data)[0])
    if end > len(data):
        raise BadMessage(f"its JSON needs {end} bytes, and {len(data)} came")
    try:
        fields = json.loads(data[_LENGTH.size : end])
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"its JSON cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise BadMessage("its JSON is not an object")
    return fields, data[end:]


def pieces(data: bytes) -> Iterator[bytes]:
    """At least one."""
    for at in range(0, max(1, len(data)), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


def refusal(error: TelephonyTTSError) -> bytes:
    """The answer to a request that is not done."""
    told = {"code": error.code, "message": error.message, "retryable": error.retryable}
    return packed({"error": {**told, "retry_after_ms": error.retry_after_ms}})


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """Raises BadMessage."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadMessage(f"{name} is missing or not a text")
    return value


def raise_refusal(fields: Mapping[str, Any]) -> None:
    """Raises the error of an answer that has one. Its code says what kind of mistake it is."""
    error = fields.get("error")
    if not isinstance(error, dict):
        return
    after = error.get("retry_after_ms")
    raise TelephonyTTSError(
        str(error.get("message")),
        code=str(error.get("code", EngineError.code)),
        retryable=error.get("retryable") is True,
        retry_after_ms=after if type(after) is int else None,
    )
