"""Phrases that are kept: the same chunks again, and nothing that must not be kept."""

from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clean_run import until
from conformance import Subject, assert_keeps_the_contract

from telephony_tts.engines import phrase_store
from telephony_tts.engines.api import Chunk, Engine, Timing, Utterance
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.phrase_store import FOLDER, FORMAT, DamagedPhrase, PhraseStore, from_bytes, to_bytes
from telephony_tts.engines.phrases import PhraseKeeper
from telephony_tts.runtime.errors import ConfigError, EngineError
from telephony_tts.runtime.metrics import value

pytest.importorskip("diskcache")
pytestmark = pytest.mark.slow  # threads and files

MB = 1_000_000
HELLO = Utterance("u", "Thank you for calling, how can I help you today?", voice="tone", lang="en")
ENDLESS = Subject(max_s_of_endless_word=601.0)


class Counting(FakeEngine):
    """Counts what it has to speak. Its speech is another one each time, as that of an engine that samples."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.n_asked = 0
        self.model = "1"

    def version(self, voice: str) -> str:
        return self.model

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.n_asked += 1
        n = self.n_asked
        async for chunk in super().synthesize(utterance):
            yield replace(chunk, pcm=(chunk.pcm // (n + 1)).astype(np.int16), queued_ns=7)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


async def speak(engine: Engine, utterance: Utterance = HELLO) -> list[Chunk]:
    return [chunk async for chunk in engine.synthesize(utterance)]


def assert_same(a: list[Chunk], b: list[Chunk]) -> None:
    assert len(a) == len(b) > 0
    for one, other in zip(a, b, strict=True):
        assert np.array_equal(one.pcm, other.pcm) and one.pcm.dtype == other.pcm.dtype
        assert (one.sample_rate_hz, one.timings, one.estimates) == (
            other.sample_rate_hz, other.timings, other.estimates,
        )  # fmt: skip


async def keeper(folder: Path | None = None, *, digits: bool = False, memory: int = 8 * MB, disk: int = 50 * MB,
                 at_once: bool = False) -> tuple[PhraseKeeper, Counting, PhraseStore]:  # fmt: skip
    engine, store = Counting(), PhraseStore(memory, folder, disk, writes_at_once=at_once)
    store.wait_s = 20.0  # a busy machine's disk takes longer than a call would wait
    kept = PhraseKeeper(engine, store, digits=digits)
    await kept.start()
    return kept, engine, store


# --------------------------------------------------------------------- contract


def test_it_keeps_the_contract_of_an_engine() -> None:
    assert_keeps_the_contract(lambda: PhraseKeeper(FakeEngine(), PhraseStore(50 * MB)), ENDLESS)


def test_it_keeps_the_contract_with_a_disk(tmp_path: Path) -> None:
    def new() -> Engine:
        return PhraseKeeper(FakeEngine(), PhraseStore(2 * MB, tmp_path, 50 * MB, writes_at_once=True))

    assert_keeps_the_contract(new, ENDLESS)
    assert_keeps_the_contract(new, ENDLESS)  # now from disk


# --------------------------------------------------------------------- memory


def test_a_phrase_is_said_with_the_very_same_chunks() -> None:
    async def main() -> None:
        kept, engine, store = await keeper()
        first = await speak(kept)
        again = await speak(kept, replace(HELLO, id="other", call="c", turn="t", deadline_ns=5, follows=True))
        assert_same(first, again)
        assert engine.n_asked == 1 and all(chunk.queued_ns == 0 for chunk in again)
        assert store.n_found == {"made": 1, "memory": 1}
        with pytest.raises(ValueError, match="read-only"):
            again[0].pcm[0] = 1
        await kept.close()

    run(main)


@pytest.mark.parametrize(
    "change",
    [{"text": "Good bye."}, {"voice": "other"}, {"speed": 1.1}, {"seed": 4}, {"instruct": "slowly"}, {"lang": "de"}],
)
def test_another_voice_or_setting_is_another_phrase(change: dict[str, Any]) -> None:
    async def main() -> None:
        engine = Counting(voice_names=("tone", "other"))
        kept = PhraseKeeper(engine, PhraseStore(8 * MB))
        await kept.start()
        await speak(kept)
        await speak(kept, replace(HELLO, **change))
        await speak(kept, replace(HELLO, **change))
        assert engine.n_asked == 2
        engine.model = "2"
        await speak(kept)
        assert engine.n_asked == 3, "another model speaks"
        engine.model = None  # type: ignore[assignment]
        await speak(kept)
        await speak(kept)
        assert engine.n_asked == 5, "a voice that is changing is not kept"
        await kept.close()

    run(main)


def test_private_text_and_digits_are_not_kept() -> None:
    async def main() -> None:
        for digits, secret, n_asked in (
            (False, {"is_private": True}, 2),
            (True, {"is_private": True}, 2),
            (False, {"has_digits": True}, 2),
            (True, {"has_digits": True}, 1),
        ):
            kept, engine, store = await keeper(digits=digits)
            for _ in range(2):
                await speak(kept, replace(HELLO, **secret))
            assert engine.n_asked == n_asked and (store.n_bytes == 0) is (n_asked == 2)
            await speak(kept)
            before = engine.n_asked
            await speak(kept, replace(HELLO, is_private=True))
            assert engine.n_asked == before + 1, "private text is not looked for either"
            await kept.close()

    run(main)


def test_an_utterance_that_was_cancelled_or_failed_is_not_kept() -> None:
    async def main() -> None:
        kept, engine, store = await keeper()
        for n_taken in range(1, len(await speak(kept, replace(HELLO, is_private=True))) + 1):
            stream = kept.synthesize(HELLO)
            for _ in range(n_taken):
                await anext(stream)
            await stream.aclose()
        assert store.n_bytes == 0
        engine.fail_after_chunks = 3
        with pytest.raises(EngineError):
            await speak(kept)
        assert store.n_bytes == 0
        engine.fail_after_chunks = None
        await speak(kept)
        assert store.n_bytes > 0
        await kept.close()

    run(main)


def test_memory_is_bounded_and_the_least_recent_phrase_goes_first() -> None:
    async def main() -> None:
        kept, engine, store = await keeper(memory=1_300_000)
        texts = [f"{word} thank you for calling us today." for word in ("One", "Two", "Three", "Four")]
        for text in texts:  # about 105 kB each
            await speak(kept, replace(HELLO, text=text))
        for n in range(12):
            await speak(kept, replace(HELLO, text=texts[0]))
            await speak(kept, replace(HELLO, text=f"Number {'abcdefghijkl'[n]} thank you for calling us today."))
            assert store.n_bytes <= store.memory_bytes
            assert value("telephony_tts_phrase_bytes") == store.n_bytes
        n_asked = engine.n_asked
        await speak(kept, replace(HELLO, text=texts[0]))
        assert engine.n_asked == n_asked
        await speak(kept, replace(HELLO, text=texts[1]))
        assert engine.n_asked == n_asked + 1
        await speak(kept, replace(HELLO, text="word " * 400))
        assert store.n_bytes <= store.memory_bytes, "a phrase that is too large is not kept"
        assert store.n_bytes == sum(each.n_bytes for each in store._kept.values())
        await kept.close()

    run(main)


# ----------------------------------------------------------------------- disk


def test_a_phrase_survives_a_restart_once_it_was_said_twice(tmp_path: Path) -> None:
    async def main() -> None:
        kept, _, _ = await keeper(tmp_path)
        first = await speak(kept)
        await kept.close()
        kept, engine, store = await keeper(tmp_path)
        first = await speak(kept)
        assert engine.n_asked == 1, "once said, it is in memory only"
        await speak(kept)
        await kept.close()
        kept, engine, store = await keeper(tmp_path)
        for _ in range(2):
            assert_same(await speak(kept), first)
        assert engine.n_asked == 0 and store.n_found == {"disk": 1, "memory": 1}
        await kept.close()

    run(main)


def test_bytes_of_a_phrase_are_read_back_or_refused() -> None:
    phrase = (
        Chunk(np.arange(-50, 50, dtype=np.int16), 24_000, (Timing(0, 3, 0, 40), Timing(4, 5, 41, 99))),
        Chunk(np.zeros(0, np.int16), 22_050),
        Chunk(np.full(7, -32768, np.int16), 8_000, estimates=True),
    )
    data = to_bytes(phrase)
    assert_same(list(from_bytes(data)), list(phrase))
    for bad in (b"", data[:-1], data[:40], data[1:], b"x" * 100, data[:60] + b"!" + data[61:], None, 3, "text",
                b"TTSPHRASE9\n" + data[len(FORMAT):]):  # fmt: skip
        with pytest.raises(DamagedPhrase):
            from_bytes(bad)


def records(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).rglob("*.val"))


@pytest.mark.parametrize("fault", ["truncated", "garbage", "other version", "gone", "pickled", "marked as text"])
def test_a_damaged_phrase_is_removed_and_made_again(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        kept, engine, _ = await keeper(tmp_path, at_once=True)
        await speak(kept)
        other = replace(HELLO, text="Another sentence of some length.")
        await speak(kept, other)
        key = kept.key(HELLO)
        await kept.close()
        assert len(records(tmp_path)) == 2
        if fault == "pickled":
            import diskcache

            with diskcache.Cache(str(tmp_path / FOLDER)) as raw:
                raw.set(key, {"evil": [1]})
        if fault == "marked as text":
            with sqlite3.connect(tmp_path / FOLDER / "cache.db") as index:
                index.execute("UPDATE Cache SET mode = 3")  # diskcache.core.MODE_TEXT
            index.close()
        for path in records(tmp_path):
            data = path.read_bytes()
            if fault == "truncated":
                path.write_bytes(data[: len(data) // 2])
            elif fault == "garbage":
                path.write_bytes(b"\xff" * len(data))
            elif fault == "other version":
                path.write_bytes(b"TTSPHRASE9\n" + data[len(FORMAT) :])
            elif fault == "gone":
                path.unlink()
        kept, engine, _ = await keeper(tmp_path, at_once=True)
        assert len(await speak(kept)) > 2 and engine.n_asked == 1
        await speak(kept, other)
        await kept.close()
        assert len([line for line in caplog.messages if "cannot be read" in line]) <= 1
        if fault not in ("gone", "pickled"):
            assert "is removed" in caplog.text
        kept, engine, _ = await keeper(tmp_path)
        await speak(kept)
        assert engine.n_asked == 0, "it was made again and kept"
        await kept.close()

    with caplog.at_level(logging.WARNING):
        run(main)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xee" * 5000])
def test_a_damaged_index_is_made_anew(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        kept, _, _ = await keeper(tmp_path, at_once=True)
        await speak(kept)
        await kept.close()
        for path in (tmp_path / FOLDER).glob("cache.db*"):
            path.write_bytes(content)
        kept, engine, _ = await keeper(tmp_path, at_once=True)
        await speak(kept)
        await kept.close()
        assert engine.n_asked == 1 and "removed and made again" in caplog.text
        kept, engine, _ = await keeper(tmp_path)
        await speak(kept)
        assert engine.n_asked == 0
        await kept.close()

    with caplog.at_level(logging.WARNING):
        run(main)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("database or disk is full")]
)
def test_a_full_disk_touches_no_call(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        import diskcache

        def full(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(diskcache.Cache, "set", full)
        kept, engine, store = await keeper(tmp_path, at_once=True)
        for n in range(5):
            first = await speak(kept, replace(HELLO, text=f"Hello {'abcde'[n]}, thank you."))
            assert_same(await speak(kept, replace(HELLO, text=f"Hello {'abcde'[n]}, thank you.")), first)
        await store.written()
        assert engine.n_asked == 5
        assert len([line for line in caplog.messages if "cannot be written" in line]) == 1
        await kept.close()

    with caplog.at_level(logging.WARNING):
        run(main)


@pytest.mark.parametrize("refusal", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_a_phrase_that_could_not_be_written_is_written_when_it_is_said_again(
    refusal: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one write fails in `_WRITE_AGAIN_S`, however often the phrase is said meanwhile."""

    async def main() -> None:
        import diskcache

        now_ns, n_failed = 10**12, 0
        monkeypatch.setattr(phrase_store, "monotonic_ns", lambda: now_ns, raising=False)

        def full(*_: object, **__: object) -> None:
            nonlocal n_failed
            n_failed += 1
            raise refusal

        kept, _, store = await keeper(tmp_path, at_once=True)
        with monkeypatch.context() as now:
            now.setattr(diskcache.Cache, "set", full)
            for _ in range(5):
                first = await speak(kept)
                await store.written()
                await asyncio.sleep(0)
                now_ns += 1
        assert n_failed == 1
        now_ns += int(phrase_store._WRITE_AGAIN_S * 1e9)
        await speak(kept)
        await kept.close()
        kept, engine, _ = await keeper(tmp_path)
        assert_same(await speak(kept), first)
        assert engine.n_asked == 0
        await kept.close()

    run(main)


def test_a_phrase_that_cannot_be_read_for_want_of_memory_is_synthesised_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(data: object) -> Any:
        raise MemoryError

    async def main() -> None:
        kept, _, _ = await keeper(tmp_path, at_once=True)
        first = await speak(kept)
        await kept.close()
        kept, engine, _ = await keeper(tmp_path)
        with monkeypatch.context() as now:
            now.setattr(phrase_store, "from_bytes", refuse)
            assert len(await speak(kept)) > 2 and engine.n_asked == 1
        assert "cannot be read in" in caplog.text and "is removed" not in caplog.text
        await kept.close()
        kept, engine, _ = await keeper(tmp_path)
        assert_same(await speak(kept), first)
        assert engine.n_asked == 0
        await kept.close()

    run(main)


def test_a_disk_that_does_not_answer_delays_speech_only_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        import threading

        import diskcache

        free = threading.Event()
        kept, engine, store = await keeper(tmp_path, at_once=True)
        store.wait_s = PhraseStore(MB).wait_s
        monkeypatch.setattr(diskcache.Cache, "get", lambda *_: free.wait(20) and None)
        chunks = await asyncio.wait_for(speak(kept), 5)
        assert len(chunks) > 2 and engine.n_asked == 1
        free.set()
        await kept.close()

    run(main)


def test_a_folder_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")

    async def main() -> None:
        for folder in (file, file / "below", Path("/proc/no/such")):
            with pytest.raises(ConfigError, match=f"phrases.folder: {folder} cannot be used to keep phrases: "):
                await keeper(folder)

    run(main)


def say_some(folder: str, words: list[str]) -> None:
    """A server: says each sentence twice."""

    async def main() -> None:
        kept, _, store = await keeper(Path(folder), at_once=True)
        for word in words * 2:
            await speak(kept, replace(HELLO, text=f"Hello {word}, thank you for calling."))
            await store.written()
        await kept.close()

    asyncio.run(main())


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    words = [[f"{name} {letter}" for letter in "abcdefghij"] for name in ("one", "two", "both")]
    spawn = multiprocessing.get_context("spawn")
    servers = [spawn.Process(target=say_some, args=(str(tmp_path), [*own, *words[2]])) for own in words[:2]]
    for server in servers:
        server.start()
    for server in servers:
        server.join(60)
    assert [server.exitcode for server in servers] == [0, 0]

    async def main() -> None:
        kept, engine, _ = await keeper(tmp_path)
        for word in (word for own in words for word in own):
            assert len(await speak(kept, replace(HELLO, text=f"Hello {word}, thank you for calling."))) > 2
        assert engine.n_asked == 0
        await kept.close()

    run(main)


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        kept, _, store = await keeper(tmp_path, disk=2 * MB, at_once=True)
        for n in range(60):
            await speak(kept, replace(HELLO, text=f"{n} " + HELLO.text, voice="tone"))
            await store.written()
        await kept.close()
        n_bytes = sum(path.stat().st_size for path in (tmp_path / FOLDER).rglob("*.val"))
        assert 1 * MB < n_bytes < 2.2 * MB

    run(main)


def test_a_crafted_index_runs_nothing_and_touches_nothing_outside(tmp_path: Path) -> None:
    from telephony_tts.engines.phrase_store import open_cache

    folder, victim, ran = tmp_path / FOLDER, tmp_path / "victim", tmp_path / "ran"
    folder.mkdir()
    victim.write_bytes(b"mine")
    with open_cache(folder, MB) as cache:
        cache.set("k", b"x" * 50_000)
    pickled = f"cos\nmkdir\n(S'{ran}'\ntR.".encode()
    with sqlite3.connect(folder / "cache.db") as index:
        index.execute("UPDATE Cache SET filename = '../victim'")
        index.execute(
            "INSERT INTO Cache(key, raw, store_time, mode, size, access_time, access_count, value)"
            " VALUES (?, 0, 1, 1, 0, 1, 0, 'v')",
            (pickled,),
        )
    index.close()
    with open_cache(folder, MB) as cache, pytest.raises(DamagedPhrase):
        cache.get("k")
    assert PhraseStore(MB, tmp_path, MB).on_disk(clear=True)[0] == ["k", "(not a phrase)"]
    assert not ran.exists() and victim.read_bytes() == b"mine"


def test_speech_needs_no_new_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may refuse threads while it has no memory. What a store needs of them it has from the start."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        kept, engine, store = await keeper(tmp_path, at_once=True)
        with monkeypatch.context() as only_now:
            only_now.setattr(threading.Thread, "start", refuse)
            first = await speak(kept)
            await store.written()
            store._kept.clear()
            assert_same(await speak(kept), first)
        assert engine.n_asked == 1
        await kept.close()

    run(main)


def test_a_store_whose_reader_gets_no_thread_says_so_and_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if "read" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        store = PhraseStore(MB, tmp_path, MB)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConfigError, match="no thread can be started for it: can't start new thread"):
            await store.open()
        monkeypatch.undo()
        await until(lambda: not any(each.name.startswith("phrases-") for each in threading.enumerate()), "its end")
        await store.open()
        await store.close()

    run(main)


def test_other_users_cannot_reach_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o755)

    async def main() -> None:
        kept, _, _ = await keeper(tmp_path, at_once=True)
        await speak(kept)
        await kept.close()

    run(main)
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_not_there_is_an_error_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        PhraseStore(MB, tmp_path / "typo", MB).on_disk()


def test_a_disk_that_hangs_does_not_keep_the_process() -> None:
    import subprocess
    import sys

    code = (
        "import time; from telephony_tts.runtime.daemon_pool import DaemonPool; "
        "DaemonPool(1, 'x').submit(time.sleep, 60)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0
