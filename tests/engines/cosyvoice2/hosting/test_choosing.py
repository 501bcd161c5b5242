"""Settings with `auto` become settings without: measured once, kept, pinned, and within the memory that is free."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import SIZES
from telephony_tts.engines.cosyvoice2.choice import CpuTimings
from telephony_tts.engines.cosyvoice2.device.memory_need import memory_need
from telephony_tts.engines.cosyvoice2.hosting import choosing
from telephony_tts.engines.cosyvoice2.hosting.choosing import settle, timings_of_this_cpu, where_kept
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig, official_300m
from telephony_tts.engines.cosyvoice2.settings import AUTO, Precision, Settings
from telephony_tts.engines.kernels import library as kernels
from telephony_tts.runtime.errors import EngineUnavailable
from telephony_tts.runtime.machine_limits import CpuShare

OFFICIAL = ModelConfig()
GIB = 1 << 30
TIMINGS = CpuTimings(
    lm={"float32": 1.2, "bfloat16": 0.7, "int8": 0.25},
    lm_shared={"float32": 1.2, "bfloat16": 0.7, "int8": 0.1},
    flow={"float32": 0.5, "bfloat16": 0.8, "int8": 0.6},
    vocoder={"float32": 0.2, "mixed": 0.3},
    slowdown=1.1,
)
ALL_AUTO = Settings(Path("model"), precision=Precision.of(AUTO), n_slots=4, n_lanes=None, n_threads=None)


@pytest.fixture(autouse=True)
def invented(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of two cores with room for anything, which is not timed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choosing, "cpu_share", lambda: CpuShare(2, 2))
    monkeypatch.setattr(choosing, "memory_free", lambda: 100 * GIB)
    monkeypatch.setattr(choosing, "timings_of_this_cpu", lambda: TIMINGS)


def with_free(monkeypatch: pytest.MonkeyPatch, n_bytes: int | None) -> None:
    monkeypatch.setattr(choosing, "memory_free", lambda: n_bytes)


def never() -> CpuTimings:
    raise AssertionError("this machine is timed")


def test_nothing_is_auto_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings, choice = settle(ALL_AUTO, OFFICIAL)
    assert settings.precision == choice.precision == Precision("int8", "float32", "float32")
    assert (settings.n_lanes, settings.n_threads, settings.n_slots) == (2, 1, 4)
    assert replace(settings, precision=Precision.of(AUTO), n_lanes=None, n_threads=None) == ALL_AUTO
    told = [record.getMessage() for record in caplog.records]
    assert f"cosyvoice2: {choice.reasons[0]}" in told and len(choice.reasons) >= 4
    assert f"cosyvoice2: instructions for int8: {kernels.level()}" in told


def test_int8_is_chosen_for_the_small_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = replace(TIMINGS, flow={"float32": 3.0, "bfloat16": 1.3, "int8": 0.7})
    monkeypatch.setattr(choosing, "timings_of_this_cpu", lambda: fast)
    settings, choice = settle(ALL_AUTO, official_300m())
    assert settings.precision == Precision("int8", "int8", "float32") and choice.warnings == ()
    assert "no int8" not in "".join(choice.reasons)


def test_what_is_set_needs_no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "timings_of_this_cpu", never)
    pinned = replace(ALL_AUTO, precision=Precision("int8", "bfloat16", "mixed"), n_lanes=1, n_threads=1)
    assert settle(pinned, OFFICIAL)[0] == pinned


def test_an_accelerator_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "timings_of_this_cpu", never)
    settings, _ = settle(replace(ALL_AUTO, device="cuda"), OFFICIAL)
    assert settings.precision == Precision() and (settings.n_lanes, settings.n_threads) == (1, 1)


def test_a_tiny_model_is_not_worth_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "timings_of_this_cpu", never)
    settings, _ = settle(ALL_AUTO, SIZES["tiny"])
    assert settings.precision == Precision() and settings.n_lanes == 1


def test_int8_that_the_machine_lacks_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "problem", lambda: "no C++ compiler is installed")
    for precision in (Precision(lm="int8"), Precision(flow="int8")):
        with pytest.raises(EngineUnavailable, match=r"int8: no C\+\+ compiler is installed\. .* to auto"):
            settle(replace(ALL_AUTO, precision=precision), OFFICIAL)
    assert settle(ALL_AUTO, OFFICIAL)[1].reasons[0].endswith("no int8: no C++ compiler is installed)")


# -------------------------------------------------------------------------------- file


def counted(calls: list[int]) -> Callable[[], CpuTimings]:
    def measure() -> CpuTimings:
        calls.append(1)
        return TIMINGS

    return measure


def test_a_machine_is_timed_once(tmp_path: Path) -> None:
    calls: list[int] = []
    for _ in range(3):
        assert timings_of_this_cpu(counted(calls)) == TIMINGS
    assert len(calls) == 1
    file = where_kept()
    assert file is not None and file.is_relative_to(tmp_path)
    file.write_bytes(file.read_bytes()[:-30])
    assert timings_of_this_cpu(counted(calls)) == TIMINGS and len(calls) == 2
    assert timings_of_this_cpu(counted(calls)) == TIMINGS and len(calls) == 2, "the damaged file was replaced"


def test_another_share_of_the_processor_is_timed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    timings_of_this_cpu(counted(calls))
    monkeypatch.setattr(choosing, "cpu_share", lambda: CpuShare(2, 2, quota=0.5))
    timings_of_this_cpu(counted(calls))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    timings_of_this_cpu(counted(calls))
    assert len(calls) == 3


def test_without_a_home_the_machine_is_timed_each_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    calls: list[int] = []
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "")
    assert where_kept() is None
    (tmp_path / "file").touch()
    for home in ("", str(tmp_path / "file")):
        monkeypatch.setenv("HOME", home)
        assert timings_of_this_cpu(counted(calls)) == TIMINGS
    assert len(calls) == 2
    assert "are not kept" in caplog.text and "Not a directory" in caplog.text


# ------------------------------------------------------------------------------ memory


def test_the_fastest_precision_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory_need(OFFICIAL, Precision("int8", "int8", "float32"), 4)
    with_free(monkeypatch, need.total + GIB // 4)
    settings, choice = settle(ALL_AUTO, OFFICIAL)
    assert settings.precision == Precision("int8", "int8", "float32"), "the flow's float32 frames take twice as much"
    assert choice.warnings == () and any("does not fit into memory" in line for line in choice.reasons)


@pytest.mark.slow
def test_fewer_slots_if_nothing_else_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    smallest = memory_need(OFFICIAL, Precision("int8", "bfloat16", "float32"), 2)
    with_free(monkeypatch, smallest.total)
    pinned = replace(ALL_AUTO, precision=Precision("int8", "bfloat16", "float32"), n_slots=16)
    settings, choice = settle(pinned, OFFICIAL)
    assert settings.n_slots == 2
    (warning,) = choice.warnings
    assert "16 slots" in warning and "so it has 2 slots instead of 16" in warning and "GiB are free" in warning


@pytest.mark.slow
def test_weights_that_do_not_fit_are_an_error_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, GIB)
    with pytest.raises(EngineUnavailable, match=r"needs \d+\.\d GiB of memory .* and 1\.0 GiB are free\. Give it more"):
        settle(ALL_AUTO, OFFICIAL)


@pytest.mark.slow
def test_memory_for_the_weights_alone_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    precision = Precision("int8", "bfloat16", "float32")
    with_free(monkeypatch, memory_need(OFFICIAL, precision, 1).weights)
    settings, choice = settle(replace(ALL_AUTO, precision=precision), OFFICIAL)
    assert settings.n_slots == 1 and "the system may end it while it speaks" in choice.warnings[-1]


@pytest.mark.parametrize("sizes", [None, OFFICIAL])
def test_unknown_memory_limits_nothing(monkeypatch: pytest.MonkeyPatch, sizes: ModelConfig | None) -> None:
    with_free(monkeypatch, None if sizes else 1)
    assert settle(ALL_AUTO, sizes)[0].n_slots == 4


def test_the_need_grows_with_exactness_and_slots() -> None:
    exact = memory_need(OFFICIAL, Precision(), 4)
    narrow = memory_need(OFFICIAL, Precision("int8", "bfloat16", "mixed"), 4)
    more = memory_need(OFFICIAL, Precision(), 5)
    assert narrow.weights < exact.weights and narrow.speaking < exact.speaking
    assert more.total - exact.total == 4096 * 24 * 2 * 2 * 64 * 4, "a slot is its keys and values"
    weights = 639_174_467
    assert 4 * weights < exact.weights < 4 * weights + GIB // 2
    assert exact.loading > 4 * weights, "the files"


def test_the_need_of_the_small_model() -> None:
    int8 = Precision("int8", "int8", "mixed")
    exact, narrow, more = (memory_need(official_300m(), *each) for each in ((Precision(), 4), (int8, 4), (int8, 5)))
    slot = 2048 * 14 * 2 * 16 * 64 * 4
    assert more.total - narrow.total == slot, "a slot is its keys and values, in float32"
    assert narrow.speaking - narrow.weights == 5 * slot + slot // 2, "and there are the tables of distances"
    assert narrow.weights < exact.weights // 2 and exact.loading == narrow.loading
