"""`telephony-tts voices pull` with the real npm, and what the voices then say."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from telephony_tts.cli.main import main
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.kokoro.engine import KokoroEngine

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("npm") is not None, "npm is needed: apt-get install npm"
    folder = tmp_path_factory.mktemp("kokoro")
    assert main(["voices", "pull", "jf_alpha", "af_heart", "--voices", str(folder)]) == 0
    return folder


def spoken(engine: KokoroEngine, utterance: Utterance) -> list[Chunk]:
    async def run() -> list[Chunk]:
        await engine.start()
        try:
            return [chunk async for chunk in engine.synthesize(utterance)]
        finally:
            await engine.close()

    return asyncio.run(run())


def test_an_english_voice_speaks_with_the_time_of_each_word(folder: Path) -> None:
    engine = KokoroEngine(voices_folder=folder)
    text = "Your balance is low."
    chunks = spoken(engine, Utterance("u", text, voice="af_heart"))
    said = [text[timing.start_char : timing.end_char] for chunk in chunks for timing in chunk.timings]
    assert said == ["Your", "balance", "is", "low"]
    assert 0.8 < sum(len(chunk.pcm) for chunk in chunks) / 24_000 < 3


def test_a_japanese_voice_speaks_with_the_time_of_each_word(folder: Path) -> None:
    pytest.importorskip("pyopenjtalk", reason="the extra [japanese] is not installed")
    engine = KokoroEngine(voices_folder=folder)
    text = "3名様でご予約ですね。"
    chunks = spoken(engine, Utterance("u", text, voice="jf_alpha"))
    timings = [timing for chunk in chunks for timing in chunk.timings]
    said = "".join(text[timing.start_char : timing.end_char] for timing in timings)
    assert said == text.rstrip("。")
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert 1 < len(pcm) / 24_000 < 4 and np.abs(pcm).max() > 3_000
    assert all(timing.end_sample <= len(pcm) for timing in timings)
