"""The files of recordings: slow, full and missing disks, names, permissions, and how long they are kept."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telephony_tts.app.config import load
from telephony_tts.app.settings import open_recordings
from telephony_tts.recording import folder as folders
from telephony_tts.recording import writer as writer_module
from telephony_tts.recording.recorder import Block, CallRecorder
from telephony_tts.recording.stereo import header
from telephony_tts.recording.timeline import SERVER, Row, line_of, row_of
from telephony_tts.recording.tracks import Piece
from telephony_tts.recording.writer import RecordingFile, Writer
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

DAY_S = 86_400
NOW_S = 1_800_000_000.0


def block(first: int, n_samples: int = 8000, level: int = 1000) -> Block:
    pcm = np.full(n_samples, level, "<i2").tobytes()
    piece = Piece(1, first, first + n_samples, "pcm", 8000, pcm)
    return Block(first, n_samples, [], [piece], [Row(first // 8, SERVER, "note")])


def a_file(folder: Path, call: str = "c1", max_bytes: int = 10_000_000) -> RecordingFile:
    return RecordingFile(folder, folders.name_for(call, NOW_S), max_bytes)


def read(folder: Path) -> tuple[np.ndarray[Any, Any], list[dict[str, Any]]]:
    (wav,) = folder.glob("*.wav")
    with wave.open(str(wav), "rb") as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
        assert len(pcm) == file.getnframes()
    return pcm, [json.loads(line) for line in wav.with_suffix(".jsonl").read_bytes().splitlines()]


# ------------------------------------------------------------------------ names


@pytest.mark.parametrize("call", ["c1", "../../etc/x", "..", "", "a/b\\c\0d", "😀" * 50, "-rf", "x" * 500, "\n\r"])
def test_a_name_has_no_character_of_a_path(call: str, tmp_path: Path) -> None:
    name = folders.name_for(call, NOW_S)
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
    assert len(name) <= 80 and name.startswith("20270115T080000Z-")
    assert name != folders.name_for(call, NOW_S)
    file = RecordingFile(tmp_path, name, 10_000)
    file.write(Block(0, 0, [], [], []))
    file.close()
    assert sorted(os.listdir(tmp_path)) == [f"{name}.jsonl", f"{name}.wav"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_file_that_is_there_is_never_written(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    (tmp_path / f"{file.name}.wav").symlink_to(tmp_path / "elsewhere")
    file.write(block(0))
    assert file.failure == "write_failed" and not (tmp_path / "elsewhere").exists()
    other = a_file(tmp_path)
    (tmp_path / f"{other.name}.wav").write_bytes(b"mine")
    other.write(block(0))
    assert other.failure == "write_failed" and (tmp_path / f"{other.name}.wav").read_bytes() == b"mine"


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = folders.open_folder(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigError, match=r"recordings\.folder: cannot write in .*plain/x: Not a directory"):
        folders.open_folder(str(tmp_path / "plain" / "x"))
    with pytest.raises(ConfigError, match=r"recordings\.folder: cannot write in /proc/nothing: "):
        folders.open_folder("/proc/nothing")


# ---------------------------------------------------------------------- writing


def test_blocks_become_samples_and_holes_become_silence(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.write(block(0, level=100))
    file.write(block(16_000, level=300))
    file.close()
    pcm, rows = read(tmp_path)
    assert pcm.shape == (24_000, 2) and not pcm[:, 0].any()
    assert [int(pcm[at, 1]) for at in (0, 7999, 8000, 15_999, 16_000, 23_999)] == [100, 100, 0, 0, 300, 300]
    assert [row["ms"] for row in rows] == [0, 2000]


def test_a_timeline_that_is_there_has_a_wav_file_with_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console lists a recording by its timeline, and may open it before the first block is written."""
    create, sizes = folders.create, []

    def seen(path: Path) -> int:
        if path.suffix == ".jsonl":
            sizes.append(path.with_suffix(".wav").stat().st_size)
        return create(path)

    monkeypatch.setattr(folders, "create", seen)
    file = a_file(tmp_path)
    file.write(block(0))
    file.close()
    assert sizes == [len(header(0))]


def test_after_every_block_the_file_can_be_read(tmp_path: Path) -> None:
    """As a server that is killed leaves it."""
    file = a_file(tmp_path)
    file.write(Block(0, 0, [], [], []))
    assert read(tmp_path)[0].shape == (0, 2)
    for n in range(3):
        file.write(block(n * 8000))
        pcm, rows = read(tmp_path)
        assert len(pcm) == (n + 1) * 8000 and len(rows) == n + 1
    file.close()


def test_a_recording_ends_at_its_size_and_its_last_row_says_so(tmp_path: Path) -> None:
    file = a_file(tmp_path, max_bytes=70_000)
    for n in range(4):
        file.write(block(n * 8000))
    assert file.failure == "max_mb"
    file.write(Block(32_000, 0, [], [], [Row(4000, SERVER, "ended", False, {"reason": "max_mb"})]))
    file.close()
    pcm, rows = read(tmp_path)
    assert len(pcm) == 16_000 and rows[-1]["reason"] == "max_mb"


def test_rows_beyond_the_size_are_not_written(tmp_path: Path) -> None:
    file = a_file(tmp_path, max_bytes=70_000)
    file.write(block(0))
    ended = Row(2000, SERVER, "ended", False, {"reason": "max_mb"})
    file.write(Block(8000, 0, [], [], [Row(1000, SERVER, "note", False, {"long": "x" * 100_000})]))
    assert file.failure == "max_mb"
    file.write(Block(8000, 8000, [], [], [Row(2000, SERVER, "note"), ended]))
    file.close()
    pcm, rows = read(tmp_path)
    assert len(pcm) == 8000 and [row["type"] for row in rows] == ["note", "ended"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 70_000


_FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_recording_files import a_file, block
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
file = a_file(Path(sys.argv[2]))
for n in range(4):
    file.write(block(n * 8000))
file.close()
print(file.failure, "|", file.why)
"""


@pytest.mark.slow
def test_a_file_system_that_takes_no_more_ends_the_recording_and_keeps_what_was_written(tmp_path: Path) -> None:
    """A child process may write files of 50 kB, so the second block is cut off in its middle."""
    run = [sys.executable, "-c", _FULL, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("disk_full |"), (done.stdout, done.stderr)
    pcm, rows = read(tmp_path)
    assert len(pcm) == 8000 and len(rows) == 1, "the header counts whole blocks"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 50_000


def test_a_full_disk_is_told_from_a_broken_one(tmp_path: Path) -> None:
    for number, told in ((errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EIO, "write_failed")):
        file = a_file(tmp_path)
        file.write(block(0))

        def refuse(*_: Any, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        file._write = refuse
        file.write(block(8000))
        file.write(block(16_000))
        file.close()
        assert (file.failure, file.why) == (told, os.strerror(number))


def test_dev_full_says_that_it_is_full(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.write(block(0))
    os.close(file._wav)
    file._wav = os.open("/dev/full", os.O_WRONLY)
    file.write(block(8000))
    assert file.failure == "disk_full"
    file.close()


def test_a_file_that_is_removed_while_it_is_written_ends_the_recording(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.write(block(0))
    (tmp_path / f"{file.name}.wav").unlink()
    file.write(block(8000))
    assert file.failure == "write_failed" and "removed" in file.why
    file.close()


# ------------------------------------------------------------------- the thread


class SlowDisk:
    """A file whose writes wait until they are let through."""

    def __init__(self, file: RecordingFile) -> None:
        self.free = threading.Event()
        self.waits = threading.Event()
        write = file._write

        def slowly(*args: Any) -> int:
            self.waits.set()
            assert self.free.wait(10)
            return write(*args)

        file._write = slowly


def test_a_slow_disk_costs_blocks_and_never_waits(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 52_000, 0, 0)
    writer.start()
    file = a_file(tmp_path)
    disk = SlowDisk(file)
    taken = [writer.put(file, block(n * 8000)) for n in range(6)]
    assert taken == [True, True, True, False, False, False], "52 kB may wait"
    assert disk.waits.wait(5)
    disk.free.set()
    done = threading.Event()
    writer.finish(file, done.set)
    assert done.wait(5)
    assert writer.put(file, block(0)), "what was written waits no more"
    assert writer.stop(5)
    pcm, _ = read(tmp_path)
    assert len(pcm) == 24_000


def test_a_disk_that_hangs_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 50_000, 0, 0)
    writer.start()
    file = a_file(tmp_path)
    disk = SlowDisk(file)
    writer.put(file, block(0))
    assert disk.waits.wait(5)
    assert not writer.stop(0.05)
    disk.free.set()
    writer._thread.join(5)
    assert not writer._thread.is_alive()
    file.close()


# -------------------------------------------------------------------- retention


def store(folder: Path, age_s: float, size: int = 1000, call: str = "c1") -> str:
    name = folders.name_for(call, NOW_S - age_s)
    for suffix in folders.SUFFIXES:
        path = folder / f"{name}{suffix}"
        path.write_bytes(bytes(size // 2))
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return name


def names(files: list[Path]) -> list[str]:
    return list(dict.fromkeys(path.name.rpartition(".")[0] for path in files))


def test_old_recordings_go_and_nothing_else(tmp_path: Path) -> None:
    old, older, new = store(tmp_path, 31 * DAY_S), store(tmp_path, 40 * DAY_S), store(tmp_path, 29 * DAY_S)
    for other in ("notes.wav", "20270115T080000Z-c1-xyz.wav", ".trial-0123456789ab"):
        (tmp_path / other).write_text("mine")
        os.utime(tmp_path / other, (0, 0))
    (tmp_path / f"{folders.name_for('dir', 0)}.wav").mkdir()
    found = folders.to_remove(tmp_path, (), NOW_S, 30, 0)
    assert [name for name in names(found) if "dir" not in name] == [older, old]
    assert folders.to_remove(tmp_path, (), NOW_S, 0, 0) == []
    failed: list[Path] = []
    folders.remove(found, lambda path, _: failed.append(path))
    assert new in str(list(tmp_path.iterdir())) and (tmp_path / "notes.wav").exists()
    assert all(path.is_dir() for path in failed)


def test_the_oldest_go_first_while_there_is_too_much(tmp_path: Path) -> None:
    kept = [store(tmp_path, age_s) for age_s in (5000, 4000, 3000, 2000, 1000)]
    assert names(folders.to_remove(tmp_path, (), NOW_S, 0, 3000)) == kept[:2]
    assert names(folders.to_remove(tmp_path, (), NOW_S, 0, 3999)) == kept[:2]
    assert names(folders.to_remove(tmp_path, (), NOW_S, 0, 5000)) == []


def test_one_that_is_being_written_stays(tmp_path: Path) -> None:
    kept = [store(tmp_path, age_s) for age_s in (90 * DAY_S, 80 * DAY_S, 60)]
    assert names(folders.to_remove(tmp_path, {kept[0]}, NOW_S, 30, 1)) == [kept[1]], "60 s may be another server's"


def test_drawn_pages_go_with_their_recording_and_do_not_make_it_younger(tmp_path: Path) -> None:
    old, new, left = store(tmp_path, 31 * DAY_S), store(tmp_path, DAY_S), folders.name_for("c2", 0)
    drawn = [f"{old}.html", f"{old}.png", f"{old}.html.0123456789ab.part", f"{new}.html", f"{left}.html"]
    for name in (*drawn, f"{old}.txt", f"{old}.wav.0123456789ab.part"):
        (tmp_path / name).write_bytes(bytes(500))
        os.utime(tmp_path / name, (NOW_S - DAY_S, NOW_S - DAY_S))
    os.utime(tmp_path / f"{left}.html", (0, 0))
    found = sorted(path.name for path in folders.to_remove(tmp_path, (), NOW_S, 30, 0))
    assert found == sorted([*drawn[:3], f"{left}.html", f"{old}.wav", f"{old}.jsonl"])
    found = [path.name for path in folders.to_remove(tmp_path, (), NOW_S, 0, 1500)]
    assert found[0] == f"{left}.html" and len(found) == 6 and new not in str(found), "pages have a size"


def test_a_loop_of_short_recordings_sweeps_the_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []

    def listed(folder: Path, *_: Any) -> list[Path]:
        swept.append(folder)
        return []

    monkeypatch.setattr(folders, "to_remove", listed)
    writer = Writer(tmp_path, 1_000_000, 30, 0)
    writer.start()
    for _ in range(10):
        file = a_file(tmp_path)
        writer.put(file, block(0, 0))
        writer.finish(file)
    assert writer.stop(5)
    assert len(swept) == 1 and len(os.listdir(tmp_path)) == 20


def test_a_recording_that_ends_has_the_folder_swept_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_SWEEP_AGAIN_S", 0.0)
    swept = threading.Semaphore(0)
    monkeypatch.setattr(folders, "to_remove", lambda *_: swept.release() or [])
    writer = Writer(tmp_path, 1_000_000, 30, 0)
    writer.start()
    assert swept.acquire(timeout=5)
    writer.finish(a_file(tmp_path))
    assert swept.acquire(timeout=5)
    assert writer.stop(5)


def test_old_recordings_go_also_if_no_call_is_recorded(tmp_path: Path) -> None:
    store(tmp_path, 50 * 365 * DAY_S)
    settings = {"recordings.folder": str(tmp_path), "recordings.calls": "none"}
    recordings = open_recordings(load(None, settings, environ={}))
    assert recordings is not None
    asyncio.run(recordings.close())
    assert list(tmp_path.iterdir()) == []


def test_the_thread_removes_what_is_too_old(tmp_path: Path) -> None:
    store(tmp_path, 50 * 365 * DAY_S)
    writer = Writer(tmp_path, 50_000, 30, 0)
    writer.start()
    assert writer.stop(5)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------- timeline


def line(message: object, **how: Any) -> dict[str, Any]:
    row = row_of(message, 7, **how)
    assert row is not None
    told: dict[str, Any] = json.loads(line_of(row))
    return told


def test_rows_are_messages_and_events_by_their_names() -> None:
    assert line(m.Say("Hi.", "t1")) == {"ms": 7, "by": "bot", "type": "say", "text": "Hi.", "turn": "t1"}
    assert line(m.SendDtmf("12#")) == {"ms": 7, "by": "bot", "type": "dtmf", "digits": "12#"}
    assert line(m.PauseSpeech()) == {"ms": 7, "by": "bot", "type": "pause"}
    assert line(m.ResumeSpeech())["type"] == "resume" and line(m.Record("stop"))["type"] == "record"
    assert line(m.MediaMark("1.2"))["by"] == "peer"
    done = line(m.Done("t1", 1980, 4, 0, {"queue_ms": None, "first_pcm_ms": float("nan")}))
    assert done["type"] == "done" and done["latency"] == {"queue_ms": None, "first_pcm_ms": None}
    assert row_of(m.InboundAudio(b"", 0), 7) is None and row_of(m.Ping(), 7) is None
    assert "token" not in str(line(m.CallStarted("c", "s", "ulaw", 8000, {"token": "secret"})))


def test_text_of_a_private_turn_is_not_written_anywhere() -> None:
    secret = "4111 1111"
    events = [
        m.Say(secret, "t1"), m.Text(secret, "t1"), m.SentenceSpoken("t1", 0, secret, 0, 900),
        m.Cleared("t1", secret, 4, 900, secret, "clock", "clear"), m.Paused("t1", secret, 4, 900, "clock", "bot"),
        m.WordsSpoken("t1", 0, [{"text": secret, "start_ms": 0, "end_ms": 900, "from": 0, "to": 4}], "engine"),
        m.ErrorEvent("unsupported_text", f"cannot read {secret}", turn="t1", heard_text=secret, unheard_text=secret),
    ]  # fmt: skip
    for event in events:
        row = row_of(event, 0, is_private=True)
        assert row is not None and b"4111" not in line_of(row)
    assert line(events[0], is_private=True)["text_chars"] == len(secret)


def test_memory_is_counted_by_the_lines_and_has_a_limit() -> None:
    recorder = CallRecorder(Session(SessionSettings(), 0), 0)
    recorder.received(m.Say("x" * 100_000, "t1"), 0)
    assert 100_000 < recorder.take(0).n_bytes < 101_000
    for _ in range(20):
        recorder.received(m.Say("x" * 100_000, "t1"), 0)
    kept = recorder.take(0)
    assert kept.n_bytes < 502_000 and (kept.rows[-1].what, kept.rows[-1].more) == ("rows_lost", {"n": 16})
    recorder.received(m.Say("x" * 150_000, "t1"), 0)
    recorder.received(m.Say("hi", "t1"), 0)
    recorder.keep_rows(kept.rows)
    again = recorder.take(0)
    assert again.n_bytes < 502_000 and again.rows[-1].more == {"n": 1}, "the long one had no room"
    assert [len(row.what.text) for row in again.rows if isinstance(row.what, m.Say)] == [100_000] * 4 + [2]


def test_a_lone_surrogate_can_be_written() -> None:
    row = row_of(m.Say("\ud800"), 0)
    assert row is not None and json.loads(line_of(row))["text"] == "?"


def test_the_header_is_that_of_a_stereo_file() -> None:
    assert len(header(0)) == 44 and header(8000)[4:8] == (32_000 + 36).to_bytes(4, "little")


def test_a_file_that_gets_no_header_is_removed(tmp_path: Path) -> None:
    """A file of 0 bytes is no recording to any reader."""
    file = a_file(tmp_path)

    def refuse(descriptor: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file._write = refuse
    file.write(block(0))
    file.close()
    assert file.failure == "disk_full" and not list(tmp_path.iterdir())


def test_a_fault_while_old_files_are_looked_for_does_not_end_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: the thread ended, and no recording was written any more."""
    looked = threading.Event()

    def fail(*_: object) -> list[Path]:
        looked.set()
        raise ValueError("a bug of ours")

    monkeypatch.setattr(folders, "to_remove", fail)
    writer = Writer(tmp_path, 1_000_000, 1, 0)
    writer.start()
    assert looked.wait(5)
    file = a_file(tmp_path)
    assert writer.put(file, block(0))
    writer.finish(file)
    assert writer.stop(5)
    assert read(tmp_path)[0].shape == (8000, 2)
    assert "recordings_not_swept" in caplog.messages
