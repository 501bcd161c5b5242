"""One call under ARI: the caller's channel, the media channel and the bridge that joins them.

    incoming ──► Stasis ──► answer ──────────┐
    outgoing ──► originate ──► is answered ──┴─► external media ──► bridge of both channels ──► the server and its bot

Whichever side leaves first, `run` returns when both channels and the bridge are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.ari import messages as a
from sip_bridge.ari.config import AriConfig
from sip_bridge.ari.connection import AriConnection, AriLost, AriRefused
from sip_bridge.ari.formats import AUTO, CODEC_VARIABLE, format_for
from sip_bridge.ari.media import CallMedia, media_of
from sip_bridge.config import TtsServerConfig
from sip_bridge.rtp.media import OnOver
from sip_bridge.speech.server_side import OnDigits
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.wire.fields import CALL_NAME, clean

_log = logs.get(__name__)
_MAX_PARAMETER_CHARS = 256
_NOT_FOUND = 404
_ANSWER_GRACE_S = 5.0
"""Asterisk ends a call that is not answered in time. If it does not, the bridge ends the call this much later."""

CAUSES = {17: "busy", 18: "no answer", 19: "no answer", 21: "rejected", 1: "no such number", 3: "no route",
          20: "not registered", 27: "not reachable"}  # fmt: skip
"""Causes of Q.850 in words, for a call that was not answered."""

MakeMedia = Callable[[AriConfig, TtsServerConfig, OnOver, OnDigits], CallMedia]


@dataclass(frozen=True, slots=True)
class OriginateRequest:
    """An outgoing call. `call` is its name; `ring_timeout_s` is how long it may ring."""

    endpoint: str
    call: str
    ring_timeout_s: int
    caller_id: str = ""
    variables: dict[str, str] = field(default_factory=dict)


class NotAnswered(Exception):
    """An outgoing call was not answered. `cause` is a cause of Q.850, 0 if it is not known."""

    def __init__(self, reason: str, message: str, cause: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


class AriCall:
    """`ask` returns the current connection. `caller` is the channel of an incoming call, or the one for an `order`."""

    def __init__(
        self,
        caller: a.AriChannel,
        key: str,
        ari: AriConfig,
        server: TtsServerConfig,
        ask: Callable[[], AriConnection],
        order: OriginateRequest | None = None,
        make_media: MakeMedia = media_of,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.caller = caller
        self.bridge_id = key
        self.media_id = f"{key}-media"
        self.name = order.call if order is not None else caller.id
        self.accepted: asyncio.Future[None] = loop.create_future()
        """Done when Asterisk dials the endpoint; an exception says why it does not."""
        self.answered: asyncio.Future[None] = loop.create_future()
        """Done when the endpoint has answered, or NotAnswered."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when everything of the call is cleaned up."""
        self._ari = ari
        self._ask = ask
        self._order = order
        self._over: asyncio.Future[str] = loop.create_future()
        self._media_started: asyncio.Future[None] = loop.create_future()
        self._media = make_media(ari, server, self.end, self._send_digits)
        self._sending: set[asyncio.Task[None]] = set()
        """Requests to send tones; their answers are not awaited."""
        self.is_abandoned = False
        """The caller could not be sent back to the dialplan, because Asterisk was not connected."""
        self._has_caller_channel = order is None
        self._has_media_channel = False
        self._is_transferred = False
        """The caller has transferred the call: another channel is there, which is in no dialplan."""
        self._bridged = False
        self._cause = 0
        for future in (self.accepted, self.answered):
            # The exception counts as retrieved then: asyncio logs others.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.log = _log.bind(call=self.name, channel=caller.id).limited(logs.LineLimit.of_call())

    @property
    def is_over(self) -> bool:
        return self._over.done()

    @property
    def is_set_up(self) -> bool:
        """The media channel exists, so both channels are in Asterisk's lists."""
        return self._bridged

    async def run(self) -> None:
        """Serve until the call is over and cleaned up. Raises nothing: a fault ends this call only."""
        begun_ns = monotonic_ns()
        metrics.CALLS_LIVE.inc()
        self.log.info("call_started", outgoing=self._order is not None)
        try:
            await self._serve()
        except Exception:
            self.log.exception("call_crashed")
            self.end("failed")
        finally:
            self.end("failed")  # for a cancelled call; any other has a reason already
            reason = self._over.result()
            self._fail_waiters(reason)
            try:
                await self._clean_up(reason)
            finally:
                metrics.CALLS.labels(reason).inc()
                metrics.CALLS_LIVE.dec()
                self.log.summary("call_ended", reason=reason, ms=(monotonic_ns() - begun_ns) // NS_PER_MS)
                self.ended.set_result(None)

    def end(self, reason: str, why: str | None = None) -> None:
        """End the call now. `reason` is one of metrics.ENDS; the first counts."""
        if not self._over.done():
            self._over.set_result(reason)
            if why is not None:
                self.log.warning(reason, why=why)

    # --------------------------------------------------------------------- events

    def on_event(self, event: a.ChannelEvent) -> None:
        """An event of one of the two channels."""
        match event:
            case a.ChannelEntered(channel=channel) if channel.id == self.media_id:
                if not self._media_started.done():
                    self._media_started.set_result(None)
            case a.ChannelEntered(channel=channel):
                self.caller = channel
                if event.replaces:
                    self._is_transferred = True
                    self._media.hold(channel.state != "Up")
                if not self.answered.done():
                    self.answered.set_result(None)
            case a.ChannelLeft(channel_id=channel_id, cause=cause, why=why) if channel_id == self.media_id:
                self._has_media_channel = False
                if self._media_started.done():
                    self.end("finished")
                else:
                    self.end("media_failed", self._why_no_media(cause, why))
            case a.ChannelLeft(cause=cause):
                self._has_caller_channel = False
                self._cause = cause
                self.end("hangup" if self._order is None or self.answered.done() else "not_answered")
            case a.AriDigit(channel_id=channel_id, digit=digit) if channel_id == self.caller.id:
                self._media.digit(digit)
            case a.AriHold(channel_id=channel_id, is_on=is_on) if channel_id == self.caller.id:
                self._media.hold(is_on)

    def _send_digits(self, tones: s.ServerDigits) -> None:
        """Have Asterisk send the bot's tones to the caller, in the way that the caller's channel has for it."""
        task = asyncio.get_running_loop().create_task(self._ask_for_digits(tones))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _ask_for_digits(self, tones: s.ServerDigits) -> None:
        query = {"dtmf": tones.digits, "duration": str(tones.on_ms), "between": str(tones.off_ms)}
        try:
            await self._ask().request("POST", "channels", self.caller.id, "dtmf", query=query)
        except (AriRefused, AriLost) as error:
            self.log.warning("digits_not_sent", why=str(error))

    def _why_no_media(self, cause: int, why: str) -> str:
        hint = ""
        if self._ari.media == "websocket_client":
            hint = f"; see [{self._ari.websocket_client}] in websocket_client.conf, and the server's log"
        return f"Asterisk has not reached the server for media: cause {cause} {why}{hint}"

    def _fail_waiters(self, reason: str) -> None:
        cause = self._cause
        said = CAUSES.get(cause) or ("no answer" if reason == "not_answered" and cause in (0, 16) else reason)
        for future in (self.accepted, self.answered):
            if not future.done():
                future.set_exception(NotAnswered(reason, said, cause))

    # ---------------------------------------------------------------------- setup

    async def _serve(self) -> None:
        begun = asyncio.get_running_loop().create_task(self._begin())
        try:
            await asyncio.wait((begun, self._over), return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():
                begun.result()
                await asyncio.wait((self._over,))
        except AriLost as error:
            self.end("asterisk_lost", str(error))
        except AriRefused as error:
            # 404 means that the caller has hung up and its event is on the way.
            self.end("hangup" if error.status == _NOT_FOUND else "asterisk_refused", str(error))
        except (OSError, ValueError) as error:
            self.end("media_failed", str(error))
        finally:
            begun.cancel()
            await asyncio.wait((begun,))

    async def _begin(self) -> None:
        if self._order is not None:
            await self._dial(self._order)
        try:
            async with asyncio.timeout(self._ari.setup_timeout_s):
                await self._set_up()
        except TimeoutError:
            self.end("media_failed", f"the call was not set up within {self._ari.setup_timeout_s:g} s")

    async def _dial(self, order: OriginateRequest) -> None:
        """Have Asterisk dial the endpoint, and wait until it is answered."""
        query = {
            "endpoint": order.endpoint,
            "app": self._ari.app,
            "timeout": str(order.ring_timeout_s),
            "channelId": self.caller.id,
        }
        if order.caller_id:
            query["callerId"] = order.caller_id
        self._has_caller_channel = True
        try:
            await self._ask().request("POST", "channels", query=query, body={"variables": order.variables})
        except (AriRefused, AriLost) as error:
            self._has_caller_channel = isinstance(error, AriLost)  # without an answer Asterisk may dial nevertheless
            if not self.accepted.done():
                self.accepted.set_exception(error)
            raise
        if not self.accepted.done():
            self.accepted.set_result(None)
        await asyncio.wait((self.answered,), timeout=order.ring_timeout_s + _ANSWER_GRACE_S)
        if not self.answered.done():
            self.end("not_answered", f"Asterisk has not ended it after {order.ring_timeout_s} s of ringing")
            await asyncio.Event().wait()  # `end` cancels this

    async def _set_up(self) -> None:
        parameters = await self._read_parameters()
        if self._order is None:
            await self._ask().request("POST", "channels", self.caller.id, "answer")
        query = await self._media.open(await self._choose_format())
        query |= {"app": self._ari.app, "channelId": self.media_id}
        # From here on the channel may exist, even if the request fails.
        self._has_media_channel = True
        body = await self._ask().request(
            "POST", "channels", "externalMedia", query=query, body={"variables": parameters}
        )
        self._media.created(body, self.name, parameters)
        self._bridged = True
        await self._ask().request("POST", "bridges", query={"type": "mixing", "bridgeId": self.bridge_id})
        await self._join(self.caller.id)
        await self._media_started
        await self._join(self.media_id)
        self.log.info("joined", media=self._ari.media, format=query["format"], media_channel=self.media_id)

    async def _choose_format(self) -> str:
        telephone = await self._variable(CODEC_VARIABLE) if self._ari.format == AUTO else ""
        return format_for(self._ari.format, telephone, is_rtp=self._ari.media == "rtp")

    async def _join(self, channel_id: str) -> None:
        await self._ask().request("POST", "bridges", self.bridge_id, "addChannel", query={"channel": channel_id})

    async def _read_parameters(self) -> dict[str, str]:
        """The call's parameters, as channel variables of the media channel. Also sets the call's name."""
        wanted = (self._ari.call_variable, *self._ari.variables)
        values = await asyncio.gather(*(self._variable(name) for name in wanted))
        found = {name: value for name, value in zip(wanted, values, strict=True) if value}
        if self._order is None:
            self.name = self._valid_name(found.get(self._ari.call_variable, ""))
            self.log = self.log.bind(call=self.name)
        told = {
            **(self._order.variables if self._order is not None else {}),
            **found,
            "TTS_CALL": self.name,
            "TTS_CHANNEL": self.caller.id,
            "TTS_FROM": self.caller.number,
            "TTS_FROM_NAME": self.caller.caller,
            "TTS_TO": self.caller.extension if self._order is None else self._order.endpoint,
            "TTS_DIRECTION": "in" if self._order is None else "out",
        }
        return {name: clean(value)[:_MAX_PARAMETER_CHARS] for name, value in told.items() if value}

    async def _variable(self, name: str) -> str:
        query = {"variable": name}
        try:
            body = await self._ask().request("GET", "channels", self.caller.id, "variable", query=query)
        except AriRefused:
            return ""  # not set; if the channel is gone, the next request fails
        value = body.get("value") if isinstance(body, dict) else None
        return value if isinstance(value, str) else ""

    def _valid_name(self, asked: str) -> str:
        if CALL_NAME.fullmatch(asked):
            return asked
        if asked:
            self.log.warning("bad_call_name", variable=self._ari.call_variable, why="the channel's id is used instead")
        # Asterisk's ids begin with a system name that its administrator chose.
        return "".join(char if CALL_NAME.fullmatch(char) else "_" for char in self.caller.id)[:128]

    # -------------------------------------------------------------------- cleanup

    async def _clean_up(self, reason: str) -> None:
        """Release the caller, end the media and remove the bridge, each even if another one fails."""
        goes_on = self._order is None and self._ari.after_bot == "continue" and not self._is_transferred
        work: list[Awaitable[object]] = []
        if self._has_caller_channel:
            work.append(self._release_caller() if goes_on else self._try("DELETE", "channels", self.caller.id))
        if self._has_media_channel:
            work.append(self._try("DELETE", "channels", self.media_id))
        if self._bridged:
            work.append(self._try("DELETE", "bridges", self.bridge_id))
        for task in self._sending:
            task.cancel()
        done = await asyncio.gather(self._media.close(reason), *work, *self._sending, return_exceptions=True)
        for error in done:
            if isinstance(error, Exception):
                self.log.error("not_cleaned", why=f"{type(error).__name__}: {error}")

    async def _release_caller(self) -> None:
        """Send the caller back to the dialplan."""
        try:
            await self._ask().request("POST", "channels", self.caller.id, "continue")
        except AriRefused as error:
            if error.status != _NOT_FOUND:
                await self._try("DELETE", "channels", self.caller.id)
        except AriLost:
            self.is_abandoned = True  # AriApplication releases it after the next connect

    async def _try(self, method: str, *path: str) -> None:
        with suppress(AriRefused, AriLost):
            await self._ask().request(method, *path)

