"""One call: drives its session, and owns its engine work and its two legs.

The session gets everything that happens to a call, and then `_pump` performs the session's effects
synchronously. The tasks of a call pull engines and dial the bot. They are children of its TaskGroup and end with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast
from weakref import WeakMethod

from telephony_tts.engines.api import Chunk, Engine, EngineStats, LangSource, Utterance, Voice, halves
from telephony_tts.engines.failover import Failover, Reason
from telephony_tts.experiments.arms import SPEECH, numbers_in
from telephony_tts.experiments.running import Experiments, RunningArm
from telephony_tts.ops.keys.key import NO_KEY, CharacterUse, Key
from telephony_tts.recording.live import LiveRecording, OnWritten, Recordings
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import (
    EngineError,
    ReplicaLost,
    SoundError,
    TelephonyTTSError,
    UnknownVoice,
    UnsupportedText,
)
from telephony_tts.session.bed import Bed
from telephony_tts.session.digits import Digits
from telephony_tts.session.effects import CancelSynthesis, FeedText, Finish, LoadBed, Pull, Synthesize, UnderrunEnded
from telephony_tts.session.sender import PlayoutListener
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call_catalog import CallCatalog
from telephony_tts.transport.connection import DirectConnection
from telephony_tts.transport.journal import Journal
from telephony_tts.transport.text_work import text_work
from telephony_tts.transport.turn_traces import Tracing
from telephony_tts.transport.utterance_run import UtteranceRun
from telephony_tts.wire import messages as m

_log = logs.get(__name__)
_audit = logs.get(logs.AUDIT)
_MOST_NOTED_VOICES = 20

Wire = tuple[bytes, bool]
EncodeMedia = Callable[[m.ToMedia], Wire | None]
_SENT = {leg: metrics.SENT_BYTES.labels(leg=leg) for leg in metrics.LEGS}
_FIRST_MS = 120
"""How much kept audio is given at once. The resampler holds back 75 ms; a whole chunk would delay the first frame."""
_MISSED_EVENTS = 64
"""How many call events are kept for a bot that has not joined yet."""
_MOST_LOST = 3
"""So many replicas may be lost with one sentence. Then its turn ends with an error: it may be what kills them."""
_WRITTEN_WITHIN_S = 0.05
"""The longest time that the bot's leg stays open for the end of a recording that is being written."""
_MOST_RECORDINGS = 20
"""The most recordings of one call: a bot in a loop must not fill the folder with small files."""


class EngineCatalog(Protocol):
    """The engines, as the transport needs them: `engines.catalog.Catalog`."""

    @property
    def engines(self) -> tuple[Engine, ...]: ...
    @property
    def loading(self) -> dict[str, str]: ...
    @property
    def loading_step(self) -> str: ...
    @property
    def failover(self) -> Failover | None: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def retry_after_ms(self) -> int: ...
    def resolve(
        self, voice: str | None, lang: str | None, text: str, lang_source: LangSource = "bot"
    ) -> tuple[Engine, Voice]: ...
    def choose(self, utterance: Utterance) -> tuple[Engine, Voice]: ...
    def recall(self, utterance: Utterance) -> tuple[Voice, Sequence[Chunk]] | None: ...
    def mismatch(self, utterance: Utterance, voice: Voice) -> str | None: ...
    def detect_language(self, sentence: str) -> str | None: ...
    def has_voice(self, voice: str | None, language: str) -> bool: ...
    def reads_digits(self, voice: str | None, language: str) -> bool: ...
    def knows_voice(self, name: str) -> bool: ...
    def stats(self) -> dict[str, EngineStats]: ...


class Leg(Protocol):
    """A socket of the call, which is written without waiting."""

    def send_now(self, payload: bytes, is_text: bool) -> None: ...
    def end(self, code: int, reason: str) -> None:
        """Close without waiting. Idempotent."""


class CallObserver(PlayoutListener, Protocol):
    """Follows a call: what comes from both legs, what the bot is told, and what the caller hears. It never raises."""

    def received(self, message: m.FromBot | m.FromMedia, now_ns: int) -> None:
        """A message of either leg came. The session gets it next."""

    def told(self, event: m.ToBot, now_ns: int) -> None:
        """An event went to the bot, or would go if there were one."""

    def remember_private(self) -> None:
        """The session has got text, maybe that of a private turn."""


class Call:
    """See the module text. `kind` says in the metrics where its frames go."""

    def __init__(
        self,
        session: Session,
        catalog: EngineCatalog,
        kind: str,
        experiments: Experiments | None = None,
        characters: CharacterUse | None = None,
    ) -> None:
        """`experiments` are those that the call may take part in. `characters` counts those of keys with a name."""
        self.session = session
        self.id = session.settings.call
        self.kind = kind
        self.began_ns = monotonic_ns()
        self.key = NO_KEY
        """Who makes it speak: the bot's key, or before a bot came the key of the leg that began it."""
        self.first_bots_key: Key | None = None
        """None before a bot came."""
        self._characters = characters
        self.arm: RunningArm | None = None
        """The arm of its experiment. It is settled with the first turn."""
        self._experiments = experiments if kind != "http" else None
        self._numbers: list[str] = []
        self._first_settings = session.settings
        """What the call starts with, without an arm."""
        self.log = _log.bind(call=self.id).limited(logs.LineLimit.of_call())
        """The call's log, with a limit on the lines that its peers cause."""
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._group: asyncio.TaskGroup | None = None
        self._runs: dict[str, UtteranceRun] = {}
        """The utterances that engines speak for this call, by their id."""
        self._side_tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._text_work = text_work()
        self._waits_for_text = False
        self._n_text_slices = 0
        """The slices that the text had which waits now."""
        self._claim: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._end: tuple[int, str] | None = None
        self.started = asyncio.Event()
        self.on_over: Callable[[], None] | None = None
        """Called when the call is over: its id is free."""
        self.bot: Leg | None = None
        self.media: Leg | None = None
        self._encode_bot: Callable[[m.ToBot | m.Frame], Wire | None] | None = None
        self._encode_media: EncodeMedia | None = None
        self._send_gathered: Callable[[], None] | None = None
        self.on_frame: Callable[[m.Frame], None] | None = None
        """Called with each frame that goes to the media leg, for a bot that must know."""
        self.recordings: Recordings | None = None
        """Where the call can be recorded. None if it cannot."""
        self.recording: LiveRecording | None = None
        self.observers: list[CallObserver] = []
        """They get all that both legs say, such as `recording`. They also listen to the session."""
        self._n_recordings = 0
        self._n_unwritten = 0
        """How many recordings have ended, and are still being written."""
        self._all_written = asyncio.Event()
        self._started_meanwhile: deque[m.RecordingChanged] = deque()
        """The starts of recordings that the bot is not told before the ends of those before them."""
        self.traceparent: str | None = None
        """The bot's span that turns without one of their own belong to."""
        self._missed: deque[m.ToBot] = deque(maxlen=_MISSED_EVENTS)
        self._journal = Journal(session, self.log)
        session.on_turn_over = self._journal.turn_over
        self._n_characters = 0
        self._voices: dict[str, None] = {}
        """The voices that have spoken, each once."""
        self._has_warned_of_language = False

    @property
    def door(self) -> str:
        """Whose protocol the bot speaks: a door's name in the metrics."""
        return self._journal.door

    @door.setter
    def door(self, door: str) -> None:
        self._journal.door = door

    def trace(self, tracing: Tracing) -> None:
        """Make a trace of each turn from now on."""
        self._journal.traces = tracing.of_call(self)

    # ---------------------------------------------------------------- legs

    @property
    def over(self) -> bool:
        """Whether the call has ended: no leg can join, and nothing is spoken. Its engines may still be closing."""
        return self._end is not None

    @property
    def catalog(self) -> EngineCatalog:
        """The engines as this call may use them."""
        return self._catalog

    def voice_name(self, voice: str | None) -> str:
        """The name of the voice that speaks if the bot asks for `voice`, before any text decides otherwise."""
        for wanted in (voice, self.session.settings.voice):
            if wanted is not None:
                with suppress(TelephonyTTSError):
                    self._catalog.resolve(wanted, None, "")
                    return wanted
        with suppress(TelephonyTTSError):
            return self._catalog.resolve(None, self.session.settings.lang, "")[1].name
        return ""  # the last voice of the engine was removed

    @property
    def owner(self) -> Key:
        """Whose call it is: its first bot's key, or before a bot came the key of the leg that began it. The call counts
        as one of this key, which sees it in the console."""
        return self.first_bots_key or self.key

    def admit_bot(self, key: Key, beside: type[Leg] | None = None) -> None:
        """Let a bot with this key speak, which joins now. The key of the first one owns the call, and other named keys
        stay out, also while no bot is there. A key without a name has no limits. A bot of the class `beside` shares its
        place. Raises TelephonyTTSError (`call_taken`)."""
        owner = self.first_bots_key
        is_shared = beside is not None and isinstance(self.bot, beside)
        is_closed = owner is not None and (self.kind in ("stream", "http") or key.name not in ("", owner.name))
        if is_closed or not (self.bot is None or is_shared):
            raise TelephonyTTSError(f"call {self.id} already has a bot", code="call_taken")
        self.first_bots_key = owner or key
        self.use_key(key)

    def use_key(self, key: Key) -> None:
        """From now on the limits of this key hold, and its characters are counted."""
        self.key = key
        spend = None if self._characters is None else partial(self._characters.spend, key)
        self.session.use_quota(spend if key.name else None)
        self._start_anew()

    def _start_anew(self) -> None:
        """Choose the arm by what is known of the call now, unless it has begun to speak. Start with what the arm
        changes, and with a voice that the key may use."""
        arm = self.arm
        if self._experiments is not None and not self.session.has_begun:
            arm = self._experiments.choose(self.id, self.owner, self._numbers)
        if isinstance(self._catalog, CallCatalog):
            self._catalog.use(self.key, arm)
        if arm is not None and arm.arm.voice is not None and not self._catalog.knows_voice(arm.arm.voice):
            # The key may not use it, or it was removed.
            arm = None
            assert isinstance(self._catalog, CallCatalog)
            self._catalog.use(self.key)
        if arm is not self.arm:
            self.arm = self._journal.arm = arm
            self.log = self._journal.log = self.log.bind(arm=None if arm is None else arm.name)
        settings = self._changed_by(arm)
        if settings.voice is not None and not self._catalog.knows_voice(settings.voice):
            settings = replace(settings, voice=None)
        if settings != self.session.settings:
            self.session.start_with(settings)

    def _changed_by(self, arm: RunningArm | None) -> SessionSettings:
        """The settings of the call with what the arm changes."""
        changes: dict[str, Any] = {name: getattr(self._first_settings, name) for name in ("voice", *SPEECH)}
        barge_in = self._first_settings.barge_in
        if arm is not None:
            changes |= arm.arm.speech
            barge_in = replace(barge_in, **cast("dict[str, Any]", arm.arm.barge_in))
            if arm.arm.voice is not None or arm.arm.engine is not None:
                changes["voice"] = arm.arm.voice  # the engine's own default, if the arm names only an engine
        return replace(self.session.settings, **changes, barge_in=barge_in)

    def expect(self, what: str, within_s: float) -> None:
        """End the call if the missing leg ("bot" or "media") does not come in time."""
        self._claimed()
        if self._end is None:  # it may end between the handshake of a leg and the leg's joining
            self._claim = self._loop.call_later(within_s, self._unclaimed, what)

    def _unclaimed(self, what: str) -> None:
        metrics.REFUSED.labels(reason="unclaimed").inc()
        self.log.warning("unclaimed", missing=what)
        message, now_ns = f"no {what} leg came for call {self.id}", monotonic_ns()
        waited_in_vain = TelephonyTTSError(message, code=f"no_{what}")
        self._drive(now_ns, lambda: self.session.interrupt("unclaimed", now_ns, error=waited_in_vain))
        self._to_bot(m.ErrorEvent(f"no_{what}", message, fatal=True))
        self.finish(4404, message)

    def join_bot(self, leg: Leg, encode: Callable[[m.ToBot | m.Frame], Wire | None], ready: m.Ready) -> None:
        """The bot has joined: it gets the events that it missed, and is heard from now on."""
        self._claimed()
        self.bot = leg
        self._encode_bot = encode
        self._to_bot(ready)
        while self._missed:
            self._to_bot(self._missed.popleft())
        if self._end is not None:
            leg.end(*self._end)

    def join_media(self, leg: Leg, encode: EncodeMedia, send_gathered: Callable[[], None] | None = None) -> None:
        """The telephone side has joined. `send_gathered` sends the frames that `encode` has kept back."""
        self._claimed()
        self.media = leg
        self._encode_media = encode
        self._send_gathered = send_gathered
        if self._end is not None:
            leg.end(*self._end)

    def _claimed(self) -> None:
        if self._claim is not None:
            self._claim.cancel()
            self._claim = None

    def frames_to_bot(self, leg: Leg, encode: Callable[[m.ToBot | m.Frame], Wire | None]) -> None:
        """Both legs are one socket."""
        self.media = leg
        self._encode_media = encode  # type: ignore[assignment]  # it only gets frames: no media marks, no clear

    def tell_bot(self, event: m.ToBot) -> None:
        """Send the bot an event that does not come from the session."""
        self._to_bot(event)

    def keep_unread(self, connection: DirectConnection) -> None:
        """Let the bot's connection live without being read, as long as no audio goes there."""
        connection.need_not_read = lambda: self.session.inbound.form == "none"
        connection.on_dropped = self._tell_dropped

    def _tell_dropped(self, n_events: int) -> None:
        """The bot reads again, and `n_events` were not sent to it meanwhile."""
        text = f"{n_events} events were dropped while the bot did not read; `status` names the turns that are not over"
        self._to_bot(m.WarningEvent("events_lost", text, lost_events=n_events))

    def bot_left(self, leg: Leg, reason: str, *, back_within_s: float = 0) -> None:
        """The bot's socket is gone. Speech stops, and the call ends, unless the bot may come back within
        `back_within_s`."""
        if self.bot is not leg:
            return
        self.bot = self._encode_bot = self.on_frame = None
        now_ns = monotonic_ns()
        self._drive(now_ns, self.session.interrupt, "bot_gone", now_ns)
        if not self.over:
            self.log.info("bot_left", reason=reason)
            if back_within_s and self.media is not None:
                self.expect("bot", back_within_s)
                return
        self.finish(1000, "the bot has left")

    def bot_rests(self, leg: Leg) -> None:
        """The bot has no socket that stays: it asks by single requests, and none is under way. The call goes on, and
        ends like one whose bot is silent. A call without a media leg ends now."""
        if self.bot is not leg:
            return
        self.bot = self._encode_bot = self.on_frame = None
        if self.media is None:
            self.finish(1000, "the bot has left")

    def media_left(self, leg: Leg, reason: str) -> None:
        """The telephone side is gone."""
        if self.media is not leg:
            return
        self.media = None
        now_ns = monotonic_ns()
        self._drive(now_ns, self.session.hang_up, reason, now_ns)

    def drain(self, code: int, reason: str) -> None:
        """Take no more turns, and finish when the text so far is spoken."""
        now_ns = monotonic_ns()
        self._drive(now_ns, lambda: self.session.close(now_ns, code=code, reason=reason))

    def sent_is_played(self) -> None:
        """The peer has all that was sent, and plays it when it wants."""
        now_ns = monotonic_ns()
        self._drive(now_ns, self.session.sent_is_played, now_ns)

    def cut_off(self, why: str, code: int, reason: str) -> None:
        """End the call in the middle of its speech."""
        now_ns = monotonic_ns()
        self._drive(now_ns, self.session.interrupt, why, now_ns)
        self.finish(code, reason)

    def finish(self, code: int, reason: str) -> None:
        """End the call and both its legs. Idempotent. The bot's leg stays open for a moment while a recording is being
        written, so that the bot can be told of its end."""
        if self._end is not None:
            return
        self._end = (code, reason)
        self._over.set()
        self._claimed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Whatever fails: the rest follows, so that no leg stays open and the id becomes free.
        for end in (self._end_recording, self._end_media, self._end_bot_if_all_is_written, self.on_over):
            try:
                if end is not None:
                    end()
            except Exception:
                self.log.exception("end_crashed")

    def _end_recording(self) -> None:
        if self.recording is not None:
            self.recording.end("call_ended")

    def _end_media(self) -> None:
        assert self._end is not None
        if self.media is not None and self.media is not self.bot:
            self.media.end(*self._end)

    def _end_bot_if_all_is_written(self) -> None:
        if not self._n_unwritten:
            self._end_bot()

    def _end_bot(self) -> None:
        """End the bot's leg, once. What is written later of a recording is told to nobody."""
        assert self._end is not None
        if self.bot is not None and self._encode_bot is not None:
            self._encode_bot = None
            self.bot.end(*self._end)

    def crash(self) -> None:
        """End the call after an internal error, inside an `except` block. Other calls go on."""
        self.log.exception("call_crashed")
        if not self.over:
            with suppress(Exception):
                self._to_bot(m.ErrorEvent("internal", "an internal error of the server; see its log", fatal=True))
            self.finish(1011, "internal error")

    async def run(self) -> None:
        """Run until the call is over. Returns when no task, timer or engine slot is left."""
        metrics.CALLS.labels(media=self.kind).inc()
        live = metrics.CALLS_LIVE.labels(media=self.kind)
        live.inc()
        begun_ns = monotonic_ns()
        self.log.info("call_started", media=self.kind)
        try:
            async with asyncio.TaskGroup() as self._group:
                self.started.set()
                self._tick()
                await self._over.wait()
                for run in self._runs.values():
                    run.cancel()
                self._runs.clear()
                if self._n_unwritten and self.bot is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_WRITTEN_WITHIN_S):
                            await self._all_written.wait()
                    self._end_bot()
                # Only now: one of them may be the bot's connection.
                for task in self._side_tasks[:]:
                    task.cancel()
        finally:
            self.finish(1011, "internal error")
            self._end_bot()
            live.dec()
            assert self._end is not None
            code, reason = self._end
            duration_ms = (monotonic_ns() - begun_ns) // NS_PER_MS
            metrics.CALL_SECONDS.labels(media=self.kind).observe(duration_ms / 1000)
            self.log.summary("call_ended", code=code, reason=reason, duration_ms=duration_ms)
            self._close_books(code, reason, duration_ms)
            self._group = None

    def _close_books(self, code: int, reason: str, duration_ms: int) -> None:
        """The call's line in the audit log, and its part in the sums of its experiment."""
        sums = self._journal.sums
        _audit.info(
            "call_audit", call=self.id, key=self.owner.name or None, media=self.kind,
            arm=None if self.arm is None else self.arm.name, duration_ms=duration_ms, turns=sums.turns,
            characters=self._n_characters, voices=list(self._voices), code=code, reason=reason,
        )  # fmt: skip
        if self.arm is not None:
            self.arm.call_ended(sums)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` as a child of the call. It ends with the call at the latest."""
        assert self._group is not None
        task = self._group.create_task(work, name=name)
        self._side_tasks.append(task)
        task.add_done_callback(self._side_tasks.remove)

    # -------------------------------------------------------------- driving

    def receive(self, message: m.FromBot | m.FromMedia) -> None:
        """A message of either leg."""
        if self._end is not None:
            return
        now_ns = monotonic_ns()
        try:
            if type(message) is m.Configure and (message.voice is not None or message.lang is not None):
                message = self._with_known_voice(message)
            elif type(message) is m.Text or type(message) is m.Say:
                metrics.TEXT_CHARACTERS.inc(len(message.text))
                self._n_characters += len(message.text)
            elif type(message) is m.Record:
                self.record(message.action)
            elif type(message) is m.MediaStart and (numbers := numbers_in(message.parameters)):
                self._numbers = numbers
                self._start_anew()
            for observer in self.observers:
                observer.received(message, now_ns)
            self.session.receive(message, now_ns)
            if self.observers and (type(message) is m.Text or type(message) is m.Say):
                # A turn may be over, and its event under way, before the next message comes.
                for observer in self.observers:
                    observer.remember_private()
            self._pump(now_ns)
        except Exception:
            self.crash()
        if type(message) is m.Clear:
            metrics.CANCEL_TO_SILENCE_MS.observe((monotonic_ns() - now_ns) / NS_PER_MS)

    def record(self, action: str) -> None:
        """Start or stop the recording of the call."""
        if self.recordings is None:
            self._to_bot(m.WarningEvent("recording_unavailable", "this server does not record calls"))
        elif action == "stop" and self.recording is not None:
            self.recording.end("stopped")
        elif action == "start" and self.recording is None and self._n_recordings >= _MOST_RECORDINGS:
            text = f"start: the call has had {_MOST_RECORDINGS} recordings, which is the most"
            self._to_bot(m.WarningEvent("recording_unchanged", text))
        elif action == "start" and self.recording is None:
            self._n_recordings += 1
            self.recording = self.recordings.begin(
                self.id, self.kind, self.session, self.log, self._recording_ended, _unless_gone(self._recording_written)
            )
            self.observers.append(self.recording)
            started = m.RecordingChanged("started", self.recording.name)
            if self._n_unwritten:
                self._started_meanwhile.append(started)
            else:
                self._to_bot(started)
        else:
            state = "not being" if self.recording is None else "already being"
            self._to_bot(m.WarningEvent("recording_unchanged", f"{action}: the call is {state} recorded"))

    def observe(self, observer: CallObserver) -> Callable[[], None]:
        """Let `observer` follow the call from now on. Returns what ends it."""
        self.observers.append(observer)
        self.session.listeners.append(observer)

        def end() -> None:
            self.observers.remove(observer)
            self.session.listeners.remove(observer)

        return end

    def _recording_ended(self) -> None:
        assert self.recording is not None
        self.observers.remove(self.recording)
        self.recording = None
        self._n_unwritten += 1
        self._all_written.clear()

    def _recording_written(self, event: m.RecordingChanged) -> None:
        """A recording that has ended is in its files, or has failed. The bot gets one end after the other, and each
        before the next start."""
        self._to_bot(event)
        if self._started_meanwhile:
            self._to_bot(self._started_meanwhile.popleft())
        self._n_unwritten -= 1
        if not self._n_unwritten:
            self._all_written.set()

    def _with_known_voice(self, message: m.Configure) -> m.Configure | m.Invalid:
        wanted = self.session.voice if message.voice is None else message.voice or self.session.settings.voice
        try:
            _, voice = self._catalog.resolve(wanted, message.lang or None, "")
        except TelephonyTTSError as error:
            return m.Invalid(error.code, error.message)
        if message.lang and not voice.speaks(message.lang):
            text = f"voice {voice.name} speaks {', '.join(voice.languages)}, not {message.lang}"
            self._to_bot(m.WarningEvent("other_language", text))
        return message

    def writable(self, flag: bool) -> None:
        """The media socket is full, or has room again."""
        self.session.writable(flag)
        if flag:
            self._loop.call_soon(self._tick)

    def _drive(self, now_ns: int, act: Callable[..., object] | None = None, *args: object) -> None:
        """Tell the session something, and perform the effects."""
        if self._end is not None:
            return
        try:
            if act is not None:
                act(*args)
            self._pump(now_ns)
        except Exception:
            self.crash()

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drive(monotonic_ns())

    def _read_on(self) -> None:
        """There is time for the text of this call again."""
        self._waits_for_text = False
        self._n_text_slices += 1
        self._drive(monotonic_ns(), self.session.read_on)

    def _pump(self, now_ns: int) -> None:
        """Perform all effects that are due, and set the timer for the next ones."""
        group = self._group
        if group is None:
            return  # legs may join before `run` has begun; their messages wait in the session
        has_audio = True
        while has_audio:
            has_audio = False
            for effect in self.session.poll(now_ns):
                match effect:
                    case m.Frame():
                        metrics.FRAME_LATENESS_MS.observe(effect.late_ns / NS_PER_MS)
                        self._to_media(effect)
                        if self.on_frame is not None:
                            self.on_frame(effect)
                    case m.InboundAudio():
                        self._to_bot(effect)
                    case Synthesize(utterance):
                        has_audio = self._start(UtteranceRun(utterance))
                    # An utterance that is over has no run, so a late pull or late text is dropped.
                    case Pull(utterance_id) if (found := self._runs.get(utterance_id)) is not None:
                        found.pull()
                    case FeedText(utterance_id, text, last) if (found := self._runs.get(utterance_id)) is not None:
                        found.feed(text, last)
                        self._watch(found)
                    case CancelSynthesis(utterance_id) if (found := self._runs.pop(utterance_id, None)) is not None:
                        found.cancel()
                    case Pull() | FeedText() | CancelSynthesis():
                        pass
                    case LoadBed(bed, rate_hz):
                        self.spawn(self._load_bed(bed, rate_hz), "load bed")
                    case Finish(code, reason):
                        self._loop.call_soon(self.finish, code, reason)
                    case m.MediaMark() | m.MediaClear():
                        self._to_media(effect)
                    case UnderrunEnded():
                        self._journal.note_underrun(effect)
                    case m.MediaTones(digits):
                        self._journal.note_tones(digits, "message")
                        self._to_media(effect)
                    case _:
                        self._journal.note(effect)
                        self._to_bot(effect)
            if has_audio:
                now_ns = monotonic_ns()
        if self._send_gathered is not None:
            self._send_gathered()
        if not self.session.text_waits:
            self._n_text_slices = 0
        elif not self._waits_for_text:
            self._waits_for_text = True
            self._text_work.wait(self._n_text_slices, self._read_on)
        deadline_ns = self.session.deadline_ns()
        if deadline_ns is None:
            return
        timer = self._timer
        if timer is not None:
            if self._timer_ns <= deadline_ns:
                return
            timer.cancel()
        self._timer_ns = deadline_ns
        # The loop's timers have a resolution of 1 ms. Rounding up avoids waking just before the deadline.
        self._timer = self._loop.call_later(max(0, deadline_ns - now_ns + NS_PER_MS // 2) / NS_PER_S, self._tick)

    def _to_media(self, message: m.ToMedia) -> None:
        if self.media is None or self._encode_media is None:
            return
        wire = self._encode_media(message)
        if wire is not None:
            _SENT["media"].inc(len(wire[0]))
            self.media.send_now(*wire)

    def _to_bot(self, message: m.ToBot) -> None:
        if self.observers and type(message) is not m.InboundAudio:
            for observer in tuple(self.observers):  # one of them may end with this event
                observer.told(message, monotonic_ns())
        if self.bot is None or self._encode_bot is None:
            if isinstance(message, m.CallStarted | m.Dtmf | m.Hold | m.RecordingChanged):
                self._missed.append(message)
            return
        wire = self._encode_bot(message)
        if wire is not None:
            _SENT["bot"].inc(len(wire[0]))
            self.bot.send_now(*wire)

    # --------------------------------------------------------------- engine

    def _start(self, run: UtteranceRun) -> bool:
        """Let an engine speak an utterance. True if the session has its first audio already: what an engine has kept
        must not wait for a task."""
        assert self._group is not None
        utterance = run.utterance
        self._runs[utterance.id] = run
        if isinstance(utterance.insert, Digits) and not utterance.insert.by_message:
            self._journal.note_tones(utterance.insert.digits, "tones")
        kept = self._catalog.recall(utterance) if run.given is None else None
        if kept is None:
            run.task = self._group.create_task(self._speak(run), name=f"speak {utterance.id}")
            return False
        voice, chunks = kept
        self._warn_of_language(utterance, voice)
        self._note_voice(voice)
        first, *rest = halves(chunks[0], _FIRST_MS)
        self._give(run, voice, first)
        rest += chunks[1:]
        run.task = self._group.create_task(self._speak_kept(run, voice, rest), name=f"speak {utterance.id}")
        return True

    def _give(self, run: UtteranceRun, voice: Voice, chunk: Chunk) -> None:
        """Give the session audio of an utterance."""
        told = voice.engine if self._catalog.failover is not None else None
        self.session.audio(run.utterance.id, chunk, monotonic_ns(), voice.gain_db, told)

    async def _speak_kept(self, run: UtteranceRun, voice: Voice, chunks: Sequence[Chunk]) -> None:
        """Give the session the rest of an utterance, of which it has the first audio, as it asks for it."""
        outcome = "cancelled"
        try:
            for chunk in chunks:
                await asyncio.sleep(0)  # as in `_speak`
                await run.until_pulled()
                self._drive(monotonic_ns(), self._give, run, voice, chunk)
            await asyncio.sleep(0)
            await run.until_pulled()
            now_ns = monotonic_ns()
            self._drive(now_ns, self.session.audio_ended, run.utterance.id, now_ns)
            outcome = "done"
        finally:
            if self._runs.get(run.utterance.id) is run:
                del self._runs[run.utterance.id]
            metrics.UTTERANCES.labels(*self._labels(voice), outcome).inc()

    async def _speak(self, run: UtteranceRun) -> None:
        """Pull one utterance from its engine: one chunk each time the session asks for one."""
        session, utterance, failover = self.session, run.utterance, self._catalog.failover
        compute_ns = audio_ns = 0
        engine_name = "none"
        outcome: str | None = "cancelled"
        try:
            if run.given is None and utterance.more is not None:
                engine, _ = self._catalog.resolve(
                    utterance.voice, utterance.lang, utterance.text, utterance.lang_source
                )
                if not engine.streams_text:
                    utterance = await run.whole()
            engine, voice = run.given or self._catalog.choose(utterance)
            engine_name, run.chosen = engine.name, (engine, voice)
            if utterance.insert is not None:
                failover = None  # no engine speaks it, so none can replace one
            else:
                self._warn_of_language(utterance, voice)
                self._note_voice(voice)
            if failover is not None:
                run.speaker = voice
                if run.given is None and (refusal := failover.refusal(engine, monotonic_ns())) is not None:
                    if self._hand_over(run, refusal):
                        outcome = None  # it was not asked
                        return
                elif utterance.more is not None and not engine.streams_text:
                    utterance = await run.whole()
            async with aclosing(engine.synthesize(replace(utterance, voice=voice.name))) as chunks:
                while True:
                    asked_ns = monotonic_ns()
                    run.is_asking = True
                    self._watch(run)
                    chunk = await anext(chunks, None)
                    run.answered()
                    now_ns = monotonic_ns()
                    compute_ns += now_ns - asked_ns
                    if chunk is None:
                        break
                    if not audio_ns and utterance.more is None and utterance.insert is None:
                        metrics.ENGINE_FIRST_CHUNK_MS.labels(engine_name).observe(compute_ns / NS_PER_MS)
                    if chunk.sample_rate_hz > 0:  # the session says what is wrong with another one
                        audio_ns += len(chunk.pcm) * NS_PER_S // chunk.sample_rate_hz
                    speaker = _replica_name(engine_name, run) if failover is not None or run.n_lost else None
                    session.audio(utterance.id, chunk, now_ns, voice.gain_db, speaker)
                    # The time is read again: encoding the first chunk belongs to `first_audio_ms`.
                    self._drive(monotonic_ns())
                    # Otherwise a fast engine would be pulled to its end at once. The first frame, which the loop
                    # writes at the end of its round, would wait until all the others are encoded.
                    await asyncio.sleep(0)
                    await run.until_pulled()
            if failover is not None:
                if run.lacks_text:
                    raise EngineError(f"the engine {engine_name} ended before it had the end of the text")
                failover.succeeded(engine_name)
            outcome = "done"
            self._drive(now_ns, session.audio_ended, utterance.id, now_ns)
        except SoundError as error:
            # The turn goes on without the sound.
            event = m.ErrorEvent(error.code, error.message, about=utterance.turn)
            self._journal.note(event)
            self._to_bot(event)
            now_ns = monotonic_ns()
            self._drive(now_ns, session.audio_ended, utterance.id, now_ns)
        except TelephonyTTSError as error:
            outcome = "failed"
            self._failed(run, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = "failed"
            # This task was not cancelled: a task inside the engine was, and the turn would wait for ever.
            self._failed(run, EngineError(f"the engine {engine_name} gave up"))
        except Exception:
            outcome = "failed"
            self.log.exception("engine_crashed", turn=utterance.turn, engine=engine_name)
            self._failed(run, EngineError(f"the engine {engine_name} failed; see the server's log"))
        finally:
            run.answered()
            if self._runs.get(utterance.id) is run:
                del self._runs[utterance.id]
            run.end_text()
            if utterance.insert is None and run.chosen is not None and outcome is not None:
                labels = self._labels(run.chosen[1])
                metrics.UTTERANCES.labels(*labels, outcome).inc()
                # With `more` the time includes the bot's writing.
                if audio_ns and utterance.more is None:
                    metrics.SYNTHESIS_RTF.labels(engine=engine_name).observe(compute_ns / audio_ns)
                    metrics.SPEECH_SECONDS.labels(*labels).inc(audio_ns / NS_PER_S)
                    metrics.SYNTHESIS_SECONDS.labels(*labels).inc(compute_ns / NS_PER_S)

    def _labels(self, voice: Voice) -> tuple[str, str]:
        """The engine and the voice, for metrics. Voices that an engine does not list may be made by peers."""

        def is_listed() -> bool:
            return any(
                engine.name == voice.engine and voice.name in [each.name for each in engine.voices]
                for engine in self._catalog.engines
            )

        label = metrics.VOICES.of(voice.name, is_listed)
        metrics.know_voice(voice.engine, label)
        return voice.engine, label

    def _watch(self, run: UtteranceRun) -> None:
        """Replace the engine if the audio that it was asked for is late. While the bot still writes the text, the
        engine may be waiting for that. What can wait for an engine is never late."""
        failover = self._catalog.failover
        if failover is None or run.speaker is None or not run.is_asking or run.lacks_text or run.utterance.can_wait:
            return
        now_ns = monotonic_ns()
        late_ns = failover.late_ns(now_ns, self.session.dry_ns(now_ns))
        run.watch(self._loop.call_later((late_ns - now_ns) / NS_PER_S, self._is_late, run))

    def _is_late(self, run: UtteranceRun) -> None:
        # Without another engine this one goes on. The session ends the turn after its own, longer time.
        try:
            if self._hand_over(run, "timeout"):
                run.cancel()  # it is not waited for: an engine that hangs may take long to let go
        except Exception:
            self.crash()

    def _hand_over(self, run: UtteranceRun, reason: Reason, why: str = "") -> bool:
        """Let the next engine speak what is left of an utterance. False if there is none."""
        failover, voice, utterance = self._catalog.failover, run.speaker, run.utterance
        if failover is None or voice is None or self.over or self._runs.get(utterance.id) is not run:
            return False
        now_ns = monotonic_ns()
        if reason in ("failed", "timeout"):
            failover.failed(voice.engine, now_ns)
        tried = (*run.tried, voice.engine)
        given = failover.next(utterance, voice, tried, reason, now_ns)
        if given is None:
            return False
        rest = self.session.hand_over(utterance.id, now_ns)
        if rest is None:
            return False
        metrics.FAILOVERS.labels(engine=voice.engine, reason=reason).inc()
        self.log.warning(
            "engine_replaced", turn=utterance.turn, engine=voice.engine, by=given[0].name, reason=reason, why=why
        )
        self._start(UtteranceRun(rest, given, tried))
        self._drive(now_ns)
        return True

    def _go_on(self, run: UtteranceRun, lost: ReplicaLost) -> bool:
        """Let another replica of the same engine speak what is left of an utterance. False if there is none."""
        utterance, chosen = run.utterance, run.chosen
        if chosen is None or self.over or self._runs.get(utterance.id) is not run or run.n_lost >= _MOST_LOST:
            return False
        engine, _ = chosen
        if not engine.stats().is_ready:
            return False
        now_ns = monotonic_ns()
        rest = self.session.hand_over(utterance.id, now_ns, _replica_name(engine.name, run))
        if rest is None:
            return False
        metrics.REPLICAS_LOST.labels(engine=engine.name).inc()
        self.log.warning("replica_replaced", turn=utterance.turn, engine=engine.name, why=lost.message)
        self._start(UtteranceRun(rest, chosen, run.tried, run.n_lost + 1))
        self._drive(now_ns)
        return True

    async def _load_bed(self, bed: Bed, rate_hz: int) -> None:
        try:
            sound = await bed.source.load(rate_hz)
        except SoundError as error:
            self._drive(monotonic_ns(), self.session.bed_failed, bed, error)
        except Exception:
            self.log.exception("sound_crashed", about=bed.turn)
            failure = SoundError("the sound cannot be read; see the server's log")
            self._drive(monotonic_ns(), self.session.bed_failed, bed, failure)
        else:
            self._drive(monotonic_ns(), self.session.bed_loaded, bed, sound)

    def _note_voice(self, voice: Voice) -> None:
        if len(self._voices) < _MOST_NOTED_VOICES:
            self._voices[f"{voice.engine}/{voice.name}"] = None

    def _warn_of_language(self, utterance: Utterance, voice: Voice) -> None:
        """Warn the bot, once in a call, that its text is in a language that the voice does not have."""
        if self._has_warned_of_language:
            return
        message = self._catalog.mismatch(utterance, voice)
        if message is not None:
            self._has_warned_of_language = True
            warning = m.WarningEvent("language_mismatch", message, utterance.turn)
            self._journal.note(warning)
            self._to_bot(warning)

    def _failed(self, run: UtteranceRun, error: TelephonyTTSError) -> None:
        if isinstance(error, ReplicaLost) and self._go_on(run, error):
            return
        # Another engine does not help against a mistake of the bot.
        if not isinstance(error, UnknownVoice | UnsupportedText) and self._hand_over(run, "failed", error.message):
            return
        now_ns = monotonic_ns()
        if self._runs.get(run.utterance.id, run) is run:
            self._drive(now_ns, self.session.audio_failed, run.utterance.id, error, now_ns)


def _unless_gone(tell: OnWritten) -> OnWritten:
    """Calls a method of a call as long as there is the call. A disk that hangs does not keep calls that are over."""
    method = WeakMethod(tell)

    def tell_call(event: m.RecordingChanged) -> None:
        if (found := method()) is not None:
            found(event)

    return tell_call


def _replica_name(engine: str, run: UtteranceRun) -> str:
    """Who speaks, for the bot: the engine, with the number of the replica if others were lost with the sentence."""
    return f"{engine}#{run.n_lost + 1}" if run.n_lost else engine
