"""How long neither side has spoken: when the bot is told that the caller is silent. Pure.

The time counts from the latest of three moments: the end of what the caller has heard of us, the end of the caller's
voice or a pressed key, and the moment at which the media leg came. Times are nanoseconds on the session's clock.
"""

from __future__ import annotations

from telephony_tts.session.effects import Effect
from telephony_tts.session.marks import MarkState
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import CallerSilent

_MS = 1_000_000
_S = 1_000_000_000


class CallerSilence:
    """The silence of one call. `out` is the session's own list."""

    def __init__(self, after_ms: int, out: list[Effect]) -> None:
        self.after_ms = after_ms
        """The bot is told after this time, and at each multiple of it. 0: never."""
        self._out = out
        self._theirs_ns = 0
        """When the caller was last heard, or when listening began."""
        self._ours_ns = 0
        """When the last speech of ours has been heard. Later than now while the peer still plays."""
        self._turn: Turn | None = None
        """The last turn that was heard, until it is over."""
        self._n_told = 0
        self._told_ns = 0

    def restart(self, at_ns: int) -> None:
        """Begin the count anew at `at_ns`: the caller spoke or pressed a key, or the count begins."""
        self._theirs_ns = max(self._theirs_ns, at_ns)

    def poll(self, turns: list[Turn], now_ns: int) -> int | None:
        """Tell the bot if it is time. `turns` are those of the session. Returns when to ask again; None: after the
        speech that is playing."""
        if self._hears_us(turns, now_ns):
            return None
        since_ns, step_ns = max(self._ours_ns, self._theirs_ns), self.after_ms * _MS
        if since_ns > self._told_ns:
            self._n_told = 0
        n_passed = max(0, now_ns - since_ns) // step_ns
        if n_passed > self._n_told:
            self._n_told, self._told_ns = n_passed, now_ns
            self._out.append(CallerSilent(n_passed * self.after_ms))
        return since_ns + (n_passed + 1) * step_ns

    def _hears_us(self, turns: list[Turn], now_ns: int) -> bool:
        """Whether only the peer's reports can tell when its speech ends. Notes when the speech so far ends."""
        sounded = [turn for turn in turns if turn.playout.t0_ns is not None and turn.playout.n_sent]
        if not sounded:
            if self._turn is not None:
                # It is over, or was cleared or paused before its end.
                self._ours_ns = now_ns if self._turn in turns else min(_heard_until_ns(self._turn), now_ns)
                self._turn = None
            return False
        turn = self._turn = sounded[-1]
        self._ours_ns = _heard_until_ns(turn)
        is_awaited = turn.marks.first(MarkState.SENT) is not None
        return is_awaited and (turn.sent_all or turn.settings.whole_sentences)


def _heard_until_ns(turn: Turn) -> int:
    """When the caller has heard all that was sent of the turn. A peer may report that it plays later than on our
    schedule."""
    end_ns = turn.playout.end_ns()
    if turn.anchor is None:
        return end_ns
    sample, at_ns = turn.anchor
    return max(end_ns, at_ns + (turn.n_sent_samples - sample) * _S // turn.settings.rate_hz)
