"""The live calls, while calls with the same id come and go."""

from __future__ import annotations

import asyncio
import errno

import pytest
from stage import READY, ClingingEngine, RecordingLeg, new_call, run, started, until

from telephony_tts.transport.call import Call
from telephony_tts.transport.registry import Registry
from telephony_tts.transport.turn_traces import CallTraces
from telephony_tts.wire import messages as m


def test_a_name_is_free_while_its_last_call_is_winding_down() -> None:
    async def main() -> None:
        registry = Registry()
        async with asyncio.TaskGroup() as registry.group:
            engine = ClingingEngine()
            first, second = new_call(engine), new_call()
            await started(registry, first)
            leg = RecordingLeg()
            first.frames_to_bot(leg, leg.encode)
            first.join_bot(leg, leg.encode, READY)
            first.receive(m.Say("One two three."))
            await until(lambda: engine.n_held, "the engine has begun")
            assert registry.find("c1") is first
            first.finish(1000, "over")
            assert registry.find("c1") is None and len(registry) == 1, "it counts as long as it holds an engine"
            await started(registry, second)
            assert registry.find("c1") is second and len(registry) == 2
            engine.let_go.set()
            await until(lambda: len(registry) == 1, "the first is gone")
            assert registry.find("c1") is second, "and has not removed the second"
            second.finish(1000, "over")
            await registry.wait_empty()
            assert not registry.calls() and registry.find("c1") is None

    run(main)


def test_which_calls_wait_for_a_media_leg() -> None:
    async def main() -> None:
        registry = Registry()
        async with asyncio.TaskGroup() as registry.group:
            alone, joined = new_call(call="a"), new_call(call="b", media=False)
            await started(registry, alone)
            assert not registry.awaits_media
            await started(registry, joined)
            assert registry.awaits_media
            leg = RecordingLeg()
            joined.join_media(leg, leg.encode)
            assert not registry.awaits_media
            for call in registry.calls():
                call.finish(1000, "over")

    run(main)


def test_a_call_that_crashes_is_removed_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        registry = Registry()
        async with asyncio.TaskGroup() as registry.group:
            bad, good = new_call(call="bad"), new_call(call="good")
            await started(registry, bad)
            await started(registry, good)

            async def breaks() -> None:
                raise ZeroDivisionError("a bug of ours")

            bad.spawn(breaks(), "breaks")
            await until(lambda: len(registry) == 1, "it is forgotten")
            assert registry.find("good") is good and not good.over
            good.finish(1000, "over")

    run(main)
    assert any(record.message == "call_crashed" and record.exc_info for record in caplog.records)


def test_a_call_that_cannot_begin_leaves_nothing_behind() -> None:
    """Pinned: it had no task, but was found, so a bot that joined it waited for ever, and so did the drain."""

    async def main() -> None:
        registry = Registry()
        released: list[str] = []

        def is_full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with asyncio.TaskGroup() as registry.group:
            first = new_call(call="first")
            await started(registry, first)
            registry.changed = is_full
            second = new_call(call="second")
            second.on_over = lambda: released.append("second")
            with pytest.raises(OSError, match="No space left"):
                registry.begin(second)
            assert registry.find("second") is None and registry.calls() == [first] and released == ["second"]
            registry.changed = lambda: None
            again = new_call(call="second")
            await started(registry, again)
            for call in (first, again):
                call.finish(1000, "over")
            async with asyncio.timeout(5):
                await registry.wait_empty()

    run(main)


class BrokenTracing:
    def of_call(self, call: Call) -> CallTraces:
        raise ValueError("a bug of ours")


def test_the_only_call_that_cannot_begin_does_not_hold_up_the_drain() -> None:
    async def main() -> None:
        registry = Registry()
        registry.tracing = BrokenTracing()
        async with asyncio.TaskGroup() as registry.group:
            with pytest.raises(ValueError, match="a bug of ours"):
                registry.begin(new_call())
            assert not registry.calls() and registry.find("c1") is None
            async with asyncio.timeout(5):
                await registry.wait_empty()

    run(main)


def test_text_from_before_the_call_has_begun_is_spoken_when_it_begins() -> None:
    """Pinned: both legs in one round of the loop crashed the call, which was registered and not yet running."""

    async def main() -> None:
        registry = Registry()
        async with asyncio.TaskGroup() as registry.group:
            call = new_call()
            leg = RecordingLeg()
            registry.begin(call)
            assert registry.find("c1") is call and not call.started.is_set()
            call.frames_to_bot(leg, leg.encode)
            call.join_bot(leg, leg.encode, READY)
            call.receive(m.Say("One two three."))
            await until(lambda: any(isinstance(sent, m.Frame) for sent in leg.sent), "the first frame")
            assert not call.over
            call.finish(1000, "over")

    run(main)
