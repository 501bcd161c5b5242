"""The module's files: none is left, whichever process is killed, and no other file is touched."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid as uuids
from pathlib import Path

import pytest
from bridge_rig import run, until
from freeswitch_rig import UUID, bridged, speech
from standin_freeswitch import StandinFreeSwitch

from sip_bridge.freeswitch import speech_files

pytestmark = pytest.mark.slow

HOUR_S = 3600.0


def left_in(folder: Path, name: str, age_s: float = HOUR_S) -> Path:
    path = folder / name
    path.write_bytes(b"speech")
    os.utime(path, (path.stat().st_atime - age_s,) * 2)
    return path


# -------------------------------------------------------------- during a call


def test_a_freeswitch_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    """It need not come back: its speech is sent again under other names."""

    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch, bridged(switch) as rig:
            await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            for number in (1, 2, 3):
                switch.speech(channel, number, speech(100, number))
            await channel.playing.wait()
            assert len(os.listdir(tmp_path)) == 3
            await switch.killed()
            await until(lambda: os.listdir(tmp_path) == [], "the removal")
            await switch.open_socket()
            await until(lambda: rig.bridge.n_calls == 0, "the end of a call that FreeSWITCH no longer has", within_s=12)

    run(main)


@pytest.mark.parametrize("remove_files", [True, False])
def test_a_bridge_that_stops_leaves_no_file(tmp_path: Path, remove_files: bool) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            channel = switch.call(UUID)
            settings = {"freeswitch__hang_up": False, "freeswitch__remove_files": remove_files, "drain_s": 0.1}
            async with bridged(switch, **settings) as rig:
                await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
                switch.word(channel, tts="hello")
                for number in (1, 2):
                    switch.speech(channel, number, speech(200, number))
                await channel.playing.wait()
            assert channel.is_up and len(os.listdir(tmp_path)) == (0 if remove_files else 2)

    run(main)


# ----------------------------------------------------- leftovers of earlier processes


@pytest.mark.parametrize("remove_files", [True, False])
def test_files_of_ended_calls_are_removed_when_the_bridge_starts(tmp_path: Path, remove_files: bool) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            live, over = switch.call(), str(uuids.uuid4())
            gone = [left_in(tmp_path, f"{over}_{n}.tmp.r{8 + 8 * (n % 2)}") for n in range(5)]
            gone.append(left_in(tmp_path, f"{uuids.uuid4()}_0.tmp.r8"))
            kept = [
                left_in(tmp_path, f"{live.uuid}_0.tmp.r8"),
                left_in(tmp_path, f"{over}_9.tmp.r8", age_s=60),
                left_in(tmp_path, f"{over}_1.tmp.wav"),
                left_in(tmp_path, f"{over}_1.tmp.r8.bak"),
                left_in(tmp_path, f"x{over}_1.tmp.r8"),
                left_in(tmp_path, "call-7_1.tmp.r8"),
            ]
            (tmp_path / f"{over}_7.tmp.r8").mkdir()
            (tmp_path / f"{over}_8.tmp.r8").symlink_to(kept[2])
            os.utime(tmp_path / f"{over}_8.tmp.r8", (0, 0), follow_symlinks=False)
            async with bridged(switch, freeswitch__remove_files=remove_files) as rig:
                await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
                if remove_files:
                    await until(lambda: not any(path.exists() for path in gone), "the removal")
                await asyncio.sleep(0.05)
            assert remove_files or all(path.exists() for path in gone)
            assert all(path.exists() for path in kept)
            assert (tmp_path / f"{over}_7.tmp.r8").is_dir() and (tmp_path / f"{over}_8.tmp.r8").is_symlink()

    run(main)


def test_leftovers_are_removed_while_calls_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: thousands of them were removed on the event loop, which stopped all calls meanwhile."""
    on_loop: list[bool] = []
    remove = speech_files.remove

    def watched(path: str) -> None:
        on_loop.append(threading.current_thread() is threading.main_thread())
        remove(path)

    monkeypatch.setattr(speech_files, "remove", watched)

    async def main() -> None:
        over = str(uuids.uuid4())
        paths = [left_in(tmp_path, f"{over}_{n}.tmp.r8") for n in range(5)]
        async with StandinFreeSwitch(tmp_path).running() as switch, bridged(switch):
            await until(lambda: not any(path.exists() for path in paths), "the removal")
        assert on_loop == [False] * 5

    run(main)


def test_leftovers_are_found_by_channel_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    old = [left_in(tmp_path, f"{UUID}_{n}.tmp.r8") for n in range(2)]
    left_in(tmp_path, f"{UUID}_2.tmp.r8", age_s=0)
    before_s = old[0].stat().st_mtime + 1
    found = speech_files.leftovers(f"{tmp_path}/", before_s)
    assert {uuid: sorted(paths) for uuid, paths in found.items()} == {UUID: [str(path) for path in old]}
    assert speech_files.leftovers(f"{tmp_path}/none/", before_s) == {}


def test_the_number_of_leftovers_found_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_files, "_MAX_LEFTOVERS", 3)
    for n in range(5):
        left_in(tmp_path, f"{UUID}_{n}.tmp.r8")
    found = speech_files.leftovers(f"{tmp_path}/", 1e12)
    assert len(found[UUID]) == 3


@pytest.mark.parametrize(
    ("folder", "is_one"),
    [("/tmp/", True), ("/", True), ("/tmp", False), ("tmp/", False), ("/a/../b/", False), ("", False)],
)
def test_folders(folder: str, is_one: bool) -> None:
    assert speech_files.is_folder(folder) is is_one
