"""Speech over HTTP with real sockets: every route and format, what reaches the engine, and peers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import re
import shlex
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
import soundfile
from http_peer import BOUNDARY, Answer, HttpPeer, ask, ask_json, http_peer, multipart, request
from neighbour import neighbour
from raw_peer import raw_peer
from rig import Tones, Witness, correlation, rendering, run, serving, until
from served import process

from telephony_tts.doors.cosyvoice.routes import ROUTES
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api import gate, responses
from telephony_tts.runtime.errors import EngineError
from telephony_tts.transport import incoming
from telephony_tts.transport.settings import ServerSettings
from telephony_tts.transport.unserved import LINGER_BYTES

pytestmark = pytest.mark.timed

TEXT = "One two. Three four?"
SENTENCES = ["One two.", "Three four?"]
LAG = {"mp3": 1105, "aac": 1024}
"""Samples before the audio that an encoder adds, and that the file cannot tell the decoder."""
KEY = "s3cret"


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    return [(r.getMessage(), r.exc_info) for r in caplog.records if r.levelno >= logging.WARNING]


def assert_speaks(pcm: np.ndarray, rate_hz: int, texts: list[str] = SENTENCES, at_least: float = 0.99) -> None:
    """The samples are the engine's audio of the texts, up to their end."""
    wanted = rendering(texts, rate_hz)
    assert correlation(pcm, wanted) > at_least
    assert len(wanted) - rate_hz // 50 <= len(pcm) <= len(wanted) + rate_hz // 5


def decoded(format: str, content: bytes) -> tuple[np.ndarray, int]:
    """The samples and their rate, as foreign decoders have them."""
    if format in ("aac", "flac"):
        av = pytest.importorskip("av")
        with av.open(io.BytesIO(content)) as file:
            pcm = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
            rate_hz = file.streams.audio[0].codec_context.sample_rate
        return (pcm if pcm.dtype == np.int16 else pcm * 32_768)[LAG.get(format, 0) :], rate_hz
    if format in ("pcm", "ulaw", "alaw"):
        raw = {"pcm": ("PCM_16", 24_000), "ulaw": ("ULAW", 8_000), "alaw": ("ALAW", 8_000)}[format]
        read = soundfile.read(
            io.BytesIO(content), dtype="int16", format="RAW", subtype=raw[0], samplerate=raw[1], channels=1,
            endian="FILE" if format != "pcm" else "LITTLE",
        )  # fmt: skip
        return read
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        return file.read(2_000_000, dtype="int16")[LAG.get(format, 0) :], file.samplerate


# ------------------------------------------------------------------- what is spoken

OURS = ("wav", "pcm", "ulaw", "alaw", "mp3", "opus", "aac", "flac")
TYPES = {
    "wav": "audio/wav", "pcm": "audio/pcm", "ulaw": "audio/basic", "alaw": "audio/x-alaw-basic", "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus", "aac": "audio/aac", "flac": "audio/flac",
}  # fmt: skip


@pytest.mark.parametrize("format", OURS)
def test_every_format_is_what_the_engine_spoke(format: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, "/tts/stream", {"text": TEXT, "format": format})
            assert (got.status, got.headers["content-type"], got.is_whole) == (200, TYPES[format], True)
            pcm, rate_hz = decoded(format, got.body)
            assert rate_hz == (8_000 if format in ("ulaw", "alaw") else 24_000)
            assert_speaks(pcm, rate_hz)

    run(main)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_every_sample_rate(rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask(rig.port, "GET", f"/tts/stream?text={quote(TEXT)}&sample_rate={rate_hz}")
            pcm, heard_hz = decoded("wav", got.body)
            assert heard_hz == rate_hz
            assert_speaks(pcm, rate_hz)

    run(main)


FORM = "application/x-www-form-urlencoded"
WAYS = {
    "json": ("POST", "", "application/json", json.dumps({"text": TEXT, "format": "pcm"}).encode()),
    "json in capitals": ("POST", "", "Application/JSON", json.dumps({"text": TEXT, "format": "pcm"}).encode()),
    "form": ("POST", "", FORM, urlencode({"text": TEXT, "format": "pcm", "voice": ""}).encode()),
    "multipart": (
        "POST", "", f"multipart/form-data; boundary={BOUNDARY}", multipart({"text": TEXT, "format": "pcm"}, {}),
    ),
    "query": ("GET", "?" + urlencode({"text": TEXT, "format": "pcm"}), "", b""),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask(way: str) -> None:
    method, query, kind, body = WAYS[way]

    async def main() -> None:
        async with serving() as rig:
            headers = {"Content_Type": kind} if kind else {}
            got = await ask(rig.port, method, "/tts/stream" + query, body, **headers)
            assert got.status == 200, got.body
            assert_speaks(np.frombuffer(got.body, "<i2"), 24_000)
            assert rig.engine.spoken == SENTENCES  # type: ignore[attr-defined]

    run(main)


def test_every_option_reaches_the_engine() -> None:
    async def main() -> None:
        engine = Witness(voice_names=("tone", "other"))
        async with serving(engine) as rig:
            how = {"voice": "other", "lang": "zh", "speed": 1.5, "seed": 7, "instruct": "softly"}
            for ask_so in (
                ask_json(rig.port, "/tts/stream", {"text": "Hello.", **how}),
                ask(rig.port, "GET", "/tts/stream?" + urlencode({"text": "Hello.", **how})),
            ):
                assert (await ask_so).status == 200
                heard = engine.asked.pop()
                assert (heard.text, heard.voice, heard.speed) == ("Hello.", "other", 1.5)
                assert (heard.lang, heard.seed, heard.instruct, heard.can_wait) == ("zh", 7, "softly", True)
            assert (await ask_json(rig.port, "/tts/stream", {"text": "Hello."})).status == 200
            heard = engine.asked.pop()
            assert (heard.speed, heard.instruct) == (1.0, None)

    run(main)


def test_a_long_text_is_spoken_to_its_end() -> None:
    names = ("one", "two", "three", "four")
    sentences = [f"This is sentence {'very ' * (n % 7)}number {names[n % 4]}." for n in range(150)]

    async def main() -> None:
        async with serving(Tones(ms_per_char=5)) as rig:
            got = await ask_json(rig.port, "/tts/stream", {"text": " ".join(sentences), "format": "ulaw"})
            assert rig.engine.spoken == sentences  # type: ignore[attr-defined]
            seconds = sum(map(len, sentences)) * 0.005
            assert seconds * 8000 <= len(got.body) < seconds * 8000 + 150 * 160

    run(main)


@pytest.mark.parametrize("format", ["wav", "mp3", "opus", "pcm"])
def test_the_response_begins_with_the_first_audio(format: str) -> None:
    """The engine needs 5 s for this text; the first audio is there after 0.1 s of it."""

    async def main() -> None:
        async with serving(Tones(speed=1.0, chunk_ms=40)) as rig, http_peer(rig.port) as peer:
            begun_s = time.monotonic()
            await peer.send("GET", f"/tts/stream?format={format}&text={quote('Hello there. ' * 7)}")
            got = await peer.head()
            content = b""
            while len(content) < 500:
                content += await peer.chunk()
            assert time.monotonic() - begun_s < 1.0 and got.status == 200
            if format == "wav":
                assert content[:4] == b"RIFF" and content[4:8] == content[40:44] == b"\xff" * 4

    run(main)


@pytest.mark.parametrize("text", ["...", "?!", "—"])
def test_a_text_without_words_is_an_empty_file(text: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, "/tts/stream", {"text": text})
            assert (got.status, len(got.body), got.is_whole) == (200, 44, True)

    run(main)


# ------------------------------------------------------------------- other vendors' routes

UPSTREAM = {"tts_text": TEXT, "spk_id": "tone", "prompt_text": "hi", "instruct_text": "softly"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("kind", ["urlencoded", "multipart"])
@pytest.mark.parametrize("route", ["sft", "instruct"])
def test_upstreams_client(method: str, kind: str, route: str) -> None:
    """Upstream's client sends GET with a form in the body (`requests.request("GET", url, data=payload)`), and reads
    raw int16."""
    fields = {"tts_text": TEXT, "spk_id": "tone"} | ({"instruct_text": "softly"} if route == "instruct" else {})

    async def main() -> None:
        engine = Witness()
        async with serving(engine) as rig:
            body = urlencode(fields).encode() if kind == "urlencoded" else multipart(fields, {})
            content_type = FORM if kind == "urlencoded" else f"multipart/form-data; boundary={BOUNDARY}"
            got = await ask(
                rig.port, method, f"/inference_{route}", body, Content_Type=content_type, Accept="*/*",
                User_Agent="python-requests/2.32.3", Accept_Encoding="gzip, deflate", Connection="keep-alive",
            )  # fmt: skip
            assert got.status == 200, got.body
            assert_speaks(np.frombuffer(got.body, "<i2"), 24_000)
            assert engine.asked[0].instruct == ("softly" if route == "instruct" else None)

    run(main)


@pytest.mark.parametrize("route", ["zero_shot", "cross_lingual", "instruct2"])
def test_upstreams_recordings_name_what_is_missing(route: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            kind = f"multipart/form-data; boundary={BOUNDARY}"
            form = multipart({"tts_text": "hi"}, {})
            got = await ask(rig.port, "GET", f"/inference_{route}", form, Content_Type=kind)
            assert got.status == 400 and "prompt_wav" in got.json()["error"]["message"]

    run(main)


def test_vapi() -> None:
    """A request as Vapi's documents show it."""
    body = {
        "message": {
            "type": "voice-request", "text": TEXT, "sampleRate": 16_000, "timestamp": 1_677_123_456_789,
            "call": {"id": "7420f27a-30fd-4f49-a995-5549ae7cc00d", "orgId": "o"}, "assistant": {"name": "x"},
            "customer": {"number": "+15550100"},
        }
    }  # fmt: skip

    async def main() -> None:
        async with serving(server=ServerSettings(host="127.0.0.1", port=0, tokens=(KEY,))) as rig:
            assert (await ask_json(rig.port, "/vapi/voice", body)).status == 401
            got = await ask_json(rig.port, "/vapi/voice", body, X_Vapi_Secret=KEY)
            assert (got.status, got.headers["content-type"]) == (200, "audio/raw")
            assert_speaks(np.frombuffer(got.body, "<i2"), 16_000)
            wrong: dict[str, Any] = {"message": {**body["message"], "sampleRate": 11_025}}
            assert (await ask_json(rig.port, "/vapi/voice", wrong, X_Vapi_Secret=KEY)).status == 400
            wrong = {"message": {**body["message"], "type": "end-of-call-report"}}
            assert (await ask_json(rig.port, "/vapi/voice", wrong, X_Vapi_Secret=KEY)).status == 400

    run(main)


def test_jambonz() -> None:
    body = {"language": "en-US", "voice": "tone", "type": "text", "text": TEXT}

    async def main() -> None:
        async with serving(server=ServerSettings(host="127.0.0.1", port=0, tokens=(KEY,))) as rig:
            key = {"Authorization": f"Bearer {KEY}"}
            got = await ask_json(rig.port, "/jambonz/tts", body, **key)
            assert (got.status, got.headers["content-type"]) == (200, "audio/l16;rate=8000")
            assert_speaks(np.frombuffer(got.body, "<i2"), 8_000)
            ssml = {**body, "type": "ssml", "text": f"<speak>{TEXT}<break time='10ms'/></speak>"}
            got = await ask_json(rig.port, "/jambonz/tts", ssml, **key)
            assert_speaks(np.frombuffer(got.body, "<i2"), 8_000)
            assert (await ask_json(rig.port, "/jambonz/tts", {**body, "voice": "ghost"}, **key)).status == 404

    run(main)


def events_of(got: Answer) -> list[dict[str, Any]]:
    lines = got.body.decode().split("\n\n")
    assert lines.pop() == "" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
@pytest.mark.parametrize("stream", ["audio", "sse"])
def test_openais_formats(format: str, stream: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            body = {**SPEECH, "input": TEXT, "response_format": format, "stream_format": stream}
            got = await ask_json(rig.port, "/v1/audio/speech", body)
            assert got.status == 200, got.body
            content = got.body
            if stream == "sse":
                assert got.headers["content-type"].startswith("text/event-stream")
                *deltas, done = events_of(got)
                assert {event["type"] for event in deltas} == {"speech.audio.delta"}
                assert done["type"] == "speech.audio.done" and done["usage"]["input_tokens"] == len(TEXT)
                content = b"".join(base64.b64decode(event["audio"]) for event in deltas)
            pcm, rate_hz = decoded(format, content)
            assert rate_hz == 24_000
            assert_speaks(pcm, 24_000)

    run(main)


def test_openais_voices_models_and_speed() -> None:
    async def main() -> None:
        engine = Witness(voice_names=("tone", "other"))
        async with serving(engine, voice_names={"nova": "other"}) as rig:

            async def heard(**how: Any) -> Utterance:
                body = {"model": "m", "input": "Hello.", "response_format": "pcm", **how}
                got = await ask_json(rig.port, "/v1/audio/speech", body)
                assert got.status == 200, got.body
                return engine.asked.pop()

            assert (await heard(voice="nova")).voice == "other"
            assert (await heard(voice={"id": "other"})).voice == "other"
            for name in ("alloy", "ash", "verse"):
                assert (await heard(voice=name)).voice in (None, "tone")
            assert (await heard(voice="tone", instructions="Cheerful.")).instruct == "Cheerful."
            assert [(await heard(speed=speed)).speed for speed in (0.25, 1.25, 4.0)] == [0.5, 1.25, 2.0]
            models = (await ask(rig.port, "GET", "/v1/models")).json()
            assert models["object"] == "list" and {"fake", "gpt-4o-mini-tts"} <= {m["id"] for m in models["data"]}
            assert (await ask(rig.port, "GET", "/v1/models/tts-1")).json()["id"] == "tts-1"
            got = await ask(rig.port, "GET", "/v1/models/ghost")
            assert (got.status, got.code) == (404, "model_not_found")
            voices = (await ask(rig.port, "GET", "/v1/audio/voices")).json()["voices"]
            assert {"tone", "other", "nova", "alloy"} <= {voice["id"] for voice in voices}

    run(main)


PAGES = Path(__file__).resolve().parents[2] / "docs" / "protocol"
CURL = [
    line
    for page in ("http", "openai", "cosyvoice", "custom-voices", "vendor-http")
    for block in re.findall(r"^```sh curl\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def test_the_lines_for_curl_on_the_pages(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            assert len(CURL) == 16
            for line in CURL:
                words = shlex.split(line.replace("127.0.0.1:8080", f"127.0.0.1:{rig.port}"))
                curl = await asyncio.create_subprocess_exec(*words, "--noproxy", "*")
                assert await asyncio.wait_for(curl.wait(), 10) == 0, line

    run(main)
    assert not warnings_in(caplog)


# ------------------------------------------------------------------- refusals

SPEECH = {"input": "hi", "model": "tts-1", "voice": "alloy"}
BAD: dict[str, tuple[str, Any, int, str]] = {
    "no text": ("/tts/stream", {}, 400, "bad_request"),
    "empty text": ("/tts/stream", {"text": ""}, 400, "bad_request"),
    "blank text": ("/tts/stream", {"text": " \n"}, 400, "bad_request"),
    "text of a wrong type": ("/tts/stream", {"text": 5}, 400, "bad_request"),
    "half a character": ("/tts/stream", {"text": "\ud800"}, 400, "bad_request"),
    "unknown voice": ("/tts/stream", {"text": "hi", "voice": "ghost"}, 404, "unknown_voice"),
    "unknown format": ("/tts/stream", {"text": "hi", "format": "wma"}, 400, "bad_audio"),
    "rate of no format": ("/tts/stream", {"text": "hi", "sample_rate": 7}, 400, "bad_request"),
    "speed": ("/tts/stream", {"text": "hi", "speed": 9}, 400, "bad_request"),
    "no number": ("/tts/stream", {"text": "hi", "speed": "NaN"}, 400, "bad_request"),
    "seed": ("/tts/stream", {"text": "hi", "seed": -1}, 400, "bad_request"),
    "a list": ("/tts/stream", ["hi"], 400, "bad_request"),
    "no such path": ("/tts/stream/x", {"text": "hi"}, 404, "not_found"),
    "a megabyte": ("/tts/stream", {"text": "x" * 1_000_000}, 413, "text_too_long"),
    "three megabytes": ("/tts/stream", {"text": "x" * 3_000_000}, 413, "body_too_large"),
    "openai: empty": ("/v1/audio/speech", {**SPEECH, "input": ""}, 400, "bad_request"),
    "openai: no input": ("/v1/audio/speech", {"model": "tts-1"}, 400, "bad_request"),
    "openai: voice": ("/v1/audio/speech", {**SPEECH, "voice": "ghost"}, 404, "unknown_voice"),
    "openai: format": ("/v1/audio/speech", {**SPEECH, "response_format": "wma"}, 400, "bad_request"),
    "openai: speed": ("/v1/audio/speech", {**SPEECH, "speed": 9}, 400, "bad_request"),
    "openai: a megabyte": ("/v1/audio/speech", {**SPEECH, "input": "x" * 1_000_000}, 413, "text_too_long"),
    "openai: three megabytes": ("/v1/audio/speech", {**SPEECH, "input": "x" * 3_000_000}, 413, "body_too_large"),
    "half a character elsewhere": ("/tts/stream", {"text": "hi", "instruct": "\udfff"}, 400, "bad_request"),
    "a voice of half a character": ("/tts/stream", {"text": "hi", "voice": "\ud800"}, 404, "unknown_voice"),
    "openai: no such path": ("/v1/audio/speech/x", {}, 404, "not_found"),
    "vapi": ("/vapi/voice", {"message": {"type": "voice-request"}}, 400, "bad_request"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_spoken_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    path, values, status, code = BAD[name]

    async def main() -> None:
        async with serving() as rig:
            got = await ask_json(rig.port, path, values)
            assert (got.status, got.code) == (status, code), got.body
            error = got.json()["error"]
            assert set(error) == ({"message", "type", "param", "code"} if "openai" in name else {"code", "message"})
            assert error["message"] and not rig.engine.spoken  # type: ignore[attr-defined]

    with caplog.at_level(logging.INFO):
        run(main)
    refused = [r.fields for r in caplog.records if r.getMessage() == "refused"]  # type: ignore[attr-defined]
    assert [(each["reason"], each["path"]) for each in refused] == [(code, path)]
    assert not warnings_in(caplog)


MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
DEEP = b"[" * 200_000
NONSENSE = {
    "json": (b"{text", "application/json", 400),
    "deep json": (DEEP, "application/json", 400),
    "deep json in a field": (b'{"text":' + DEEP, "application/json", 400),
    "bytes": (b"\xff\xfe\x00", "application/json", 400),
    "no type": (b"hello", "", 400),
    "no boundary": (multipart({"text": "hi"}, {}), "multipart/form-data", 400),
    "another boundary": (multipart({"text": "hi"}, {}), "multipart/form-data; boundary=zzz", 400),
    "half a form": (multipart({"text": "hi"}, {})[:60], f"multipart/form-data; boundary={BOUNDARY}", 400),
    "many fields": (multipart({f"f{n}": "" for n in range(2000)}, {}), MULTIPART, 400),
    "an unknown charset": (multipart({"a": "é"}, {}), f"multipart/form-data; charset=x; boundary={BOUNDARY}", 400),
    "form of bytes": (b"text=%ff%fe&voice=%00", FORM, 404),
}


@pytest.mark.parametrize("path", ["/tts/stream", "/v1/audio/speech", "/inference_sft", "/jambonz/tts"])
@pytest.mark.parametrize("name", NONSENSE)
def test_a_body_that_cannot_be_read_is_refused(name: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    body, kind, status = NONSENSE[name]

    async def main() -> None:
        async with serving() as rig:
            headers = {"Content_Type": kind} if kind else {}
            got = await ask(rig.port, "POST", path, body, **headers)
            assert got.status == (status if path == "/tts/stream" else 400), got.body
            assert got.json()["error"]["message"]

    run(main)
    assert not warnings_in(caplog)


def locked(**more: Any) -> ServerSettings:
    return ServerSettings(host="127.0.0.1", port=0, tokens=(KEY,), **more)


def test_every_place_of_a_key(caplog: pytest.LogCaptureFixture) -> None:
    basic = base64.b64encode(f"x:{KEY}".encode()).decode()
    right = [
        {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Token {KEY}"}, {"Authorization": f"Basic {basic}"},
        {"xi_api_key": KEY}, {"X_API_Key": KEY}, {"X_Vapi_Secret": KEY},
    ]  # fmt: skip
    wrong = [
        {}, {"Authorization": "Bearer no"}, {"Authorization": "Bearer"}, {"X_API_Key": ""}, {"X_API_Key": "\xff"},
        {"Authorization": f"Digest {KEY}"}, {"Authorization": "Bearer \xff\xfe"},
        {"Sec_WebSocket_Protocol": "token, no"},
        {"X_API_Key": f"{KEY}\r\nX-API-Key: no"},
    ]  # fmt: skip

    async def main() -> None:
        async with serving(server=locked()) as rig:
            for headers in right:
                assert (await ask(rig.port, "GET", "/v1/models", **headers)).status == 200, headers
            for query in (f"token={KEY}", f"api_key={KEY}"):
                assert (await ask(rig.port, "GET", f"/tts/stream?text=hi&{query}")).status == 200
            for headers in wrong:
                for path in ("/v1/models", "/tts/stream?text=hi"):
                    got = await ask(rig.port, "GET", path, **headers)
                    assert got.status == 401 and got.code == "unauthorized", (headers, got)
                    assert got.headers["www-authenticate"] == "Bearer"
            got = await ask_json(rig.port, "/v1/audio/speech", SPEECH)
            assert got.status == 401 and got.json()["error"]["type"] == "authentication_error"
            for path in ("/docs", "/openapi.json"):
                assert (await ask(rig.port, "GET", path)).status == 200

    run(main)
    assert not warnings_in(caplog)


def test_the_same_keys_at_a_websockets_door(caplog: pytest.LogCaptureFixture) -> None:
    """Headers that come twice, and bytes that are no ASCII, made the handshake fail with a traceback."""

    async def main() -> None:
        async with serving(server=locked()) as rig:
            for bad in (f"X-API-Key: {KEY}\r\nX-API-Key: no", "X-API-Key: \xff",
                        "Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: b"):  # fmt: skip
                async with http_peer(rig.port) as peer:
                    peer.writer.write(
                        f"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{bad}\r\n"
                        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode(
                            "latin-1"
                        )
                    )
                    assert (await peer.head()).status == 401

    run(main)
    assert not warnings_in(caplog)


def test_pages_of_another_origin() -> None:
    async def main() -> None:
        async with serving(origins=("https://good.example",)) as rig:
            evil, good = "http://evil.example", "https://good.example"
            for headers in ({"Origin": evil}, {"Origin": f"{good}\r\nOrigin: {evil}"}):
                got = await ask(rig.port, "GET", "/tts/stream?text=hi", **headers)
                assert (got.status, got.code) == (403, "origin")
                assert "access-control-allow-origin" not in got.headers
            got = await ask(rig.port, "GET", "/tts/stream?text=hi", Origin=good)
            assert (got.status, got.headers["access-control-allow-origin"]) == (200, good)
            first = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type"}
            got = await ask(rig.port, "OPTIONS", "/tts/stream", Origin=good, **first)
            assert got.status == 204 and "POST" in got.headers["access-control-allow-methods"]
            assert got.headers["access-control-allow-origin"] == good
            assert (await ask(rig.port, "OPTIONS", "/tts/stream", Origin=evil, **first)).status == 403
            assert not rig.engine.spoken[1:]  # type: ignore[attr-defined]

    run(main)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/tts/stream?text=hi", 405), ("OPTIONS", "/tts/stream", 405), ("DELETE", "/v1/models", 405),
        ("GET", "/v1/audio/speech", 405), ("BREW", "/tts/stream", 405), ("GET", "/tts/stream/", 404),
        ("GET", "/v1/audio", 404), ("GET", "/tts/streams", 404), ("GET", "/%74ts/stream?text=hi", 404),
        ("GET", "//tts/stream?text=hi", 404), ("GET", "http://x/tts/stream?text=hi", 404),
    ],
)  # fmt: skip
def test_other_methods_and_paths(method: str, path: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            got = await ask(rig.port, method, path)
            assert got.status == status
            assert (status == 405) == ("allow" in got.headers)
            assert (await ask(rig.port, "GET", "/docs")).status == 200

    run(main)
    assert not warnings_in(caplog)


# ------------------------------------------------------------------- one connection, many requests


def test_a_connection_is_kept_and_every_request_finds_its_server(caplog: pytest.LogCaptureFixture) -> None:
    """A proxy that keeps connections sends requests of all kinds over one."""

    async def main() -> None:
        async with serving() as rig, http_peer(rig.port) as peer:
            for text in ("one", "two", "three"):
                await peer.send("GET", f"/tts/stream?format=pcm&text={text}")
                assert_speaks(np.frombuffer((await peer.answer()).body, "<i2"), 24_000, [text])
            await peer.send("POST", "/tts/stream", b"{", Content_Type="application/json")
            assert (await peer.answer()).status == 400
            await peer.send("GET", "/healthz")
            got = await peer.answer()
            assert (got.status, got.body) == (200, b"ok\n")
            assert await peer.is_closed()

    run(main)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("plain_loop", [True, False], ids=["asyncio", "uvloop"])
def test_pipelined_requests_are_answered_in_order(plain_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            for cut in (None, 30, 200):
                async with http_peer(rig.port) as peer:
                    texts = ["one", "two", "three", "four", "five"]
                    many = [request("GET", f"/tts/stream?format=pcm&text={text}") for text in texts]
                    body = json.dumps({"text": "six", "format": "pcm"}).encode()
                    many.append(request("POST", "/tts/stream", body, Content_Type="application/json"))
                    whole = b"".join(many) + request("GET", "/healthz")
                    peer.writer.write(whole[:cut])
                    if cut is not None:
                        await asyncio.sleep(0.02)
                        peer.writer.write(whole[cut:])
                    for text in (*texts, "six"):
                        got = await peer.answer()
                        assert_speaks(np.frombuffer(got.body, "<i2"), 24_000, [text])
                    assert (await peer.answer()).body == b"ok\n"

    run(main, plain_loop=plain_loop)
    assert not warnings_in(caplog)


def test_a_websocket_after_a_request_on_the_same_connection() -> None:
    async def main() -> None:
        async with serving() as rig, http_peer(rig.port) as peer:
            await peer.send("GET", "/v1/models")
            assert (await peer.answer()).status == 200
            await peer.send(
                "GET", "/v1/stream?audio=none", Upgrade="websocket", Connection="Upgrade",
                Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==", Sec_WebSocket_Version="13",
            )  # fmt: skip
            assert (await peer.head()).status == 101
            assert b'"ready"' in await peer.reader.readuntil(b"}}")

    run(main)


def test_a_kept_connection_is_closed_when_no_request_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "KEEP_ALIVE_S", 0.2)

    async def main() -> None:
        async with serving() as rig:
            for begun in (b"", b"GET /v1/mod"):
                async with http_peer(rig.port) as peer:
                    await peer.send("GET", "/v1/models")
                    await peer.answer()
                    peer.writer.write(begun)
                    assert await peer.is_closed(2)

    run(main)


def test_connection_close_and_http_1_0(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            async with http_peer(rig.port) as peer:
                await peer.send("GET", "/tts/stream?format=pcm&text=hi", Connection="close")
                got = await peer.answer()
                assert_speaks(np.frombuffer(got.body, "<i2"), 24_000, ["hi"])
                assert await peer.is_closed()
            async with http_peer(rig.port) as peer:
                peer.writer.write(b"GET /tts/stream?format=pcm&text=hi HTTP/1.0\r\n\r\n")
                got = await peer.answer()
                assert "transfer-encoding" not in got.headers
                assert_speaks(np.frombuffer(got.body, "<i2"), 24_000, ["hi"])

    run(main)
    assert not warnings_in(caplog)


def test_a_client_that_waits_for_100_continue() -> None:
    """curl does, before a large body."""

    async def main() -> None:
        async with serving() as rig:
            async with http_peer(rig.port) as peer:
                body = json.dumps({"text": TEXT, "format": "pcm"}).encode()
                how = {"Content_Type": "application/json", "Expect": "100-continue"}
                await peer.send("POST", "/tts/stream", Content_Length=str(len(body)), **how)
                assert (await peer.head()).status == 100
                peer.writer.write(body)
                assert_speaks(np.frombuffer((await peer.answer()).body, "<i2"), 24_000)
            async with http_peer(rig.port) as peer:
                await peer.send("POST", "/tts/stream", Content_Length="99999999", **how)
                assert (await peer.answer()).status == 413

    run(main)


# ------------------------------------------------------------------- shapes of attacks

POST = "POST /tts/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SHAPES = {
    "two lengths": (f"{POST}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
    "two lengths in one": (f"{POST}Content-Length: 5, 6\r\n\r\nabcdef", 400),
    "a length with letters": (f"{POST}Content-Length: five\r\n\r\nabcde", 400),
    "a negative length": (f"{POST}Content-Length: -5\r\n\r\nabcde", 400),
    "a length with a plus": (f"{POST}Content-Length: +5\r\n\r\nabcde", 400),
    "length and chunks": (f"{POST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks twice": (f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks of an unknown kind": (f"{POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "a space before the colon": (f"{POST}Content-Length : 5\r\n\r\nabcde", 400),
    "a folded header": (f"{POST}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "line feeds alone": (POST.replace("\r\n", "\n") + "\n", 400),
    "a chunk of a wrong size": (f"{POST}Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n", 400),
    "no host": ("GET /tts/stream?text=hi HTTP/1.1\r\n\r\n", 400),
    "two hosts": ("GET /tts/stream?text=hi HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "an odd host": ("GET /tts/stream?text=hi HTTP/1.1\r\nHost: [\r\n\r\n", 200),
    "a path of bytes": ("GET /tts/stream/%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "a query of bytes": ("GET /tts/stream?text=%ff%fehi&format=ulaw HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "another upgrade": (
        "GET /tts/stream?text=hi HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        "HTTP2-Settings: AAMAAABkAAQ\r\n\r\n", 200,
    ),
    "a websocket": (
        "GET /tts/stream?text=hi HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n", 404,
    ),
    "a request on a websocket's path": ("GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n", 426),
    "HTTP/2": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a connect": ("CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
}  # fmt: skip


@pytest.mark.parametrize("plain_loop", [True, False], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("name", SHAPES)
def test_no_shape_of_a_request_confuses_the_server(
    name: str, plain_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data, status = SHAPES[name]

    async def main() -> None:
        async with serving() as rig:
            for step in (len(data), 1, 7):
                async with http_peer(rig.port) as peer:
                    for at in range(0, len(data), step):
                        if peer.writer.is_closing():
                            break
                        peer.writer.write(data[at : at + step].encode("latin-1"))
                        await asyncio.sleep(0)
                    assert (await peer.head()).status == status

    run(main, plain_loop=plain_loop)
    assert not warnings_in(caplog)


def test_a_body_over_the_limit_gets_its_answer_and_is_not_read_without_end() -> None:
    async def main() -> None:
        async with serving(request_bytes=1_000_000) as rig, neighbour(rig):
            kind = f"multipart/form-data; boundary={BOUNDARY}"
            for framing in ({"Content_Length": "1000000000"}, {"Transfer_Encoding": "chunked"}):
                async with http_peer(rig.port) as peer:
                    await peer.send("POST", "/tts/stream", Content_Type=kind, **framing)
                    piece = b"x" * 65_536
                    if "Transfer_Encoding" in framing:
                        piece = b"10000\r\n" + piece + b"\r\n"
                    n_sent = 0
                    with pytest.raises(ConnectionError):
                        while n_sent < 100_000_000:
                            peer.writer.write(piece)
                            await peer.writer.drain()
                            n_sent += len(piece)
                    assert n_sent >= LINGER_BYTES
                    # What had arrived before the reset can still be read by most clients.
            got = await ask(rig.port, "POST", "/tts/stream", b"y" * 1_500_000, Content_Type=kind)
            assert (got.status, got.code) == (413, "body_too_large")
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (1_500_000, b"y" * 1_500_000)
            async with http_peer(rig.port) as peer:
                how = {"Content_Type": "application/json", "Transfer_Encoding": "chunked"}
                await peer.send("POST", "/v1/audio/speech", **how)
                peer.writer.write(chunked)
                got = await peer.answer()
                assert (got.status, got.code) == (413, "body_too_large")

    run(main)


def test_a_body_that_stops_half_way(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(gate, "BODY_PIECE_S", 0.2)

    async def main() -> None:
        async with serving() as rig:
            for path in ("/tts/stream", "/v1/audio/speech"):
                async with http_peer(rig.port) as peer:
                    await peer.send("POST", path, b'{"te', Content_Type="application/json", Content_Length="100")
                    got = await peer.answer()
                    assert (got.status, got.code) == (408, "body_timeout")
                    assert await peer.is_closed()

    run(main)
    assert not warnings_in(caplog)


def test_a_body_of_a_byte_at_a_time_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_S", 0.3)

    async def main() -> None:
        async with serving() as rig, http_peer(rig.port) as peer:
            await peer.send("POST", "/tts/stream", b'{"te', Content_Type="application/json", Content_Length="1000")

            async def trickle() -> None:
                while True:
                    peer.writer.write(b"x")
                    await asyncio.sleep(0.02)

            trickling = asyncio.create_task(trickle())
            try:
                assert (await peer.answer()).status == 408
            finally:
                trickling.cancel()

    run(main)


def test_a_client_that_goes_before_its_body_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            for n in range(20):
                async with http_peer(rig.port) as peer:
                    how = {"Content_Type": "application/json", "Content_Length": "100"}
                    await peer.send("POST", "/tts/stream", b'{"te', **how)
                    await asyncio.sleep(0.001 * n)
                    peer.reset() if n % 2 else peer.writer.close()

    run(main)
    assert not warnings_in(caplog)


# ------------------------------------------------------------------- clients that go or do not read


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("path", ["/tts/stream", "/v1/audio/speech"])
def test_a_client_that_goes_before_the_first_audio(how: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = FakeEngine(hangs=True)
        async with serving(engine) as rig, http_peer(rig.port) as peer:
            body = json.dumps({"text": "hi", "input": "hi"}).encode()
            await peer.send("POST", path, body, Content_Type="application/json")
            await until(lambda: engine.n_live == 1, "the engine works")
            gone_s = time.monotonic()
            peer.reset() if how == "reset" else peer.writer.close()
            await until(lambda: engine.n_live == 0 and not len(rig.server.registry), "the engine is free", 1)
            assert time.monotonic() - gone_s < 0.5

    run(main)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_a_client_that_goes_in_the_middle(how: str, format: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = FakeEngine(speed=1.0)
        async with serving(engine) as rig, http_peer(rig.port) as peer:
            await peer.send("GET", f"/tts/stream?format={format}&text={quote('Hello there. ' * 40)}")
            await peer.head()
            await peer.chunk()
            assert engine.n_live
            gone_s = time.monotonic()
            peer.reset() if how == "reset" else peer.writer.close()
            await until(lambda: engine.n_live == 0 and not len(rig.server.registry), "the engine is free", 1)
            assert time.monotonic() - gone_s < 0.5

    run(main)
    assert not warnings_in(caplog)


def test_a_client_that_does_not_read_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responses, "SLOW_READER_S", 0.5)

    async def main() -> None:
        async with serving() as rig, neighbour(rig), http_peer(rig.port, receive_buffer=4096) as peer:
            await peer.send("GET", f"/tts/stream?sample_rate=48000&text={quote('Hello there. ' * 2000)}"[:8000])
            await peer.head()
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: rig.server.registry.n_requests, "spoken")
            await until(lambda: not rig.server.registry.n_requests, "cut off", 5)
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                while True:
                    await peer.chunk()

    run(main)
    assert warnings_in(caplog) == [("slow_reader", None)]


# ------------------------------------------------------------------- the engine and the server


class Failing(FakeEngine):
    """Fails at its second utterance."""

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        if "two" in utterance.text:
            raise EngineError("the engine broke")
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                yield chunk


def test_an_engine_that_fails_before_the_first_audio() -> None:
    async def main() -> None:
        async with serving(FakeEngine(fail_after_chunks=0)) as rig:
            got = await ask_json(rig.port, "/tts/stream", {"text": TEXT})
            assert got.status == 500 and got.code != "bad_request"
            got = await ask_json(rig.port, "/v1/audio/speech", SPEECH)
            assert got.status == 500 and got.json()["error"]["type"] == "server_error"

    run(main)


@pytest.mark.parametrize("http", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/tts/stream?format=pcm&text=", "/tts/stream?format=mp3&text="])
def test_an_engine_that_fails_in_the_middle_cuts_the_body_off(
    path: str, http: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(Failing(speed=4.0)) as rig, http_peer(rig.port) as peer:
            peer.writer.write(f"GET {path}{quote('Sentence one. And two.')} HTTP/{http}\r\nHost: x\r\n\r\n".encode())
            got = await peer.answer()
            assert (got.status, got.is_whole) == (200, False)
            assert got.body or http == "1.0"

    run(main)
    told = warnings_in(caplog)
    assert "speech_cut_off" in [event for event, _ in told] and not any(error for _, error in told)


def test_openais_events_end_with_an_error_when_the_engine_fails() -> None:
    async def main() -> None:
        async with serving(Failing()) as rig:
            body = {**SPEECH, "input": "Sentence one. And two.", "stream_format": "sse"}
            got = await ask_json(rig.port, "/v1/audio/speech", body)
            assert got.status == 200 and not got.is_whole

    run(main)


def test_a_server_that_is_not_ready_or_drains() -> None:
    async def main() -> None:
        async with serving(drain_s=5.0) as rig:
            rig.server.ready = False
            got = await ask(rig.port, "GET", "/tts/stream?text=hi")
            assert (got.status, got.code) == (503, "busy") and int(got.headers["retry-after"]) > 0
            rig.server.ready = True
            assert (await ask(rig.port, "GET", "/tts/stream?text=hi")).status == 200

    run(main)


def test_a_stream_that_runs_when_the_server_drains_is_spoken_to_its_end() -> None:
    async def main() -> None:
        engine = FakeEngine(speed=4.0)
        async with serving(engine, drain_s=5.0) as rig, http_peer(rig.port) as peer:
            await peer.send("GET", f"/tts/stream?format=pcm&text={quote(TEXT)}")
            got = await peer.head()
            content = await peer.chunk()
            draining = asyncio.create_task(rig.server.drain())
            await asyncio.sleep(0.05)
            assert (await ask(rig.port, "GET", "/tts/stream?text=hi")).status == 503
            while piece := await peer.chunk():
                content += piece
            await draining
            assert got.status == 200
            assert_speaks(np.frombuffer(content, "<i2"), 24_000)

    run(main)


def test_a_stream_that_outlives_the_drain_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = FakeEngine(speed=1.0)
        async with serving(engine, drain_s=0.2) as rig, http_peer(rig.port) as peer:
            await peer.send("GET", f"/tts/stream?format=pcm&text={quote('Hello there. ' * 40)}")
            await peer.head()
            await rig.server.drain()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                while await peer.chunk():
                    pass
            assert engine.n_live == 0

    run(main)
    assert not any(error for _, error in warnings_in(caplog))


def test_more_requests_than_the_limit_disturb_no_other_call() -> None:
    async def main() -> None:
        async with serving(http_streams=8) as rig, neighbour(rig):
            got = await asyncio.gather(
                *(ask(rig.port, "GET", f"/tts/stream?format=ulaw&text={quote(TEXT)}") for _ in range(300))
            )
            statuses = [each.status for each in got]
            assert statuses.count(200) >= 8 and set(statuses) == {200, 503}
            assert len({each.body for each in got if each.status == 200}) == 1
            for each in got:
                if each.status == 503:
                    assert each.code == "busy" and int(each.headers["retry-after"]) >= 1

    run(main)


def test_a_caller_on_the_websocket_hears_the_same_beside_http() -> None:
    """Streams in every encoded format while a call speaks."""

    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            for format in OURS:
                paths = [f"/tts/stream?format={format}&text={quote(TEXT)}"] * 3
                for got in await asyncio.gather(*(ask(rig.port, "GET", path) for path in paths)):
                    assert got.status == 200 and got.is_whole

    run(main)


def test_a_slow_head_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.transport.server._OPEN_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with serving() as rig, http_peer(rig.port) as peer:
            for byte in b"GET /tts/stream?text=hi HT":
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0.005)
            assert await peer.is_closed(2)

    run(main)


def test_over_tls(certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        async with serving(tls=context) as rig:
            reader, writer = await asyncio.open_connection("localhost", rig.port, ssl=trusting)
            peer = HttpPeer(reader, writer)
            for text in ("one", "two"):
                await peer.send("GET", f"/tts/stream?format=pcm&text={text}")
                assert_speaks(np.frombuffer((await peer.answer()).body, "<i2"), 24_000, [text])
            await peer.send("GET", "/healthz")
            assert (await peer.answer()).body == b"ok\n"
            writer.close()

    run(main)
    assert not warnings_in(caplog)


def test_all_lines_of_the_log_have_one_form(tmp_path: Path) -> None:
    """uvicorn has loggers of its own."""
    log = tmp_path / "log"

    async def main(port: int) -> None:
        for name in ("another upgrade", "a chunk of a wrong size", "no host", "two lengths", "HTTP/2"):
            async with http_peer(port) as peer:
                peer.writer.write(SHAPES[name][0].encode("latin-1"))
                assert (await peer.head()).status == SHAPES[name][1]
        assert (await ask(port, "GET", "/tts/stream?text=hi&voice=ghost")).status == 404
        assert (await ask(port, "GET", "/tts/stream?text=hi&voice=tone")).status == 200

    with process(log=log) as (_, port):
        asyncio.run(main(port))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["event"] for line in lines} >= {"refused"}
    assert not any("uvicorn" in line["logger"] for line in lines)


def test_clients_that_vanish_at_any_moment_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(FakeEngine(speed=20.0)) as rig:

            async def one(n: int) -> None:
                async with http_peer(rig.port) as peer:
                    await peer.send("GET", f"/tts/stream?format={OURS[n % 8]}&text={quote(TEXT)}")
                    await asyncio.sleep(0.002 * n)
                    peer.reset() if n % 3 else peer.writer.close()

            await asyncio.gather(*(one(n) for n in range(60)))
            await rig.empty()
            async with raw_peer(rig.port, "/v1/stream?audio=none") as peer:
                await peer.read_until(b'"ready"')

    run(main)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("path", ROUTES)
def test_the_described_fields_are_those_that_are_demanded(path: str) -> None:
    fields, _ = ROUTES[path]

    async def main() -> None:
        async with serving() as rig:
            form = {"Content_Type": "application/x-www-form-urlencoded"}
            got = await ask(rig.port, "POST", path, b"other=1", **form)
            missing = got.json()["error"]["message"].removeprefix("missing form fields: ").split(", ")
            assert (got.status, sorted(missing)) == (400, sorted(fields))
            assert (await ask(rig.port, "GET", path, b"other=1", **form)).body == got.body

    run(main)


def test_the_description_and_its_page_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make the description would keep the event loop from all calls, so it is there before the first request."""

    async def main() -> None:
        async with serving() as rig:
            monkeypatch.delattr("fastapi.applications.get_openapi")
            got = await ask(rig.port, "GET", "/openapi.json")
            assert got.status == 200 and set(ROUTES) < set(got.json()["paths"])
            got = await ask(rig.port, "GET", "/docs")
            assert got.status == 200 and got.headers["content-type"].startswith("text/html")
            assert all(path.encode() in got.body for path in ROUTES)

    run(main)
