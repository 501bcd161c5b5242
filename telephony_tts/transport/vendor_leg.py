"""A bot in the protocol of another vendor: with its audio on the same socket, or in the call of a media leg.

The audio is sent ahead, as clients of these protocols expect it, but no further than `vendors.burst_ahead_s` beyond
what would be playing. Frames that are due together go into one message.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from websockets.datastructures import Headers

from telephony_tts.audio.containers import StreamEncoder, make_encoder
from telephony_tts.audio.encoder import CODECS
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.session.alignment import Alignment
from telephony_tts.session.settings import CallLimits
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Doors, Vendor
from telephony_tts.transport.registry import Registry, close_code
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stand_in import FRAMES_AT_ONCE, StandIn
from telephony_tts.transport.stream_leg import new_call, ready
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import CALL_NAME, Wire
from telephony_tts.wire.vendor import (
    ChangeAudio,
    CloseSocket,
    Credential,
    Refused,
    Reply,
    Step,
    VendorDialect,
    VendorEvent,
    query_of,
)

_LOGGED_CHARS = 200
_KEY_WITHIN_S = 10.0
"""How long a client whose handshake had no key may take to send one."""
_REASSURE_S = 2.0
"""So often a turn that waits behind another one gets some silence, if its client would otherwise ask for it again."""
_PIECE_WITHIN_S = 1.0
"""How long audio waits for the rest of its piece of text, if the client takes one message for each piece."""
_REST_FRAMES = 8
"""So few frames are no piece: the resampler kept them back at the end of a sentence. They are sent with the next."""
MAX_MESSAGE_BYTES = 1_310_720
"""The longest message of these protocols, unless `server.max_message_bytes` is more. The longest text that one of them
allows is 100,000 characters, and JSON may need 12 bytes for each. A text that is too long also has to arrive, because
its refusal is the vendor's."""
_MAX_TURN_CHARS = 200_000
"""These protocols have no limit of a turn that could be announced to their clients. Flow control is the socket's."""


CONSOLE_SUBPROTOCOL = "token.base64url"
"""The console's own: a token may have characters that a subprotocol may not."""


def keys_in(target: str, headers: Headers, doors: Doors) -> Iterable[str]:
    """Credentials in the places where clients of other vendors put them, beside `Authorization`. A header that is there
    twice counts as none: a proxy may have checked only one of the two."""
    for name in doors.key_headers:
        if len(values := headers.get_all(name)) == 1:
            yield values[0]
    query = query_of(target)
    for name in doors.key_options:
        if name in query:
            yield query[name]
    scheme, _, key = ",".join(headers.get_all("Sec-WebSocket-Protocol")).partition(",")
    key = key.partition(",")[0].strip()
    if scheme.strip().lower() in ("token", "bearer") and key:
        yield key  # browsers can set no other header
    elif scheme.strip() == CONSOLE_SUBPROTOCOL and key:
        with suppress(ValueError):
            yield base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)).decode()


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
    first_steps: list[Step] = []
    if not connection.trusted:
        if not await _key_came(connection, dialect, settings, first_steps):
            return
        # Others may have begun calls while this client had no key.
        connection.may_begin = connection.may_begin and registry.n_calls_of_all < settings.limits.calls
    joins = options.call is not None
    call_id = options.call or f"c{secrets.token_hex(6)}"
    # In these protocols only the client ends a turn, however long it waits, unless the vendor has a limit.
    idle_s = 0
    if vendor.turn_idle_s is not None:
        idle_s = min(settings.speech.limits.turn_idle_s or vendor.turn_idle_s, vendor.turn_idle_s)
    limits = replace(settings.speech.limits, turn_chars=_MAX_TURN_CHARS, turn_idle_s=idle_s)

    def new() -> Call:
        speech = replace(settings.speech, call=call_id, limits=limits)
        if joins:
            return new_call(speech, catalog, "joined", settings=settings)
        ahead_ms = round(settings.vendors.burst_ahead_s * 1000)
        speech = replace(
            speech, codec=options.codec, rate_hz=options.rate_hz, ptime_ms=20, pace="realtime", lead_ms=ahead_ms,
            ahead_ms=max(speech.ahead_ms, ahead_ms), separate_turns=True,
            parallel_turns=options.parallel_turns, fade_on_clear=False, pause_chars=_MAX_TURN_CHARS,
        )  # fmt: skip
        return new_call(speech, catalog, "stream", settings=settings)

    try:
        call = await registry.admitted(
            connection, call_id, partial(registry.admit_bot, call_id, connection.key, new),
            may_begin=connection.may_begin, leg="bot",
        )  # fmt: skip
    except TelephonyTTSError as error:
        connection.end(close_code(error), error.message)
        return
    if call is None:
        return
    connection.log = call.log
    call.traceparent, call.door = connection.traceparent, vendor.name
    leg = VendorLeg(vendor, dialect, connection, call, settings)
    try:
        leg.join(joins, first_steps, limits)
        if call.media is None:
            call.expect("media", settings.limits.call_claim_s)
        await connection.left
    finally:
        leg.close()
        reason = f"closed with {connection.protocol.close_code or 'no code'}"
        call.bot_left(leg, reason, back_within_s=settings.vendors.rejoin_s if joins else 0)


async def _key_came(
    connection: CallConnection, dialect: VendorDialect, settings: TransportSettings, steps: list[Step]
) -> bool:
    """Wait for a client's key in its first message. Without the right key there is no call, so that a stranger takes
    no place. `steps` gets what the client asked for besides."""
    came: asyncio.Future[bool] = connection.loop.create_future()

    def on_message(payload: bytes, is_text: bool) -> None:
        for step in dialect.decode(payload, is_text):
            if not isinstance(step, Credential):
                steps.append(step)
            elif not came.done() and (key := settings.keys.find(step.key.encode())) is not None:
                connection.key = key
                connection.lexicons = settings.lexicons_for([step.key.encode()], key)
                came.set_result(True)
        if not came.done():
            came.set_result(False)

    connection.listen(on_message, lambda flag: None)
    await asyncio.wait((came, connection.left), timeout=_KEY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
    if came.done() and came.result():
        return True
    metrics.REFUSED.labels(reason="unauthorized").inc()
    connection.end(1008, "an API key is needed")
    return False


class VendorLeg:
    """One socket of a vendor's client: the bot leg of a call, and its media leg unless it joins the call of another."""

    def __init__(
        self,
        vendor: Vendor,
        dialect: VendorDialect,
        connection: CallConnection,
        call: Call,
        settings: TransportSettings,
    ) -> None:
        self._vendor = vendor
        self._dialect = dialect
        self._connection = connection
        self._call = call
        self._settings = settings
        self._joined = False
        self._frames: list[bytes] = []
        self._turn = ""
        """The turn of `_frames`."""
        self._later: asyncio.TimerHandle | None = None
        """When `_frames` are sent at the latest."""
        self._stand_in = StandIn(self._send_silence)
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        """For each turn that has had no audio: when it is to get some silence."""
        self._alignments: dict[str, Alignment] = {}
        self._n_samples: dict[str, int] = {}
        self._encoders: dict[str, StreamEncoder] = {}
        """The stream of each turn whose audio is in a container."""

    def join(self, joins: bool, first_steps: Iterable[Step], limits: CallLimits) -> None:
        """Begin to serve. With `joins` the audio goes to a media leg. `first_steps` were asked for before there was a
        call."""
        call, options = self._call, self._dialect.options
        self._joined = joins
        call.session.new_bot(limits)
        call.session.use_lexicons(self._connection.lexicons)
        call.session.let_turns_give_way()
        if joins:
            call.on_frame = self._stand_in.frame
            call.keep_unread(self._connection)
        else:
            call.join_media(self, self._encode_media, self._send_due)
        for wire in self._dialect.greeting():
            self._connection.send_now(*wire)
        call.join_bot(self, self._encode_bot, ready(call))
        self._configure(m.Configure(voice=options.voice, lang=options.lang, speed=options.speed))
        self._take(first_steps)
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
        if isinstance(event, m.Resumed):
            # Words that are repeated after a pause are not sent again.
            self._stand_in.flush()
            if event.turn in self._n_samples:
                self._n_samples[event.turn] = event.from_ms * self._call.session.settings.rate_hz // 1000
        if not isinstance(event, VendorEvent):
            return None
        if isinstance(event, m.ErrorEvent) and event.code == "too_many_marks":
            return None  # it concerns a mark of SSML, of which nobody is told
        turn = event.turn
        if isinstance(event, m.TurnSent):
            self._send_gathered()
            self._stand_in.flush()
            if self._dialect.needs_alignment or event.turn in self._encoders:
                self._send_audio(event.turn, b"", 0, is_whole=True)
        if turn is not None and not isinstance(event, m.SentenceSpoken | m.WarningEvent):
            if self._turn == turn:
                self._frames.clear()
            self._stand_in.drop(turn)
            self._alignments.pop(turn, None)
            self._n_samples.pop(turn, None)
            if (encoder := self._encoders.pop(turn, None)) is not None:
                encoder.close()
        self._send(self._dialect.event(event))
        return None

    def _send_due(self) -> None:
        """Send the frames that were due, or keep them for the whole piece of text."""
        if not self._dialect.options.whole_pieces:
            self._send_gathered()
        elif len(self._frames) > _REST_FRAMES:
            if self._call.session.is_caught_up(self._turn):
                self._send_gathered()
            elif self._later is None:
                self._later = asyncio.get_running_loop().call_later(_PIECE_WITHIN_S, self._send_gathered)

    def _send_gathered(self) -> None:
        """Send the frames so far."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._frames:
            frames, self._frames = b"".join(self._frames), []
            self._send_audio(self._turn, frames, len(frames) // CODECS[self._dialect.options.codec].bytes_per_sample)

    def _send_audio(self, turn: str, frames: bytes, n_samples: int, *, is_whole: bool = False) -> None:
        """Send audio in the client's codec, and the characters that the next `n_samples` of the turn speak."""
        spoken = None
        if self._dialect.needs_alignment:
            end = self._n_samples[turn] = self._n_samples.get(turn, 0) + n_samples
            spoken = self._spoken(turn, end, is_whole=is_whole)
        payload = self._encoded(turn, frames, is_whole=is_whole) if self._dialect.options.container else frames
        if payload or (spoken is not None and spoken.text):
            self._send(self._dialect.audio(turn, payload, spoken))

    def _send_silence(self, turn: str, n_frames: int) -> None:
        """Send silence, and the characters, for frames that went to the media leg."""
        speech, options = self._call.session.settings, self._dialect.options
        ms = n_frames * speech.ptime_ms
        if self._connection.paused:  # it is not read: less silence comes, and its characters with the next
            self._n_samples[turn] = self._n_samples.get(turn, 0) + ms * speech.rate_hz // 1000
            return
        silence = CODECS[options.codec].silence * (ms * options.rate_hz // 1000)
        self._send_audio(turn, silence, ms * speech.rate_hz // 1000)

    def _spoken(self, turn: str, n_samples: int, *, is_whole: bool = False) -> m.SpokenText | None:
        """The text that the turn's audio up to `n_samples` speaks, from where the last call ended."""
        alignment = self._alignments.get(turn)
        if alignment is None:
            splits_words = self._dialect.options.splits_words
            alignment = self._call.session.alignment(turn, splits_words=splits_words)
            if alignment is None:
                return None
            self._alignments[turn] = alignment
        return alignment.advance(n_samples, is_whole=is_whole)

    def _encoded(self, turn: str, frames: bytes, *, is_whole: bool) -> bytes:
        """The next bytes of the turn's stream in the client's container. They may be empty."""
        options = self._dialect.options
        encoder = self._encoders.get(turn)
        if encoder is None:
            encoder = self._encoders[turn] = make_encoder(options.container, options.rate_hz)
        payload = encoder.feed(CODECS[options.codec].decode(frames)) if frames else b""
        return payload + encoder.finish() if is_whole else payload

    def _send(self, wires: Iterable[Wire | CloseSocket | m.Clear]) -> None:
        for wire in wires:
            if isinstance(wire, CloseSocket):
                self._connection.end(wire.code, wire.reason)
                return
            if isinstance(wire, m.Clear):
                # Not now: the call is in the middle of its effects.
                asyncio.get_running_loop().call_soon(self._call.receive, wire)
                continue
            metrics.SENT_BYTES.labels(leg="bot").inc(len(wire[0]))
            self._connection.send_now(*wire)

    # ----------------------------------------------------- as the socket sees it

    def _on_message(self, payload: bytes, is_text: bool) -> None:
        metrics.RECEIVED_BYTES.labels(leg="bot").inc(len(payload))
        self._call.session.bot_is_there(monotonic_ns())  # many of these protocols have signs of life
        self._take(self._dialect.decode(payload, is_text))

    def _take(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case Reply(wire, refused):
                    if refused:
                        self._log_refusal(refused)
                    self._connection.send_now(*wire)
                case CloseSocket(code, reason):
                    if code != 1000:
                        self._log_refusal(reason, code)
                    self._connection.end(code, reason)
                    return
                case Credential():
                    pass  # the handshake had one, or the first message
                case ChangeAudio():
                    self._change_audio(step)
                case m.Configure():
                    self._configure(step)
                case _:
                    self._call.receive(step)
                    if self._joined and self._vendor.repeats_silent_turns and isinstance(step, m.Text):
                        self._reassure_later(step.turn)

    def _reassure_later(self, turn: str | None) -> None:
        if turn is not None and turn not in self._waiting and turn not in self._n_samples:
            loop = asyncio.get_running_loop()
            self._waiting[turn] = loop.call_later(_REASSURE_S, self._reassure, turn)

    def _reassure(self, turn: str) -> None:
        """A turn still waits behind another one of the call. The client gets a little silence for it."""
        del self._waiting[turn]
        if turn in self._n_samples or all(each.id != turn for each in self._call.session.turns):
            return  # it is being spoken, or is over
        options = self._dialect.options
        n_samples = FRAMES_AT_ONCE * self._call.session.settings.ptime_ms * options.rate_hz // 1000
        payload = CODECS[options.codec].silence * n_samples
        if options.container:
            payload = self._encoded(turn, payload, is_whole=False)
        if payload:
            self._send(self._dialect.audio(turn, payload, None))
        self._reassure_later(turn)

    def close(self) -> None:
        """The socket is gone."""
        for timer in (*self._waiting.values(), self._later):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()

    def _configure(self, message: m.Configure) -> None:
        """Pass voice settings to the call, with our name of the voice."""
        try:
            voice = voice_for(message.voice, self._vendor, self._settings, self._call.catalog)
        except TelephonyTTSError as error:
            self._refuse(error)
            return
        if voice is None and message.voice is not None:
            voice = ""  # the default one, whichever voice an earlier turn had
        self._call.receive(replace(message, voice=voice))

    def _refuse(self, error: TelephonyTTSError) -> None:
        """What the client asked for in a message cannot be."""
        self._log_refusal(error.message)
        self._send(self._dialect.event(m.ErrorEvent(error.code, error.message)))

    def _log_refusal(self, why: str, code: int | None = None) -> None:
        """A line for a message of the client that was refused. The call's log limits such lines."""
        self._call.log.info("vendor_message_refused", vendor=self._vendor.name, code=code, why=why[:_LOGGED_CHARS])

    def _change_audio(self, wanted: ChangeAudio) -> None:
        if (error := _encoder_problem(wanted.container, wanted.rate_hz)) is not None:
            self._refuse(error)
            return
        if not self._joined:
            self._call.session.change_format(wanted.codec, wanted.rate_hz)


def problem_of(
    dialect: VendorDialect, vendor: Vendor, settings: TransportSettings, catalog: EngineCatalog | None
) -> Refused | None:
    """Why a handshake is refused although its form is right: a wrong name of a call or of a voice, or a format whose
    encoder is not installed. Without `catalog` the voice is not looked at."""
    options = dialect.options
    if options.call is not None and not CALL_NAME.fullmatch(options.call):
        return vendor.refuse(400, "INVALID_CALL", "call: expected 1 to 128 of the characters A-Z a-z 0-9 _ . : -")
    if catalog is not None:
        try:
            voice_for(options.voice, vendor, settings, catalog)
        except TelephonyTTSError as error:
            return vendor.refuse(400, error.code, error.message)
    if (problem := _encoder_problem(options.container, options.rate_hz)) is not None:
        return vendor.refuse(501, problem.code, problem.message)
    return None


def _encoder_problem(container: str, rate_hz: int) -> TelephonyTTSError | None:
    """Why the server cannot write this format; "" is plain samples."""
    if container:
        try:
            make_encoder(container, rate_hz).close()
        except TelephonyTTSError as error:
            return error
    return None
