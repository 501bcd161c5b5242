"""FreeSWITCH's event socket: the bridge learns of files of speech, plays them, and reports their progress.

A lost connection is made again. Calls stay up meanwhile but are silent, and the server then sends the unheard speech
again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from sip_bridge import metrics
from sip_bridge.freeswitch import speech_files
from sip_bridge.freeswitch.call import FreeSwitchCall
from sip_bridge.freeswitch.config import FreeSwitchConfig
from sip_bridge.freeswitch.esl import EslConnection, EslLost, OnReply, connect_esl
from sip_bridge.freeswitch.esl_messages import EslEvent, is_uuid
from sip_bridge.freeswitch.ownership import ANSWER_S, BRIDGE_EVENT, Ownership
from sip_bridge.reconnect import keep_connected
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import unix_s

_log = logs.get(__name__)
_LEFTOVER_S = 600.0
"""Files of this age are removed if their channel is gone. This is also the interval of the search."""

_COMMANDS = {"mod_audio_stream": "uuid_audio_stream", "mod_audio_fork": "uuid_audio_fork"}
_KEEP_S = 20.0
"""How often the end of a call without a bridge is put off, and calls are searched whose bridge is gone."""

_FILES = frozenset({"mod_audio_stream::play", "mod_audio_fork::play_audio"})
_MESSAGES = frozenset({"mod_audio_stream::json", "mod_audio_fork::json"})
_LEFT = frozenset({"mod_audio_stream::disconnect", "mod_audio_fork::disconnect"})
_UNREACHED = frozenset({"mod_audio_stream::error", "mod_audio_fork::connect_failed"})
_REFUSALS = frozenset({1013, 4400, 4401, 4404, 4409})
"""Close codes of the server for a leg that it refused (PROTOCOL.md)."""
_RESET = 1
"""The code in mod_audio_stream's ::error when a connection is reset, as when the server is killed during a call."""
EVENTS = " ".join(
    (
        "CHANNEL_HANGUP", "DTMF", "PLAYBACK_START", "PLAYBACK_STOP", "CUSTOM",
        *sorted(_FILES | _MESSAGES | _LEFT | _UNREACHED), BRIDGE_EVENT,
    )
)  # fmt: skip

Begin = Callable[[FreeSwitchCall, Callable[[], None]], None]
"""Start a task for the call's `run`; the second argument is called when the call is over."""


class FreeSwitchApplication:
    """`run` takes calls until it is cancelled; `begin` gets each call."""

    def __init__(self, settings: FreeSwitchConfig, begin: Begin, limit: logs.LineLimit) -> None:
        """`limit` bounds the log lines of events outside any call."""
        self._settings = settings
        self._begin = begin
        self._connection: EslConnection | None = None
        self._why_lost = "not connected yet"
        self._calls: dict[str, FreeSwitchCall] = {}
        self._ownership = Ownership(settings.hang_up)
        self._claimed: dict[str, deque[EslEvent]] = {}
        """Calls of which it is being found out whether they are ours, and their events meanwhile."""
        self._group: asyncio.TaskGroup | None = None
        self._log = _log.limited(limit)
        self.draining = False
        """New calls are refused."""

    def why_not_ready(self) -> str | None:
        return None if self._connection is not None else f"freeswitch: {self._why_lost}"

    # ---------------------------------------------------------------- the connection

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled. Raises nothing else."""
        await keep_connected(lambda: connect_esl(self._settings, EVENTS), self._serve, self._not_connected)

    def _not_connected(self, why: str) -> None:
        self._is_lost(why)
        metrics.ESL_CONNECT_RETRIES.inc()

    async def _serve(self, connection: EslConnection) -> None:
        """Until the connection is lost."""
        try:
            async with asyncio.TaskGroup() as self._group:
                _log.info("freeswitch_connected", host=self._settings.host, port=self._settings.port)
                self._connection = connection
                connection.listen(self._on_event)
                self._group.create_task(self._keep(connection))
                if self._settings.remove_files:
                    self._group.create_task(self._sweep(connection))
                await asyncio.wait((connection.lost,))
                self._is_lost(connection.lost.result())
        finally:
            self._connection = self._group = None
            await connection.leave()

    async def _keep(self, connection: EslConnection) -> None:
        """Go on with our calls, and adopt those whose bridge is gone; at first also those without a bridge."""
        for uuid, call in self._calls.items():
            self._claim(uuid, call.module)
        with suppress(EslLost):
            for n_searches in count():
                for uuid in self._calls:
                    self._ownership.keep(connection, uuid)
                for uuid, module, bridge in await self._ownership.entries(connection):
                    if uuid not in self._calls and not self.draining and (bridge or not n_searches):
                        self._claim(uuid, module)
                await asyncio.wait((connection.lost,), timeout=_KEEP_S)

    def _is_lost(self, why: str) -> None:
        if self._connection is not None or why != self._why_lost:
            _log.warning("freeswitch_lost", why=why, calls=len(self._calls))
        self._why_lost = why
        if self._connection is not None:
            self._connection = None
            for call in self._calls.values():
                call.socket_lost()

    async def _sweep(self, connection: EslConnection) -> None:
        """Remove files of ended calls. They are left over when FreeSWITCH or the bridge is killed."""
        while not connection.lost.done():
            try:
                folder = (await connection.ask("api global_getvar temp_dir")).rstrip("/") + "/"
                if folder != "/" and speech_files.is_folder(folder):
                    await self._sweep_folder(connection, folder)
            except EslLost:
                return
            except Exception:
                _log.exception("sweep_crashed")
            await asyncio.wait((connection.lost,), timeout=_LEFTOVER_S)

    async def _sweep_folder(self, connection: EslConnection, folder: str) -> None:
        found = await asyncio.to_thread(speech_files.leftovers, folder, unix_s() - _LEFTOVER_S)
        for uuid, paths in found.items():
            if uuid not in self._calls and await connection.ask(f"api uuid_exists {uuid}") == "false":
                await asyncio.to_thread(speech_files.remove_all, paths)
                _log.info("leftover_files_removed", call=uuid, n=len(paths))

    def api(self, command: str, then: OnReply | None = None) -> None:
        """Run a command of FreeSWITCH's API. It is dropped without a connection: the next one restores the state."""
        if self._connection is not None:
            self._connection.send(f"api {command}", then)

    def execute(self, uuid: str, application: str, argument: str, then: OnReply | None = None) -> None:
        """Queue an application on a channel. It is dropped without a connection: the next one restores the state."""
        if self._connection is not None:
            self._connection.execute(uuid, application, argument, then)

    def _claim(self, uuid: str, module: str, event: EslEvent | None = None) -> None:
        """Make sure that a call is ours, and go on with it; `event` shows that it is new. Its events wait meanwhile."""
        if uuid not in self._claimed and self._connection is not None and self._group is not None:
            self._claimed[uuid] = deque(() if event is None else (event,), maxlen=1_000)
            self._group.create_task(self._take(self._connection, uuid, module, is_new=event is not None))

    async def _take(self, connection: EslConnection, uuid: str, module: str, *, is_new: bool) -> None:
        call = self._calls.get(uuid)
        try:
            if not is_new and await connection.ask(f"api uuid_exists {uuid}") == "false":
                connection.send(f"api hash delete/telephony_tts/{uuid}")
                if call is not None:
                    call.end("hangup")
                return
            if call is None and self._why_refused() is not None:
                await asyncio.wait((connection.lost,), timeout=ANSWER_S)  # another bridge may take it
            is_ours = await self._ownership.claim(connection, uuid, module)
        except EslLost:
            return
        finally:
            events = self._claimed.pop(uuid)
        if not is_ours:
            if call is not None:
                self._calls.pop(uuid).end("taken")
            return
        if call is None and (reason := self._why_refused()) is not None:
            metrics.REFUSED.labels(reason).inc()
            self._log.warning("refused", reason=reason, call=uuid)
            self._kill(uuid)
            self._ownership.release(connection, uuid, module)
            return
        if call is None:
            hang_up, remove_files = self._settings.hang_up, self._settings.remove_files
            new = call = FreeSwitchCall(uuid, module, self, hang_up=hang_up, remove_files=remove_files)
            self._calls[uuid] = call
            self._begin(call, lambda: self._forget(new))
        self._ownership.keep(connection, uuid)
        if not is_new:
            call.lost_touch()
        for event in events:
            self._on_event(event, 0)

    def _why_refused(self) -> str | None:
        return "draining" if self.draining else "busy" if len(self._calls) >= self._settings.max_calls else None

    # ---------------------------------------------------------------------- events

    def _on_event(self, event: EslEvent, _now_ns: int) -> None:
        uuid = event.get("Unique-ID")
        if (waiting := self._claimed.get(uuid)) is not None:
            waiting.append(event)
            return
        call = self._calls.get(uuid)
        if call is not None and call.is_over:
            return
        try:
            if event.name == BRIDGE_EVENT and self._connection is not None:
                taken = self._ownership.heard(self._connection, event)
                if taken in self._calls:
                    self._calls.pop(taken).end("taken")
            elif event.name in _FILES or event.name in _MESSAGES:
                self._on_server_message(event, uuid, call)
            elif event.name in _LEFT or event.name in _UNREACHED:
                self._on_left(event, uuid, call)
            elif call is not None:
                self._on_channel(event, call)
        except Exception:
            self._log.exception("event_crashed", call=uuid, event_name=event.name)
            if call is not None:
                call.end("failed")

    def _on_channel(self, event: EslEvent, call: FreeSwitchCall) -> None:
        match event.name:
            case "PLAYBACK_START":
                call.playback(True, event.get("Playback-File-Path"), "")
            case "PLAYBACK_STOP":
                call.playback(False, event.get("Playback-File-Path"), event.get("Playback-Status"))
            case "DTMF":
                call.digit(event.get("DTMF-Digit"))
            case "CHANNEL_HANGUP":
                call.end("hangup")

    def _on_server_message(self, event: EslEvent, uuid: str, call: FreeSwitchCall | None) -> None:
        """A file of speech, or a message of the server.

        The same FreeSWITCH may have streams to other servers, so a call is taken on its first message.
        """
        data: object = None
        if event.name in _MESSAGES:
            try:
                data = json.loads(event.body)
            except (ValueError, RecursionError):
                return
            data = data.get("data", data) if isinstance(data, dict) else None
            if not isinstance(data, dict) or "tts" not in data:
                return
        if call is None and is_uuid(uuid):
            self._claim(uuid, _COMMANDS[event.name.partition("::")[0]], event)
        elif call is None:
            metrics.BAD.labels("freeswitch_event").inc()
            self._log.warning("bad_input", kind="freeswitch_event", why="a channel's name cannot be used in commands")
        elif isinstance(data, dict):
            call.told(data)
        else:
            call.file(event.body)

    def _forget(self, call: FreeSwitchCall) -> None:
        if self._calls.get(call.uuid) is call:
            del self._calls[call.uuid]
            if self._connection is not None:
                self._ownership.release(self._connection, call.uuid, call.module)

    def _on_left(self, event: EslEvent, uuid: str, call: FreeSwitchCall | None) -> None:
        """The module's socket to the server is closed, or was never connected.

        Close code 1000 means that the stream was stopped in FreeSWITCH and is not an error. The server sends `hangup`
        before it ends a call. A known call was connected, so any error means that the server is lost. An unknown call
        that was connected may belong to another program, so it is not touched.
        """
        code = _code(event.body)
        if event.name in _LEFT and code == 1000:
            if call is not None:
                call.end("hangup")
            return
        was_connected = call is not None or event.name in _LEFT or code == _RESET
        self._log.warning("server_lost" if was_connected else "server_unreachable", call=uuid, why=event.body[:200])
        if call is not None:
            call.end("server_lost")
        elif is_uuid(uuid) and (not was_connected or (event.name in _LEFT and code in _REFUSALS)):
            self._kill(uuid)

    def _kill(self, uuid: str) -> None:
        if self._settings.hang_up:
            self.api(f"uuid_kill {uuid} NORMAL_TEMPORARY_FAILURE")


def _code(body: str) -> int | None:
    """The close code in mod_audio_stream's ::disconnect, or the code of its ::error; None for mod_audio_fork."""
    try:
        code = json.loads(body)["message"]["code"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None
