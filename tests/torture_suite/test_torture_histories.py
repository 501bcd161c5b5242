"""Histories are the same for the same seed, survive JSON, and are made short without losing what makes them fail."""

from __future__ import annotations

import asyncio
import json
import random
import time

import pytest

from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.native import NativeCodec
from torture import violations as v
from torture.grammar import invalid
from torture.histories import Fault, Round, make_round
from torture.runner import Runner, to_json
from torture.shrinking import shrink
from torture.violations import Violation


def test_a_round_is_decided_by_its_seed_and_number() -> None:
    assert make_round(7, 3) == make_round(7, 3)
    assert make_round(7, 3) != make_round(7, 4) != make_round(8, 3)


def test_a_round_can_be_read_from_the_line_that_is_printed() -> None:
    whole = make_round(7, 3, shape="bridge")
    assert Round.from_json(json.loads(to_json(whole))) == whole


def test_a_failing_round_is_made_short() -> None:
    """It fails if a `clear` comes behind a `mark` in one call, while the server is stopped."""
    whole = make_round(5, 1, shape="one", n_calls=30)
    faults = (Fault(1, "stop_server", 100), Fault(2, "kill_front", 1), Fault(3, "stop_server", 5))
    whole = Round(whole.seed, whole.number, whole.shape, whole.calls, faults)

    async def fails(some: Round) -> bool:
        is_stopped = any(fault.kind == "stop_server" for fault in some.faults)
        return is_stopped and any(
            "mark" in kinds and "clear" in kinds[kinds.index("mark") :]
            for kinds in ([step.do for step in call.steps] for call in some.calls)
        )

    assert asyncio.run(fails(whole))
    short = asyncio.run(shrink(whole, fails))
    assert [[step.do for step in call.steps] for call in short.calls] == [["mark", "clear"]]
    assert [fault.kind for fault in short.faults] == ["stop_server"]


def test_each_message_of_the_grammar_is_refused() -> None:
    choose = random.Random(1)
    codec = NativeCodec()
    codes = set()
    for _ in range(3000):
        payload, is_text = invalid(choose)
        message = codec.decode(payload, is_text)
        assert isinstance(message, Invalid), payload
        codes.add(message.code)
    assert codes == {"bad_json", "bad_utf8", "unknown_type", "bad_field", "binary_not_expected"}


def test_ctrl_c_ends_a_run_and_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Violation(v.CLOCK, "too early")
    results = iter([[found], KeyboardInterrupt()])

    def one(_runner: Runner, _whole: Round) -> list[Violation]:
        result = next(results)
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(Runner, "_one", one)
    rounds = [make_round(1, n, shape="one", n_calls=1) for n in range(3)]
    outcome = Runner(say=lambda _: None).run(rounds, time.monotonic() + 60)
    assert [(whole.number, what) for whole, what in outcome.failed] == [(0, [found])]
