"""The telephone side: a media leg of any dialect. It joins the call of its bot, or dials the bot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Protocol

from telephony_tts.ops.keys.key import NO_KEY, Key
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.bot_dial import dial_bot
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.connection import CallConnection, DirectConnection
from telephony_tts.transport.registry import Registry, close_code
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stream_leg import new_call
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire
from telephony_tts.wire.query import StreamOptions

_BROKEN = {1002: "protocol", 1003: "kind of message", 1007: "text", 1009: "length of a message"}
"""Close codes that the WebSocket library sends by itself, for messages that it refuses."""


class MediaCodec(Protocol):
    """A dialect: decodes what the peer sends, and encodes what the peer gets."""

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> m.FromMedia | None: ...
    def encode(self, message: m.ToMedia) -> Wire | None: ...


async def serve_media(
    leg: MediaLeg,
    settings: TransportSettings,
    registry: Registry,
    catalog: EngineCatalog,
    *,
    trusted: bool,
    may_begin: bool,
    key: Key = NO_KEY,
) -> None:
    """Serve one media leg until its socket is gone.

    Unless it is `trusted`, its start message must bring a token. Unless `may_begin`, a call must be waiting for it.
    `key` is that of the handshake.
    """
    connection = leg.connection
    connection.listen(leg.on_message, leg.on_writable)
    # Peers that are not trusted do not count: by connecting and sending nothing they could keep calls out.
    registry.n_arriving += trusted
    try:
        await asyncio.wait(
            (leg.started, connection.left), timeout=settings.media_start_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        registry.n_arriving -= trusted
    if not leg.started.done():
        if not connection.left.done():
            connection.log.warning("media_never_started", dialect=leg.kind)
            connection.end(4400, "no start event came")
        return
    start = leg.started.result()
    # Some platforms strip query strings, so the token comes as a parameter; others make parameters of the query.
    given = start.parameters.get("token", "").encode()
    found = settings.keys.find(given)
    if found is not None and not settings.keys.is_open:
        del start.parameters["token"]  # the bot must not see it
        key = key if key.name else found
    if (why := key.media_refusal) is not None:
        metrics.REFUSED.labels(reason="unauthorized").inc()
        connection.log.warning("media_unauthorised", call=start.call, why=why)
        await leg.refuse(4403, why)
        return
    if not trusted:
        if found is None:
            metrics.REFUSED.labels(reason="unauthorized").inc()
            connection.log.warning("media_unauthorised", call=start.call)
            await leg.refuse(4401, "a token is needed as a stream parameter")
            return
        # It did not count as an arriving call before, so the limit is checked now.
        may_begin = may_begin and registry.n_calls_of_all < settings.limits.calls
    if isinstance(connection, CallConnection):
        # If another front has the call, it asks no more.
        connection.may_begin, connection.key = may_begin, key

    def new() -> Call:
        speech = replace(settings.speech, call=start.call, codec=start.codec, rate_hz=start.rate_hz)
        return new_call(speech, catalog, leg.kind, settings.find_sound, settings=settings)

    try:
        call = await registry.admitted(
            connection, start.call, partial(registry.admit_media, start.call, key, new),
            may_begin=may_begin, leg="media", stream=start.stream,
        )  # fmt: skip
    except TelephonyTTSError as error:
        await leg.refuse(close_code(error), error.message)
        return
    if call is None:
        return
    try:
        leg.attach(call, start)
        registry.changed()  # the call does not wait for its media leg any more
        await call.started.wait()
        if call.bot is None and not call.over:
            if settings.bot.url is not None:
                call.spawn(dial_bot(call, settings), "dial bot")
            else:
                call.expect("bot", settings.limits.call_claim_s)
        await connection.left
        close = connection.protocol.close_sent
        if close is not None and close.code in _BROKEN:
            call.log.warning("media_broken", code=close.code, why=f"{_BROKEN[close.code]}: {close.reason}"[:200])
    finally:
        call.media_left(leg, leg.reason)


class MediaLeg:
    """One media socket: passes its messages to the call, and sends what the call says. `kind` is its name in
    the metrics."""

    kind: str
    fills = False
    """Whether it gets silence while there is no speech."""
    sends_dtmf: bool | None = False
    """Whether it can send tones to the telephone. None: the peer's `start` says it."""
    reports_marks = True
    """Whether it tells when a mark was played. Otherwise the clock decides what was heard."""
    most_marks: int | None = None
    """How many marks it can have; None for no limit."""

    def __init__(self, connection: DirectConnection, codec: MediaCodec) -> None:
        self.connection = connection
        self.codec = codec
        self.call: Call | None = None
        self._waiting: list[m.FromMedia] = []
        self._received = metrics.RECEIVED_BYTES.labels(leg="media")
        self.started: asyncio.Future[m.MediaStart] = asyncio.get_running_loop().create_future()
        self.reason = "closed"

    # ------------------------------------------------------- as the call sees it

    def send_now(self, payload: bytes, is_text: bool) -> None:
        self.connection.send_now(payload, is_text)

    def end(self, code: int, reason: str) -> None:
        self.connection.end(code, reason)

    async def refuse(self, code: int, reason: str) -> None:
        """Close a leg that gets no call. Returns when it has left."""
        self.connection.end(code, reason)

    def encode(self, message: m.ToMedia) -> Wire | None:
        return self.codec.encode(message)

    def decode(self, payload: bytes, want_audio: bool, is_text: bool) -> m.FromMedia | None:
        return self.codec.decode(payload, want_audio, is_text)

    def n_held_samples(self) -> int:
        """How many samples of speech `encode` has kept back, until a message is full."""
        return 0

    def send_gathered(self) -> None:
        """Send the frames that `encode` has kept back: no more frames are due now."""

    # ----------------------------------------------------- as the socket sees it

    def on_message(self, payload: bytes, is_text: bool) -> None:
        self._received.inc(len(payload))
        call = self.call
        observers = () if call is None else call.observers
        want_audio = call is not None and call.session.wants_audio
        message = self.decode(payload, want_audio or bool(observers), is_text)
        if message is None:
            return
        if type(message) is m.MediaAudio and not want_audio:
            if call is not None and payload:
                call.session.missing_audio.came_ns = monotonic_ns()
            for observer in observers:
                observer.received(message, monotonic_ns())
            return
        if isinstance(message, m.Invalid):
            self._mistake(message)
        elif isinstance(message, m.MediaStart):
            if not self.started.done():
                self.started.set_result(message)
        elif call is None:
            self._waiting.append(message)
        else:
            self.take(call, message)

    def on_writable(self, flag: bool) -> None:
        if self.call is not None:
            self.call.writable(flag)

    def attach(self, call: Call, start: m.MediaStart) -> None:
        """Join the call. All messages go to it from now on, first those that came before."""
        self.call = call
        self.connection.log = call.log
        call.session.attach_media(
            monotonic_ns(),
            marks=self.reports_marks,
            clears=True,
            fills=self.fills,
            dtmf=bool(self.sends_dtmf),
            most_marks=self.most_marks,
            n_held=self.n_held_samples,
            start=start,
        )
        call.join_media(self, self.encode, self.send_gathered)
        if self.connection.paused:
            call.writable(False)
        call.receive(start)
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.take(call, message)

    def take(self, call: Call, message: m.FromMedia) -> None:
        """Pass a message other than a start to the call."""
        if isinstance(message, m.MediaStop):
            self.reason = message.reason
        call.receive(message)
        if isinstance(message, m.MediaStop):
            self.connection.end(1000, "stopped")

    def _mistake(self, mistake: m.Invalid) -> None:
        self.connection.log.warning("media_message_refused", code=mistake.code, why=mistake.message)
        self.complain(mistake)

    def complain(self, mistake: m.Invalid) -> None:
        """Tell the peer, if its dialect has a message for it. By default only the log tells."""



def call_of(connection: CallConnection) -> str | None:
    """The call's name in the options of the address, if it has one."""
    assert isinstance(connection.options, StreamOptions)
    return connection.options.call


def rate_of(connection: CallConnection) -> int | None:
    """The sample rate in the options of the address, if it has one."""
    assert isinstance(connection.options, StreamOptions)
    return connection.options.rate_hz
