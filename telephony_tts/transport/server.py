"""The listening socket: which connections are let in, to which call they belong, and how the server drains.

    /v1/stream      a bot, with or without the caller's audio on the same socket (PROTOCOL.md)
    /media/NAME     the media leg of a door; its bot joins by call id or is dialled at `bot.url`
    paths of vendors   a bot in the protocol of another vendor (docs/protocol/)
    /healthz /readyz /metrics   plain HTTP on the same port; other HTTP requests go to the `HttpSide`
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from weakref import WeakSet

from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from telephony_tts.engines.api import spoken_languages
from telephony_tts.ops.keys.key import NO_KEY, Key
from telephony_tts.runtime import event_loop, logs, metrics
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.runtime.errors import Busy
from telephony_tts.session.admission import Admission
from telephony_tts.transport import activity, origins
from telephony_tts.transport.call import EngineCatalog
from telephony_tts.transport.call_address import call_in, call_of_http
from telephony_tts.transport.call_catalog import CallCatalog
from telephony_tts.transport.connection import CallConnection, DirectConnection
from telephony_tts.transport.door import Doors, Handshake, MediaSide, Vendor, only, open_dialect
from telephony_tts.transport.front_connection import FrontConnection
from telephony_tts.transport.fronts import (
    MAX_MOVES,
    ClaimFailed,
    FrontGone,
    FrontLoad,
    Fronts,
    FrontSilent,
    MovedSocket,
)
from telephony_tts.transport.incoming import BeforeTls, HttpSide, IncomingConnection, OnePerRound
from telephony_tts.transport.media_leg import serve_media
from telephony_tts.transport.registry import Registry
from telephony_tts.transport.relay import Relay
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stream_leg import serve_stream, suited
from telephony_tts.transport.unserved import UnservedConnections
from telephony_tts.transport.vendor_leg import MAX_MESSAGE_BYTES, keys_in, problem_of, serve_vendor
from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.query import parse_stream_query, token_in
from telephony_tts.wire.vendor import Refused

_log = logs.get(__name__)
_LAG_PERIOD_S = 0.1
_USE_IS_NEW_NS = 100_000_000
_CLOSE_TIMEOUT_S = 2.0
_OPEN_TIMEOUT_S = 10.0
_PAGE_TURN_NS = 2 * NS_PER_MS
"""How long a page of metrics is written before the loop runs other calls, whose frames are due."""
_LOGGED_CHARS = 200
"""How many characters of a refusal are logged: it may quote a header, whose length the peer chooses."""
_CLOSE_REASON = "the server is going away"
_MAX_SHOWN_CHARS = 100


class Server:
    """Serves calls until told to drain. While `ready` is False, /readyz is 503 and new calls are refused."""

    def __init__(self, settings: TransportSettings, catalog: EngineCatalog, fronts: Fronts | None = None) -> None:
        """`fronts`: the other processes of this server, if it has several. Then `http` is needed."""
        self.settings = settings
        self.http: HttpSide | None = None
        """Serves HTTP requests that are not for a WebSocket. Set it before `running`."""
        self.at_close: list[Callable[[], object]] = []
        """Called when all calls have ended: they cancel what HTTP requests would wait for."""
        self.catalog = catalog
        for engine in catalog.engines:
            metrics.know_engine(engine.name)
        doors = self.doors = settings.doors
        metrics.know_doors(doors.media_kinds, doors.bot_names)
        self.registry = Registry()
        self._fronts = self.registry.fronts = fronts
        if fronts is not None:
            self.registry.move, self.registry.changed = self._move_leg, self._publish
            settings.keys.characters.of_others = self._use_at_other_fronts
            settings.experiments.of_others = self._use_at_other_fronts
        self._others_use: list[Mapping[str, Mapping[str, float]]] = []
        self._others_asked_ns: int | None = None
        self._n_sockets = 0
        """WebSocket connections, which are counted for other fronts only."""
        self._relays: set[Relay] = set()
        """TLS connections whose calls other fronts have."""
        self.registry.max_calls = settings.limits.calls
        self.registry.max_requests = settings.vendors.http_streams
        self.admission = Admission(settings.limits.calls, settings.limits.max_frame_lateness_ms)
        self._limit = logs.LineLimit.outside_calls()
        self.outside_log = self._outside_log = _log.limited(self._limit)
        """The log of connections that are not part of a call."""
        self._ready = False
        self._at_once = False
        self._listener: WebSocketServer | None = None
        self._more_listeners: list[asyncio.Server] = []
        self._connections: WeakSet[CallConnection] = WeakSet()
        self._incoming: WeakSet[IncomingConnection] = WeakSet()
        self._begin_http = OnePerRound()
        self.unserved = UnservedConnections()
        self._drain_limit: asyncio.Timeout | None = None
        self._signatures = {
            door.media: door.media.signature(settings.section(door), self._is_new)
            for door in doors.all if door.media is not None
        }
        """What checks the handshakes of a door; None: a token is checked."""

    @property
    def port(self) -> int:
        """The port that is bound. The configured one may be 0."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def draining(self) -> bool:
        return self.registry.draining

    @property
    def ready(self) -> bool:
        return self._ready

    @ready.setter
    def ready(self, flag: bool) -> None:
        self._ready = flag
        self._publish()

    @property
    def is_ready(self) -> bool:
        """Whether calls can be taken: `ready` is set, and the default engine is neither stalled nor restarting."""
        return self.ready and self.catalog.is_ready

    @asynccontextmanager
    async def running(
        self, ready: bool = True, sockets: Sequence[socket.socket] = (), *, listens_at_once: bool = True
    ) -> AsyncIterator[Server]:
        """Listen while the context lasts, then drain and close. Raises OSError for a port in use.

        Unless `ready`, it only answers /healthz and /readyz until `ready` is set. With `sockets`, which are bound, it
        listens there and not at the address of the settings. Unless `listens_at_once`, it waits for `start_listening`.
        """
        settings = self.settings.server
        where: dict[str, Any] = {"host": settings.host, "port": settings.port, "reuse_address": True}
        if sockets:
            where = {"sock": sockets[0]}
        listener = self._listener = await serve(
            self._handle,
            **where,
            compression=None,
            process_request=self._answer,
            process_response=_with_headers_of_vendor,
            select_subprotocol=_any_subprotocol,
            # documented: "a wrapper or a subclass"
            create_connection=event_loop.or_refuse(  # type: ignore[arg-type]
                self._connection if self.settings.tls is None else self._before_tls
            ),
            max_size=settings.max_message_bytes,
            **self._timing,
            open_timeout=_OPEN_TIMEOUT_S,
            server_header=None,
            logger=self._library_log,
            start_serving=False,
            backlog=event_loop.ACCEPT_QUEUE,  # also with `sockets`: the loop calls `listen` again
        )
        more = self._more_listeners = [
            await asyncio.get_running_loop().create_server(
                event_loop.or_refuse(self._accepted if self.settings.tls is None else self._before_tls), sock=sock,
                start_serving=False, backlog=event_loop.ACCEPT_QUEUE,
            )
            for sock in sockets[1:]
        ]
        async with asyncio.TaskGroup() as group:
            self.registry.group = group
            lag = group.create_task(self._watch_lag(), name="loop lag")
            try:
                if listens_at_once:
                    await self.start_listening()
                self.ready = ready
                yield self
            finally:
                await self.drain()
                for connection in listener.connections:
                    assert isinstance(connection, CallConnection)
                    connection.end(1001, _CLOSE_REASON)
                for cancel in self.at_close:
                    cancel()
                if self.http is not None:
                    await self.http.close()
                listener.close()
                for each in more:
                    each.close()
                for relay in self._relays:
                    relay.abort()
                self.unserved.drop_all()
                for incoming in self._incoming:
                    if incoming.transport is not None:
                        incoming.transport.abort()
                for connection in self._connections:
                    # Otherwise the server would wait for a silent connection until its handshake times out.
                    if connection.protocol.state is CONNECTING and hasattr(connection, "transport"):
                        connection.transport.abort()
                await listener.wait_closed()
                lag.cancel()
                if self._limit.n_left_out:
                    self._outside_log.summary("lines_left_out", of="connections that are not part of a call")

    async def start_listening(self) -> None:
        """Accept connections from now on. Idempotent."""
        assert self._listener is not None
        await self._listener.start_serving()
        for each in self._more_listeners:
            await each.start_serving()

    @property
    def _timing(self) -> dict[str, Any]:
        """How long a connection may be silent, and how long it may take to close."""
        return {"ping_interval": self.settings.server.ping_interval_s, "close_timeout": _CLOSE_TIMEOUT_S}

    def _before_tls(self, *_library: object, **_timing: object) -> asyncio.Protocol:
        return BeforeTls(self._begin_tls)

    def _begin_tls(self, sock: socket.socket, host: str) -> None:
        """Serve a connection that was just accepted when its handshake is complete."""
        assert self.registry.group is not None
        self.unserved.add(sock, host, partial(_shut, sock))
        self.registry.group.create_task(self._shake_hands(sock), name="TLS handshake")

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            await self.adopt(sock)
        except (ssl.SSLError, ConnectionError):
            pass  # it was no handshake, it took too long, or the peer has gone
        except Exception:
            self._outside_log.exception("connection_not_taken")
        finally:
            self.unserved.remove(sock)

    @property
    def _library_log(self) -> logs.EventLogger:
        return logs.get("websockets.server").limited(self._limit)

    def _connection(self, *args: Any, moved: MovedSocket | None = None, **kwargs: Any) -> Any:
        """The protocol of a connection that was just accepted, or that another front gave to this one."""
        if self.http is None or (moved is not None and moved.stage == "leg"):
            return self._websocket(*args, moved=moved, **kwargs)
        route = None if self._fronts is None else self._route
        websocket = partial(self._websocket, *args, moved=moved, **kwargs)
        incoming = IncomingConnection(
            websocket, self.http, self._begin_http, _OPEN_TIMEOUT_S, self.unserved, protocol=args[0], route=route,
            moved=moved,
        )
        self._incoming.add(incoming)
        return incoming

    def _websocket(self, *args: Any, moved: MovedSocket | None = None, **kwargs: Any) -> CallConnection:
        connection: CallConnection
        if self._fronts is None:
            connection = CallConnection(*args, **kwargs)
        else:
            connection = FrontConnection(*args, moved=moved, claim=self._claim_named, **kwargs)
            self._n_sockets += 1
            connection.left.add_done_callback(self._socket_left)
            self._publish()
        connection.log, connection.unserved = self._outside_log, self.unserved
        self._connections.add(connection)
        return connection

    async def drain(self) -> None:
        """Refuse new calls. Live calls may go on for up to `drain_calls_s`, then finish speaking for up to `drain_s`.
        The rest is ended."""
        self.registry.draining = True
        self._publish()
        settings = self.settings.server
        if not self.registry.calls() and not self._relays:
            return
        n_calls, calls_s, speech_s = len(self.registry.calls()), settings.drain_calls_s, settings.drain_s
        _log.info("draining", calls=n_calls, calls_at_most_s=calls_s, at_most_s=speech_s)
        if settings.drain_calls_s and await self._is_empty_within(settings.drain_calls_s):
            return
        for call in self.registry.calls():
            call.drain(1001, _CLOSE_REASON)
        if await self._is_empty_within(settings.drain_s):
            return
        for call in self.registry.calls():
            call.cut_off("drain", 1001, _CLOSE_REASON)
        await self.registry.wait_empty()

    async def _is_empty_within(self, seconds: float) -> bool:
        """Wait until the last call has ended. False after `seconds`, or when `stop_at_once` is called."""
        try:
            async with asyncio.timeout(0 if self._at_once else seconds) as self._drain_limit:
                await self.registry.wait_empty()
                while self._relays:
                    await asyncio.wait([relay.over for relay in self._relays])
        except TimeoutError:
            return False
        finally:
            self._drain_limit = None  # another signal may still come
        return True

    def stop_at_once(self) -> None:
        """Stop waiting for live speech, now or when the drain begins."""
        self._at_once = True
        if self._drain_limit is not None and not self._drain_limit.expired():
            self._drain_limit.reschedule(asyncio.get_running_loop().time())

    # --------------------------------------------------------- other fronts

    def _publish(self) -> None:
        """Tell the other fronts what this one does. Raises nothing: no call may end because they are not told."""
        if self._fronts is not None:
            try:
                self._publish_to(self._fronts)
            except Exception:
                self._outside_log.exception("load_not_published")

    def _publish_to(self, fronts: Fronts) -> None:
        registry = self.registry
        fronts.publish_use(self._use())
        is_late = self.admission.lateness_ms(monotonic_ns()) > self.settings.limits.max_frame_lateness_ms
        fronts.publish(
            FrontLoad(
                n_calls=registry.n_calls,
                n_requests=registry.n_requests,
                n_arriving=registry.n_arriving,
                n_sockets=self._n_sockets,
                awaits_media=registry.awaits_media,
                is_able=self.is_ready and not self.draining and not is_late,
                is_draining=self.draining,
            )
        )

    def _use(self) -> dict[str, Mapping[str, float]]:
        """What the named keys use here, and what the calls of each arm were like, for the other fronts."""
        characters = self.settings.keys.characters
        chars = dict(characters.today())
        of_keys = {"calls": self.registry.calls_by_key(), "chars": chars, "day": {"day": characters.day}}
        return {**of_keys, **self.settings.experiments.counts()}

    def _use_at_other_fronts(self) -> list[Mapping[str, Mapping[str, float]]]:
        """The same of the other fronts, a little old: it is asked for with every piece of text."""
        assert self._fronts is not None
        now_ns = monotonic_ns()
        if self._others_asked_ns is None or now_ns - self._others_asked_ns > _USE_IS_NEW_NS:
            self._others_use, self._others_asked_ns = self._fronts.use_of_others(), now_ns
        return self._others_use

    def _socket_left(self, _left: object) -> None:
        self._n_sockets -= 1
        self._publish()

    def _route(self, incoming: IncomingConnection, head: RequestHead) -> bool:
        """Decide which front serves a request. True if it is another one: the connection is being moved there."""
        fronts, group = self._fronts, self.registry.group
        assert fronts is not None and group is not None
        if not incoming.is_websocket and not incoming.is_http:
            return False
        n_moves = 0 if incoming.moved is None else incoming.moved.n_moves
        to, why, is_here = None, "call", False
        call = call_in(head, self.doors) if incoming.is_websocket else call_of_http(head.target)
        may_find = call is not None and n_moves < MAX_MOVES
        try:
            if call is not None and may_find:
                owner = fronts.owner(call)
                is_here = owner == fronts.name
                to = None if is_here else owner
            # To spread TLS connections would mean to copy every byte of them to the other front.
            may_leave = n_moves == 0 and not incoming.stays and not incoming.is_tls and not self.draining
            if to is None and not is_here and may_leave:
                to, why = fronts.better(), "load"
            if to is None and call is not None and may_find and incoming.is_http:
                # No other front begins the call while this one reads the body.
                to, why = fronts.claim(call), "call"
                if to is None:
                    incoming.until_answered(partial(fronts.release, call))
        except ClaimFailed as error:
            self._outside_log.error("claim_failed", call=call, why=error.message)
        if to is None:
            return False
        incoming.stop_reading(may_stay=why == "load")
        group.create_task(self._move(incoming, to, why), name="move connection")
        return True

    def _claim_named(self, connection: FrontConnection, head: RequestHead) -> None:
        """Claim the call that an address names, until the connection is closed: then no other front begins it."""
        call = call_in(head, self.doors)
        if call is None:
            return
        try:
            self.registry.claim(call, connection)  # if another front was quicker, the leg is moved there later
        except ClaimFailed as error:
            connection.claim_problem = error.message
            self._outside_log.error("claim_failed", call=call, why=error.message)

    async def _move_leg(self, connection: DirectConnection, to: str) -> None:
        """Move a leg to the front that has its call. Raises ClaimFailed if that is not possible."""
        if not isinstance(connection, FrontConnection):
            # A connection that this server has opened.
            raise ClaimFailed("another process has the call; name it in the address: …?dial=URL&call=ID")
        if (problem := connection.problem()) is not None:
            raise ClaimFailed(f"another process has the call, and the connection cannot be moved: {problem}")
        await self._move(connection, to, "start")

    async def _move(self, connection: IncomingConnection | FrontConnection, to: str, why: str) -> None:
        """Move a connection to another front. Raises nothing: what fails is logged, and the peer's socket closed."""
        assert self._fronts is not None
        try:
            taken = await connection.take_away(self._keep_relay, self.settings.server.slow_reader_s)
            if taken is None:
                return
            sock, moved = taken
            try:
                await self._fronts.move(to, sock, moved, may_stay=why == "load")
                metrics.MOVED.labels(why=why).inc()
            except FrontGone as gone:
                event = "front_silent" if isinstance(gone, FrontSilent) else "front_gone"
                self._outside_log.warning(event, front=to, why="a connection that was moved to it stays here")
                await self.adopt(sock, moved)
            except BaseException:
                sock.close()
                raise
        except (OSError, TimeoutError) as error:
            self._outside_log.error("move_failed", front=to, why=str(error) or type(error).__name__)
        except Exception:
            self._outside_log.exception("move_failed", front=to)

    def _keep_relay(self, relay: Relay) -> None:
        self._relays.add(relay)
        relay.over.add_done_callback(lambda _over: self._relays.discard(relay))

    async def adopt(self, sock: socket.socket, moved: MovedSocket | None = None) -> None:
        """Go on with a connection of another front, or with one that is new. asyncio would give the handshake of TLS a
        minute. Raises OSError if its socket cannot be used, or no handshake comes; it is closed then."""
        times_s = {"ssl_handshake_timeout": _OPEN_TIMEOUT_S, "ssl_shutdown_timeout": _CLOSE_TIMEOUT_S}
        tls: dict[str, Any] = {"ssl": self.settings.tls, **times_s} if moved is None else {}
        made: list[asyncio.Protocol] = []

        def accepted() -> asyncio.Protocol:
            made.append(self._accepted(moved))
            return made[0]

        try:
            sock.setblocking(False)
            with event_loop.watched(sock):
                await asyncio.get_running_loop().connect_accepted_socket(accepted, sock, **tls)
        except BaseException:
            sock.close()
            for connection in made:
                if isinstance(connection, CallConnection):
                    connection.left.cancel()  # it may never have been told of its socket
            raise

    def _accepted(self, moved: MovedSocket | None = None) -> asyncio.Protocol:
        """The protocol of a connection that the library's own listener has not accepted, made as the library does."""
        assert self._listener is not None
        protocol = ServerProtocol(
            select_subprotocol=_any_subprotocol,
            state=OPEN if moved is not None and moved.stage == "leg" else CONNECTING,
            max_size=self.settings.server.max_message_bytes,
            logger=self._library_log,
        )
        connection: asyncio.Protocol = self._connection(protocol, self._listener, moved=moved, **self._timing)
        return connection

    def _is_new(self, nonce: str) -> bool:
        """Whether no other process has had this nonce. It is remembered. Without other processes all are new."""
        if self._fronts is None:
            return True
        try:
            return self._fronts.is_new(nonce)
        except ClaimFailed as error:
            self._outside_log.error("nonce_not_kept", why=error.message)
            return False  # a replay could not be told from it

    # ------------------------------------------------------------ handshake

    def _answer(
        self, connection: ServerConnection, request: Request
    ) -> Response | Coroutine[Any, Any, Response] | None:
        """Plain HTTP, or a refusal before the upgrade; None lets the WebSocket open."""
        assert isinstance(connection, CallConnection)
        if isinstance(connection, FrontConnection) and connection.is_adopted:
            self._read_again(connection, request)
            return None
        if request.path.partition("?")[0] == "/metrics":
            return self._answer_metrics(connection, request)
        return self._for_method(request, self._answer_path(connection, request))

    def _for_method(self, request: Request, response: Response | None) -> Response | None:
        """The response without its body if only the head is wanted."""
        if request.method == "HEAD":
            if response is None:
                response = _respond(HTTPStatus.UPGRADE_REQUIRED, "a WebSocket begins with GET\n")
                response.headers["Upgrade"] = "websocket"
            response.body = b""
        return response

    def _read_again(self, connection: FrontConnection, request: Request) -> None:
        """Another front has admitted the connection. Only the options are read from its request once more."""
        connection.trusted = True
        connection.may_begin = connection.moved_may_begin
        # The key may have been removed meanwhile, which does not end a connection. Without its name it had no limits.
        of_request = self.key_of(request.path, request.headers)
        connection.key = self.settings.keys.named(connection.moved_key) or of_request or Key(connection.moved_key)
        media, vendor = self.doors.media_of(request.path), self.doors.vendor_of(request.path)
        if request.path.partition("?")[0] == "/v1/stream":
            connection.options = suited(self.settings.speech, parse_stream_query(request.path), connection.key)
            connection.lexicons = self.lexicons_for(request.path, request.headers, connection.key)
        elif media is not None:
            connection.options = parse_stream_query(request.path) if media.reads_options else None
        elif vendor is not None:
            dialect = open_dialect(vendor, request.path)
            assert not isinstance(dialect, Refused), "the other front would have refused it"
            connection.dialect = dialect
            connection.lexicons = self.lexicons_for(request.path, request.headers, connection.key)
            self._let_long_texts_in(connection)

    def _answer_path(self, connection: CallConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        plain = {"/healthz": self._healthz, "/readyz": self._readyz}.get(path)
        media, vendor = self.doors.media_of(request.path), self.doors.vendor_of(request.path)
        for_programs = path == "/v1/stream" or media is not None or vendor is not None
        if for_programs and (refusal := self._refuse_page(connection, request)):
            return refusal
        if plain is not None:
            return plain(request)
        if path == "/v1/stream":
            return self._admit_stream(connection, request)
        if media is not None:
            return self._admit_media(connection, request, media)
        if vendor is not None:
            return self._admit_vendor(connection, request, vendor)
        known = ", ".join(("/v1/stream", *self.doors.media))
        return _respond(HTTPStatus.NOT_FOUND, f"no such path; WebSockets are served at {known}\n")

    def _admit_stream(self, connection: CallConnection, request: Request) -> Response | None:
        key = self.key_of(request.path, request.headers)
        if key is None:
            return self._refuse("unauthorized", HTTPStatus.UNAUTHORIZED, "a token is needed: Authorization: Bearer …\n")
        connection.key = key
        options = connection.options = suited(self.settings.speech, parse_stream_query(request.path), key)
        if isinstance(options, Invalid):
            # Most clients show only the status code of an HTTP refusal, so the problem is reported after the upgrade.
            return None
        connection.lexicons = self.lexicons_for(request.path, request.headers, connection.key)
        # A bot that joins a live call adds no load.
        joins = options.call is not None and self.registry.find(options.call) is not None
        return self._admit(connection, joins)

    def _admit_media(self, connection: CallConnection, request: Request, media: MediaSide) -> Response | None:
        """Let a media leg in that signs its handshake, or that has a token, or that may bring the token later."""
        if media.reads_options:
            options = connection.options = parse_stream_query(request.path)
            if isinstance(options, Invalid):
                return self._refuse("bad_request", HTTPStatus.BAD_REQUEST, f"{options.message}\n")
        key = self.key_of(request.path, request.headers)
        check = self._signatures[media]
        handshake = Handshake(request.path, request.headers, self.settings.server.public_url)
        bearer = (_bearer(request.headers) or b"").decode("latin-1")
        flaw = None
        if check is not None:
            flaw = check.flaw(handshake, bearer)
        elif key is None and not media.token_in_start:
            flaw = "a token is needed: Authorization: Bearer …, or as the password of Basic"
        if flaw is not None:
            return self._refuse("unauthorized", HTTPStatus.UNAUTHORIZED, f"{flaw}\n")
        if (flaw := media.flaw_of_target(request.path)) is not None:
            return self._refuse("bad_request", HTTPStatus.BAD_REQUEST, f"{flaw}\n")
        connection.trusted = check is not None or key is not None
        connection.key = key or NO_KEY
        # Its call may be known only at its `start`. It may be a call in which a bot waits.
        refusal = self._admit_leg(connection)
        if refusal is None and check is not None and (flaw := check.use(handshake, bearer)) is not None:
            return self._refuse("unauthorized", HTTPStatus.UNAUTHORIZED, f"{flaw}\n")
        return refusal

    def _admit_vendor(self, connection: CallConnection, request: Request, vendor: Vendor) -> Response | None:
        dialect = open_dialect(vendor, request.path)
        if isinstance(dialect, Refused):
            return self._refuse_vendor("bad_request", dialect)
        key = self.key_of(request.path, request.headers)
        connection.trusted, connection.key = key is not None, key or NO_KEY
        if not connection.trusted and not vendor.key_may_follow:
            message = "the API key is wrong or missing"
            return self._refuse_vendor("unauthorized", vendor.refuse(401, "INVALID_AUTH", message))
        # Behind the key: the refusal of an unknown voice names those that there are, and a key may have voices of its
        # own. A client whose key follows is told when its call begins.
        seen = CallCatalog(self.catalog, self.settings.owners) if connection.trusted else None
        if seen is not None:
            seen.use(connection.key)
        if (problem := problem_of(dialect, vendor, self.settings, seen)) is not None:
            return self._refuse_vendor("bad_request", problem)
        connection.dialect = dialect
        self._let_long_texts_in(connection)
        connection.lexicons = self.lexicons_for(request.path, request.headers, connection.key)
        call = dialect.options.call
        refusal = self._admit(connection, call is not None and self.registry.find(call) is not None)
        if refusal is None:
            return None
        assert refusal.body is not None
        refused = self._refuse_vendor("", vendor.refuse(refusal.status_code, "BUSY", refusal.body.decode().strip()))
        refused.headers["Retry-After"] = refusal.headers["Retry-After"]
        return refused

    def _let_long_texts_in(self, connection: CallConnection) -> None:
        """Accept messages that have a text of the vendors' own limits."""
        connection.protocol.max_message_size = max(MAX_MESSAGE_BYTES, self.settings.server.max_message_bytes)

    def _refuse_vendor(self, reason: str, refused: Refused) -> Response:
        """The vendor's own refusal. An empty `reason` was counted before."""
        if reason:
            metrics.REFUSED.labels(reason=reason).inc()
            self._outside_log.info("refused", reason=reason, why=refused.body[:_LOGGED_CHARS].decode(errors="replace"))
        response = _response(HTTPStatus(refused.status), refused.content_type, refused.body)
        for name, value in refused.headers:
            response.headers[name] = value
        return response

    def no_room(self) -> tuple[str, str, int] | None:
        """Why no call can begin now: a reason for the metrics, a text, and when to come back in ms. None if one can."""
        if self.draining:
            return "draining", "draining: no new calls", 5000
        if not self.is_ready:
            return "starting", "starting: no calls yet", self.catalog.retry_after_ms or 5000
        try:
            engines = self.catalog.stats().values()
            n_queued = sum(stats.n_queued for stats in engines)
            n_calls = self.registry.n_calls_of_all + self.registry.n_arriving_of_all
            self.admission.check(n_calls, n_queued, monotonic_ns(), max(stats.load for stats in engines))
        except Busy as busy:
            return "busy", f"busy: {busy.message}", busy.retry_after_ms
        return None

    def _admit(self, connection: CallConnection, joins: bool) -> Response | None:
        """Check whether there is room for one more call. A connection that joins a call needs no room."""
        refusal = self.no_room()
        if refusal is None and (why := self.registry.key_refusal(connection.key)) is not None:
            refusal = "key_limit", why, 5000
        if refusal is None and isinstance(connection, FrontConnection) and connection.claim_problem is not None:
            refusal = "busy", f"busy: {connection.claim_problem}", 5000
        connection.may_begin = refusal is None
        if refusal is None or joins:
            return None
        reason, why, retry_ms = refusal
        status = HTTPStatus.TOO_MANY_REQUESTS if reason == "key_limit" else HTTPStatus.SERVICE_UNAVAILABLE
        response = self._refuse(reason, status, f"{why}\n")
        response.headers["Retry-After"] = str(-(-retry_ms // 1000))
        return response

    def _admit_leg(self, connection: CallConnection) -> Response | None:
        """The same for a media leg, if its key may be one."""
        if (why := connection.key.media_refusal) is not None:
            return self._refuse("unauthorized", HTTPStatus.FORBIDDEN, f"{why}\n")
        return self._admit(connection, self.registry.awaits_media_of_all)

    def _refuse_page(self, connection: CallConnection, request: Request) -> Response | None:
        """A refusal if the request comes from a web page that may not use the server.

        Most programs send no Origin. Others send the host that they dial, which a proxy may hide. So a token in
        `Authorization: Bearer` counts first: no page can set that header on a WebSocket.
        """
        message = self.origin_refusal(connection.own_host, request.headers)
        return None if message is None else self._refuse("origin", HTTPStatus.FORBIDDEN, message)

    def origin_refusal(self, here: str, headers: Headers) -> str | None:
        """Why a request may not use the server, if it comes from a web page that may not. `here` is our own address."""
        if "Origin" not in headers:
            return None
        settings, keys = self.settings.server, self.settings.keys
        if not keys.is_open and (bearer := _bearer(headers)) is not None and keys.find(bearer) is not None:
            return None
        origin, host = only(headers, "Origin"), only(headers, "Host")
        listed, public_url, has_tokens = settings.origins, settings.public_url, not keys.is_open
        if origins.is_allowed(origin, host, here, listed, public_url, has_tokens=has_tokens):
            return None
        shown = origin[:_MAX_SHOWN_CHARS]
        return f"web pages of {shown!r} may not use this server; those that may are listed in server.origins\n"

    def rebinding_refusal(self, here: str, headers: Headers) -> str | None:
        """Why an HTTP request without `Origin` is refused: it may come from a page that uses DNS rebinding. A server
        with tokens needs no such check, because the page has none. `here` is our own address."""
        settings = self.settings.server
        host = only(headers, "Host")
        if "Origin" in headers or not self.settings.keys.is_open:
            return None
        if not origins.may_be_rebound(host, here, settings.origins, settings.public_url):
            return None
        return (
            f"requests for the host {host[:_MAX_SHOWN_CHARS]!r} are not served without a token: a web page may have "
            "sent them; set server.tokens, or name the host in server.public_url\n"
        )

    def _authorised(self, request: Request) -> bool:
        return self.key_of(request.path, request.headers) is not None

    def key_of(self, target: str, headers: Headers) -> Key | None:
        """The key of a request, in any of the places where clients put a token. None if it has none."""
        found = (self.settings.keys.find(token) for token in _keys_of(target, headers, self.doors))
        return next((key for key in found if key is not None), None)

    def supervises(self, key: Key) -> bool:
        """Whether a request with this key may listen to calls and end them. Without keys everyone may."""
        return self.settings.keys.is_open or key.supervises

    def lexicons_for(self, target: str, headers: Headers, key: Key) -> tuple[str, ...]:
        """The names of the lexicons for the token of a request, which is that of `key`."""
        return self.settings.lexicons_for(_keys_of(target, headers, self.doors), key)

    def _refuse(self, reason: str, status: HTTPStatus, message: str) -> Response:
        metrics.REFUSED.labels(reason=reason).inc()
        self._outside_log.info("refused", reason=reason, why=message.strip()[:_LOGGED_CHARS])
        response = _respond(status, message)
        if status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    # ----------------------------------------------------------- plain HTTP

    def _healthz(self, _request: Request) -> Response:
        return _respond(HTTPStatus.OK, "ok\n")

    def _readyz(self, _request: Request) -> Response:
        if self.draining:
            return _respond(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
        # A connection is moved to a front that can take it, except one with TLS.
        elsewhere = self._fronts is not None and self.settings.tls is None and self._fronts.others().is_able
        if self.is_ready or elsewhere:
            languages = spoken_languages(voice for engine in self.catalog.engines for voice in engine.voices)
            return _respond(HTTPStatus.OK, f"ready\nspeaks {', '.join(languages)}\n")
        return _respond(HTTPStatus.SERVICE_UNAVAILABLE, "starting\n")

    async def _answer_metrics(self, connection: CallConnection, request: Request) -> Response:
        """The metrics, of all fronts together if there are several.

        Exemplars name calls, so only a scraper that may use the server gets them: it has a token, or there are none.
        """
        response = self._refuse_page(connection, request) or self._refuse_metrics(request)
        if response is None:
            accept = only(request.headers, "Accept") if self._authorised(request) else ""
            if self._fronts is None:
                self.refresh_gauges()
                families: metrics.MetricFamilies = iter(metrics.REGISTRY.collect())
            else:
                families = await self._fronts.metrics(self.refresh_gauges)
            pieces, since_ns = [], monotonic_ns()
            for piece in metrics.encode(families, accept):
                pieces.append(piece)
                if monotonic_ns() - since_ns > _PAGE_TURN_NS:
                    await asyncio.sleep(0)
                    since_ns = monotonic_ns()
            response = _response(HTTPStatus.OK, metrics.content_type(accept), b"".join(pieces))
        answer = self._for_method(request, response)
        assert answer is not None
        return answer

    def _refuse_metrics(self, request: Request) -> Response | None:
        if self.settings.server.metrics_without_token or self._authorised(request):
            return None
        return _respond(HTTPStatus.UNAUTHORIZED, "a token is needed\n")

    def refresh_gauges(self) -> None:
        """Set the metrics that are read from the engines and the settings."""
        metrics.CALLS_LIMIT.labels("calls").set(self.settings.limits.calls)
        metrics.CALLS_LIMIT.labels("requests").set(self.settings.vendors.http_streams)
        metrics.FRONTS_READY.set(self.is_ready and not self.draining)
        for name, stats in self.catalog.stats().items():
            metrics.ENGINE_REPLICAS.labels(name, "known").set(stats.n_replicas)
            n_ready = stats.n_replicas - stats.n_lost if stats.is_ready else 0
            metrics.ENGINE_REPLICAS.labels(name, "ready").set(n_ready)
            metrics.ENGINE_QUEUED.labels(engine=name).set(stats.n_queued)
            metrics.ENGINE_RUNNING.labels(engine=name).set(stats.n_running)
            metrics.ENGINE_LOAD.labels(engine=name).set(stats.load)
        for engine in self.catalog.engines:
            work = engine.counters()
            metrics.ENGINE_RESTARTS.labels(engine.name).set(work.get("restarts", 0))
            for what, value in work.items():
                metrics.ENGINE_WORK.labels(engine=engine.name, what=what).set(value)
        if (failover := self.catalog.failover) is not None:
            for name, is_open in failover.open_circuits(monotonic_ns()).items():
                metrics.ENGINE_CIRCUIT_OPEN.labels(engine=name).set(is_open)

    # ------------------------------------------------------------- activity

    def activity(self) -> dict[str, Any]:
        """What this process does now. See `activity.activity`."""
        return activity.activity(self.registry, self.catalog, monotonic_ns())

    async def activity_of_all(self) -> dict[str, Any]:
        """What all processes of the server do now. See `activity.added`."""
        own, others, shared = self.activity(), list[dict[str, Any] | None](), frozenset[str]()
        if self._fronts is not None:
            others, shared = await self._fronts.activities(), self._fronts.shared_engines
        return activity.added(own, others, shared)

    # -------------------------------------------------------------- sockets

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, CallConnection) and connection.request is not None
        connection.watch_slow_reader(self.settings.server.slow_reader_s)
        if connection.request.path.startswith("/v1/stream"):
            await serve_stream(connection, self.settings, self.registry, self.catalog)
        elif connection.dialect is not None:
            vendor = self.doors.vendor_of(connection.target)
            assert vendor is not None
            await serve_vendor(vendor, connection.dialect, connection, self.settings, self.registry, self.catalog)
        else:
            media = self.doors.media_of(connection.target)
            assert media is not None
            if media.control is not None:
                controlling = media.control(connection, self.settings, self.registry, self.catalog)
                if controlling is not None:
                    await controlling
                    return
            leg = media.make(connection, self.settings)
            await serve_media(
                leg, self.settings, self.registry, self.catalog, trusted=connection.trusted,
                may_begin=connection.may_begin, key=connection.key,
            )

    async def _watch_lag(self) -> None:
        """Measure how late the loop runs a timer: it would send a frame just as late. Lateness while engines load does
        not count, because it is over when calls begin."""
        loop = asyncio.get_running_loop()
        while True:
            asked, could_speak = loop.time(), self.ready
            await asyncio.sleep(_LAG_PERIOD_S)
            lag_ms = max(0.0, (loop.time() - asked - _LAG_PERIOD_S) * 1000)
            metrics.EVENT_LOOP_LAG_MS.observe(lag_ms)
            if could_speak:
                self.admission.observe_lateness(lag_ms, monotonic_ns())
            self._publish()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _bearer(headers: Headers) -> bytes | None:
    """The token of `Authorization: Bearer` or `Token`; None if the request has no such header."""
    scheme, _, credential = only(headers, "Authorization").partition(" ")
    if scheme.lower() not in ("bearer", "token"):
        return None
    # Headers are bytes, which the library decodes as Latin-1.
    return credential.strip().encode("iso-8859-1", "surrogateescape")


def _keys_of(target: str, headers: Headers, doors: Doors) -> Iterator[bytes]:
    """What a request has in the places where clients put a token, at least one; b"" for none."""
    given = _bearer(headers)
    if given is None:
        scheme, _, credential = only(headers, "Authorization").partition(" ")
        given = _password(credential) if scheme.lower() == "basic" else (token_in(target) or "").encode()
    yield given
    for key in keys_in(target, headers, doors):
        yield key.encode()


def _password(credential: str) -> bytes:
    """The password of HTTP's Basic scheme (RFC 7617). The user name is ignored. Empty if there is no password."""
    try:
        return base64.b64decode(credential, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _any_subprotocol(_connection: object, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Accept the first subprotocol that is offered, because some clients insist on theirs. None is required."""
    return offered[0] if offered else None


def _with_headers_of_vendor(connection: ServerConnection, _request: Request, response: Response) -> None:
    """Add the headers that a vendor's client expects behind its handshake."""
    assert isinstance(connection, CallConnection)
    if connection.dialect is not None and response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        for name, value in connection.dialect.headers():
            response.headers[name] = value


def _respond(status: HTTPStatus, text: str) -> Response:
    return _response(status, "text/plain; charset=utf-8", text.encode())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> Response:
    headers = Headers({"Content-Type": content_type, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
