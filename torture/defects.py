"""Deliberate defects of the server. Each one breaks a promise, and the check of that promise has to find it.

Most of them change what a session gives to its call: the list of effects of `Session.poll`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from telephony_tts.session.effects import Effect
from telephony_tts.session.playhead import Playhead
from telephony_tts.session.sender import Sender
from telephony_tts.session.session import Session
from telephony_tts.session.turn import Turn
from telephony_tts.wire import messages as m
from torture import violations as v

Change = Callable[[Session, list[Effect]], list[Effect]]
_kept: list[Any] = []


@dataclass(frozen=True)
class Defect:
    check: str
    """The check that has to find it."""
    plant: Callable[[], object]
    is_virtual: bool = True
    """Whether a session alone shows it, on a virtual clock."""
    is_of_bridge: bool = False
    """Whether it is planted into the bridge in place of the server."""
    door: str = ""
    """The door through which it is found, where others cannot show it."""
    platform: str = ""
    """The telephone platform, of `torture.platforms`, behind which it shows. "": no platform is needed."""


def plant(name: str, *, into_bridge: bool = False) -> None:
    """Plant this defect into this process, if it is of this kind of process."""
    if DEFECTS[name].is_of_bridge == into_bridge:
        DEFECTS[name].plant()


def _poll(change: Change) -> Callable[[], None]:
    def install() -> None:
        healthy = Session.poll

        def poll(self: Session, now_ns: int) -> list[Effect]:
            return change(self, healthy(self, now_ns))

        Session.poll = poll  # type: ignore[method-assign]

    return install


def _each(change: Callable[[Effect], list[Effect]]) -> Callable[[], None]:
    return _poll(lambda _, effects: [new for old in effects for new in change(old)])


def _second_end(effect: Effect) -> list[Effect]:
    return [effect, effect] if isinstance(effect, m.Done) else [effect]


def _no_end(effect: Effect) -> list[Effect]:
    return [] if isinstance(effect, m.Cleared) else [effect]


def _second_fate(effect: Effect) -> list[Effect]:
    return [effect, effect] if isinstance(effect, m.MarkReached) else [effect]


def _no_fate(effect: Effect) -> list[Effect]:
    return [] if isinstance(effect, m.MarkReached) and effect.state == "cleared" else [effect]


def _late_frame(self: Session, effects: list[Effect]) -> list[Effect]:
    """The last frame of a turn is sent again behind its `cleared`."""
    changed: list[Effect] = []
    for effect in effects:
        changed.append(effect)
        if isinstance(effect, m.Frame) and effect.turn:
            _last_frames[id(self)] = effect
        elif isinstance(effect, m.Cleared) and effect.heard_ms and (frame := _last_frames.get(id(self))) is not None:
            changed.append(replace(frame, turn=effect.turn))
    return changed


_last_frames: dict[int, m.Frame] = {}


def _short_frame(effect: Effect) -> list[Effect]:
    return [replace(effect, payload=effect.payload[:-1])] if isinstance(effect, m.Frame) else [effect]


def _too_early() -> None:
    """Frames are sent three frames before their time."""
    healthy = Sender.send_due

    def send_due(self: Sender, now_ns: int) -> bool:
        return healthy(self, now_ns) | healthy(self, now_ns + 60_000_000)

    Sender.send_due = send_due  # type: ignore[method-assign]


def _heard_too_much(effect: Effect) -> list[Effect]:
    """A word more counts as heard."""
    if isinstance(effect, m.Cleared) and " " in effect.unheard_text.strip():
        rest = effect.unheard_text
        n = len(rest) - len(rest.lstrip())
        n += len(rest.lstrip().split(" ")[0])
        heard = effect.heard_text + rest[:n]
        return [replace(effect, heard_text=heard, heard_chars=len(heard), unheard_text=rest[n:])]
    return [effect]


def _heard_ms_late(effect: Effect) -> list[Effect]:
    """The frames that were sent ahead count as heard."""
    return [replace(effect, heard_ms=effect.heard_ms + 200)] if isinstance(effect, m.Cleared) else [effect]


def _no_media_clear(effect: Effect) -> list[Effect]:
    """The platform is never told to drop its audio."""
    return [] if isinstance(effect, m.MediaClear) else [effect]


def _place_of_the_client(effect: Effect) -> list[Effect]:
    """A place of the client counts, and the client has told none."""
    if not isinstance(effect, m.Cleared):
        return [effect]
    return [replace(effect, basis="client", heard_ms=effect.heard_ms + 5000)]


def _lost_by_our_schedule() -> None:
    """After a clear, the turns that stay go on where our schedule is, not where the peer was."""

    def n_played_frames(self: Playhead, turn: Turn, now_ns: int) -> int:
        return turn.playout.played_ns(now_ns) // turn.playout.ptime_ns

    Playhead.n_played_frames = n_played_frames  # type: ignore[method-assign]


def _heard_by_our_schedule() -> None:
    """The reports of the peer are not believed."""

    def place(self: Playhead, turn: Turn, now_ns: int) -> tuple[int, str]:
        return turn.playout.played_ns(now_ns) * self.rate_hz // 1_000_000_000, "marks"

    Playhead._place = place  # type: ignore[method-assign]


def _no_mark_before_speech() -> None:
    """Nothing is known of the peer until it has played its first speech."""
    Playhead.ask_for_report = lambda self: None  # type: ignore[method-assign]


def _done_when_sent(self: Session, effects: list[Effect]) -> list[Effect]:
    """`done` comes when the last frame is sent."""
    for turn in self.turns:
        if turn.sent_all and turn.playout.t0_ns is not None and self._media:
            turn.playout.t0_ns -= 1_000_000_000
    return effects


def _started_late(effects: list[Effect]) -> list[Effect]:
    first = next((at for at, effect in enumerate(effects) if isinstance(effect, m.Started)), None)
    if first is None:
        return effects
    return [*effects[:first], *effects[first + 1 :], effects[first]]


def _no_pong(effect: Effect) -> list[Effect]:
    return [] if isinstance(effect, m.Pong) else [effect]


def _another_close_code() -> None:
    healthy = Session.close

    def close(self: Session, now_ns: int, **how: Any) -> None:
        healthy(self, now_ns, **{**how, "code": 1011})

    Session.close = close  # type: ignore[method-assign]


def _on_clear(act: Callable[[], object]) -> Callable[[], None]:
    """Do something in the server's process at each `cleared`."""

    def change(effect: Effect) -> list[Effect]:
        if isinstance(effect, m.Cleared):
            act()
        return [effect]

    return _each(change)


def _blocked() -> None:
    time.sleep(0.08)  # the defect: the event loop is blocked


def _leak_task() -> None:
    _kept.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))


def _leak_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def _leak_descriptor() -> None:
    os.open("/dev/null", os.O_RDONLY)


def _leak_file() -> None:
    os.close(tempfile.mkstemp()[0])


def _leak_memory() -> None:
    _kept.append(bytearray(os.urandom(4096) * 250))


def _leak_slowly() -> None:
    """Each call leaves some hundred bytes, in an object that the garbage collector does not know."""
    healthy = Session.__init__

    def init(self: Session, *words: Any, **options: Any) -> None:
        healthy(self, *words, **options)
        _kept.append(os.urandom(400))

    Session.__init__ = init  # type: ignore[method-assign]


def _leak_session() -> None:
    healthy = Session.__init__

    def init(self: Session, *words: Any, **options: Any) -> None:
        healthy(self, *words, **options)
        _kept.append(self)

    Session.__init__ = init  # type: ignore[method-assign]


def _raise_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 // 0)


def _wrong_exit_status() -> None:
    import atexit

    atexit.register(lambda: os._exit(3))


def _clock_of_the_day() -> None:
    """A call reads the clock of the day, which may step."""
    from telephony_tts.transport import call

    offset_ns = time.time_ns() - time.monotonic_ns()
    call.monotonic_ns = lambda: time.time_ns() - offset_ns


def _name_stays_taken() -> None:
    """A call is found after its end."""
    from telephony_tts.transport.registry import Registry

    known: dict[str, Any] = {}
    healthy = Registry.find

    def find(self: Registry, call_id: str) -> Any:
        known[call_id] = healthy(self, call_id) or known.get(call_id)
        return known[call_id]

    Registry.find = find  # type: ignore[method-assign]


def _names_block() -> None:
    """The name of a bot is looked up by the event loop."""
    import socket

    from telephony_tts.transport import bot_dial

    healthy = bot_dial._connect

    async def connect(*what: Any) -> Any:
        with suppress(OSError):
            socket.getaddrinfo("bot.torture.example", 9)
        return await healthy(*what)

    bot_dial._connect = connect


def _http_leaves_out() -> None:
    """Every other piece of an HTTP answer is lost."""
    from telephony_tts.http_api import responses

    healthy = responses._encoded

    async def encoded(*what: Any) -> Any:
        n = 0
        async for data in healthy(*what):
            n += 1
            if n % 2:
                yield data

    responses._encoded = encoded


def _ends_other_calls() -> None:
    """When the media leg of one call is lost, all calls end."""
    from telephony_tts.transport.call import Call

    calls: WeakSet[Call] = WeakSet()
    join, left = Call.join_bot, Call.media_left

    def join_bot(self: Call, *what: Any) -> None:
        calls.add(self)
        join(self, *what)

    def media_left(self: Call, *what: Any) -> None:
        left(self, *what)
        for call in list(calls):
            call.finish(1011, "another call has ended")

    Call.join_bot, Call.media_left = join_bot, media_left  # type: ignore[method-assign]


def _flux_place() -> None:
    """Half a second more counts as heard."""
    from telephony_tts.doors.deepgram.flux import DeepgramFlux

    healthy = DeepgramFlux._interrupted

    def interrupted(self: DeepgramFlux, cleared: dict[str, m.Cleared], offset_ms: int | None) -> Any:
        moved = {key: replace(each, heard_ms=each.heard_ms + 500) for key, each in cleared.items()}
        return healthy(self, moved, offset_ms)

    DeepgramFlux._interrupted = interrupted  # type: ignore[method-assign]


def _flux_second_end() -> None:
    """Every speech ends twice."""
    from telephony_tts.doors.deepgram.flux import DeepgramFlux

    healthy = DeepgramFlux._over

    def over(self: DeepgramFlux, *what: Any, **how: Any) -> Any:
        for wire in healthy(self, *what, **how):
            yield wire
            if isinstance(wire, tuple) and b'"SpeechMetadata"' in wire[0]:
                yield wire

    DeepgramFlux._over = over  # type: ignore[method-assign]


def _flux_late_audio() -> None:
    """Audio of an interrupted speech comes behind the answer."""
    from telephony_tts.doors.deepgram.flux import DeepgramFlux
    from telephony_tts.wire.vendor import Reply

    audio, interrupt = DeepgramFlux.audio, DeepgramFlux._interrupt
    last: dict[int, Any] = {}

    def keep(self: DeepgramFlux, *what: Any) -> Any:
        for wire in audio(self, *what):
            last[id(self)] = wire
            yield wire

    def resend(self: DeepgramFlux, *what: Any) -> Any:
        yield from interrupt(self, *what)
        if (wire := last.get(id(self))) is not None:
            yield Reply(wire)

    DeepgramFlux.audio, DeepgramFlux._interrupt = keep, resend  # type: ignore[method-assign]


def _flux_no_answer() -> None:
    """A change of the settings is not answered."""
    from telephony_tts.doors.deepgram.flux import DeepgramFlux

    DeepgramFlux._configure = lambda *_: ()  # type: ignore[method-assign]


def _unusable_ends_well() -> None:
    """A message that cannot be used closes the connection as if all were well."""
    from telephony_tts.doors.deepgram import codec as deepgram
    from telephony_tts.wire.vendor import CloseSocket

    deepgram.failure = lambda invalid: CloseSocket(1000, "closed")


def _audio_of_no_task() -> None:
    """Some audio is sent without the message that says of which task it is."""
    from telephony_tts.doors.dashscope.codec import DashScopeTasks

    healthy = DashScopeTasks.audio
    numbers = itertools.count()

    def audio(self: DashScopeTasks, *what: Any) -> Any:
        wires = list(healthy(self, *what))
        return wires[-1:] if next(numbers) % 3 == 2 else wires

    DashScopeTasks.audio = audio  # type: ignore[method-assign]


def _sentences_untold() -> None:
    """The client does not get to know what was spoken."""
    from telephony_tts.doors.dashscope.codec import DashScopeTasks

    healthy = DashScopeTasks.event

    def event(self: DashScopeTasks, event: Any) -> Any:
        return () if isinstance(event, m.SentenceSpoken) else healthy(self, event)

    DashScopeTasks.event = event  # type: ignore[method-assign]


def _characters_twice() -> None:
    """Each piece of an alignment has its characters twice."""
    from telephony_tts.doors.elevenlabs import codec as elevenlabs

    healthy = elevenlabs._alignment
    elevenlabs._alignment = lambda text, spans_ms: healthy(text * 2, [*spans_ms, *spans_ms])


def _text_closes_wrongly() -> None:
    """Behind the last text the connection is closed with another code."""
    from telephony_tts.doors.elevenlabs.codec import ElevenLabsStream
    from telephony_tts.wire.vendor import CloseSocket

    healthy = ElevenLabsStream._finals

    def finals(self: ElevenLabsStream, *what: Any) -> Any:
        for wire in healthy(self, *what):
            yield CloseSocket(1001, "going away") if isinstance(wire, CloseSocket) else wire

    ElevenLabsStream._finals = finals  # type: ignore[method-assign]


def _joined_goes_on() -> None:
    """A request whose client is gone is spoken to its end."""
    from telephony_tts.http_api.call_bot import HttpBot

    healthy = HttpBot.leave
    HttpBot.leave = lambda self, response: healthy(self, None)  # type: ignore[method-assign]


def _joined_is_short() -> None:
    """The response is half as long as the speech."""
    from telephony_tts.http_api.call_bot import TurnResponse

    healthy = TurnResponse.add_silence
    TurnResponse.add_silence = lambda self, ms: healthy(self, ms // 2)  # type: ignore[method-assign]


def _joined_out_of_order() -> None:
    """The first request of a call waits, and later ones are spoken before it."""
    from telephony_tts.http_api.speech import SpeechStreams

    healthy = SpeechStreams._join
    begun: set[str] = set()

    @asynccontextmanager
    async def join(self: SpeechStreams, call: str, *what: Any) -> Any:
        if call not in begun:
            begun.add(call)
            await asyncio.sleep(0.7)
        async with healthy(self, call, *what) as audio:
            yield audio

    SpeechStreams._join = join  # type: ignore[method-assign, assignment]


def _joined_gives_up_early() -> None:
    """A call does not wait for its telephone as long as the settings say."""
    from telephony_tts.http_api.call_bot import HttpBot

    healthy = HttpBot.join
    HttpBot.join = lambda self, claim_s: healthy(self, claim_s / 3)  # type: ignore[method-assign]


def _other_code_if_taken() -> None:
    """A bot whose call has another one is not told so."""
    from telephony_tts.transport.connection import CallConnection

    healthy = CallConnection.end

    def end(self: CallConnection, code: int, reason: str, *more: Any) -> None:
        healthy(self, 1000 if code == 4409 else code, reason, *more)

    CallConnection.end = end  # type: ignore[method-assign]


def _engine_names_block() -> None:
    """The name of an engine is looked up by the event loop."""
    import socket

    from telephony_tts.engines.others.http_speech import HttpSpeech

    healthy = HttpSpeech.speak

    def speak(self: HttpSpeech, *what: Any) -> Any:
        with suppress(OSError):
            socket.getaddrinfo("voices.torture.example", 9)
        return healthy(self, *what)

    HttpSpeech.speak = speak  # type: ignore[method-assign]


def _error_kept_back() -> None:
    """A turn whose engine cannot be found ends some seconds too late."""
    from telephony_tts.engines.others.other_engine import OtherEngine
    from telephony_tts.runtime.errors import EngineError

    healthy = OtherEngine._read_again_if_lost

    async def read(self: OtherEngine, *what: Any) -> None:
        try:
            await healthy(self, *what)
        except EngineError:
            await asyncio.sleep(6)
            raise

    OtherEngine._read_again_if_lost = read  # type: ignore[method-assign]


def _waits_after_restart() -> None:
    """CosyVoice2 speaks late when its process was started again."""
    from telephony_tts.engines.cosyvoice2.hosting.process_host import ProcessHost

    healthy = ProcessHost.wait_ready

    async def wait_ready(self: ProcessHost, **how: Any) -> None:
        await healthy(self, **how)
        if self._n_restarts:
            await asyncio.sleep(3)

    ProcessHost.wait_ready = wait_ready  # type: ignore[method-assign]


def _gives_up_stopped() -> None:
    """CosyVoice2's process is given up when it says nothing for a moment."""
    from telephony_tts.engines.cosyvoice2.hosting.process_host import ProcessHost, _HostState

    healthy = ProcessHost._silence_s.fget  # type: ignore[attr-defined]
    ProcessHost._silence_s = property(  # type: ignore[assignment]
        lambda self: 0.4 if self._state is _HostState.READY and not self._n_restarts else healthy(self)
    )


def _finds_engine_late() -> None:
    """A server uses an engine that is back a second late."""
    from telephony_tts.engines.remote.connection import EngineConnection

    healthy = EngineConnection._read
    known: WeakSet[EngineConnection] = WeakSet()

    async def read(self: EngineConnection, call: Any) -> None:
        if self in known:
            await call.wait_for_connection()
            await asyncio.sleep(1)  # longer, and the engine takes the server for dead
        known.add(self)
        await healthy(self, call)

    EngineConnection._read = read  # type: ignore[method-assign]


def _bridge_leaks() -> None:
    from sip_bridge.audiosocket.call import AudioSocketCall

    healthy = AudioSocketCall.run

    async def run(self: AudioSocketCall) -> None:
        await healthy(self)
        _leak_descriptor()

    AudioSocketCall.run = run  # type: ignore[method-assign]


def _bridge_joins_late() -> None:
    from sip_bridge import server_leg

    healthy = server_leg._connect

    async def connect(*what: Any) -> Any:
        await asyncio.sleep(1)
        return await healthy(*what)

    server_leg._connect = connect


def _hears_no_caller() -> None:
    """The caller's voice is not listened to, and the bot is not told."""
    from telephony_tts.session.caller.talkspurt import TalkSpurt

    TalkSpurt.feed = lambda self, *_what: None  # type: ignore[method-assign]


def _caller_interrupts_nothing(effect: Effect) -> list[Effect]:
    """What is said of an interruption is not what was done."""
    is_end = isinstance(effect, m.CallerSpeech) and effect.interrupted is not None
    return [replace(effect, interrupted=not effect.interrupted)] if is_end else [effect]  # type: ignore[type-var]


def _caller_is_not_told(effect: Effect) -> list[Effect]:
    """The bot does not learn that the caller has begun to speak."""
    return [] if isinstance(effect, m.CallerSpeech) and effect.state == "speaking" else [effect]


def _no_bed() -> None:
    """A sound under the speech is silent."""
    from telephony_tts.session.bed import Bed

    healthy = Bed._next
    Bed._next = lambda self, n, is_quiet: healthy(self, n, is_quiet) * 0  # type: ignore[method-assign]


def _bed_stays() -> None:
    """A sound under the speech goes on when it is stopped."""
    from telephony_tts.session.bed import Bed

    Bed.stop = lambda self: None  # type: ignore[method-assign]


def _no_sound_error() -> None:
    """Nothing is said about a sound that cannot be played."""
    from telephony_tts.transport.call import Call

    healthy = Call._to_bot

    def to_bot(self: Call, event: m.ToBot) -> None:
        if not (isinstance(event, m.ErrorEvent) and event.code == "bad_sound"):
            healthy(self, event)

    Call._to_bot = to_bot  # type: ignore[method-assign]


def _long_message() -> None:
    """Vonage gets two frames in one message."""
    from telephony_tts.doors.vonage.codec import VonageCodec

    healthy = VonageCodec.encode

    def encode(self: VonageCodec, message: m.ToMedia) -> Any:
        return healthy(self, replace(message, payload=message.payload * 2) if type(message) is m.Frame else message)

    VonageCodec.encode = encode  # type: ignore[method-assign]


def _wrong_numbers() -> None:
    """Genesys gets two messages with one number."""
    from telephony_tts.doors.genesys.codec import GenesysCodec

    healthy = GenesysCodec.message

    def message(self: GenesysCodec, kind: str, fields: dict[str, Any]) -> Any:
        if kind == "event":
            self._seq -= 1
        return healthy(self, kind, fields)

    GenesysCodec.message = message  # type: ignore[method-assign]


def _recording_too_loud() -> None:
    """A recording has other samples than were sent."""
    from telephony_tts.recording.stereo import Mixer

    healthy = Mixer._decode
    Mixer._decode = lambda self, channel, piece: healthy(self, channel, piece) // 2  # type: ignore[method-assign]


def _recording_header() -> None:
    """The header of a recording promises too much."""
    from telephony_tts.recording import writer

    healthy = writer.header
    writer.header = lambda n_samples: healthy(n_samples + 80)


DEFECTS: dict[str, Defect] = {
    "second_end": Defect(v.ONE_END, _each(_second_end)),
    "no_end": Defect(v.ONE_END, _each(_no_end)),
    "second_fate": Defect(v.ONE_FATE, _each(_second_fate)),
    "no_fate": Defect(v.ONE_FATE, _each(_no_fate)),
    "late_frame": Defect(v.SILENCE, _poll(_late_frame)),
    "short_frame": Defect(v.FRAMES, _each(_short_frame)),
    "too_early": Defect(v.CLOCK, _too_early),
    "heard_too_much": Defect(v.HEARD, _each(_heard_too_much)),
    "heard_ms_late": Defect(v.HEARD, _each(_heard_ms_late)),
    "lost_by_our_schedule": Defect(v.LOST, _lost_by_our_schedule, platform="twilio"),
    "heard_by_our_schedule": Defect(v.HEARD, _heard_by_our_schedule, platform="asterisk"),
    "no_mark_before_speech": Defect(v.HEARD, _no_mark_before_speech, platform="plivo"),
    "no_media_clear": Defect(v.SILENCE, _each(_no_media_clear), platform="twilio"),
    "place_of_the_client": Defect(v.HEARD, _each(_place_of_the_client)),
    "done_when_sent": Defect(v.DONE, _poll(_done_when_sent)),
    "started_late": Defect(v.ORDER, _poll(lambda _, effects: _started_late(effects))),
    "no_pong": Defect(v.ANSWERS, _each(_no_pong)),
    "hears_no_caller": Defect(v.VOICE, _hears_no_caller, platform="twilio"),
    "caller_interrupts_nothing": Defect(v.VOICE, _each(_caller_interrupts_nothing), platform="twilio"),
    "caller_is_not_told": Defect(v.VOICE, _each(_caller_is_not_told), platform="twilio"),
    "no_bed": Defect(v.SOUNDS, _no_bed),
    "bed_stays": Defect(v.SOUNDS, _bed_stays),
    "no_sound_error": Defect(v.SOUNDS, _no_sound_error),
    "long_message": Defect(v.FRAMES, _long_message, platform="vonage"),
    "wrong_numbers": Defect(v.ORDER, _wrong_numbers, platform="genesys"),
    "recording_too_loud": Defect(v.RECORDINGS, _recording_too_loud, is_virtual=False),
    "recording_header": Defect(v.RECORDINGS, _recording_header, is_virtual=False),
    "another_close_code": Defect(v.CLOSE, _another_close_code, is_virtual=False),
    "blocked": Defect(v.NEIGHBOUR, _on_clear(_blocked), is_virtual=False),
    "leak_task": Defect(v.LEAKS, _on_clear(_leak_task), is_virtual=False),
    "leak_thread": Defect(v.LEAKS, _on_clear(_leak_thread), is_virtual=False),
    "leak_descriptor": Defect(v.LEAKS, _on_clear(_leak_descriptor), is_virtual=False),
    "leak_file": Defect(v.LEAKS, _on_clear(_leak_file), is_virtual=False),
    "leak_memory": Defect(v.LEAKS, _on_clear(_leak_memory), is_virtual=False),
    "leak_slowly": Defect(v.LEAKS, _leak_slowly, is_virtual=False),
    "leak_session": Defect(v.LEAKS, _leak_session, is_virtual=False),
    "raise_in_a_callback": Defect(v.LOGS, _on_clear(_raise_in_a_callback), is_virtual=False),
    "wrong_exit_status": Defect(v.DRAIN, _wrong_exit_status, is_virtual=False),
    "clock_of_the_day": Defect(v.CLOCK, _clock_of_the_day, is_virtual=False),
    "name_stays_taken": Defect(v.CLOSE, _name_stays_taken, is_virtual=False),
    "names_block": Defect(v.NEIGHBOUR, _names_block, is_virtual=False),
    "http_leaves_out": Defect(v.DONE, _http_leaves_out, is_virtual=False),
    "ends_other_calls": Defect(v.RECOVERY, _ends_other_calls, is_virtual=False),
    "finds_engine_late": Defect(v.RECOVERY, _finds_engine_late, is_virtual=False),
    "flux_place": Defect(v.HEARD, _flux_place, is_virtual=False, door="deepgram_flux"),
    "flux_second_end": Defect(v.ONE_END, _flux_second_end, is_virtual=False, door="deepgram_flux"),
    "flux_late_audio": Defect(v.SILENCE, _flux_late_audio, is_virtual=False, door="deepgram_flux"),
    "flux_no_answer": Defect(v.ANSWERS, _flux_no_answer, is_virtual=False, door="deepgram_flux"),
    "unusable_ends_well": Defect(v.CLOSE, _unusable_ends_well, is_virtual=False, door="deepgram"),
    "audio_of_no_task": Defect(v.ORDER, _audio_of_no_task, is_virtual=False, door="dashscope"),
    "sentences_untold": Defect(v.DONE, _sentences_untold, is_virtual=False, door="dashscope"),
    "characters_twice": Defect(v.ORDER, _characters_twice, is_virtual=False, door="elevenlabs_stream"),
    "text_closes_wrongly": Defect(v.CLOSE, _text_closes_wrongly, is_virtual=False, door="elevenlabs_stream"),
    "joined_goes_on": Defect(v.SILENCE, _joined_goes_on, is_virtual=False, door="joined"),
    "joined_is_short": Defect(v.DONE, _joined_is_short, is_virtual=False, door="joined"),
    "joined_out_of_order": Defect(v.ORDER, _joined_out_of_order, is_virtual=False, door="joined"),
    "joined_gives_up_early": Defect(v.ANSWERS, _joined_gives_up_early, is_virtual=False, door="joined"),
    "other_code_if_taken": Defect(v.CLOSE, _other_code_if_taken, is_virtual=False, door="joined"),
    "engine_names_block": Defect(v.NEIGHBOUR, _engine_names_block, is_virtual=False),
    "error_kept_back": Defect(v.ONE_END, _error_kept_back, is_virtual=False, door="far_engine"),
    "waits_after_restart": Defect(v.RECOVERY, _waits_after_restart, is_virtual=False),
    "gives_up_stopped": Defect(v.RECOVERY, _gives_up_stopped, is_virtual=False),
    "bridge_leaks": Defect(v.LEAKS, _bridge_leaks, is_virtual=False, is_of_bridge=True),
    "bridge_joins_late": Defect(v.RECOVERY, _bridge_joins_late, is_virtual=False, is_of_bridge=True),
}
