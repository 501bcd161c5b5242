"""What sounds have to do (docs/protocol/sounds.md §6.16): under the speech, and those that have an address. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torture.sound_server import BAD, EITHER, PATH
from torture.violations import CROSS_NS, Stops

MS = 1_000_000
_BEGINS_NS = 1000 * MS
"""A sound under the speech is loaded within this time, and is heard while nothing is spoken."""
_GAP_NS = 500 * MS
_ENDS_NS = 1000 * MS
"""What was sent ahead of the end of a sound is over by then."""
_GOOD_IN_NS = 100 * MS
"""A shorter stop of the server keeps it from no sound that is sent at once."""
_CONTINUOUS = 15
"""So many frames with sound and without a letter are a sound. Between two letters there are fewer."""


def kind_of(url: str) -> str:
    """What the torture's server has at this address."""
    return url.partition(PATH)[2].partition(".")[0]


class SoundRules:
    """One call. `wrong` has what did not hold."""

    def __init__(self, stops: Stops) -> None:
        self._stops = stops
        self.wrong: list[str] = []
        self._bed_ns: int | None = None
        """Since when a sound under the speech is wanted."""
        self._bed_turn = ""
        self._n_beds = 0
        self._had_bed_until_ns = 0
        self._must_sound_ns = 0
        """From then on the sound has to be heard, if nothing is spoken."""
        self._gaps: list[tuple[int, int]] = []
        self._n_in_a_row = 0
        self._may_sound_ns = 0
        """Until then sounds may be heard that were asked for."""
        self._bad: Counter[str] = Counter()
        """How many errors are owed about each turn."""
        self._refused: Counter[str] = Counter()
        """How many messages for each turn came too late."""
        self._either: Counter[str] = Counter()
        self._asked_ns: dict[str, int] = {}

    def asked(self, message: dict[str, Any], now_ns: int) -> None:
        """The bot sends `play`."""
        if message.get("stop"):
            self._bad.clear()  # a sound that waits is not looked for any more
            self.bed_over(now_ns)
            self._may_sound_ns = now_ns + _ENDS_NS
        elif message.get("under"):
            self.silent_until(now_ns, is_spoken=False)
            self._n_beds += 1
            self._bed_ns, self._bed_turn = now_ns, message.get("turn", "")
            self._must_sound_ns = now_ns + _BEGINS_NS
        elif "url" in message:
            turn, kind = message["turn"], kind_of(message["url"])
            self._bad[turn] += kind in BAD
            self._either[turn] += kind not in BAD
            if kind in EITHER:
                self._asked_ns[turn] = 0
            else:
                self._asked_ns.setdefault(turn, now_ns)

    def not_possible(self) -> None:
        """The leg cannot have sounds under the speech."""
        self._n_beds -= 1
        if self._n_beds < 0:
            self.wrong.append("bed_not_supported came, and no sound under the speech was wanted")
        self._bed_ns = None

    def joined(self, now_ns: int) -> None:
        """The media leg is there."""
        self._must_sound_ns = max(self._must_sound_ns, now_ns + _BEGINS_NS)

    def bed_over(self, now_ns: int) -> None:
        """No sound under the speech is wanted any more."""
        self.silent_until(now_ns, is_spoken=False)
        if self._bed_ns is not None:
            self._had_bed_until_ns = now_ns + _ENDS_NS
        self._bed_ns = None

    def turn_over(self, turn: str, end: str, now_ns: int) -> None:
        """A turn has ended. Errors about its sounds come before that."""
        n_unsaid = self._bad[turn] - self._refused[turn]
        if end == "done" and n_unsaid > 0:
            self.wrong.append(f"{turn} is done, and nothing was said about {n_unsaid} bad sounds")
        if self._bed_turn == turn and self._bed_ns is not None:
            self.bed_over(now_ns)
        if end != "done":
            # Frames of its sounds may be on their way over the other connection, until the media leg's `clear`.
            self._may_sound_ns = max(self._may_sound_ns, now_ns + CROSS_NS)

    def refused(self, turn: str) -> None:
        """Something for a turn was refused, because the server had ended it. That may have been a bad sound."""
        self._refused[turn] += 1

    def error(self, turn: str, code: str, now_ns: int) -> None:
        """An error about a turn's sound came."""
        if code != "bad_sound":
            self.wrong.append(f"{code} about {turn}, whose sounds are there")
        elif self._bad[turn] > 0:
            self._bad[turn] -= 1
        elif turn not in self._asked_ns:
            self.wrong.append(f"bad_sound about {turn}, which has no sound with an address")
        elif self._asked_ns[turn] and self._stops.within(self._asked_ns[turn], now_ns) < _GOOD_IN_NS:
            self.wrong.append(f"bad_sound about {turn}, whose sounds can be played")

    def may_hear(self, now_ns: int) -> bool:
        """Whether a sound under the speech may be heard now."""
        lost_ns = self._stops.within(self._had_bed_until_ns - _ENDS_NS, now_ns)
        return self._bed_ns is not None or now_ns <= self._had_bed_until_ns + lost_ns

    def played_until(self, end_ns: int) -> None:
        """The telephone side has enough to play until then, so no sound has to come before."""
        self._must_sound_ns = max(self._must_sound_ns, end_ns + _GAP_NS)

    def frame(self, now_ns: int, *, sounds: bool, is_spoken: bool, may_be_other: bool) -> None:
        """A frame without a letter came. `is_spoken`: a turn lives. `may_be_other`: a sound or tones are being
        played."""
        self._n_in_a_row = self._n_in_a_row + 1 if sounds else 0
        if sounds:
            self.silent_until(now_ns, is_spoken=is_spoken)
            self._must_sound_ns = max(self._must_sound_ns, now_ns + _GAP_NS)
        if self._n_in_a_row == _CONTINUOUS and not may_be_other and not self.may_hear(now_ns):
            lost_ns = self._stops.within(self._may_sound_ns - _ENDS_NS, now_ns)
            if now_ns > self._may_sound_ns + lost_ns:
                self.wrong.append("a sound is heard that nobody has asked for, or that was stopped")

    def letter(self) -> None:
        """A frame of speech came."""
        self._n_in_a_row = 0

    def silent_until(self, now_ns: int, *, is_spoken: bool) -> None:
        """No frame has come until now. `is_spoken`: a turn lived in that time, so silence proves nothing."""
        if self._bed_ns is not None and not is_spoken and now_ns > self._must_sound_ns:
            self._gaps.append((self._must_sound_ns, now_ns))
        self._must_sound_ns = max(self._must_sound_ns, now_ns + _GAP_NS)

    def finish(self, now_ns: int) -> list[str]:
        for begin_ns, end_ns in self._gaps:
            if end_ns - begin_ns > self._stops.within(begin_ns - _GAP_NS, end_ns):
                gap_ms = (end_ns - begin_ns) // MS + _GAP_NS // MS
                self.wrong.append(f"the sound under the speech was not heard for {gap_ms} ms")
        return self.wrong
