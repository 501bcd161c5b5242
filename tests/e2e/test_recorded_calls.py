"""Recordings of real calls: left what the caller said, right what the caller heard, each in its place."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import signal
import stat
import threading
import time
import wave
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rig import Bot, Rig, greeted, run, serving, tones_in, until
from served import process
from test_twilio_call import dialled
from twilio_peer import TwilioPeer, dialling

from telephony_tts.audio.g711 import Pcm, encode_ulaw
from telephony_tts.recording import folder as folders
from telephony_tts.recording.live import Recordings
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.runtime import metrics
from telephony_tts.transport import call as call_module

pytestmark = [pytest.mark.slow, pytest.mark.timed]

MEDIA = "/media/twilio"
CALLER_HZ = 450.0


class TimedPeer(TwilioPeer):
    """Also notes when the caller hears each frame."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard_s: list[float] = []
        self._watch = asyncio.create_task(self._note())
        self._tasks.append(self._watch)

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            while len(self.heard_s) < len(self.played):
                self.heard_s.append(time.monotonic())


@asynccontextmanager
async def recording(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    recordings = Recordings(RecordingSettings(folder=str(folder), **settings))
    recordings.open()
    try:
        async with serving() as rig:
            rig.server.registry.recordings = recordings
            yield rig
    finally:
        await recordings.close()


def tone(hz: float, n_frames: int) -> list[bytes]:
    n = np.arange(n_frames * 160)
    whole = encode_ulaw(np.rint(9000 * np.sin(2 * np.pi * hz * n / 8000)).astype(np.int16))
    return [whole[at : at + 160] for at in range(0, len(whole), 160)]


def read(folder: Path) -> tuple[Pcm, list[dict[str, Any]]]:
    """The samples, shape [n, 2], and the timeline of the only recording in the folder."""
    (wav,) = folder.glob("*.wav")
    with wave.open(str(wav), "rb") as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 8000, 2)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    return pcm, [json.loads(line) for line in wav.with_suffix(".jsonl").read_bytes().splitlines()]


def loud(channel: Pcm) -> list[tuple[int, int]]:
    """(first, end) of what is louder than silence, with gaps of at most 10 ms inside."""
    at = np.flatnonzero(np.abs(channel.astype(int)) > 300)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > 80)
    firsts, ends = at[np.r_[0, cuts + 1]], at[np.r_[cuts, len(at) - 1]] + 1
    return [(int(first), int(end)) for first, end in zip(firsts, ends, strict=True)]


def letters(channel: Pcm, alphabet: str) -> str:
    """The letter whose tone is heard in each 20 ms. A run begins and ends anywhere, and the few samples of it that
    stand alone in a piece have no pitch: they are taken as silence."""
    n = len(channel) // 160
    pieces = channel[: n * 160].reshape(n, 160)
    is_short = np.count_nonzero(np.abs(pieces.astype(int)) > 300, axis=1) < 8
    channel = np.where(is_short[:, None], 0, pieces).ravel()
    return tones_in([encode_ulaw(channel[i * 160 : i * 160 + 160].astype(np.int16)) for i in range(n)], alphabet)


@pytest.mark.parametrize("how", ["asked", "all"])
def test_both_channels_have_what_each_said_where_it_was_said(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        options = {"record": "on"} if how == "asked" else {}
        async with recording(tmp_path, calls=how) as rig, rig.bot(call="CA1", **options) as bot:
            begun = await bot.event("recording", state="started")
            async with dialling(TimedPeer, rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.event("call")
                await bot.say("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "t1")
                await peer.hears(10)
                said_s = time.monotonic()
                speaking = asyncio.create_task(peer.speak(tone(CALLER_HZ, 30)))
                await peer.hears(30)
                await bot.send({"type": "clear"})
                await bot.event("cleared", turn="t1")
                n_first = len(peer.played)
                await speaking
                await bot.say("zzzzz", "t2")
                await bot.event("done", turn="t2")
                await peer.hang_up()
                ended = await bot.event("recording", state="ended")
                heard_s = list(peer.heard_s)
        assert ended["file"] == begun["file"] and ended["reason"] == "call_ended"
        pcm, rows = read(tmp_path)
        assert abs(len(pcm) / 8 - ended["length_ms"]) < 1
        ((left, left_end),) = loud(pcm[:, 0])
        # Our encoder's own silence at both ends of a tone is not loud.
        assert abs((left_end - left) - 30 * 160) <= 160
        wanted = np.sin(2 * np.pi * CALLER_HZ * np.arange(30 * 160) / 8000)
        best = max(np.corrcoef(pcm[left + k : left + k + len(wanted), 0], wanted)[0, 1] for k in range(-8, 8))
        assert best > 0.999, "nothing is missing inside"
        first, *_, second = loud(pcm[:, 1])
        text = letters(pcm[:, 1], "az").strip()
        assert set(text.split()) and text.startswith("aa") and text.endswith("zz")
        n_first_heard = text.rstrip("z").rstrip().count("a")
        assert abs(n_first_heard - n_first) <= 3, "up to the clear, and not what the clear threw away"
        place = first[0] / 8000
        assert abs((left / 8000 - place) - (said_s - heard_s[0])) < 0.06
        assert abs((second[0] / 8000 - place) - (heard_s[n_first] - heard_s[0])) < 0.06
        kinds = [row["type"] for row in rows]
        assert kinds[0] == "recording" and kinds[-1] == "ended" and rows[-1]["reason"] == "call_ended"
        say = next(row for row in rows if row["type"] == "say")
        assert (say["by"], say["turn"]) == ("bot", "t1") and say["text"].startswith("aaa")
        for kind in ("started", "sentence", "clear", "cleared", "emptied", "heard", "caller_audio", "done", "hangup"):
            assert kind in kinds, kind

    run(main)


def test_a_call_on_one_socket_has_a_silent_caller_and_the_bot_can_stop_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path) as rig, rig.bot() as bot:
            await bot.send({"type": "record", "action": "stop"})
            assert (await bot.event("warning"))["code"] == "recording_unchanged"
            await bot.send({"type": "record", "action": "start"})
            await bot.event("recording", state="started")
            await bot.send({"type": "record", "action": "start"})
            assert (await bot.event("warning"))["code"] == "recording_unchanged"
            await bot.say("aaaaa", "t1")
            await bot.event("done", turn="t1")
            await bot.send({"type": "record", "action": "stop"})
            ended = await bot.event("recording", state="ended")
            assert ended["reason"] == "stopped"
            await bot.say("zzzzz", "t2")
            await bot.event("done", turn="t2")
        pcm, _ = read(tmp_path)
        assert not pcm[:, 0].any()
        assert set(letters(pcm[:, 1], "az").strip()) == {"a"}, "what came after the stop is not in it"

    run(main)


class SlowFolder:
    """A folder whose files are created as late as it is told. With `error` they cannot be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, delay_s: float = 0.2, error: OSError | None = None) -> None:
        self.free = threading.Event()
        create = folders.create

        def slowly(path: Path) -> int:
            self.free.wait(delay_s)
            if error is not None:
                raise error
            return create(path)

        monkeypatch.setattr(folders, "create", slowly)


START, STOP = ({"type": "record", "action": action} for action in ("start", "stop"))


def recordings_told(bot: Bot) -> list[tuple[str, str]]:
    return [(event["state"], event["file"]) for event in bot.events if event["type"] == "recording"]


def test_a_recording_whose_end_is_told_is_there_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with recording(tmp_path) as rig, rig.bot() as bot:
            SlowFolder(monkeypatch)
            await bot.send(START)
            await bot.event("recording", state="started")
            await bot.send(STOP)
            ended = await bot.event("recording", state="ended")
            pcm, rows = read(tmp_path)
            assert ended["reason"] == "stopped" and len(pcm) * 1000 // 8000 == ended["length_ms"]
            assert (rows[-1]["type"], rows[-1]["reason"]) == ("ended", "stopped")

    run(main)


def test_a_recording_that_fails_after_its_end_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bot has stopped it before the writer knows that there is no descriptor."""

    async def main() -> None:
        before = metrics.value("telephony_tts_recordings_total", reason="write_failed")
        async with recording(tmp_path) as rig, rig.bot() as bot:
            SlowFolder(monkeypatch, error=OSError(errno.EMFILE, "too many open files"))
            await bot.send(START)
            await bot.event("recording", state="started")
            await bot.send(STOP)
            ended = await bot.event("recording", state="ended")
            assert (ended["reason"], ended["length_ms"]) == ("write_failed", 0)
        assert metrics.value("telephony_tts_recordings_total", reason="write_failed") == before + 1

    run(main)
    assert not list(tmp_path.iterdir())


def test_each_end_comes_before_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with recording(tmp_path) as rig, rig.bot() as bot:
            disk = SlowFolder(monkeypatch, delay_s=10)
            for message in (START, STOP, START, STOP, START, STOP):
                await bot.send(message)
            await bot.send(STOP)
            assert (await bot.event("warning"))["code"] == "recording_unchanged", "the last one is stopped already"
            assert [state for state, _ in recordings_told(bot)] == ["started"]
            disk.free.set()
            for _ in range(3):
                await bot.event("recording", state="ended")
            told = recordings_told(bot)
            assert [state for state, _ in told] == ["started", "ended"] * 3
            assert [file for _, file in told[::2]] == [file for _, file in told[1::2]]
            assert len({file for _, file in told}) == 3

    run(main)


@pytest.mark.parametrize("ends", ["stops it and closes", "closes", "hangs up", "crash", "drain"])
def test_the_end_of_a_recording_is_told_before_the_close(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "_WRITTEN_WITHIN_S", 5)  # the machine that runs this may be busy
    SlowFolder(monkeypatch, delay_s=0.05)

    async def main() -> None:
        async with recording(tmp_path) as rig, rig.bot(call="CA1") as bot:
            async with dialling(TimedPeer, rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.event("call")
                await bot.send(START)
                await bot.event("recording", state="started")
                (call,) = rig.server.registry.calls()
                if ends == "crash":
                    call.session.receive = None  # type: ignore[assignment]  # an error of ours
                if ends == "stops it and closes":
                    await bot.send(STOP)
                if ends == "hangs up":
                    await peer.hang_up()
                elif ends == "drain":
                    await rig.server.drain()
                else:
                    await bot.send({"type": "close"})
                await bot.gone()
            (ended,) = (event for event in bot.events if event.get("state") == "ended")
            assert ended["reason"] == ("stopped" if ends == "stops it and closes" else "call_ended")
            assert bot.closed is not None and bot.closed[0] == {"crash": 1011, "drain": 1001}.get(ends, 1000)
            pcm, rows = read(tmp_path)
            assert len(pcm) * 1000 // 8000 == ended["length_ms"] and rows[-1]["type"] == "ended"

    run(main)


def test_a_bot_that_was_dialled_is_told_before_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is a task of the call, and all of those end with the call."""
    monkeypatch.setattr(call_module, "_WRITTEN_WITHIN_S", 5)
    SlowFolder(monkeypatch, delay_s=0.05)

    async def main() -> None:
        recordings = Recordings(RecordingSettings(folder=str(tmp_path)))
        recordings.open()
        try:
            async with dialled() as (rig, bot, _):
                (call,) = rig.server.registry.calls()
                call.recordings = recordings
                await bot.send(START)
                await bot.event("recording", state="started")
                await bot.send({"type": "close"})
                await bot.gone()
                assert [state for state, _ in recordings_told(bot)] == ["started", "ended"]
                assert bot.closed == (1000, "closed")
        finally:
            await recordings.close()

    run(main)


def test_a_call_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes without the end of its recording, and only the last block of the recording waits for the disk."""

    async def main() -> None:
        before = metrics.value("telephony_tts_recordings_total", reason="call_ended")
        async with recording(tmp_path, calls="all") as rig:
            disk = SlowFolder(monkeypatch, delay_s=30)
            async with rig.bot(audio="binary") as bot:
                (call,) = rig.server.registry.calls()
                await bot.event("recording", state="started")
                begin_s = time.monotonic()
                await bot.send({"type": "close"})
                await bot.gone()
                assert time.monotonic() - begin_s < 0.5
            assert [state for state, _ in recordings_told(bot)] == ["started"], "it is not known yet how it ends"
            await rig.empty()
            left = weakref.ref(call)
            del call
            gc.collect()
            assert left() is None, "the call's memory is free"
            disk.free.set()
            await until(
                lambda: metrics.value("telephony_tts_recordings_total", reason="call_ended") == before + 1, "the end"
            )
            pcm, rows = read(tmp_path)
            assert rows[-1]["type"] == "ended" and len(pcm) * 1000 // 8000 == rows[-1]["length_ms"]

    run(main)


def test_two_calls_with_one_id_and_ids_that_are_paths(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "recordings"
        async with recording(folder, calls="all") as rig:
            for call in ("c1", "c1", "..", "a.b:c"):
                async with rig.bot(call=call, audio="binary") as bot:
                    await bot.event("recording", state="started")
                await until(lambda: not len(rig.server.registry), "calls left")
        names = sorted(path.name for path in folder.iterdir())
        assert len(names) == 8 and sum("Z-c1-" in name for name in names) == 4
        assert sum("Z-__-" in name for name in names) == sum("Z-a_b_c-" in name for name in names) == 2
        assert os.listdir(tmp_path) == ["recordings"]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}

    run(main)


def test_a_server_without_recordings_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(record="on") as bot:
            assert (await bot.event("warning"))["code"] == "recording_unavailable"
            await bot.say("a")
            await bot.event("done")

    run(main)


def test_a_folder_that_goes_away_ends_recordings_and_no_call(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "recordings"
        before = metrics.value("telephony_tts_recordings_total", reason="write_failed")
        async with recording(folder) as rig, rig.bot(record="on") as bot:
            await bot.event("recording", state="started")
            await until(lambda: len(list(folder.iterdir())) == 2, "the files")
            for path in [*folder.iterdir(), folder]:
                path.rmdir() if path.is_dir() else path.unlink()
            assert (await bot.event("recording", state="ended"))["reason"] == "write_failed"
            await bot.say("aaa", "t1")
            await bot.event("done", turn="t1")
            await bot.send({"type": "record", "action": "start"})
            await bot.event("recording", state="started")
            assert (await bot.event("recording", state="ended"))["reason"] == "write_failed"
        assert metrics.value("telephony_tts_recordings_total", reason="write_failed") == before + 2

    run(main)


def test_a_long_call_is_recorded_up_to_max_s(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path, max_s=1) as rig, rig.bot(record="on") as bot:
            ended = await bot.event("recording", state="ended")
            assert (ended["reason"], ended["length_ms"]) == ("max_s", 1000)
            await bot.say("a", "t1")
            await bot.event("done", turn="t1")
        pcm, rows = read(tmp_path)
        assert len(pcm) == 8000 and rows[-1]["reason"] == "max_s"

    run(main)


def test_a_server_that_is_killed_leaves_files_that_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "recordings"
        settings = ("--set", f"recordings.folder={folder}", "--set", "recordings.calls=all")
        with process(*settings, log=tmp_path / "log") as (server, port):
            async with greeted(f"ws://127.0.0.1:{port}/v1/stream") as bot:
                await bot.say("a" * 90, "t1")
                await until(lambda: list(folder.glob("*.wav")), "a file", 15)
                (wav,) = folder.glob("*.wav")
                await until(lambda: wav.stat().st_size > 44 + 2 * 32_000, "seconds of recording", 15)
                os.kill(server.pid, signal.SIGKILL)
                await bot.gone()
        pcm, rows = read(folder)
        assert len(pcm) >= 8000 and np.abs(pcm[:, 1]).max() > 1000
        assert rows[0]["type"] == "recording"

    run(main)
