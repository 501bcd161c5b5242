"""Which calls are in an experiment, and in which arm."""

from __future__ import annotations

import math

import pytest

from telephony_tts.experiments.arms import Arm, Experiment, first_for, numbers_in, percentile
from telephony_tts.ops.keys.key import NO_KEY, Key


def experiment(name: str = "e", *shares: float, **how: object) -> Experiment:
    arms = tuple(Arm(f"arm{n}", share) for n, share in enumerate(shares or (50.0, 50.0)))
    return Experiment(name, arms, **how)  # type: ignore[arg-type]


def test_an_id_has_the_same_arm_in_every_process() -> None:
    """A fixed value: another hash would move live calls to other arms at an update."""
    assert percentile("new-voice", "CA1234") == pytest.approx(40.10015, abs=1e-5)
    assert percentile("new-voice", "CA1234") != percentile("other", "CA1234")


def test_calls_are_spread_over_the_arms_by_their_shares() -> None:
    n = 20_000
    arms = experiment("e", 10.0, 30.0, 60.0)
    counts = dict.fromkeys((arm.name for arm in arms.arms), 0)
    for number in range(n):
        counts[arms.arm_of(f"call-{number}").name] += 1
    for arm in arms.arms:
        expected = n * arm.share / 100
        assert abs(counts[arm.name] - expected) < 5 * math.sqrt(expected), (arm, counts)


def test_one_experiment_does_not_choose_the_calls_of_another() -> None:
    """Half of the calls of one arm are in the same arm of another experiment, not all and not none."""
    one, two = experiment("one"), experiment("two")
    ids = [f"call-{n}" for n in range(4000)]
    both = sum(one.arm_of(call).name == two.arm_of(call).name == "arm0" for call in ids)
    assert 850 < both < 1150


def test_shares_with_a_rounding_error_leave_no_call_without_an_arm() -> None:
    thirds = experiment("e", *[100 / 3 - 1e-9] * 3)
    assert {thirds.arm_of(f"call-{n}").name for n in range(1000)} == {"arm0", "arm1", "arm2"}


def test_keys_limit_an_experiment_and_an_experiment_is_limited_to_keys() -> None:
    for_acme = experiment(keys=("acme",))
    assert for_acme.is_for(Key("acme"), ()) and not for_acme.is_for(Key("other"), ())
    assert not for_acme.is_for(NO_KEY, ())
    assert not experiment().is_for(Key("acme", experiments=("another",)), ())
    assert experiment().is_for(Key("acme", experiments=("e",)), ())
    assert experiment().is_for(NO_KEY, ())


@pytest.mark.parametrize(
    ("wanted", "number", "is_for"),
    [
        ("+49301234", "+49301234", True),
        ("+49301234", "+49 (30) 12-34", True),
        ("+4930*", "+49301234", True),
        ("+4930*", "+4940", False),
        ("+49301234", "+493012345", False),
        ("100", "sip:100@10.0.0.1", True),
        ("+49301234", "", False),
        ("+49301234", "anonymous", False),
    ],
)
def test_numbers_limit_an_experiment(wanted: str, number: str, is_for: bool) -> None:
    limited = experiment(numbers=("+1555", wanted))
    assert limited.is_for(NO_KEY, [number]) is is_for
    assert limited.is_for(NO_KEY, ["+33", number]) is is_for
    assert not limited.is_for(NO_KEY, ())


def test_the_numbers_of_a_media_leg() -> None:
    assert numbers_in({"from": "+1", "to": "+2", "token": "555", "city": "Rome"}) == ["+1", "+2"]
    assert numbers_in({"from": ""}) == []


def test_a_call_is_in_the_first_experiment_that_is_for_it() -> None:
    narrow, wide = experiment("narrow", keys=("acme",)), experiment("wide")
    assert first_for((narrow, wide), Key("acme"), ()) is narrow
    assert first_for((narrow, wide), NO_KEY, ()) is wide
    assert first_for((narrow,), NO_KEY, ()) is None
