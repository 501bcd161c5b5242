"""The caller's voice: when the bot is told that the caller speaks, and when that interrupts our speech.

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
    level_dbov,
)
from telephony_tts.errors import AudioError
from telephony_tts.session.caller.echo_gate import EchoGate
from telephony_tts.session.caller.talkspurt import Change, TalkSpurt
from telephony_tts.session.effects import Effect
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import CallerSpeech, Configure, MediaAudio, WarningEvent

FindModel = Callable[[], VoiceModel | None]
"""Returns the process's network, or None while it is being loaded. Raises AudioError if it cannot be loaded."""

_MS = 1_000_000
_SLOT_MS = 20
_KEPT_NS = 1_000_000_000
"""How long sent frames are kept: an echo comes back sooner."""
_MOST_KEPT = 1500
"""The most frames that are kept. Only a peer that gets whole turns at once has more. What that peer plays half a
minute later is not known then."""
_MOST_AT_ONCE_MS = 1000
"""The most audio that may come faster than real time. Audio beyond it is dropped: it would delay other calls."""
_STILL_MS = 64
"""The caller is still speaking if the last voice is at most this old."""
_QUIET_WINDOWS = 10
"""After this many windows of noise the network is not run until a window is louder than noise."""
_BEFORE_WINDOWS = 4
"""The network then begins anew with this many windows before: it needs the onset of a voice."""
_MISSED_MS = 40
"""How much of the caller's audio FreeSWITCH drops where a file begins, and again where it ends."""
_HOLE_MS = 120
"""The longest hole: the end of one file, the begin of the next, and late packets. It may hide speech."""


class Caller:
    """The caller's voice in one call. `out` is the session's own list."""

    def __init__(self, settings: SessionSettings, find_model: FindModel | None, out: list[Effect]) -> None:
        self._find_model = find_model
        self._out = out
        self.is_on = settings.barge_in.enabled and find_model is not None
        self._media: tuple[str, int] | None = None
        """The codec and the rate of the caller's audio, once there is a media leg."""
        self._spoken = ("ulaw", RATE_HZ)
        """The codec and the rate of our speech."""
        self._gate = EchoGate(settings.barge_in.floor_dbov)
        self._spurt = TalkSpurt(settings.barge_in)
        self._transcoder: Transcoder | None = None
        self._model: VoiceModel | None = None
        self._activity: VoiceActivity | None = None
        self._n_quiet = _QUIET_WINDOWS
        self._before: deque[Pcm] = deque(maxlen=_BEFORE_WINDOWS)
        self._rest = b""
        self._n_heard = 0
        """Samples at 8 kHz that were judged or skipped."""
        self._clock_ms: int | None = None
        """The peer's media clock at the sample from which we count."""
        self._room_ms = 0.0
        self._hole_ms = 0
        """How long audio may be missing before that counts as silence."""
        self._heard_ns = 0
        self._sounding_ns: int | None = None
        """When we began to speak without a pause."""
        self._is_due = False
        """The caller has begun to speak over us, and has not interrupted us yet."""
        self._did_interrupt = False
        self._sent: deque[tuple[bytes, int]] = deque()
        """(frame, when it is heard) of recent frames, kept while barge-in is off: the echo gate needs them when it is
        turned on."""

    # ------------------------------------------------------------- settings

    def configure(self, message: Configure) -> None:
        """Take the settings of barge-in from the message."""
        settings = self._spurt.settings
        if message.min_speech_ms is not None:
            settings = replace(settings, min_speech_ms=message.min_speech_ms)
        if message.hold_off_ms is not None:
            settings = replace(settings, hold_off_ms=message.hold_off_ms)
        self._spurt.settings = settings
        if message.barge_in == "off":
            self._stop()
        elif message.barge_in == "on" and not self.is_on:
            if self._find_model is None:
                self._unavailable("this server does not listen to callers")
            else:
                self.is_on = True
                self._begin()
                while self._sent:
                    self._plays(*self._sent.popleft())

    def media(self, heard: tuple[str, int], spoken: tuple[str, int], *, has_holes: bool = False) -> None:
        """The media leg is there. It sends audio in the codec and rate `heard`, and gets `spoken`. `has_holes`: audio
        is missing where files begin and end."""
        self._media, self._spoken = heard, spoken
        self._hole_ms = _HOLE_MS if has_holes else 0
        self._begin()

    def _begin(self) -> None:
        if self._media is not None:
            self._transcoder = Transcoder(*self._media, "pcm", RATE_HZ)
            self._rest = b""

    def _stop(self) -> None:
        if self._spurt.is_speaking:
            self._spurt.is_speaking = False
            self._tell(Change.ENDED)
        self.is_on = self._is_due = False
        self._activity = None

    def _unavailable(self, why: str) -> None:
        self._stop()
        self._out.append(WarningEvent("barge_in_unavailable", f"the caller's voice will not interrupt: {why}"))

    # ---------------------------------------------------------- what we play

    def playing(self, payload: bytes, heard_ns: int, now_ns: int) -> None:
        """A frame was sent that the caller hears at `heard_ns`."""
        if self.is_on and self._media is not None:
            self._plays(payload, heard_ns)
            return
        while self._sent and self._sent[0][1] < now_ns - _KEPT_NS:
            self._sent.popleft()
        if len(self._sent) < _MOST_KEPT:
            self._sent.append((payload, heard_ns))

    def _plays(self, payload: bytes, heard_ns: int) -> None:
        codec, rate_hz = self._spoken
        pcm = CODECS[codec].decode(payload)
        n_slot = rate_hz * _SLOT_MS // 1000
        for start in range(0, len(pcm), n_slot):
            self._gate.playing(heard_ns + start * 1_000_000_000 // rate_hz, level_dbov(pcm[start : start + n_slot]))

    def emptied(self, now_ns: int) -> None:
        """The peer's buffer was emptied: frames that were not heard yet never will be."""
        while self._sent and self._sent[-1][1] > now_ns:
            self._sent.pop()
        self._gate.emptied(now_ns)

    def moved(self, late_ns: int) -> None:
        """Sent frames are heard `late_ns` later than `playing` was told."""
        self._sent = deque((payload, at_ns + late_ns) for payload, at_ns in self._sent)
        self._gate.moved(late_ns)

    def peer_is_late(self, late_ns: int) -> None:
        """The peer has reported that it plays `late_ns` later than our schedule."""
        self._gate.peer_is_late(late_ns)

    def file_begun(self) -> None:
        """The peer begins to play a file, and drops some of the caller's audio for it."""
        self._spurt.missed(_MISSED_MS, self._n_heard * 1000 // RATE_HZ)

    # ------------------------------------------------------- what we are sent

    def take(self, audio: MediaAudio, turns: list[Turn], now_ns: int) -> bool:
        """Take the caller's audio. True if that gave an event for the bot. `turns` are those of the session."""
        if not self.is_on or self._transcoder is None or not self._has_model() or not self._has_room(audio, now_ns):
            return False
        n_told = len(self._out)
        self._note_our_speech(turns, now_ns)
        pcm = self._rest + self._transcoder.feed(audio.payload)
        if audio.timestamp_ms is not None:
            self._clock_ms = audio.timestamp_ms - (self._n_heard + len(self._rest) // 2) * 1000 // RATE_HZ
        n_windows = len(pcm) // (2 * WINDOW_SAMPLES)
        samples = np.frombuffer(pcm, "<i2", n_windows * WINDOW_SAMPLES).astype(np.int16, copy=False)
        self._rest = pcm[n_windows * WINDOW_SAMPLES * 2 :]
        for n in range(n_windows):
            # The whole message came now, but its first window was spoken first.
            at_ns = now_ns - (n_windows - 1 - n) * WINDOW_MS * _MS
            self._window(samples[n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES], at_ns)
        return len(self._out) > n_told

    def _has_model(self) -> bool:
        if self._model is None:
            assert self._find_model is not None
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
        self._room_ms = min(_MOST_AT_ONCE_MS, self._room_ms + (now_ns - self._heard_ns) / _MS)
        self._heard_ns = now_ns
        if n_ms > self._room_ms:
            return False
        self._room_ms -= n_ms
        return True

    def _window(self, pcm: Pcm, now_ns: int) -> None:
        is_open = self._gate.opens(level_dbov(pcm), now_ns)
        change = self._spurt.feed(self._probability(pcm), is_open, WINDOW_MS, self._n_heard * 1000 // RATE_HZ)
        self._n_heard += WINDOW_SAMPLES
        self._tell(change)

    def _probability(self, pcm: Pcm) -> float:
        assert self._model is not None
        self._n_quiet = 0 if self._gate.hears_more_than_noise else self._n_quiet + 1
        if self._n_quiet >= _QUIET_WINDOWS:
            self._activity = None
            self._before.append(pcm)
            return 0.0
        if self._activity is None:
            self._activity = VoiceActivity(self._model)
            while self._before:
                self._activity.feed(self._before.popleft())
        return self._activity.feed(pcm)

    # ------------------------------------------------------------- what follows

    def _note_our_speech(self, turns: list[Turn], now_ns: int) -> None:
        """Note whether we are speaking, and since when. A turn whose speech is over may still await the peer's mark."""
        starts = [
            turn.playout.t0_ns for turn in turns
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
        if change is Change.BEGAN:
            self._is_due = self._sounding_ns is not None
            self._did_interrupt = False
            self._out.append(CallerSpeech("speaking", self._on_clock(spurt.begun_ms)))
        elif change is Change.ENDED:
            self._is_due = False
            spoken_ms = spurt.voice_end_ms - spurt.begun_ms
            self._out.append(
                CallerSpeech("silent", self._on_clock(spurt.voice_end_ms), spoken_ms, self._did_interrupt)
            )

    def _on_clock(self, at_ms: int) -> int | None:
        return None if self._clock_ms is None else max(0, self._clock_ms + at_ms)

    def interrupts(self, now_ns: int) -> bool:
        """Whether the caller interrupts all turns now: once for each talk spurt, after the hold-off."""
        if not self._is_due or self._sounding_ns is None:
            return False
        if self._n_heard * 1000 // RATE_HZ - self._spurt.voice_end_ms > _STILL_MS:
            return False
        if now_ns < self._sounding_ns + self._spurt.settings.hold_off_ms * _MS:
            return False
        self._is_due = False
        self._did_interrupt = True
        # The next turn begins anew, however soon that is, so the hold-off also follows an interruption.
        self._sounding_ns = None
        return True

    def poll(self, now_ns: int) -> int | None:
        """End the caller's speech by the clock: a peer may send nothing during silence. Returns when to ask again."""
        spurt = self._spurt
        if not spurt.is_speaking:
            return None
        missing_ms = max(0, (now_ns - self._heard_ns) // _MS - self._hole_ms)
        heard_ms = self._n_heard * 1000 // RATE_HZ + missing_ms
        change = spurt.silent_to(heard_ms)
        self._tell(change)
        if change is not None:
            return None
        silent_at_ms = spurt.voice_end_ms + spurt.settings.silence_ms - self._n_heard * 1000 // RATE_HZ + self._hole_ms
        return max(now_ns + _MS, self._heard_ns + silent_at_ms * _MS)
