"""A replica that is the fake engine: some slots, a fixed time to first audio, then audio at a fixed speed.

It is pulled, as `engines.fake.FakeEngine` is by an engine server: the next audio is made when the one before was taken
and there is room for more. So a slot is held for as long as the listener's buffer is full.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fleet_parts.events import Events
from fleet_parts.replica_api import TOKEN_NS, WORD_TOKENS, AudioSink, EndSink
from telephony_tts.bench.measures import NS_PER_MS

CHUNK_NS = 100 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class FakeEnginePace:
    """The settings of the fake engine: `engines.fake`."""

    n_slots: int
    first_audio_ms: float
    rtf: float


@dataclass(slots=True, eq=False)
class _Utterance:
    key: int
    left_ns: int
    deadline_ns: int
    has_slot: bool = False
    has_begun: bool = False
    """Its first audio is made or being made."""
    is_making: bool = False
    is_asked: bool = True
    """More audio may be made."""


class SlotReplica:
    """See the module. It satisfies `Replica`. `busy_ns` is the mean of its slots."""

    is_pulled = True

    def __init__(self, events: Events, pace: FakeEnginePace, heard: AudioSink, ended: EndSink) -> None:
        self._events, self._pace, self._heard, self._ended = events, pace, heard, ended
        self._live: dict[int, _Utterance] = {}
        self._waiting: list[tuple[int, int]] = []
        self._n_held = 0
        self._held_ns = self._changed_ns = 0
        self._is_dead = False

    @property
    def n_live(self) -> int:
        """Utterances that it holds."""
        return len(self._live)

    @property
    def busy_ns(self) -> int:
        """How long a slot was held, on average."""
        return (self._held_ns + self._n_held * (self._events.now_ns - self._changed_ns)) // self._pace.n_slots

    def submit(self, key: int, n_words: int, voice: str, deadline_ns: int, follows: bool) -> None:
        """See `Replica`."""
        if self._is_dead:
            return
        one = self._live[key] = _Utterance(key, n_words * WORD_TOKENS * TOKEN_NS, deadline_ns)
        if self._n_held < self._pace.n_slots:
            self._count(1)
            self._begin(one)
        else:
            heapq.heappush(self._waiting, (deadline_ns, key))

    def take(self, key: int, sound_ns: int) -> None:
        """See `Replica`. Only `pull` lets more be made."""

    def pull(self, key: int) -> None:
        """There is room for more audio of this utterance."""
        one = self._live.get(key)
        if one is not None and not one.is_asked:
            one.is_asked = True
            self._make(one)

    def cancel(self, key: int) -> None:
        """See `Replica`."""
        one = self._live.get(key)
        if one is not None:
            self._end(one)

    def kill(self) -> None:
        """See `Replica`."""
        self._count(-self._n_held)
        self._is_dead = True
        self._live.clear()
        self._waiting.clear()

    def load(self) -> float:
        """See `Replica`."""
        return (len(self._live) + 1) / self._pace.n_slots if self._live else 0.0

    def _begin(self, one: _Utterance) -> None:
        one.has_slot = True
        self._make(one)

    def _make(self, one: _Utterance) -> None:
        """Make the next audio, if it has a slot, is asked for more, and makes none already."""
        if not one.has_slot or not one.is_asked or one.is_making:
            return
        if not one.left_ns:
            self._end(one)
            return
        sound_ns = min(CHUNK_NS, one.left_ns)
        wait_ns = round(sound_ns * self._pace.rtf) if one.has_begun else round(self._pace.first_audio_ms * NS_PER_MS)
        one.has_begun = one.is_making = True
        self._events.at(self._events.now_ns + wait_ns, self._made, one, sound_ns)

    def _made(self, one: _Utterance, sound_ns: int) -> None:
        if self._live.get(one.key) is not one:
            return
        one.is_making = one.is_asked = False
        one.left_ns -= sound_ns
        self._heard(one.key, sound_ns)

    def _end(self, one: _Utterance) -> None:
        del self._live[one.key]
        if one.has_slot:
            self._count(-1)
            self._next()
        self._ended(one.key)

    def _next(self) -> None:
        while self._waiting:
            one = self._live.get(heapq.heappop(self._waiting)[1])
            if one is not None and not one.has_slot:
                self._count(1)
                self._begin(one)
                return

    def _count(self, n: int) -> None:
        self._held_ns += self._n_held * (self._events.now_ns - self._changed_ns)
        self._changed_ns = self._events.now_ns
        self._n_held += n
