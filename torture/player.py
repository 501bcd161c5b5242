"""A simulated telephone: it plays frames one after the other, and knows what the caller has heard. Pure."""

from __future__ import annotations

from collections import deque


class Player:
    """Plays each frame when it comes, or behind the frame before. Turns are named by any string. `delay_ns`, `stall_ns`
    and `stretch` may be changed before each frame."""

    def __init__(self, ptime_ns: int, delay_ns: int = 0) -> None:
        self.ptime_ns = ptime_ns
        self.delay_ns = delay_ns
        """It begins so much later whenever its buffer was empty, as a telephone platform with a jitter buffer does."""
        self.stall_ns = 0
        """How long it stops before the next frame that comes."""
        self.stretch = 1.0
        """How much longer than its length a frame is played."""
        self.passed_on_ns = 0
        """The audio of so much time is beyond recall: it counts as heard, and a drop leaves it."""
        self.end_ns = 0
        """When all that was taken has been played."""
        self.late_ns = 0
        """How much later than at once it plays what it has: the delay, and the stops since its buffer was empty."""
        self.gap_ns = 0
        """The silence before the frame that came last."""
        self._waiting: deque[tuple[int, str, int, int]] = deque()
        """(begin, turn, place, length) of each frame that was not played to its end."""
        self._heard_ns: dict[str, int] = {}
        self._turn_end_ns: dict[str, int] = {}

    def take(self, turn: str, place_ns: int, now_ns: int, length_ns: int | None = None) -> None:
        """A frame came, which is at `place_ns` of the audio of its turn."""
        self.gap_ns = max(0, now_ns - self.end_ns)
        is_empty = now_ns >= self.end_ns
        self.late_ns = (self.delay_ns if is_empty else self.late_ns) + self.stall_ns
        begin_ns = (now_ns + self.delay_ns if is_empty else self.end_ns) + self.stall_ns
        length_ns = round((self.ptime_ns if length_ns is None else length_ns) * self.stretch)
        self._waiting.append((begin_ns, turn, place_ns, length_ns))
        self.end_ns = self._turn_end_ns[turn] = begin_ns + length_ns

    def drop(self, now_ns: int) -> None:
        """Drop all that was not played. The frame that is being played ends here."""
        now_ns += self.passed_on_ns
        self._play(now_ns)
        self._waiting.clear()
        self.end_ns = min(self.end_ns, now_ns)
        for turn, end_ns in self._turn_end_ns.items():
            self._turn_end_ns[turn] = min(end_ns, now_ns)

    def heard_ns(self, turn: str, now_ns: int) -> int:
        """How far into the audio of a turn the caller is, or was at most."""
        self._play(now_ns + self.passed_on_ns)
        return self._heard_ns.get(turn, 0)

    def turn_end_ns(self, turn: str) -> int:
        """When the last frame of a turn that was taken is over; 0 if it has none."""
        return self._turn_end_ns.get(turn, 0)

    def _play(self, now_ns: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_ns:
            begin_ns, turn, place_ns, length_ns = self._waiting[0]
            heard_ns = place_ns + round(min(length_ns, now_ns - begin_ns) / self.stretch)
            self._heard_ns[turn] = max(self._heard_ns.get(turn, 0), heard_ns)
            if now_ns < begin_ns + length_ns:
                return
            self._waiting.popleft()
