"""Experiments: which calls get another engine, voice or setting. Pure.

A call is in at most one experiment: the first one that is for it. Its arm follows from the call's id alone, so that it
is the same in every process and after every reconnect.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from telephony_tts.experiments.sums import StopRules
from telephony_tts.ops.keys.key import Key

CONTROL = "control"
"""The arm of the calls that no other arm takes. It has the settings of the server."""
SPEECH = ("lang", "speed", "first_clause_chars", "text_timeout_ms", "text_mode")
"""The settings of the section `speech` that an arm can change."""
NUMBER_NAMES = ("from", "to", "caller", "called", "number", "ani", "dnis")
"""The parameters of a media leg that are telephone numbers."""
_NOT_DIALLED = re.compile(r"[^0-9+]")


@dataclass(frozen=True, slots=True)
class Arm:
    """What the calls of an arm get. `share` is in percent of the experiment's calls.

    `voice` is the voice of calls that ask for none; `voices` replaces the voices that bots ask for. `engine` speaks for
    calls that ask for no voice. `speech` and `barge_in` are settings of these sections.
    """

    name: str
    share: float
    voice: str | None = None
    voices: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None
    speech: Mapping[str, object] = field(default_factory=dict)
    barge_in: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`keys` and `numbers` limit it to calls of these keys and telephone numbers; None is no limit. A number may end
    with "*". The shares of `arms` are 100 together."""

    name: str
    arms: tuple[Arm, ...]
    keys: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    stop: StopRules | None = None

    def is_for(self, key: Key, numbers: Sequence[str]) -> bool:
        if not key.allows_experiment(self.name) or (self.keys is not None and key.name not in self.keys):
            return False
        return self.numbers is None or any(_matches(number, wanted) for number in numbers for wanted in self.numbers)

    def arm_of(self, call_id: str) -> Arm:
        """The arm of a call: always the same one while the shares stay."""
        place = percentile(self.name, call_id)
        for arm in self.arms:
            if place < arm.share:
                return arm
            place -= arm.share
        return self.arms[-1]  # the shares may be a rounding error below 100


def percentile(experiment: str, call_id: str) -> float:
    """A number from 0 to below 100 that is spread evenly over the ids. Each experiment has its own."""
    digest = hashlib.sha256(f"{experiment}\0{call_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * 100


def numbers_in(parameters: Mapping[str, str]) -> list[str]:
    """The telephone numbers among the parameters of a media leg."""
    return [parameters[name] for name in NUMBER_NAMES if parameters.get(name)]


def first_for(
    experiments: Iterable[Experiment], key: Key, numbers: Sequence[str]
) -> Experiment | None:
    """The experiment of a call. None if none is for it."""
    return next((each for each in experiments if each.is_for(key, numbers)), None)


def _matches(number: str, wanted: str) -> bool:
    dialled = _NOT_DIALLED.sub("", number.partition("@")[0])  # a SIP address has a host behind it
    prefix = wanted.endswith("*")
    plain = _NOT_DIALLED.sub("", wanted)
    return dialled.startswith(plain) if prefix else bool(dialled) and dialled == plain
