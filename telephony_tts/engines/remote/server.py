"""An engine served to other processes over gRPC. `messages` describes the protocol.

Each client has one stream, which is the lease of its utterances. When the stream ends, or when the client sends nothing
for a second, its utterances are cancelled and their slots become free.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import stat
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from telephony_tts.engines.api import (
    Chunk,
    Engine,
    FindsVoices,
    HasVersion,
    TextFeed,
    Utterance,
    Voice,
    languages_read_in_digits,
)
from telephony_tts.engines.remote.addresses import EngineAddress
from telephony_tts.engines.remote.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    REPLICA_LOST,
    SERVICE,
    Attach,
    Attached,
    BadMessage,
    CancelSpeech,
    EngineStatus,
    FindVoice,
    FromClient,
    FromServer,
    KeepAlive,
    MoreText,
    Speak,
    SpeechEnded,
    SpokenAudio,
    TookAudio,
    VoiceFound,
    decode_from_client,
    encode,
)
from telephony_tts.engines.remote.outgoing import OutgoingFrames
from telephony_tts.engines.remote.pieces import PieceGatherer, duration_ns
from telephony_tts.engines.remote.silence import CHECK_NS, PeerSilence
from telephony_tts.engines.remote.tls import TlsKeys
from telephony_tts.engines.remote.voice_server import VoiceKeeper, voice_handlers
from telephony_tts.engines.versions import package_version
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import ConfigError, EngineError, TelephonyTTSError

_log = logs.get(__name__)

LEASE_MS = 1_000
ATTACH_S = 5.0
"""A client must send its first message within this time."""
MAX_WINDOW_MS = 10_000
MAX_UTTERANCES = 1_024
"""Of one client."""
MAX_OPEN_TEXT_CHARS = 200_000
"""Of one utterance that is still being written."""
MAX_UNREAD_BYTES = 64_000_000
"""A client that leaves so much unread is given up. Its listeners' windows keep it far below this."""
MAX_VERSIONS = 256
"""The most voices whose versions one client is told."""
N_RECENT_VOICES = 8
WRITE_LAST_S = 0.5
"""How long the last messages to a client may take."""
OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Connections without a request: gRPC gives a handshake two minutes, and an idle connection any time.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class _Speech:
    """One utterance of a client, as far as the network is concerned."""

    def __init__(self, feed: TextFeed | None, window_ns: int) -> None:
        self.feed = feed
        self.gatherer = PieceGatherer()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        """The client cancelled it."""
        self.error: TelephonyTTSError | None = None
        """What ended it, if it was not its end."""
        self.has_audio = False
        self.n_text_chars = 0
        self._window_ns = window_ns
        self._open_ns = 0
        """Audio that the engine gave and the listener has not taken."""
        self._room = asyncio.Event()

    def given(self, chunk: Chunk) -> None:
        self.has_audio = True
        self._open_ns += duration_ns(chunk)

    def taken(self, audio_ns: int) -> None:
        self._open_ns -= audio_ns
        if self.has_room:
            self._room.set()

    @property
    def has_room(self) -> bool:
        """Whether the engine may compute more."""
        return self._open_ns < self._window_ns

    async def until_room(self) -> None:
        while not self.has_room:
            self._room.clear()
            await self._room.wait()


class EngineServer:
    """Serves `engine`, which its owner starts and closes.

    It may listen before the engine is loaded: clients see that it is not ready, until `engine_is_loaded` is called.
    `token`: what clients must send; None lets every client in that reaches the address. `tls`: with `cert` the
    connection is encrypted, but for a Unix socket. `voices`: what adds and removes voices for clients.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        token: str | None = None,
        tls: TlsKeys | None = None,
        voices: VoiceKeeper | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self.engine = engine
        self._keeper = voices
        self._tls = None if tls is None or tls.cert is None else tls
        self.is_draining = False
        self.lease_ns = lease_ms * NS_PER_MS
        self._token = token
        self._is_loaded = False
        self._clients: set[_Client] = set()
        self._idle = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._recent: dict[str, None] = {}
        self._version = engine.version if isinstance(engine, HasVersion) else None
        self._software = package_version("telephony-tts")

    async def listen(self, address: EngineAddress) -> EngineAddress:
        """Accept clients. Returns the address with the port that was chosen for port 0. Raises ConfigError."""
        if not address.is_local and self._token is None:
            raise ConfigError(
                f"{address} can be reached from other machines, and no token is set. Set engines.remote.token to the "
                "same text here and in the fronts. Encrypt the connection with engines.remote.tls, or keep the network "
                "private"
            )
        server = grpc.aio.server(options=OPTIONS)
        handlers = {"Attach": grpc.stream_stream_rpc_method_handler(self._attach)}
        handlers |= voice_handlers(self._keeper, self._check_token)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if address.path:
            _clear_away(address)
        # A socket file is for this user alone.
        umask = os.umask(0o177)
        try:
            port = self._add_port(server, address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: it is in use or not an address of this machine") from error
        finally:
            os.umask(umask)
        await server.start()
        self._server = server
        return replace(address, port=port) if not address.path else address

    def _add_port(self, server: grpc.aio.Server, address: EngineAddress) -> int:
        """Returns the port. Raises RuntimeError."""
        tls = self._tls
        if tls is None or address.path:
            return int(server.add_insecure_port(str(address)))
        keys = ((tls.key, tls.cert),)
        wanted = grpc.ssl_server_credentials(keys, tls.ca, require_client_auth=tls.ca is not None)
        return int(server.add_secure_port(str(address), wanted))

    def engine_is_loaded(self) -> None:
        """The engine takes utterances from now on."""
        self._is_loaded = True
        self._tell_all()

    @property
    def n_utterances(self) -> int:
        """How many utterances clients have here."""
        return sum(client.n_utterances for client in self._clients)

    @property
    def n_clients(self) -> int:
        return len(self._clients)

    async def drain(self, within_s: float) -> bool:
        """Refuse new utterances and wait for the end of the others. False if some are left after `within_s`."""
        self.is_draining = True
        self._tell_all()
        try:
            async with asyncio.timeout(within_s):
                while self.n_utterances:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Cancel all utterances and end all streams. Idempotent."""
        server, self._server = self._server, None
        self.is_draining = True
        if server is not None:
            for client in list(self._clients):
                client.end()
            await server.stop(grace=WRITE_LAST_S)

    # --------------------------------------------------------- for the clients

    def status(self, number: int, versions_of: tuple[str, ...] = ()) -> EngineStatus:
        stats = self.engine.stats()
        is_ready = stats.is_ready and self._is_loaded and not self.is_draining
        version = self._version
        return EngineStatus(
            number,
            replace(stats, is_ready=is_ready),
            self.is_draining,
            versions={} if version is None else {name: version(name) for name in versions_of},
            recent_voices=tuple(self._recent),
            counters=self.engine.counters(),
        )

    @property
    def voices(self) -> tuple[Voice, ...] | None:
        """None while the engine loads: clients keep the voices that they know."""
        return self.engine.voices if self._is_loaded else None

    def hello(self) -> Attached:
        digits = tuple(languages_read_in_digits(self.engine))
        return Attached(PROTOCOL, self.engine.name, self.engine.streams_text, self._software, digits)

    def refusal(self) -> EngineError | None:
        """Why a new utterance cannot be taken."""
        if self.is_draining:
            return _goes_on_elsewhere("this engine server is being stopped; say it again in a moment", 500)
        if not self._is_loaded:
            return _goes_on_elsewhere("the speech engine is loading; say it again in a moment", 1_000)
        return None

    def spoke(self, voice: str | None) -> None:
        """A voice speaks, so the engine has it ready."""
        name = voice or next((voice.name for voice in self.engine.voices), None)
        if name is not None:
            self._recent.pop(name, None)
            self._recent[name] = None
            while len(self._recent) > N_RECENT_VOICES:
                del self._recent[next(iter(self._recent))]

    def utterance_ended(self) -> None:
        self._idle.set()

    def _tell_all(self) -> None:
        for client in self._clients:
            client.tell_status()

    def removable(self, voices: tuple[Voice, ...]) -> tuple[str, ...]:
        """The names of those that clients can remove."""
        keeper = self._keeper
        return () if keeper is None else tuple(voice.name for voice in voices if keeper.is_removable(voice))

    async def _check_token(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._token is not None and not hmac.compare_digest(_bytes(given), f"Bearer {self._token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong; check engines.remote.token")

    async def _attach(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self._check_token(context)
        client = _Client(self, context)
        self._clients.add(client)
        try:
            await client.serve()
        except _Refused as refused:
            _log.warning("engine_client_refused", peer=context.peer(), why=str(refused))
            await context.abort(refused.code, str(refused))
        except asyncio.CancelledError:
            pass  # the client has gone, or the server stops: gRPC reports its own cancel as an error
        finally:
            self._clients.discard(client)
            self._idle.set()


class _Refused(Exception):
    """End the client's stream with this status."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class _LeaseOver(Exception):
    """The client is silent."""


class _Client:
    """One client: its stream, its lease and its utterances."""

    def __init__(self, server: EngineServer, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._server = server
        self._context = context
        self._name = context.peer()
        self._out = OutgoingFrames()
        self._speeches: dict[int, _Speech] = {}
        self._window_ns = 0
        self._silence = PeerSilence(monotonic_ns())
        self._group: asyncio.TaskGroup | None = None
        self._voices: tuple[Voice, ...] | None = None
        """The voices that the client was told of."""
        self._reader: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def n_utterances(self) -> int:
        return len(self._speeches)

    def end(self) -> None:
        """End the stream: the server stops."""
        self._is_ending = True
        if self._reader is not None:
            self._reader.cancel()

    def tell_status(self) -> None:
        if self._window_ns:
            self._answer(KeepAlive(0))

    async def serve(self) -> None:
        """Serve until the stream ends. Returns when the engine holds nothing for this client. Raises _Refused."""
        await self._greet()
        _log.info("engine_client_attached", client=self._name)
        why = "its stream ended"
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._write(), name="engine client writer")
        self._reader = loop.create_task(self._read(), name="engine client reader")
        watch = loop.create_task(self._watch_lease(), name="engine client lease")
        parts = (writer, self._reader, watch)
        try:
            async with asyncio.TaskGroup() as self._group:
                try:
                    done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                    why = _why(done) or why
                finally:
                    watch.cancel()
                    self._reader.cancel()
                    self._cancel_all()
            # The ends of its utterances are on their way.
            self._out.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_LAST_S):
                    await asyncio.wait((writer,))
            failure = None if self._reader.cancelled() or not self._reader.done() else self._reader.exception()
            if isinstance(failure, BadMessage):
                raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{failure}") from failure
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            _log.info("engine_client_left", client=self._name, why=why)

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(ATTACH_S):
                data = await self._context.read()
                messages = decode_from_client(data) if isinstance(data, bytes) else []
        except TimeoutError:
            raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no first message within {ATTACH_S:g} s") from None
        except BadMessage as bad:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"the first message cannot be read: {bad}") from bad
        if not messages or not isinstance(messages[0], Attach):
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message is not `attach`")
        first = messages[0]
        if first.protocol != PROTOCOL:
            raise _Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this engine server speaks protocol {PROTOCOL} and its client protocol {first.protocol}; run the same "
                "version of telephony-tts on both sides",
            )
        self._name = f"{first.client} {self._context.peer()}".strip()
        self._window_ns = min(MAX_WINDOW_MS, max(1, first.window_ms)) * NS_PER_MS
        self._send(self._server.hello())
        self._answer(KeepAlive(0))
        try:
            for message in messages[1:]:
                self._receive(message)
        except BadMessage as bad:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, str(bad)) from bad

    async def _read(self) -> None:
        while True:
            data = await self._context.read()
            if not isinstance(data, bytes):
                return  # the client has ended its side
            self._silence.heard(monotonic_ns())
            for message in decode_from_client(data):
                self._receive(message)

    async def _write(self) -> None:
        while (data := await self._out.next_message()) is not None:
            await self._context.write(data)

    async def _watch_lease(self) -> None:
        while self._silence.check(monotonic_ns()) < self._server.lease_ns:
            if self._out.n_bytes > MAX_UNREAD_BYTES:
                raise _LeaseOver("it reads nothing")
            await asyncio.sleep(CHECK_NS / NS_PER_S)
        raise _LeaseOver(f"it sent nothing for {self._server.lease_ns // NS_PER_MS} ms")

    def _send(self, message: FromServer, *, soon: bool = False) -> None:
        self._out.push(encode(message), soon=soon)

    def _receive(self, message: FromClient) -> None:
        """Raises BadMessage if it cannot come now."""
        match message:
            case KeepAlive():
                self._answer(message)
            case Speak():
                self._begin(message)
            case MoreText(key, text, is_last):
                if (speech := self._speeches.get(key)) is not None and speech.feed is not None:
                    speech.n_text_chars += len(text)
                    if speech.n_text_chars > MAX_OPEN_TEXT_CHARS:
                        raise BadMessage(f"an utterance has more than {MAX_OPEN_TEXT_CHARS} characters")
                    speech.feed.push(text)
                    if is_last:
                        speech.feed.end()
            case TookAudio(key, audio_ns):
                if (speech := self._speeches.get(key)) is not None:
                    speech.taken(audio_ns)
            case CancelSpeech(key):
                if (speech := self._speeches.get(key)) is not None and not speech.is_cancelled:
                    speech.is_cancelled = True
                    self._let_go(speech)
            case FindVoice(key, name):
                engine = self._server.engine
                found = engine.find_voice(name) if isinstance(engine, FindsVoices) else None
                self._send(VoiceFound(key, found))
            case Attach():
                raise BadMessage("a second `attach`")

    def _answer(self, message: KeepAlive) -> None:
        status = self._server.status(message.number, message.versions_of[:MAX_VERSIONS])
        voices = self._server.voices
        n_waiting = sum(not speech.has_audio for speech in self._speeches.values())
        status = replace(
            status,
            n_yours=len(self._speeches),
            n_yours_waiting=n_waiting,
            voices=None if voices == self._voices else voices,
            removable=() if voices is None or voices == self._voices else self._server.removable(voices),
        )
        self._voices = voices
        self._send(status)

    # ------------------------------------------------------------- utterances

    def _begin(self, message: Speak) -> None:
        key = message.key
        if key in self._speeches:
            raise BadMessage(f"the key {key} is in use")
        refusal = self._server.refusal()
        if refusal is None and len(self._speeches) >= MAX_UTTERANCES:
            refusal = _goes_on_elsewhere(f"this client has {MAX_UTTERANCES} utterances here already", 1_000)
        if refusal is None and self._group is None:
            refusal = _goes_on_elsewhere("the client did not wait for `attached`", 0)
        if refusal is not None:
            self._send(SpeechEnded(key, refusal))
            return
        assert self._group is not None
        feed = TextFeed() if message.is_open else None
        due_ns = 0 if message.deadline_in_ns is None else monotonic_ns() + message.deadline_in_ns
        speech = _Speech(feed, self._window_ns)
        self._speeches[key] = speech
        utterance = replace(message.utterance, deadline_ns=due_ns, more=feed)
        speech.task = self._group.create_task(self._speak(key, speech, utterance), name=f"remote utterance {key}")
        # A task that is cancelled before its first step runs no `finally`.
        speech.task.add_done_callback(lambda _: self._ended(key, speech))

    async def _speak(self, key: int, speech: _Speech, utterance: Utterance) -> None:
        """Pull the engine. Returns when the generator is closed."""
        name = self._server.engine.name
        try:
            async with aclosing(self._server.engine.synthesize(utterance)) as chunks:
                async for chunk in chunks:
                    is_first = not speech.has_audio
                    if is_first:
                        self._server.spoke(utterance.voice)
                    speech.given(chunk)
                    for piece in speech.gatherer.add(chunk, monotonic_ns()):
                        self._send(SpokenAudio(key, piece), soon=not is_first)
                    if speech.has_room:
                        self._flush_later(key, speech)
                        await asyncio.sleep(0)  # otherwise a fast engine would keep the loop from writing
                    else:
                        self._flush(key, speech)
                        self._out.flush()
                        await speech.until_room()
        except TelephonyTTSError as failure:
            speech.error = failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            speech.error = EngineError(f"the engine {name} gave up")  # a task inside the engine was cancelled
        except Exception:
            _log.exception("engine_crashed", engine=name, call=utterance.call, turn=utterance.turn)
            speech.error = EngineError(f"the engine {name} failed; see the log of its server")

    def _ended(self, key: int, speech: _Speech) -> None:
        """The engine holds nothing for the utterance."""
        if speech.timer is not None:
            speech.timer.cancel()
        if not speech.is_cancelled:
            self._flush(key, speech)
        del self._speeches[key]
        self._send(SpeechEnded(key, speech.error))
        self._server.utterance_ended()

    def _flush_later(self, key: int, speech: _Speech) -> None:
        due_ns = speech.gatherer.deadline_ns()
        if speech.timer is not None:
            speech.timer.cancel()
            speech.timer = None
        if due_ns is not None:
            wait_s = max(0, due_ns - monotonic_ns()) / NS_PER_S
            speech.timer = asyncio.get_running_loop().call_later(wait_s, self._flush, key, speech)

    def _flush(self, key: int, speech: _Speech) -> None:
        piece = speech.gatherer.flush(monotonic_ns())
        if piece is not None:
            self._send(SpokenAudio(key, piece))

    def _let_go(self, speech: _Speech) -> None:
        if speech.task is not None:
            speech.task.cancel()
        if speech.feed is not None:
            speech.feed.end()

    def _cancel_all(self) -> None:
        for speech in self._speeches.values():
            if not speech.is_cancelled:
                speech.is_cancelled = True
                speech.error = _goes_on_elsewhere("the engine server was stopped", 500)
                self._let_go(speech)


def _goes_on_elsewhere(message: str, retry_after_ms: int) -> EngineError:
    """The error of an utterance that another replica may speak."""
    return EngineError(message, code=REPLICA_LOST, retry_after_ms=retry_after_ms)


def _why(done: set[asyncio.Task[None]]) -> str:
    """What ended a client's stream."""
    reasons = [str(task.exception()) for task in done if not task.cancelled() and task.exception() is not None]
    return "; ".join(reasons)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _clear_away(address: EngineAddress) -> None:
    """Remove the socket file of a server that is gone. Raises ConfigError if one is there, or if it is no socket."""
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {address}: the file is there and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error
    raise ConfigError(f"cannot listen on {address}: another process serves there already")
