"""Pause and resume, and words, through the real server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import numpy as np
import pytest
from media_peer import START, leg
from rig import correlation, decoded, gather, rendering, run, serving, speech_settings, until
from websockets.asyncio.client import connect

from telephony_tts.wire import messages as m

pytestmark = pytest.mark.slow

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all today."


def test_a_bot_pauses_and_resumes_and_every_sample_is_heard() -> None:
    """The client drops its buffer at `paused`. What it played, and what came after `resumed`, is the whole speech."""

    async def main() -> None:
        async with serving(speech=speech_settings(fade_ms=0)) as rig, rig.bot(audio="binary", lead_ms=60) as bot:
            await bot.say(TEXT, "a")
            await bot.frames_to(40)
            await bot.send({"type": "pause"})
            paused = await bot.event("paused")
            assert paused["reason"] == "bot" and TEXT.startswith(paused["heard_text"]) and paused["heard_text"]
            await asyncio.sleep(0.5)
            assert not [entry for entry in bot.after("paused") if isinstance(entry, bytes)]
            before = bot.frames
            await bot.send({"type": "resume"})
            resumed = await bot.event("resumed")
            assert 0 < resumed["from_ms"] <= paused["heard_ms"]
            await bot.event("done")
            after = [entry for entry in bot.after("resumed") if isinstance(entry, bytes)]
            whole = decoded(before[: resumed["from_ms"] // 20] + after)
            expected = rendering([TEXT])
            assert abs(len(whole) - len(expected)) < 320
            assert correlation(whole, expected) > 0.99

    run(main)


def test_a_pause_empties_the_buffer_of_a_media_leg() -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            await peer.tell(START)
            await bot.say(TEXT, "a")
            await until(lambda: len(peer.frames) > 20, "speech")
            await bot.send({"type": "pause"})
            await bot.event("paused")
            await peer.hears('{"type":"clear"}', within="the clear")
            await asyncio.sleep(0.3)
            at = peer.order.index('{"type":"clear"}')
            assert not any(isinstance(each, bytes) for each in peer.order[at:])
            await bot.send({"type": "resume"})
            resumed = await bot.event("resumed")
            n_told = 0
            while not bot.terminals("a"):
                for said in peer.said[n_told:]:
                    if '"mark"' in said:
                        await peer.tell(said)
                n_told = len(peer.said)
                await asyncio.sleep(0.02)
            after = [each for each in peer.order[at:] if isinstance(each, bytes)]
            expected = rendering([TEXT])[resumed["from_ms"] * 8 :]
            heard = decoded(after)
            # The first frame is faded in, and the last is filled up.
            assert correlation(heard, expected) > 0.98 and abs(len(heard) - len(expected)) < 320

    run(main)


def test_a_client_of_another_vendor_that_joined_gets_each_word_once() -> None:
    """The caller's voice pauses the speech of its call. The words that are repeated are not sent again."""

    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/native") as peer:
            await peer.tell(START)
            await until(lambda: len(rig.server.registry), "the call")
            async with connect(rig.url("/tts/websocket", call="c1"), proxy=None, compression=None) as socket:
                asked: dict[str, Any] = {
                    "context_id": "x", "model_id": "sonic-2", "transcript": TEXT, "continue": False,
                    "voice": {"mode": "id", "id": "default"}, "add_timestamps": True,
                    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000},
                }  # fmt: skip
                await socket.send(json.dumps(asked))
                await until(lambda: len(peer.frames) > 60, "speech")
                call = next(iter(rig.server.registry._calls.values()))
                call.session.receive(m.Configure(step_back_ms=800), time.monotonic_ns())
                now_ns = time.monotonic_ns()
                call._drive(now_ns, lambda: call.session.pause("bot", now_ns))
                await asyncio.sleep(0.3)
                heard_ms = call.session.turns[0].heard_samples // 8
                call._drive(time.monotonic_ns(), lambda: call.session._pause.end())
                repeated_ms = heard_ms - call.session.turns[0].n_sent_samples // 8
                assert repeated_ms > 500
                call._tick()
                words: list[str] = []
                n_told, silence_ms = 0, 0
                while True:
                    for said in peer.said[n_told:]:
                        if '"mark"' in said:
                            await peer.tell(said)
                    n_told = len(peer.said)
                    try:
                        answer = json.loads(await asyncio.wait_for(socket.recv(), 0.05))
                    except TimeoutError:
                        continue
                    silence_ms += len(base64.b64decode(answer.get("data", ""))) // 16
                    told = answer.get("word_timestamps", {"words": [], "end": []})
                    words += told["words"]
                    # The silence repeats what is repeated. No word comes before its own.
                    assert all(end_s * 1000 <= silence_ms - repeated_ms + 100 for end_s in told["end"] if end_s > 2)
                    if answer["type"] == "done":
                        break
                assert words == TEXT.split()
            await peer.tell({"type": "stop"})

    run(main)


def test_words_are_sent_when_asked_for() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def one(asked: bool) -> None:
                async with rig.bot(audio="none", **({"words": "on"} if asked else {})) as bot:
                    await bot.say("Pay $25 now. Thanks!", "a")
                    await bot.event("done")
                    found = [event for event in bot.events if event["type"] == "words"]
                    assert bool(found) == asked
                    if asked:
                        texts = [word["text"] for event in found for word in event["words"]]
                        assert texts == ["Pay", "$25", "now.", "Thanks!"]
                        assert [word["from"] for event in found for word in event["words"]] == [0, 4, 8, 13]

            await gather(one(True), one(False))

    run(main)


WRONG = ["barge_in_action=stop", "resume_after_ms=-1", "false_interruption_ms=5", "step_back_ms=9999", "words=yes"]


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_is_named(option: str) -> None:
    async def main() -> None:
        async with serving() as rig, connect(rig.url() + "?" + option, proxy=None) as socket:
            answer = str(await socket.recv())
            assert '"bad_option"' in answer and option.partition("=")[0] in answer

    run(main)


def test_the_sound_of_a_paused_call_is_not_that_of_its_neighbour() -> None:
    """A call that is paused for a second does not delay another one."""

    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary") as one, rig.bot(audio="binary") as other:
            await gather(one.say(TEXT, "a"), other.say(TEXT, "b"))
            await one.frames_to(20)
            await one.send({"type": "pause"})
            await other.event("done")
            assert correlation(decoded(other.frames), rendering([TEXT])) > 0.99
            assert not one.terminals("a")
            await one.send({"type": "clear"})
            cleared = await one.event("cleared")
            assert cleared["heard_text"] + cleared["unheard_text"] == TEXT
            assert np.abs(decoded(one.frames[-1:])).max() < 30_000

    run(main)
