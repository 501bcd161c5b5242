"""Text to frames without waiting: the same path as a call, in simulated time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from telephony_tts.app import offline
from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine, recognise
from telephony_tts.runtime.errors import EngineError, UnknownVoice
from telephony_tts.session.settings import SessionSettings


def spoken(text: str, engine: FakeEngine | None = None, **settings: object) -> tuple[bytes, list[Chunk], list[int]]:
    frames: list[bytes] = []
    chunks: list[Chunk] = []
    progress: list[int] = []
    asyncio.run(
        offline.speak(
            text,
            Catalog([engine or FakeEngine()]),
            SessionSettings(**settings),  # type: ignore[arg-type]
            on_frame=frames.append,
            on_chunk=chunks.append,
            progress=lambda done, of: progress.append(done),
        )
    )
    return b"".join(frames), chunks, progress


def test_the_words_come_out_in_order_at_8_khz() -> None:
    payload, _, progress = spoken("abc def gab? bad cab egg.")
    heard = recognise(decode_ulaw(payload), "abcdefg", sample_rate_hz=8000)
    assert "".join(heard.split()) == "abcdefgabbadcabegg"
    assert progress == [12, 25]


def test_the_engines_own_audio_is_whole() -> None:
    _, chunks, _ = spoken("abc def.")
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert recognise(pcm, "abcdef") == "abc def "


@pytest.mark.slow
def test_ten_minutes_of_text_have_no_limit_and_take_no_time() -> None:
    text = "one two three four five six seven. " * 300
    payload, _, progress = spoken(text)
    n_ms = len(text.strip()) * 60 - 299 * 60  # the space between two sentences belongs to neither
    assert abs(len(payload) / 8 - n_ms) <= 20
    assert progress[-1] == len(text.rstrip()) and len(progress) == 300


def test_engine_errors_are_the_callers() -> None:
    with pytest.raises(EngineError, match="told to fail"):
        spoken("abc.", FakeEngine(fail_after_chunks=1))
    with pytest.raises(UnknownVoice):
        spoken("abc.", voice="stranger")
