"""What the gRPC servers share: the channel, and what its errors mean for an operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost

CONNECT_S = 3.0
SETTLE_S = 0.1
MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class GrpcServer:
    """The channel to a gRPC server. `setting`: where its settings are, "engines.others.NAME", for messages."""

    def __init__(self, settings: OtherEngineSettings, setting: str) -> None:
        self._settings = settings
        self._setting = setting
        self._channel: Any = None
        metadata = () if settings.key is None else (("authorization", f"Bearer {settings.key}"),)
        self._metadata = metadata

    async def open(self) -> None:
        """Raises ReplicaLost if the server is not there."""
        if self._channel is None:
            address, ca_file = self._settings.address, self._settings.ca_file
            if self._settings.is_encrypted:
                credentials = grpc.ssl_channel_credentials(None if ca_file is None else _read(ca_file, self._setting))
                self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
            else:
                self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
            # gRPC has tasks of its own for calls that were cancelled. They end a moment later; it does not say when.
            await asyncio.sleep(SETTLE_S)

    async def voice_names(self) -> tuple[str, ...]:
        return ()

    def method(self, shape: str, path: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Any:
        """A method of the server. `shape`: "unary_unary", "unary_stream" or "stream_stream"."""
        if self._channel is None:
            raise EngineError(f"{self._setting} does not run")
        return getattr(self._channel, shape)(path, request_serializer=encode, response_deserializer=decode)

    @asynccontextmanager
    async def call(self, start: Callable[[], Any]) -> AsyncIterator[Any]:
        """A call that is cancelled at the end, if it has not ended."""
        started = start()
        try:
            yield started
        finally:
            started.cancel()

    def failure(self, error: grpc.aio.AioRpcError) -> EngineError:
        """The error for a call that failed."""
        code, details = error.code(), " ".join(str(error.details() or "").split())[:300]
        where = f"the speech server at {self._settings.address}"
        if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
            check = f"check the host in {self._setting}.url, or set {self._setting}.ca_file"
            return ReplicaLost(f"{where} is lost: its certificate is refused ({details}); {check}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return ReplicaLost(f"{where} is lost: {details or code.name}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return EngineError(f"{where} is busy ({details or code.name})", code="busy")
        if code is grpc.StatusCode.UNAUTHENTICATED or code is grpc.StatusCode.PERMISSION_DENIED:
            return EngineError(f"{where} refused the key ({details}); check {self._setting}.key", retryable=False)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            check = f"check {self._setting}.kind and url"
            return EngineError(f"{where} is another kind of server ({details}); {check}", retryable=False)
        return EngineError(f"{where} failed: {details or code.name}")


def _read(path: str, setting: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise EngineUnavailable(f"{setting}.ca_file: cannot read {path}: {error.strerror}") from error
