"""Bots of vendors' protocols that leave a call and come back, and two that want the same call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rig import correlation, decoded, greeted, rendering, run, serving, speech_settings, until
from twilio_peer import calling
from websockets.asyncio.client import ClientConnection, connect

pytestmark = pytest.mark.slow

FIRST, SECOND = "Goodbye for now.", "Hello again there."


def deepgram(text: str) -> list[dict[str, Any]]:
    return [{"type": "Speak", "text": text}, {"type": "Flush"}]


def cartesia(text: str) -> list[dict[str, Any]]:
    audio = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
    voice = {"mode": "id", "id": "tone"}
    return [{"context_id": "t1", "model_id": "sonic", "voice": voice, "output_format": audio, "transcript": text}]


def elevenlabs(text: str) -> list[dict[str, Any]]:
    say = {"text": f"{text} ", "context_id": "a"}
    return [{"text": " ", "context_id": "a"}, say, {"context_id": "a", "flush": True}]


def dashscope(text: str) -> list[dict[str, Any]]:
    def action(name: str, content: dict[str, Any], **more: Any) -> dict[str, Any]:
        header = {"action": name, "task_id": "1" * 32, "streaming": "duplex"}
        return {"header": header, "payload": {**more, "input": content}}

    parameters = {"voice": "tone", "format": "pcm", "sample_rate": 8000}
    kind = {"task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", "model": "cosyvoice-v2"}
    begin = action("run-task", {}, parameters=parameters, **kind)
    return [begin, action("continue-task", {"text": text}), action("finish-task", {})]


DOORS: dict[str, tuple[str, Callable[[str], list[dict[str, Any]]]]] = {
    "deepgram": ("/v1/speak?encoding=mulaw&sample_rate=8000", deepgram),
    "flux": ("/v2/speak?encoding=mulaw&sample_rate=8000", deepgram),
    "elevenlabs": ("/v1/text-to-speech/tone/multi-stream-input?output_format=ulaw_8000", elevenlabs),
    "cartesia": ("/tts/websocket", cartesia),
    "dashscope": ("/api-ws/v1/inference", dashscope),
}


@asynccontextmanager
async def bot(url: str) -> AsyncIterator[ClientConnection]:
    async with connect(url, proxy=None, max_queue=None) as socket:
        yield socket


@pytest.mark.parametrize("door", DOORS)
def test_a_bot_that_comes_back_is_heard(door: str) -> None:
    path, messages = DOORS[door]

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            for text in (FIRST, SECOND):
                n_before = len(phone.played)
                async with bot(rig.url(f"/calls/CA1{path}")) as socket:
                    for message in messages(text):
                        await socket.send(json.dumps(message))
                    wanted = rendering([text])
                    await phone.hears(n_before + len(wanted) // 160)
                assert correlation(decoded(phone.played[n_before:]), wanted) > 0.98
                (call,) = rig.server.registry.calls()
                await until(lambda call=call: call.bot is None, "the bot has left")
                assert not call.over
            await phone.hang_up()

    run(main)


def test_our_own_bot_after_one_of_a_vendor_begins_anew() -> None:
    """Pinned: it inherited the turns of the bot before, which were over, and its way with open turns."""

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with bot(rig.url("/calls/CA1/v1/speak?encoding=mulaw&sample_rate=8000")) as socket:
                for message in deepgram("Hi."):
                    await socket.send(json.dumps(message))
                async for _ in _binary(socket):
                    pass
            (call,) = rig.server.registry.calls()
            await until(lambda: call.bot is None, "the bot has left")
            n_before = len(phone.played)
            async with greeted(rig.url(call="CA1")) as own:
                limits = speech_settings().limits
                assert own.ready["limits"]["turn_chars"] == limits.turn_chars
                assert own.ready["limits"]["turn_idle_s"] == limits.turn_idle_s
                await own.send({"type": "text", "turn": "0", "text": FIRST, "last": True})
                await own.send({"type": "text", "turn": "open", "text": f"{SECOND} "})
                await own.send({"type": "text", "turn": "next", "text": "Bye.", "last": True})
                await own.event("sentence", turn="open")
                await asyncio.sleep(0.2)
                await own.send({"type": "text", "turn": "open", "text": "And more.", "last": True})
                for turn in ("0", "open", "next"):
                    await own.event("done", turn=turn)
            assert correlation(decoded(phone.played[n_before:]), rendering([FIRST, SECOND, "And more.", "Bye."])) > 0.98

    run(main)


def test_the_silence_comes_while_the_caller_hears_the_sentence() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            text = "All our lines are busy at the moment and an agent will be with you as soon as they possibly can."
            async with bot(rig.url("/calls/CA1/v1/speak?encoding=mulaw&sample_rate=8000")) as socket:
                for message in deepgram(text):
                    await socket.send(json.dumps(message))
                pieces = [each async for each in _binary(socket)]
                assert b"".join(pieces) == b"\xff" * (len(text) * 60 * 8), "silence of the same length"
                assert max(map(len, pieces)) <= 5 * 160
            assert correlation(decoded(phone.played), rendering([text])) > 0.98
            await phone.hang_up()

    run(main)


async def _binary(socket: ClientConnection) -> AsyncIterator[bytes]:
    """The binary messages up to `Flushed`."""
    async for message in socket:
        if isinstance(message, bytes):
            yield message
        elif json.loads(message)["type"] == "Flushed":
            return


def test_only_one_of_the_bots_that_come_at_once_gets_the_call() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def one() -> int | None:
                async with connect(rig.url("/v1/speak?call=CA9"), proxy=None) as socket:
                    await asyncio.wait((asyncio.ensure_future(socket.wait_closed()),), timeout=1)
                    return socket.close_code

            codes = await asyncio.gather(*(one() for _ in range(4)))
            assert sorted(codes, key=str) == [4409, 4409, 4409, None]

    run(main)
