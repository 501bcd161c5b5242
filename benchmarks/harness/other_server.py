"""A speech server of another project as a benchmark starts it: OpenAI's `/v1/audio/speech` and Triton's gRPC at once.

It prints "port N M": N for HTTP, M for gRPC. The first audio comes after `--first-ms`, the rest at twice real time.
`GET /cancels` lists when it saw requests end before their time: pairs of the text and nanoseconds of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
import numpy as np

from harness.turns import SENTENCES
from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, render
from telephony_tts.engines.others.protobuf_schema import MESSAGES
from telephony_tts.runtime import event_loop

PIECE_MS = 200
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nTransfer-Encoding: chunked\r\n\r\n"
_render = lru_cache(maxsize=4096)(render)


class OtherServer:
    def __init__(self, first_ms: float) -> None:
        self._first_s = first_ms / 1000
        self.cancels: list[tuple[str, int]] = []

    async def pieces(self, text: str) -> AsyncIterator[np.ndarray[Any, Any]]:
        """The tones of a text."""
        pcm = _render(text)
        n_piece = SAMPLE_RATE_HZ * PIECE_MS // 1000
        await asyncio.sleep(self._first_s)
        for start in range(0, len(pcm), n_piece):
            yield pcm[start : start + n_piece]
            await asyncio.sleep(PIECE_MS / 2000)

    async def serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    answer = json.dumps(self.cancels).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
                    continue
                lines = head.lower().split(b"\r\n")
                n_bytes = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                text = json.loads(await reader.readexactly(n_bytes))["input"]
                speech = asyncio.create_task(self._send(text, writer))
                left = asyncio.create_task(reader.read(1))
                await asyncio.wait((speech, left), return_when=asyncio.FIRST_COMPLETED)
                if not speech.done():
                    self.cancels.append((text, time.monotonic_ns()))
                    speech.cancel()
                    break
                left.cancel()
                await asyncio.wait((left,))
        writer.transport.abort()

    async def _send(self, text: str, writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD)
        async for pcm in self.pieces(text):
            content = pcm.tobytes()
            writer.write(b"%x\r\n" % len(content) + content + b"\r\n")
        writer.write(b"0\r\n\r\n")


class TritonHandler(grpc.GenericRpcHandler):
    def __init__(self, server: OtherServer) -> None:
        self._server = server

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method.endswith("/ModelReady"):
            request, response = MESSAGES["inference.ModelReadyRequest"], MESSAGES["inference.ModelReadyResponse"]
            return grpc.unary_unary_rpc_method_handler(self._is_ready, request.FromString, response.SerializeToString)
        request, response = MESSAGES["inference.ModelInferRequest"], MESSAGES["inference.ModelStreamInferResponse"]
        return grpc.stream_stream_rpc_method_handler(self._infer, request.FromString, response.SerializeToString)

    async def _is_ready(self, request: Any, context: Any) -> Any:
        return MESSAGES["inference.ModelReadyResponse"](ready=True)

    async def _infer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        answer = MESSAGES["inference.ModelStreamInferResponse"]
        async for request in requests:
            text = request.raw_input_contents[-1][4:].decode()
            try:
                async for pcm in self._server.pieces(text):
                    wave = (pcm / np.float32(32767)).astype("<f4")
                    tensor = {"name": "waveform", "datatype": "FP32", "shape": [1, len(wave)]}
                    yield answer(infer_response={"outputs": [tensor], "raw_output_contents": [wave.tobytes()]})
            except asyncio.CancelledError:
                self._server.cancels.append((text, time.monotonic_ns()))
                raise


async def serve(first_ms: float) -> None:
    for text in SENTENCES:
        _render(text)  # so that no request waits for it
    server = OtherServer(first_ms)
    http = await asyncio.start_server(server.serve_http, "127.0.0.1", 0, backlog=1024)
    triton = grpc.aio.server(handlers=[TritonHandler(server)])  # type: ignore[call-arg]
    triton_port = triton.add_insecure_port("127.0.0.1:0")
    await triton.start()
    with event_loop.stop_signals(lambda: None) as stop:
        event_loop.settle()
        print(f"port {http.sockets[0].getsockname()[1]} {triton_port}", flush=True)
        await stop.wait()
    await triton.stop(None)
    http.close()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--first-ms", type=float, default=50.0)
    event_loop.run(serve(flags.parse_args().first_ms))


if __name__ == "__main__":
    main()
