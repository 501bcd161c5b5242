"""A front's connection to one engine server: the utterances on it, what the server says of itself, and reconnecting.

`messages` describes the protocol. A connection that is lost ends its utterances with `ReplicaLost`, and is opened
again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance, Voice
from telephony_tts.engines.remote.messages import (
    KEEP_ALIVE_MS,
    MAX_MESSAGE_BYTES,
    METHOD,
    PROTOCOL,
    Attach,
    Attached,
    BadMessage,
    CancelSpeech,
    EngineStatus,
    FindVoice,
    FromClient,
    KeepAlive,
    MoreText,
    Speak,
    SpeechEnded,
    SpokenAudio,
    TookAudio,
    VoiceFound,
    decode_from_server,
    encode,
)
from telephony_tts.engines.remote.outgoing import OutgoingFrames
from telephony_tts.engines.remote.pieces import MOST_NS, duration_ns
from telephony_tts.engines.remote.routing import ReplicaState
from telephony_tts.engines.remote.silence import CHECK_NS, PeerSilence
from telephony_tts.engines.remote.tls import TlsKeys
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import EngineError, ReplicaLost, TelephonyTTSError

_log = logs.get(__name__)

WINDOW_MS = 1_000
"""The server computes at most so much audio of an utterance beyond what its listener has taken."""
STALE_NS = NS_PER_S
"""A server that says nothing for so long takes no new utterances."""
LOST_NS = 3 * NS_PER_S
"""A server that says nothing for so long is given up, if no other replica can go on for it."""
MAX_FOUND = 256
"""So many voices are remembered that the server has and does not list. Some are made for one request."""
CONNECT_S = 3.0
CLOSE_S = 1.0
"""A cancelled utterance waits so long for the server to say that it holds nothing. Then the lease frees it."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.4)
"""Pauses before each new connection after failures in a row; the last one repeats. An engine that is back after a crash
is used so soon."""
REFUSED_S = 5.0
"""The pause behind a refusal that only an operator can end."""
MAX_UNSENT_BYTES = 4_000_000
"""A server that leaves so much unread is given up."""
GIVEN_HALF_LIFE_NS = 60 * NS_PER_S
_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
_HANDSHAKE, _WRONG_HOST = "handshake failed", "Hostname Verification Check failed"
"""In what gRPC says of TLS that cannot begin."""
_CLOSED = re.compile("[Cc]losed|[Rr]eset")
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)


class RemoteSpeech:
    """One utterance on a connection: what the server sent of it, and what its listener has taken."""

    def __init__(self, connection: EngineConnection, key: int) -> None:
        self._connection = connection
        self._key = key
        self._chunks: deque[Chunk] = deque()
        self._changed = asyncio.Event()
        self._buffered_ns = 0
        self._untold_ns = 0
        self._is_abandoned = False
        self.has_audio = False
        self.is_ended = False
        self.error: TelephonyTTSError | None = None

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end. To ask for it says that the one before was taken. Raises EngineError."""
        self._tell_taken()
        while not self._chunks:
            if self.error is not None:
                raise self.error
            if self.is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        length_ns = duration_ns(chunk)
        self._buffered_ns -= length_ns
        self._untold_ns += length_ns
        return chunk

    def _tell_taken(self) -> None:
        """Tell the server rarely: before it has to wait, and not for each chunk."""
        if not self.is_ended and self._untold_ns * 2 >= WINDOW_MS * NS_PER_MS:
            self._connection.send(TookAudio(self._key, self._untold_ns), soon=bool(self._chunks))
            self._untold_ns = 0

    async def close(self) -> None:
        """Cancel it, and return when the server holds nothing for it, or after `CLOSE_S`. Also if this task is
        cancelled meanwhile."""
        interrupted: asyncio.CancelledError | None = None
        if not self.is_ended:
            self._connection.send(CancelSpeech(self._key))
            loop = asyncio.get_running_loop()
            end_s = loop.time() + CLOSE_S
            while not self.is_ended and loop.time() < end_s:
                self._changed.clear()
                try:
                    async with asyncio.timeout_at(end_s):
                        await self._changed.wait()
                except TimeoutError:
                    break
                except asyncio.CancelledError as cancelled:
                    interrupted = cancelled
        if not self._is_abandoned:
            self._connection.forget(self._key)
        if interrupted is not None:
            raise interrupted

    def abandon(self) -> None:
        """Cancel it without waiting: the server may hang. It counts as an utterance until the server says its end."""
        if not self.is_ended:
            self._connection.send(CancelSpeech(self._key))
            self._is_abandoned = True
            self.end(None)

    def receive(self, chunk: Chunk) -> None:
        """Raises BadMessage if the server sends more than it may."""
        if self.is_ended:
            return
        self._buffered_ns += duration_ns(chunk)
        if self._buffered_ns > WINDOW_MS * NS_PER_MS + MOST_NS + max(NS_PER_S, duration_ns(chunk)):
            raise BadMessage(f"an utterance has {self._buffered_ns // NS_PER_MS} ms of audio that was not asked for")
        self.has_audio = True
        self._chunks.append(chunk)
        self._changed.set()

    def end(self, error: TelephonyTTSError | None) -> None:
        if not self.is_ended:
            self.is_ended, self.error = True, error
            self._changed.set()


class EngineConnection:
    """The connection to the engine server at `target`, which `run` keeps open.

    `on_change` is called when readiness or voices change. `versions_of` are the voices whose versions are wanted.
    """

    def __init__(
        self,
        target: str,
        engine_name: str,
        token: str | None,
        on_change: Callable[[], None],
        versions_of: Iterable[str],
        lost_with_peers_ns: int,
        tls: TlsKeys | None = None,
    ) -> None:
        self.target = target
        self._tls = None if tls is None or tls.ca is None or target.startswith("unix:") else tls
        """A Unix socket needs none: only this machine reaches it."""
        self.problem = "it was not reached yet"
        """Why it is not ready, for messages."""
        self.is_refused = False
        """The server refuses this client, for a reason that only an operator can change."""
        self.attached: Attached | None = None
        """What the server said when it accepted the connection; None before that."""
        self.has_listed = False
        """The server has listed its voices. It does so when its engine is loaded."""
        self.voices: tuple[Voice, ...] = ()
        """Those that it listed last. They stay while it restarts."""
        self.removable: frozenset[str] = frozenset()
        """Those of `voices` that can be removed."""
        self.is_leaving = False
        """It gets no new utterances."""
        self.has_peers = False
        """Other replicas can go on for this one, so that it is given up after `lost_with_peers_ns`."""
        self._lost_with_peers_ns = lost_with_peers_ns
        self._engine_name = engine_name
        self._token = token
        self._on_change = on_change
        self._versions_of = versions_of
        self._status: EngineStatus | None = None
        self._was_ready = False
        self._speeches: dict[int, RemoteSpeech] = {}
        self._keys = itertools.count(1)
        self._out = OutgoingFrames()
        self._silence = PeerSilence(0)
        self._counters: dict[str, float] = {}
        """As of the last status. They stay while the server is lost."""
        self._counted_before: dict[str, float] = {}
        """The counters of engine processes that were replaced by others here."""
        self._cost = 0.0
        """The load of one utterance, as of the last status in which there was one."""
        self._given_s = 0.0
        self._given_at_ns = 0
        self._found: dict[str, Voice] = {}
        """Voices that the server does not list, also while it is lost. If one is gone, the server refuses it. The one
        that was asked for last comes last."""
        self._asked: dict[int, str] = {}

    # ------------------------------------------------------------------ state

    @property
    def is_ready(self) -> bool:
        """Whether it takes utterances."""
        status = self._status
        if status is None or self.is_leaving:
            return False
        return status.stats.is_ready and self._silence.silent_ns < STALE_NS

    @property
    def n_own(self) -> int:
        return len(self._speeches)

    def stats(self) -> EngineStats:
        """The server's figures of the others, and this client's own utterances as they are now. Without the load, which
        `routing.total_load` has for all replicas together."""
        n_own = len(self._speeches)
        n_waiting = sum(not speech.has_audio for speech in self._speeches.values())
        status = self._status
        if status is None:
            return EngineStats(n_waiting, n_own - n_waiting, is_ready=False)
        theirs = status.stats
        n_others = max(0, theirs.n_queued + theirs.n_running - status.n_yours)
        n_others_queued = min(n_others, max(0, theirs.n_queued - status.n_yours_waiting))
        n_queued, n_running = n_waiting + n_others_queued, n_own - n_waiting + n_others - n_others_queued
        retry_after_ms = 0 if self.is_ready else theirs.retry_after_ms
        return EngineStats(n_queued, n_running, is_ready=self.is_ready, retry_after_ms=retry_after_ms)

    def state(self, now_ns: int) -> ReplicaState:
        """What the router needs to know."""
        stats, status = self.stats(), self._status
        return ReplicaState(
            self.target,
            self.is_ready,
            stats.n_queued + stats.n_running,
            self._cost,
            status.recent_voices if status is not None else (),
            self._given_s * 0.5 ** ((now_ns - self._given_at_ns) / GIVEN_HALF_LIFE_NS),
        )

    def counters(self) -> dict[str, float]:
        """They only grow, also when the server is lost or begins anew."""
        total = dict(self._counted_before)
        for name, value in self._counters.items():
            total[name] = total.get(name, 0.0) + value
        return total

    def version(self, voice: str) -> str | None:
        """The version of a voice, as of the last status. None if it is not known yet."""
        return self._status.versions.get(voice) if self._status is not None else None

    def find_voice(self, name: str) -> Voice | None:
        """A voice that the server has and does not list. The first question is sent to the server, and answered later.
        At most one question waits at a time."""
        if (found := self._found.pop(name, None)) is not None:
            self._found[name] = found
            return found
        if not self._asked and self._status is not None:
            key = next(self._keys)
            self._asked[key] = name
            self.send(FindVoice(key, name))
        return None

    # -------------------------------------------------------------- utterances

    def submit(self, utterance: Utterance, length_s: float) -> RemoteSpeech:
        """Send an utterance. `length_s`: about how long its speech is. With `more` the rest of the text follows by
        itself. Close the speech in any case. Raises ReplicaLost."""
        if not self.is_ready:
            raise self._lost()
        key, now_ns = next(self._keys), monotonic_ns()
        speech = self._speeches[key] = RemoteSpeech(self, key)
        deadline_in_ns = utterance.deadline_ns - now_ns if utterance.deadline_ns else None
        self.send(Speak(key, replace(utterance, more=None, insert=None), deadline_in_ns, utterance.more is not None))
        if utterance.more is not None:
            self._forward_text(key, utterance.more)
        self._given_s = self.state(now_ns).given_s + length_s
        self._given_at_ns = now_ns
        return speech

    def send(self, message: FromClient, *, soon: bool = False) -> None:
        """`soon`: it may wait for others for a moment."""
        self._out.push(encode(message), soon=soon)

    def forget(self, key: int) -> None:
        self._speeches.pop(key, None)

    def _forward_text(self, key: int, more: TextFeed) -> None:
        def push() -> None:
            speech = self._speeches.get(key)
            if speech is None or speech.is_ended:
                return
            text, is_last = more.take()
            self.send(MoreText(key, text, is_last))
            if not is_last:
                more.on_news(push)

        push()

    # ----------------------------------------------------------------- running

    async def run(self) -> None:
        """Keep the connection open until this task is cancelled."""
        n_failed = 0
        try:
            while True:
                try:
                    await self._connect()
                    self.problem = "it closed the connection"
                except Exception as failure:
                    self._note(failure)
                n_failed = 0 if self.attached is not None else n_failed + 1
                self._disconnected()
                pause_s = REFUSED_S if self.is_refused else BACKOFF_S[min(n_failed, len(BACKOFF_S) - 1)]
                await asyncio.sleep(pause_s)
        finally:
            self._disconnected(EngineError(f"{self._engine_name} was closed"))

    def _note(self, failure: Exception) -> None:
        """Say once why the server cannot be used."""
        self.is_refused = isinstance(failure, grpc.aio.AioRpcError) and (
            failure.code() in _REFUSALS or any(each in str(failure.details()) for each in (_HANDSHAKE, _WRONG_HOST))
        )
        before, self.problem = self.problem, self._what(failure)
        if self.attached is None and self.problem == before:
            return
        _log.warning("engine_server_lost", engine=self._engine_name, target=self.target, why=self.problem)
        if not isinstance(failure, grpc.aio.AioRpcError | BadMessage | TimeoutError | OSError):
            _log.exception("engine_connection_crashed", engine=self._engine_name, target=self.target)

    def _what(self, failure: Exception) -> str:
        """The failure for an operator."""
        if isinstance(failure, grpc.aio.AioRpcError):
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                return "another kind of server listens there"
            told = str(failure.details() or failure.code().name).strip()
            if _WRONG_HOST in told:
                return f"its certificate is for another host than {self.target}; check engines.remote.tls there"
            if _HANDSHAKE in told:
                why = told.rpartition(_HANDSHAKE)[2].strip(": ")
                return f"TLS cannot begin ({why}); check engines.remote.tls on both sides"
            if failure.code() is grpc.StatusCode.UNAVAILABLE and self.attached is None and _CLOSED.search(told):
                with_tls = "with TLS" if self._tls is not None else "without TLS"
                return f"it closed the connection, which was made {with_tls}; check engines.remote.tls on both sides"
            return told
        if isinstance(failure, BadMessage):
            return f"it sent what cannot be read: {failure}"
        return str(failure) or ("it does not answer" if isinstance(failure, TimeoutError) else type(failure).__name__)

    def _disconnected(self, error: EngineError | None = None) -> None:
        self._out.close()
        self._out = OutgoingFrames()
        self.attached = self._status = None
        self._asked.clear()
        speeches, self._speeches = self._speeches, {}
        for speech in speeches.values():
            speech.end(error or self._lost())
        self._notify()

    def _lost(self) -> ReplicaLost:
        return ReplicaLost(f"the speech engine at {self.target} is lost ({self.problem}); say it again in a moment")

    async def _connect(self) -> None:
        """Open the connection and use it until it ends. Raises what ended it."""
        async with self.channel() as channel:
            call = channel.stream_stream(METHOD)(metadata=self.metadata)
            self._out = OutgoingFrames()
            self._silence = PeerSilence(monotonic_ns())
            self.send(Attach(PROTOCOL, f"{socket.gethostname()}:{os.getpid()}", WINDOW_MS))
            loop = asyncio.get_running_loop()
            parts = [
                loop.create_task(work, name=f"{self._engine_name} {self.target} {what}")
                for work, what in (
                    (self._read(call), "reader"),
                    (self._write(call), "writer"),
                    (self._keep_alive(), "keep-alive"),
                )
            ]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # Closed by this side: let the server end the stream, with which gRPC's own task for it ends too.
                self._out.close()
                await asyncio.wait(parts[:1], timeout=CLOSE_S / 2)
                raise
            finally:
                call.cancel()
                for part in parts:
                    part.cancel()
                results = await asyncio.gather(*parts, return_exceptions=True)
            # The status of the stream says more than a write that failed because the stream had ended.
            failures = [result for result in results if isinstance(result, Exception)]
            failures.sort(key=lambda failure: not isinstance(failure, grpc.aio.AioRpcError | BadMessage))
            if failures:
                raise failures[0]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each gRPC call to the server brings."""
        return (("authorization", f"Bearer {self._token}"),) if self._token is not None else ()

    def channel(self) -> grpc.aio.Channel:
        """A new gRPC channel to the server, which the caller closes."""
        tls = self._tls
        if tls is None:
            return grpc.aio.insecure_channel(self.target, options=OPTIONS)
        return grpc.aio.secure_channel(
            self.target, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert), options=OPTIONS
        )

    async def _read(self, call: Any) -> None:
        async with asyncio.timeout(CONNECT_S):
            data = await call.read()
        while isinstance(data, bytes):
            self._silence.heard(monotonic_ns())
            for message in decode_from_server(data):
                self._receive(message)
            self._notify()
            data = await call.read()
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())

    async def _write(self, call: Any) -> None:
        with suppress(asyncio.InvalidStateError):  # the stream has ended; the reader says why
            while (data := await self._out.next_message()) is not None:
                await call.write(data)
            await call.done_writing()

    async def _keep_alive(self) -> None:
        """Send keep-alives, and raise TimeoutError when the server is silent for too long."""
        number, tick_ns = 0, 0
        while True:
            limit_ns = self._lost_with_peers_ns if self.has_peers else LOST_NS
            silent_ns = self._silence.check(monotonic_ns())
            if self.attached is not None and silent_ns >= limit_ns:
                raise TimeoutError(f"it said nothing for {limit_ns / NS_PER_S:g} s")
            if self._out.n_bytes > MAX_UNSENT_BYTES:
                raise TimeoutError("it reads nothing")
            self._notify()
            tick_ns += CHECK_NS
            if self.attached is not None and tick_ns >= KEEP_ALIVE_MS * NS_PER_MS:
                number, tick_ns = number + 1, 0
                self.send(KeepAlive(number, tuple(self._versions_of)))
            await asyncio.sleep(CHECK_NS / NS_PER_S)

    def _receive(self, message: object) -> None:
        """Raises BadMessage."""
        if self.attached is None and not isinstance(message, Attached):
            raise BadMessage("its first message is not `attached`")
        match message:
            case SpokenAudio(key, chunk):
                if (speech := self._speeches.get(key)) is not None:
                    speech.receive(chunk)
            case SpeechEnded(key, error):
                if (speech := self._speeches.pop(key, None)) is not None:
                    speech.end(error)
            case EngineStatus():
                self._take_status(message)
            case VoiceFound(key, voice):
                name = self._asked.pop(key, None)
                if name is not None and voice is not None:
                    if len(self._found) >= MAX_FOUND:
                        del self._found[next(iter(self._found))]
                    self._found[name] = replace(voice, engine=self._engine_name)
            case Attached():
                if self.attached is not None:
                    raise BadMessage("a second `attached`")
                if message.protocol != PROTOCOL:
                    raise BadMessage(f"it speaks protocol {message.protocol}, and this client speaks {PROTOCOL}")
                self.attached = message
                self.is_refused = False
                _log.info("engine_server_attached", engine=self._engine_name, target=self.target, to=message.engine)

    def _take_status(self, status: EngineStatus) -> None:
        stats = status.stats
        n_utterances = stats.n_queued + stats.n_running
        if stats.load and n_utterances:
            self._cost = stats.load / (n_utterances + 1)
        if status.voices is not None:
            self.has_listed = True
            before, self.voices = self.voices, tuple(replace(each, engine=self._engine_name) for each in status.voices)
            self.removable = frozenset(status.removable)
            for voice in (*before, *self.voices):
                self._found.pop(voice.name, None)
        for name, value in self._counters.items():
            if status.counters.get(name, 0.0) < value:  # a new process counts from 0
                self._counted_before[name] = self._counted_before.get(name, 0.0) + value
        self._counters = dict(status.counters)
        if not stats.is_ready:
            self.problem = "it is being stopped" if status.is_draining else "its engine is not ready"
        self._status = status

    def _notify(self) -> None:
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self._on_change()
        elif not self._was_ready:
            self._on_change()
