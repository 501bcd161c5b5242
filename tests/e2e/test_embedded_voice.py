"""The embedded voice over the wire: the caller hears the engine's audio, and an interruption frees the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import pytest
import soxr
from rig import correlation, decoded, run, serving, speech_settings

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.hibari.engine import HibariEngine

pytestmark = pytest.mark.alone


class Recorded(HibariEngine):
    """The embedded voice, which also keeps its audio."""

    def __init__(self) -> None:
        super().__init__(n_workers=1)
        self.said: list[Chunk] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                self.said.append(chunk)
                yield chunk


def test_the_caller_hears_the_engines_audio() -> None:
    async def main() -> None:
        engine = Recorded()
        async with serving(engine, speech=speech_settings()) as rig, rig.bot(audio="binary") as bot:
            begun_s = time.monotonic()
            await bot.say("Your parcel is here. It weighs four pounds.", "a")
            done = await bot.event("done", turn="a", within_s=15)
            spoken = np.concatenate([chunk.pcm for chunk in engine.said]).astype(np.float32) / 32768
            wanted = (soxr.resample(spoken, engine.said[0].sample_rate_hz, 8000, "HQ") * 32768).astype(np.int16)
            heard = decoded(bot.frames)
            assert correlation(heard, wanted) >= 0.99
            assert 0 <= len(heard) - len(wanted) <= 160 + 2, "only the last frame's padding is added"
            assert done["audio_ms"] == 20 * len(bot.frames) and done["underruns"] == 0
            assert 0.9 * len(heard) / 8000 < time.monotonic() - begun_s

    run(main)


def test_barge_in_at_every_moment_of_a_sentence() -> None:
    async def main() -> None:
        async with serving(Recorded(), speech=speech_settings()) as rig, rig.bot(audio="binary") as bot:
            text = "There are many things to be told about it, and none of them is going to be told in full. "
            for n in range(8):
                await bot.say(text * 3, f"t{n}")
                await asyncio.sleep(n * 0.03)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared", turn=f"t{n}", within_s=2)
                assert cleared["heard_text"] + cleared["unheard_text"] == text * 3
                n_frames = len(bot.frames)
                await asyncio.sleep(0.05)
                assert len(bot.frames) == n_frames
            await rig.empty_engine()
            await bot.say("Fine.", "last")
            await bot.event("done", turn="last")

    run(main)
