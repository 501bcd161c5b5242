"""What `auto` becomes on invented machines.

The machines are given by what their cores do: products in billions of operations a second, and weights read in billions
of bytes a second. The work for a second of speech is that of the official sizes.
"""

from __future__ import annotations

import math
import pickle

import pytest

from telephony_tts.engines.cosyvoice2.choice import (
    MOST_LANES,
    CpuTimings,
    EngineChoice,
    alone_s,
    choose,
    is_auto,
    speed_of_lanes,
    without_timings,
)
from telephony_tts.engines.cosyvoice2.settings import AUTO, Precision
from telephony_tts.runtime.machine_limits import CpuShare

ALL_AUTO = Precision.of(AUTO)
LM_WEIGHTS, FLOW_GFLOP, VOCODER_GFLOP, TOKENS = 0.364e9, 142.0, 26.0, 25
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def machine(
    gflops: dict[str, float], read_gb_s: float, *, attention_s: float = 0.3, slowdown: float = 1.1, two: float = 1.0
) -> CpuTimings:
    lm = {name: TOKENS * LM_WEIGHTS * BYTES[name] / (read_gb_s * 1e9) for name in gflops}
    vocoder = {"float32": VOCODER_GFLOP / gflops["float32"]}
    if "bfloat16" in gflops:
        vocoder["mixed"] = VOCODER_GFLOP / gflops["bfloat16"]
    return CpuTimings(
        lm=lm,
        lm_shared={name: seconds / (4 if name == "int8" else 1) for name, seconds in lm.items()},
        flow={name: attention_s + FLOW_GFLOP / rate for name, rate in gflops.items()},
        vocoder=vocoder,
        slowdown=slowdown,
        two_threads=two,
    )


ZEN5 = machine({"float32": 150.0, "bfloat16": 400.0, "int8": 700.0}, 25.0)
EMERALD_RAPIDS = machine({"float32": 145.0, "bfloat16": 81.0, "int8": 590.0}, 12.0, attention_s=0.45)
AVX2_ONLY = machine({"float32": 70.0, "bfloat16": 4.0, "int8": 120.0}, 12.0)
WITHOUT_A_COMPILER = machine({"float32": 145.0, "bfloat16": 81.0}, 12.0)
TWO_CORES = CpuShare(2, 2)


def chosen(
    timings: CpuTimings, share: CpuShare = TWO_CORES, precision: Precision = ALL_AUTO, lanes: int | None = None
) -> EngineChoice:
    return choose(precision, lanes, None, timings, share)


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        (ZEN5, ("int8", "int8", "mixed")),
        (EMERALD_RAPIDS, ("int8", "int8", "float32")),
        (AVX2_ONLY, ("int8", "int8", "float32")),
        (WITHOUT_A_COMPILER, ("bfloat16", "float32", "float32")),
    ],
    ids=["zen5", "emerald rapids", "avx2", "no compiler"],
)
def test_each_network_gets_what_is_fast_there(timings: CpuTimings, expected: tuple[str, str, str]) -> None:
    choice = chosen(timings)
    assert choice.precision == Precision(*expected)
    assert (choice.n_lanes, choice.n_threads) == (2, 1)


@pytest.mark.parametrize(("int8_s", "expected"), [(1.0, "float32"), (0.92, "float32"), (0.9, "int8"), (0.5, "int8")])
def test_a_more_exact_precision_wins_within_a_tenth(int8_s: float, expected: str) -> None:
    timings = CpuTimings({"float32": 1.0}, {"float32": 1.0}, {"float32": 1.0, "int8": int8_s}, {"float32": 0.2}, 1.1)
    assert chosen(timings).precision.flow == expected


def test_bfloat16_is_more_exact_than_int8_and_less_than_float32() -> None:
    alike = {"int8": 1.0, "bfloat16": 1.05, "float32": 1.08}
    one = {"float32": 1.0}
    assert chosen(CpuTimings(one, one, alike, one, 1.1)).precision.flow == "float32"
    assert chosen(CpuTimings(one, one, {**alike, "float32": 1.2}, one, 1.1)).precision.flow == "bfloat16"


def test_ids_that_are_drawn_together_count_too() -> None:
    lm = {"float32": 1.0, "int8": 0.95}
    one = {"float32": 1.0}
    assert chosen(CpuTimings(lm, lm, one, one, 1.1)).precision.lm == "float32"
    assert chosen(CpuTimings(lm, {"float32": 1.0, "int8": 0.3}, one, one, 1.1)).precision.lm == "int8"


def test_a_setting_is_kept_whatever_the_timings_say() -> None:
    pinned = Precision("bfloat16", "float32", AUTO)
    choice = choose(pinned, 5, 3, EMERALD_RAPIDS, TWO_CORES)
    assert choice.precision == Precision("bfloat16", "float32", "float32")
    assert (choice.n_lanes, choice.n_threads) == (5, 3)
    told = "\n".join(choice.reasons)
    assert "language model: bfloat16 as set" in told and "vocoder: float32 (" in told
    assert "workers: 5 as set, threads: 3 as set" in told
    # float16 was not timed. It is kept, and no time is predicted for it.
    unknown = choose(Precision("float16", AUTO, AUTO), None, None, ZEN5, TWO_CORES)
    assert unknown.precision.lm == "float16" and not any("for one caller" in line for line in unknown.reasons)


def test_what_is_left_to_choose() -> None:
    assert is_auto(ALL_AUTO, 1, 1) and is_auto(Precision(), None, 1) and is_auto(Precision(), 1, None)
    assert not is_auto(Precision("int8", "bfloat16", "mixed"), 2, 1)


def test_without_timings_auto_is_float32_and_one_lane() -> None:
    choice = without_timings(Precision(AUTO, "bfloat16", AUTO), None, None)
    assert choice.precision == Precision("float32", "bfloat16", "float32")
    assert (choice.n_lanes, choice.n_threads, choice.reasons) == (1, 1, ())
    assert without_timings(ALL_AUTO, 3, 2).n_lanes == 3


# ------------------------------------------------------------------------------ cores


@pytest.mark.parametrize(
    ("share", "lanes"),
    [
        (CpuShare(1, 1), 1),
        (CpuShare(64, 64, quota=0.5), 1),
        (CpuShare(4, 4, quota=1.9), 1),
        (CpuShare(4, 4, quota=2.0), 2),
        (CpuShare(2, 2), 2),
        (CpuShare(2, 1), 2),  # two logical processors of one core: the measured slow-down decides
        (CpuShare(4, 2), 2),
        (CpuShare(64, 64), 6),  # a seventh lane would add less than a twentieth
    ],
)
def test_lanes_follow_the_cores(share: CpuShare, lanes: int) -> None:
    assert chosen(machine({"float32": 100.0}, 10.0, slowdown=1.3), share).n_lanes == lanes


@pytest.mark.parametrize(
    ("slowdown", "lanes"), [(1.0, MOST_LANES), (1.05, MOST_LANES), (1.5, 4), (1.85, 2), (1.95, 1), (3.0, 1)]
)
def test_a_lane_must_be_worth_it(slowdown: float, lanes: int) -> None:
    assert chosen(machine({"float32": 100.0}, 10.0, slowdown=slowdown), CpuShare(64, 64)).n_lanes == lanes


def test_work_of_several_lanes() -> None:
    assert speed_of_lanes(1, 1.4) == 1 and speed_of_lanes(2, 1.0) == 2
    assert speed_of_lanes(2, 1.25) == pytest.approx(2 / 1.25), "two lanes, each by the slow-down slower"
    assert speed_of_lanes(100, 1.5) < 2, "half of the work excludes the other lanes"


def test_two_threads_need_free_cores_and_a_measured_gain() -> None:
    fast, slow = (machine({"float32": 100.0}, 10.0, slowdown=1.3, two=two) for two in (0.6, 0.8))
    assert chosen(fast, CpuShare(64, 64)).n_threads == 2
    assert chosen(fast, CpuShare(64, 64, quota=11)).n_threads == 1, "six lanes take six of eleven"
    assert chosen(slow, CpuShare(64, 64)).n_threads == 1


def test_half_a_core_is_a_clear_line() -> None:
    choice = chosen(ZEN5, CpuShare(8, 8, quota=0.5))
    whole = chosen(ZEN5, CpuShare(1, 1))
    assert alone_s(ZEN5, choice.precision, 1, CpuShare(8, 8, quota=0.5)) == pytest.approx(
        2 * alone_s(ZEN5, whole.precision, 1, CpuShare(1, 1))
    )
    (warning,) = choice.warnings
    assert "8 CPUs, of which the control group allows 0.5" in warning and "callers hear gaps" in warning
    assert "engines.default: hibari" in warning
    assert "workers: 1, threads: 1 (8 CPUs, of which the control group allows 0.5)" in choice.reasons


def test_a_fast_machine_gets_no_warning() -> None:
    choice = chosen(ZEN5)
    assert choice.warnings == ()
    assert alone_s(ZEN5, choice.precision, 2, TWO_CORES) < 0.7


def test_two_lanes_cannot_be_faster_than_the_ids_of_a_stream() -> None:
    timings = CpuTimings({"float32": 3.0}, {"float32": 3.0}, {"float32": 0.5}, {"float32": 0.5}, 1.0)
    assert alone_s(timings, Precision(), 2, TWO_CORES) == 3.0
    assert alone_s(timings, Precision(), 1, TWO_CORES) == 4.0
    assert alone_s(timings, Precision(), 64, CpuShare(64, 64)) == 3.0, "a stream has no work for a third lane"


# ----------------------------------------------------------------------------- memory


def test_the_fastest_that_fits_into_memory() -> None:
    timings = machine({"float32": 500.0, "bfloat16": 400.0, "int8": 100.0}, 100.0)

    def fits(precision: Precision) -> bool:
        return precision.flow != "float32" and precision.lm == "int8"

    choice = choose(ALL_AUTO, None, None, timings, TWO_CORES, fits)
    assert (choice.precision.lm, choice.precision.flow) == ("int8", "bfloat16")
    assert any("would be faster, but does not fit into memory" in line for line in choice.reasons)
    nothing = choose(ALL_AUTO, None, None, timings, TWO_CORES, lambda _: False)
    assert nothing.precision == choose(ALL_AUTO, None, None, timings, TWO_CORES).precision


def test_what_is_set_is_not_changed_to_fit() -> None:
    pinned = Precision("float32", AUTO, AUTO)
    choice = choose(pinned, None, None, ZEN5, TWO_CORES, lambda precision: precision.lm == "int8")
    assert choice.precision.lm == "float32"


# ---------------------------------------------------------------------------- reports


def test_the_reasons_have_the_figures() -> None:
    lm, flow, vocoder, lanes, total = chosen(EMERALD_RAPIDS).reasons
    assert lm.startswith(
        "language model: int8 (seconds for a second of speech: float32 3.03, bfloat16 1.52, int8 0.76;"
    )
    assert "four callers at once" in lm
    assert flow.startswith("flow: int8 (") and f"int8 {0.45 + 142 / 590:.2f}" in flow
    assert vocoder.startswith("vocoder: float32 (") and "mixed 0.32" in vocoder
    assert lanes == "workers: 2, threads: 1 (2 CPUs; two workers at once do the work of 1.82)"
    assert total.startswith("a second of speech takes about 0.90 s for one caller")


def test_why_there_is_no_int8() -> None:
    choice = choose(ALL_AUTO, None, None, WITHOUT_A_COMPILER, TWO_CORES, int8_problem="no C++ compiler is installed")
    lm, flow, vocoder, *_ = choice.reasons
    assert "no int8: no C++ compiler is installed" in lm and "no int8: no C++" in flow and "no int8" not in vocoder


def test_a_choice_can_be_sent_and_written() -> None:
    choice = chosen(ZEN5)
    assert pickle.loads(pickle.dumps(choice)) == choice
    written = choice.as_dict()
    assert written["precision"] == {"lm": "int8", "flow": "int8", "vocoder": "mixed"}
    assert (written["workers"], written["threads"]) == (2, 1)
    assert written["choice"]["timings"]["flow"] == ZEN5.flow


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, "1.0"])
def test_timings_that_cannot_be_right_are_refused(wrong: float) -> None:
    one = {"float32": 1.0}
    with pytest.raises(ValueError, match="not a positive number"):
        CpuTimings(one, one, {"float32": wrong}, one, 1.1)
    with pytest.raises(ValueError, match="not a positive number"):
        CpuTimings(one, one, one, one, wrong)


def test_every_network_has_a_timing_in_float32() -> None:
    one = {"float32": 1.0}
    for lm, shared, flow, vocoder in (
        (one, {}, one, one), ({"int8": 1.0}, {"int8": 1.0}, one, one), (one, one, {}, one), (one, one, one, {})
    ):  # fmt: skip
        with pytest.raises(ValueError, match="missing"):
            CpuTimings(lm, shared, flow, vocoder, 1.1)
