"""A telephone platform: it plays what its media leg is sent, and reports in its dialect what it has played.

`platforms` has one on the virtual clock, `carriers` one at the end of a real socket.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from torture import violations as v
from torture.dialects import MS, Dialect, FreeSwitch, Genesys, Lateness
from torture.oracle import NativeOracle

S = 1_000_000_000


class Telephone:
    """The platform of one call. `oracle` has the player, and is told what the caller hears."""

    def __init__(self, dialect: Dialect, oracle: NativeOracle, lateness: Lateness, now_ns: Callable[[], int]) -> None:
        self.dialect = dialect
        self._oracle = oracle
        oracle.player.passed_on_ns = dialect.heard_late_ms * MS
        self._late = lateness
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The marks that were not reached."""
        self._file: asyncio.TimerHandle | None = None
        self._files: deque[tuple[str, bytes, int]] = deque()
        """(number, audio, when it came) of each file that was not played."""
        self._is_playing = False
        self._begin: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None

    def send(self, message: dict[str, Any]) -> None:
        """Send this to the server, if there still is a connection."""
        raise NotImplementedError

    def hear(self, payload: bytes, now_ns: int, came_ns: int | None = None) -> None:
        """Give the frames of this audio to the oracle, each after `set_lateness`. `came_ns`: it is a file, which came
        then, and is played now."""
        raise NotImplementedError

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message of the dialect."""
        self.send({**message, **self.dialect.stamp()})

    def get(self, payload: bytes, is_text: bool) -> None:
        """The server sends this."""
        now_ns = self._now_ns()
        if not is_text:
            self._play(payload, now_ns)
            return
        read = self.dialect.read(json.loads(payload))
        for answer in read.answers:
            self._soon(answer)
        match read.kind:
            case "audio":
                self._play(read.value, now_ns)
            case "file":
                self._files.append((*read.value, now_ns))
                if len(self._files) == 1:
                    self._begin_file()
            case "mark":
                wait_ns = max(0, self._oracle.player.end_ns - now_ns - self.dialect.heard_late_ms * MS)
                self._timers[read.value] = self._loop.call_later(wait_ns / S, self._reached, read.value)
                most = self.dialect.most_marks
                if most is not None and len(self._timers) > most:
                    self.dialect.wrong.append((v.ONE_FATE, f"{len(self._timers)} marks wait, and {most} are kept"))
            case "clear":
                self._clear(now_ns)
            case "question":
                held_ns = max(0, self._oracle.player.end_ns - now_ns)
                self._soon({"event": "STATUS", "queue_length": held_ns // (20 * MS), "media_paused": False})

    def drop(self) -> None:
        """Play and report nothing more of what is there."""
        for timer in (*self._timers.values(), self._file, self._begin, self._end):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._files.clear()
        self._file = self._begin = self._end = None

    # ------------------------------------------------------------ what is played

    def set_lateness(self, now_ns: int, *, in_file: bool) -> None:
        """When the next frame is played."""
        player = self._oracle.player
        if in_file:
            player.delay_ns, player.stretch, player.stall_ns = 0, 1.0, 0
            return
        if now_ns >= player.end_ns:
            player.delay_ns = self._late.begin_ns() + self.dialect.heard_late_ms * MS
        player.stretch, player.stall_ns = self._late.stretch(), self._late.stall_ns()

    def _play(self, payload: bytes, now_ns: int) -> None:
        self.dialect.check_audio(payload)
        self.hear(payload, now_ns)
        if isinstance(self.dialect, Genesys):
            self._tell_genesys(self.dialect, now_ns)

    def _tell_genesys(self, dialect: Genesys, now_ns: int) -> None:
        """Genesys reports when it begins to play from an empty buffer, and when its buffer is empty again."""
        player = self._oracle.player
        if self._end is not None:
            self._end.cancel()
        if not self._is_playing:
            self._is_playing = True
            self._begin = self._loop.call_later(player.delay_ns / S, self.tell, dialect.playback("started"))
        self._end = self._loop.call_later((player.end_ns - now_ns) / S, self._genesys_ended, dialect)

    def _genesys_ended(self, dialect: Genesys) -> None:
        self._is_playing = False
        self.tell(dialect.playback("completed"))

    def _begin_file(self) -> None:
        """FreeSWITCH begins the next file, after a moment."""
        self._file = self._loop.call_later(self._late.begin_ns() / S, self._play_file)

    def _play_file(self) -> None:
        number, audio, came_ns = self._files[0]
        player, now_ns, dialect = self._oracle.player, self._now_ns(), self.dialect
        assert isinstance(dialect, FreeSwitch)
        self.tell(dialect.playback("playing", number))
        if not self._files or self._files[0][0] != number:
            return
        self.hear(audio, now_ns, came_ns)
        self._file = self._loop.call_later(max(0, player.end_ns - now_ns) / S, self._file_over)

    def _file_over(self) -> None:
        number, *_ = self._files.popleft()
        if self._files:
            self._begin_file()
        dialect = self.dialect
        assert isinstance(dialect, FreeSwitch)
        self.tell(dialect.playback("played", number))

    def _clear(self, now_ns: int) -> None:
        names = list(self._timers)
        self.drop()
        self._oracle.media_clear(now_ns)
        self._is_playing = False
        for message in self.dialect.cleared(names):
            self._soon(message)

    def _reached(self, name: str) -> None:
        del self._timers[name]
        self.tell(self.dialect.report(name))

    def _soon(self, message: dict[str, Any]) -> None:
        self._loop.call_soon(self.tell, message)
