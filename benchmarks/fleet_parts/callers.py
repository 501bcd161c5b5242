"""When calls arrive and what their bots say: a morning rush, turns of several sentences, pauses, barge-ins. Pure.

Everything about a call follows from the seed and the call's number, so two fleets can be compared on the same calls.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fleet_parts.replica_api import TOKEN_NS, WORD_TOKENS
from telephony_tts.bench.measures import NS_PER_S

WORD_NS = WORD_TOKENS * TOKEN_NS
LEAST_CALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Habits:
    """How calls go. Ranges are uniform; the length of a call is exponential above `LEAST_CALL_S`.

    A caller's voice interrupts a turn with the probability `barge_in`, at any time of its speech. The most popular of
    `n_voices` voices has most calls: the share of voice number k is proportional to 1/k.
    """

    call_s: float = 120.0
    sentences: tuple[int, int] = (1, 3)
    words: tuple[int, int] = (5, 16)
    reply_s: tuple[float, float] = (2.0, 14.0)
    barge_in: float = 0.1
    n_voices: int = 8

    @property
    def sentence_s(self) -> float:
        """Mean length of a sentence's speech."""
        return sum(self.words) / 2 * WORD_NS / NS_PER_S

    @property
    def speaking_share(self) -> float:
        """About the share of a call in which its bot speaks."""
        turn_s = sum(self.sentences) / 2 * self.sentence_s * (1 - self.barge_in / 2)
        return turn_s / (turn_s + sum(self.reply_s) / 2)


@dataclass(frozen=True, slots=True)
class Rush:
    """The rate of arrivals over `seconds`: from `base` of its peak up to the peak and back, as a raised cosine.

    `peak_at` is the place of the peak, as a share of the time.
    """

    seconds: float
    base: float = 0.2
    peak_at: float = 0.5

    def weight(self, at_s: float) -> float:
        """The rate at a time, relative to the peak's."""
        peak_s = self.peak_at * self.seconds
        half_s = peak_s if at_s < peak_s else self.seconds - peak_s
        way = abs(at_s - peak_s) / max(half_s, 1e-9)
        return self.base + (1 - self.base) * (1 + math.cos(math.pi * min(1.0, way))) / 2

    def arrivals_ns(self, n_calls: int, seed: int) -> list[int]:
        """The arrivals of `n_calls` calls, in order: random times whose density is the rate."""
        n_bins = 1000
        bin_s = self.seconds / n_bins
        total = list(accumulate(self.weight((i + 0.5) * bin_s) for i in range(n_bins)))
        chance = random.Random(f"arrivals {seed}")
        found = []
        for _ in range(n_calls):
            mass = chance.random() * total[-1]
            i = bisect_left(total, mass)
            before = total[i - 1] if i else 0.0
            found.append(round((i + (mass - before) / (total[i] - before)) * bin_s * NS_PER_S))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """A bot's turn: the words of its sentences, the caller's reply behind it, and when the caller interrupts it.

    `barge_in_ns`: the speech that the caller hears before that; None if he lets the bot finish.
    """

    words: tuple[int, ...]
    reply_ns: int
    barge_in_ns: int | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A call: after `length_ns` it begins no further turn. `share`: where it lies in 0 to 1, for a canary's share."""

    number: int
    arrives_ns: int
    length_ns: int
    voice: str
    share: float
    turns: tuple[TurnPlan, ...]


def calls(habits: Habits, arrivals_ns: Sequence[int], seed: int) -> list[CallPlan]:
    """The calls of these arrivals. Each has as many turns as it could need if the engine were immediate."""
    weights = list(accumulate(1 / (k + 1) for k in range(habits.n_voices)))
    plans = []
    for number, arrives_ns in enumerate(arrivals_ns):
        chance = random.Random(f"call {seed} {number}")
        length_s = LEAST_CALL_S + chance.expovariate(1 / max(1e-9, habits.call_s - LEAST_CALL_S))
        length_ns = round(length_s * NS_PER_S)
        voice = f"voice {bisect_left(weights, chance.random() * weights[-1])}"
        share = chance.random()
        turns: list[TurnPlan] = []
        spent_ns = 0
        while spent_ns < length_ns:
            words = tuple(chance.randint(*habits.words) for _ in range(chance.randint(*habits.sentences)))
            speech_ns = sum(words) * WORD_NS
            reply_ns = round(chance.uniform(*habits.reply_s) * NS_PER_S)
            cut_ns = round(chance.random() * speech_ns)
            interrupted = chance.random() < habits.barge_in
            turns.append(TurnPlan(words, reply_ns, cut_ns if interrupted else None))
            spent_ns += (cut_ns if interrupted else speech_ns) + reply_ns
        plans.append(CallPlan(number, arrives_ns, length_ns, voice, share, tuple(turns)))
    return plans
