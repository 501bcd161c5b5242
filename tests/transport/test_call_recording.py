"""A recording and its call: what the call tells it, and that its faults are its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from stage import READY, RecordingLeg, new_call, run, started, until

from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.recording.live import Recordings
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.transport.call import Call
from telephony_tts.transport.registry import Registry
from telephony_tts.wire import messages as m

SECRET = "One two three, four five six, seven eight nine, ten eleven twelve."


def on_a_call(
    folder: Path, act: Callable[[Call, RecordingLeg], Coroutine[Any, Any, None]], engine: FakeEngine, **settings: Any
) -> list[dict[str, Any]]:
    """Run `act` with a call of a server that has recordings. Returns the rows of all timelines."""

    async def main() -> None:
        recordings = Recordings(RecordingSettings(folder=str(folder), **settings))
        recordings.open()
        registry = Registry()
        registry.recordings = recordings
        try:
            async with asyncio.TaskGroup() as registry.group:
                call, leg = new_call(engine), RecordingLeg()
                await started(registry, call)
                call.frames_to_bot(leg, leg.encode)
                call.join_bot(leg, leg.encode, READY)
                await act(call, leg)
                call.finish(1000, "over")
        finally:
            await recordings.close()

    run(main)
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("message", [m.Say(SECRET, private=True), m.Text(SECRET, last=True, private=True)])
@pytest.mark.parametrize("end", ["failure", "hang_up"])
def test_a_private_turn_without_an_id_that_ends_before_any_other_message_is_on_no_timeline(
    message: m.Say | m.Text, end: str, tmp_path: Path
) -> None:
    async def act(call: Call, leg: RecordingLeg) -> None:
        call.receive(message)
        if end == "failure":
            await until(lambda: leg.got(m.ErrorEvent), "the failure")
            assert "two" in leg.got(m.ErrorEvent)[0].unheard_text
        else:
            call.media_left(leg, "the caller has hung up")
            assert "two" in leg.got(m.Cleared)[0].unheard_text

    rows = on_a_call(tmp_path, act, FakeEngine(fail_after_chunks=0 if end == "failure" else None), calls="all")
    (over,) = (row for row in rows if row["type"] == ("error" if end == "failure" else "cleared"))
    assert over["unheard_text_chars"] > 20
    assert "two" not in str(rows) and "eleven" not in str(rows)


def test_a_private_turn_that_was_there_before_the_recording_is_not_on_it(tmp_path: Path) -> None:
    async def act(call: Call, leg: RecordingLeg) -> None:
        call.receive(m.Say(SECRET, private=True))
        call.record("start")
        call.media_left(leg, "the caller has hung up")
        assert "two" in leg.got(m.Cleared)[0].unheard_text

    rows = on_a_call(tmp_path, act, FakeEngine(), calls="asked")
    assert any(row["type"] == "cleared" for row in rows) and "two" not in str(rows)


def test_a_loop_of_starts_and_stops_makes_no_more_than_20_recordings(tmp_path: Path) -> None:
    async def act(call: Call, leg: RecordingLeg) -> None:
        for _ in range(25):
            call.receive(m.Record("start"))
            call.receive(m.Record("stop"))
        await until(lambda: len(leg.got(m.RecordingChanged)) == 40, "the last end")
        warnings = leg.got(m.WarningEvent)
        assert {w.code for w in warnings} == {"recording_unchanged"}
        assert warnings[0].message == "start: the call has had 20 recordings, which is the most"

    rows = on_a_call(tmp_path, act, FakeEngine(), calls="asked")
    assert [row["type"] for row in rows].count("ended") == 20


def test_a_recording_that_cannot_end_keeps_no_leg_open(tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    async def act(call: Call, leg: RecordingLeg) -> None:
        assert call.recording is not None
        call.recording._recorder.take = broken  # type: ignore[method-assign,assignment]
        call.finish(1000, "over")
        await until(lambda: leg.ended, "the end of the leg")
        assert set(leg.ended) == {(1000, "over")}
        assert [event.reason for event in leg.got(m.RecordingChanged)] == [None, "write_failed"]

    on_a_call(tmp_path, act, FakeEngine(), calls="all")


def test_a_server_that_only_keeps_old_recordings_makes_none(tmp_path: Path) -> None:
    async def act(call: Call, leg: RecordingLeg) -> None:
        call.receive(m.Record("start"))
        assert [warning.code for warning in leg.got(m.WarningEvent)] == ["recording_unavailable"]

    assert on_a_call(tmp_path, act, FakeEngine(), calls="none") == []
