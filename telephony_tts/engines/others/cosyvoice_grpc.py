"""CosyVoice's own gRPC runtime: `cosyvoice.CosyVoice/Inference`. It has no health check and no list of voices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc.aio

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.grpc_speech import CONNECT_S, GrpcServer
from telephony_tts.engines.others.protobuf_schema import MESSAGES
from telephony_tts.engines.others.speech_server import ServerVoice
from telephony_tts.runtime.errors import ReplicaLost

METHOD = "/cosyvoice.CosyVoice/Inference"
Request, Response = MESSAGES["cosyvoice.Request"], MESSAGES["cosyvoice.Response"]


class CosyVoiceGrpc(GrpcServer):
    async def open(self) -> None:
        await super().open()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._channel.channel_ready()
        except TimeoutError:
            # A channel does not say why it cannot connect. A call that fails does.
            raise await self._why_not_ready() from None

    async def _why_not_ready(self) -> Exception:
        try:
            # An empty request: whatever the server makes of it, it is there.
            await self._call(Request(), timeout=CONNECT_S).read()
        except grpc.aio.AioRpcError as error:
            return self.failure(error)
        return ReplicaLost(f"the speech server at {self._settings.address} does not answer")

    def _call(self, request: object, timeout: float | None = None) -> grpc.aio.UnaryStreamCall:
        method = self.method("unary_stream", METHOD, Request.SerializeToString, Response.FromString)
        return method(request, metadata=self._metadata, timeout=timeout)

    async def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        request = _request(text, voice)
        try:
            async with self.call(lambda: self._call(request)) as call:
                while (response := await call.read()) is not grpc.aio.EOF:
                    yield response.tts_audio
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from error


def _request(text: str, voice: ServerVoice) -> object:
    """Sentences of a stored speaker, or in the voice of a recording: raw samples at 16 kHz."""
    if voice.recording is None:
        return Request(sft_request={"spk_id": voice.name, "tts_text": text})
    audio = voice.recording.pcm.astype("<i2").tobytes()
    if not voice.recording.transcript:
        return Request(cross_lingual_request={"tts_text": text, "prompt_audio": audio})
    return Request(
        zero_shot_request={"tts_text": text, "prompt_text": voice.recording.transcript, "prompt_audio": audio}
    )
