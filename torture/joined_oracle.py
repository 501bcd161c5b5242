"""What a caller may hear of HTTP requests that join the call (docs/protocol/http-calls.md §12.5). No I/O.

Each request has a letter of its own, so its frames tell it. `frame`, `media_clear` and `player` are what the telephone
side of a carrier uses.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

from torture import violations as v
from torture.letters import LETTERS, MISSING_MS, MS_PER_LETTER, FrameReader
from torture.player import Player
from torture.violations import CROSS_NS, Stops, Tally, Violation, log_lines

MS = 1_000_000
_FRAME_MS = 20
_NOTICED_NS = 250 * MS
"""By then the speech of a client that is gone has stopped."""
_APART_NS = 150 * MS
"""Requests that were sent so much one after the other come to the server in that order."""
_PIECES_MS = 120
"""The response is silence for some frames at a time, and those behind the last time are told at its end."""
_LOG_LINES = 500


@dataclass(slots=True, eq=False)
class JoinedRequest:
    """A request, as its client knows it. `response_ms` is the length of the silence that it got."""

    letter: str
    n_chars: int
    asked_ns: int
    status: int = 0
    response_ms: float = 0.0
    ended_ns: int = 0
    """When its response was complete."""
    left_ns: int = 0
    """When its client closed the connection in the middle."""
    n_frames: int = 0
    first_ns: int = 0
    is_moved: bool = False
    """Frames were dropped that may come again."""
    dropped_ns: int = 0
    """When the telephone was told last to drop what it had not played."""
    again_until_ns: int = 0
    """When it would have played all of that: by then what is sent again has come."""
    is_passed: bool = False
    """Another request has been heard after it."""

    @property
    def is_live(self) -> bool:
        return not self.ended_ns and not self.left_ns


class JoinedOracle:
    """One call. `may_fail`: an engine may fail."""

    def __init__(
        self, tally: Tally, stops: Stops, *, call: int | None, delay_ns: int = 0, may_fail: bool = False
    ) -> None:
        self._tally = tally
        self._stops = stops
        self._call = call
        self._may_fail = may_fail
        self._reader = FrameReader()
        self.player = Player(_FRAME_MS * MS, delay_ns)
        self.requests: list[JoinedRequest] = []
        self._speaking: JoinedRequest | None = None
        self._suspicions: list[tuple[str, str, int, int, int]] = []
        """(check, what, by how much it was beyond its tolerance, from when to when stops excuse it)."""
        self.hung_up_ns = 0
        self._log: deque[tuple[int, str, str]] = deque(maxlen=_LOG_LINES)

    def free_letter(self) -> str | None:
        """A letter of no live request; the one that was used longest ago."""
        used = {request.letter: n for n, request in enumerate(self.requests)}
        live = {request.letter for request in self.requests if request.is_live}
        return min((letter for letter in LETTERS if letter not in live), key=lambda x: used.get(x, -1), default=None)

    def asked(self, letter: str, n_chars: int, now_ns: int) -> JoinedRequest:
        self._tally.counts["turns"] += 1
        request = JoinedRequest(letter, n_chars, now_ns)
        self.requests.append(request)
        self.note(now_ns, ">", f"{letter} asked, {n_chars} letters")
        return request

    # ------------------------------------------------------- the telephone side

    def frame(self, payload: bytes, now_ns: int, came_ns: int | None = None) -> None:
        """`came_ns`: it came then, and is played now."""
        self._tally.counts["frames"] += 1
        self._checked(v.FRAMES)
        if len(payload) != 8 * _FRAME_MS:
            self._wrong(v.FRAMES, f"a frame of {len(payload)} bytes, expected {8 * _FRAME_MS}")
        letter = self._reader.letter(payload)
        self.note(now_ns, "<", letter or "-")
        request = self._speaking
        if letter:
            self._checked(v.SILENCE)
            request = next((each for each in reversed(self.requests) if each.letter == letter), None)
            if request is None:
                self._wrong(v.SILENCE, f"audio of {letter}, and nobody asked for it")
                return
            self._heard(request, now_ns)
        if request is not None:
            request.n_frames += 1
        self.player.take("", 0, now_ns)

    def _heard(self, request: JoinedRequest, now_ns: int) -> None:
        letter = request.letter
        if request is not self._speaking:
            if request.is_passed and not request.is_moved:
                self._wrong(v.ORDER, f"audio of {letter} comes again behind another request")
            if self._speaking is not None:
                self._speaking.is_passed = True
            self._speaking = request
        request.first_ns = request.first_ns or now_ns
        if request.left_ns:
            late_ns = now_ns - request.left_ns
            what = f"audio of {letter} {late_ns / MS:.0f} ms after its client was gone"
            self._suspect(v.SILENCE, what, late_ns - _NOTICED_NS, request.left_ns, now_ns)
        elif request.ended_ns:
            was_over = request.dropped_ns and request.ended_ns < request.dropped_ns + CROSS_NS
            end_ns = max(request.ended_ns, request.again_until_ns) if was_over else request.ended_ns
            late_ns = now_ns - end_ns
            what = f"audio of {letter} {(now_ns - request.ended_ns) / MS:.0f} ms after the end of its response"
            self._suspect(v.DONE, what, late_ns - CROSS_NS, request.ended_ns - CROSS_NS, now_ns)

    def media_clear(self, now_ns: int) -> None:
        self._tally.counts["media clears"] += 1
        self.note(now_ns, "<", "clear")
        until_ns = max(now_ns, self.player.end_ns)
        self.player.drop(now_ns)
        for request in self.requests:
            if not request.ended_ns or now_ns - request.ended_ns < 2_000 * MS:
                request.is_moved = True
                request.dropped_ns, request.again_until_ns = now_ns, until_ns

    # --------------------------------------------------------------------- end

    def finish(self, *, is_torn: bool) -> None:
        self._tally.counts["calls"] += 1
        self._tally.counts["calls torn"] += is_torn
        for check, what, excess_ns, begin_ns, end_ns in self._suspicions:
            if excess_ns > self._stops.within(begin_ns, end_ns):
                self._wrong(check, what)
        whole = [request for request in self.requests if request.status == 200 and request.ended_ns]
        if is_torn or self._may_fail:
            return
        for request in whole:
            if not self.hung_up_ns or request.ended_ns < self.hung_up_ns - CROSS_NS:
                self._check_whole(request)
        heard = sorted((request for request in whole if request.first_ns), key=lambda each: each.first_ns)
        for earlier, later in itertools.pairwise(heard):
            self._checked(v.ORDER)
            apart_ns = earlier.asked_ns - later.asked_ns
            if apart_ns > _APART_NS + self._stops.within(later.asked_ns, earlier.asked_ns + _APART_NS):
                self._wrong(v.ORDER, f"{earlier.letter} is spoken before {later.letter}, which was asked for first")

    def _check_whole(self, request: JoinedRequest) -> None:
        """The caller has heard all of it, and its client got silence of the same length."""
        self._checked(v.DONE)
        heard_ms = request.n_frames * _FRAME_MS
        if heard_ms < request.n_chars * MS_PER_LETTER - MISSING_MS:
            what = f"{heard_ms} ms of {request.letter} were heard, of {request.n_chars} letters of {MS_PER_LETTER} ms"
            self._wrong(v.DONE, what)
        if not request.is_moved and abs(heard_ms - request.response_ms) > _PIECES_MS:
            what = f"the response of {request.letter} has {request.response_ms:.0f} ms, and {heard_ms} ms were heard"
            self._wrong(v.DONE, what)

    def wrong(self, check: str, what: str) -> None:
        self._wrong(check, what)

    def checked(self, check: str) -> None:
        self._checked(check)

    def _suspect(self, check: str, what: str, excess_ns: int, begin_ns: int, end_ns: int) -> None:
        if excess_ns > 0:
            self._suspicions.append((check, what, excess_ns, begin_ns, end_ns))

    def _checked(self, check: str) -> None:
        self._tally.n_checked[check] += 1

    def note(self, now_ns: int, who: str, what: str) -> None:
        """A line of the log of this call, written when something does not hold. A frame is its letter."""
        self._log.append((now_ns, who, what))

    def _wrong(self, check: str, what: str) -> None:
        self.note(self._log[-1][0] if self._log else 0, "!", f"{check}: {what}")
        if self._call is not None:
            self._tally.logs[self._call] = log_lines(self._log)
        self._tally.violations.append(Violation(check, what, self._call))
