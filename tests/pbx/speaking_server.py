"""Our server with an engine whose speech is noise that can be compared with a phone's recording; and its bots.

`speaking_server` runs it in a thread of this process, where a test can look into it; `speaking_process` in one of its
own, where the telephones of many calls do not take its time, and it dials a bot for each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop
from peer_process import wait_until
from server_settings import transport_settings
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_sync

from telephony_tts.audio.g711 import Pcm
from telephony_tts.doors.asterisk.leg import AsteriskLeg
from telephony_tts.engines.api import Timing, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.words import words
from telephony_tts.recording.live import Recordings
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.session.settings import DtmfSettings, SessionSettings
from telephony_tts.transport.server import Server
from telephony_tts.transport.settings import TransportSettings

RATE_HZ = 8000
MS_PER_CHAR = 30
TONE, TONE_HZ = "a tone above the telephone band.", 5500
TIMEOUT_S = 10.0
_EDGE_MS = 50
"""The length of its fade-in and fade-out. Our own fade at joints then changes almost nothing."""


def spoken(text: str, rate_hz: int = RATE_HZ) -> Pcm:
    """The engine's audio of a sentence: noise with the spectral slope of speech, different for each text and frame.

    Above 8 kHz it has a smaller slope and all that G.722 carries. The text TONE is a tone above the telephone band.
    The engine makes it on the server's event loop, 3 to 5 ms a sentence. A test of many calls that speak at once
    therefore asks for their texts beforehand: or the server would be late by what its test costs.
    """
    return _noise(text, rate_hz)


@functools.cache
def _noise(text: str, rate_hz: int) -> Pcm:
    n = len(text) * rate_hz * MS_PER_CHAR // 1000
    if text == TONE:
        return _faded(8000 * np.sin(2 * np.pi * TONE_HZ / rate_hz * np.arange(n)), rate_hz)
    top_hz, slope = (3400, -1.5) if rate_hz == RATE_HZ else (6800, -0.5)
    spectrum = np.fft.rfft(np.random.default_rng(zlib.crc32(text.encode())).standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / rate_hz)
    shape = (hz > 100) * (hz < top_hz) * np.minimum(1.0, (np.maximum(hz, 1.0) / 500) ** slope)
    sound = np.fft.irfft(spectrum * shape, n)
    return _faded(sound * (2500 / np.sqrt(np.mean(sound**2))), rate_hz)


def _faded(sound: npt.NDArray[np.float64], rate_hz: int) -> Pcm:
    n = _EDGE_MS * rate_hz // 1000
    ramp = np.sin(np.linspace(0, np.pi / 2, n)) ** 2
    sound[:n] *= ramp
    sound[-n:] *= ramp[::-1]
    pcm: Pcm = np.clip(np.rint(sound), -32_768, 32_767).astype(np.int16)
    pcm.setflags(write=False)
    return pcm


class Noise(FakeEngine):
    def _render(self, utterance: Utterance) -> tuple[Pcm, list[Timing]]:
        text, per_char = utterance.text, self._sample_rate_hz * MS_PER_CHAR / 1000
        timings = [Timing(first, end, round(first * per_char), round(end * per_char)) for first, end in words(text)]
        return spoken(text, self._sample_rate_hz), timings


class Bot:
    """A synchronous client of PROTOCOL.md."""

    def __init__(self, socket: ClientConnection | ServerConnection) -> None:
        self._socket = socket
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.caller = bytearray()
        """The caller's audio, by `inbound: binary`."""
        self._news: queue.Queue[None] = queue.Queue()
        self._n_seen = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for message in self._socket:
                if isinstance(message, bytes):
                    self.caller += message
                else:
                    self.events.append((time.monotonic(), json.loads(message)))
                self._news.put(None)
        except (OSError, ConnectionClosed):
            pass

    def send(self, **message: Any) -> float:
        """Send a message; return the time of sending on the monotonic clock."""
        self._socket.send(json.dumps(message))
        return time.monotonic()

    def say(self, text: str, turn: str) -> None:
        self.send(type="say", turn=turn, text=text)

    def event(self, kind: str, within_s: float = TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """The next event of this kind with these fields that no earlier call returned; other events are skipped."""
        end_s = time.monotonic() + within_s
        while True:
            for at in range(self._n_seen, len(self.events)):
                event = self.events[at][1]
                if event.get("type") == kind and all(event.get(name) == value for name, value in fields.items()):
                    self._n_seen = at + 1
                    return event
            try:
                self._news.get(timeout=max(0.01, end_s - time.monotonic()))
            except queue.Empty:
                got = [event for _, event in self.events[-8:]]
                raise AssertionError(f"no {kind} {fields} came within {within_s} s; the last: {got}") from None

    def leave(self) -> None:
        self._socket.close()
        self._reader.join(TIMEOUT_S)

    def wait_left(self) -> None:
        """Wait until either side has closed."""
        self._reader.join()


class SpeakingServer:
    def __init__(self, port: int, server: Server) -> None:
        self.port = port
        self._server = server

    @property
    def media_uri(self) -> str:
        return f"ws://127.0.0.1:{self.port}/media/asterisk"

    @property
    def n_calls(self) -> int:
        return len(self._server.registry)

    def calls(self) -> list[str]:
        """The names of the live calls."""
        return [call.id for call in self._server.registry.calls()]

    def only_call(self) -> str:
        """Wait for a call; return the name of the only live call."""
        wait_until(lambda: self.n_calls == 1, "the call has come to the server", 5)
        return self.calls()[0]

    def asterisk_leg(self, call: str) -> AsteriskLeg:
        """The call's connection to Asterisk. Read only: it belongs to the server's thread."""
        leg = next(each.media for each in self._server.registry.calls() if each.id == call)
        assert isinstance(leg, AsteriskLeg)
        return leg

    def command(self, call: str, name: str) -> None:
        """Send Asterisk a command that the call does not send by itself."""
        leg = self.asterisk_leg(call)
        leg.connection.loop.call_soon_threadsafe(leg._command, name)

    def cut_off(self) -> None:
        """Abort all sockets, as if the server had died."""
        assert self._server._listener is not None
        loop = self._server._listener.get_loop()
        for connection in list(self._server._listener.connections):
            loop.call_soon_threadsafe(connection.transport.abort)

    @contextmanager
    def bot(self, call: str, **options: Any) -> Iterator[Bot]:
        query = "".join(f"&{name}={value}" for name, value in options.items())
        with connect(f"ws://127.0.0.1:{self.port}/v1/stream?call={call}{query}", proxy=None) as socket:
            bot = Bot(socket)
            try:
                yield bot
            finally:
                bot.leave()


def _settings(ahead_ms: int = 2000, dtmf: DtmfSettings | None = None, **settings: Any) -> TransportSettings:
    how = {"max_frame_lateness_ms": 60_000, "drain_s": 1.0, "call_claim_s": 10.0, **settings}
    speech = SessionSettings(first_clause_chars=0, ahead_ms=ahead_ms, dtmf=dtmf or DtmfSettings())
    return transport_settings(speech=speech, **how)


async def _serve(
    settings: TransportSettings,
    started: Callable[[Server], object],
    over: asyncio.Event,
    rate_hz: int = RATE_HZ,
    recordings: RecordingSettings | None = None,
) -> None:
    catalog = Catalog([Noise(sample_rate_hz=rate_hz)])
    await catalog.start()
    recorded = None if recordings is None else Recordings(recordings)
    try:
        server = Server(settings, catalog)
        if recorded is not None:
            recorded.open()
            server.registry.recordings = recorded
        async with server.running():
            started(server)
            await over.wait()
    finally:
        if recorded is not None:
            await recorded.close()
        await catalog.close()


@contextmanager
def speaking_server(
    rate_hz: int = RATE_HZ, recordings: RecordingSettings | None = None, **settings: Any
) -> Iterator[SpeakingServer]:
    """Run a server during the body. Afterwards it must have no call. `settings` are those of the transport, and
    `ahead_ms` and `dtmf` those of speech. The engine speaks at `rate_hz`."""
    started: queue.Queue[SpeakingServer | BaseException] = queue.Queue()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(over.set))

        def listens(server: Server) -> None:
            started.put(SpeakingServer(server.port, server))

        await _serve(_settings(**settings), listens, over, rate_hz, recordings)

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            started.put(error)
            raise

    thread = threading.Thread(target=body, name="speaking server")
    thread.start()
    running = started.get(timeout=TIMEOUT_S)
    if isinstance(running, BaseException):
        raise running
    try:
        yield running
        end_s = time.monotonic() + TIMEOUT_S
        while running.n_calls and time.monotonic() < end_s:
            time.sleep(0.02)
        assert not running.n_calls, "calls left"
    finally:
        for each in stop:
            each()
        thread.join(TIMEOUT_S)


class Bots:
    """A bot for each call for which the server dials one, in the order of the calls."""

    def __init__(self) -> None:
        self._came: queue.Queue[Bot] = queue.Queue()
        self._listener = serve_sync(self._greet, "127.0.0.1", 0, compression=None)
        self.url = f"ws://127.0.0.1:{self._listener.socket.getsockname()[1]}/bot"
        self._thread = threading.Thread(target=self._listener.serve_forever)
        self._thread.start()

    def _greet(self, socket: ServerConnection) -> None:
        bot = Bot(socket)
        self._came.put(bot)
        bot.wait_left()

    def next(self, within_s: float = TIMEOUT_S) -> Bot:
        return self._came.get(timeout=within_s)

    def close(self) -> None:
        self._listener.shutdown()
        self._thread.join(TIMEOUT_S)


@contextmanager
def speaking_process(**settings: Any) -> Iterator[tuple[str, Bots, int]]:
    """The address for Asterisk's media, the bots, and the id of the process. `settings` are those of the transport."""
    bots = Bots()
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps({"bot_url": bots.url, **settings})]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # it imports what this process can import
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=paths) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield f"ws://127.0.0.1:{int(process.stdout.readline())}/media/asterisk", bots, process.pid
        finally:
            process.stdin.close()  # it ends with its input
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            bots.close()


async def _main(settings: dict[str, Any]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, over.set)
    await _serve(_settings(**settings), lambda server: print(server.port, flush=True), over)


if __name__ == "__main__":
    # Before the phones of all its calls, which are on the same cores and would not be in a call centre.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(json.loads(sys.argv[1])))
