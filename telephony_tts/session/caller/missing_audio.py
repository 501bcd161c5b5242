"""Whether the caller's audio comes: the bot is told when none comes for a while although speech is played. Pure.

The server cannot know why. The telephone may be on hold, or another one may ring after a transfer, and the caller
does not hear the speech. Or the telephone sends nothing while its user is silent.
"""

from __future__ import annotations

from telephony_tts.session.effects import Effect
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import WarningEvent

_MS = 1_000_000


class MissingAudio:
    """The caller's audio of one call. After `after_ms` without it the bot is told; 0: never. `out` is the session's own
    list. Times are nanoseconds on the session's clock."""

    def __init__(self, after_ms: int, out: list[Effect]) -> None:
        self.after_ms = after_ms
        self.came_ns: int | None = None
        """When the last audio came, or the media leg. None before that."""
        self._told_ns: int | None = None
        """The `came_ns` since which none has come, if the bot was told."""
        self._out = out

    def poll(self, turns: list[Turn], now_ns: int) -> int | None:
        """Tell the bot if it is time, once until audio comes again. `turns` are those of the session. Returns when to
        ask again."""
        if not self.after_ms or self.came_ns is None:
            return None
        playouts = [turn.playout for turn in turns if turn.playout.t0_ns is not None and turn.playout.n_sent]
        if not any(now_ns < playout.end_ns() for playout in playouts):
            return None
        after_ns = self.after_ms * _MS
        if now_ns < self.came_ns + after_ns:
            return self.came_ns + after_ns
        if self._told_ns != self.came_ns:
            self._told_ns = self.came_ns
            missing_ms = (now_ns - self.came_ns) // _MS
            why = "it may be on hold, or ring after a transfer, or send nothing while its user is silent"
            message = f"no audio has come from the telephone for {missing_ms} ms: {why}"
            self._out.append(WarningEvent("no_caller_audio", message))
        return now_ns + after_ns
