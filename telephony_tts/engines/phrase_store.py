"""Where the audio of phrases is kept: in memory, and in a folder on disk.

Memory is read without waiting. The disk is read and written by two threads, never by the event loop. A phrase goes to
disk when it is asked for a second time, so that a language model's sentences, which do not come again, are not written.

A fault of the disk costs a synthesis, nothing more: what is damaged is removed and made again, and what cannot be
written is written later, if it is asked for again. Several servers may use one folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import sqlite3
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from telephony_tts.engines.api import Chunk, Timing
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.daemon_pool import DaemonPool
from telephony_tts.runtime.errors import ConfigError, how_to_get

if TYPE_CHECKING:
    from diskcache import Cache

log = logging.getLogger(__name__)

Phrase = tuple[Chunk, ...]
Result = TypeVar("Result")

FORMAT = b"TTSPHRASE1\n"
"""The beginning of each phrase on disk. Another version has another one."""
FOLDER = "phrases"
"""Below the folder that is configured. All in it is ours: if its index is damaged, it is removed."""
HOW_TO_GET = how_to_get("phrases")

_N_DIGEST = 16
_CHUNK_BYTES, _TIMING_BYTES = 400, 120
"""About what a chunk and a timing need besides the samples."""
_WAIT_S = 0.1
_CLOSE_S = 5.0
_MOST_JOBS = 64
"""The most reads, and the most writes, that may wait."""
_WRITE_AGAIN_S = 10.0
"""After a write that failed nothing is written for so long."""
_LOCKED_S = 1.0
"""How long a thread waits for another server that writes."""
_LARGEST = 8
"""A phrase that needs more than this part of the memory is not kept."""


class DamagedPhrase(Exception):
    """A phrase on disk that cannot be read. Never leaves this module."""


def to_bytes(phrase: Phrase) -> bytes:
    """A phrase as it is on disk: format, length of the head, head (JSON), samples, digest of all of that."""
    head = json.dumps(
        [
            [len(chunk.pcm), chunk.sample_rate_hz, chunk.estimates,
             [[t.start_char, t.end_char, t.start_sample, t.end_sample] for t in chunk.timings]]
            for chunk in phrase
        ]
    ).encode()  # fmt: skip
    body = b"".join([FORMAT, struct.pack("<I", len(head)), head, *(c.pcm.astype("<i2").tobytes() for c in phrase)])
    return body + hashlib.sha256(body).digest()[:_N_DIGEST]


def from_bytes(data: object) -> Phrase:
    """The phrase of `to_bytes`. Raises DamagedPhrase for anything else."""
    if not isinstance(data, bytes) or not data.startswith(FORMAT):
        raise DamagedPhrase("it was written by another version, or by another program")
    body, digest = data[:-_N_DIGEST], data[-_N_DIGEST:]
    if hashlib.sha256(body).digest()[:_N_DIGEST] != digest:
        raise DamagedPhrase("it is not complete")
    at = len(FORMAT) + 4
    n_head = struct.unpack_from("<I", body, len(FORMAT))[0]
    samples = np.frombuffer(body, "<i2", offset=at + n_head)
    chunks, n = [], 0
    for n_samples, rate_hz, estimates, timings in json.loads(body[at : at + n_head]):
        pcm = samples[n : n + n_samples].astype(np.int16)
        pcm.flags.writeable = False
        chunks.append(Chunk(pcm, rate_hz, tuple(Timing(*timing) for timing in timings), estimates=estimates))
        n += n_samples
    return tuple(chunks)


@dataclass(slots=True)
class _Kept:
    phrase: Phrase
    n_bytes: int
    is_on_disk: bool


class PhraseStore:
    """`memory_bytes` of phrases in memory and, with `folder`, `disk_bytes` on disk; the least recently used go first.

    With `writes_at_once` every phrase goes to disk when it is kept. `n_found` counts what was asked for: "memory",
    "disk", "made" (not found, and synthesised) and "not_kept" (of a kind that is not kept).
    """

    def __init__(
        self, memory_bytes: int, folder: Path | None = None, disk_bytes: int = 0, *, writes_at_once: bool = False
    ) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self._disk_bytes = disk_bytes
        self.writes_at_once = writes_at_once
        self.wait_s = _WAIT_S
        """How long speech waits for the disk. Then the phrase is synthesised."""
        self.n_found: Counter[str] = Counter()
        self.n_bytes = 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._disk: Cache | None = None
        self._reader: DaemonPool | None = None
        self._writer: DaemonPool | None = None
        self._n_reads = self._n_writes = 0
        self._write_after_ns = 0
        """No write begins before; see `_WRITE_AGAIN_S`."""
        self._complaints: set[str] = set()
        """The kinds of faults that have their line in the log."""

    # ------------------------------------------------------------- life

    async def open(self) -> None:
        """Open the folder. Raises ConfigError if it cannot be used. Idempotent."""
        if self.folder is None or self._writer is not None:
            return
        self._reader = DaemonPool(1, "phrases-read")
        self._writer = DaemonPool(1, "phrases-write")
        try:
            loop = asyncio.get_running_loop()
            self._disk = await loop.run_in_executor(self._writer, self._open)
            await loop.run_in_executor(self._reader, int)  # its thread starts now, when a refusal harms no call
        except RuntimeError as error:  # the machine refuses a thread
            await self.close()
            raise ConfigError(f"phrases.folder: no thread can be started for it: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Write what waits, and close. A disk that does not answer is left alone after a while. Idempotent."""
        pools, disk = [pool for pool in (self._reader, self._writer) if pool is not None], self._disk
        self._reader = self._writer = self._disk = None
        for pool in pools:
            try:
                # Each thread has a connection of its own.
                last = asyncio.get_running_loop().run_in_executor(pool, disk.close if disk is not None else int)
            except RuntimeError:  # it has no thread
                pool.shutdown(wait=False, cancel_futures=True)
                continue
            done, _ = await asyncio.wait((last,), timeout=_CLOSE_S)
            pool.shutdown(wait=bool(done), cancel_futures=True)

    def _open(self) -> Cache:
        """The open folder, in a thread. Raises ConfigError."""
        assert self.folder is not None
        path = self.folder / FOLDER
        try:
            # What callers hear is for this user alone: other users cannot reach anything below this folder.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            probe = path / ".writable"
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
            try:
                return open_cache(path, self._disk_bytes)
            except sqlite3.OperationalError:
                raise  # it cannot be opened or is locked: not ours to remove
            except sqlite3.DatabaseError as error:
                log.warning("the phrases in %s cannot be read (%s): they are removed and made again", path, error)
                shutil.rmtree(path)
                path.mkdir(mode=0o700)
                return open_cache(path, self._disk_bytes)
        except (OSError, sqlite3.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"phrases.folder: {self.folder} cannot be used to keep phrases: {why}") from error

    def on_disk(self, *, clear: bool = False) -> tuple[list[str], int]:
        """(the keys of all phrases on disk, the bytes that they need), for the command line; `clear` removes them.

        It waits for the disk. Raises ConfigError."""
        if self.folder is None:
            return [], 0
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder}: there is no such folder of phrases")
        if not (self.folder / FOLDER).is_dir():
            return [], 0
        disk = self._open()
        try:
            keys, n_bytes = [str(key) for key in disk], int(disk.volume())
            if clear:
                disk.clear(retry=True)
            return keys, n_bytes
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self.folder} cannot be read: {error}") from error
        finally:
            disk.close()

    # ------------------------------------------------------------- reading

    def recall(self, key: str) -> Phrase | None:
        """The phrase, if it is in memory. Takes microseconds."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        self.count("memory")
        if not kept.is_on_disk:
            self._write(key, kept)
        return kept.phrase

    async def fetch(self, key: str) -> Phrase | None:
        """The phrase, if it is on disk and comes in time."""
        disk, reader = self._disk, self._reader
        if disk is None or reader is None or self._n_reads >= _MOST_JOBS:
            return None
        self._n_reads += 1
        reading = asyncio.get_running_loop().run_in_executor(reader, self._read, disk, key)
        reading.add_done_callback(self._has_read)
        done, _ = await asyncio.wait((reading,), timeout=self.wait_s)
        phrase = reading.result() if done else None
        if phrase is not None:
            self._remember(key, phrase, is_on_disk=True)
            self.count("disk")
        return phrase

    def _has_read(self, _: object) -> None:
        self._n_reads -= 1

    def _read(self, disk: Cache, key: str) -> Phrase | None:
        """In the reader's thread."""

        def read() -> Phrase | None:
            try:
                data = disk.get(key)
                return None if data is None else from_bytes(data)
            except (ValueError, TypeError, KeyError, struct.error) as error:
                raise DamagedPhrase(str(error)) from error

        try:
            return self._guarded("read", read)
        except DamagedPhrase as error:
            self._complain("damaged", f"a kept phrase ({key}) cannot be read and is removed: {error}")
            self._guarded("removed", lambda: disk.delete(key))
            return None

    # ------------------------------------------------------------- writing

    def keep(self, key: str, phrase: Phrase) -> None:
        """Keep a phrase that was spoken to its end. Takes microseconds for each of its chunks."""
        kept = self._remember(key, phrase, is_on_disk=False)
        if kept is not None and self.writes_at_once:
            self._write(key, kept)

    def count(self, what: str) -> None:
        """Count what came of a sentence: see `n_found`."""
        self.n_found[what] += 1
        metrics.PHRASES.labels(found=what).inc()

    def _remember(self, key: str, phrase: Phrase, *, is_on_disk: bool) -> _Kept | None:
        own = tuple(_own(chunk) for chunk in phrase)
        n_bytes = sum(c.pcm.nbytes + _CHUNK_BYTES + _TIMING_BYTES * len(c.timings) for c in own)
        if n_bytes > self.memory_bytes // _LARGEST:
            return None
        before = self._kept.pop(key, None)
        self.n_bytes += n_bytes - (before.n_bytes if before is not None else 0)
        kept = self._kept[key] = _Kept(own, n_bytes, is_on_disk)
        while self.n_bytes > self.memory_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.n_bytes -= oldest.n_bytes
        metrics.PHRASE_BYTES.set(self.n_bytes)
        return kept

    def _write(self, key: str, kept: _Kept) -> None:
        disk, writer = self._disk, self._writer
        if disk is None or writer is None or self._n_writes >= _MOST_JOBS or monotonic_ns() < self._write_after_ns:
            return  # it is tried again when it is asked for again
        kept.is_on_disk = True
        self._n_writes += 1
        writing = asyncio.get_running_loop().run_in_executor(
            writer, self._guarded, "written", lambda: bool(disk.set(key, to_bytes(kept.phrase)))
        )
        writing.add_done_callback(partial(self._has_written, kept))

    def _has_written(self, kept: _Kept, writing: asyncio.Future[bool | None]) -> None:
        self._n_writes -= 1
        if writing.cancelled() or writing.exception() is not None or not writing.result():
            kept.is_on_disk = False
            self._write_after_ns = monotonic_ns() + int(_WRITE_AGAIN_S * NS_PER_S)

    async def written(self) -> None:
        """Return when all that was kept so far is on disk."""
        if self._writer is not None:
            await asyncio.get_running_loop().run_in_executor(self._writer, lambda: None)

    def _guarded(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Do `work` on the disk, in a thread. None if it fails, as without memory; the first failure of its kind is
        logged. Raises DamagedPhrase."""
        try:
            return work()
        except DamagedPhrase:
            raise
        except Exception as error:  # a phrase that is not kept costs a synthesis, and must not cost a sentence
            self._complain(what, f"a phrase cannot be {what} in {self.folder}: {str(error) or type(error).__name__}")
            return None

    def _complain(self, kind: str, line: str) -> None:
        if kind not in self._complaints:
            self._complaints.add(kind)
            log.warning("%s; further faults of this kind are not logged", line)


def open_cache(path: Path, disk_bytes: int) -> Cache:
    """The phrases of a folder. Raises ConfigError without diskcache, OSError and sqlite3.Error."""
    try:
        from diskcache import Cache, Disk
    except ImportError as error:
        raise ConfigError(f"phrases.folder needs the package diskcache: {HOW_TO_GET}") from error

    class PlainDisk(Disk):  # type: ignore[misc,unused-ignore]  # the package has no types
        """Never unpickles, and leaves alone what is outside the folder: its index may be someone else's."""

        def get(self, key: Any, raw: int) -> Any:
            return super().get(key, raw) if raw else "(not a phrase)"

        def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
            if mode == 4:  # diskcache.core.MODE_PICKLE
                return None
            if filename is not None and not self._is_inside(filename):
                raise DamagedPhrase("its file is outside the folder")
            return super().fetch(mode, filename, value, read)

        def remove(self, file_path: Any) -> None:
            if self._is_inside(file_path):
                super().remove(file_path)

        def _is_inside(self, name: object) -> bool:
            # The resolved path counts: a link in the folder may lead out of it.
            root = path.resolve()
            return isinstance(name, str) and "\0" not in name and (root / name).resolve().is_relative_to(root)

    cache = Cache(
        str(path), timeout=_LOCKED_S, disk=PlainDisk, size_limit=disk_bytes, eviction_policy="least-recently-used"
    )
    cache.reset("size_limit", disk_bytes)
    return cache


def _own(chunk: Chunk) -> Chunk:
    """A copy that cannot be changed, as it will be given to others: it did not wait in a queue."""
    if not chunk.pcm.flags.writeable and chunk.pcm.base is None:
        return chunk
    pcm = chunk.pcm.copy()
    pcm.flags.writeable = False
    return replace(chunk, pcm=pcm, queued_ns=0)
