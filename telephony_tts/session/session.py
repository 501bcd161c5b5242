"""The state machine of one call: messages and audio in, effects out, time as an argument.

It does no I/O, reads no clock and starts no tasks. The driver calls `receive`, `audio` and the other inputs as things
happen. It calls `poll` after each of them, and no later than `deadline_ns`. Property tests check these promises:

* after `cleared` no frame of that turn is sent;
* every turn ends in exactly one of done, cleared, error;
* every mark ends in exactly one of played, cleared;
* every reason to stop goes through `interrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from telephony_tts.audio.encoder import silent_frame
from telephony_tts.audio.sound import Sound
from telephony_tts.engines.api import Chunk, Insert, Utterance
from telephony_tts.runtime.errors import EngineError, SoundError, TelephonyTTSError
from telephony_tts.session.alignment import Alignment
from telephony_tts.session.bed import Bed
from telephony_tts.session.caller.caller import Caller, FindModel
from telephony_tts.session.caller.missing_audio import MissingAudio
from telephony_tts.session.dtmf import DtmfOut
from telephony_tts.session.effects import Effect, Finish
from telephony_tts.session.handover import hand_over
from telephony_tts.session.heard import heard_offset
from telephony_tts.session.inbound import Inbound
from telephony_tts.session.intake import Intake, Quota
from telephony_tts.session.language import CallLanguage, DetectLanguage, HasVoice, ReadsDigits
from telephony_tts.session.marks import MarkState
from telephony_tts.session.markup import KnowsVoice
from telephony_tts.session.pause import SpeechPause
from telephony_tts.session.playhead import Playhead
from telephony_tts.session.report import latency, sentence_spoken, speakers, status
from telephony_tts.session.sender import FRAMES_PER_POLL, PlayoutListener, Sender
from telephony_tts.session.settings import CallLimits, SessionSettings, changed_start
from telephony_tts.session.sound_source import FindSound
from telephony_tts.session.sounds import Sounds
from telephony_tts.session.supply import Supply
from telephony_tts.session.turn import MayWork, Turn
from telephony_tts.session.words import words_spoken
from telephony_tts.wire import messages as m

_MS = 1_000_000
_S = 1_000_000_000
TurnEnd = m.Done | m.Cleared | m.ErrorEvent
_OUTCOMES = {m.Done: "done", m.Cleared: "cleared", m.ErrorEvent: "error"}
_LATEST_BEGIN_NS = 2 * _S
"""A peer that reports later than this that it begins to play was without a connection, or speaks of other audio."""


class Session:
    """One call. See the module text for the contract."""

    def __init__(
        self,
        settings: SessionSettings,
        now_ns: int,
        *,
        media: bool = True,
        voice_model: FindModel | None = None,
        detect_language: DetectLanguage | None = None,
        has_voice: HasVoice | None = None,
        reads_digits: ReadsDigits | None = None,
        find_sound: FindSound | None = None,
        knows_voice: KnowsVoice | None = None,
        may_work: MayWork | None = None,
    ) -> None:
        """`voice_model` finds the network that detects the caller's voice; without it there is no barge-in by voice.
        `detect_language` detects the language of Latin text; without it all Latin text counts as English.
        `has_voice` says whether the voice of a text speaks a language, `reads_digits` whether it reads numbers itself.
        `find_sound` finds what `play` names. `knows_voice` says whether there is a voice of this name;
        without it there always is. `may_work` is asked before each piece of text is cut into sentences. If it says no,
        `text_waits`, and `read_on` is called when there is time again."""
        self.settings = settings
        self.turns: list[Turn] = []
        self._out: list[Effect] = []
        self._sender = Sender(self.turns, self._out)
        self._sender.open = media
        self._supply = Supply(self.turns, self._out, settings.made_ahead_ms * _MS, settings.engine_timeout_ms * _MS)
        self._media = media
        self._media_clears = False
        self._playhead = Playhead(settings.rate_hz, self.turns, self._out)
        language = CallLanguage(detect_language, has_voice, reads_digits)
        self._intake = Intake(settings, self.turns, self._out, now_ns, language, knows_voice, may_work)
        self._dtmf = DtmfOut(settings.dtmf, self.turns, self._out, self._sender, self._intake)
        self._sounds = Sounds(find_sound, self.turns, self._intake, self._supply, self._sender, self._out)
        self._sender.ptime_ns = settings.ptime_ms * _MS
        self.inbound = Inbound(self._out)
        self.caller = Caller(settings, voice_model, self._out)
        self.missing_audio = MissingAudio(settings.caller.no_audio_ms, self._out)
        self._pause = SpeechPause(settings.barge_in, self.turns, self._out, self._sender, self._playhead, self.caller)
        self._tells_words = settings.words
        self.finished = False
        self._close_code = (1000, "closed")
        self._last_active_ns = now_ns
        self._dirty = True
        self._housekeeping_ns: int | None = None
        self._text_ns: int | None = None
        """When the intake has to look at the text again."""
        self.n_underruns = 0
        self.n_lexicon_readings = 0
        """Words of turns that are over, which lexicons read."""
        self.on_turn_over: Callable[[Turn, TurnEnd], None] | None = None
        """Called with each turn that has ended, and with its last event."""
        if settings.separate_turns:
            self.let_turns_give_way()

    def let_turns_give_way(self) -> None:
        """From now on, an open turn whose text is all spoken ends when another turn waits. Otherwise the other turn
        would wait until the bot ends the first one or `turn_idle_s` is over."""
        self._intake.gives_way = True

    def new_bot(self, limits: CallLimits, *, tells_sent: bool = False) -> None:
        """Another bot speaks from now on, or the same one after it left: its turn ids and its voice settings begin
        anew, and its turns give way only if `let_turns_give_way` follows. `limits` are those of its protocol. With
        `tells_sent` it learns by `TurnSent` when all frames of a turn are on their way."""
        self._sender.tells_sent = tells_sent
        self.settings = replace(self.settings, limits=limits)
        self._intake.new_bot(self.settings)
        self._intake.gives_way = self.settings.separate_turns
        self._dirty = True

    def bot_is_there(self, now_ns: int) -> None:
        """The bot sent something that asks for nothing, such as a sign of life. The call is not idle."""
        self._last_active_ns = now_ns

    def use_lexicons(self, names: Sequence[str]) -> None:
        """Read turns that begin now with these lexicons of the server too. Names that it does not have say nothing."""
        self._intake.use_lexicons(names)

    def use_quota(self, quota: Quota | None) -> None:
        """Ask `quota` before each text is taken. None: whatever the limits of the call allow."""
        self._intake.quota = quota

    @property
    def has_begun(self) -> bool:
        """Whether there was a turn."""
        return self._intake.has_begun

    def start_with(self, settings: SessionSettings) -> None:
        """The call starts with these settings after all. They differ from the present ones in what a bot may change,
        and in how text is cut; what the bot has asked for stays. The next turns have them."""
        before, self.settings = self.settings, settings
        self._intake.start_with(before, settings)
        self.caller.start_with(before.barge_in, settings.barge_in)
        self._pause.settings = changed_start(self._pause.settings, before.barge_in, settings.barge_in)

    def change_format(self, codec: str, rate_hz: int) -> None:
        """The bot's socket, which is the media leg too, takes audio in another format from now on."""
        self._speak_as(m.MediaStart("", "", codec, rate_hz))
        self._dirty = True

    def is_caught_up(self, turn_id: str) -> bool:
        """Whether all the speech of a turn was sent that its text so far makes. True if the turn is over."""
        return all(turn.is_caught_up for turn in self.turns if turn.id == turn_id)

    def alignment(self, turn_id: str, *, splits_words: bool = False) -> Alignment | None:
        """The alignment of a turn that is not over, from its beginning. None for any other turn."""
        turn = next((turn for turn in self.turns if turn.id == turn_id), None)
        return None if turn is None else Alignment(turn, splits_words=splits_words)

    # -------------------------------------------------------------- input

    def receive(self, message: m.FromBot | m.FromMedia, now_ns: int) -> None:
        """Take one message of either leg. Never raises for anything a peer can cause."""
        if isinstance(message, m.MediaAudio):
            if not message.payload:
                return  # it says nothing, not even that time has passed
            self.missing_audio.came_ns = now_ns
            self.inbound.take(message)
            if not self.finished:
                self._dirty |= self.caller.take(message, self.turns, now_ns)
                if self.caller.interrupts(now_ns) and not self._pause.is_on and not (
                    self._pause.settings.action == "pause" and self.pause("barge_in", now_ns)
                ):
                    self.interrupt("barge_in", now_ns)
            return
        if self.finished:
            return
        self._dirty = True
        if isinstance(message, m.MediaMark):
            if (late := self._playhead.mark_came_back(message.name, now_ns - message.ago_ms * _MS)) is not None:
                late_turn, late_ns = late
                if late_turn.settings.whole_sentences:
                    self._sender.move(late_turn, late_ns)
                else:
                    self._sender.marks_often = self._playhead.peer_stalls and self._sender.most_marks is None
                    for listener in self.listeners:
                        listener.peer_is_late(late_ns)
            return
        if isinstance(message, m.MediaBegun):
            if (late := self._playhead.file_begun(message, now_ns)) is not None:
                self._sender.move(*late)
            self.caller.file_begun()
            return
        if isinstance(message, m.MediaLost):
            self._playhead.peer_stopped(now_ns)
            return
        if isinstance(message, m.MediaMarksLost):
            self._sender.peer_marks = False
            self._playhead.forget_reports()
            return
        if isinstance(message, m.MediaPlayback):
            if message.state == "playing":
                self._peer_began(now_ns)
            return
        if isinstance(message, m.MediaDtmf):
            self.caller.key_pressed(now_ns)
            self._out.append(m.Dtmf(message.digit))
            return
        if isinstance(message, m.MediaHold):
            self._hold(message.is_on, now_ns)
            return
        if isinstance(message, m.MediaStop):
            self.hang_up(message.reason, now_ns)
            return
        self._last_active_ns = now_ns
        match message:
            case m.Text(text, turn_id, last):
                self._intake.text(
                    text, turn_id, last, now_ns, message.text_type, private=message.private,
                    traceparent=message.traceparent,
                )  # fmt: skip
            case m.Say(text, turn_id):
                self._intake.say(
                    text, turn_id, now_ns, message.text_type, private=message.private, traceparent=message.traceparent
                )
            case m.End(turn_id):
                if (turn := self._intake.named(turn_id, "end")) is not None:
                    self._intake.close_turn(turn, now_ns)
            case m.Flush(turn_id):
                if (turn := self._intake.named(turn_id, "flush")) is not None:
                    turn.flush()
            case m.Clear(turn_id, heard_ms):
                if not self.interrupt("clear", now_ns, turn_id=turn_id, heard_ms=heard_ms):
                    self._intake.warn("no_active_turn", "nothing to clear", turn_id)
            case m.PauseSpeech(heard_ms):
                if not self.pause("bot", now_ns, heard_ms=heard_ms):
                    self._intake.warn("no_active_turn", "nothing to pause")
            case m.ResumeSpeech():
                if self._pause.is_on:
                    self._pause.end()
                else:
                    self._intake.warn("not_paused", "the speech is not paused")
            case m.Mark(name):
                if (turn := self._intake.for_mark(message)) is not None:
                    turn.read_all()
                    turn.marks.ask(name, turn.n_chars, turn.n_inserts)
            case m.Configure():
                self._intake.configure(message)
                self.inbound.configure(message)
                self.caller.configure(message, now_ns)
                self._dtmf.configure(message)
                self._pause.configure(message)
                if message.words is not None:
                    self._tells_words = message.words == "on"
            case m.Status():
                dry_ns = self._supply.dry_ns(now_ns, self._sender.media_end_ns)
                n_underruns = self.n_underruns + sum(turn.underruns for turn in self.turns)
                self._out.append(
                    status(self.settings.call, self._media, self.turns, (dry_ns - now_ns) // _MS, n_underruns)
                )
            case m.Ping(ping_id):
                self._out.append(m.Pong(ping_id))
            case m.SendDtmf():
                self._dtmf.send(message, self.settings.rate_hz, now_ns, has_media=self._media)
            case m.Play():
                self._sounds.play(message, self.settings, now_ns)
            case m.Close(now):
                self.close(now_ns, at_once=now)
            case m.Invalid(code, text):
                self._out.append(m.ErrorEvent(code, text))
            case m.MediaStart():
                self._out.append(
                    m.CallStarted(message.call, message.stream, message.codec, message.rate_hz, message.parameters)
                )

    @property
    def voice(self) -> str | None:
        """The voice of turns that begin now; None is the default."""
        return self._intake.speaking.voice

    @property
    def is_paused(self) -> bool:
        return self._pause.is_on

    @property
    def wants_audio(self) -> bool:
        """Whether the bot or the session itself needs the caller's audio."""
        return self.inbound.form != "none" or self.caller.listens

    @property
    def listeners(self) -> list[PlayoutListener]:
        """Who learns what the caller hears and when. Others may be added and removed."""
        return self._sender.listeners

    @property
    def caller_format(self) -> tuple[str, int]:
        """The codec and the rate of the caller's audio: those of the media leg, or of our speech without one."""
        return self.inbound.source or (self.settings.codec, self.settings.rate_hz)

    def attach_media(
        self,
        now_ns: int,
        *,
        marks: bool,
        clears: bool,
        fills: bool = False,
        dtmf: bool = False,
        most_marks: int | None = None,
        n_held: Callable[[], int] | None = None,
        start: m.MediaStart | None = None,
    ) -> None:
        """The media leg is there, so frames flow from now on. `start` says in which format, None: as expected.

        `marks`, `clears` and `dtmf` (it can send tones) say what its dialect can do. `fills`: it gets silence while
        there is no speech. `most_marks` is how many marks the peer can have, None for no limit. `n_held` says how many
        samples the leg holds, because it sends longer messages than frames.
        """
        if start is not None:
            self._speak_as(start)
        settings, sender = self.settings, self._sender
        spoken = settings.codec, settings.rate_hz
        heard = spoken if start is None or start.caller_format is None else start.caller_format
        self.inbound.media(heard, spoken)
        self.caller.media(heard, spoken, now_ns, has_holes=settings.whole_sentences)
        if self.caller not in sender.listeners:
            sender.listeners.append(self.caller)
        self.missing_audio.came_ns = now_ns
        self._media = sender.open = self._dirty = True
        sender.peer_marks, sender.most_marks = marks, most_marks
        sender.fill_frames = 1 if fills else settings.frames_per_bulk
        if fills:
            sender.silence = silent_frame(settings.codec, settings.rate_hz, settings.ptime_ms)
        self._media_clears, self._dtmf.platform_can = clears, dtmf
        if n_held is not None:
            self._playhead.n_held = n_held
        if marks and most_marks is None and not settings.whole_sentences:
            # A peer that can have few marks may keep this one back until speech follows.
            self._playhead.ask_for_report()

    def _speak_as(self, start: m.MediaStart) -> None:
        """The media leg has another format than was expected: speech that was synthesised is synthesised again."""
        before = self.settings
        settings = replace(
            before, codec=start.codec, rate_hz=start.rate_hz, ptime_ms=start.ptime_ms or before.ptime_ms,
            bulk_ms=start.bulk_ms, whole_sentences=start.whole_sentences, ahead_ms=max(before.ahead_ms, start.ahead_ms),
        )
        if start.lead_ms is not None:
            # A peer that states how much it holds would drop what is sent beyond that.
            settings = replace(settings, lead_ms=start.lead_ms, pace="realtime")
        if settings == before:
            return
        self.settings = settings
        self._supply.keep_ahead(settings.made_ahead_ms * _MS)
        self._playhead.rate_hz = settings.rate_hz
        self._intake.settings = settings
        self._sender.ptime_ns = settings.ptime_ms * _MS
        self._sounds.format_changed(settings)
        for turn in self.turns:
            if not turn.sent_all:
                self._supply.drop(turn)
                turn.begin_again(settings)

    def peer_holds(self, n_frames: int, now_ns: int) -> None:
        """The peer reports that it has `n_frames` which it has not played."""
        self._sender.peer_holds(n_frames, now_ns)
        self._dirty = True

    def padded(self, silence_ms: int, now_ns: int) -> None:
        """The media leg has sent silence behind the frames so far, to fill up a message."""
        self._sender.padded(silence_ms * _MS, now_ns)

    def _peer_began(self, now_ns: int) -> None:
        """A peer without marks reports that it begins to play, from an empty buffer. What it has plays that much later
        than on our schedule."""
        for turn in self.turns:
            # A turn that waited for another one, or that was moved already, did not begin from an empty buffer.
            if turn.playout.t0_ns is not None and turn.playout.t0_ns == turn.first_frame_ns:
                # A second report in a turn is about what came behind a gap.
                if not turn.is_begun_at_peer:
                    turn.is_begun_at_peer = True
                    self._sender.move(turn, min(now_ns - turn.first_frame_ns, _LATEST_BEGIN_NS))
                return

    def writable(self, flag: bool) -> None:
        """The media socket can take more, or cannot. Frames then wait here, where a clear can still drop them."""
        self._sender.open = flag and self._media
        self._supply.is_held = not flag
        self._dirty = True

    def audio(
        self, utterance_id: str, chunk: Chunk, now_ns: int, gain_db: float = 0.0, engine: str | None = None
    ) -> None:
        """PCM from the engine. Audio of an interrupted turn finds no part and is dropped. `engine` is its name, if the
        bot is to be told who spoke."""
        found = self._supply.chunk_came(utterance_id)
        if found is None:
            return
        turn, part = found
        if engine is not None and part.engines[-1:] != (engine,):
            part.engines += (engine,)
        is_beginning = part.start_sample is None
        turn.take(part, chunk, gain_db, now_ns)
        if is_beginning:
            self._sender.sentence_begun(turn, part)
        self._dirty = True

    def audio_ended(self, utterance_id: str, now_ns: int) -> None:
        """The engine has given all the audio of the utterance."""
        found = self._supply.part_of(utterance_id)
        if found is None:
            return
        turn, part = found
        if part.is_open:
            error = EngineError("the engine ended the speech of a sentence before it had the end of its text")
            self.audio_failed(utterance_id, error, now_ns)
            return
        turn.end_part(part)
        self._supply.ended()
        self._dirty = True
        if part.insert is not None and self._sounds.continues(turn, part, now_ns):
            self._sender.segment_ended(turn, part)
            return
        if not part.is_told and part.insert is None:
            part.is_told = True
            self._out.append(sentence_spoken(turn, part))
            if self._tells_words:
                self._out.append(words_spoken(turn, part))
        self._sender.sentence_ended(turn, part)

    def hand_over(self, utterance_id: str, now_ns: int, engine: str | None = None) -> Utterance | None:
        """The engine failed, and another one can speak. Returns what that one is to speak, under the same id: the rest
        of the utterance, as `handover` decides. None if the turn is over. `engine`: the name of the one that failed, if
        the bot was not told and is to be told now."""
        found = self._supply.part_of(utterance_id)
        if found is None:
            return None
        part = found[1]
        if engine is not None and part.engine_sample is not None and not part.engines:
            part.engines = (engine,)
        self._dirty = True
        self._supply.handed_over(now_ns)
        return hand_over(*found)

    def dry_ns(self, now_ns: int) -> int:
        """When the caller will hear silence if the engine gives nothing more."""
        return self._supply.dry_ns(now_ns, self._sender.media_end_ns)

    def audio_failed(self, utterance_id: str, error: TelephonyTTSError, now_ns: int) -> None:
        """The engine could not speak the utterance: its turn ends with an error, the call goes on."""
        found = self._supply.part_of(utterance_id)
        if found is not None:
            self.interrupt("engine_failure", now_ns, turn_id=found[0].id, error=error)

    def bed_loaded(self, bed: Bed, sound: Sound) -> None:
        """The answer to `LoadBed`."""
        self._sounds.bed_loaded(bed, sound, self.settings)
        self._dirty = True

    def bed_failed(self, bed: Bed, error: SoundError) -> None:
        """The answer to `LoadBed`, if the sound cannot be played."""
        self._sounds.bed_failed(bed, error, self.settings)
        self._dirty = True

    # ------------------------------------------------------------- stopping

    def interrupt(
        self,
        reason: str,
        now_ns: int,
        *,
        turn_id: str | None = None,
        heard_ms: int | None = None,
        error: TelephonyTTSError | None = None,
    ) -> bool:
        """End one turn, or all turns, now. Every reason to stop comes through here. True if a turn was ended.

        Each turn ends with `cleared`, or with `error` if one is given, which says what the caller heard of the turn.
        """
        hit = [turn for turn in self.turns if turn_id is None or turn.id == turn_id]
        if not hit:
            return False
        self._dirty = True
        if reason == "barge_in":
            self.caller.ended_turns = True
        keep = [turn for turn in self.turns if turn not in hit]
        sounded = [turn for turn in hit if turn.playout.n_sent or turn.heard_samples]
        positions = {turn: self._playhead.position(turn, now_ns) for turn in sounded + keep}
        n_played = {turn: self._playhead.n_played_frames(turn, now_ns) for turn in keep}
        self.turns[:] = keep
        for turn in hit:
            self._supply.drop(turn)
        if not self._pause.is_on:
            self._silence(sounded, {turn: positions[turn][0] for turn in keep}, n_played, now_ns)
        elif not keep:
            self._pause.drop()
        for turn in hit:
            position, basis = positions.get(turn, (0, "clock"))
            if heard_ms is not None and turn is hit[0]:
                basis = "client"
                position = heard_ms * self.settings.rate_hz // 1000
                position = min(position, max(turn.n_sent_samples, turn.heard_samples))
            self._playhead.report_interrupted(turn, position, basis)
            self._dtmf.cleared(turn, position)
            offset = turn.in_source(heard_offset(turn, position))
            text = turn.source
            heard_at_ms = position * 1000 // self.settings.rate_hz
            if error is None:
                self._end_turn(
                    turn,
                    m.Cleared(
                        turn.id, text[:offset], offset, heard_at_ms, text[offset:], basis, reason, latency(turn)
                    ),
                )
            else:
                self._end_turn(
                    turn,
                    m.ErrorEvent(
                        error.code, error.message, turn=turn.id, retryable=error.retryable,
                        retry_after_ms=error.retry_after_ms,
                        heard_text=text[:offset], heard_ms=heard_at_ms, unheard_text=text[offset:],
                        latency=latency(turn),
                    ),
                )
        return True

    def pause(self, reason: str, now_ns: int, *, heard_ms: int | None = None) -> bool:
        """Stop the speech at once and keep what was not heard, until it is resumed or cleared. False if no turn can be
        paused."""
        self._end_played_turns(now_ns, [])
        if not self.turns or self.settings.separate_turns:
            return False
        self._dirty = True
        if not self._pause.is_on:
            self._quiet([turn for turn in self.turns if turn.playout.n_sent])
        self._pause.begin(reason, now_ns, heard_ms)
        return True

    def _hold(self, is_on: bool, now_ns: int) -> None:
        """The telephone was put on hold, or taken back. What is sent meanwhile would not be heard."""
        if is_on == self._pause.on_hold:
            return
        self._out.append(m.Hold("started" if is_on else "ended"))
        self.missing_audio.came_ns = now_ns  # a telephone on hold sends nothing
        if is_on and not self._pause.is_by_bot:
            self.pause("hold", now_ns)
        self._pause.hold(is_on, now_ns)

    def hang_up(self, reason: str, now_ns: int) -> None:
        """The telephone side is gone, so the caller hears nothing more."""
        if self.finished:
            return
        self.interrupt("hangup", now_ns)
        self._out.append(m.Hangup(reason))
        self._finish(1000, "the call has ended")

    def close(self, now_ns: int, *, at_once: bool = False, code: int = 1000, reason: str = "closed") -> None:
        """Take no more turns, and finish when the last turn is over. `at_once`: clear the turns first."""
        if self.finished:
            return
        self._close_code = (code, reason)
        self._dirty = True
        if self._pause.is_by_bot and not at_once:
            self._pause.end()
        self._intake.close_all(now_ns)
        self._sounds.end_loops()
        if at_once:
            self.interrupt("close", now_ns)

    def _silence(
        self, sounded: list[Turn], heard_samples: dict[Turn, int], n_played: dict[Turn, int], now_ns: int
    ) -> None:
        """Stop audio that is on its way to the caller, and repair the turns that stay: `heard_samples` has how much of
        them was heard, and `n_played` how many of their frames were played."""
        if not sounded:
            return
        self._quiet(sounded)
        sender = self._sender
        if self.settings.separate_turns:
            sender.dropped(list(heard_samples), now_ns)
            return
        sender.emptied(heard_samples, n_played, now_ns)

    def _quiet(self, sounded: list[Turn]) -> None:
        """Empty the peer's buffer, or fade out what it gets. `sounded` are turns of which frames were sent."""
        if sounded and self._media_clears:
            self._out.append(m.MediaClear())
            return
        cut = next((turn for turn in sounded if not turn.sent_all), None)
        if cut is not None and self._sender.open and self.settings.fade_on_clear:
            tail = cut.fade_frame()
            if tail is not None:
                self._out.append(m.Frame(tail))

    # -------------------------------------------------------------- output

    def poll(self, now_ns: int) -> list[Effect]:
        """Do all that is due by `now_ns`, and return the effects in the order in which they must happen."""
        sender = self._sender
        sender.allowance = FRAMES_PER_POLL
        is_due = self._dirty or (self._housekeeping_ns is not None and now_ns >= self._housekeeping_ns)
        if is_due:
            # Before the frames: a mark is sent behind its own frame, and after a turn that ends here the next begins.
            self._dirty = False
            self._text_ns = self._intake.watch(now_ns)
            self._end_stuck_turn(now_ns)
        if is_due or (sender.next_ns is not None and now_ns >= sender.next_ns):
            # When a turn was sent to its end, housekeeping has to arrange when it counts as played.
            is_due |= sender.send_due(now_ns)
        if is_due:
            self._run_housekeeping(now_ns)
        effects = self._out[:]
        self._out.clear()
        return effects

    @property
    def text_waits(self) -> bool:
        """`may_work` had no time for some of the text."""
        return self._intake.text_waits

    def read_on(self) -> None:
        """There is time for text again, in the `poll` that follows."""
        self._dirty = True

    def deadline_ns(self) -> int | None:
        """Call `poll` again no later than this. None: only when something happens."""
        send_ns, housekeeping_ns = self._sender.next_ns, self._housekeeping_ns
        if send_ns is None or (housekeeping_ns is not None and housekeeping_ns < send_ns):
            return housekeeping_ns
        return send_ns

    def _run_housekeeping(self, now_ns: int) -> None:
        """Everything that follows the frames: supply, marks, ends of turns, limits."""
        wake: list[int] = []
        self._dirty |= self._sounds.watch()
        supply_ns = self._supply.poll(now_ns, self._sender.media_end_ns)
        self._end_played_turns(now_ns, wake)
        self._intake.balance()
        caller_ns = None if self.finished else self.caller.poll(self.turns, now_ns)
        audio_ns = None if self.finished else self.missing_audio.poll(self.turns, now_ns)
        for at_ns in (self._text_ns, supply_ns, caller_ns, audio_ns, self._poll_pause(now_ns)):
            if at_ns is not None:
                wake.append(at_ns)
        if not self.turns and not self.finished:
            if self._intake.closing and now_ns < self._sender.busy_until_ns:
                wake.append(self._sender.busy_until_ns)
            elif self._intake.closing:
                self._finish(*self._close_code)
            elif self.settings.limits.idle_s:
                idle_ns = self._last_active_ns + self.settings.limits.idle_s * _S
                if now_ns >= idle_ns:
                    self._out.append(m.ErrorEvent("idle", "no message for too long", fatal=True))
                    self._finish(1008, "idle")
                wake.append(idle_ns)
        self._housekeeping_ns = min(wake) if wake else None
        if self._dirty:
            self._housekeeping_ns = now_ns

    def _poll_pause(self, now_ns: int) -> int | None:
        """End a pause by the caller's voice, if it is time. Returns when to look again."""
        if not self._pause.is_on:
            return None
        outcome, at_ns = self._pause.poll(now_ns)
        if outcome == "resume":
            self._pause.end()
            self._dirty = True
        elif outcome == "interrupt":
            self.interrupt("barge_in", now_ns)
        return at_ns

    def insert(self, insert: Insert, turn_id: str | None, now_ns: int) -> Turn | None:
        """Play `insert` behind the text so far of a turn; see `Intake.insert`."""
        self._dirty = True
        return self._intake.insert(insert, turn_id, now_ns)

    def _end_stuck_turn(self, now_ns: int) -> None:
        if (turn := self._supply.stuck(now_ns)) is not None:
            error = EngineError(f"the engine gave no audio for {self.settings.engine_timeout_ms / 1000:g} s")
            self.interrupt("engine_failure", now_ns, turn_id=turn.id, error=error)

    def _end_played_turns(self, now_ns: int, wake: list[int]) -> None:
        """Report marks that were played, and end turns that were played, in order."""
        peer_marks = self._sender.peer_marks
        while self.turns:
            turn = self.turns[0]
            if peer_marks:
                self._playhead.report_overdue(turn, self.settings.mark_timeout_ms * _MS, now_ns, wake)
            if peer_marks and turn.playout.t0_ns is not None:
                self._sender.send_marks(turn)
                self._playhead.report(turn, MarkState.TIMED, now_ns, wake)
            elif turn.first_frame_ns is not None or not self._pause.on_hold:
                self._playhead.report(turn, MarkState.TIMED, now_ns, wake)
                self._playhead.report(turn, MarkState.PLACED, now_ns, wake)
            if not turn.sent_all:
                return
            if turn.playout.t0_ns is not None:
                at_ns = turn.playout.end_ns()
                is_awaited = turn.marks.first(MarkState.SENT) is not None
                if is_awaited:
                    if turn.settings.whole_sentences:
                        return  # The leg waits for the peer's report, and ends the call if none comes.
                    at_ns += self.settings.mark_timeout_ms * _MS
                if now_ns < at_ns and not (peer_marks and not is_awaited):
                    wake.append(at_ns)
                    return
            self._end_played(turn, now_ns)
        if self._pause.is_on:
            self._pause.drop()  # what was paused had been heard to its end

    def _end_played(self, turn: Turn, now_ns: int) -> None:
        self._playhead.report_all_played(turn)
        self.turns.remove(turn)
        self._last_active_ns = now_ns
        if turn.n_skipped or not turn.parts:
            self._intake.warn("empty_text", "text without a speakable character was skipped", turn.id)
        self._end_turn(
            turn,
            m.Done(turn.id, turn.n_sent_samples * 1000 // turn.settings.rate_hz, turn.n_source_chars,
                   turn.underruns, latency(turn), speakers(turn.parts)),
        )  # fmt: skip

    def sent_is_played(self, now_ns: int) -> None:
        """End the turns that were sent to their end: the peer keeps their audio, and plays it when it wants."""
        for turn in [turn for turn in self.turns if turn.sent_all]:
            self._end_played(turn, now_ns)
        self._dirty = True

    # -------------------------------------------------------------- details

    def _end_turn(self, turn: Turn, event: TurnEnd) -> None:
        """Every turn ends here, with its last event."""
        self._out.append(event)
        self.n_underruns += turn.underruns
        self.n_lexicon_readings += turn.n_lexicon_readings
        self._intake.forget(turn, _OUTCOMES[type(event)])
        self._sounds.turn_ended(turn.id)
        if self.on_turn_over is not None:
            self.on_turn_over(turn, event)

    def _finish(self, code: int, reason: str) -> None:
        self.finished = True
        self._out.append(Finish(code, reason))
