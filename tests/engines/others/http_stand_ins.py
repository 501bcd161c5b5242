"""A speech server over HTTP with the habits of the real ones: every kind of `engines.others` can talk to it.

It speaks tones (`engines.fake.render`), so a test sees in the audio which text was asked for. `form` is how it sends
audio, `fault` what it does wrong.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from loop_thread import loop_thread

from telephony_tts.engines.fake.engine import render

PIECE_MS = 90
KEY = "the-key-of-the-stand-in"


@dataclass
class Asked:
    """A request, and what became of it."""

    path: str
    fields: dict[str, Any]
    files: dict[str, bytes]
    headers: dict[str, str]
    n_pieces: int = 0
    was_cancelled: bool = False


@dataclass
class HttpStandIn:
    """`forms`: by path, how audio is sent: pcm, wav0 (a header with sizes 0), wavff (with 0xFFFFFFFF), events
    (server-sent, of OpenAI), sglang_events. `pause_s`: between two pieces."""

    rate_hz: int = 24_000
    form: str = "pcm"
    fault: str = ""
    faults_left: int = 1_000_000
    """So many requests have the fault."""
    pause_s: float = 0.0
    key: str = ""
    voices: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    n_live: int = 0

    def tones(self, text: str, speed: float = 1.0) -> bytes:
        return render(text, sample_rate_hz=self.rate_hz, speed=speed).astype("<i2").tobytes()


TEXT_FIELDS = ("input", "tts_text", "text")


def application(stand_in: HttpStandIn) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/audio/voices")
    async def voices() -> Any:
        return JSONResponse({"detail": "Not Found"}, 404) if stand_in.voices is None else stand_in.voices

    async def speak(request: Request) -> Response:
        asked = await _read(request)
        stand_in.asked.append(asked)
        if stand_in.key and asked.headers.get("authorization") != f"Bearer {stand_in.key}":
            return JSONResponse({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, 401)
        fault = stand_in.fault if stand_in.faults_left > 0 else ""
        if fault:
            stand_in.faults_left -= 1
        refused = await _refusal(fault, stand_in)
        if refused is not None:
            return refused
        text = next(asked.fields[name] for name in TEXT_FIELDS if name in asked.fields)
        sound = stand_in.tones(text, float(asked.fields.get("speed", 1.0)))
        kind = {"pcm": "audio/pcm", "events": "text/event-stream", "sglang_events": "text/event-stream"}
        return StreamingResponse(
            _pieces(stand_in, asked, sound, fault),
            media_type=kind.get(stand_in.form, "audio/wav"),
            headers=stand_in.headers,
        )

    for path in ("/v1/audio/speech", "/generate", "/inference_sft", "/inference_zero_shot", "/inference_cross_lingual",
                 "/inference_instruct2"):  # fmt: skip
        app.post(path)(speak)
    return app


async def _read(request: Request) -> Asked:
    headers = dict(request.headers)
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    if headers.get("content-type", "").startswith("application/json"):
        fields = await request.json()
    else:
        async with request.form() as form:
            for name, value in form.items():
                if isinstance(value, str):
                    fields[name] = value
                else:
                    files[name] = await value.read()
    return Asked(request.url.path, fields, files, headers)


async def _refusal(fault: str, stand_in: HttpStandIn) -> Response | None:
    if fault == "silent":
        await asyncio.sleep(3_600)
    return {
        "html": HTMLResponse("<html><title>Sign in</title></html>"),
        "html_502": HTMLResponse("<html>Bad Gateway</html>", 502),
        "json": JSONResponse({"message": "the queue is full"}),
        "busy": JSONResponse({"error": {"message": "queue full"}}, 429, {"Retry-After": "7"}),
        "overloaded": JSONResponse({"detail": "overloaded"}, 503),
        "unknown_voice": JSONResponse({"error": {"message": "no voice stranger"}}, 400),
        "missing": JSONResponse({"detail": "Not Found"}, 404),
        "redirect": RedirectResponse("/elsewhere"),
        "empty": Response(b"", media_type="audio/pcm"),
        "one_byte": Response(b"\x01", media_type="audio/pcm"),
        "half_header": Response(wav_head(stand_in.rate_hz, 0)[:30], media_type="audio/wav"),
        "wrong_rate": Response(wav_head(44_100, 0) + bytes(20_000), media_type="audio/wav"),
        "stereo": Response(wav_head(stand_in.rate_hz, 0, n_channels=2) + bytes(20_000), media_type="audio/wav"),
    }.get(fault)


async def _pieces(stand_in: HttpStandIn, asked: Asked, sound: bytes, fault: str) -> AsyncIterator[bytes]:
    """The parts of a body. Plain samples are cut at odd bytes, as networks do."""
    is_events = stand_in.form.endswith("events")
    n_piece = stand_in.rate_hz * PIECE_MS // 1000 * 2 + (0 if is_events else 1)
    stand_in.n_live += 1
    try:
        if stand_in.form.startswith("wav"):
            head = wav_head(stand_in.rate_hz, 0 if stand_in.form == "wav0" else 0xFFFFFFFF)
            yield head[:13]
            yield head[13:]
        starts = range(0, len(sound), n_piece) if fault != "endless" else iter(lambda: 0, 1)
        for n, start in enumerate(starts):
            if fault == "cut_at_once" or (n == 3 and fault == "cut"):
                raise ConnectionAbortedError("the stand-in breaks off")
            if n == 2 and fault == "stall":
                await asyncio.sleep(3_600)
            if n == 2 and fault == "error_event":
                yield _event({"type": "speech.audio.error", "error": {"message": "out of memory", "code": 500}})
                return
            if n == 2 and fault == "no_done":
                return
            if n == 2 and fault == "bad_event":
                yield b"data: {half\n\n"
            if stand_in.pause_s:
                await asyncio.sleep(stand_in.pause_s)
            asked.n_pieces += 1
            yield _sent(stand_in, sound[start : start + n_piece])
        if stand_in.form == "events":
            yield _event({"type": "speech.audio.done", "usage": {}})
        elif stand_in.form == "sglang_events":
            yield _event({"object": "audio.speech.chunk", "audio": None}) + b"data: [DONE]\n\n"
    except asyncio.CancelledError:
        asked.was_cancelled = True
        raise
    finally:
        stand_in.n_live -= 1


def _sent(stand_in: HttpStandIn, piece: bytes) -> bytes:
    coded = base64.b64encode(piece).decode()
    if stand_in.form == "events":
        return b"event: speech.audio.delta\r\n" + _event({"type": "speech.audio.delta", "audio": coded})
    if stand_in.form == "sglang_events":
        audio = {"data": coded, "format": "pcm", "sample_rate": stand_in.rate_hz}
        return _event({"object": "audio.speech.chunk", "audio": audio})
    return piece


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\r\n\r\n"


def wav_head(rate_hz: int, n_bytes: int, n_channels: int = 1) -> bytes:
    """The header of a WAV file that is made while it is sent, with a chunk that players skip."""
    body = struct.pack("<HHIIHH", 1, n_channels, rate_hz, rate_hz * 2 * n_channels, 2 * n_channels, 16)
    note = struct.pack("<4sI", b"LIST", 5) + b"hello\0"
    sizes = [struct.pack("<4sI", name, n) for name, n in ((b"RIFF", n_bytes), (b"fmt ", 16), (b"data", n_bytes))]
    return sizes[0] + b"WAVE" + sizes[1] + body + note + sizes[2]


@contextmanager
def http_stand_in(certificate: tuple[str, str] | None = None, **habits: Any) -> Iterator[HttpStandIn]:
    """A running stand-in. `certificate`: the files of a certificate and its key, for https."""
    stand_in = HttpStandIn(**habits)
    with socket.create_server(("127.0.0.1", 0)) as listening, loop_thread() as thread:
        port = listening.getsockname()[1]
        stand_in.url = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        tls = {} if certificate is None else {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        config = uvicorn.Config(application(stand_in), log_level="critical", lifespan="off", ws="none", **tls)
        server = uvicorn.Server(config)
        serving = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listening]), thread.loop)
        try:
            yield stand_in
        finally:
            server.should_exit = server.force_exit = True
            serving.result(20)


def wait_until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for something that a stand-in's thread does."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    """`wait_until` in a test's own loop."""
    await asyncio.to_thread(wait_until, condition)
