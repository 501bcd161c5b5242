"""What a vendor's door refuses is told to the client in the vendor's form, and is one line of the log, with a limit."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from log_lines import lines
from rig import run, serving, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

pytestmark = pytest.mark.slow

TASK = {"action": "run-task", "task_id": "1" * 32, "streaming": "duplex"}
CONTEXT = {"model_id": "sonic", "voice": {"mode": "id", "id": "tone"}, "context_id": "c"}


@dataclass(frozen=True)
class Refusal:
    """Messages whose last one is refused. `why` is in the log line, `told` in what the client gets. `code`: the close
    that follows, 0 for none."""

    vendor: str
    path: str
    messages: tuple[Any, ...]
    why: str
    told: str
    code: int = 0


STREAM, MULTI = "/v1/text-to-speech/tone/stream-input", "/v1/text-to-speech/tone/multi-stream-input"
REFUSALS = [
    Refusal("deepgram", "/v1/speak", ("{",), "MESSAGE-0000", "", 1003),
    Refusal("deepgram", "/v1/speak", ({"type": "Sing"},), "DATA-0000", "", 1008),
    Refusal("deepgram", "/v1/speak", ({"type": "Speak", "text": "x" * 2001},), "BIG-0001", "", 1009),
    Refusal("deepgram_flux", "/v2/speak", ({"type": "Speak"},), "DATA-0000", '"Error"', 1008),
    Refusal("deepgram_flux", "/v2/speak", ({"type": "Configure", "speed": 9},), "speed", "ConfigureFailure"),
    Refusal(
        "deepgram_flux", "/v2/speak", ({"type": "Interrupt", "playback_offset": {"type": "time_ms"}},), '"value"',
        "INVALID_INTERRUPT_OFFSET",
    ),
    Refusal("elevenlabs", STREAM, (b"\1",), "binary", "binary_not_expected", 1008),
    Refusal("elevenlabs", MULTI, ({"text": 5, "context_id": "a"},), '"text"', "bad_field", 1008),
    Refusal(
        "elevenlabs", MULTI,
        ({"text": "Hi. ", "context_id": "a"}, {"context_id": "a", "close_context": True},
         {"text": "More. ", "context_id": "a"}),
        "is closed", "context_closed",
    ),
    Refusal("cartesia", "/tts/websocket", ("[]",), "object", '"status_code":400'),
    Refusal("cartesia", "/tts/websocket", ({**CONTEXT, "transcript": 5},), '"transcript"', '"status_code":400'),
    Refusal("cartesia", "/tts/websocket", ({"context_id": ""},), '"context_id"', '"context_id":null'),
    Refusal(
        "cartesia", "/tts/websocket", ({**CONTEXT, "transcript": "Hi", "voice": {"mode": "id", "id": "ghost"}},),
        "ghost", '"status_code":404',
    ),
    Refusal(
        "cartesia", "/tts/websocket",
        ({**CONTEXT, "transcript": "Hi.", "continue": False}, {**CONTEXT, "transcript": "More."}),
        "complete", '"error_code":"context_closed"',
    ),
    Refusal("dashscope", "/api-ws/v1/inference", ({"header": TASK, "payload": {"parameters": {"format": "wma"}}},),
            '"format"', "task-failed"),
    Refusal("dashscope", "/api-ws/v1/inference", ({"header": {**TASK, "action": "continue-task"}},), "run-task",
            "task-failed"),
    Refusal("jambonz", "/jambonz/tts", ({"type": "sing"},), "unknown type", '"error"'),
    Refusal("jambonz", "/jambonz/tts", ("{",), "JSON", '"error"'),
]  # fmt: skip


async def send(socket: ClientConnection, message: Any) -> None:
    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: f"{each.vendor} {each.why}")
def test_a_refusal_is_told_and_logged_once(refusal: Refusal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")

    async def main() -> None:
        async with serving() as rig, connect(rig.url(refusal.path), proxy=None, max_queue=None) as socket:
            for message in refusal.messages:
                await send(socket, message)
            heard: list[str] = []

            async def read() -> None:
                try:
                    async for message in socket:
                        heard.append(message if isinstance(message, str) else "")
                except ConnectionClosed:
                    pass

            reading = asyncio.create_task(read())
            await until(lambda: lines(caplog, "vendor_message_refused"), "the line")
            if refusal.told:
                await until(lambda: any(refusal.told in message for message in heard), f"{refusal.told} in {heard}")
            if refusal.code:
                await asyncio.wait_for(socket.wait_closed(), 5)
                assert socket.close_code == refusal.code
            else:
                await socket.close()
            await reading

    run(main)
    (line,) = lines(caplog, "vendor_message_refused")
    assert line["vendor"] == refusal.vendor and refusal.why in line["why"] and len(line["why"]) <= 200
    assert line.get("code", 0) == refusal.code and line["call"]


REPEATED = [
    each for each in REFUSALS if not each.code and len(each.messages) == 1 and '"id": "ghost"' not in str(each.messages)
]  # fmt: skip


@pytest.mark.parametrize("refusal", REPEATED, ids=lambda each: f"{each.vendor} {each.why}")
def test_a_thousand_refusals_are_a_few_lines(refusal: Refusal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")
    n = 1_000

    async def main() -> None:
        async with serving() as rig, connect(rig.url(refusal.path), proxy=None, max_queue=None) as socket:
            n_told = 0
            for at in range(n):
                message = refusal.messages[0]
                if isinstance(message, dict) and "context_id" in message and message["context_id"]:
                    message = {**message, "context_id": f"c{at}"}
                await send(socket, message)
            async with asyncio.timeout(10):
                while n_told < n:
                    n_told += refusal.told in str(await socket.recv())

    run(main)
    told = lines(caplog, "vendor_message_refused")
    (ended,) = lines(caplog, "call_ended")
    # The last line counts what was left out, among it that the bot has left.
    assert 40 <= len(told) <= 120
    assert len(told) + ended["lines_left_out"] in (n, n + 1)
