"""Recordings as the server has them: their ends, their holes, and what a call costs that is over at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import wave
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from clean_run import until

from telephony_tts.app.config import load
from telephony_tts.recording import folder as folders
from telephony_tts.recording import live as live_module
from telephony_tts.recording.live import LiveRecording, Recordings
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

LOG = logs.get("test")
Begin = Callable[..., LiveRecording]


def recorded(
    folder: Path, main: Callable[[Begin, list[m.RecordingChanged]], Coroutine[Any, Any, None]], **settings: Any
) -> list[dict[str, Any]]:
    """Run `main` with recordings in `folder`. Returns the timeline of the only one, [] if there is no file."""
    ended: list[m.RecordingChanged] = []

    async def bounded() -> None:
        recordings = Recordings(RecordingSettings(folder=str(folder), **settings))
        recordings.open()
        session = Session(SessionSettings(), monotonic_ns())
        try:
            async with asyncio.timeout(20):
                def begin(session: Session = session) -> LiveRecording:
                    return recordings.begin("c1", "stream", session, LOG, lambda: None, ended.append)

                await main(begin, ended)
        finally:
            await recordings.close()

    asyncio.run(bounded())
    lines = list(folder.glob("*.jsonl"))
    return [json.loads(line) for line in lines[0].read_bytes().splitlines()] if lines else []


def test_a_call_of_no_length_is_a_recording_of_no_length(tmp_path: Path) -> None:
    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        begin().end("call_ended")
        await until(lambda: ended, "the end")
        assert [event.reason for event in ended] == ["call_ended"] and (ended[0].length_ms or 0) < 50

    before = metrics.value("telephony_tts_recorded_bytes_total")
    rows = recorded(tmp_path, main)
    assert [row["type"] for row in rows] == ["recording", "ended"]
    (wav,), (timeline,) = tmp_path.glob("*.wav"), tmp_path.glob("*.jsonl")
    assert 44 <= wav.stat().st_size < 44 + 50 * 32
    written = wav.stat().st_size - 44 + timeline.stat().st_size
    assert metrics.value("telephony_tts_recorded_bytes_total") - before == pytest.approx(written, abs=44)


def test_an_end_comes_once_and_nothing_listens_any_more(tmp_path: Path) -> None:
    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        session = Session(SessionSettings(), monotonic_ns())
        before = metrics.value("telephony_tts_recordings_live")
        live = begin(session=session)
        assert session.listeners == [live] and metrics.value("telephony_tts_recordings_live") == before + 1
        live.end("stopped")
        live.end("call_ended")
        assert session.listeners == [] and metrics.value("telephony_tts_recordings_live") == before
        await until(lambda: ended, "the end")
        await asyncio.sleep(0.05)
        assert [event.reason for event in ended] == ["stopped"]

    recorded(tmp_path, main)


def test_a_hang_up_during_a_pause_ends_with_the_silence_of_the_pause(tmp_path: Path) -> None:
    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        session = Session(SessionSettings(), monotonic_ns())
        live = begin(session=session)
        now_ns = monotonic_ns()
        for message in (m.Say("One two three.", "t1"), m.PauseSpeech(), m.MediaStop()):
            live.received(message, now_ns)
            session.receive(message, now_ns)
            for event in session.poll(now_ns):
                if isinstance(event, m.Cleared | m.Hangup | m.Paused):
                    live.told(event, now_ns)
        live.end("call_ended")

    kinds = [row["type"] for row in recorded(tmp_path, main)]
    assert kinds.index("pause") < kinds.index("cleared") < kinds.index("hangup") < kinds.index("ended")


def test_a_slow_disk_leaves_a_hole_that_the_timeline_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_PERIOD_S", 0.02)
    monkeypatch.setattr(live_module, "TAIL_S", 0)
    free = threading.Event()
    before = metrics.value("telephony_tts_recording_holes_total")

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        write = live._file._write

        def slowly(*args: Any) -> int:
            assert free.wait(10)
            return write(*args)

        live._file._write = slowly
        live._writer._queue_bytes = 1600
        await until(lambda: live._hole is not None, "a hole")
        live.received(m.Say("while it is slow", "t1"), monotonic_ns())
        await asyncio.sleep(0.1)
        assert not ended, "the recording goes on"
        free.set()
        live._writer._queue_bytes = 1_000_000
        await until(lambda: live._hole is None, "the end of the hole")
        live.end("stopped")

    rows = recorded(tmp_path, main)
    (hole,) = (row for row in rows if row["type"] == "hole")
    assert hole["end_ms"] - hole["ms"] >= 80
    assert any(row.get("text") == "while it is slow" for row in rows), "rows wait for the disk"
    assert metrics.value("telephony_tts_recording_holes_total") == before + 1


def test_a_full_disk_ends_the_recording_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "_PERIOD_S", 0.02)

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()

        def full(*_: Any) -> int:
            raise OSError(28, os.strerror(28))

        live._file._write = full
        await until(lambda: ended, "the end")
        assert (ended[0].state, ended[0].reason) == ("ended", "disk_full")

    recorded(tmp_path, main)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == ["recording_ended"]


def test_a_recording_that_fails_tells_the_length_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of what was given to the writer since then."""
    monkeypatch.setattr(live_module, "_PERIOD_S", 0.02)
    monkeypatch.setattr(live_module, "TAIL_S", 0)

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        await until(lambda: live._file.n_samples > 800, "a block in the file")

        def full(*_: Any) -> int:
            time.sleep(0.1)
            raise OSError(28, os.strerror(28))

        live._file._write = full
        await until(lambda: ended, "the end")
        with wave.open(str(tmp_path / live.name), "rb") as file:
            assert 0 < file.getnframes() * 1000 // 8000 == ended[0].length_ms

    recorded(tmp_path, main)


@pytest.mark.parametrize("reason", ["stopped", "call_ended"])
def test_a_recording_without_a_file_has_failed_also_if_it_is_ended_soon(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without descriptors cannot open it. Nobody has looked at the failure when the call ends."""

    monkeypatch.setattr(live_module, "_PERIOD_S", 60)

    def refuse(_: Path) -> int:
        raise OSError(24, os.strerror(24))

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        monkeypatch.setattr(folders, "create", refuse)
        live = begin()
        await until(lambda: live._file.failure is not None, "the failure")
        live.end(reason)
        await until(lambda: ended, "the end")
        assert [(event.reason, event.length_ms) for event in ended] == [("write_failed", 0)]

    assert recorded(tmp_path, main) == [] and not list(tmp_path.iterdir())


def test_a_disk_that_is_too_slow_to_the_end_leaves_a_hole_and_an_end(tmp_path: Path) -> None:
    """The queue is full when the recording ends: its last seconds are lost, and the timeline says so."""

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        await until(lambda: live._file._lines >= 0, "the files")
        live._writer._queue_bytes = 0
        live.received(m.Say("lost", "t1"), monotonic_ns())
        await asyncio.sleep(0.05)
        live.end("stopped")
        await until(lambda: ended, "the end")
        with wave.open(str(tmp_path / live.name), "rb") as file:
            assert 50 <= file.getnframes() * 1000 // 8000 == ended[0].length_ms

    rows = recorded(tmp_path, main)
    assert [row["type"] for row in rows] == ["recording", "rows_lost", "hole", "ended"]
    assert rows[2]["end_ms"] == rows[3]["length_ms"] >= 50 and rows[3]["reason"] == "stopped"


def test_a_recording_that_is_too_large_at_its_end_says_so_everywhere(tmp_path: Path) -> None:
    """Its last block did not fit, which is known when the bot has stopped it already."""

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        await until(lambda: live._file._lines >= 0, "the files")
        live._file._max_bytes = 1000
        await asyncio.sleep(0.1)
        live.end("stopped")
        await until(lambda: ended, "the end")
        assert ended[0].reason == "max_mb"
        with wave.open(str(tmp_path / live.name), "rb") as file:
            assert file.getnframes() * 1000 // 8000 == ended[0].length_ms

    last = recorded(tmp_path, main)[-1]
    assert (last["type"], last["reason"]) == ("ended", "max_mb") and last["ms"] == last["length_ms"] < 50


def test_a_fault_of_ours_ends_the_recording_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_PERIOD_S", 0.02)

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        live.received(None, 0)  # type: ignore[arg-type]
        live.told(m.Started("t1"), "soon")  # type: ignore[arg-type]
        await until(lambda: ended, "the end")
        assert ended[0].reason == "write_failed"

    recorded(tmp_path, main)


def test_the_text_of_a_private_turn_is_on_no_timeline(tmp_path: Path) -> None:
    """The field `private` of a message, and `is_private` of a turn, hide the text from its first piece on."""

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        live = begin()
        now_ns = monotonic_ns()
        live.received(m.Text("4111", "t1", private=True), now_ns)
        live.received(m.Text(" 1111", "t1"), now_ns)
        live.told(m.SentenceSpoken("t1", 0, "4111 1111", 0, 900), now_ns)
        live.told(m.Cleared("t1", "4111", 4, 900, " 1111", "clock", "clear"), now_ns)
        live.received(m.Text("hello", "t2"), now_ns)
        live.end("call_ended")

    rows = recorded(tmp_path, main)
    assert "1111" not in str(rows) and "4111" not in str(rows)
    assert any(row.get("text") == "hello" for row in rows)


@pytest.mark.parametrize("method", ["take", "finish"])
def test_a_fault_at_any_time_ends_the_recording_and_nothing_else(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends a recording goes on: a call that ends closes its legs after it."""
    monkeypatch.setattr(live_module, "_PERIOD_S", 0.02 if method == "take" else 60)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    async def main(begin: Begin, ended: list[m.RecordingChanged]) -> None:
        before = metrics.value("telephony_tts_recordings_live")
        live = begin()
        setattr(live._recorder, method, broken)
        if method == "take":
            await until(lambda: ended, "the end")
        live.end("call_ended")
        assert metrics.value("telephony_tts_recordings_live") == before
        await until(lambda: ended, "the end")
        assert [event.reason for event in ended] == ["write_failed"]

    recorded(tmp_path, main)


def test_the_reasons_of_an_end_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "PROTOCOL.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "with `ended`: `stopped`" in line)
    told = re.findall(r"`(\w+)`", row.partition("with `ended`:")[2])
    assert tuple(told) == metrics.RECORDING_ENDS


def test_settings_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recordings\.folder: missing; with calls: all"):
        load(None, {"recordings.calls": "all"}, environ={})
    with pytest.raises(ConfigError, match=r"recordings\.keep_mb: 10 is less than max_mb"):
        load(None, {"recordings.keep_mb": 10}, environ={})
    assert not load(None, {}, environ={}).recordings.is_on
    assert not load(None, {"recordings.folder": str(tmp_path), "recordings.calls": "none"}, environ={}).recordings.is_on


def test_what_waits_is_written_at_the_end_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: the server ended in a traceback, and the last second was lost."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        recordings = Recordings(RecordingSettings(folder=str(tmp_path)))
        recordings.open()
        recordings.begin("c1", "stream", Session(SessionSettings(), monotonic_ns()), LOG, lambda: None, lambda _: None)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            await recordings.close()

    asyncio.run(main())
    (timeline,) = tmp_path.glob("*.jsonl")
    rows = [json.loads(line) for line in timeline.read_bytes().splitlines()]
    assert [row["type"] for row in rows] == ["recording", "ended"]
