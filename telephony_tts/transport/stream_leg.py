"""A bot on `/v1/stream`: with its audio on the same socket, or in the call of a media leg."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial

from telephony_tts.ops.keys.key import NO_KEY, Key
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.sound_source import FindSound
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.call_catalog import CallCatalog
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.registry import Registry, close_code
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.text_work import text_work
from telephony_tts.transport.voice_model import VOICE_MODEL
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import quote
from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.native import NativeCodec
from telephony_tts.wire.query import StreamOptions

_MEDIA_OPTIONS = ("codec", "rate_hz", "ptime_ms", "pace", "lead_ms")


async def serve_stream(
    connection: CallConnection, settings: TransportSettings, registry: Registry, catalog: EngineCatalog
) -> None:
    """Serve one bot until its socket is gone."""
    options = connection.options
    assert options is not None
    if isinstance(options, Invalid):
        metrics.REFUSED.labels(reason="bad_request").inc()
        _refuse(connection, options.code, options.message, 4400)
        return
    joins = options.call is not None and options.audio in (None, "none")
    audio = "none" if joins else options.audio or "base64"
    call_id = options.call or f"c{secrets.token_hex(6)}"
    codec = NativeCodec(audio, call_id)

    def new() -> Call:
        speech = _media_speech(settings.speech) if joins else _speech(settings.speech, options)
        kind = "joined" if joins else "stream"
        return new_call(replace(speech, call=call_id), catalog, kind, settings.find_sound, settings=settings)

    try:
        call = await registry.admitted(
            connection, call_id, partial(registry.admit_bot, call_id, connection.key, new, joins=joins),
            may_begin=connection.may_begin, leg="bot",
        )  # fmt: skip
    except TelephonyTTSError as error:
        _refuse(connection, error.code, error.message, close_code(error))
        return
    if call is None:
        return
    connection.log = call.log
    call.traceparent = connection.traceparent
    try:
        if joins:
            call.session.new_bot(settings.speech.limits)  # nothing stays of the protocol of a bot that has left
        else:
            call.frames_to_bot(connection, codec.encode)
        call.join_bot(connection, codec.encode, ready(call, options))
        if call.media is None:
            call.expect("media", settings.limits.call_claim_s)
        _warn_of_options(call, options, joins)
        call.session.use_lexicons((*connection.lexicons, *([options.lexicon] if options.lexicon else [])))
        call.receive(_asked_for(options))
        if options.voice is not None:
            call.receive(m.Configure(voice=options.voice))
        if options.record == "on":
            call.record("start")

        def on_message(payload: bytes, is_text: bool) -> None:
            metrics.RECEIVED_BYTES.labels(leg="bot").inc(len(payload))
            call.receive(codec.decode(payload, is_text))

        if audio == "none":
            call.keep_unread(connection)
        connection.listen(on_message, (lambda flag: None) if audio == "none" else call.writable)
        await connection.left
    finally:
        call.bot_left(connection, f"closed with {connection.protocol.close_code or 'no code'}")


def _asked_for(options: StreamOptions) -> m.Configure:
    """The options that a `config` message has too. The voice is sent separately, because an unknown voice makes the
    whole message invalid."""
    return m.Configure(
        lang=options.lang, speed=options.speed, text_type=options.text_type, thinking=options.thinking,
        inbound=options.inbound,
        barge_in=options.barge_in, min_speech_ms=options.min_speech_ms, hold_off_ms=options.hold_off_ms,
        barge_in_action=options.barge_in_action, false_interruption_ms=options.false_interruption_ms,
        resume_after_ms=options.resume_after_ms, step_back_ms=options.step_back_ms, words=options.words,
        caller_silent_ms=options.caller_silent_ms, dtmf=options.dtmf,
        answering_machine=options.answering_machine,
    )


def new_call(
    speech: SessionSettings,
    catalog: EngineCatalog,
    kind: str,
    find_sound: FindSound | None = None,
    settings: TransportSettings | None = None,
) -> Call:
    """A call that begins now. `kind` is its name in the metrics; "stream" and "http" have no media leg. Without
    `find_sound` it has no sounds. With `settings` the limits of keys hold, and it takes part in the experiments. The
    `catalog` of a call for an HTTP request has those limits already."""
    speech = replace(speech, session=f"s{secrets.token_hex(6)}")
    if settings is not None and kind != "http":
        catalog = CallCatalog(catalog, settings.owners)
    session = Session(
        speech,
        monotonic_ns(),
        media=kind in ("stream", "http"),
        voice_model=VOICE_MODEL.find,
        detect_language=catalog.detect_language,
        has_voice=catalog.has_voice,
        reads_digits=catalog.reads_digits,
        find_sound=find_sound,
        knows_voice=catalog.knows_voice,
        may_work=text_work().may_work,
    )
    if settings is None:
        return Call(session, catalog, kind)
    return Call(session, catalog, kind, settings.experiments, settings.keys.characters)


def ready(call: Call, options: StreamOptions | None = None) -> m.Ready:
    """The greeting of a bot leg, with the options that it asked for."""
    options = options or StreamOptions()
    speech = call.session.settings
    limits = speech.limits
    return m.Ready(
        session=speech.session,
        call=speech.call,
        codec=speech.codec,
        rate_hz=speech.rate_hz,
        ptime_ms=speech.ptime_ms,
        pace=speech.pace,
        lead_ms=speech.lead_ms,
        voice=call.voice_name(options.voice),
        barge_in=options.barge_in or ("on" if call.session.caller.is_on else "off"),
        experiment=None if call.arm is None else call.arm.experiment.name,
        arm=None if call.arm is None else call.arm.arm.name,
        limits={
            "turn_chars": limits.turn_chars,
            "queued_turns": limits.queued_turns,
            "text_chars_per_s": limits.text_chars_per_s,
            "pause_chars": speech.pause_chars,
            "resume_chars": speech.resume_chars,
            "pending_marks": speech.pending_marks,
            "idle_s": limits.idle_s,
            "turn_idle_s": limits.turn_idle_s,
        },
    )


def suited(
    speech: SessionSettings, options: StreamOptions | Invalid, key: Key = NO_KEY
) -> StreamOptions | Invalid:
    """The options, or `Invalid` if they do not go together, or are not allowed to `key`."""
    if isinstance(options, Invalid):
        return options
    if options.lexicon is not None and not key.allows_lexicon(options.lexicon):
        known = ", ".join(key.lexicons or ()) or "none"
        return Invalid("bad_option", f"lexicon={quote(options.lexicon)}: key {key.name} may use {known}")
    if options.lexicon is not None and (speech.lexicon is None or options.lexicon not in speech.lexicon.shelf):
        return Invalid("bad_option", f"lexicon={quote(options.lexicon)}: this server has no lexicon of that name")
    if options.call is not None and options.audio in (None, "none"):
        return options  # a bot that joins a call has the media leg's codec and rate
    asked = _speech(speech, options)
    if asked.codec == "pcm" or asked.rate_hz == 8000:
        return options
    message = f"rate={asked.rate_hz}: expected 8000 with codec {asked.codec}; other rates go with codec=pcm"
    return Invalid("bad_option", message)


def _speech(speech: SessionSettings, options: StreamOptions) -> SessionSettings:
    """The configured settings, with those that the client asked for."""
    codec = options.codec or speech.codec
    rate_hz = options.rate_hz or (speech.rate_hz if codec == speech.codec else 8000)
    return replace(
        speech,
        codec=codec,
        rate_hz=rate_hz,
        ptime_ms=options.ptime_ms or speech.ptime_ms,
        pace=options.pace or speech.pace,
        lead_ms=speech.lead_ms if options.lead_ms is None else options.lead_ms,
    )


def _media_speech(speech: SessionSettings) -> SessionSettings:
    """Settings for a call that waits for its media leg. Most have μ-law at 8 kHz; for others speech is made again."""
    return replace(speech, codec="ulaw", rate_hz=8000)


def _warn_of_options(call: Call, options: StreamOptions, joins: bool) -> None:
    for name in options.unknown:
        call.tell_bot(m.WarningEvent("unknown_option", f"option {name} is not known and was ignored"))
    if joins:
        for name in _MEDIA_OPTIONS:
            if getattr(options, name) is not None:
                message = f"{name} belongs to the media leg; it was ignored"
                call.tell_bot(m.WarningEvent("option_ignored", message))


def _refuse(connection: CallConnection, code: str, message: str, closes_with: int) -> None:
    """Tell a client with an error event why it is refused, and close. A server that is busy only closes."""
    wire = NativeCodec("none").encode(m.ErrorEvent(code, message, fatal=True))
    assert wire is not None
    if closes_with != 1013:
        connection.send_now(*wire)
    connection.end(closes_with, message)
