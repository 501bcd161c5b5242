"""The voices of engine servers, as the HTTP side of a front adds and removes them.

A recording becomes a voice at one replica. Its file is then stored at the others, so that all of them speak it. A
replica that starts later has it only if it reads the same folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio

from telephony_tts.engines.api import Voice
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.connection import EngineConnection
from telephony_tts.engines.remote.messages import SERVICE, BadMessage
from telephony_tts.engines.remote.voice_messages import (
    ADD,
    CHECK,
    DENOISE,
    REMOVE,
    STORE,
    packed,
    pieces,
    raise_refusal,
    unpacked,
)
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, TelephonyTTSError, UnknownVoice

ASK_S = 300.0
"""A voice may wait for others, and a slow machine takes a minute to make one."""
LIST_S = 3.0
"""A replica lists a new voice after so long at most."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class AddedRemoteVoice:
    """See `http_api.voices.NewVoice`."""

    voice: Voice
    kept_s: float
    source_s: float
    warnings: tuple[str, ...] = ()


class RemoteVoices:
    """See `http_api.voices.Voices`. The steps of a voice are not told: they are those of another process."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    @property
    def can_denoise(self) -> bool:
        """Not known here: an engine server without the package says so when it is asked."""
        return True

    async def check(self, audio: bytes, *, denoise: bool = False) -> Mapping[str, Any]:
        """Raises TelephonyTTSError."""
        told, _ = await _ask(self._ready()[0], CHECK, {"denoise": denoise}, audio)
        return told

    async def denoised(self, audio: bytes) -> bytes:
        """Raises TelephonyTTSError."""
        _, wav = await _ask(self._ready()[0], DENOISE, {}, audio)
        return wav

    def is_removable(self, voice: Voice) -> bool:
        """Whether a replica has it in its folder."""
        return voice.engine == self._engine.name and any(
            voice.name in replica.removable for replica in self._engine.replicas
        )

    async def add(
        self,
        name: str,
        audio: bytes,
        text: str,
        *,
        replace: bool = False,
        denoise: bool = False,
        tell: Callable[[str], None] = lambda step: None,
        record: Mapping[str, str] = MappingProxyType({}),
    ) -> AddedRemoteVoice:
        """Raises TelephonyTTSError; EngineUnavailable for a voice with an owner, because replicas do not tell a front
        whose a voice is, so every key could use it."""
        if "owner" in record:
            raise EngineUnavailable(
                "a named key can add a voice only where CosyVoice2 runs in the server itself: a front does not know "
                "whose the voices of its engine servers are. Add it with a token that has no name"
            )
        maker, *others = self._ready()
        fields = {"name": name, "text": text, "replace": replace, "denoise": denoise, "record": dict(record)}
        told, file = await _ask(maker, ADD, fields, audio)
        failures = await _ask_all(others, STORE, name, file)
        warnings = [str(warning) for warning in told.get("warnings", ())]
        warnings += [f"{target} does not have the voice: {error.message}" for target, error in failures.items()]
        await self._until_listed(name, True)
        listed = next((voice for voice in self._engine.voices if voice.name == name), None)
        voice = listed or Voice(name, self._engine.name, (), 0, 0.0, str(told.get("description", "")))
        return AddedRemoteVoice(voice, float(told["kept_s"]), float(told["source_s"]), tuple(warnings))

    async def remove(self, name: str) -> None:
        """Raises UnknownVoice if no replica has it, and TelephonyTTSError if one cannot remove it. EngineError if one
        is not ready and may have it: the others have removed it then."""
        replicas = self._ready()
        absent = [each for each in self._engine.replicas if each not in replicas]
        # What a replica has that was never reached is not known.
        may_have_it = [each.target for each in absent if name in each.removable or not each.has_listed]
        failures = await _ask_all(replicas, REMOVE, name)
        # Replicas may share a folder: then the first one that was asked has removed it for all.
        others = [error for error in failures.values() if error.code != UnknownVoice.code]
        if others:
            raise others[0]
        if may_have_it:
            raise EngineError(
                f"a replica that is not ready may still have the voice {name!r} ({', '.join(may_have_it)}); remove it "
                "again in a moment",
                retry_after_ms=1_000,
            )
        if len(failures) == len(replicas):
            raise UnknownVoice(f"there is no voice {name!r}")
        await self._until_listed(name, False)

    async def prompt(self, audio: bytes, text: str) -> str:
        """Raises EngineUnavailable: a voice for a single request would have to be brought to all replicas first."""
        raise EngineUnavailable(
            "voices for single requests are made only where CosyVoice2 runs in the server itself; add a voice with "
            "POST /v1/voices, and name it"
        )

    async def close(self) -> None:
        """Nothing is left open between requests."""

    def _ready(self) -> list[EngineConnection]:
        ready = [replica for replica in self._engine.replicas if replica.is_ready]
        if not ready:
            raise EngineError(f"no replica of {self._engine.name} is ready", retry_after_ms=1_000)
        return ready

    async def _until_listed(self, name: str, is_listed: bool) -> None:
        """Return when all replicas list the voice, or none does, or after `LIST_S`."""
        for _ in range(round(LIST_S / _LOOK_S)):
            replicas = [replica for replica in self._engine.replicas if replica.is_ready]
            if all(any(voice.name == name for voice in each.voices) is is_listed for each in replicas):
                return
            await asyncio.sleep(_LOOK_S)


async def _ask_all(
    replicas: list[EngineConnection], method: str, name: str, file: bytes = b""
) -> dict[str, TelephonyTTSError]:
    """What went wrong, by replica."""
    results = await asyncio.gather(
        *(_ask(replica, method, {"name": name}, file) for replica in replicas), return_exceptions=True
    )
    failures = {}
    for replica, result in zip(replicas, results, strict=True):
        if isinstance(result, TelephonyTTSError):
            failures[replica.target] = result
        elif isinstance(result, BaseException):
            raise result
    return failures


async def _ask(
    replica: EngineConnection, method: str, fields: Mapping[str, object], file: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """The answer of a replica. Raises TelephonyTTSError."""
    try:
        async with replica.channel() as channel:
            call = channel.stream_stream(f"/{SERVICE}/{method}")
            answer = call(pieces(packed(fields, file)), metadata=replica.metadata, timeout=ASK_S)
            told, made = unpacked(b"".join([piece async for piece in answer]))
    except grpc.aio.AioRpcError as failure:
        if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            why = "it runs a version that takes no voices over the network"
        else:
            why = str(failure.details() or failure.code().name)
        raise EngineError(f"the engine server at {replica.target} did not do it: {why}") from failure
    except BadMessage as bad:
        raise EngineError(f"the engine server at {replica.target} sent what cannot be read: {bad}") from bad
    raise_refusal(told)
    return told, made
