"""NVIDIA Triton with CosyVoice's recipe: a decoupled model over `ModelStreamInfer`, one stream for each text.

The recipe has four inputs and one output. A stream with a single request ends after its last response, so that the
responses need no flag for their end.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio
import numpy as np

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.audio_body import BadAudio
from telephony_tts.engines.others.grpc_speech import CONNECT_S, GrpcServer
from telephony_tts.engines.others.protobuf_schema import MESSAGES
from telephony_tts.engines.others.speech_server import PROMPT_RATE_HZ, Recording, ServerVoice
from telephony_tts.runtime.errors import EngineError, ReplicaLost

SERVICE = "/inference.GRPCInferenceService"
OUTPUT = "waveform"
InferRequest, StreamResponse = MESSAGES["inference.ModelInferRequest"], MESSAGES["inference.ModelStreamInferResponse"]
ReadyRequest, ReadyResponse = MESSAGES["inference.ModelReadyRequest"], MESSAGES["inference.ModelReadyResponse"]


class TritonModel(GrpcServer):
    async def open(self) -> None:
        await super().open()
        model, where = self._settings.model, f"Triton at {self._settings.address}"
        is_ready = self.method(
            "unary_unary", f"{SERVICE}/ModelReady", ReadyRequest.SerializeToString, ReadyResponse.FromString
        )
        try:
            answer = await is_ready(ReadyRequest(name=model), timeout=CONNECT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from error
        if not answer.ready:
            raise ReplicaLost(f"{where} has no model {model!r} that is ready; check {self._setting}.model")

    async def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        infer = self.method(
            "stream_stream", f"{SERVICE}/ModelStreamInfer", InferRequest.SerializeToString, StreamResponse.FromString
        )
        request = _request(self._settings.model or "", text, voice.recording)
        try:
            async with self.call(lambda: infer(metadata=self._metadata)) as call:
                await call.write(request)
                await call.done_writing()
                while (response := await call.read()) is not grpc.aio.EOF:
                    if response.error_message:
                        # Of a Python model it is a traceback, whose end says most.
                        raise EngineError(f"Triton says: {' '.join(response.error_message.split())[-300:]}")
                    if samples := _samples(response.infer_response):
                        yield samples
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from error


def _request(model: str, text: str, recording: Recording | None) -> Any:
    """The recipe's inputs. Its models keep state under the request's id, so each has an id of its own."""
    request = InferRequest(model_name=model, id=uuid.uuid4().hex)
    if recording is not None:
        n_samples = len(recording.pcm)
        # In whole seconds, as the recipe's own client sends it.
        padded = np.zeros((1, -(-n_samples // PROMPT_RATE_HZ) * PROMPT_RATE_HZ), "<f4")
        padded[0, :n_samples] = recording.pcm / 32768.0
        _add(request, "reference_wav", "FP32", padded.shape, padded.tobytes())
        _add(request, "reference_wav_len", "INT32", (1, 1), np.array([n_samples], "<i4").tobytes())
        _add(request, "reference_text", "BYTES", (1, 1), _text(recording.transcript))
    _add(request, "target_text", "BYTES", (1, 1), _text(text))
    return request


def _add(request: Any, name: str, datatype: str, shape: tuple[int, ...], content: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(content)


def _text(text: str) -> bytes:
    """A tensor of one text: its length in four bytes, and UTF-8."""
    coded = text.encode()
    return len(coded).to_bytes(4, "little") + coded


def _samples(response: Any) -> bytes:
    """The samples of one response. Empty if it only says that it is the last. Raises BadAudio."""
    for tensor, content in zip(response.outputs, response.raw_output_contents, strict=False):
        if tensor.name == OUTPUT:
            if tensor.datatype != "FP32" or len(content) % 4:
                raise BadAudio(f"Triton sends {OUTPUT} as {tensor.datatype}; expected FP32", retryable=False)
            wave = np.frombuffer(content, "<f4")
            if not np.isfinite(wave).all():
                raise BadAudio(f"Triton sends a {OUTPUT} with samples that are not finite")
            samples: bytes = np.rint(np.clip(wave, -1.0, 1.0) * np.float32(32767)).astype("<i2").tobytes()
            return samples
    if len(response.outputs):
        names = ", ".join(tensor.name for tensor in response.outputs)
        raise BadAudio(f"Triton sends {names}; expected {OUTPUT}", retryable=False)
    return b""
