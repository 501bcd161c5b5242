"""A stand-in for FreeSWITCH with an event socket and a module that dials out. It behaves as a real one did in trials.

There is no telephone: what a caller would hear is kept as bytes with their times. Behaviour that matters:

* `uuid_broadcast` first reads five frames of the caller (lead-frames); `sendmsg` does not.
* A break empties the queue of files that have not begun, without an event. It stops a file at the end of a frame. The
  next application resets it, so a break during the lead-frames stops nothing.
* The last 40 ms of the caller are dropped at each file's beginning and end.
* The module plays nothing, splits `send_text` at spaces, and raises `::error` with code 1 when its socket is reset.
* If FreeSWITCH is killed, the module's files stay.
* A parked call outlives its stream. `send_text` then still says +OK, and the text is lost.
* Every client of the event socket gets every event, also those that another client raises with `sendevent`.
* The dialplan gives each call an entry in mod_hash and a scheduled end.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid as uuids
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

PASSWORD = "ClueCon-not"
FRAME_S = 0.02
QUEUE_S = 0.01
"""The time until a parked channel reads its queue."""
BEGIN_S = 0.015
"""The time from reading the queue to the beginning of the file."""
N_LEAD_FRAMES = 5
FLUSHED_S = 0.04
"""How much of the caller is lost at a file's beginning and end."""

SENDMSG = ("call-command", "execute-app-name", "execute-app-arg", "event-lock")


@dataclass
class StandinChannel:
    uuid: str
    module: str = "mod_audio_stream"
    heard: list[tuple[float, float, bytes]] = field(default_factory=list)
    """(from, to, PCM) of each stretch of a file that was heard, in seconds of the loop."""
    files: list[Path] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The texts that were sent to the server with `send_text`."""
    tones: list[str] = field(default_factory=list)
    """What `uuid_send_dtmf` was to send."""
    queue: deque[tuple[str, int]] = field(default_factory=deque)
    """(path, how many frames to read before it)"""
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    playing: asyncio.Event = field(default_factory=asyncio.Event)
    break_now: asyncio.Event = field(default_factory=asyncio.Event)
    deaf_until_s: float = 0.0
    is_up: bool = True
    socket: ClientConnection | None = None

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]

    @property
    def pcm(self) -> bytes:
        return b"".join(pcm for _, _, pcm in self.heard)


class StandinFreeSwitch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.channels: dict[str, StandinChannel] = {}
        self.commands: list[str] = []
        """The commands, each with its further lines."""
        self.queue_s = QUEUE_S
        self.busy_s = 0.0
        """The time between taking a file from the queue and resetting the break flag: a break in it stops nothing."""
        self.begin_s = BEGIN_S
        self.last_resort_s = 60.0
        self.on_command: Callable[[str], str | None] = lambda command: None
        """Replies that a test sets instead of the usual ones; "" for no reply."""
        self.password = PASSWORD
        self.greeting: bytes | None = b"Content-Type: auth/request\n\n"
        self.n_connections = 0
        self.hashes: dict[str, str] | None = {}
        """The entries of mod_hash by realm_key; None if it is not loaded."""
        self.scheduled: dict[str, list[asyncio.TimerHandle]] = {}
        """The scheduled commands that have not run, by group."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._subscribed: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StandinFreeSwitch]:
        await self.open_socket()
        try:
            yield self
        finally:
            for channel in list(self.channels.values()):
                await self.hang_up(channel)
            for group in list(self.scheduled):
                self._unschedule(group)
            await self.close_socket()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open_socket(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def killed(self) -> None:
        """Behave as after `kill -9`: raise no event and remove no file."""
        for channel in self.channels.values():
            channel.is_up = False
            channel.break_now.set()
            channel.awake.set()
            if channel.socket is not None:
                channel.socket.transport.abort()
        self.channels.clear()
        self.hashes = {}
        for group in list(self.scheduled):
            self._unschedule(group)
        await self.close_socket()

    async def close_socket(self) -> None:
        """Close the event socket; calls stay up."""
        assert self._listener is not None
        self._listener.close()
        self.drop_connections()
        await self._listener.wait_closed()

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._subscribed.clear()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------- event socket

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        self._writers.add(writer)
        try:
            if self.greeting is not None:
                writer.write(self.greeting)
            while True:
                block = (await reader.readuntil(b"\n\n")).decode()
                command, *headers = block.removesuffix("\n\n").split("\n")
                self.commands.append(block.strip())
                self._command(writer, command, headers, block.strip())
                if command == "exit":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            self._subscribed.discard(writer)
            writer.close()

    def _command(self, writer: asyncio.StreamWriter, command: str, headers: list[str], block: str) -> None:
        reply = self.on_command(block)
        if reply == "" or writer not in self._writers:
            return
        verb, _, rest = command.partition(" ")
        if verb == "auth":
            ok = rest == self.password
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": "+OK" if ok else "-ERR invalid"})
        elif verb == "event":
            self._subscribed.add(writer)
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": "+OK event listener enabled plain"})
        elif verb == "exit":
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": "+OK bye"})
            self._write(writer, {"Content-Type": "text/disconnect-notice"}, "Disconnected, goodbye.\n")
        elif verb == "api":
            answer = reply if reply is not None else self._api(rest)
            self._write(writer, {"Content-Type": "api/response"}, answer)
        elif verb == "bgapi":
            job = next((line.removeprefix("Job-UUID: ") for line in headers), str(uuids.uuid4()))
            reply_text = f"+OK Job-UUID: {job}"
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": reply_text, "Job-UUID": job})
            result = reply if reply is not None else self._api(rest)
            self.event("BACKGROUND_JOB", {"Job-UUID": job}, result)
        elif verb == "sendevent":
            given = dict(line.split(": ", 1) for line in headers)
            assert rest == "CUSTOM" and "Unique-ID" not in given, "that header would give the event to a channel alone"
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": f"+OK {uuids.uuid4()}"})
            self.event(given.pop("Event-Subclass"), given)
        elif verb == "sendmsg":
            answer = reply if reply is not None else self._sendmsg(rest, headers)
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": answer})
        else:
            self._write(writer, {"Content-Type": "command/reply", "Reply-Text": "-ERR command not found"})

    @staticmethod
    def _write(writer: asyncio.StreamWriter, headers: dict[str, str], body: str = "") -> None:
        if body:
            headers = headers | {"Content-Length": str(len(body.encode()))}
        head = "".join(f"{name}: {value}\n" for name, value in headers.items())
        writer.write(f"{head}\n{body}".encode())

    def event(self, name: str, headers: dict[str, str], body: str = "") -> None:
        given = {"Event-Name": "CUSTOM", "Event-Subclass": name} if "::" in name else {"Event-Name": name}
        given |= {"Core-UUID": "0b", "Event-Date-Local": "2026-11-20 12:00:00", **headers}
        if body:
            given["Content-Length"] = str(len(body.encode()))
        text = "".join(f"{key}: {quote(value)}\n" for key, value in given.items()) + "\n" + body
        for writer in list(self._subscribed):
            self._write(writer, {"Content-Type": "text/event-plain"}, text)

    # ------------------------------------------------------------------ commands

    def _sendmsg(self, uuid: str, headers: list[str]) -> str:
        """Each line must be there once. FreeSWITCH is less strict: it answers +OK to commands that then fail."""
        assert all("\r" not in line and ": " in line for line in headers), headers
        given = dict(line.split(": ", 1) for line in headers)
        assert tuple(given) == SENDMSG and len(headers) == len(SENDMSG), headers
        assert (given["call-command"], given["execute-app-name"]) == ("execute", "playback")
        assert given["event-lock"] == "true" and "${" not in given["execute-app-arg"]
        channel = self.channels.get(uuid)
        if channel is None or not channel.is_up:
            return f"-ERR invalid session id [{uuid}]"
        self._enqueue(channel, given["execute-app-arg"], 0)
        return "+OK"

    @staticmethod
    def _enqueue(channel: StandinChannel, path: str, n_lead_frames: int) -> None:
        channel.queue.append((path, n_lead_frames))
        channel.awake.set()

    def _api(self, command: str) -> str:
        name, *words = command.split(" ")
        channel = self.channels.get(words[0]) if words else None
        if name == "uptime":
            return "12345"
        if name == "global_getvar":
            return str(self.folder) if words == ["temp_dir"] else ""
        if name == "sched_api":
            after_s, group, order = float(words[0].removeprefix("+")), words[1], " ".join(words[2:])
            timer = asyncio.get_running_loop().call_later(after_s, self._scheduled_runs, group, order)
            self.scheduled.setdefault(group, []).append(timer)
            return "+OK Added: 7\n"
        if name == "sched_del":
            return f"+OK Deleted: {self._unschedule(words[0])}\n"
        if name in ("hash", "hash_dump"):
            return self._hash(name, words)
        if name == "uuid_exists":
            return "true" if channel is not None and channel.is_up else "false"
        if channel is None or not channel.is_up:
            return "-ERR No such channel!\n"
        if name == "uuid_broadcast":
            self._enqueue(channel, words[1], N_LEAD_FRAMES)
            return "+OK Message sent\n"
        if name == "uuid_break":
            if words[1:] == ["all"]:
                channel.queue.clear()
            channel.break_now.set()
            return "+OK\n"
        if name == "uuid_send_dtmf":
            channel.tones.append(words[1])
            return "+OK\n"
        if name == "uuid_kill":
            self._spawn(self.hang_up(channel))
            return "+OK\n"
        if name == f"uuid_{channel.module.removeprefix('mod_')}" and words[1] == "send_text":
            channel.texts.append(words[2])
            if channel.socket is not None:
                self._spawn(self._send(channel.socket, words[2]))
            return "+OK Success\n"
        return "-ERR Command not found!\n"

    def _hash(self, name: str, words: list[str]) -> str:
        """mod_hash, as far as the bridge needs it."""
        if self.hashes is None:
            return f"-ERR {name} Command not found!\n"
        if name == "hash_dump":
            assert words[0] == "db"
            return "".join(f"D/{key}/{value}\n" for key, value in self.hashes.items() if f"{words[1]}_" in key)
        what, realm, key, *value = words[0].split("/")
        held = self.hashes.get(f"{realm}_{key}")
        if what == "select":
            return held or ""
        if what == "insert_ifempty":
            if held is not None:
                return "-ERR key already exists\n"
            self.hashes[f"{realm}_{key}"] = value[0]
            return "+OK\n"
        if held is None:
            return "-ERR Not found\n"
        if what == "delete_ifmatch" and held != value[0]:
            return "-ERR Doesn't match\n"
        assert what in ("delete", "delete_ifmatch")
        del self.hashes[f"{realm}_{key}"]
        return "+OK\n"

    def _unschedule(self, group: str) -> int:
        timers = self.scheduled.pop(group, [])
        for timer in timers:
            timer.cancel()
        return len(timers)

    def _scheduled_runs(self, group: str, order: str) -> None:
        self.scheduled.pop(group, None)
        self._api(order)

    @staticmethod
    async def _send(socket: ClientConnection, data: str | bytes) -> None:
        with suppress(ConnectionClosed):
            await socket.send(data)

    # ---------------------------------------------------------------------- calls

    def call(self, uuid: str | None = None, module: str = "mod_audio_stream") -> StandinChannel:
        """An answered, parked channel of the shipped dialplan: it plays queued files in order."""
        channel = StandinChannel(uuid or str(uuids.uuid4()), module)
        self.channels[channel.uuid] = channel
        if self.hashes is not None:
            self.hashes[f"telephony_tts_{channel.uuid}"] = f"uuid_{module.removeprefix('mod_')}"
        self._api(f"sched_api +{self.last_resort_s} telephony_tts_{channel.uuid} uuid_kill {channel.uuid}")
        self._spawn(self._play(channel))
        return channel

    async def hang_up(self, channel: StandinChannel) -> None:
        if channel.is_up:
            channel.is_up = False
            channel.break_now.set()
            channel.awake.set()
            await asyncio.sleep(0)
            if self.hashes is not None:
                self.hashes.pop(f"telephony_tts_{channel.uuid}", None)  # api_hangup_hook
            self.event("CHANNEL_HANGUP", {"Unique-ID": channel.uuid, "Hangup-Cause": "NORMAL_CLEARING"})
            if channel.socket is not None:
                await channel.socket.close(1000, "Normal closure")
            for path in channel.files:
                path.unlink(missing_ok=True)

    def press(self, channel: StandinChannel, digit: str) -> None:
        self.event("DTMF", {"Unique-ID": channel.uuid, "DTMF-Digit": digit, "DTMF-Duration": "1600"})

    async def _play(self, channel: StandinChannel) -> None:
        """The channel's thread."""
        loop = asyncio.get_running_loop()
        while channel.is_up:
            if not channel.queue:
                channel.awake.clear()
                await channel.awake.wait()
                await asyncio.sleep(self.queue_s)
                continue
            path, n_lead_frames = channel.queue.popleft()
            await asyncio.sleep(n_lead_frames * FRAME_S + self.busy_s)
            channel.break_now.clear()  # each application does this when it begins, whichever file the break was for
            await asyncio.sleep(self.begin_s)
            pcm = _samples(path)
            if pcm is None:
                continue  # only its log says so
            headers = {"Unique-ID": channel.uuid, "Playback-File-Path": path}
            rate_hz = 16000 if path.endswith("16") else 8000
            begun_s = loop.time()
            self._flush(channel)
            self.event("PLAYBACK_START", headers)
            channel.playing.set()
            if channel.is_up and not channel.break_now.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(len(pcm) / 2 / rate_hz):
                        await channel.break_now.wait()
                        await asyncio.sleep(FRAME_S - (loop.time() - begun_s) % FRAME_S)
            channel.playing.clear()
            was_broken = channel.break_now.is_set()
            channel.break_now.clear()
            n_heard = min(len(pcm), round((loop.time() - begun_s) * rate_hz) * 2) if was_broken else len(pcm)
            channel.heard.append((begun_s, loop.time(), pcm[:n_heard]))
            self._flush(channel)
            self.event("PLAYBACK_STOP", headers | {"Playback-Status": "break" if was_broken else "done"})

    @staticmethod
    def _flush(channel: StandinChannel) -> None:
        channel.deaf_until_s = asyncio.get_running_loop().time() + FLUSHED_S

    # ---------------------------------------------------------------- the module

    def speech(self, channel: StandinChannel, number: int, pcm: bytes, kind: str = "r8") -> Path:
        """Handle a message of speech as the module does."""
        path = self.folder / f"{channel.uuid}_{len(channel.files)}.tmp.{kind}"
        path.write_bytes(pcm)
        channel.files.append(path)
        name = "play" if channel.module == "mod_audio_stream" else "play_audio"
        body = {"audioDataType": "raw", "sampleRate": 8000, "id": str(number), "file": str(path)}
        self.event(f"{channel.module}::{name}", {"Unique-ID": channel.uuid}, json.dumps(body))
        return path

    def word(self, channel: StandinChannel, **data: Any) -> None:
        """Handle any other text of the server as the module does."""
        body = json.dumps({"type": "json", "data": data})
        self.event(f"{channel.module}::json", {"Unique-ID": channel.uuid}, body)

    def left(self, channel: StandinChannel, code: int, reason: str = "") -> None:
        body = {"status": "disconnected", "message": {"code": code, "reason": reason}}
        self.event(f"{channel.module}::disconnect", {"Unique-ID": channel.uuid}, json.dumps(body))

    def reset(self, channel: StandinChannel) -> None:
        """The module's socket ends without a close frame, as when the server is killed."""
        if channel.module == "mod_audio_fork":
            return self.left(channel, 1006)
        body = {"status": "error", "message": {"code": 1, "error": "Connection reset"}}
        self.event("mod_audio_stream::error", {"Unique-ID": channel.uuid}, json.dumps(body))

    async def stream(
        self, channel: StandinChannel, url: str, *, metadata: str | None = None, headers: dict[str, str] | None = None
    ) -> bool:
        """Run `uuid_audio_stream UUID start URL mono 8k METADATA`; returns whether the server accepted it."""
        is_fork = channel.module == "mod_audio_fork"
        try:
            socket = channel.socket = await connect(
                url, additional_headers=headers or {}, compression=None, proxy=None, close_timeout=2,
                subprotocols=[Subprotocol("audio.drachtio.org")] if is_fork else None, max_queue=None,
            )  # fmt: skip
        except (OSError, InvalidStatus) as error:
            body = {"status": "error", "message": {"code": 6, "error": str(error)}}
            name = "connect_failed" if is_fork else "error"
            self.event(f"{channel.module}::{name}", {"Unique-ID": channel.uuid}, json.dumps(body))
            return False
        if metadata is not None:
            await socket.send(metadata)
        self._spawn(self._listen(channel, socket))
        return True

    async def _listen(self, channel: StandinChannel, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            async for text in socket:
                if isinstance(text, bytes):
                    continue  # ignored in the open edition
                said = json.loads(text)
                if said["type"] in ("streamAudio", "playAudio"):
                    data = said["data"]
                    audio = data.get("audioData") or data.get("audioContent")
                    kind = "r16" if data["sampleRate"] == 16000 else "r8"
                    self.speech(channel, int(data["id"]), base64.b64decode(audio), kind)
                elif said["type"] == "killAudio":
                    self.event("mod_audio_fork::kill_audio", {"Unique-ID": channel.uuid})
                    channel.break_now.set()
                else:
                    self.event(f"{channel.module}::json", {"Unique-ID": channel.uuid}, str(text))
        if socket.protocol.close_rcvd is None:
            self.reset(channel)
        else:
            self.left(channel, socket.close_code or 1005, socket.close_reason or "")

    async def hears_caller(self, channel: StandinChannel, pcm: bytes) -> None:
        """Send the caller's audio at once, 20 ms per message. Nothing is sent while a file begins or ends."""
        assert channel.socket is not None
        for at in range(0, len(pcm), 320):
            if asyncio.get_running_loop().time() >= channel.deaf_until_s:
                await channel.socket.send(pcm[at : at + 320])

    async def hears_caller_talk(self, channel: StandinChannel, n_frames: int, rate_hz: int = 8000) -> list[int]:
        """Send numbered frames of the caller, 20 ms apart; returns the numbers that went to the server."""
        loop = asyncio.get_running_loop()
        begun_s, sent = loop.time(), []
        for n in range(n_frames):
            await asyncio.sleep(max(0.0, begun_s + n * FRAME_S - loop.time()))
            if loop.time() >= channel.deaf_until_s:
                await self.hears_caller(channel, n.to_bytes(2, "little") * (rate_hz // 50))
                sent.append(n)
        return sent


def _samples(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None
