"""The store of sounds: names, what is kept in memory, and files that cannot be played."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from telephony_tts.audio.sound import Sound
from telephony_tts.audio.wav import write_wav
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import SoundError
from telephony_tts.transport import sound_store
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_store import SoundStore


def put(folder: Path, name: str, level: int, n: int = 800, rate_hz: int = 8_000) -> None:
    write_wav(folder / name, np.full(n, level, "<i2").tobytes(), "pcm", rate_hz)


def store(folder: Path | None, **settings: int) -> SoundStore:
    return SoundStore(SoundSettings(None if folder is None else str(folder), **settings))


def load(sounds: SoundStore, name: str, rate_hz: int = 8_000) -> Sound:
    return asyncio.run(sounds.find(name).load(rate_hz))


def refusal(sounds: SoundStore, name: str) -> SoundError:
    with pytest.raises(SoundError) as refused:
        load(sounds, name)
    return refused.value


def test_a_sound_is_found_by_its_name_with_and_without_the_ending(tmp_path: Path) -> None:
    put(tmp_path, "please wait.wav", 700)
    sounds = store(tmp_path)
    for name in ("please wait", "please wait.wav"):
        assert set(load(sounds, name).pcm.tolist()) == {700}


def test_the_included_sounds_need_no_folder_and_a_file_replaces_one(tmp_path: Path) -> None:
    assert load(store(None), "hold", 16_000).duration_ms == 16_000
    put(tmp_path, "hold.wav", 5)
    assert set(load(store(tmp_path), "hold").pcm.tolist()) == {5}


def test_a_sound_is_read_once_for_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.wav", 9)
    reads = count_reads(monkeypatch)
    sounds = store(tmp_path)

    async def scenario() -> None:
        first = await asyncio.gather(*(sounds.load("a", 8_000) for _ in range(20)))
        assert all(sound is first[0] for sound in first) and await sounds.load("a", 8_000) is first[0]
        assert (await sounds.load("a", 16_000)).rate_hz == 16_000

    asyncio.run(scenario())
    assert [os.path.basename(path) for path in reads] == ["a.wav", "a.wav"], "once for each of two rates"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []
    read_sound = sound_store.read_sound

    def counted(path: str, max_s: float, max_bytes: int) -> Sound:
        assert threading.current_thread() is not threading.main_thread(), "the event loop reads no file"
        reads.append(path)
        return read_sound(path, max_s, max_bytes)

    monkeypatch.setattr(sound_store, "read_sound", counted)
    return reads


def test_a_file_that_is_replaced_added_or_removed_needs_no_restart(tmp_path: Path) -> None:
    sounds = store(tmp_path)
    assert refusal(sounds, "a").code == "unknown_sound"
    put(tmp_path, "a.wav", 1)
    assert set(load(sounds, "a").pcm.tolist()) == {1}
    put(tmp_path, "b.wav", 2)
    os.replace(tmp_path / "b.wav", tmp_path / "a.wav")
    playing = load(sounds, "a")
    assert set(playing.pcm.tolist()) == {2}
    (tmp_path / "a.wav").unlink()
    assert refusal(sounds, "a").code == "unknown_sound"
    assert set(playing.pcm.tolist()) == {2}, "who plays it plays on"


def test_the_least_recently_used_sounds_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        put(tmp_path, f"{name}.wav", 3, n=200_000)
    reads = count_reads(monkeypatch)
    sounds = store(tmp_path, memory_mb=1)  # two of them fit
    for name in ("a", "b", "a", "c", "a", "b"):
        load(sounds, name)
    assert [os.path.basename(path)[0] for path in reads] == ["a", "b", "c", "b"]


def test_a_sound_larger_than_the_memory_is_played_all_the_same(tmp_path: Path) -> None:
    put(tmp_path, "a.wav", 3, n=1 << 20)
    assert len(load(store(tmp_path, memory_mb=1), "a").pcm) == 1 << 20


def test_an_unknown_name_gets_near_names(tmp_path: Path) -> None:
    put(tmp_path, "welcome.wav", 1)
    error = refusal(store(tmp_path), "welcom")
    assert (error.code, error.message) == ("unknown_sound", "no sound 'welcom'; near it: welcome")
    assert refusal(store(None), "xyz").message == "no sound 'xyz'; there are 3, such as hold, ringback, typing"


@pytest.mark.parametrize(
    "name",
    ["../secret", "../secret.wav", "/etc/passwd", "in/a", "in", "..", ".", ".hidden", "a\x00", "a/../a", "x" * 128],
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "sounds"
    (folder / "in").mkdir(parents=True)
    put(tmp_path, "secret.wav", 1)
    put(folder / "in", "a.wav", 1)
    put(folder, ".hidden.wav", 1)
    assert refusal(store(folder), name).code == "unknown_sound"


def test_files_that_cannot_be_played_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    with (tmp_path / "big.wav").open("wb") as file:
        file.truncate(4 << 30)
    put(tmp_path, "long.wav", 1, n=9_000)
    (tmp_path / "gone.wav").symlink_to(tmp_path / "nowhere")
    sounds = SoundStore(SoundSettings(str(tmp_path), max_s=1.0))
    reasons = {
        "empty": "empty", "big": "4294967296 bytes", "long": "lasts 1.1 s", "gone": "No such",
    }  # fmt: skip
    for name, why in reasons.items():
        error = refusal(sounds, name)
        assert error.code == "bad_sound" and why in error.message and name in error.message
    listed = dict(sounds.list_sounds())
    assert {name for name, sound in listed.items() if isinstance(sound, SoundError)} == set(reasons)
    assert {name for name, sound in listed.items() if isinstance(sound, Sound)} == {"hold", "ringback", "typing"}


def test_a_folder_that_is_missing_is_an_error_of_each_sound(tmp_path: Path) -> None:
    assert "folder of sounds cannot be read" in refusal(store(tmp_path / "none"), "hold").message


def test_a_crash_of_a_decoder_is_an_error_of_its_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.wav", 1)

    def crash(path: str, max_s: float, max_bytes: int) -> Sound:
        raise ZeroDivisionError

    monkeypatch.setattr(sound_store, "read_sound", crash)
    assert "ZeroDivisionError" in refusal(store(tmp_path), "a").message


def test_a_slow_file_holds_up_no_other_sound_and_a_call_that_leaves_takes_no_sound_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow.wav", "a.wav"):
        put(tmp_path, name, 4)
    go_on, read_sound = threading.Event(), sound_store.read_sound

    def held(path: str, max_s: float, max_bytes: int) -> Sound:
        if path.endswith("slow.wav"):
            go_on.wait(10)
        return read_sound(path, max_s, max_bytes)

    monkeypatch.setattr(sound_store, "read_sound", held)

    async def scenario() -> None:
        sounds = store(tmp_path)
        leaves, stays = (asyncio.create_task(sounds.load("slow", 8_000)) for _ in range(2))
        assert (await sounds.load("a", 8_000)).pcm[0] == 4
        leaves.cancel()
        go_on.set()
        assert (await stays).pcm[0] == 4

    asyncio.run(scenario())


def test_sounds_are_counted(tmp_path: Path) -> None:
    def counted() -> list[float]:
        return [metrics.value("telephony_tts_sounds_total", outcome=outcome) for outcome in ("played", "failed")]

    before = counted()
    load(store(None), "typing")
    refusal(store(None), "none")
    assert counted() == [before[0] + 1, before[1] + 1]


def test_folders_and_other_files_are_not_sounds_and_wav_comes_first(tmp_path: Path) -> None:
    (tmp_path / "sub.wav").mkdir()
    (tmp_path / "hold.txt").write_text("notes")
    (tmp_path / "hold.flac").write_text("not audio")
    put(tmp_path, "hold.wav", 5)
    assert set(load(store(tmp_path), "hold").pcm.tolist()) == {5}
    listed = dict(store(tmp_path).list_sounds())
    assert sorted(listed) == ["hold", "ringback", "typing"]
    assert all(isinstance(sound, Sound) for sound in listed.values())


def test_only_so_many_sounds_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_store, "_MOST_WAITING", 1)
    for name in ("a", "b"):
        put(tmp_path, f"{name}.wav", 5)
    sounds = store(tmp_path)

    async def main() -> list[Sound | BaseException]:
        return await asyncio.gather(*(sounds.load(name, 8_000) for name in ("a", "b")), return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, Sound) and isinstance(second, SoundError)
    assert (second.code, second.message) == ("bad_sound", "too many sounds wait")


def test_a_machine_without_a_free_thread_refuses_one_sound_and_plays_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a.wav", 9)
    sounds = store(tmp_path)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        error = refusal(sounds, "a")
    assert (error.code, error.message) == ("bad_sound", "sound 'a' cannot be read now: can't start new thread")
    assert set(load(sounds, "a").pcm.tolist()) == {9}


def test_sounds_behind_those_of_a_dead_host_are_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty calls ask for sounds of a host that answers nothing, and another call for a sound of a good one."""
    put(tmp_path, "a.wav", 9)
    content = (tmp_path / "a.wav").read_bytes()
    end_of_wait = threading.Event()

    def fetch(url: str, *_limits: object) -> bytes:
        if "//dead." in url:
            end_of_wait.wait(10)
            raise SoundError("it takes longer than 10 s")
        return content

    monkeypatch.setattr(sound_store, "fetch_sound", fetch)
    sounds = SoundStore(SoundSettings(str(tmp_path)), within_s=0.3)
    good = "https://good.example/a.wav?key=secret"

    async def main() -> None:
        names = [*(f"https://dead.example/{n}.wav" for n in range(20)), good]
        waits = [asyncio.create_task(sounds.load(name, 8_000)) for name in names]
        await asyncio.sleep(0)
        assert set((await sounds.load("a", 8_000)).pcm.tolist()) == {9}, "files have threads of their own"
        _, late = await asyncio.wait(waits, timeout=3)
        assert not late
        refused = [task.exception() for task in waits]
        assert {type(error) for error in refused} == {SoundError}
        message = str(refused[-1])
        assert "'https://good.example/a.wav' did not come within 0.3 s" in message and "secret" not in message
        end_of_wait.set()
        assert set((await sounds.load(good, 8_000)).pcm.tolist()) == {9}, "the next call gets it"

    try:
        asyncio.run(main())
    finally:
        end_of_wait.set()
