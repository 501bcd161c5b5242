"""The bridge's process is killed during a turn, and another one is started. Server and bridge are real."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from bridge_rig import run, until
from process_rig import running
from server_rig import TOKEN, bot_of, tts_server
from standin_freeswitch import PASSWORD, StandinChannel, StandinFreeSwitch

from telephony_tts.engines.fake.engine import recognise

pytestmark = pytest.mark.timed

SENTENCES = tuple(" ".join([word.title(), *[word] * 5]) + "." for word in ("baba", "dede", "fifi", "gogo"))
"""Sentences of 1.8 s each."""


def heard_whole(channel: StandinChannel) -> list[tuple[float, int]]:
    """(when its last word had been heard, its number) of each sentence that was, as often as it was."""
    found = []
    for from_s, _, pcm in channel.heard:
        text = recognise(np.frombuffer(pcm, "<i2").astype(np.int16), "abdefgioBDFG", sample_rate_hz=8000)
        for number, sentence in enumerate(SENTENCES, 1):
            at_char = text.find(sentence.rstrip("."))
            if at_char >= 0:
                found.append((from_s + (at_char + len(sentence)) * 0.06, number))
    return sorted(found)


@pytest.mark.parametrize("away_s", [0.0, 3.0])
def test_a_turn_is_heard_completely_although_its_bridge_is_killed(tmp_path: Path, away_s: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with tts_server() as server, StandinFreeSwitch(tmp_path).running() as switch:
            flags = ("freeswitch.enabled=true", f"freeswitch.port={switch.port}", f"freeswitch.password={PASSWORD}")
            channel = switch.call()
            async with running("ws://127.0.0.1:9/", *flags) as (bridge, _, _):
                await until(lambda: any("event plain" in each for each in switch.commands), "the event socket")
                url = f"ws://127.0.0.1:{server.port}/media/freeswitch"
                headers = {"Authorization": f"Bearer {TOKEN}", "X-Call": channel.uuid}
                assert await switch.stream(channel, url, metadata="{}", headers=headers)
                async with bot_of(server, channel.uuid) as bot:
                    for number, sentence in enumerate(SENTENCES, 1):
                        await bot.send(json.dumps({"type": "text", "text": sentence + " ", "turn": "a"}))
                        await bot.send(json.dumps({"type": "mark", "name": str(number), "turn": "a"}))
                    await bot.send(json.dumps({"type": "end", "turn": "a"}))
                    await channel.playing.wait()
                    await asyncio.sleep(1.2)
                    bridge.kill()
                    await bridge.wait()
                    await asyncio.sleep(away_s)
                    async with running("ws://127.0.0.1:9/", *flags):
                        marks, done = [], None
                        async with asyncio.timeout(25):  # the server's own limit is six seconds
                            while done is None:
                                told = json.loads(await bot.recv())
                                if told.get("type") == "mark":
                                    marks.append((loop.time(), told["name"], told["state"]))
                                done = told if told.get("type") == "done" else None
        assert [(name, state) for _, name, state in marks] == [(str(n), "played") for n in range(1, 5)]
        heard = heard_whole(channel)
        last = [max((at_s for at_s, n in heard if n == number), default=None) for number in range(1, 5)]
        assert None not in last, f"heard were {heard}"
        assert last == sorted(last), "in order"  # type: ignore[type-var]
        for (told_s, name, _), (first_s, _) in zip(
            marks, [next(each for each in heard if each[1] == number) for number in range(1, 5)], strict=True
        ):
            assert told_s > first_s - 0.05, f"mark {name} came before its sentence was heard"
        assert 4 * 1800 <= done["audio_ms"] <= 4 * 1860

    run(main, within_s=50)
