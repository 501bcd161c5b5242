"""A Stasis application: takes calls of Asterisk, connects them to the server, and removes what it created.

It keeps a connection to Asterisk's ARI. Calls survive a lost connection if their channels do. A fault, a lost
connection or a killed bridge may leave channels and bridges of ended calls in Asterisk. They are found by their names
and removed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from sip_bridge import metrics
from sip_bridge.ari import messages as a
from sip_bridge.ari.call import AriCall, OriginateRequest
from sip_bridge.ari.config import AriConfig
from sip_bridge.ari.connection import AriConnection, AriLost, AriRefused, connect_ari
from sip_bridge.ari.leftovers import Leftovers, bridges_of, channels_of, rtp_end_of
from sip_bridge.config import TtsServerConfig
from sip_bridge.reconnect import keep_connected
from sip_bridge.rtp.media import is_port_free
from telephony_tts.runtime import logs

_log = logs.get(__name__)
_TIDY_S = 10.0
_LOOK_S = 1.0

Begin = Callable[[AriCall], None]
"""Start a task for the call's `run`."""


class NewCallRefused(Exception):
    """There is no room or no name for a new call; the message says which."""


class AriApplication:
    """`run` takes calls until it is cancelled; `begin` gets each call."""

    def __init__(self, ari: AriConfig, server: TtsServerConfig, begin: Begin, limit: logs.LineLimit) -> None:
        """`limit` bounds the log lines of callers that are refused."""
        self._ari = ari
        self._server = server
        self._begin = begin
        self._connection: AriConnection | None = None
        self._why_lost = "not connected yet"
        self._calls_timeout: asyncio.TimerHandle | None = None
        """Runs while the connection is lost, and ends the calls when it fires."""
        self._live: set[AriCall] = set()
        self._by_channel: dict[str, AriCall] = {}
        self._n_begun = 0
        self._instance = f"{ari.app}-{secrets.token_hex(4)}"
        self._leftovers = Leftovers(ari.app, self._instance)
        self._log = _log.limited(limit)
        self.draining = False
        """New calls are refused and go on in their dialplan."""

    def why_not_ready(self) -> str | None:
        if self._connection is None:
            return f"asterisk: {self._why_lost}"
        return f"asterisk: {self._why_replaced}" if self._connection.replaced.done() else None

    @property
    def _why_replaced(self) -> str:
        return f"another client has taken the application {self._ari.app}: each needs an ari.app of its own"

    # ---------------------------------------------------------------- the connection

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled. Raises nothing else."""
        try:
            await keep_connected(lambda: connect_ari(self._ari), self._stay_connected, self._not_connected)
        except asyncio.CancelledError:
            self._keep_calls()
            raise

    def _not_connected(self, why: str) -> None:
        self._is_lost(why)
        metrics.ARI_CONNECT_RETRIES.inc()

    async def _stay_connected(self, connected: tuple[AriConnection, str]) -> None:
        """Serve until the connection is lost. Its calls then have `lost_timeout_s` until the next connection."""
        connection, version = connected
        self._keep_calls()
        _log.info("asterisk_connected", version=version, app=self._ari.app)
        try:
            await self._serve(connection)
            if connection.replaced.done():
                await self._stay_disconnected()
        except Exception:  # a fault of ours, after which `run` is started again
            self._await_next(connection.why_left)
            raise
        self._await_next(connection.why_left)

    def _await_next(self, why: str) -> None:
        self._is_lost(why)
        for call in self._live:
            call.on_event(a.AriHold(call.caller.id, False))  # its end may come without an event
        loop = asyncio.get_running_loop()
        self._calls_timeout = loop.call_later(self._ari.lost_timeout_s, self._end_lost_calls)

    def _keep_calls(self) -> None:
        if self._calls_timeout is not None:
            self._calls_timeout.cancel()
            self._calls_timeout = None

    async def _serve(self, connection: AriConnection) -> None:
        """Until the connection is lost."""
        tidying: asyncio.Task[None] | None = None
        try:
            self._connection = connection
            self._why_lost = ""
            metrics.ARI_CONNECTED.set(1)
            connection.listen(self._on_event)
            await self._choose_events(connection)
            tidying = asyncio.get_running_loop().create_task(self._tidy(connection))
            await asyncio.wait((connection.left,))
        finally:
            self._connection = None
            metrics.ARI_CONNECTED.set(0)
            if tidying is not None:
                tidying.cancel()
                await asyncio.wait((tidying,))
            await connection.close()

    async def _choose_events(self, connection: AriConnection) -> None:
        """Ask for the used events only, some four of thirty per call. Answers to requests pass the same filter."""
        wanted = {"allowed": [{"type": kind} for kind in (*a.EVENTS, "RESTResponse", "ApplicationReplaced")]}
        with suppress(AriRefused, AriLost):
            await connection.request("PUT", "applications", self._ari.app, "eventFilter", body=wanted)

    async def _stay_disconnected(self) -> None:
        """End the calls and do not reconnect: two clients that take the application in turns would lose calls."""
        self._is_lost(self._why_replaced)
        for call in list(self._live):
            call.end("asterisk_lost")
        await asyncio.Event().wait()

    def _is_lost(self, why: str) -> None:
        if why != self._why_lost:
            self._why_lost = why
            _log.warning("asterisk_lost", why=why, calls=len(self._live))

    def _end_lost_calls(self) -> None:
        for call in list(self._live):
            call.end("asterisk_lost", f"Asterisk has been unreachable for {self._ari.lost_timeout_s:g} s")

    # --------------------------------------------------------------------- the calls

    def _ask(self) -> AriConnection:
        if self._connection is None:
            raise AriLost(f"Asterisk is not connected: {self._why_lost}")
        return self._connection

    def _on_event(self, event: a.ChannelEvent) -> None:
        channel_id = event.channel.id if isinstance(event, a.ChannelEntered) else event.channel_id
        if isinstance(event, a.ChannelEntered) and (moved := self._by_channel.get(event.replaces)) is not None:
            # Its caller has transferred the call. What the old channel does now is its own matter.
            del self._by_channel[event.replaces]
            self._by_channel[channel_id] = moved
        call = self._by_channel.get(channel_id)
        # A channel may leave and come again by its dialplan while its earlier call is still being cleaned up.
        if call is not None and not (call.is_over and isinstance(event, a.ChannelEntered)):
            call.on_event(event)
        elif isinstance(event, a.ChannelEntered) and not self._leftovers.is_made_here(channel_id):
            call = AriCall(event.channel, self._new_key(), self._ari, self._server, self._ask)
            refusal = self._why_no_room()
            if refusal is not None:
                metrics.REFUSED.labels(refusal).inc()
                setting = "ari.max_calls" if refusal == "busy" else None
                self._log.warning("refused", reason=refusal, channel=channel_id, setting=setting)
                call.end("refused")
            self._take(call)

    async def originate(self, order: OriginateRequest) -> AriCall:
        """Make a call; returns once Asterisk dials. Raises NewCallRefused, AriLost, AriRefused, NotAnswered."""
        if self._ask().replaced.done():
            raise NewCallRefused(self._why_replaced)
        refusal = self._why_no_room()
        if refusal is not None:
            metrics.REFUSED.labels(refusal).inc()
            raise NewCallRefused("ari.max_calls calls are live" if refusal == "busy" else "the bridge is stopping")
        if any(call.name == order.call for call in self._live):
            raise NewCallRefused(f"a live call has the name {order.call}")
        key = self._new_key()
        call = AriCall(a.AriChannel(f"{key}-out"), key, self._ari, self._server, self._ask, order)
        self._take(call)
        await asyncio.shield(call.accepted)
        return call

    def _why_no_room(self) -> str | None:
        """Why a new call is refused, one of metrics.REFUSALS; None if there is room."""
        if self.draining:
            return "draining"
        n_calls = sum(not call.is_over for call in self._live)
        return "busy" if n_calls >= self._ari.max_calls else None

    def _new_key(self) -> str:
        self._n_begun += 1
        return f"{self._instance}-{self._n_begun}"

    def _take(self, call: AriCall) -> None:
        self._live.add(call)
        self._by_channel[call.caller.id] = self._by_channel[call.media_id] = call
        call.ended.add_done_callback(lambda _: self._drop(call))
        self._begin(call)

    def _drop(self, call: AriCall) -> None:
        self._live.discard(call)
        if call.is_abandoned:
            self._leftovers.abandon(call.caller.id)
        for channel_id in (call.caller.id, call.media_id):
            if self._by_channel.get(channel_id) is call:
                del self._by_channel[channel_id]

    # ------------------------------------------------------------------ the leftovers

    async def _tidy(self, connection: AriConnection) -> None:
        """Compare Asterisk's channels and bridges with the live calls, every `_TIDY_S`. Raises nothing."""
        while True:
            try:
                await self._compare(connection)
            except AriLost:
                pass  # the connection is lost or slow: try again later
            except (AriRefused, ValueError) as error:
                _log.warning("not_tidied", why=str(error))
            except Exception:
                _log.exception("tidying_crashed")
            if not connection.replaced.done():
                await asyncio.wait((connection.replaced,), timeout=_TIDY_S)
                if connection.replaced.done():
                    _log.error("application_taken", why=self._why_replaced, calls=len(self._live))
            else:
                # No events come any more, so this list is the only sign that a call has ended.
                await asyncio.sleep(_LOOK_S)

    async def _compare(self, connection: AriConnection) -> None:
        set_up = [call for call in self._live if call.is_set_up]
        channels = channels_of(await connection.request("GET", "channels"))
        bridges = bridges_of(await connection.request("GET", "bridges"))
        there = {channel.id for channel in channels}
        for call in set_up:
            for channel_id in (call.caller.id, call.media_id):
                if channel_id not in there:
                    call.on_event(a.ChannelLeft(channel_id))  # it ended while the connection was lost
        if connection.replaced.done():
            return  # the other client removes leftovers
        live = {name for call in self._live for name in (call.caller.id, call.media_id, call.bridge_id)}
        ends = ((channel.id, rtp_end_of(channel)) for channel in channels if channel.id not in live)
        unheard = {channel_id for channel_id, end in ends if end is not None and is_port_free(*end)}
        for request in self._leftovers.requests(channels, bridges, live, unheard):
            metrics.ARI_LEFTOVERS.inc()
            _log.info("leftover", request=" ".join(request[:2]), name=request[2])
            with suppress(AriRefused):
                await connection.request(*request)
