"""The thread that writes all recordings. A disk that is slow or full costs recordings, never calls.

The event loop gives it blocks and does not wait. What may wait for the disk is limited: `put` then refuses a block, and
the recording has a hole. A recording that cannot be written ends: `RecordingFile.failure` says why.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from telephony_tts.recording import folder as folders
from telephony_tts.recording.recorder import Block
from telephony_tts.recording.stereo import FRAME_BYTES, HEADER_BYTES, Mixer, header
from telephony_tts.recording.timeline import line_of
from telephony_tts.recording.tracks import RATE_HZ
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns, unix_s

_log = logs.get(__name__)
_SWEEP_S = 60.0
_SWEEP_AGAIN_S = 5.0
"""How soon after a sweep a recording that ends may cause the next one: a sweep reads the whole folder."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_FULL, WRITE_FAILED, TOO_LARGE = "disk_full", "write_failed", "max_mb"


class RecordingFile:
    """The two files of one recording. The thread writes them; `failure` is set once, and read by the event loop."""

    def __init__(self, folder: Path, name: str, max_bytes: int) -> None:
        self.name = name
        self.failure: str | None = None
        """Why no more is written."""
        self.why = ""
        """The system's own words for it."""
        self._paths = [folder / f"{name}{suffix}" for suffix in folders.SUFFIXES]
        self._max_bytes = max_bytes
        self._wav = self._lines = -1
        self.n_samples = 0
        """How long the WAV file is, as its header says."""
        self._n_line_bytes = 0
        self._mixer = Mixer()
        self._write = os.pwrite

    @property
    def length_ms(self) -> int:
        """How long the WAV file is, in milliseconds."""
        return self.n_samples * 1000 // RATE_HZ

    def write(self, block: Block) -> None:
        """Write one block. An OSError becomes the `failure`."""
        if self.failure not in (None, TOO_LARGE):
            return
        try:
            if self._wav < 0:
                self._open()
            lines = b"".join(map(line_of, block.rows))
            end = block.first + block.n_samples
            n_bytes = HEADER_BYTES + end * FRAME_BYTES + self._n_line_bytes + len(lines)
            if self.failure == TOO_LARGE or n_bytes > self._max_bytes:
                if self.failure is None:
                    self.failure, self.why = TOO_LARGE, "the two files have recordings.max_mb"
                # The last row says why the recording ends, and how long it is. Its author may not know either yet.
                told = {"reason": TOO_LARGE, "length_ms": self.length_ms}
                ends = (row for row in block.rows if row.what == "ended")
                lines = b"".join(line_of(row._replace(ms=self.length_ms, more=told)) for row in ends)
            elif block.n_samples:
                # A hole before the block stays a hole in the file, which reads as silence.
                self._put(self._wav, self._mixer.mix(block), HEADER_BYTES + block.first * FRAME_BYTES)
                # With every block: a server that is killed leaves a file that can be played to here.
                self._put(self._wav, header(end), 0)
                self.n_samples = end
                metrics.RECORDED_BYTES.inc(block.n_samples * FRAME_BYTES)
            self._put(self._lines, lines, self._n_line_bytes)
            self._n_line_bytes += len(lines)
            if not os.fstat(self._wav).st_nlink:
                raise OSError(errno.ENOENT, "the file was removed while it was written")
        except OSError as error:
            self._fail(error)
        else:
            metrics.RECORDED_BYTES.inc(len(lines))

    def close(self) -> None:
        for descriptor in (self._wav, self._lines):
            if descriptor >= 0:
                try:
                    os.close(descriptor)
                except OSError as error:
                    self._fail(error)
        self._wav = self._lines = -1

    def _open(self) -> None:
        """Raises OSError, and leaves no file: without its header it would be no recording."""
        wav, lines = self._paths
        created: list[Path] = []
        try:
            self._wav = folders.create(wav)
            created.append(wav)
            # Before the timeline is there, which makes it a recording that others may read.
            self._put(self._wav, header(0), 0)
            self._lines = folders.create(lines)
            created.append(lines)
        except OSError:
            for path in created:
                path.unlink(missing_ok=True)
            raise

    def _put(self, descriptor: int, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            n_written = self._write(descriptor, view, at)
            view, at = view[n_written:], at + n_written

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            self.why = error.strerror or str(error)
            self.failure = DISK_FULL if error.errno in _FULL else WRITE_FAILED


class Writer:
    """The thread, its queue, and the folder's limits."""

    def __init__(self, folder: Path, queue_bytes: int, keep_days: int, keep_bytes: int) -> None:
        self.folder = folder
        self._queue_bytes = queue_bytes
        self._keep = keep_days, keep_bytes
        self._waiting = 0
        """Bytes of blocks in the queue. Both threads change it."""
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[RecordingFile, Block | None, Callable[[], None] | None] | None]
        self._queue = queue.SimpleQueue()
        self._open: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="recordings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, file: RecordingFile, block: Block, *, always: bool = False) -> bool:
        """Have a block written. False if too much waits already, unless `always`: the block is lost then. Never
        waits."""
        n_bytes = block.n_bytes
        with self._lock:
            if self._waiting + n_bytes > self._queue_bytes and not always:
                return False
            self._waiting += n_bytes
        self._queue.put((file, block, None))
        return True

    def finish(self, file: RecordingFile, then: Callable[[], None] | None = None) -> None:
        """Close the file behind its last block. `then` is called in the thread when that is done, or has failed."""
        self._queue.put((file, None, then))

    def stop(self, within_s: float) -> bool:
        """Write what waits, and end the thread. False if it is still writing after `within_s`."""
        self._queue.put(None)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # ----------------------------------------------------------------- the thread

    def _run(self) -> None:
        swept_ns = sweep_ns = monotonic_ns()
        while True:
            if monotonic_ns() >= sweep_ns:
                try:
                    self._sweep()
                except Exception:
                    _log.exception("recordings_not_swept")
                swept_ns = monotonic_ns()
                sweep_ns = swept_ns + int(_SWEEP_S * NS_PER_S)
            try:
                item = self._queue.get(timeout=max(0, sweep_ns - monotonic_ns()) / NS_PER_S)
            except queue.Empty:
                continue
            if item is None:
                return
            file, block, then = item
            try:
                if block is not None:
                    self._open.add(file.name)
                    file.write(block)
                else:
                    file.close()
                    self._open.discard(file.name)
                    sweep_ns = min(sweep_ns, swept_ns + int(_SWEEP_AGAIN_S * NS_PER_S))
            except Exception:
                file.failure = file.failure or WRITE_FAILED
                _log.exception("recording_crashed", file=file.name)
            finally:
                if block is not None:
                    with self._lock:
                        self._waiting -= block.n_bytes
                if then is not None:
                    then()

    def _sweep(self) -> None:
        """Remove what is too old or too much."""
        if not any(self._keep):
            return
        try:
            found = folders.to_remove(self.folder, self._open, unix_s(), *self._keep)
        except OSError as error:
            _log.warning("recordings_not_listed", why=error.strerror or str(error))
            return
        failures: list[tuple[Path, OSError]] = []
        n_removed = folders.remove(found, lambda path, error: failures.append((path, error)))
        if n_removed:
            _log.info("recordings_removed", files=n_removed)
        if failures:
            path, why = failures[0]
            _log.warning("recordings_not_removed", files=len(failures), first=path.name, why=why.strerror or "")
