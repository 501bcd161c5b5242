"""What may come next on the socket of a client that speaks a vendor's protocol (PROTOCOL.md §11). No I/O.

These protocols differ in their messages and agree in this: a text has audio of its own, ends once, and is silent after
its end. A text is a Flush of Deepgram, a context of ElevenLabs and of Cartesia.
"""

from __future__ import annotations

from dataclasses import dataclass

from torture import violations as v
from torture.letters import MS_PER_LETTER, FrameReader
from torture.violations import Stops, Tally, Violation

MS = 1_000_000
_UNDER_WAY_NS = 150 * MS
"""How long audio may still come that was sent before the server read a `cancel` without an answer."""
_SLICE = 160


@dataclass(slots=True)
class VendorText:
    key: str
    letter: str
    n_chars: int = 0
    is_complete: bool = False
    cancelled_ns: int | None = None
    is_over: bool = False
    n_bytes: int = 0


class VendorOracle:
    """`answers_cancel`: the server says when a text that was interrupted is over."""

    def __init__(
        self, tally: Tally, stops: Stops, *, call: int | None, answers_cancel: bool, may_fail: bool = False
    ) -> None:
        self._tally = tally
        self._stops = stops
        self._call = call
        self._answers_cancel = answers_cancel
        self._may_fail = may_fail
        self._reader = FrameReader()
        self.texts: dict[str, VendorText] = {}

    # --------------------------------------------------------------- the client

    def wrote(self, key: str, letter: str, text: str) -> None:
        if key not in self.texts:
            self._tally.counts["turns"] += 1
        self.texts.setdefault(key, VendorText(key, letter)).n_chars += len(text)

    def completed(self, key: str) -> None:
        self.texts[key].is_complete = True

    def cancelled(self, key: str, now_ns: int) -> None:
        self._tally.counts["clears"] += 1
        self.texts[key].cancelled_ns = now_ns

    # --------------------------------------------------------------- the server

    def audio(self, data: bytes, now_ns: int, key: str | None = None) -> None:
        """Audio of `key`, or of whichever text speaks."""
        self._tally.counts["frames"] += 1
        for at in range(0, len(data), _SLICE):
            part = data[at : at + _SLICE]
            letter = self._reader.letter(part)
            text = next((t for t in reversed(self.texts.values()) if t.letter == letter), None)
            if text is None:
                continue
            self._checked(v.SILENCE)
            text.n_bytes += len(part)
            if key is not None and text.key != key:
                self._wrong(v.ORDER, f"audio of {text.key} in a message of {key}")
            if text.is_over:
                self._wrong(v.SILENCE, f"audio of {text.key} after its end")
            elif text.cancelled_ns is not None and not self._answers_cancel:
                late_ns = now_ns - text.cancelled_ns - self._stops.within(text.cancelled_ns, now_ns)
                if late_ns > _UNDER_WAY_NS:
                    self._wrong(v.SILENCE, f"audio of {text.key} {late_ns / MS:.0f} ms after its cancel")
            if text.is_over or text.cancelled_ns is not None:
                return

    def ended(self, key: str) -> None:
        """The server says that a text is over."""
        self._checked(v.ONE_END)
        text = self.texts.get(key)
        if text is None:
            self._wrong(v.ONE_END, f"the end of the unknown text {key}")
        elif text.is_over:
            self._wrong(v.ONE_END, f"{key} ended twice")
        elif not text.is_complete and text.cancelled_ns is None:
            self._wrong(v.ONE_END, f"{key} ended, and its text is not complete")
        else:
            text.is_over = True
            self._checked(v.DONE)
            # A letter has 60 ms at 8 bytes a millisecond; the last word may end with silence.
            if text.cancelled_ns is None and not self._may_fail and text.n_bytes < text.n_chars * 200:
                self._wrong(v.DONE, f"{key} ended with {text.n_bytes} bytes of audio for {text.n_chars} characters")

    def failed(self, what: str) -> None:
        if not self._may_fail:
            self._wrong(v.ONE_END, f"the server reports an error: {what}")

    def silenced(self, keys: list[str]) -> None:
        """The server says that these texts were interrupted. No end of theirs comes."""
        for key in keys:
            self._checked(v.ONE_END)
            self.texts[key].is_over = True

    def finish(self, *, is_torn: bool) -> None:
        self._tally.counts["calls"] += 1
        if is_torn:
            self._tally.counts["calls torn"] += 1
            return
        for key in self.owed:
            self._wrong(v.ONE_END, f"{key} has not ended")

    def owed_s(self) -> float:
        """How long the texts take to be spoken whose end is owed."""
        return sum(self.texts[key].n_chars for key in self.owed) * MS_PER_LETTER / 1000

    @property
    def owed(self) -> list[str]:
        """The texts whose end the server still owes."""
        return [
            text.key for text in self.texts.values()
            if not text.is_over and (text.cancelled_ns is None or self._answers_cancel)
        ]  # fmt: skip

    def wrong(self, check: str, what: str) -> None:
        self._wrong(check, what)

    def _checked(self, check: str) -> None:
        self._tally.n_checked[check] += 1

    def _wrong(self, check: str, what: str) -> None:
        self._tally.violations.append(Violation(check, what, self._call))
