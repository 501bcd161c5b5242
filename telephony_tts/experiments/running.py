"""The experiments of a server while it runs: the arm of each call, what its calls were like, and which arms are off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from telephony_tts.experiments.arms import CONTROL, Arm, Experiment, first_for
from telephony_tts.experiments.sums import SUMS, CallSums
from telephony_tts.ops.keys.key import Key
from telephony_tts.runtime import logs, metrics

_log = logs.get(__name__)


@dataclass(eq=False)
class RunningArm:
    """An arm of an experiment of this process. `sums` are those of its calls here since it began. `of_others` gives
    what the other processes of the server count (`Experiments.of_others`)."""

    experiment: Experiment
    arm: Arm
    of_others: Callable[[], Iterable[Mapping[str, Mapping[str, float]]]] = lambda: ()
    is_on: bool = True
    is_over: bool = False
    """Its experiment has changed or is over. Calls that are still in it count for nothing: a changed experiment has the
    same series."""
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))

    def __post_init__(self) -> None:
        version = hashlib.sha256(repr(self.experiment).encode()).hexdigest()[:16]
        self.shared_name = f"arm {self.name} {version}"
        """For the other processes. It differs once the experiment has changed, which they may read a little later."""
        labels = {"experiment": self.experiment.name, "arm": self.arm.name}
        # A series that appears with its first call would lack this call in increase().
        self._counters = {name: metrics.EXPERIMENT_SUMS.labels(**labels, sum=name) for name in SUMS}
        self._first_audio_ms = metrics.EXPERIMENT_FIRST_AUDIO_MS.labels(**labels)
        self._on = metrics.EXPERIMENT_ARM_ON.labels(**labels)
        self._on.set(self.is_on)

    @property
    def name(self) -> str:
        """For logs: the experiment and the arm."""
        return f"{self.experiment.name}/{self.arm.name}"

    def turn_started(self, first_audio_ms: float) -> None:
        if not self.is_over:
            self._first_audio_ms.observe(first_audio_ms)

    def call_ended(self, call: CallSums) -> None:
        """Add a call, and turn the arm off if a stop rule says so. The arm `control` has the server's own settings, so
        it stays on."""
        if self.is_over:
            return
        for name, amount in call.terms().items():
            self.sums[name] += amount
            self._counters[name].inc(amount)
        rules = self.experiment.stop
        if rules is None or not self.is_on or self.arm.name == CONTROL:
            return
        why = rules.why_to_stop(self._sums_of_all())
        if why is not None:
            self.is_on = False
            self._on.set(0)
            _log.warning("arm_stopped", arm=self.name, why=why)

    def _sums_of_all(self) -> dict[str, float]:
        """The sums of all processes of the server."""
        found = dict(self.sums)
        for counted in self.of_others():
            for each, amount in counted.get(self.shared_name, {}).items():
                found[each] = found.get(each, 0.0) + amount
        return found

    def remove_series(self) -> None:
        """The experiment is not in the file any more."""
        labels = self.experiment.name, self.arm.name
        for name in SUMS:
            metrics.EXPERIMENT_SUMS.remove(*labels, name)
        metrics.EXPERIMENT_FIRST_AUDIO_MS.remove(*labels)
        metrics.EXPERIMENT_ARM_ON.remove(*labels)


class Experiments:
    """See the module text. `replace` may be called while calls run: they keep their arm."""

    def __init__(self, experiments: Iterable[Experiment] = ()) -> None:
        self._arms: dict[tuple[str, str], RunningArm] = {}
        self._experiments: tuple[Experiment, ...] = ()
        self.of_others: Callable[[], Iterable[Mapping[str, Mapping[str, float]]]] = lambda: ()
        """What the other processes of this server count: `counts` of each."""
        self.replace(experiments)

    def counts(self) -> dict[str, dict[str, float]]:
        """The sums of the calls of each arm in this process."""
        return {arm.shared_name: dict(arm.sums) for arm in self._arms.values()}

    def replace(self, experiments: Iterable[Experiment]) -> None:
        """Run these experiments from now on. An arm of an experiment that did not change goes on: if it is off, it
        stays off. An experiment that changed begins anew."""
        before, self._arms, self._experiments = self._arms, {}, tuple(experiments)
        for experiment in self._experiments:
            for arm in experiment.arms:
                name = experiment.name, arm.name
                old = before.get(name)
                if old is not None and old.experiment == experiment:
                    self._arms[name] = before.pop(name)
        kept_series = {(each.name, arm.name) for each in self._experiments for arm in each.arms}
        for name, old in before.items():
            old.is_over = True
            if name not in kept_series:
                old.remove_series()
        for experiment in self._experiments:
            for arm in experiment.arms:
                if (experiment.name, arm.name) not in self._arms:
                    self._arms[experiment.name, arm.name] = RunningArm(experiment, arm, lambda: self.of_others())

    def choose(self, call_id: str, key: Key, numbers: Sequence[str] = ()) -> RunningArm | None:
        """The arm of a call that begins now. None: the call is in no experiment, or its arm is off."""
        experiment = first_for(self._experiments, key, numbers)
        if experiment is None:
            return None
        running = self._arms[experiment.name, experiment.arm_of(call_id).name]
        return running if running.is_on else None

    def named_voices(self) -> Iterator[tuple[str, str]]:
        """(where it is named in the file, the voice) for each voice of an arm."""
        return voices_of(self._experiments)


def voices_of(experiments: Iterable[Experiment]) -> Iterator[tuple[str, str]]:
    """(where it is named in the file, the voice) for each voice of an arm."""
    for experiment in experiments:
        for arm in experiment.arms:
            where = f"experiments.{experiment.name}.arms.{arm.name}"
            if arm.voice is not None:
                yield f"{where}.voice", arm.voice
            for asked, voice in arm.voices.items():
                yield f"{where}.voices.{asked}", voice
