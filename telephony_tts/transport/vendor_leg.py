"""A bot in the protocol of another vendor: with its audio on the same socket, or in the call of a media leg.

The audio is sent ahead, as clients of these protocols expect it, but no further than `vendors.burst_ahead_s` beyond
what would be playing. Frames that are due together go into one message.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from telephony_tts import metrics
from telephony_tts.errors import TelephonyTTSError
from telephony_tts.session.alignment import Alignment
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.registry import Registry
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stream_leg import new_call, ready
from telephony_tts.wire import cartesia, deepgram, jambonz_tts
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import CALL_NAME, Wire
from telephony_tts.wire.vendor import (
    ChangeAudio,
    CloseSocket,
    Credential,
    Refused,
    Reply,
    VendorDialect,
    VendorEvent,
    query_of,
)

_MAX_TURN_CHARS = 200_000
"""These protocols have no limit of a turn that could be announced to their clients. Flow control is the socket's."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor's protocol: its path, and how a connection to it begins.

    `open` gets the request target. `refuse` makes the vendor's answer from an HTTP status, our code and a message.
    `own_voice` matches the vendor's names for voices: such a voice is the default one unless `vendors.voice_names` maps
    it.
    """

    name: str
    path: re.Pattern[str]
    open: Callable[[str], VendorDialect | Refused]
    refuse: Callable[[int, str, str], Refused]
    own_voice: re.Pattern[str]
    key_may_follow: bool = False
    """A client may send its key in the first message."""


VENDORS = (
    Vendor("deepgram", re.compile(r"/v1/speak/?"), deepgram.open_speak, deepgram.refuse, deepgram.OWN_VOICE),
    Vendor(
        "cartesia", re.compile(r"/tts/websocket/?"), cartesia.open_contexts, cartesia.refuse, cartesia.OWN_VOICE
    ),
    Vendor("jambonz", re.compile(r"/jambonz/tts/?"), jambonz_tts.open_tts, jambonz_tts.refuse, jambonz_tts.OWN_VOICE),
)


_CALL_PREFIX = re.compile(r"/calls/([^/?#]*)(?=/)")


def split_call(target: str) -> tuple[str | None, str]:
    """(the call that a target such as `/calls/CA1/v1/speak?model=x` joins, the rest of the target).

    Most clients of vendors add their own path and query to a base URL, so it cannot carry `?call=`.
    """
    prefix = _CALL_PREFIX.match(target)
    return (None, target) if prefix is None else (prefix[1], target[prefix.end() :])


def vendor_of(target: str) -> Vendor | None:
    """The vendor whose WebSocket this request target is."""
    path = split_call(target)[1].partition("?")[0]
    return next((vendor for vendor in VENDORS if vendor.path.fullmatch(path)), None)


def open_dialect(vendor: Vendor, target: str) -> VendorDialect | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    call, target = split_call(target)
    dialect = vendor.open(target)
    if call is not None and not isinstance(dialect, Refused):
        dialect.options = replace(dialect.options, call=call)
    return dialect


def keys_in(target: str, headers: Mapping[str, str]) -> Iterable[str]:
    """Credentials in the places where clients of other vendors put them, beside `Authorization`."""
    for name in ("xi-api-key", "X-API-Key", "X-Vapi-Secret"):
        if name in headers:
            yield headers[name]
    query = query_of(target)
    for name in ("api_key", "xi-api-key", "xi_api_key", "single_use_token", "access_token"):
        if name in query:
            yield query[name]
    scheme, _, key = headers.get("Sec-WebSocket-Protocol", "").partition(",")
    if scheme.strip().lower() in ("token", "bearer") and key:
        yield key.partition(",")[0].strip()  # browsers can set no other header


def voice_for(name: str | None, vendor: Vendor, settings: TransportSettings, catalog: EngineCatalog) -> str | None:
    """Our voice for the client's name of one. None is the default. Raises UnknownVoice."""
    if name is None or name in ("", "default"):
        return None
    ours = settings.vendors.voice_names.get(name, name)
    try:
        catalog.resolve(ours, None, "")
    except TelephonyTTSError:
        if vendor.own_voice.fullmatch(name):
            return None
        raise
    return ours


async def serve_vendor(
    vendor: Vendor,
    dialect: VendorDialect,
    connection: CallConnection,
    settings: TransportSettings,
    registry: Registry,
    catalog: EngineCatalog,
) -> None:
    """Serve one client until its socket is gone."""
    options = dialect.options
    joins = options.call is not None
    call_id = options.call or f"c{secrets.token_hex(6)}"
    call = registry.find(call_id)
    if call is None:
        if not connection.may_begin or registry.draining:
            connection.end(1013, "the call is over and there is no room for another")
            return
        speech = replace(settings.speech, limits=replace(settings.speech.limits, turn_chars=_MAX_TURN_CHARS))
        if not joins:
            ahead_ms = round(settings.vendors.burst_ahead_s * 1000)
            speech = replace(
                speech, codec=options.codec, rate_hz=options.rate_hz, ptime_ms=20, pace="realtime", lead_ms=ahead_ms,
                ahead_ms=max(speech.ahead_ms, ahead_ms), separate_turns=True, fade_on_clear=False,
                pause_chars=_MAX_TURN_CHARS,
            )  # fmt: skip
        call = new_call(replace(speech, call=call_id), catalog, "joined" if joins else "stream")
        await registry.start(call)
    elif call.bot is not None or call.kind == "stream":
        metrics.REFUSED.labels(reason="call_taken").inc()
        connection.end(4409, f"call {call_id} already has a bot")
        return
    connection.log = call.log
    leg = VendorLeg(vendor, dialect, connection, call, settings, catalog)
    try:
        leg.join(joins)
        if call.media is None:
            call.expect("media", settings.limits.call_claim_s)
        await connection.left
    finally:
        call.bot_left(leg, f"closed with {connection.protocol.close_code or 'no code'}")


class VendorLeg:
    """One socket of a vendor's client: the bot leg of a call, and its media leg unless it joins the call of another."""

    def __init__(
        self,
        vendor: Vendor,
        dialect: VendorDialect,
        connection: CallConnection,
        call: Call,
        settings: TransportSettings,
        catalog: EngineCatalog,
    ) -> None:
        self._vendor = vendor
        self._dialect = dialect
        self._connection = connection
        self._call = call
        self._settings = settings
        self._catalog = catalog
        self._joined = False
        self._trusted = connection.trusted
        self._frames: list[bytes] = []
        self._turn = ""
        """The turn of `_frames`."""
        self._alignments: dict[str, Alignment] = {}
        self._n_samples: dict[str, int] = {}

    def join(self, joins: bool) -> None:
        """Begin to serve. With `joins` the audio goes to a media leg."""
        call, options = self._call, self._dialect.options
        self._joined = joins
        call.session.let_turns_give_way()
        if not joins:
            call.join_media(self, self._encode_media, self._send_gathered)
        for wire in self._dialect.greeting():
            self._connection.send_now(*wire)
        call.join_bot(self, self._encode_bot, ready(call))
        self._configure(m.Configure(voice=options.voice, lang=options.lang, speed=options.speed))
        self._connection.listen(self._on_message, (lambda flag: None) if joins else call.writable)

    # ------------------------------------------------------- as the call sees it

    def send_now(self, payload: bytes, is_text: bool) -> None:
        self._connection.send_now(payload, is_text)

    def end(self, code: int, reason: str) -> None:
        self._connection.end(code, reason)

    def _encode_media(self, message: m.ToMedia) -> Wire | None:
        """Keep a frame until `_send_gathered`, because the client gets one message for all that are due."""
        if isinstance(message, m.Frame):
            if message.turn != self._turn:
                self._send_gathered()
                self._turn = message.turn
            self._frames.append(message.payload)
        return None

    def _encode_bot(self, event: m.ToBot | m.Frame) -> Wire | None:
        if isinstance(event, m.Done) and self._joined:
            event = m.TurnSent(event.turn)  # its audio went to the media leg, which has played it
        if isinstance(event, m.SentenceSpoken) and self._joined and self._dialect.needs_alignment:
            # Its audio goes to the media leg, but its words are known. The time is rounded down, hence one more.
            self._n_samples[event.turn] = (event.end_ms + 1) * self._call.session.settings.rate_hz // 1000
            self._send_audio(event.turn, b"")
        if not isinstance(event, VendorEvent):
            return None
        turn = event.turn
        if isinstance(event, m.TurnSent):
            self._send_gathered()
            if self._dialect.needs_alignment:
                self._send_audio(event.turn, b"", is_whole=True)
        if turn is not None and not isinstance(event, m.SentenceSpoken | m.WarningEvent):
            if self._turn == turn:
                self._frames.clear()
            self._alignments.pop(turn, None)
            self._n_samples.pop(turn, None)
        self._send(self._dialect.event(event))
        return None

    def _send_gathered(self) -> None:
        """Send the frames that were due."""
        if self._frames:
            frames, self._frames = b"".join(self._frames), []
            self._send_audio(self._turn, frames)

    def _send_audio(self, turn: str, payload: bytes, *, is_whole: bool = False) -> None:
        spoken = None
        if self._dialect.needs_alignment:
            alignment = self._alignments.get(turn) or self._call.session.alignment(turn)
            if alignment is not None:
                self._alignments[turn] = alignment
                n_samples = self._n_samples.get(turn, 0) + len(payload) // _BYTES[self._dialect.options.codec]
                self._n_samples[turn] = n_samples
                spoken = alignment.advance(n_samples, is_whole=is_whole)
        if payload or (spoken is not None and spoken.text):
            self._send(self._dialect.audio(turn, payload, spoken))

    def _send(self, wires: Iterable[Wire | CloseSocket]) -> None:
        for wire in wires:
            if isinstance(wire, CloseSocket):
                self._connection.end(wire.code, wire.reason)
                return
            metrics.SENT_BYTES.labels(leg="bot").inc(len(wire[0]))
            self._connection.send_now(*wire)

    # ----------------------------------------------------- as the socket sees it

    def _on_message(self, payload: bytes, is_text: bool) -> None:
        metrics.RECEIVED_BYTES.labels(leg="bot").inc(len(payload))
        for step in self._dialect.decode(payload, is_text):
            match step:
                case Reply(wire):
                    self._connection.send_now(*wire)
                case CloseSocket(code, reason):
                    if code != 1000:
                        self._call.log.info("vendor_message_refused", vendor=self._vendor.name, code=code, why=reason)
                    self._connection.end(code, reason)
                    return
                case Credential(key):
                    self._trusted = self._trusted or self._settings.server.knows(key.encode())
                case ChangeAudio():
                    self._change_audio(step)
                case m.Configure():
                    self._configure(step)
                case _:
                    if not self._trusted:
                        metrics.REFUSED.labels(reason="unauthorized").inc()
                        self._connection.end(1008, "an API key is needed")
                        return
                    self._call.receive(step)

    def _configure(self, message: m.Configure) -> None:
        """Pass voice settings to the call, with our name of the voice."""
        try:
            voice = voice_for(message.voice, self._vendor, self._settings, self._catalog)
        except TelephonyTTSError as error:
            self._send(self._dialect.event(m.ErrorEvent(error.code, error.message)))
            return
        if voice is None and message.voice is not None:
            voice = ""  # the default one, whichever voice an earlier turn had
        self._call.receive(replace(message, voice=voice))

    def _change_audio(self, wanted: ChangeAudio) -> None:
        if not self._joined:
            self._call.session.change_format(wanted.codec, wanted.rate_hz)


_BYTES = {"pcm": 2, "ulaw": 1, "alaw": 1}


def problem_of(
    dialect: VendorDialect, vendor: Vendor, settings: TransportSettings, catalog: EngineCatalog
) -> Refused | None:
    """Why a handshake is refused although its form is right: a wrong name of a call, or of a voice."""
    options = dialect.options
    if options.call is not None and not CALL_NAME.fullmatch(options.call):
        return vendor.refuse(400, "INVALID_CALL", "call: expected 1 to 128 of the characters A-Z a-z 0-9 _ . : -")
    try:
        voice_for(options.voice, vendor, settings, catalog)
    except TelephonyTTSError as error:
        return vendor.refuse(400, error.code, error.message)
    return None
