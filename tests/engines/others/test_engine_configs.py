"""Each file of configs/engines is started against the stand-in of its server, and speaks with each of its voices."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc_stand_ins import cosyvoice_stand_in, triton_stand_in
from http_stand_ins import http_stand_in
from others_rig import recording
from socket_stand_ins import socket_stand_in

from telephony_tts.app.config import load
from telephony_tts.app.engines import build_catalog
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.settings import KINDS

pytestmark = pytest.mark.slow

CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "engines").glob("*.yaml"))


@contextmanager
def server_of(kind: str, websocket: bool) -> Iterator[str]:
    """The URL of a stand-in for a server of this kind."""
    if kind == "triton":
        with triton_stand_in() as of_grpc:
            yield of_grpc.address
    elif kind == "cosyvoice_grpc":
        with cosyvoice_stand_in() as of_grpc:
            yield of_grpc.address
    elif websocket:
        with socket_stand_in(greets=kind == "sglang_omni") as of_socket:
            yield of_socket.url
    else:
        habits: dict[str, Any] = {"voices": [{"id": "af_heart"}, {"id": "af_sky"}]}
        with http_stand_in(form="wav0" if kind == "voxserve" else "pcm", **habits) as of_http:
            yield of_http.url


def test_every_kind_has_a_file() -> None:
    assert {path.stem for path in CONFIGS} == set(KINDS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_file_starts_an_engine_that_speaks(path: Path, tmp_path: Path) -> None:
    file = tmp_path / path.name
    shutil.copy(path, file)
    (tmp_path / "voices").mkdir()
    recording(tmp_path / "voices", "anna.wav")
    ((name, theirs),) = load(str(file), environ={}).engines.others.items()
    assert theirs.kind == path.stem
    assert f"serve --config configs/engines/{path.name}" in path.read_text(encoding="utf-8")

    async def speak(url: str) -> None:
        config = load(str(file), {f"engines.others.{name}.url": url, "speech.detect_language": False}, {})
        assert (config.engines.default, config.engines.fallback) == (name, ("hibari",))
        catalog = build_catalog(config)
        await catalog.start()
        try:
            voices = [voice for voice in catalog.voices if voice.engine == name]
            assert voices and catalog.resolve(None, "en", "hello")[0].name == name
            for voice in voices:
                engine, chosen = catalog.choose(Utterance("u", "hello", voice=f"{name}/{voice.name}"))
                assert (engine.name, chosen) == (name, voice)
                utterance = Utterance("u", "hello", voice=chosen.name)
                heard = [chunk.pcm async for chunk in engine.synthesize(utterance)]
                assert np.array_equal(np.concatenate(heard), render("hello", sample_rate_hz=voice.sample_rate_hz))
        finally:
            await catalog.close()

    with server_of(path.stem, theirs.websocket) as url:
        asyncio.run(asyncio.wait_for(speak(url), 30))
