"""What the console shows of calls: those on the line, their sound, and the recordings of earlier ones.

Everyone with a token of `server.tokens` sees which calls there are, and a named key sees its own: with the id of a call
a bot may join it. To see what is said, to listen, to end a call and to open a recording needs a supervisor's token
(`server.supervisor_tokens`), because callers speak there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from telephony_tts.http_api.request_key import REQUEST_KEY
from telephony_tts.http_api.responses import HttpApi
from telephony_tts.recording import folder as folders
from telephony_tts.recording.listening import Listening
from telephony_tts.recording.replay import Replay, read_recording
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import Busy, ConfigError, TelephonyTTSError
from telephony_tts.transport.call import Call

MOST_WATCHERS = 32
SLOW_WATCHER_S = 5.0
"""A watcher that takes nothing for so long is dropped."""
_PERIOD_S = 1.0
_SOUND_PERIOD_S = 0.1
_MOST_RECORDINGS = 200
_PEAKS = 1_200
_NO_STORE = {"Cache-Control": "no-store"}

_log = logs.get(__name__)


class NotSupervisor(TelephonyTTSError):
    """The token opens the server, and not what callers say."""

    code = "not_supervisor"


class LiveResponse(Response):
    """Streams `body` until it ends, the client goes, or takes nothing for SLOW_WATCHER_S."""

    def __init__(self, body: AsyncGenerator[bytes, None], media_type: str) -> None:
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers(_NO_STORE)
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(until_gone())
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(sending.exception(), TimeoutError):
                _log.warning("slow_watcher", path=scope["path"], for_s=SLOW_WATCHER_S)
                scope["state"]["cut_off"](at_once=True)
            elif sending.done():
                sending.result()
        finally:
            for task in (sending, watching):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError):
                    await task

    async def _send(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SLOW_WATCHER_S):
                await send(message)

        async with aclosing(self._body) as body:
            await send_in_time({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for piece in body:
                await send_in_time({"type": "http.response.body", "body": piece, "more_body": True})
            await send_in_time({"type": "http.response.body", "body": b"", "more_body": False})


class ConsoleCalls:
    """The routes about calls of one server."""

    def __init__(self, api: HttpApi) -> None:
        self._server = api.server
        self._n_watchers = 0
        self._activity: tuple[int, dict[str, Any]] | None = None
        """What all processes did at a time in nanoseconds."""
        self._asking: asyncio.Task[None] | None = None
        self._lines_of: dict[tuple[bool, str], bytes] = {}
        """The activity as a line, with and without what is said, and for each named key: all its watchers get the same.
        """

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/api/calls", self._watch, methods=["GET"])
        router.add_api_route("/api/calls/{call_id}/sound", self._listen, methods=["GET"])
        router.add_api_route("/api/calls/{call_id}", self._hang_up, methods=["DELETE"])
        router.add_api_route("/api/recordings", self._recordings, methods=["GET"])
        router.add_api_route("/api/recordings/{name}", self._recording, methods=["GET"])
        router.add_api_route("/api/recordings/{name}/sound", self._sound, methods=["GET"])

    # --------------------------------------------------------------- live calls

    async def _watch(self, request: Request) -> Response:
        """The calls once a second, each time as a line of JSON."""
        self._check_room()
        only_of = limited_key(request)
        return LiveResponse(self._lines(request.state.supervises, only_of), "application/x-ndjson")

    async def _lines(self, may_hear: bool, only_of: str) -> AsyncGenerator[bytes, None]:
        self._watch_began()
        try:
            while not self._server.draining:
                yield await self._snapshot(may_hear, only_of)
                await asyncio.sleep(_PERIOD_S)
        finally:
            self._watch_ended()

    async def activity(self) -> dict[str, Any]:
        """What all processes of the server do, at most half a second old. All that ask meanwhile get the same."""
        if self._activity is None or monotonic_ns() - self._activity[0] > _PERIOD_S * NS_PER_S / 2:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask())
                self._asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may be gone
            await asyncio.shield(self._asking)
        assert self._activity is not None
        return self._activity[1]

    async def _ask(self) -> None:
        self._activity = monotonic_ns(), await self._server.activity_of_all()
        self._lines_of.clear()

    async def _snapshot(self, may_hear: bool, only_of: str) -> bytes:
        """The calls of the key `only_of`, or all if it is empty."""
        now = await self.activity()
        line = self._lines_of.get((may_hear, only_of))
        if line is None:
            calls = []
            for call in now["calls"]:
                told = dict(call)
                if told.pop("key") == only_of or not only_of:
                    calls.append(told if may_hear else {**told, "said": None})
            shown = {"may_hear": may_hear, "most_calls": self._server.settings.limits.calls, **now, "calls": calls}
            line = json.dumps(shown, separators=(",", ":")).encode() + b"\n"
            self._lines_of[may_hear, only_of] = line
        return line

    async def _listen(self, call_id: str, request: Request) -> Response:
        """The sound of a call: 16-bit stereo at 8 kHz, left the caller, right what the caller hears."""
        need_supervisor(request)
        call = self._find(call_id)
        self._check_room()
        _log.info("listened_in", call=call.id)
        return LiveResponse(self._hear(call), "application/octet-stream")

    async def _hear(self, call: Call) -> AsyncGenerator[bytes, None]:
        self._watch_began()
        listening = Listening(call.session, monotonic_ns())
        end = call.observe(listening)
        try:
            while not call.over and listening.failure is None:
                await asyncio.sleep(_SOUND_PERIOD_S)
                if sound := listening.take(monotonic_ns()):
                    yield sound
            if listening.failure is not None:
                call.log.error("listening_failed", why=repr(listening.failure))
        finally:
            end()
            self._watch_ended()

    async def _hang_up(self, call_id: str, request: Request) -> Response:
        need_supervisor(request)
        call = self._find(call_id)
        _log.info("hung_up_by_supervisor", call=call.id)
        call.cut_off("hangup", 1000, "ended in the console")
        return Response(status_code=204)

    def _find(self, call_id: str) -> Call:
        call = self._server.registry.find(call_id)
        if call is None:
            raise TelephonyTTSError(f"there is no call {call_id[:128]}", code="not_found")
        return call

    def _watch_began(self) -> None:
        self._n_watchers += 1
        metrics.CONSOLE_WATCHERS.inc()

    def _watch_ended(self) -> None:
        self._n_watchers -= 1
        metrics.CONSOLE_WATCHERS.dec()

    def _check_room(self) -> None:
        if self._n_watchers >= MOST_WATCHERS:
            raise Busy(f"{MOST_WATCHERS} pages watch already", retry_after_ms=5_000)

    # --------------------------------------------------------------- recordings

    @property
    def _folder(self) -> Path | None:
        """Where recordings are. None on a server that records nothing."""
        recordings = self._server.registry.recordings
        return None if recordings is None or recordings.settings.folder is None else Path(recordings.settings.folder)

    async def _recordings(self, request: Request) -> Response:
        """The recordings, the newest first."""
        need_supervisor(request)
        folder = self._folder
        names = [] if folder is None else await asyncio.to_thread(folders.recordings_in, folder, _MOST_RECORDINGS)
        return JSONResponse({"recordings": names, "can_record": folder is not None}, headers=_NO_STORE)

    async def _recording(self, name: str, request: Request) -> Response:
        """A recording's timeline, as the page draws it."""
        path = self._path(name, request)
        try:
            told = await asyncio.to_thread(lambda: _drawn(read_recording(path)))
        except ConfigError as error:
            raise TelephonyTTSError(error.message, code="not_found") from error
        return JSONResponse(told, headers=_NO_STORE)

    async def _sound(self, name: str, request: Request) -> Response:
        path = self._path(name, request).with_suffix(".wav")
        if not await asyncio.to_thread(path.is_file):
            raise TelephonyTTSError("the recording has no sound", code="not_found")
        return FileResponse(path, media_type="audio/wav", headers=_NO_STORE)

    def _path(self, name: str, request: Request) -> Path:
        need_supervisor(request)
        folder = self._folder
        if folder is None or not folders.is_recording(name):
            raise TelephonyTTSError(f"there is no recording {name[:100]}", code="not_found")
        return folder / f"{name}.jsonl"


def limited_key(request: Request) -> str:
    """The name of the request's key if it sees only what is its own. Empty for the operator's own people: supervisors,
    and tokens without a name."""
    return "" if request.state.supervises else REQUEST_KEY.get().name


def need_supervisor(request: Request) -> None:
    """Raises NotSupervisor unless the request's token is a supervisor's."""
    if not request.state.supervises:
        raise NotSupervisor("this needs one of the tokens in server.supervisor_tokens, because callers speak there")


def _drawn(replay: Replay) -> dict[str, Any]:
    return {
        "call": str(replay.about.get("call", replay.name)),
        "began_s": replay.about.get("unix_s"),
        "length_ms": replay.length_ms,
        "has_sound": replay.wav is not None,
        "problems": replay.problems,
        "lanes": {
            name: [[span.start_ms, span.end_ms, span.label] for span in spans] for name, spans in replay.lanes.items()
        },
        "ticks": [[tick.ms, tick.kind, tick.label] for tick in replay.ticks],
        "story": [[ms, who, what] for ms, who, what in replay.story],
        "peaks": [[round(float(peak), 3) for peak in replay.peaks(channel, _PEAKS)] for channel in (0, 1)],
    }
