"""A session in simulated time, with an engine whose audio names its turn.

Every turn's audio is a constant of its own, so a frame's bytes tell which turn it belongs to; a test that looked at
labels instead would pass with late audio on the wire.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.engines.api import Chunk, Timing, Utterance
from telephony_tts.runtime.errors import SoundError
from telephony_tts.session.caller.caller import FindModel
from telephony_tts.session.effects import CancelSynthesis, FeedText, Finish, LoadBed, Pull, Synthesize
from telephony_tts.session.language import DetectLanguage, HasVoice, ReadsDigits
from telephony_tts.session.markup import KnowsVoice
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.sound_source import FindSound
from telephony_tts.wire import messages as m

MS = 1_000_000
RATE_HZ = 24_000
CHUNK_MS = 100
STEP = 1500
T = TypeVar("T")


class World:
    """Drives one session. `frames` are (time in ms, number of the audible turn or 0, payload), `events` all else."""

    def __init__(
        self,
        settings: SessionSettings | None = None,
        *,
        first_audio_ms: float = 0,
        queued_ms: int = 0,
        chunk_interval_ms: float = 0,
        ms_per_char: int = 50,
        timings: bool = True,
        media: bool = True,
        peer: bool = False,
        peer_dtmf: bool = False,
        peer_delay_ms: float = 0,
        echoes_cleared: bool = True,
        voice_model: FindModel | None = None,
        detect_language: DetectLanguage | None = None,
        has_voice: HasVoice | None = None,
        reads_digits: ReadsDigits | None = None,
        find_sound: FindSound | None = None,
        knows_voice: KnowsVoice | None = None,
    ) -> None:
        self.now_ns = 1_000_000_000
        self.start_ns = self.now_ns
        settings = settings or SessionSettings(first_clause_chars=0)
        self._ptime_ns = settings.ptime_ms * MS
        self.session = Session(
            settings, self.now_ns, media=media, voice_model=voice_model, detect_language=detect_language,
            has_voice=has_voice, reads_digits=reads_digits, find_sound=find_sound, knows_voice=knows_voice,
        )  # fmt: skip
        self.first_audio_ms = first_audio_ms
        self.queued_ns = queued_ms * MS
        self.chunk_interval_ms = chunk_interval_ms
        self.ms_per_char = ms_per_char
        self.timings = timings
        self.peer = peer
        self.peer_dtmf = peer and peer_dtmf
        self.peer_delay_ms = peer_delay_ms
        self.echoes_cleared = echoes_cleared
        self.load_ms = 0.0
        """How long a sound takes to be read."""
        self.n_before_bed = 0
        """How many frames had been sent when the last one was read."""
        self.frames: list[tuple[float, int, bytes]] = []
        self.events: list[Any] = []
        self.log: list[Any] = []
        self.submitted: list[tuple[float, Utterance]] = []
        self.cancelled: list[str] = []
        self.finished: Finish | None = None
        self.turn_numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        """What the bot had written of each turn at the last check, before it could end."""
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._queued: dict[str, list[Chunk]] = {}
        self.open: dict[str, str] = {}
        """The text so far of each utterance whose end the engine does not have."""
        self._starved: set[str] = set()
        """Those of `open` that gave all the audio of their text, and were pulled again."""
        self._peer_end_ns = 0
        self._peer_marks: set[str] = set()
        if peer:
            self.session.attach_media(self.now_ns, marks=True, clears=True, dtmf=peer_dtmf)
        self.pump()

    # ------------------------------------------------------------- actions

    @property
    def now_ms(self) -> float:
        return (self.now_ns - self.start_ns) / MS

    def send(self, message: Any) -> None:
        self._look()
        self.session.receive(message, self.now_ns)
        self.pump()

    def say(self, text: str, turn: str | None = None) -> None:
        self.send(m.Say(text, turn))

    def run(self, ms: float) -> None:
        """Let simulated time pass. The session is polled exactly at its deadlines."""
        end_ns = self.now_ns + round(ms * MS)
        for _ in range(1_000_000):
            deadline_ns = self.session.deadline_ns()
            if self._later and (deadline_ns is None or self._later[0][0] <= deadline_ns):
                at_ns, _, action = self._later[0]
                if at_ns > end_ns:
                    break
                heapq.heappop(self._later)
                self.now_ns = max(self.now_ns, at_ns)
                action()
            elif deadline_ns is not None and deadline_ns <= end_ns:
                self.now_ns = max(self.now_ns, deadline_ns)
            else:
                break
            self.pump()
        else:
            raise AssertionError("the session asks to be woken for ever")
        self.now_ns = end_ns

    def jump(self, ms: float) -> None:
        """The event loop stalls: time passes without a poll."""
        self.now_ns += round(ms * MS)

    def _look(self) -> None:
        self.texts |= {turn.id: turn.source for turn in self.session.turns}

    def pump(self) -> None:
        self._look()
        for effect in self.session.poll(self.now_ns):
            self.log.append(effect)
            if isinstance(effect, m.Frame):
                self.frames.append((self.now_ms, self.heard(effect.payload), effect.payload))
                begin_ns = max(self._peer_end_ns, self.now_ns + round(self.peer_delay_ms * MS))
                self._peer_end_ns = begin_ns + self._ptime_ns
            elif isinstance(effect, Synthesize):
                self._synthesize(effect.utterance)
            elif isinstance(effect, FeedText):
                self._feed(effect)
            elif isinstance(effect, Pull):
                self._pull(effect.utterance_id)
            elif isinstance(effect, LoadBed):
                self._at(self.now_ns + round(self.load_ms * MS), lambda effect=effect: self._load(effect))
            elif isinstance(effect, CancelSynthesis):
                self.cancelled.append(effect.utterance_id)
                self._queued.pop(effect.utterance_id, None)
                self.open.pop(effect.utterance_id, None)
            elif isinstance(effect, Finish):
                self.finished = effect
            elif isinstance(effect, m.MediaMark):
                if self.peer:
                    self._peer_marks.add(effect.name)
                    self._at(max(self._peer_end_ns, self.now_ns), lambda name=effect.name: self._echo(name))
            elif isinstance(effect, m.MediaClear):
                # As Twilio does: the buffer is emptied, and every pending mark comes back, heard or not. Plivo and
                # Asterisk drop them.
                self._peer_end_ns = 0
                if not self.echoes_cleared:
                    self._peer_marks.clear()
                for name in sorted(self._peer_marks):
                    self._at(self.now_ns, lambda name=name: self._echo(name))
                self.events.append(effect)
            else:
                self.events.append(effect)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def terminals(self, turn: str) -> list[Any]:
        return [e for e in self.events if isinstance(e, m.Done | m.Cleared | m.ErrorEvent) and e.turn == turn]

    def _echo(self, name: str) -> None:
        if name in self._peer_marks:
            self._peer_marks.remove(name)
            self.session.receive(m.MediaMark(name), self.now_ns)

    def heard(self, payload: bytes) -> int:
        """The number of the turn a frame belongs to."""
        return heard_turn(payload)

    # -------------------------------------------------------------- engine

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at_ns, next(self._order), action))

    def _load(self, effect: LoadBed) -> None:
        try:
            sound = finished(effect.bed.source.load(effect.rate_hz))
        except SoundError as error:
            self.session.bed_failed(effect.bed, error)
        else:
            self.n_before_bed = len(self.frames)
            self.session.bed_loaded(effect.bed, sound)

    def _synthesize(self, utterance: Utterance) -> None:
        self.submitted.append((self.now_ms, utterance))
        number = self.turn_numbers.setdefault(utterance.turn, len(self.turn_numbers) + 1)
        self._queued[utterance.id] = self.chunks_of(utterance, number)
        if utterance.more is not None:
            self.open[utterance.id] = utterance.text
        self._at(self.now_ns + round(self.first_audio_ms * MS), lambda: self._give(utterance.id))

    def _feed(self, effect: FeedText) -> None:
        """Text may only come for an utterance that has begun, is open and was not cancelled."""
        n_before = len(self.open[effect.utterance_id])
        self.open[effect.utterance_id] += effect.text
        number = next(self.turn_numbers[u.turn] for _, u in self.submitted if u.id == effect.utterance_id)
        self._queued[effect.utterance_id] += self._chunks(effect.text, number, n_before)
        if effect.last:
            del self.open[effect.utterance_id]
        if effect.utterance_id in self._starved:
            self._starved.remove(effect.utterance_id)
            self._pull(effect.utterance_id)

    def _pull(self, utterance_id: str) -> None:
        self._at(self.now_ns + round(self.chunk_interval_ms * MS), lambda: self._give(utterance_id))

    def _give(self, utterance_id: str) -> None:
        chunks = self._queued.get(utterance_id)
        if chunks is None:
            return
        if chunks:
            self.session.audio(utterance_id, chunks.pop(0), self.now_ns)
        elif utterance_id in self.open:
            self._starved.add(utterance_id)
        else:
            del self._queued[utterance_id]
            self.session.audio_ended(utterance_id, self.now_ns)

    def chunks_of(self, utterance: Utterance, number: int) -> list[Chunk]:
        """The utterance as `ms_per_char` of a constant per character, in chunks of CHUNK_MS; an insert as it is."""
        if utterance.insert is not None:
            assert not utterance.text
            return list(itertools.islice(utterance.insert.chunks(), 400))
        return self._chunks(utterance.text, number, 0)

    def _chunks(self, text: str, number: int, n_before: int) -> list[Chunk]:
        """`text` that follows `n_before` characters of its utterance."""
        n_char = self.ms_per_char * RATE_HZ // 1000
        pcm = np.full(len(text) * n_char, STEP * number, np.int16)
        timings = []
        at = 0
        for word in text.split(" "):
            if word:
                timings.append(Timing(at, at + len(word), at * n_char, (at + len(word)) * n_char))
            at += len(word) + 1
        n_chunk = CHUNK_MS * RATE_HZ // 1000
        chunks = []
        for start in range(0, len(pcm), n_chunk):
            known = [t for t in timings if start <= t.start_sample < start + n_chunk] if self.timings else []
            n_first = n_before * n_char
            moved = (
                Timing(t.start_char + n_before, t.end_char + n_before, t.start_sample + n_first, t.end_sample + n_first)
                for t in known
            )
            queued_ns = 0 if chunks else self.queued_ns
            chunks.append(Chunk(pcm[start : start + n_chunk], RATE_HZ, tuple(moved), queued_ns))
        return chunks


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


# The audio is constants, so the same few frames come again and again. Without a cache most of the time would go here.
@lru_cache(maxsize=4096)
def heard_turn(payload: bytes) -> int:
    """The number of the turn whose audio fills most of the frame; 0 for silence, and for ends that fade in or out."""
    levels = np.abs(decode_ulaw(payload).astype(int))
    number = round(float(np.median(levels)) / STEP)
    n_flat = int((np.abs(levels - number * STEP) < 0.08 * number * STEP).sum())
    return number if n_flat >= len(levels) // 2 else 0
