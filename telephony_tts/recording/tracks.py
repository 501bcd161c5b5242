"""The two channels of a recording, each as runs of audio on one clock, before they are decoded.

A run is audio without a gap. Positions count samples of 8 kHz since the recording began. A track keeps its last
seconds, because they may still change: the peer may drop speech, or report that it plays later. `take` hands out what
is certain.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

from telephony_tts.audio.encoder import CODECS

RATE_HZ = 8_000
SAMPLE_NS = 1_000_000_000 // RATE_HZ
_S = 1_000_000_000

_JITTER = RATE_HZ * 120 // 1000
"""Audio of the caller that comes up to this much late follows the audio before it without a gap."""
_STALL = RATE_HZ * 5 // 2
"""Audio may come so late if the peer's clock says that none is missing. It must be less than a track keeps."""
_AHEAD = RATE_HZ // 2
"""Audio of the caller may come so far ahead of the clock; more cannot have been said yet."""
_GAP_NS = 80_000_000
"""A peer that reports a place of our speech later by more than this has stopped in between."""
_MOST_LATE_NS = 10 * _S
_CLOCK_SLACK_MS = 5
"""The peer's clock counts milliseconds, and frames may have parts of them."""

_ids = itertools.count()


class Piece(NamedTuple):
    """Encoded audio of one run, from position `start` to position `end`. `run` is the same for all pieces of a run."""

    run: int
    start: int
    end: int
    codec: str
    rate_hz: int
    payload: bytes


class Run:
    """Audio without a gap. Its first sample lies at `base_ns`, which is position `at`."""

    __slots__ = ("at", "base_ns", "codec", "first", "frames", "id", "is_told", "late_ns", "n_bytes", "n_frame",
                 "rate_hz", "taken", "width")  # fmt: skip

    def __init__(self, at: int, base_ns: int, codec: str, rate_hz: int) -> None:
        self.id = next(_ids)
        self.at = self.first = at
        self.base_ns = base_ns
        self.codec = codec
        self.rate_hz = rate_hz
        self.width = CODECS[codec].bytes_per_sample
        self.frames: deque[bytes] = deque()
        self.n_bytes = 0
        self.n_frame = 0
        """How many of its own samples a frame had that was sent. `frames` may have parts of frames, or many in one."""
        self.late_ns = 0
        """How much later than the schedule the peer plays it, and whether the peer has told us."""
        self.is_told = False
        self.taken = 0
        """How many of its own samples were handed out."""

    @property
    def position(self) -> int:
        """Where the audio that is still here begins."""
        return self.at + self.taken * RATE_HZ // self.rate_hz

    @property
    def end(self) -> int:
        return self.at + (self.taken + self.n_bytes // self.width) * RATE_HZ // self.rate_hz

    def append(self, payload: bytes) -> None:
        self.frames.append(payload)
        self.n_bytes += len(payload)

    def pop(self, n_samples: int) -> bytes:
        """Hand out the first `n_samples`, or all that is left."""
        n_bytes = min(n_samples * self.width, self.n_bytes)
        parts, n_left = [], n_bytes
        while n_left:
            frame = self.frames.popleft()
            if len(frame) > n_left:
                self.frames.appendleft(frame[n_left:])
                frame = frame[:n_left]
            parts.append(frame)
            n_left -= len(frame)
        self.n_bytes -= n_bytes
        self.taken += n_bytes // self.width
        return b"".join(parts)

    def cut(self, n_samples: int) -> None:
        """Keep the first `n_samples` of the whole run."""
        n_bytes = max(0, (n_samples - self.taken) * self.width)
        while self.n_bytes > n_bytes:
            frame = self.frames.pop()
            n_more = self.n_bytes - n_bytes
            if len(frame) > n_more:
                self.frames.append(frame[:-n_more])
                n_more = 0
            self.n_bytes -= len(frame) if n_more else self.n_bytes - n_bytes

    def move(self, late_ns: int) -> None:
        """What is left of the run lies `late_ns` later."""
        self.base_ns += late_ns
        late = round(late_ns / SAMPLE_NS)
        self.at += late
        self.first += late if not self.taken else 0

    def split(self, n_samples: int) -> Run:
        """Cut the run behind its first `n_samples`, and return the rest as a run of its own."""
        rest = Run(
            self.at + n_samples * RATE_HZ // self.rate_hz, self.base_ns + n_samples * _S // self.rate_hz,
            self.codec, self.rate_hz,
        )  # fmt: skip
        n_keep = (n_samples - self.taken) * self.width
        rest.n_frame = self.n_frame
        whole = b"".join(self.frames)
        self.frames = deque([whole[:n_keep]] if n_keep else ())
        rest.append(whole[n_keep:])
        self.n_bytes = n_keep
        return rest


class Track:
    """One channel. `origin_ns` is when the recording began."""

    def __init__(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self.runs: deque[Run] = deque()
        self.done = 0
        """The position up to which the audio was handed out."""
        self.spans: list[tuple[int, int]] = []
        """(first, end) of runs that were handed out to their ends. The reader empties this list."""

    def take(self, until: int) -> list[Piece]:
        """Hand out the audio before the position `until`."""
        pieces = []
        for run in list(self.runs):
            start = run.position
            if start >= until:
                continue
            payload = run.pop((until - run.at) * run.rate_hz // RATE_HZ - run.taken)
            if payload:
                pieces.append(Piece(run.id, start, run.position, run.codec, run.rate_hz, payload))
            if not run.n_bytes:
                self.runs.remove(run)
                if run.taken:
                    self.spans.append((run.first, run.position))
        self.done = until
        return pieces

    def _place(self, at_ns: int) -> int:
        return (at_ns - self._origin_ns + SAMPLE_NS // 2) // SAMPLE_NS


class HeardTrack(Track):
    """What the caller hears of our speech."""

    def __init__(self, origin_ns: int) -> None:
        super().__init__(origin_ns)
        self._end_ns = -1
        self._run: Run | None = None
        """The run that goes on with a frame that is heard at `_end_ns`."""

    def playing(self, payload: bytes, heard_ns: int, codec: str, rate_hz: int) -> None:
        """A frame was sent that the caller hears at `heard_ns`."""
        run = self._run
        # A run without bytes has been written and is no longer in `runs`.
        if run is None or not run.n_bytes or heard_ns != self._end_ns or run.rate_hz != rate_hz or run.codec != codec:
            run = self._run = Run(self._place(heard_ns), heard_ns, codec, rate_hz)
            run.n_frame = len(payload) // run.width
            self.runs.append(run)
        run.frames.append(payload)
        run.n_bytes += len(payload)
        self._end_ns = heard_ns + len(payload) * _S // (run.width * rate_hz)

    def emptied(self, now_ns: int) -> None:
        """What was not heard by now never will be."""
        for run in list(self.runs):
            run.cut(max(0, (now_ns - run.base_ns) * run.rate_hz // _S))
            if not run.n_bytes:
                self.runs.remove(run)
                if run.taken:
                    self.spans.append((run.first, run.position))
        self._run = None

    def peer_is_late(self, late_ns: int, now_ns: int) -> None:
        """The peer plays now what was due `late_ns` ago. Its first report about a run places the whole run. Later ones
        differ by the network's jitter; only a large difference is a gap, or shows that there was none."""
        due_ns = now_ns - late_ns
        run = next((run for run in reversed(self.runs) if run.base_ns - run.late_ns <= due_ns), None)
        if run is None or late_ns > _MOST_LATE_NS:
            return
        more_ns = late_ns - run.late_ns
        if not run.is_told and not run.taken:
            run.is_told = True
            if more_ns > 0:
                run.move(more_ns)
                run.late_ns = late_ns
        elif more_ns > _GAP_NS:
            n_before = max(run.taken, (due_ns + run.late_ns - run.base_ns) * run.rate_hz // _S)
            if n_before * run.width < run.taken * run.width + run.n_bytes:
                rest = run.split(n_before)
                rest.move(more_ns)
                rest.late_ns, rest.is_told = late_ns, True
                self.runs.insert(self.runs.index(run) + 1, rest)
                if self._run is run:
                    self._run = rest
                if not run.n_bytes:
                    self.runs.remove(run)
        elif more_ns < -_GAP_NS and not run.taken:
            # The peer cannot take a gap back: the report that placed this run was read late, in a process that stood
            # still.
            at = self.runs.index(run)
            begin = max(self.done, self.runs[at - 1].end if at else 0)
            back_ns = min(-more_ns, max(0, run.at - begin) * SAMPLE_NS)
            run.move(-back_ns)
            run.late_ns -= back_ns

    def moved(self, late_ns: int, now_ns: int) -> None:
        """The peer plays `late_ns` later than we were told: what should have been heard at `now_ns - late_ns` is heard
        now. Earlier speech was heard at its time: a peer plays a file without a gap, up to its last frame."""
        due_ns = now_ns - late_ns
        for run in list(self.runs):
            frame_ns = max(1, run.n_frame * _S // run.rate_hz)
            n_before = max(0, -((run.base_ns - due_ns) // frame_ns)) * run.n_frame
            if n_before <= run.taken:
                run.move(late_ns)
            elif n_before * run.width < run.taken * run.width + run.n_bytes:
                rest = run.split(n_before)
                rest.move(late_ns)
                self.runs.insert(self.runs.index(run) + 1, rest)
                if self._run is run:
                    self._run = rest
        if self._run is not None:
            self._end_ns += late_ns


class CallerTrack(Track):
    """What comes from the caller. It has no time of its own that we could trust, so it is placed by when it came.

    Audio that comes late or in bursts follows the audio before it, as it was said. If the peer's media clock says that
    something is missing, the gap is as long as the clock says.
    """

    def __init__(self, origin_ns: int) -> None:
        super().__init__(origin_ns)
        self._run: Run | None = None
        """The last run, also when all of it was handed out."""
        self._end = 0
        """Where it ends."""
        self._format = ("", 0)
        self._n_bytes, self._length, self._length_ms = -1, 0, 0
        """Of the last audio: its bytes, its length in positions and in milliseconds."""
        self._floor = 0
        """Where the run before it ended."""
        self._clock_ms: int | None = None
        """The peer's media clock at the end of the last audio."""
        self.n_dropped = 0
        """Samples that came faster than a caller can speak."""

    def feed(self, payload: bytes, clock_ms: int | None, now_ns: int, codec: str, rate_hz: int) -> None:
        """Audio of the caller came now. `clock_ms` is the peer's media clock at its beginning, if it has one."""
        run, end = self._run, self._end
        now = (now_ns - self._origin_ns) // SAMPLE_NS
        if run is not None and len(payload) == self._n_bytes and run.n_bytes and (codec, rate_hz) == self._format:
            # The usual case, which the rest would treat alike: it has the length of the last one, it follows the last
            # one, and nothing moves.
            late = now - self._length - end
            step_ms = 0 if clock_ms is None or self._clock_ms is None else clock_ms - self._clock_ms
            is_next = -_CLOCK_SLACK_MS <= step_ms <= _CLOCK_SLACK_MS
            if is_next and (0 <= late < _JITTER or (run.taken and -_AHEAD <= late < 0)):
                run.frames.append(payload)
                run.n_bytes += self._n_bytes
                self._end = end + self._length
                self._clock_ms = None if clock_ms is None else clock_ms + self._length_ms
                return
        width = CODECS[codec].bytes_per_sample
        n_samples = len(payload) // width
        if not n_samples:
            return
        length = n_samples * RATE_HZ // rate_hz
        start = self._start(now - length, max(end, self.done), clock_ms)
        is_over = run is not None and run.taken and not run.n_bytes
        if run is None or is_over or start != end or run.rate_hz != rate_hz or run.codec != codec:
            floor, room = end, start - max(end, self.done)
            run = Run(start, 0, codec, rate_hz)
        else:
            floor = self._floor
            room = 0 if run.taken else run.at - max(floor, self.done)
        early = start + length - now
        if early > _AHEAD + max(0, room):
            self.n_dropped += length
            return
        if run is not self._run:
            self._run, self._floor = run, floor
        if not run.n_bytes:
            self.runs.append(run)
        run.append(payload[: n_samples * width])
        self._clock_ms = None if clock_ms is None else clock_ms + n_samples * 1000 // rate_hz
        if early > 0 and room > 0:
            # Audio from the future: the run began earlier than it seemed, behind a stall of the network.
            run.at -= min(early, room)
            run.first = run.at
        self._end = run.end
        is_exact = n_samples * width == len(payload) and length * rate_hz == n_samples * RATE_HZ
        self._n_bytes = len(payload) if is_exact else -1
        self._format = codec, rate_hz
        self._length, self._length_ms = length, n_samples * 1000 // rate_hz

    def _start(self, natural: int, end: int, clock_ms: int | None) -> int:
        """Where audio begins that came at its end: at `natural`, or at the `end` of the audio before it."""
        late = natural - end
        if self._run is None:
            return natural
        if clock_ms is not None and self._clock_ms is not None:
            missing_ms = clock_ms - self._clock_ms
            if abs(missing_ms) <= _CLOCK_SLACK_MS and late <= _STALL:
                return end
            missing = missing_ms * RATE_HZ // 1000
            if 0 < missing <= late + _AHEAD and late - missing <= _STALL:
                return end + missing
        return end if late < _JITTER else natural
