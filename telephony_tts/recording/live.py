"""Recordings as the server has them: begin one for a call, hand its blocks to the writer, and end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from telephony_tts.recording import folder as folders
from telephony_tts.recording import timeline
from telephony_tts.recording.recorder import Block, CallRecorder
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.recording.tracks import RATE_HZ
from telephony_tts.recording.writer import DISK_FULL, WRITE_FAILED, RecordingFile, Writer
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns, unix_s
from telephony_tts.session.session import Session
from telephony_tts.wire.messages import FromBot, FromMedia, RecordingChanged, ToBot

TAIL_S = 3
"""The last seconds are kept back: a peer may still report that it plays them later."""
_PERIOD_S = 2.0
_STOP_WITHIN_S = 10.0
_MB = 1_000_000
_FAILURES = (DISK_FULL, WRITE_FAILED)

_log = logs.get(__name__)

OnWritten = Callable[[RecordingChanged], None]


class Recordings:
    """All recordings of a server. `open` raises ConfigError if the folder cannot be used."""

    def __init__(self, settings: RecordingSettings) -> None:
        self.settings = settings
        self._live: set[LiveRecording] = set()
        self._writer: Writer | None = None

    def open(self) -> None:
        settings = self.settings
        assert settings.folder is not None
        path = folders.open_folder(settings.folder)
        self._writer = Writer(path, settings.queue_mb * _MB, settings.keep_days, settings.keep_mb * _MB)
        self._writer.start()

    def begin(
        self,
        call: str,
        kind: str,
        session: Session,
        log: logs.EventLogger,
        on_end: Callable[[], None],
        on_written: OnWritten,
    ) -> LiveRecording:
        """Record a call from now on. `on_end` is called when nothing more is recorded. `on_written` gets the event of
        the end, whatever the reason, when the files are whole or have failed: a disk that hangs may delay it without
        limit. Never raises."""
        assert self._writer is not None
        began_s = unix_s()
        name = folders.name_for(call, began_s)
        file = RecordingFile(self._writer.folder, name, self.settings.max_mb * _MB)
        live = LiveRecording(self._writer, file, CallRecorder(session, monotonic_ns()), self.settings.max_s, log)
        self._live.add(live)

        def ended() -> None:
            self._live.discard(live)
            on_end()

        live.start(session, ended, on_written, call=call, kind=kind, unix_s=round(began_s, 3))
        return live

    async def close(self) -> None:
        """End what is being recorded, and write what waits."""
        for live in list(self._live):
            live.end("call_ended")
        if self._writer is None:
            return
        try:
            is_written = await asyncio.to_thread(self._writer.stop, _STOP_WITHIN_S)
        except RuntimeError:  # no thread could be started; all calls have ended, so that nothing else waits
            is_written = self._writer.stop(_STOP_WITHIN_S)
        if not is_written:
            _log.warning("recordings_not_written", why=f"the disk took longer than {_STOP_WITHIN_S:g} s")


class LiveRecording:
    """One recording while it lasts. It listens to the session; the call passes on what it
    receives and tells."""

    def __init__(
        self, writer: Writer, file: RecordingFile, recorder: CallRecorder, max_s: int, log: logs.EventLogger
    ) -> None:
        self.name = f"{file.name}.wav"
        self._writer, self._file, self._recorder, self._log = writer, file, recorder, log
        self._limit = max_s * RATE_HZ
        self._timer: asyncio.TimerHandle | None = None
        self._on_end: Callable[[], None] | None = None
        self._on_written: OnWritten | None = None
        self._session: Session | None = None
        self._hole: int | None = None
        self.playing, self.moved, self.emptied = recorder.playing, recorder.moved, recorder.emptied
        self.peer_is_late = recorder.peer_is_late

    def start(self, session: Session, on_end: Callable[[], None], on_written: OnWritten, **about: object) -> None:
        """Listen to the session. `about` goes into the first row."""
        self._session, self._on_end, self._on_written = session, on_end, on_written
        self._recorder.note(
            "recording", self._recorder.begun_ns, version=timeline.VERSION, wav=self.name, rate_hz=RATE_HZ,
            left="caller", right="heard", **about,
        )  # fmt: skip
        session.listeners.append(self)
        metrics.RECORDINGS_LIVE.inc()
        # At once, so that a file that cannot be opened is known soon.
        self._timer = asyncio.get_running_loop().call_later(0, self._tick)
        self._log.info("recording_started", file=self._file.name)

    def received(self, message: FromBot | FromMedia, now_ns: int) -> None:
        """A message of either leg came. Call this before the session gets it. A fault of ours costs the recording, not
        the call."""
        if self._file.failure is None:
            try:
                self._recorder.received(message, now_ns)
            except Exception:
                self._crashed()

    def told(self, event: ToBot, now_ns: int) -> None:
        """An event went to the bot, or would go if there were one."""
        if self._file.failure is None:
            try:
                self._recorder.told(event, now_ns)
            except Exception:
                self._crashed()

    def remember_private(self) -> None:
        """The session has got text, maybe that of a private turn."""
        try:
            self._recorder.remember_private()
        except Exception:
            self._crashed()

    def _crashed(self) -> None:
        self._log.exception("recording_crashed", file=self._file.name)
        self._file.why, self._file.failure = "an internal error", WRITE_FAILED

    def _tick(self) -> None:
        now_ns = monotonic_ns()
        is_full = self._recorder.position(now_ns) >= self._limit
        if self._file.failure is None and not is_full:
            try:
                self._flush(self._recorder.position(now_ns - TAIL_S * NS_PER_S))
            except Exception:
                self._crashed()
        if self._file.failure is not None:
            self.end(self._file.failure)
        elif is_full:
            self.end("max_s")
        else:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._tick)

    def end(self, reason: str) -> None:
        """Record nothing more. The end is told when the writer is done with the files. `reason` is one of
        `metrics.RECORDING_ENDS`; that of a failure replaces it. Idempotent. A fault of ours costs the end of the
        recording, and nothing else."""
        if self._on_end is None or self._on_written is None or self._session is None:
            return
        on_end, self._on_end = self._on_end, None
        if self._timer is not None:
            self._timer.cancel()
        self._session.listeners.remove(self)
        now_ns = monotonic_ns()
        end = min(self._limit, self._recorder.position(now_ns))
        if self._file.failure is not None:
            end = self._recorder.done
        length_ms = end * 1000 // RATE_HZ
        last = self._row(end, "ended", reason=reason, length_ms=length_ms)
        try:
            self._recorder.finish(end)
            self._flush(end, last)
        except Exception:
            self._crashed()
        # Nothing here refers to this recording: behind a disk that hangs, the ends of many calls may wait.
        written = partial(_written, self._file, reason, self._log, self._on_written)
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: the disk was slower than the server's end
                loop.call_soon_threadsafe(written)

        self._writer.finish(self._file, tell)
        metrics.RECORDINGS_LIVE.dec()
        on_end()

    def _flush(self, until: int, *last: timeline.Row) -> None:
        """Give the writer everything before the position `until`, and then the row `last`."""
        block = self._recorder.take(until)
        block.rows += last
        if self._hole is not None:
            block.rows.insert(0, self._row(self._hole, "hole", end_ms=block.first * 1000 // RATE_HZ))
        if self._writer.put(self._file, block):
            self._hole = None
            return
        # The disk is too slow. The rows are small, so they wait for the next block.
        metrics.RECORDING_HOLES.inc(self._hole is None)
        if self._hole is None:
            self._hole = block.first
            self._log.warning("recording_has_hole", file=self._file.name, at_ms=block.first * 1000 // RATE_HZ)
        else:
            del block.rows[0]
        if not last:
            self._recorder.keep_rows(block.rows)
            return
        # No block comes any more. The end of the hole and of the recording is so small that it can always wait.
        rows = [self._row(self._hole, "hole", end_ms=until * 1000 // RATE_HZ), *last]
        if n_lost := len(block.rows) - len(last):
            rows.insert(0, self._row(until, "rows_lost", n=n_lost))
        self._writer.put(self._file, Block(block.first, block.n_samples, [], [], rows), always=True)

    def _row(self, at: int, what: str, **more: object) -> timeline.Row:
        """A row about the recording itself, at a position."""
        return timeline.Row(at * 1000 // RATE_HZ, timeline.SERVER, what, False, more)


def _written(file: RecordingFile, reason: str, log: logs.EventLogger, on_written: OnWritten) -> None:
    """The writer is done with a file that was to end for this reason."""
    reason = file.failure or reason
    metrics.RECORDINGS.labels(reason=reason).inc()
    if reason in _FAILURES:
        log.warning("recording_ended", file=file.name, reason=reason, why=file.why)
    else:
        log.info("recording_ended", file=file.name, reason=reason, length_ms=file.length_ms)
    on_written(RecordingChanged("ended", f"{file.name}.wav", reason, file.length_ms))
