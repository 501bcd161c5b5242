"""The console: a page at `/console/` to hear and see what the server does (docs/console.md).

Its files are open, as is the description of the API: they are the same for every server. All that they ask for needs
the server's token. The page sends it in `Authorization`, or in `Sec-WebSocket-Protocol`, and never in an address.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from telephony_tts.http_api.console_calls import ConsoleCalls, limited_key, need_supervisor
from telephony_tts.http_api.console_lexicons import ConsoleLexicons
from telephony_tts.http_api.responses import HttpApi
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.runtime.errors import EngineUnavailable, TelephonyTTSError, how_to_get, shell_command

CONSOLE = "/console"
_FOLDER = Path(__file__).resolve().parents[1] / "console"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_PAGE = "index.html"
_HEADERS = {
    # Scripts and styles are those of this folder, and text can never become markup.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class ConsoleTools:
    """What only the console needs. `doctor` examines the installation; it raises TelephonyTTSError."""

    doctor: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    lexicons: LexiconFiles | None = None


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    kind: str
    etag: str


def _read_files() -> dict[str, _File]:
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        if (kind := _KINDS.get(path.suffix)) is not None:
            content = path.read_bytes()
            files[path.name] = _File(content, f"{kind}; charset=utf-8", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files


def _refuse_other_sites(request: Request) -> None:
    """Raises TelephonyTTSError for what a page of another site asks without naming itself, such as an image. The gate
    has checked all that name their `Origin`."""
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and "origin" not in request.headers:
        raise TelephonyTTSError("pages of other sites may not use the console", code="origin")


class Console:
    """The routes of the console of one server."""

    def __init__(self, api: HttpApi, tools: ConsoleTools) -> None:
        self._api = api
        self._doctor = tools.doctor
        self._calls = ConsoleCalls(api)
        self._lexicons = ConsoleLexicons(tools.lexicons)
        self._files = _read_files()
        self._examining: asyncio.Task[list[dict[str, Any]]] | None = None
        api.server.at_close.append(self._stop_examining)

    @property
    def open_paths(self) -> frozenset[str]:
        """The paths that need no token."""
        return frozenset({CONSOLE, f"{CONSOLE}/", *(f"{CONSOLE}/{name}" for name in self._files)})

    def routes(self) -> APIRouter:
        router = APIRouter(prefix=CONSOLE)
        api = APIRouter(dependencies=[Depends(_refuse_other_sites)])
        api.add_api_route("/api/state", self._state, methods=["GET"])
        api.add_api_route("/api/doctor", self._findings, methods=["GET"])
        self._calls.add_to(api)
        self._lexicons.add_to(api)
        router.include_router(api)
        router.add_api_route("", self._to_folder, methods=["GET", "HEAD"])
        router.add_api_route("/{name:path}", self._file, methods=["GET", "HEAD"])
        return router

    async def _to_folder(self) -> Response:
        return RedirectResponse("console/", headers=_HEADERS)  # relative, so it is right behind a proxy too

    async def _file(self, name: str, request: Request) -> Response:
        file = self._files.get(name or _PAGE)
        if file is None:
            raise TelephonyTTSError(f"the console has no {name[:100]}", code="not_found")
        headers = {**_HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)

    async def _state(self, request: Request) -> Response:
        """What the page must know about the server: it asks while the engines load, and again from time to time."""
        return JSONResponse(await self._snapshot(request.state.supervises), headers={"Cache-Control": "no-store"})

    async def _snapshot(self, supervises: bool) -> dict[str, Any]:
        server = self._api.server
        of_all = await self._calls.activity()
        catalog, speech, stats = server.catalog, server.settings.speech, server.catalog.stats()
        default = catalog.engines[0].voices
        return {
            "ready": server.is_ready,
            "draining": server.draining,
            "calls": server.registry.n_calls_of_all,
            "most_calls": server.settings.limits.calls,
            "voice": speech.voice or (default[0].name if default else None),
            "barge_in": {"min_speech_ms": speech.barge_in.min_speech_ms, "hold_off_ms": speech.barge_in.hold_off_ms},
            "supervises": supervises,
            "can_add_voices": self._api.can_add_voices,
            "can_denoise": self._api.can_denoise,
            "get_denoise": how_to_get("denoise"),
            "engines": [
                {
                    "name": engine.name,
                    "loading": catalog.loading[engine.name],
                    "step": catalog.loading_step if catalog.loading[engine.name] == "loading" else "",
                    "ready": stats[engine.name].is_ready,
                    "voices": len(engine.voices),
                    **of_all["engines"][engine.name],
                }
                for engine in catalog.engines
            ],
        }

    async def _findings(self, request: Request) -> Response:
        """What `telephony-tts doctor` says. One examination runs at a time, for all that ask meanwhile."""
        if limited_key(request):
            need_supervisor(request)  # it names files and packages of the machine
        if self._doctor is None:
            raise EngineUnavailable(f"this server cannot examine itself; run {shell_command('telephony-tts doctor')}")
        if self._examining is None or self._examining.done():
            self._examining = asyncio.ensure_future(self._doctor())
            self._examining.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may be gone
        examining = self._examining
        try:
            found = await asyncio.shield(examining)
        except asyncio.CancelledError:
            if not examining.cancelled():
                raise
            raise TelephonyTTSError("the server is stopping", code="closing") from None
        return JSONResponse({"findings": found}, headers={"Cache-Control": "no-store"})

    def _stop_examining(self) -> None:
        """A server that stops does not wait for the examination, which takes seconds."""
        if self._examining is not None:
            self._examining.cancel()
