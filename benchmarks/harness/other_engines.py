"""Two scenarios with a speech server of another project (`other_server`).

Its first audio when it is asked directly, and how soon it sees that a bot has stopped a call's speech.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import grpc.aio

from harness.calls import BotPeer
from harness.report import percentiles
from harness.turns import SENTENCES
from telephony_tts.engines.others.protobuf_schema import MESSAGES


async def direct_first_audio(spec: dict[str, Any]) -> dict[str, Any]:
    """As many streams as `calls`, each with a sentence every `period_s`, at a phase of its own."""
    rng = random.Random(1)
    seen_ms: list[float] = []
    ask = _ask_triton if spec["kind"] == "triton" else _ask_http
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def stream(at: int) -> None:
        await asyncio.sleep(rng.random() * spec["period_s"])
        n = at
        while loop.time() < begun_s + spec["warm_s"] + spec["seconds"]:
            asked_ns = time.monotonic_ns()
            wake_s = loop.time() + spec["period_s"] * rng.uniform(0.97, 1.03)
            first_ns = await ask(spec, SENTENCES[n % len(SENTENCES)])
            if loop.time() > begun_s + spec["warm_s"]:
                seen_ms.append((first_ns - asked_ns) / 1e6)
            n += 1
            await asyncio.sleep(max(0.0, wake_s - loop.time()))

    async with asyncio.TaskGroup() as group:
        for at in range(spec["calls"]):
            group.create_task(stream(at))
    return {"seen_ms": percentiles(seen_ms)}


async def _ask_http(spec: dict[str, Any], text: str) -> int:
    """When the first samples came. The rest is read too, as the server reads it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", spec["other_port"])
    body = json.dumps({"input": text, "voice": "tone", "response_format": "pcm"}).encode()
    writer.write(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    first_ns = 0
    while n_bytes := int(await reader.readline(), 16):
        await reader.readexactly(n_bytes + 2)
        first_ns = first_ns or time.monotonic_ns()
    writer.close()
    return first_ns


_channels: dict[int, Any] = {}


async def _ask_triton(spec: dict[str, Any], text: str) -> int:
    port = spec["triton_port"]
    channel = _channels.setdefault(port, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    request, response = MESSAGES["inference.ModelInferRequest"], MESSAGES["inference.ModelStreamInferResponse"]
    call = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )()
    coded = text.encode()
    asked = request(
        model_name="cosyvoice2",
        inputs=[{"name": "target_text", "datatype": "BYTES", "shape": [1, 1]}],
        raw_input_contents=[len(coded).to_bytes(4, "little") + coded],
    )
    await call.write(asked)
    await call.done_writing()
    first_ns = 0
    while (await call.read()) is not grpc.aio.EOF:
        first_ns = first_ns or time.monotonic_ns()
    return first_ns


async def clears_until_seen(spec: dict[str, Any]) -> dict[str, Any]:
    """Calls speak, and their bots stop them with `clear` after a random time.

    Each sentence has a name in it, so that the server's note of its end is found.
    """
    rng = random.Random(3)
    cleared_ns: dict[str, int] = {}
    errors: list[str] = []

    async def call(at: int) -> None:
        bot = BotPeer(f"X{at}", audio="base64")
        await bot.connect(spec["port"])
        for n in range(spec["clears"]):
            name = _name(at * spec["clears"] + n)
            bot.send({"type": "say", "text": f"{name} and {SENTENCES[n % len(SENTENCES)]}"})
            await asyncio.sleep(rng.uniform(0.2, 0.8))
            cleared_ns[name] = time.monotonic_ns()
            bot.send({"type": "clear"})
            await asyncio.sleep(rng.uniform(0.1, 0.3))
        errors.extend(bot.errors)
        bot.hang_up()

    async with asyncio.TaskGroup() as group:
        for at in range(spec["calls"]):
            group.create_task(call(at))
    seen_ns = {text.split()[0].lower(): at_ns for text, at_ns in await _cancels(spec["other_port"])}
    found = [(seen_ns[name] - at_ns) / 1e6 for name, at_ns in cleared_ns.items() if name in seen_ns]
    return {"clears": len(cleared_ns), "seen": len(found), "seen_ms": percentiles(found), "errors": sorted(set(errors))}


def _name(number: int) -> str:
    """A word for a number, which no rule of the text changes."""
    letters = "bdfgklmnpr"
    return "".join(f"{letters[int(digit)]}o" for digit in f"{number:04d}")


async def _cancels(port: int) -> list[tuple[str, int]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /cancels HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    content = await reader.readexactly(int(head.rpartition(b":")[2]))
    writer.close()
    return [(text, at_ns) for text, at_ns in json.loads(content)]
