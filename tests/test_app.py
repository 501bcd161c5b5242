"""The composition root: what it closes, and what it keeps up, when a part fails."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from clean_run import until
from log_lines import lines

from telephony_tts.app import config
from telephony_tts.app.examination import findings
from telephony_tts.app.reloads import Reloads
from telephony_tts.app.serving import Served, serve
from telephony_tts.app.settings import open_keys, transport_settings
from telephony_tts.app.spans import close_tracing
from telephony_tts.engines.catalog import Catalog
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.ops.watched_file import WatchedFile
from telephony_tts.recording.live import Recordings
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.errors import EngineError, SoundError
from telephony_tts.transport import sound_store

pytestmark = pytest.mark.slow


def test_recordings_are_closed_although_an_engine_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def cannot_close(catalog: Catalog) -> None:
        closed.append("engines")
        raise RuntimeError("the engine hangs")

    close_recordings = Recordings.close

    async def close(recordings: Recordings) -> None:
        closed.append("recordings")
        await close_recordings(recordings)

    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda engine: False)
    monkeypatch.setattr(Catalog, "close", cannot_close)
    monkeypatch.setattr(Recordings, "close", close)
    flags = {"engines.default": "fake", "server.port": 0, "recordings.folder": str(tmp_path / "kept")}
    settings = config.load(None, flags, environ={})

    def stop(served: Served) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(RuntimeError, match="the engine hangs"):
        asyncio.run(asyncio.wait_for(serve(settings, stop), 20))
    assert closed == ["engines", "recordings"]


def test_lexicons_are_checked_again_after_a_check_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "brands.yaml"
    file.write_text("SQL: sequel\n")
    lexicons = LexiconFiles({"brands": str(file)})
    reload = LexiconFiles.reload
    n_checks = 0

    def fails_first(files: LexiconFiles) -> None:
        nonlocal n_checks
        n_checks += 1
        if n_checks == 1:
            raise MemoryError("no memory for a moment")
        reload(files)

    monkeypatch.setattr(LexiconFiles, "reload", fails_first)

    async def main() -> None:
        reloads = Reloads()
        reloads.add(lexicons.reload, lambda _: None, 0.01)
        with reloads.running():
            file.write_text("SQL: sequel\nGIF: jif\n")
            await until(lambda: lexicons.shelf["brands"].n_entries == 2, "the file is read again")

    asyncio.run(main())
    assert "files_not_checked" in caplog.text


@pytest.mark.parametrize("refused", ["thread", "use"])
def test_keys_that_were_refused_once_are_used_soon_after_one_hangup_signal(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without memory or threads must not leave a revoked key in use."""
    monkeypatch.setattr("telephony_tts.app.reloads._RELOAD_AGAIN_S", 0.05, raising=False)
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {a: {token: one}}")
    settings = config.load(None, {"keys.file": str(file), "keys.check_s": 0}, {})
    keys = open_keys(settings)
    assert keys is not None
    ring = transport_settings(settings, keys=keys).keys
    start, use = threading.Thread.start, ring.replace
    refusals = {"thread": [RuntimeError("can't start new thread")], "use": [MemoryError()]}[refused]

    def starts(thread: threading.Thread) -> None:
        if refused == "thread" and refusals:
            raise refusals.pop()
        start(thread)

    def uses(content: object) -> None:
        if refused == "use" and refusals:
            raise refusals.pop()
        use(content)  # type: ignore[arg-type]

    async def main() -> None:
        reloads = Reloads()
        reloads.add(keys.reload, uses, settings.keys.check_s)
        with reloads.running():
            file.write_text("keys: {b: {token: two}}")
            monkeypatch.setattr(threading.Thread, "start", starts)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "files_not_checked" in caplog.text, "it was refused")
            await until(lambda: ring.find(b"two") is not None, "the keys are used")
            assert ring.find(b"one") is None

    asyncio.run(main())
    assert caplog.text.count("files_not_checked") == 1


@pytest.mark.parametrize("refused", ["thread", "use"])
def test_a_check_that_was_refused_loses_no_content(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next check uses it, although the file has not changed again."""
    file, used = tmp_path / "file", []
    file.write_text("first")
    watched = WatchedFile("keys", file, Path.read_text)
    start = threading.Thread.start
    refusals = [RuntimeError("can't start new thread")]

    def starts(thread: threading.Thread) -> None:
        if refused == "thread" and refusals:
            raise refusals.pop()
        start(thread)

    def uses(content: str) -> None:
        if refused == "use" and refusals:
            raise refusals.pop()
        used.append(content)

    async def main() -> None:
        reloads = Reloads()
        reloads.add(watched.reload, uses, 0.01)
        file.write_text("second")
        monkeypatch.setattr(threading.Thread, "start", starts)
        with reloads.running():
            await until(lambda: bool(used), "it is used")
            await asyncio.sleep(0.05)

    asyncio.run(main())
    assert used == ["second"] and not refusals


def test_a_hangup_signal_has_files_read_at_once(tmp_path: Path) -> None:
    """`check_s` 0 leaves them alone otherwise."""
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {a: {token: one}}")
    settings = config.load(None, {"keys.file": str(file), "keys.check_s": 0}, {})
    keys = open_keys(settings)
    assert keys is not None
    ring = transport_settings(settings, keys=keys).keys

    async def main() -> None:
        reloads = Reloads()
        reloads.add(keys.reload, ring.replace, settings.keys.check_s)
        with reloads.running():
            file.write_text("keys: {a: {token: two}, b: {token: three}}")
            await asyncio.sleep(0.1)
            assert ring.find(b"two") is None
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: ring.find(b"two") is not None, "the keys are read again")
            assert ring.find(b"one") is None

    asyncio.run(main())


def test_the_end_of_a_server_goes_on_if_no_thread_can_send_the_last_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: it ended in a traceback."""

    class LastSpans:
        def close(self) -> None:
            raise AssertionError("it may take seconds, so it is not called in the event loop")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            await close_tracing(LastSpans())  # type: ignore[arg-type]

    asyncio.run(main())
    assert lines(caplog, "spans_lost") == [{"why": "can't start new thread"}]


def test_a_call_waits_less_for_a_sound_than_for_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late sound is left out of its turn. A late engine ends the turn."""
    end_of_wait = threading.Event()
    monkeypatch.setattr(sound_store, "INCLUDED", {"hold": lambda: end_of_wait.wait(20)})
    flags = {"engines.timeout_s": 5, "engines.stall_s": 4, "engines.restart_wait_s": 4}
    settings = config.load(None, flags, environ={})
    find_sound = transport_settings(settings).find_sound
    assert find_sound is not None

    async def main() -> None:
        async with asyncio.timeout(4.8):
            with pytest.raises(SoundError, match="did not come within"):
                await find_sound("hold").load(8_000)

    try:
        asyncio.run(main())
    finally:
        end_of_wait.set()


def test_an_examination_whose_process_ends_at_once_is_an_error_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop may have seen its end before the configuration is written, or not."""
    monkeypatch.setattr("telephony_tts.app.examination.sys", SimpleNamespace(executable="/bin/false"))
    settings = config.load(None, {}, {})

    async def main() -> None:
        for _ in range(25):
            with pytest.raises(EngineError, match="the examination failed"):
                await findings(settings)

    event_loop.run(main())
