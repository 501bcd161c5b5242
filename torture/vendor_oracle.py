"""What may come next on the socket of a client that speaks a vendor's protocol (PROTOCOL.md §11). No I/O.

These protocols differ in their messages and agree in this: a text has audio of its own, ends once, and is silent after
its end. A text is a Flush of Deepgram, a speech of Flux, a context of ElevenLabs and of Cartesia, a task of DashScope.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torture import violations as v
from torture.letters import MS_PER_LETTER, FrameReader
from torture.violations import Stops, Tally, Violation

MS = 1_000_000
_UNDER_WAY_NS = 150 * MS
"""How long audio may still come that was sent before the server read a `cancel` without an answer."""
_SLICE_MS = 20

@dataclass(slots=True)
class VendorText:
    """`letter` is "" for a text without words. `told` is what the server said that it has spoken."""

    key: str
    letter: str
    source: str = ""
    is_complete: bool = False
    cancelled_ns: int | None = None
    has_begun: bool = False
    is_over: bool = False
    n_bytes: int = 0
    told: str = ""


class VendorOracle:
    """`answers_cancel`: the server says when a text that was interrupted is over. `tells_text`: it says what it has
    spoken of a text. `codec`: of the audio, which has 8000 Hz."""

    def __init__(
        self,
        tally: Tally,
        stops: Stops,
        *,
        call: int | None,
        answers_cancel: bool,
        tells_text: bool = False,
        may_fail: bool = False,
        codec: str = "ulaw",
    ) -> None:
        self._tally = tally
        self._stops = stops
        self._call = call
        self._answers_cancel = answers_cancel
        self._tells_text = tells_text
        self._may_fail = may_fail
        self._reader = FrameReader(codec)
        self.bytes_per_ms = 16 if codec == "pcm" else 8
        self._letter = ""
        """What is heard now."""
        self.texts: dict[str, VendorText] = {}
        self._answers: deque[tuple[str, ...]] = deque()
        """For each message that is answered at once and is not yet: its possible answers."""
        self._suspicions: list[tuple[str, str, int, int, int]] = []
        """(check, what, by how much it was beyond its tolerance, from when to when stops excuse it)."""
        self.is_refused = False
        """The client has sent what ends the connection. No end of a text is owed from then on."""

    # --------------------------------------------------------------- the client

    def wrote(self, key: str, letter: str, text: str) -> None:
        if key not in self.texts:
            self._tally.counts["turns"] += 1
        self.texts.setdefault(key, VendorText(key, letter)).source += text

    def completed(self, key: str) -> None:
        self.texts[key].is_complete = True

    def cancelled(self, key: str, now_ns: int) -> None:
        self._tally.counts["clears"] += 1
        self.texts[key].cancelled_ns = now_ns

    def asked(self, *answers: str) -> None:
        """The client sends something that is answered at once, by one of these. Such answers come in order."""
        self._answers.append(answers)

    @property
    def n_unanswered(self) -> int:
        return len(self._answers)

    # --------------------------------------------------------------- the server

    def audio(self, data: bytes, now_ns: int, key: str | None = None) -> None:
        """Audio of `key`, or of whichever text speaks."""
        self._tally.counts["frames"] += 1
        self._checked(v.FRAMES)
        if not data or len(data) % (self.bytes_per_ms // 8):
            self._wrong(v.FRAMES, f"{len(data)} bytes of audio, which are no whole samples")
        n_slice = _SLICE_MS * self.bytes_per_ms
        for at in range(0, len(data), n_slice):
            part = data[at : at + n_slice]
            # Where one tone ends and the next begins, a slice has sound and no letter.
            letter = self._reader.letter(part) or (self._letter if self._reader.sounds(part) else "")
            self._letter = letter
            text = next((t for t in reversed(self.texts.values()) if letter and t.letter == letter), None)
            self._checked(v.SILENCE)
            if text is None:
                if letter:
                    self._wrong(v.SILENCE, f"audio of {letter}, which no text has")
                continue
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

    def began(self, key: str) -> None:
        """The server says that a text begins. It says so once, before all else of that text."""
        self._checked(v.ORDER)
        text = self.texts.get(key)
        if text is None:
            self._wrong(v.ORDER, f"the beginning of the unknown text {key}")
        elif text.has_begun or text.is_over or text.n_bytes:
            when = "twice" if text.has_begun else "after its end" if text.is_over else "after its first audio"
            self._wrong(v.ORDER, f"{key} begins {when}")
        else:
            text.has_begun = True

    def told(self, key: str, spoken: str) -> None:
        """The server says that it has spoken the next part of a text."""
        self._checked(v.ORDER)
        text = self.texts.get(key)
        if text is None or text.is_over:
            self._wrong(v.ORDER, f"{spoken!r} of {key}, which is {'unknown' if text is None else 'over'}")
            return
        text.told += spoken
        if not _solid(text.source).startswith(_solid(text.told)):
            self._wrong(v.ORDER, f"{key} has spoken {text.told!r} of the text {text.source!r}")

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
            if text.cancelled_ns is None and not self._may_fail:
                self._check_whole(text)

    def _check_whole(self, text: VendorText) -> None:
        self._checked(v.DONE)
        # A slice at an end of a word may have too little of its tone.
        n_letters = text.source.count(text.letter) if text.letter else 0
        least_ms = n_letters * MS_PER_LETTER - 2 * _SLICE_MS * len(text.source.split())
        if text.n_bytes < least_ms * self.bytes_per_ms:
            self._wrong(v.DONE, f"{text.key} ended with {text.n_bytes} bytes of its tone for {n_letters} letters")
        if self._tells_text and _solid(text.told) != _solid(text.source):
            self._wrong(v.DONE, f"{text.key} ended, and {text.told!r} was told of the text {text.source!r}")

    def failed(self, what: str) -> None:
        if not self._may_fail:
            self._wrong(v.ONE_END, f"the server reports an error: {what}")

    def silenced(self, keys: list[str]) -> None:
        """The server says that these texts were interrupted. No end of theirs comes."""
        for key in keys:
            self._checked(v.ONE_END)
            self.texts[key].is_over = True

    def answered(self, answer: str) -> None:
        """The server answers the first message that was not answered yet."""
        self._checked(v.ANSWERS)
        expected = self._answers.popleft() if self._answers else ()
        if answer not in expected:
            self._wrong(v.ANSWERS, f"{answer}, expected {' or '.join(expected) or 'nothing'}")

    def suspect(self, check: str, what: str, excess_ns: int, begin_ns: int, end_ns: int) -> None:
        """Something is beyond its tolerance, if `excess_ns` is above 0. Stops may excuse it when they are known."""
        self._checked(check)
        if excess_ns > 0:
            self._suspicions.append((check, what, excess_ns, begin_ns, end_ns))

    def finish(self, *, is_torn: bool) -> None:
        self._tally.counts["calls"] += 1
        for check, what, excess_ns, begin_ns, end_ns in self._suspicions:
            if excess_ns > self._stops.within(begin_ns, end_ns):
                self._wrong(check, what)
        if is_torn:
            self._tally.counts["calls torn"] += 1
            return
        for key in self.owed:
            self._wrong(v.ONE_END, f"{key} has not ended")
        for answers in self._answers:
            self._wrong(v.ANSWERS, f"{' or '.join(answers)} did not come")

    def owed_s(self) -> float:
        """How long the texts take to be spoken whose end is owed."""
        return sum(len(self.texts[key].source) for key in self.owed) * MS_PER_LETTER / 1000

    @property
    def owed(self) -> list[str]:
        """The texts whose end the server still owes."""
        if self.is_refused:
            return []
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


def _solid(text: str) -> str:
    return "".join(text.split())
