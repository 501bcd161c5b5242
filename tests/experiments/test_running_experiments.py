"""Experiments while a server runs: the metrics of their arms, stop rules, and other experiments in their place."""

from __future__ import annotations

import pytest
from log_lines import lines

from telephony_tts.experiments.arms import Arm, Experiment
from telephony_tts.experiments.running import Experiments, RunningArm, voices_of
from telephony_tts.experiments.sums import CallSums, StopRules
from telephony_tts.ops.keys.key import NO_KEY
from telephony_tts.runtime import metrics

FAILING = CallSums(turns=1, errors=1)


def half(name: str, stop: StopRules | None = None, voice: str = "anna") -> Experiment:
    return Experiment(name, (Arm("anna", 50, voice), Arm("control", 50)), stop=stop)


def sample(arm: RunningArm, name: str = "sums_total", **labels: str) -> float:
    return metrics.value(
        f"telephony_tts_experiment_{name}", experiment=arm.experiment.name, arm=arm.arm.name, **labels
    )


def call_in(experiments: Experiments, arm: str) -> str:
    """The id of a call that gets this arm."""
    for n in range(1000):
        chosen = experiments.choose(f"call-{n}", NO_KEY)
        if chosen is not None and chosen.arm.name == arm:
            return f"call-{n}"
    raise AssertionError(f"no call gets {arm}")


def chosen(experiments: Experiments, call: str) -> RunningArm:
    found = experiments.choose(call, NO_KEY)
    assert found is not None
    return found


def test_without_experiments_a_call_has_no_arm() -> None:
    assert Experiments().choose("call", NO_KEY) is None


def test_the_series_of_all_arms_are_there_before_the_first_call() -> None:
    experiments = Experiments([half("there")])
    for name in ("anna", "control"):
        arm = chosen(experiments, call_in(experiments, name))
        assert sample(arm, sum="calls") == 0 and sample(arm, "first_audio_ms_count") == 0
        assert sample(arm, "arm_on") == 1
    experiments.replace(())


def test_calls_are_added_to_the_sums_of_their_arm() -> None:
    experiments = Experiments([half("added")])
    arm, control = (chosen(experiments, call_in(experiments, name)) for name in ("anna", "control"))
    arm.turn_started(120.0)
    arm.call_ended(CallSums(3, 2, 250.0, 1, 1))
    arm.call_ended(CallSums(1, 1, 100.0))
    assert sample(arm, sum="calls") == 2 and sample(arm, sum="turns") == 4
    assert sample(arm, sum="first_audio_ms") == 350.0 and sample(arm, sum="turns_squared") == 10
    assert sample(arm, "first_audio_ms_bucket", le="150.0") == 1
    assert sample(arm, "first_audio_ms_bucket", le="100.0") == 0
    assert sample(control, sum="calls") == 0
    experiments.replace(())


def test_a_stop_rule_turns_an_arm_off_for_new_calls(caplog: pytest.LogCaptureFixture) -> None:
    experiments = Experiments([half("stops", StopRules(30, errors=0.1))])
    call, other = call_in(experiments, "anna"), call_in(experiments, "control")
    arm = chosen(experiments, call)
    for _ in range(29):
        arm.call_ended(FAILING)
    assert experiments.choose(call, NO_KEY) is arm
    arm.call_ended(FAILING)
    assert experiments.choose(call, NO_KEY) is None and sample(arm, "arm_on") == 0
    assert experiments.choose(other, NO_KEY) is not None
    (line,) = lines(caplog, "arm_stopped")
    assert line["arm"] == "stops/anna" and "errors per turn is 1" in line["why"]
    arm.call_ended(FAILING)  # a call that was still in it
    assert len(lines(caplog, "arm_stopped")) == 1 and sample(arm, sum="calls") == 31
    experiments.replace(())


def test_a_stop_rule_judges_the_calls_of_all_processes_together() -> None:
    rules = StopRules(30, errors=0.1)
    here, there = Experiments([half("shared", rules)]), Experiments([half("shared", rules)])
    here.of_others, there.of_others = lambda: [there.counts()], lambda: [here.counts()]
    call = call_in(here, "anna")
    for _ in range(14):
        chosen(here, call).call_ended(FAILING)
    for _ in range(15):
        chosen(there, call).call_ended(FAILING)
    chosen(here, call).call_ended(FAILING)
    assert here.choose(call, NO_KEY) is None
    chosen(there, call).call_ended(FAILING)
    assert there.choose(call, NO_KEY) is None
    here.replace(())


def test_what_other_processes_count_of_another_version_of_an_experiment_does_not_count() -> None:
    here = Experiments([half("versions", StopRules(30, errors=0.1))])
    there = Experiments([half("versions", StopRules(40, errors=0.1))])
    here.of_others = lambda: [there.counts()]
    call = call_in(here, "anna")
    for _ in range(40):
        chosen(there, call).call_ended(FAILING)
    chosen(here, call).call_ended(FAILING)
    assert here.choose(call, NO_KEY) is not None
    here.replace(())


def test_the_control_stays_on() -> None:
    experiments = Experiments([half("control-on", StopRules(30, errors=0.1))])
    call = call_in(experiments, "control")
    for _ in range(40):
        chosen(experiments, call).call_ended(FAILING)
    assert experiments.choose(call, NO_KEY) is not None
    experiments.replace(())


def test_an_arm_that_is_off_stays_off_until_its_experiment_changes() -> None:
    stopped, other = half("off", StopRules(30, errors=0.1)), half("beside")
    experiments = Experiments([stopped])
    call = call_in(experiments, "anna")
    for _ in range(30):
        chosen(experiments, call).call_ended(FAILING)
    experiments.replace([stopped, other])
    assert experiments.choose(call, NO_KEY) is None
    experiments.replace([half("off", StopRules(30, errors=0.1), voice="ben"), other])
    again = chosen(experiments, call)
    assert again.arm.voice == "ben" and again.sums["calls"] == 0 and sample(again, "arm_on") == 1
    assert sample(again, sum="calls") == 30, "a counter never goes down"
    experiments.replace(())


def test_calls_of_an_experiment_that_has_changed_count_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: they counted in the new arm's series, and their stop rule showed the new arm as off."""
    experiments = Experiments([half("changed", StopRules(30, errors=0.1))])
    call = call_in(experiments, "anna")
    old = chosen(experiments, call)
    old.call_ended(FAILING)
    experiments.replace([half("changed", StopRules(30, errors=0.1), voice="ben")])
    for _ in range(40):
        old.turn_started(100.0)
        old.call_ended(FAILING)
    new = chosen(experiments, call)
    assert new.arm.voice == "ben" and sample(new, "arm_on") == 1 and lines(caplog, "arm_stopped") == []
    assert sample(new, sum="calls") == 1 and sample(new, "first_audio_ms_count") == 0
    new.turn_started(100.0)
    new.call_ended(FAILING)
    assert sample(new, sum="calls") == 2 and sample(new, "first_audio_ms_count") == 1
    experiments.replace(())


def test_the_series_of_an_experiment_that_is_over_go_and_its_calls_go_on() -> None:
    experiments = Experiments([half("over"), half("stays")])
    arm = chosen(experiments, call_in(experiments, "anna"))
    experiments.replace([half("stays")])
    for name, labels in (("sums_total", {"sum": "calls"}), ("first_audio_ms_count", {}), ("arm_on", {})):
        with pytest.raises(KeyError):
            sample(arm, name, **labels)
    arm.turn_started(100.0)
    arm.call_ended(CallSums(1, 1, 100.0))
    with pytest.raises(KeyError):
        sample(arm, sum="calls")
    assert '"over"' not in metrics.render()[0].decode()
    experiments.replace(())


def test_the_voices_of_experiments_are_named_with_their_place() -> None:
    experiment = Experiment("e", (Arm("a", 50, "x", {"heart": "y"}), Arm("control", 50)))
    assert list(voices_of([experiment])) == [
        ("experiments.e.arms.a.voice", "x"),
        ("experiments.e.arms.a.voices.heart", "y"),
    ]
