"""Engines of `engines.others` as the configuration makes them, recordings of speakers, and certificates."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from telephony_tts.audio.wav import write_wav
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.other_engine import OtherEngine
from telephony_tts.engines.others.plugin import other_engine
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.runtime.schema import read_section

TRANSCRIPT = "this is my voice"


def settings(**given: Any) -> OtherEngineSettings:
    """As they are read from a file; a setting that is wrong fails the test."""
    problems: list[str] = []
    found = read_section(OtherEngineSettings, given, problems)
    assert problems == []
    return found


def engine(name: str = "theirs", **given: Any) -> OtherEngine:
    made = other_engine(name, settings(**given))
    assert isinstance(made, OtherEngine)
    return made


@asynccontextmanager
async def started(**given: Any) -> AsyncIterator[OtherEngine]:
    made = engine(**{"start_timeout_s": 5.0, **given})
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def speak(speaker: OtherEngine, text: str = "hello there", **how: Any) -> list[Chunk]:
    return [chunk async for chunk in speaker.synthesize(Utterance("u", text, **how))]


def recording(folder: Path, name: str = "speaker.wav", rate_hz: int = 24_000) -> str:
    """The path of a recording: tones of a transcript."""
    path = folder / name
    write_wav(path, render(TRANSCRIPT, sample_rate_hz=rate_hz).astype("<i2").tobytes(), "pcm", rate_hz)
    return str(path)


def certificate(folder: Path, host: str) -> tuple[str, str]:
    """A self-signed certificate for `host` and its key."""
    cert, key = folder / f"{host}.pem", folder / f"{host}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}",
         "-addext", f"subjectAltName={'IP' if host[0].isdigit() else 'DNS'}:{host}", "-keyout", str(key),
         "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)
