"""Silence for a bot whose speech goes to a media leg.

Bot frameworks repeat a turn without audio or give up on the service, and they take audio for the time of speech. So the
bot gets silence as long as the frames that went to the caller, while they go.
"""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.wire.messages import Frame

FRAMES_AT_ONCE = 5
"""So many frames of the media leg become one piece of silence."""


class StandIn:
    """Counts the frames of a call's turns. `send` gets a turn, and how many of its frames the silence stands for."""

    def __init__(self, send: Callable[[str, int], None]) -> None:
        self._send = send
        self._turn = ""
        self._n_frames = 0

    def frame(self, frame: Frame) -> None:
        """A frame went to the media leg."""
        if not frame.turn:
            return  # a fade, or silence between turns
        if frame.turn != self._turn:
            self.flush()
            self._turn = frame.turn
        self._n_frames += 1
        if self._n_frames >= FRAMES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Send the silence for the frames so far."""
        n_frames, self._n_frames = self._n_frames, 0
        if n_frames:
            self._send(self._turn, n_frames)

    def drop(self, turn: str) -> None:
        """The turn is over: its frames without silence get none."""
        if turn == self._turn:
            self._n_frames = 0
