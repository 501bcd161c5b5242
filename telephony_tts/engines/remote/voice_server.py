"""The part of an engine server that adds, stores and removes voices. `voice_messages` describes the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

import grpc
import grpc.aio

from telephony_tts.engines.api import Voice
from telephony_tts.engines.remote.messages import BadMessage
from telephony_tts.engines.remote.voice_messages import (
    ADD,
    CHECK,
    DENOISE,
    MAX_BYTES,
    REMOVE,
    STORE,
    packed,
    pieces,
    refusal,
    text_of,
    unpacked,
)
from telephony_tts.runtime import logs
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, TelephonyTTSError

_log = logs.get(__name__)

Check = Callable[[Any], Awaitable[None]]
Work = Callable[[Mapping[str, Any], bytes], Awaitable[bytes]]


class MadeVoice(Protocol):
    """A voice that was added."""

    @property
    def voice(self) -> Voice: ...
    @property
    def kept_s(self) -> float: ...
    @property
    def source_s(self) -> float: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


class VoiceKeeper(Protocol):
    """What makes and stores the engine's voices. Its methods raise TelephonyTTSError."""

    def is_removable(self, voice: Voice) -> bool: ...
    async def add(
        self, name: str, audio: bytes, text: str, *, replace: bool = False, denoise: bool = False,
        record: Mapping[str, str] = ...,
    ) -> MadeVoice: ...
    async def check(self, audio: bytes, *, denoise: bool = False) -> Mapping[str, Any]:
        """What is found in a recording, as values of JSON."""

    async def denoised(self, audio: bytes) -> bytes:
        """A recording with less noise, a WAV file."""

    async def stored(self, name: str) -> bytes:
        """The file of a voice."""

    async def store(self, name: str, file: bytes) -> None:
        """Store a voice that another replica has made, in place of one of the same name."""

    async def remove(self, name: str) -> None: ...


def voice_handlers(voices: VoiceKeeper | None, check: Check) -> dict[str, grpc.RpcMethodHandler]:
    """The handlers by method. `check` ends a call whose token is wrong. Without `voices` each request is refused."""

    async def add(fields: Mapping[str, Any], file: bytes) -> bytes:
        keeper = needed()
        name = text_of(fields, "name")
        given = fields.get("record", {})
        if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
            raise BadMessage("record: expected texts by name")
        replace, denoise = fields.get("replace") is True, fields.get("denoise") is True
        made = await keeper.add(name, file, text_of(fields, "text"), replace=replace, denoise=denoise, record=given)
        told = {"kept_s": made.kept_s, "source_s": made.source_s, "warnings": list(made.warnings)}
        _log.info("voice_added", voice=name, kept_s=made.kept_s)
        return packed({**told, "description": made.voice.description}, await keeper.stored(name))

    async def store(fields: Mapping[str, Any], file: bytes) -> bytes:
        name = text_of(fields, "name")
        await needed().store(name, file)
        _log.info("voice_stored", voice=name)
        return packed({})

    async def remove(fields: Mapping[str, Any], _: bytes) -> bytes:
        name = text_of(fields, "name")
        await needed().remove(name)
        _log.info("voice_removed", voice=name)
        return packed({})

    async def check_recording(fields: Mapping[str, Any], file: bytes) -> bytes:
        return packed(dict(await needed().check(file, denoise=fields.get("denoise") is True)))

    async def reduce_noise(_: Mapping[str, Any], file: bytes) -> bytes:
        return packed({}, await needed().denoised(file))

    def needed() -> VoiceKeeper:
        if voices is None:
            raise EngineUnavailable("the engine server makes no voices: only CosyVoice2 can")
        return voices

    return {
        name: grpc.stream_stream_rpc_method_handler(_handler(name, work, check))
        for name, work in (
            (ADD, add), (STORE, store), (REMOVE, remove), (CHECK, check_recording), (DENOISE, reduce_noise),
        )
    }


def _handler(name: str, work: Work, check: Check) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
    async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await check(context)
        whole = bytearray()
        async for piece in requests:
            whole += piece
            if len(whole) > MAX_BYTES:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_BYTES} bytes")
        try:
            told = await work(*unpacked(bytes(whole)))
        except BadMessage as bad:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {bad}")
        except TelephonyTTSError as error:
            _log.info("voice_refused", request=name, code=error.code, why=error.message)
            told = refusal(error)
        except Exception:
            _log.exception("voice_request_failed", request=name)
            told = refusal(EngineError("the engine server failed; see its log"))
        for piece in pieces(told):
            yield piece

    return answer
