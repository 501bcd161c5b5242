"""SSML through the real server: in pieces, with breaks that are heard, marks, two voices, and heard text with tags."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from rig import Tones, decoded, rendering, run, serving, speech_settings, until
from websockets.asyncio.client import connect

pytestmark = pytest.mark.slow

SSML = (
    '<speak>Hello &amp; welcome.<mark name="greeted"/><break time="600ms"/> <voice name="low">Press '
    '<say-as interpret-as="digits">12</say-as></voice>. <voice name="stranger">Bye</voice></speak>'
)


def quiet_ms(samples: np.ndarray) -> list[int]:
    """The lengths of all silences of at least 100 ms."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (np.abs(samples) < 40).astype(int), [0]))))
    return [int(n) // 8 for n in edges[1::2] - edges[::2] if n >= 800]


def test_a_streamed_turn_of_markup() -> None:
    async def main() -> None:
        async with serving(Tones(voice_names=("tone", "low"))) as rig, rig.bot(audio="binary") as bot:
            for at in range(0, len(SSML), 7):
                await bot.send({"type": "text", "turn": "a", "text": SSML[at : at + 7]})
            await bot.send({"type": "end", "turn": "a"})
            warning = await bot.event("warning")
            assert warning["code"] == "unknown_voice" and "stranger" in warning["message"]
            mark = await bot.event("mark")
            done = await bot.event("done")
            assert (mark["name"], mark["state"]) == ("greeted", "played")
            assert done["chars"] == len(SSML)
            sentences = [event["text"] for event in bot.events if event["type"] == "sentence"]
            assert sentences == [
                "<speak>Hello &amp; welcome.",
                '<voice name="low">Press <say-as interpret-as="digits">12</say-as></voice>.',
                '<voice name="stranger">Bye</voice></speak>',
            ]
            spoken = ["Hello and welcome.", "Press one two.", "Bye"]
            assert rig.engine.spoken == spoken  # type: ignore[attr-defined]
            heard = decoded(bot.frames)
            assert abs(len(heard) - len(rendering(spoken)) - 4800) <= 3 * 160
            (silence_ms,) = quiet_ms(heard[: -8 * 100])
            assert 590 <= silence_ms <= 700, "the break, and the ends of the tones around it"

    run(main)


def test_a_clear_inside_markup() -> None:
    async def main() -> None:
        async with serving(speech=speech_settings(text_type="ssml")) as rig, rig.bot(audio="binary") as bot:
            text = '<emphasis>One</emphasis> two <sub alias="three thousand">3k</sub> four five six seven eight nine.'
            await bot.send({"type": "say", "turn": "a", "text": text})
            await bot.frames_to(60)
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared")
            assert cleared["heard_text"] + cleared["unheard_text"] == text
            assert cleared["heard_text"].startswith("<emphasis>One</emphasis> two")
            await bot.send({"type": "say", "turn": "b", "text": "<speak>a & b</speak>"})
            assert (await bot.event("warning"))["code"] == "bad_markup"
            await bot.event("done")

    run(main)


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_8000", [{"context_id": "c", "text": "TEXT"}]),
        (
            "/api-ws/v1/inference",
            [
                {"header": {"action": "run-task", "task_id": "t"}, "payload": {"parameters": {"format": "pcm"}}},
                {"header": {"action": "continue-task", "task_id": "t"}, "payload": {"input": {"text": "TEXT"}}},
            ],
        ),
        ("/jambonz/tts", [{"type": "stream", "text": "TEXT"}, {"type": "flush"}]),
    ],
)
def test_too_many_marks_are_no_error_for_clients_that_are_told_of_no_marks(path: str, messages: list[Any]) -> None:
    """Pinned: the connection was closed, or the task failed."""

    async def main() -> None:
        async with serving(speech=speech_settings(pending_marks=1)) as rig:
            async with connect(rig.url(path), proxy=None, max_queue=None) as socket:
                text = '<speak>One.<mark name="a"/><mark name="b"/> Two.</speak> '
                for message in messages:
                    await socket.send(json.dumps(message).replace("TEXT", json.dumps(text)[1:-1]))
                await until(lambda: rig.engine.spoken == ["One.", "Two."], "the speech")  # type: ignore[attr-defined]
            heard = [message async for message in socket if isinstance(message, str)]
            assert not any("error" in message or "failed" in message for message in heard), heard

    run(main)


def test_the_address_says_what_the_bot_writes() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(text_type="ssml") as bot:
            await bot.say('One.<mark name="m"/>')
            assert (await bot.event("mark"))["name"] == "m"
            await bot.send({"type": "config", "text_type": "text"})
            await bot.say('<speak>Two.<mark name="n"/></speak>')
            await bot.event("done")
            await until(lambda: [e["type"] for e in bot.events].count("done") == 2, "the second turn")
            assert [event["name"] for event in bot.events if event["type"] == "mark"] == ["m"]

    run(main)
