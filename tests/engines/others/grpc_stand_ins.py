"""gRPC servers with the interfaces of CosyVoice's runtime and of Triton. They see when a call is cancelled.

The messages are read and written with the project's own schema. `test_real_triton.py` holds that against a real Triton.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
from loop_thread import loop_thread

from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.protobuf_schema import MESSAGES

RATE_HZ = 24_000
PIECE_MS = 90


@dataclass
class GrpcStandIn:
    """`fault` is what it does wrong. `ignores_cancel`: a call is computed to its end, as the recipe's models do."""

    fault: str = ""
    faults_left: int = 1_000_000
    pause_s: float = 0.0
    max_calls: int = 1_000
    ignores_cancel: bool = False
    ready_models: tuple[str, ...] = ("cosyvoice2",)
    address: str = ""
    asked: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    n_live: int = 0
    most_live: int = 0
    n_cancelled: int = 0
    n_finished: int = 0

    async def spoken(self, text: str) -> AsyncIterator[np.ndarray[Any, Any]]:
        """The tones of a text in pieces."""
        fault = self.fault if self.faults_left > 0 else ""
        self.faults_left -= bool(fault)
        pcm = render(text, sample_rate_hz=RATE_HZ)
        n_piece = RATE_HZ * PIECE_MS // 1000
        if fault == "silent":
            await asyncio.sleep(3_600)
        if fault == "empty":
            return
        n = 0
        while fault == "endless" or n * n_piece < len(pcm):
            if fault == "stall" and n == 2:
                await asyncio.sleep(3_600)
            if fault == "break" and n == 3:
                raise ConnectionError("the stand-in breaks off")
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            start = 0 if fault == "endless" else n * n_piece
            yield pcm[start : start + n_piece]
            n += 1

    def begin(self) -> None:
        self.n_live += 1
        self.most_live = max(self.most_live, self.n_live)

    def cancelled(self) -> None:
        self.n_cancelled += 1


class _CosyVoice(grpc.GenericRpcHandler):
    def __init__(self, stand_in: GrpcStandIn) -> None:
        self._stand_in = stand_in

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != "/cosyvoice.CosyVoice/Inference":
            return None
        request, response = MESSAGES["cosyvoice.Request"], MESSAGES["cosyvoice.Response"]
        return grpc.unary_stream_rpc_method_handler(self._infer, request.FromString, response.SerializeToString)

    async def _infer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        stand_in = self._stand_in
        if stand_in.n_live >= stand_in.max_calls:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        stand_in.asked.append(request)
        stand_in.metadata.append(dict(context.invocation_metadata()))
        stand_in.begin()
        try:
            text = request.sft_request.tts_text or request.zero_shot_request.tts_text
            async for pcm in stand_in.spoken(text or request.cross_lingual_request.tts_text):
                yield MESSAGES["cosyvoice.Response"](tts_audio=pcm.astype("<i2").tobytes())
            stand_in.n_finished += 1
        except asyncio.CancelledError:
            stand_in.cancelled()
            raise
        except ConnectionError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        finally:
            stand_in.n_live -= 1


class _Triton(grpc.GenericRpcHandler):
    def __init__(self, stand_in: GrpcStandIn) -> None:
        self._stand_in = stand_in

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        if name == "ModelReady":
            request, response = MESSAGES["inference.ModelReadyRequest"], MESSAGES["inference.ModelReadyResponse"]
            return grpc.unary_unary_rpc_method_handler(self._is_ready, request.FromString, response.SerializeToString)
        if name == "ModelStreamInfer":
            request = MESSAGES["inference.ModelInferRequest"]
            response = MESSAGES["inference.ModelStreamInferResponse"]
            return grpc.stream_stream_rpc_method_handler(self._infer, request.FromString, response.SerializeToString)
        return None

    async def _is_ready(self, request: Any, context: Any) -> Any:
        return MESSAGES["inference.ModelReadyResponse"](ready=request.name in self._stand_in.ready_models)

    async def _infer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        stand_in = self._stand_in
        async for request in requests:
            stand_in.asked.append(request)
            if stand_in.ignores_cancel:
                # The computation is a task of its own, which nothing cancels.
                work: asyncio.Queue[Any] = asyncio.Queue()
                stand_in.begin()
                task = asyncio.create_task(self._compute(request, work))
                stand_in.asked_tasks = [*getattr(stand_in, "asked_tasks", []), task]  # type: ignore[attr-defined]
                while (answer := await work.get()) is not None:
                    yield answer
                continue
            stand_in.begin()
            try:
                async for answer in self._answers(request):
                    yield answer
                stand_in.n_finished += 1
            except asyncio.CancelledError:
                stand_in.cancelled()
                raise
            except ConnectionError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            finally:
                stand_in.n_live -= 1

    async def _compute(self, request: Any, work: asyncio.Queue[Any]) -> None:
        async for answer in self._answers(request):
            work.put_nowait(answer)
        self._stand_in.n_live -= 1
        self._stand_in.n_finished += 1
        work.put_nowait(None)

    async def _answers(self, request: Any) -> AsyncIterator[Any]:
        stand_in, answer = self._stand_in, MESSAGES["inference.ModelStreamInferResponse"]
        if stand_in.fault == "error":
            yield answer(error_message="in ensemble 'cosyvoice2', the LM failed")
            return
        async for pcm in stand_in.spoken(text_of(request)):
            wave = (pcm / np.float32(32767)).astype("<f4")
            if stand_in.fault == "not_finite":
                wave[5] = np.nan
            name = "audio" if stand_in.fault == "wrong_output" else "waveform"
            datatype = "FP16" if stand_in.fault == "wrong_type" else "FP32"
            yield answer(
                infer_response={
                    "id": request.id,
                    "outputs": [{"name": name, "datatype": datatype, "shape": [1, len(wave)]}],
                    "raw_output_contents": [wave.tobytes()],
                }
            )
        yield answer(infer_response={"id": request.id})  # the flags-only FINAL


def inputs_of(request: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The inputs of a request to Triton: datatype, shape and content by name."""
    return {
        tensor.name: (tensor.datatype, tuple(tensor.shape), content)
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def text_of(request: Any, name: str = "target_text") -> str:
    content = inputs_of(request)[name][2]
    n_bytes = int.from_bytes(content[:4], "little")
    assert len(content) == 4 + n_bytes
    return content[4:].decode()


@contextmanager
def _served(
    handler: type[grpc.GenericRpcHandler], credentials: grpc.ServerCredentials | None, habits: dict[str, Any]
) -> Iterator[GrpcStandIn]:
    stand_in = GrpcStandIn(**habits)

    async def start() -> Any:
        server = grpc.aio.server(handlers=[handler(stand_in)])  # type: ignore[call-arg]
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        scheme = "grpc" if credentials is None else "grpcs"
        stand_in.address = f"{scheme}://127.0.0.1:{port}"
        return server

    with loop_thread() as thread:
        server = thread.run(start())
        try:
            yield stand_in
        finally:
            thread.run(server.stop(None))


@contextmanager
def cosyvoice_stand_in(credentials: grpc.ServerCredentials | None = None, **habits: Any) -> Iterator[GrpcStandIn]:
    with _served(_CosyVoice, credentials, habits) as stand_in:
        yield stand_in


@contextmanager
def triton_stand_in(credentials: grpc.ServerCredentials | None = None, **habits: Any) -> Iterator[GrpcStandIn]:
    with _served(_Triton, credentials, habits) as stand_in:
        yield stand_in
