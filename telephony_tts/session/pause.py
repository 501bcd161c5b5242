"""Pausing the speech of a call: nothing is sent, and what was not heard is kept until speech goes on or is cleared.

A pause begins by the bot's `pause`, or by the caller's voice if `barge_in.action` is "pause", or by a hold of the
telephone. A pause by voice ends by itself: the caller was quick and is silent again, so it was no interruption; or the
caller goes on, so it was one. While the telephone is on hold no pause ends, and turns that come then wait too.
"""

from __future__ import annotations

from dataclasses import replace

from telephony_tts.session.caller.caller import Caller
from telephony_tts.session.effects import Effect
from telephony_tts.session.heard import boundary_sample, heard_offset, is_in_insert, tones_end
from telephony_tts.session.playhead import Playhead
from telephony_tts.session.sender import Sender
from telephony_tts.session.settings import BargeInSettings
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import Configure, Paused, Resumed

_MS = 1_000_000
_RECHECK_MS = 20


class SpeechPause:
    """The pause of one call. `turns` and `out` are the session's own lists."""

    def __init__(
        self, settings: BargeInSettings, turns: list[Turn], out: list[Effect], sender: Sender, playhead: Playhead,
        caller: Caller,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._turns = turns
        self._out = out
        self._sender = sender
        self._playhead = playhead
        self._caller = caller
        self._reason = ""
        self.is_on = False
        self.on_hold = False
        """The telephone is on hold."""

    @property
    def is_by_bot(self) -> bool:
        """Whether only the bot ends the pause."""
        return self.is_on and self._reason == "bot"

    def configure(self, message: Configure) -> None:
        """Take what the message says of pauses by voice."""
        old, new = self.settings, message
        self.settings = replace(
            old,
            action=new.barge_in_action or old.action,
            false_interruption_ms=new.false_interruption_ms or old.false_interruption_ms,
            resume_after_ms=old.resume_after_ms if new.resume_after_ms is None else new.resume_after_ms,
            step_back_ms=old.step_back_ms if new.step_back_ms is None else new.step_back_ms,
        )

    def begin(self, reason: str, now_ns: int, heard_ms: int | None) -> None:
        """Keep what was not heard, and tell the bot. There is at least one turn. `heard_ms` is the bot's own
        measurement in the first turn. A second `begin` only replaces the reason: a bot takes over a pause by voice."""
        positions = {turn: self._playhead.position(turn, now_ns) for turn in self._turns}
        first = self._turns[0]
        position, basis = positions[first]
        if heard_ms is not None and not self.is_on:
            position, basis = min(heard_ms * first.settings.rate_hz // 1000, first.n_sent_samples), "client"
        if not self.is_on:
            heard_samples = {turn: position for turn, (position, _) in positions.items()} | {first: position}
            places = {turn: self._place(turn, heard) for turn, heard in heard_samples.items()}
            self._sender.hold(heard_samples, places, now_ns)
        self.is_on = True
        self._reason = reason
        offset = first.in_source(heard_offset(first, position))
        heard_at_ms = position * 1000 // first.settings.rate_hz
        self._out.append(Paused(first.id, first.source[:offset], offset, heard_at_ms, basis, reason))

    def _place(self, turn: Turn, heard: int) -> int:
        """The sample from which a turn goes on. Tones that were heard are not repeated: a receiver would take them for
        more keys."""
        if heard >= turn.n_sent_samples and turn.sent_all:
            return turn.n_sent_samples  # heard to its end
        step_back = 0 if is_in_insert(turn, heard) else self.settings.step_back_ms * turn.settings.rate_hz // 1000
        return max(boundary_sample(turn, heard) - step_back, tones_end(turn, heard))

    def hold(self, is_on: bool, now_ns: int) -> None:
        """The telephone is on hold from now on, or not any more. What is paused for that goes on."""
        self.on_hold = is_on
        self._sender.is_held = is_on or self.is_on
        if not is_on:
            # A turn that has waited begins now; its wait counts as no latency.
            self._sender.media_end_ns = max(self._sender.media_end_ns, now_ns)
            if self.is_on and self._reason == "hold":
                self.end()

    def end(self) -> None:
        """Speech goes on, behind a hold if there is one."""
        if self.on_hold:
            self._reason = "hold"
            return
        self.drop()
        turn = next((turn for turn in self._turns if not turn.sent_all), None)
        if turn is not None:
            place = max(turn.n_sent_samples, turn.resumes_at or 0)
            self._out.append(Resumed(turn.id, place * 1000 // turn.settings.rate_hz))

    def drop(self) -> None:
        """The turns that were paused were cleared."""
        self.is_on = False
        self._sender.is_held = self.on_hold

    def poll(self, now_ns: int) -> tuple[str, int | None]:
        """What a pause by voice comes to: "resume", "interrupt" or "" (wait), and when to ask again."""
        if self._reason != "barge_in":
            return "", None
        settings, caller = self.settings, self._caller
        if caller.is_speaking:
            rest_ms = settings.false_interruption_ms - caller.spoken_ms
            return ("interrupt", None) if rest_ms <= 0 else ("", now_ns + max(rest_ms, _RECHECK_MS) * _MS)
        rest_ms = settings.resume_after_ms - caller.quiet_ms(now_ns)
        return ("resume", None) if rest_ms <= 0 else ("", now_ns + rest_ms * _MS)
