"""The caller's voice: when the bot is told that the caller speaks or is silent, and when that interrupts our speech.

The caller's audio is resampled to 8 kHz and judged in windows of 32 ms: by level (`echo_gate`) and, when it is more
than noise, by the network. A call without audio from the caller is never interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.transcoder import Transcoder
from telephony_tts.audio.voice_activity import (
    RATE_HZ,
    WINDOW_MS,
    WINDOW_SAMPLES,
    VoiceActivity,
    VoiceModel,
)
from telephony_tts.runtime.errors import AudioError
from telephony_tts.session.caller.answering_machine import AnsweringMachine
from telephony_tts.session.caller.echo_gate import N_COMPARED, EchoGate
from telephony_tts.session.caller.silence import CallerSilence
from telephony_tts.session.caller.talkspurt import Change, TalkSpurt
from telephony_tts.session.effects import Effect
from telephony_tts.session.settings import BargeInSettings, SessionSettings, changed_start
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import CallerSpeech, Configure, MediaAudio, WarningEvent

FindModel = Callable[[], VoiceModel | None]
"""Returns the process's network, or None while it is being loaded. Raises AudioError if it cannot be loaded."""

_MS = 1_000_000
_MOST_KEPT = 1500
"""The most frames that are kept while no detector listens. Only a peer that gets whole turns at once has more. What
that peer plays half a minute later is not known then."""
_MOST_AT_ONCE_MS = 1000
"""The most audio that may come faster than real time. Audio beyond it is dropped: it would delay other calls."""
_STILL_MS = 64
"""The caller is still speaking if the last voice is at most this old."""
_QUIET_WINDOWS = 10
"""After this many windows of noise the network is not run until a window is louder than noise."""
_SURELY_NOT_VOICE = 0.2
"""Windows with less than this probability of a voice are noise."""
_BEFORE_WINDOWS = 12
"""The network then begins anew with this many windows before: it needs the onset of a voice."""
_MISSED_MS = 40
"""How much of the caller's audio a platform that plays files drops where one begins, and again where it ends."""
_LOST_MS = 15
"""Packets were lost if the peer's clock is so much ahead of the audio that came. Its stamps may be inexact."""
_UNDECIDED_MS = 200
"""How long a voice that is too short so far delays `caller_silent`, if no more audio comes."""
_HOLE_MS = 120
"""The longest hole: the end of one file, the begin of the next, and late packets. It may hide speech."""

_MISSING_MS = 250
"""No audio for so long is silence behind a beep."""
_SILENCE: Pcm = np.zeros(WINDOW_SAMPLES, np.int16)
_NO_DETECTOR = "this server does not listen to callers"
_WITHOUT = {
    "barge_in_unavailable": "the caller's voice will not interrupt",
    "caller_silent_unavailable": "the caller's silence will not be reported",
}


class Caller:
    """The caller's voice in one call. `out` is the session's own list."""

    def __init__(self, settings: SessionSettings, find_model: FindModel | None, out: list[Effect]) -> None:
        self._find_model = find_model
        self._why_deaf = _NO_DETECTOR if find_model is None else ""
        """Why there is no detector. Empty if there is one."""
        self._out = out
        self.is_on = settings.barge_in.enabled and find_model is not None
        """Whether the caller's voice interrupts, and the bot is told of it."""
        self.machine = AnsweringMachine(settings.caller.answering_machine, out)
        self.silence = CallerSilence(settings.caller.silent_ms if find_model is not None else 0, out)
        self._note_listens()
        self._media: tuple[str, int] | None = None
        """The codec and the rate of the caller's audio, once there is a media leg."""
        self._gate = EchoGate(settings.barge_in.floor_dbov)
        self._window_ns = 0
        """When the last window ended."""
        self._spurt = TalkSpurt(settings.barge_in, self._find_callers, N_COMPARED)
        self._transcoder: Transcoder | None = None
        self._model: VoiceModel | None = None
        self._activity: VoiceActivity | None = None
        self._has_failed = False
        """The network has failed once. The bot was told."""
        self._n_quiet = _QUIET_WINDOWS
        self._before: deque[Pcm] = deque(maxlen=_BEFORE_WINDOWS)
        self._rest = b""
        self._n_heard = 0
        """Samples at 8 kHz that were judged or skipped."""
        self._clock_ms: int | None = None
        """The peer's media clock at the sample from which we count."""
        self._room_ms = 0.0
        self._room_ns = 0
        self._hole_ms = 0
        """How long audio may be missing before that counts as silence."""
        self._heard_ns = 0
        """When the last window was judged."""
        self._sound_ns = 0
        """When the last voice was heard, the caller's or our own."""
        self._sound_clock_ms: int | None = None
        """`_clock_ms` at that time."""
        self._sounding_ns: int | None = None
        """When we began to speak without a pause."""
        self._is_due = False
        """The caller has begun to speak over us, and has not interrupted us yet."""
        self.ended_turns = False
        """Whether the caller's speech, which goes on or was the last, has ended turns. A pause ends none."""

    # ------------------------------------------------------------- settings

    def start_with(self, before: BargeInSettings, after: BargeInSettings) -> None:
        """The call starts with other times for barge-in; see `Session.start_with`."""
        self._spurt.settings = changed_start(self._spurt.settings, before, after)

    def _note_listens(self) -> None:
        self.listens = self.is_on or self.silence.after_ms > 0 or self.machine.is_on
        """Whether the caller's audio is needed. Kept, because every frame asks for it."""

    def configure(self, message: Configure, now_ns: int) -> None:
        """Take the settings of barge-in and of the caller's silence from the message."""
        settings = self._spurt.settings
        if message.min_speech_ms is not None:
            settings = replace(settings, min_speech_ms=message.min_speech_ms)
        if message.hold_off_ms is not None:
            settings = replace(settings, hold_off_ms=message.hold_off_ms)
        self._spurt.settings = settings
        if message.barge_in == "off":
            self._stop_barge_in()
        elif message.barge_in == "on" and not self.is_on:
            if self._why_deaf:
                self._warn("barge_in_unavailable", self._why_deaf)
            else:
                self._start_listening()
                self.is_on = True
                self._note_listens()
                if self._spurt.is_speaking:
                    self._tell(Change.BEGAN)  # the bot was not told of speech that goes on
        if message.caller_silent_ms is not None:
            if message.caller_silent_ms and self._why_deaf:
                self._warn("caller_silent_unavailable", self._why_deaf)
            else:
                if message.caller_silent_ms:
                    self._start_listening()
                self.silence.after_ms = message.caller_silent_ms
                self.silence.restart(now_ns)
                self._stop_listening_if_off()

        if message.answering_machine == "on" and not self.machine.is_on:
            self._start_listening()
            self.machine = AnsweringMachine(True, self._out)
            self._note_listens()
        elif message.answering_machine == "off":
            self.machine.is_on = False
            self._stop_listening_if_off()

    def media(
        self, heard: tuple[str, int], spoken: tuple[str, int], now_ns: int, *, has_holes: bool = False
    ) -> None:
        """The media leg is there. It sends audio in the codec and rate `heard`, and gets `spoken`. `has_holes`: audio
        is missing where files begin and end."""
        self._media, self._gate.played.spoken = heard, spoken
        self._hole_ms = _HOLE_MS if has_holes else 0
        self.silence.restart(now_ns)
        self._begin()

    def _begin(self) -> None:
        if self._media is not None:
            self._transcoder = Transcoder(*self._media, "pcm", RATE_HZ)
            self._rest = b""

    def _start_listening(self) -> None:
        if not self.listens:
            self._begin()

    def _stop_barge_in(self) -> None:
        if self._spurt.is_speaking:
            self._tell(Change.ENDED)
        self.is_on = self._is_due = False
        self._stop_listening_if_off()

    def _stop_listening_if_off(self) -> None:
        self._note_listens()
        if not self.listens:
            self._spurt.forget()
            self._activity = None
            self._sounding_ns = None  # the end of this speech will not be noted

    def _unavailable(self, why: str) -> None:
        """The detector cannot be used: all that needs it is off. Beeps are found without it."""
        self._why_deaf = why
        was_on, awaited_silence = self.is_on, self.silence.after_ms > 0
        self.silence.after_ms = 0
        self._stop_barge_in()
        if was_on:
            self._warn("barge_in_unavailable", why)
        if awaited_silence:
            self._warn("caller_silent_unavailable", why)

    def _warn(self, code: str, why: str) -> None:
        self._out.append(WarningEvent(code, f"{_WITHOUT[code]}: {why}"))

    # ---------------------------------------------------------- what we play

    def playing(self, payload: bytes, heard_ns: int, now_ns: int) -> None:
        """A frame was sent that the caller hears at `heard_ns`."""
        played = self._gate.played
        if self.listens or len(played) < _MOST_KEPT:
            played.add(payload, heard_ns)
        played.forget(now_ns)

    def emptied(self, now_ns: int) -> None:
        """The peer's buffer was emptied: frames that were not heard yet never will be."""
        self._gate.played.emptied(now_ns)

    def moved(self, late_ns: int) -> None:
        """Sent frames are heard `late_ns` later than `playing` was told."""
        self._gate.played.moved(late_ns)

    def peer_is_late(self, late_ns: int) -> None:
        """The peer has reported that it plays `late_ns` later than our schedule."""
        self._gate.peer_is_late(late_ns)

    def file_begun(self) -> None:
        """The peer begins to play a file, and drops some of the caller's audio for it."""
        self._spurt.missed(_MISSED_MS, self._n_heard * 1000 // RATE_HZ)

    # ------------------------------------------------------- what we are sent

    def take(self, audio: MediaAudio, turns: list[Turn], now_ns: int) -> bool:
        """Take the caller's audio. True if the caller's speech may have begun or ended. `turns` are those of the
        session."""
        if not self.listens or self._transcoder is None:
            return False
        if not self._has_model() and not self.machine.is_on:
            return False
        if not self._has_room(audio, now_ns):
            return False
        before = self._state()
        self._note_our_speech(turns, now_ns)
        pcm = self._rest + self._transcoder.feed(audio.payload)
        n_windows = len(pcm) // (2 * WINDOW_SAMPLES)
        if audio.timestamp_ms is not None and n_windows:
            clock_ms = audio.timestamp_ms - (self._n_heard + len(self._rest) // 2) * 1000 // RATE_HZ
            if self._clock_ms is not None and clock_ms - self._clock_ms >= _LOST_MS:
                self._gate.lost(clock_ms - self._clock_ms)
            self._clock_ms = clock_ms
        samples = np.frombuffer(pcm, "<i2", n_windows * WINDOW_SAMPLES).astype(np.int16, copy=False)
        self._rest = pcm[n_windows * WINDOW_SAMPLES * 2 :]
        for n in range(n_windows):
            # The whole message came now, but its first window was spoken first.
            at_ns = now_ns - (n_windows - 1 - n) * WINDOW_MS * _MS
            self._window(samples[n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES], at_ns)
        return self._state() != before

    def _state(self) -> tuple[bool, bool, bool]:
        """What `poll` depends on."""
        return self._spurt.is_speaking, self._spurt.is_undecided, self.machine.awaits_silence

    def _has_model(self) -> bool:
        if self._model is None and self._find_model is not None and not self._why_deaf:
            try:
                self._model = self._find_model()
            except AudioError as error:
                self._unavailable(error.message)
        return self._model is not None

    def _has_room(self, audio: MediaAudio, now_ns: int) -> bool:
        """Whether the caller can have said this much by now. If not, the whole message is dropped."""
        assert self._media is not None
        codec, rate_hz = self._media
        n_ms = len(audio.payload) * 1000 / (rate_hz * CODECS[codec].bytes_per_sample)
        self._room_ms = min(_MOST_AT_ONCE_MS, self._room_ms + (now_ns - self._room_ns) / _MS)
        self._room_ns = now_ns
        if n_ms > self._room_ms:
            return False
        self._room_ms -= n_ms
        return True

    def _window(self, pcm: Pcm, now_ns: int) -> None:
        is_loud = self._gate.take(pcm, now_ns)
        self._window_ns = now_ns
        probability = 0.0 if self._model is None else self._probability(self._model, pcm, is_loud)
        if probability < _SURELY_NOT_VOICE and not self.machine.awaits_silence:
            self._gate.not_voice()  # nor a beep, which would hide its own end
        sound_end_ms = self._spurt.sound_end_ms
        change = self._spurt.feed(probability, is_loud, WINDOW_MS, self._n_heard * 1000 // RATE_HZ)
        self._n_heard += WINDOW_SAMPLES
        self._heard_ns = now_ns
        if self.machine.is_on:
            is_heard = is_loud and self._gate.callers(1, now_ns)[-1]
            self.machine.listen(pcm, is_heard, self._spurt, self._n_heard * 1000 // RATE_HZ, self._clock_ms or 0)
        if self._spurt.sound_end_ms > sound_end_ms:
            self._sound_ns, self._sound_clock_ms = now_ns, self._clock_ms
        if self._spurt.is_speaking and self._spurt.voice_end_ms * RATE_HZ // 1000 >= self._n_heard:
            self.silence.restart(now_ns)
        self._tell(change)

    def _find_callers(self, n_windows: int) -> list[bool]:
        return self._gate.callers(n_windows, self._window_ns, self._spurt.is_speaking)

    def _probability(self, model: VoiceModel, pcm: Pcm, is_loud: bool) -> float:
        self._n_quiet = 0 if is_loud else self._n_quiet + 1
        if self._n_quiet >= _QUIET_WINDOWS:
            self._activity = None
            self._before.append(pcm)
            return 0.0
        try:
            if self._activity is None:
                self._activity = VoiceActivity(model)
                while self._before:
                    self._activity.feed(self._before.popleft())
            return self._activity.feed(pcm)
        except Exception as error:  # onnxruntime's own, for want of memory
            self._activity = None
            self._model_failed(error)
            return 0.0

    def _model_failed(self, error: Exception) -> None:
        """The network could not judge a window, which counts as silence. The next one is tried again."""
        if self._has_failed:
            return
        self._has_failed = True
        why = str(error) or type(error).__name__
        what = f"the caller's voice is not heard for a moment: the voice model failed: {why}"
        if self.is_on:
            self._out.append(WarningEvent("barge_in_unavailable", what))
        if self.silence.after_ms:
            self._out.append(WarningEvent("caller_silent_unavailable", what))

    # ------------------------------------------------------------- what follows

    def _note_our_speech(self, turns: list[Turn], now_ns: int) -> None:
        """Note whether we are speaking, and since when. A turn whose speech is over may still await the peer's mark."""
        starts = [
            turn.playout.began_ns for turn in turns
            if turn.playout.t0_ns is not None and turn.playout.n_sent
            and not (turn.sent_all and now_ns >= turn.playout.end_ns() + self._gate.late_ns)
        ]
        if not starts:
            self._sounding_ns = None
            self._is_due = False
        elif self._sounding_ns is None:
            self._sounding_ns = min(starts)

    def _tell(self, change: Change | None) -> None:
        spurt = self._spurt
        if not self.is_on:
            return
        if change is Change.BEGAN:
            self._is_due = self._sounding_ns is not None
            self.ended_turns = False
            self._out.append(CallerSpeech("speaking", self._on_clock(spurt.begun_ms)))
        elif change is Change.ENDED:
            self._is_due = False
            spoken_ms = spurt.voice_end_ms - spurt.begun_ms
            self._out.append(
                CallerSpeech("silent", self._on_clock(spurt.voice_end_ms), spoken_ms, self.ended_turns)
            )

    def _on_clock(self, at_ms: int) -> int | None:
        return None if self._sound_clock_ms is None else max(0, self._sound_clock_ms + at_ms)

    @property
    def is_speaking(self) -> bool:
        """Whether the caller speaks. With barge-in on, the bot was told."""
        return self._spurt.is_speaking

    @property
    def spoken_ms(self) -> int:
        """How long the caller has spoken, or spoke last."""
        return self._spurt.voice_end_ms - self._spurt.begun_ms

    def quiet_ms(self, now_ns: int) -> int:
        """How long ago the caller's last voice was."""
        return self._heard_ms(now_ns) - self._spurt.voice_end_ms

    def _heard_ms(self, now_ns: int) -> int:
        """How much of the caller was heard. Audio that does not come counts as silence."""
        return self._n_heard * 1000 // RATE_HZ + max(0, self._missing_ms(now_ns) - self._hole_ms)

    def _missing_ms(self, now_ns: int) -> int:
        """How much of the caller's audio since the last voice has not come, by the clock. A peer may send messages
        without audio, or less audio than time passes."""
        n_came_ms = self._n_heard * 1000 // RATE_HZ - self._spurt.sound_end_ms
        return max(0, (now_ns - self._sound_ns) // _MS - n_came_ms)

    def interrupts(self, now_ns: int) -> bool:
        """Whether the caller interrupts or pauses all turns now: once for each talk spurt, after the hold-off."""
        if not self._is_due or self._sounding_ns is None:
            return False
        if self.quiet_ms(now_ns) > _STILL_MS:
            return False
        if now_ns < self._sounding_ns + self._spurt.settings.hold_off_ms * _MS:
            return False
        self._is_due = False
        # The next turn begins anew, however soon that is, so the hold-off also follows an interruption.
        self._sounding_ns = None
        return True

    def key_pressed(self, now_ns: int) -> None:
        """The caller has pressed a key."""
        self.silence.restart(now_ns)

    def poll(self, turns: list[Turn], now_ns: int) -> int | None:
        """Do what is due by the clock: a peer may send nothing during silence. `turns` are those of the session.
        Returns when to ask again."""
        if not self.listens:
            return None
        wakes = [at_ns for at_ns in (self._poll_silence(turns, now_ns), self._end_beep(now_ns)) if at_ns is not None]
        return min(wakes, default=None)

    def _poll_silence(self, turns: list[Turn], now_ns: int) -> int | None:
        speech_ns = self._end_speech(now_ns)
        if not self.silence.after_ms or self._media is None or self._spurt.is_speaking:
            return speech_ns
        if self._spurt.is_undecided and (rest_ms := _UNDECIDED_MS - self._missing_ms(now_ns)) > 0:
            # The caller may have begun to speak.
            return now_ns + rest_ms * _MS
        return self.silence.poll(turns, now_ns)

    def _end_beep(self, now_ns: int) -> int | None:
        """Take missing audio for the silence behind a beep. Returns when that is due."""
        if not self.machine.awaits_silence:
            return None
        due_ns = self._heard_ns + _MISSING_MS * _MS
        if now_ns < due_ns:
            return due_ns
        end_ms = self._n_heard * 1000 // RATE_HZ
        for n in range(1, _MISSING_MS // WINDOW_MS + 2):
            self.machine.listen(_SILENCE, False, self._spurt, end_ms + n * WINDOW_MS, self._clock_ms or 0)
        return None

    def _end_speech(self, now_ns: int) -> int | None:
        """End the caller's speech by the clock. Returns when that is due."""
        spurt = self._spurt
        if not spurt.is_speaking:
            return None
        change = spurt.silent_to(self._heard_ms(now_ns))
        self._tell(change)
        if change is not None:
            return None
        heard_ms = self._n_heard * 1000 // RATE_HZ + self._missing_ms(now_ns) - self._hole_ms
        rest_ms = spurt.voice_end_ms + spurt.settings.silence_ms - heard_ms
        return now_ns + max(1, rest_ms) * _MS
