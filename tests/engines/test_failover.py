"""The order of the fallback, and the circuits of engines that fail."""

from __future__ import annotations

import pytest

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.failover import Circuit, Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import ConfigError

S = 10**9
HELLO = Utterance("u", "hello there", lang="en", lang_source="words")


class Loaded(FakeEngine):
    """Reports what the test says."""

    def __init__(self, name: str, languages: tuple[str, ...] = ("en",), **stats: object) -> None:
        super().__init__(name=name, languages=languages, voice_names=(f"{name}-1", f"{name}-2"))
        self.reported = EngineStats(**stats)  # type: ignore[arg-type]

    def stats(self) -> EngineStats:
        return self.reported


def new_failover(*engines: FakeEngine, fallback: tuple[str, ...] = (), after: int = 2) -> Failover:
    names = fallback or tuple(engine.name for engine in engines)
    return Failover(engines, names, timeout_ms=1000, after=after, retry_s=30)


def test_a_circuit_opens_after_failures_in_a_row_and_is_tried_by_one() -> None:
    circuit = Circuit(2, 30 * S)
    circuit.failed(0)
    circuit.succeeded()
    circuit.failed(1 * S)
    assert circuit.admits(1 * S) and not circuit.is_open(1 * S)
    circuit.failed(2 * S)
    assert circuit.is_open(2 * S) and not circuit.admits(31 * S)
    assert circuit.admits(32 * S), "tried again after 30 s"
    assert not circuit.admits(33 * S), "by one utterance only"
    circuit.failed(34 * S)
    assert circuit.is_open(63 * S) and circuit.admits(64 * S)
    circuit.succeeded()
    assert circuit.admits(64 * S) and circuit.admits(64 * S)


def test_the_next_engine_is_the_first_that_speaks_the_language() -> None:
    one, german, english = Loaded("one"), Loaded("german", ("de-AT", "de")), Loaded("english", ("de", "en-GB", "en"))
    failover = new_failover(one, german, english, fallback=("german", "english"))
    assert failover.next(HELLO, one.voices[0], ("one",), "failed", 0) == (english, english.voices[0])
    assert failover.next(HELLO, one.voices[0], ("one", "english"), "failed", 0) is None
    # Latin letters alone do not make a text English: then the voice that failed tells the language.
    unsure = Utterance("u", "guten Tag", lang="en", lang_source="letters")
    assert failover.next(unsure, german.voices[0], (), "failed", 0) == (german, german.voices[0])
    assert failover.next(unsure, one.voices[0], ("one",), "failed", 0) == (english, english.voices[0])
    assert failover.next(Utterance("u", "你好", lang="en"), one.voices[0], ("one",), "failed", 0) is None


def test_an_engine_that_is_not_fit_is_passed_over() -> None:
    first, busy, away, good = Loaded("first"), Loaded("busy", load=1.1), Loaded("away", is_ready=False), Loaded("good")
    failover = new_failover(first, busy, away, good)
    voice = first.voices[0]
    assert [failover.refusal(engine, 0) for engine in (first, busy, away)] == [None, "overloaded", "not_ready"]
    assert failover.next(HELLO, voice, ("first",), "failed", 0) == (good, good.voices[0])
    failover.failed("good", 0)
    failover.failed("good", 0)
    assert failover.refusal(good, 0) == "open" and failover.open_circuits(0) == {
        "first": False, "busy": False, "away": False, "good": True,
    }  # fmt: skip
    assert failover.next(HELLO, voice, ("first",), "overloaded", 0) is None, "the overloaded one is better"
    assert failover.next(HELLO, voice, ("first",), "failed", 0) == (busy, busy.voices[0]), "better than silence"
    failover.succeeded("good")
    assert failover.refusal(good, 0) is None


def test_an_engine_is_late_when_the_next_one_needs_the_rest_of_the_time() -> None:
    failover = new_failover(Loaded("one"))
    assert failover.late_ns(10 * S, 10 * S) == 11 * S
    assert failover.late_ns(10 * S, 11 * S) == 11 * S
    assert failover.late_ns(10 * S, 14 * S) == 13 * S


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="fallback names 'two'; the engines are one"):
        new_failover(Loaded("one"), fallback=("two",))
