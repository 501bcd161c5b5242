"""The HTTP routes of Deepgram, ElevenLabs and Cartesia by hand: every format, what reaches the engine, and errors."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from http_peer import ask, ask_json
from rig import correlation, delayed_correlation, rendering, run, serving
from test_http_api import Witness, decoded

from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.transport.settings import ServerSettings

pytestmark = pytest.mark.timed

TEXT = "One two three four."
ELEVEN = "/v1/text-to-speech/tone"


def cartesia(container: str, encoding: str = "pcm_s16le", rate_hz: int = 24_000, **more: Any) -> dict[str, Any]:
    format = {"container": container, "encoding": encoding, "sample_rate": rate_hz}
    return {"model_id": "sonic", "transcript": TEXT, "output_format": format, **more}


def deepgram(**options: Any) -> str:
    return f"/v1/speak?{urlencode(options)}"


RAW = [
    (deepgram(encoding="linear16", container="none"), {"text": TEXT}, "s16", 24_000),
    (deepgram(encoding="linear16", container="none", sample_rate=8000), {"text": TEXT}, "s16", 8_000),
    (deepgram(encoding="mulaw"), {"text": TEXT}, "ulaw", 8_000),
    (deepgram(encoding="alaw", container="none"), {"text": TEXT}, "alaw", 8_000),
    (f"{ELEVEN}?output_format=pcm_16000", {"text": TEXT}, "s16", 16_000),
    (f"{ELEVEN}/stream?output_format=ulaw_8000", {"text": TEXT}, "ulaw", 8_000),
    ("/tts/bytes", cartesia("raw", rate_hz=44_100), "s16", 44_100),
    ("/tts/bytes", cartesia("raw", "pcm_f32le"), "f32", 24_000),
    ("/tts/bytes", cartesia("raw", "pcm_mulaw", 8_000), "ulaw", 8_000),
    ("/tts/bytes", cartesia("raw", "pcm_alaw", 8_000), "alaw", 8_000),
    ("/tts/bytes", {"transcript": TEXT}, "s16", 24_000),
]
FILES = [
    (deepgram(encoding="linear16"), {"text": TEXT}, 24_000),
    (deepgram(encoding="linear16", sample_rate=16_000, container="wav"), {"text": TEXT}, 16_000),
    (deepgram(), {"text": TEXT}, 22_050),
    (deepgram(encoding="opus", container="ogg"), {"text": TEXT}, 48_000),
    (deepgram(encoding="flac"), {"text": TEXT}, 24_000),
    (f"{ELEVEN}/stream", {"text": TEXT}, 44_100),
    (f"{ELEVEN}?output_format=opus_48000_64", {"text": TEXT}, 48_000),
    ("/tts/bytes", cartesia("wav"), 24_000),
    ("/tts/bytes", cartesia("mp3", rate_hz=44_100), 44_100),
]


def samples(kind: str, data: bytes) -> np.ndarray:
    if kind == "f32":
        floats = np.frombuffer(data, "<f4")
        assert np.abs(floats).max() <= 1
        return (floats * 32_768).astype(np.int16)
    return {"ulaw": decode_ulaw, "alaw": decode_alaw}[kind](data) if kind != "s16" else np.frombuffer(data, "<i2")


@pytest.mark.parametrize(("path", "body", "kind", "rate_hz"), RAW)
def test_samples(path: str, body: dict[str, Any], kind: str, rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, path, body)
            assert got.status == 200, got.body
            heard, wanted = samples(kind, got.body), rendering([TEXT], rate_hz)
            assert correlation(heard, wanted) > 0.99 and 0 <= len(heard) - len(wanted) < rate_hz // 25

    run(main)


@pytest.mark.parametrize(("path", "body", "rate_hz"), FILES)
def test_files(path: str, body: dict[str, Any], rate_hz: int) -> None:
    pytest.importorskip("av")

    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, path, body)
            assert got.status == 200 and got.headers["content-type"].startswith("audio/"), got.body
            heard, heard_hz = decoded("flac" if "flac" in path else "", got.body)
            assert heard_hz == rate_hz
            wanted = rendering([TEXT], rate_hz)
            assert delayed_correlation(heard, wanted) > 0.97 and abs(len(heard) - len(wanted)) < rate_hz // 5

    run(main)


def test_what_reaches_the_engine() -> None:
    async def main() -> None:
        engine = Witness(voice_names=("tone", "other"))
        async with serving(engine, voice_names={"Bella": "other"}) as rig:
            for path, body in (
                (deepgram(model="other", speed=1.5, encoding="mulaw"), {"text": TEXT}),
                (deepgram(model="aura-2-viktoria-de", encoding="mulaw"), {"text": TEXT}),
                ("/v1/text-to-speech/Bella?output_format=pcm_8000&language_code=fr",
                 {"text": TEXT, "voice_settings": {"speed": 9, "stability": 1}, "seed": 7}),
                ("/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM?output_format=pcm_8000",
                 {"text": TEXT, "language_code": "en"}),
                ("/tts/bytes", cartesia("raw", voice={"mode": "id", "id": "other"}, language="de-DE",
                                        generation_config={"speed": 0.5, "emotion": "calm"})),
                ("/tts/bytes", cartesia("raw", voice={"mode": "embedding", "embedding": [0.5]})),
            ):  # fmt: skip
                assert (await ask_json(rig.port, path, body)).status == 200, path
            assert [(each.voice, each.lang, each.speed, each.seed) for each in engine.asked] == [
                ("other", "en", 1.5, None), ("tone", "de", 1.0, None), ("other", "fr", 2.0, 7),
                ("tone", "en", 1.0, None), ("other", "de", 0.5, None), ("tone", "en", 1.0, None),
            ]  # fmt: skip
            sources = [each.lang_source for each in engine.asked]
            assert sources == ["letters", "bot", "bot", "bot", "bot", "letters"]

    run(main)


WRONG = [
    (deepgram(encoding="wma"), {"text": TEXT}, 400),
    (deepgram(encoding="mulaw", sample_rate=44_100), {"text": TEXT}, 400),
    (deepgram(encoding="mulaw", container="wav"), {"text": TEXT}, 400),
    (deepgram(encoding="mulaw", model="ghost"), {"text": TEXT}, 404),
    (deepgram(encoding="mulaw"), {"text": ""}, 400),
    (deepgram(encoding="mulaw"), {"txt": TEXT}, 400),
    (deepgram(encoding="mulaw"), {"text": "x" * 100_001}, 413),
    (f"{ELEVEN}?output_format=wma", {"text": TEXT}, 400),
    ("/v1/text-to-speech/ghost/stream?output_format=pcm_8000", {"text": TEXT}, 404),
    (f"{ELEVEN}?output_format=pcm_8000", {"text": None}, 400),
    ("/tts/bytes", cartesia("ogg"), 400),
    ("/tts/bytes", cartesia("raw", "pcm_mulaw", 16_000), 400),
    ("/tts/bytes", cartesia("wav", "pcm_alaw", 8_000), 400),
    ("/tts/bytes", cartesia("raw", voice={"mode": "id", "id": "ghost"}), 404),
    ("/tts/bytes", cartesia("raw", generation_config={"speed": 9}), 400),
]


def told_in(path: str, error: dict[str, Any]) -> str:
    """The message of an error in the vendor's form."""
    if path.startswith("/v1/speak"):
        assert set(error) == {"err_code", "err_msg", "request_id"}
        return str(error["err_msg"])
    if path.startswith("/v1/text"):
        assert set(error) == {"detail"} and set(error["detail"]) == {"status", "message"}
        return str(error["detail"]["message"])
    assert set(error) == {"error_code", "title", "message", "request_id"}
    return str(error["message"])


@pytest.mark.parametrize(("path", "body", "status"), WRONG)
def test_errors_have_the_vendors_form(path: str, body: dict[str, Any], status: int) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, path, body)
            assert got.status == status and told_in(path, got.json())
            assert not rig.engine.spoken  # type: ignore[attr-defined]

    run(main)


def test_the_key_and_a_server_without_room() -> None:
    keys = {"/v1/speak?encoding=mulaw": {"Authorization": "Token secret"}, "/tts/bytes": {"X_API_Key": "secret"},
            f"{ELEVEN}?output_format=pcm_8000": {"xi_api_key": "secret"}}  # fmt: skip

    async def main() -> None:
        async with serving(server=ServerSettings(host="127.0.0.1", port=0, tokens=("secret",))) as rig:
            for path, key in keys.items():
                body = {"text": TEXT, "transcript": TEXT}
                got = await ask_json(rig.port, path, body)
                assert got.status == 401 and told_in(path, got.json())
                assert (await ask_json(rig.port, path, body, **key)).status == 200
                rig.server.ready = False
                got = await ask_json(rig.port, path, body, **key)
                assert got.status == 503 and told_in(path, got.json()) and got.headers["retry-after"] == "5"
                rig.server.ready = True
            got = await ask(rig.port, "GET", "/v1/speak", Authorization="Token secret")
            assert got.status == 405 and told_in("/v1/speak", got.json())

    run(main)
