"""The bot's tones: keys of the telephone, in order with speech.

Tones that come behind speech are an insert of its turn, or a turn of their own if that turn has all its text. In the
audio the insert is the tones. For a platform with a message of its own it is silence as long as the tones, and the
message is sent when the insert begins to be heard, as a mark would be reported. So speech behind the tones waits.
"""

from __future__ import annotations

from telephony_tts.session.digits import Digits
from telephony_tts.session.effects import Effect
from telephony_tts.session.intake import Intake
from telephony_tts.session.sender import Sender
from telephony_tts.session.settings import DtmfSettings
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import Configure, SendDtmf, WarningEvent

_MS = 1_000_000
_MOST_WAITING = 256
"""More requests of one call do not wait."""
_LEAST_PLATFORM_MS = 100
"""No platform is asked for a shorter tone: one PBX makes a tone of this length from it, and another one of 250 ms."""
_LONGEST_NS = 60_000_000_000
"""Tones that the platform sends by itself do not wait longer."""


class DtmfOut:
    """The bot's tones in one call. `turns` and `out` are the session's own lists."""

    def __init__(
        self, settings: DtmfSettings, turns: list[Turn], out: list[Effect], sender: Sender, intake: Intake
    ) -> None:
        self._settings = settings
        self._by = settings.by
        self._turns = turns
        self._out = out
        self._sender = sender
        self._intake = intake
        self.platform_can = False
        """The media leg has a message for tones."""

    def configure(self, message: Configure) -> None:
        self._by = message.dtmf or self._by

    def send(self, message: SendDtmf, rate_hz: int, now_ns: int, *, has_media: bool) -> None:
        """Send the tones behind all speech so far. `rate_hz` is the rate of the call's audio."""
        if not has_media or (self._by == "message" and not self.platform_can):
            why = "its dialect has no message for that" if has_media else "there is no media leg yet"
            self._intake.warn("dtmf_not_supported", f"the tones were not sent to the telephone side: {why}")
            return
        by_message = self.platform_can and self._by != "tones"
        on_ms = max(self._settings.on_ms, by_message * _LEAST_PLATFORM_MS)
        digits = Digits(message.digits, rate_hz, on_ms, self._settings.off_ms, by_message)
        if by_message and not self._turns and not self._sender.is_held:
            if self._sender.busy_until_ns - now_ns > _LONGEST_NS:
                self._intake.warn("dtmf_cleared", f"too many tones wait; not sent: {message.digits}")
                return
            self._out.append(digits.message)
            # A turn that comes meanwhile waits, and so does the end of the call.
            self._sender.make_way(digits.length_ms * _MS, now_ns)
            return
        if sum(isinstance(insert, Digits) for turn in self._turns for insert in turn.inserts()) >= _MOST_WAITING:
            self._intake.warn("dtmf_cleared", f"{_MOST_WAITING} requests wait; not sent: {message.digits}")
            return
        turn, is_own = self._intake.behind_all(now_ns)
        if turn is None:
            return
        if by_message:
            turn.read_all()
            turn.marks.ask(None, turn.n_chars, turn.n_inserts, digits)
        turn.insert(digits)
        if is_own:
            self._intake.close_turn(turn, now_ns)

    def cleared(self, turn: Turn, position: int) -> None:
        """The turn was interrupted when the caller had heard `position` samples: warn of tones that were not sent."""
        unsent = ""
        begun = {part.insert: part.start_sample for part in turn.parts if isinstance(part.insert, Digits)}
        for insert in turn.inserts():
            if isinstance(insert, Digits):
                start = begun.get(insert)
                n_heard = 0 if start is None else max(0, position - start)
                unsent += insert.unsent(n_heard * 1000 // turn.settings.rate_hz)
        if unsent:
            message = f"the turn was interrupted before these tones were sent: {unsent}"
            self._out.append(WarningEvent("dtmf_cleared", message, turn.id))
