"""The bot's text into turns: which turn a message is for, what is refused, and how much text may wait.

Turns are spoken in the order in which they were first mentioned. The id of a turn that is over is not used again: an
LLM's late tokens for an interrupted turn are dropped with one warning, so they do not start a new turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from telephony_tts.engines.api import Insert
from telephony_tts.session.effects import Effect
from telephony_tts.session.heard import place_marks
from telephony_tts.session.language import CallLanguage
from telephony_tts.session.lexicons import CallLexicon
from telephony_tts.session.markup import KnowsVoice, TurnMarkup
from telephony_tts.session.settings import SessionSettings, TurnVoice
from telephony_tts.session.turn import MayWork, Turn
from telephony_tts.text.ssml import begins_with_speak
from telephony_tts.text.thinking import Thinking, may_begin_with_thinking
from telephony_tts.wire import messages as m

_REMEMBERED_TURNS = 256
_S = 1_000_000_000
_RETRYABLE = ("rate_limited", "queue_full")

Quota = Callable[[int], str | None]
"""Counts characters. Returns why they may not be used; then they are not counted."""


class Intake:
    """Creates turns and fills them. `turns` and `out` are the session's own lists."""

    def __init__(
        self,
        settings: SessionSettings,
        turns: list[Turn],
        out: list[Effect],
        now_ns: int,
        language: CallLanguage,
        knows_voice: KnowsVoice | None = None,
        may_work: MayWork | None = None,
    ) -> None:
        """Without `may_work` a turn's text is cut in a few pieces at once, until the next look."""
        self.settings = settings
        self._language = language
        self._knows_voice = knows_voice
        self._may_work = may_work
        self.text_waits = False
        """There was no time for some of the text. Who gives the time says when there is more."""
        self._limits = settings.limits
        self._turns = turns
        self._out = out
        self.speaking = _voice_of(settings)
        self.text_type = settings.text_type
        self.thinking = settings.thinking
        self.closing = False
        self.gives_way = False
        """An open turn whose text is all spoken ends when another turn waits."""
        self._implicit: Turn | None = None
        self._n_turns = 0
        self._ended: OrderedDict[str, str] = OrderedDict()
        """Ids of turns that are over, and how they ended."""
        self._warned_late: set[str] = set()
        self._paused = False
        self._budget_chars = float(self._burst_chars)
        self._budget_ns = now_ns
        self.quota: Quota | None = None
        """Of whom the call belongs to. None: no quota."""

    # ---------------------------------------------------------------- text

    def say(
        self, text: str, turn_id: str | None, now_ns: int, text_type: str | None = None, *, private: bool = False,
        traceparent: str | None = None,
    ) -> None:  # fmt: skip
        """A whole turn. `text_type` is "text" or "ssml", None for what the call has."""
        if turn_id is not None and any(turn.id == turn_id for turn in self._turns):
            self._refuse("turn_exists", f"turn {turn_id} is still being spoken; use a new id", about=turn_id)
            return
        if self._implicit is not None:
            # A bot that begins a whole turn adds nothing to the turn that it left open.
            self.close_turn(self._implicit, now_ns)
        turn = self._new(turn_id, text, now_ns, text_type, whole=True)
        if turn is not None:
            turn.is_private, turn.traceparent = private, traceparent
            turn.append(text, now_ns)
            self.close_turn(turn, now_ns)

    def text(
        self, text: str, turn_id: str | None, last: bool, now_ns: int, text_type: str | None = None, *,
        private: bool = False, traceparent: str | None = None,
    ) -> None:  # fmt: skip
        """A piece of a turn. `text_type`, `private` and `traceparent` of the first piece hold for the turn."""
        turn = self._find(turn_id) if turn_id is not None else self._implicit
        if turn is None:
            turn = self._new(turn_id, text, now_ns, text_type)
            if turn is None:
                return
            turn.is_private, turn.traceparent = private, traceparent
            if turn_id is None:
                self._implicit = turn
        elif turn.closed:
            self._refuse("turn_closed", f"turn {turn.id} was ended; its text is complete", about=turn.id)
            return
        elif not self._fits(turn, len(text), now_ns):
            if last:
                self.close_turn(turn, now_ns)
            return
        turn.append(text, now_ns)
        if turn.markup is not None:
            self._heed(turn, turn.markup)
        if last:
            self.close_turn(turn, now_ns)

    def insert(self, insert: Insert, turn_id: str | None, now_ns: int) -> Turn | None:
        """Play `insert` behind the text so far of the named turn, or of the turn that is open. If no turn is open, the
        insert is a turn of its own. None if it was refused."""
        turn = self._find(turn_id) if turn_id is not None else self._open_turn()
        if turn is not None and turn.closed:
            self._refuse("turn_closed", f"turn {turn.id} was ended; its text is complete", about=turn.id)
            return None
        is_own = turn is None
        turn = turn or self._new(turn_id, "", now_ns, "text")
        if turn is not None:
            turn.insert(insert)
            if is_own:
                turn.close(now_ns)
        return turn

    def behind_all(self, now_ns: int) -> tuple[Turn | None, bool]:
        """(the turn whose end is behind all text of the call, whether it was made for that). The last turn if it is
        open, else a new one, or None if that was refused."""
        if self._turns and not self._turns[-1].closed:
            return self._turns[-1], False
        return self._new(None, "", now_ns, "text"), True

    def close_turn(self, turn: Turn, now_ns: int) -> None:
        """No more text for this turn."""
        turn.close(now_ns)
        if turn.markup is not None:
            self._heed(turn, turn.markup)
        if turn is self._implicit:
            self._implicit = None

    def _heed(self, turn: Turn, markup: TurnMarkup) -> None:
        """Set the marks of a turn's markup, and tell the bot what is wrong with it."""
        for name, offset, n_inserts in markup.marks:
            if self._may_mark(name, turn):
                turn.marks.ask(name, offset, n_inserts)
        markup.marks.clear()
        for code, message in markup.warnings:
            self.warn(code, message, turn.id)
        markup.warnings.clear()

    def close_all(self, now_ns: int) -> None:
        self.closing = True
        for turn in self._turns:
            self.close_turn(turn, now_ns)

    def watch(self, now_ns: int) -> int | None:
        """End turns that the bot left open, and cut the text into sentences. Returns when to look again."""
        wake: list[int] = []
        self.text_waits = False
        turn_idle_s = self._limits.turn_idle_s
        for turn in self._turns:
            if turn_idle_s and not turn.closed:
                at_ns = turn.last_text_ns + turn_idle_s * _S
                if now_ns >= at_ns:
                    self.warn("turn_timeout", "no text for too long: the turn was ended", turn.id)
                    self.close_turn(turn, now_ns)
                else:
                    wake.append(at_ns)
            if turn.cut(now_ns, self._may_work):
                if self._may_work is None:
                    wake.append(now_ns)
                else:
                    self.text_waits = True
            if turn.markup is not None:
                self._heed(turn, turn.markup)
            if turn.marks.live:
                # Before the frames are sent: a mark must follow its own frame, not the whole lead.
                place_marks(turn)
            if turn.closed:
                continue
            timeout_ns = turn.text_timeout_ns()
            if timeout_ns is not None and now_ns >= timeout_ns:
                turn.text_timed_out(now_ns)
                timeout_ns = turn.text_timeout_ns()
            if timeout_ns is not None:
                wake.append(timeout_ns)
        if self.gives_way:
            for turn in self._turns[:-1]:
                # White space behind the last sentence is no text that waits.
                if not turn.closed and not turn.pending_text and turn.n_done == len(turn.parts):
                    self.close_turn(turn, now_ns)
                if turn.closed and self.settings.parallel_turns:
                    turn.hurry()
        return min(wake) if wake else None

    def named(self, turn_id: str | None, verb: str) -> Turn | None:
        """The open turn that a verb is for: the named one, else the implicit one, else the newest open one."""
        if turn_id is not None:
            turn = self._find(turn_id)
            if turn is None:
                self.warn("no_active_turn", f"{verb}: no turn {turn_id} is open", turn_id)
            return turn
        turn = self._open_turn()
        if turn is None:
            self.warn("no_active_turn", f"{verb}: no turn is open")
        return turn

    def _open_turn(self) -> Turn | None:
        """The implicit turn, else the newest open one."""
        return self._implicit or next((turn for turn in reversed(self._turns) if not turn.closed), None)

    def for_mark(self, mark: m.Mark) -> Turn | None:
        """The turn that a mark belongs to. None if the mark was answered here, because nothing is left to play."""
        turn_id = mark.turn
        if turn_id is not None:
            turn = self._find(turn_id)
        else:
            turn = self._implicit or (self._turns[-1] if self._turns else None)
            if turn is None and self._ended:
                # The bot may not know yet that its turn was interrupted, so the mark has that turn's fate.
                turn_id = next(reversed(self._ended))
        if turn is not None:
            return turn if self._may_mark(mark.name, turn) else None
        if turn_id is not None and turn_id not in self._ended:
            self._refuse("unknown_turn", f"mark {mark.name}: no turn {turn_id}", about=turn_id)
            return None
        is_played = turn_id is None or self._ended[turn_id] == "done"
        self._out.append(m.MarkReached(mark.name, "played" if is_played else "cleared", turn_id))
        return None

    def _may_mark(self, name: str, turn: Turn) -> bool:
        """Whether one more mark may wait. Otherwise it ends here."""
        n_pending = sum(not mark.is_ours for turn in self._turns for mark in turn.marks.live)
        if n_pending < self.settings.pending_marks:
            return True
        self._refuse("too_many_marks", f"{n_pending} marks are waiting; mark {name} was not set", turn=None)
        self._out.append(m.MarkReached(name, "cleared", turn.id))
        return False

    def configure(self, message: m.Configure) -> None:
        """Voice settings for the turns that begin after this."""
        old, first = self.speaking, self.settings
        self.speaking = TurnVoice(
            voice=old.voice if message.voice is None else message.voice or first.voice,
            lang=old.lang if message.lang is None else message.lang or first.lang,
            speed=old.speed if message.speed is None else message.speed or first.speed,
            seed=old.seed if message.seed is None else message.seed,
            instruct=old.instruct if message.instruct is None else message.instruct or None,
            lexicon=old.lexicon if message.lexicon is None else self._with_entries(message.lexicon),
        )
        self.text_type = message.text_type or self.text_type
        self.thinking = message.thinking or self.thinking

    @property
    def has_begun(self) -> bool:
        return self._n_turns > 0

    def start_with(self, before: SessionSettings, after: SessionSettings) -> None:
        """See `Session.start_with`."""
        self.settings = after
        names = ("voice", "lang", "speed")
        is_kept = {name: getattr(self.speaking, name) != getattr(before, name) for name in names}
        changes: dict[str, Any] = {name: getattr(after, name) for name in names if not is_kept[name]}
        self.speaking = replace(self.speaking, **changes)

    def use_lexicons(self, names: Sequence[str]) -> None:
        """Turns that begin after this are read with these lexicons of the server too."""
        if names and self.speaking.lexicon is not None:
            self.speaking = replace(self.speaking, lexicon=self.speaking.lexicon.with_names(names))

    def _with_entries(self, entries: Mapping[str, str]) -> CallLexicon | None:
        """The lexicons of the call with these entries of the bot in place of its earlier ones."""
        lexicon, problems = (self.speaking.lexicon or CallLexicon()).with_own(entries)
        for problem in problems:
            self.warn("bad_lexicon_entry", f"lexicon: {problem}")
        is_empty = self.settings.lexicon is None and lexicon.own is None
        return None if is_empty else lexicon

    def new_bot(self, settings: SessionSettings) -> None:
        """Forget what the bot before had chosen. Its turns are over."""
        self.settings = settings
        self._limits = settings.limits
        self.speaking = _voice_of(settings)
        self.text_type = settings.text_type
        self.thinking = settings.thinking
        self._implicit = None
        self._ended.clear()
        self._warned_late.clear()

    def forget(self, turn: Turn, outcome: str) -> None:
        """The turn is over."""
        if turn is self._implicit:
            self._implicit = None
        self._remember(turn.id, outcome)

    def warn(self, code: str, message: str, turn_id: str | None = None) -> None:
        self._out.append(m.WarningEvent(code, message, turn_id))

    # -------------------------------------------------------------- limits

    def balance(self) -> int:
        """Ask the bot to pause or resume its text. Returns how many characters wait."""
        waiting = sum(turn.waiting_chars for turn in self._turns)
        if not self._paused and waiting > self.settings.pause_chars:
            self._paused = True
            self._out.append(m.Pause(waiting))
        elif self._paused and waiting <= self.settings.resume_chars:
            self._paused = False
            self._out.append(m.Resume(waiting))
        return waiting

    def _new(
        self, turn_id: str | None, text: str, now_ns: int, text_type: str | None, *, whole: bool = False
    ) -> Turn | None:
        """A turn that begins with `text`, which the caller adds. None if it is refused."""
        n_chars = len(text)
        if turn_id is not None and turn_id in self._ended:
            if turn_id not in self._warned_late:
                self._warned_late.add(turn_id)
                self.warn("turn_ended", f"turn {turn_id} is over; its late text is dropped", turn_id)
            return None
        may_come_again = whole and turn_id is not None
        if turn_id is None:
            turn_id = self._free_id()
        refusal = None
        if self.closing:
            refusal = ("closing", "the call is closing and takes no more turns")
        elif len(self._turns) >= self._limits.queued_turns:
            refusal = ("queue_full", f"{len(self._turns)} turns are waiting, the limit is {self._limits.queued_turns}")
        elif n_chars > self._limits.turn_chars:
            refusal = ("text_too_long", f"{n_chars} characters in one turn, the limit is {self._limits.turn_chars}")
        elif not self._spend(n_chars, now_ns):
            refusal = ("rate_limited", f"more than {self._limits.text_chars_per_s} characters a second")
        elif self.quota is not None and (why := self.quota(n_chars)) is not None:
            refusal = ("key_limit", why)
        if refusal is not None:
            self._refuse(*refusal, turn=turn_id)
            if not (may_come_again and refusal[0] in _RETRYABLE):
                # Otherwise the rest of a streamed turn would begin in the middle. A whole turn can be sent again.
                self._remember(turn_id, "error")
            return None
        self._n_turns += 1
        markup = self._markup(text, text_type or self.text_type)
        thinking = Thinking(is_spoken=self.thinking == "spoken")
        turn = Turn(turn_id, self._n_turns, self.settings, self.speaking, self._language, now_ns, thinking, markup)
        self._turns.append(turn)
        return turn

    def _markup(self, text: str, text_type: str) -> TurnMarkup | None:
        """What reads a turn that begins with `text`. None for plain text."""
        is_plain = begins_with_speak(text) is False and not may_begin_with_thinking(text)
        if text_type == "text" or (text_type == "auto" and is_plain):
            return None
        return TurnMarkup(is_certain=text_type == "ssml", knows_voice=self._knows_voice)

    def _fits(self, turn: Turn, n_chars: int, now_ns: int) -> bool:
        """True if an open turn may have this much more text. Otherwise it keeps its text, and the bot gets an error."""
        n_together = turn.n_source_chars + n_chars
        if n_together > self._limits.turn_chars:
            message = f"{n_together} characters in one turn, the limit is {self._limits.turn_chars}"
            self._refuse("text_too_long", message, about=turn.id)
            return False
        if not self._spend(n_chars, now_ns):
            message = f"more than {self._limits.text_chars_per_s} characters a second"
            self._refuse("rate_limited", message, about=turn.id)
            return False
        if self.quota is not None and (why := self.quota(n_chars)) is not None:
            self._refuse("key_limit", why, about=turn.id)
            return False
        return True

    @property
    def _burst_chars(self) -> int:
        """How many characters may come at once: at least a turn of the greatest length."""
        return max(2 * self._limits.text_chars_per_s, 2 * self._limits.turn_chars)

    def _spend(self, n_chars: int, now_ns: int) -> bool:
        rate = self._limits.text_chars_per_s
        if not rate:
            return True
        earned = (now_ns - self._budget_ns) * rate / 1e9
        self._budget_chars = min(self._burst_chars, self._budget_chars + earned)
        self._budget_ns = now_ns
        if n_chars > self._budget_chars:
            return False
        self._budget_chars -= n_chars
        return True

    def _refuse(self, code: str, message: str, *, turn: str | None = None, about: str | None = None) -> None:
        retry_after_ms = 1000 if code in _RETRYABLE else None
        self._out.append(
            m.ErrorEvent(code, message, turn=turn, about=about, retryable=retry_after_ms is not None,
                         retry_after_ms=retry_after_ms)
        )

    def _find(self, turn_id: str) -> Turn | None:
        return next((turn for turn in self._turns if turn.id == turn_id), None)

    def _free_id(self) -> str:
        number = self._n_turns + 1
        while self._find(f"t{number}") is not None or f"t{number}" in self._ended:
            number += 1
        return f"t{number}"

    def _remember(self, turn_id: str, outcome: str) -> None:
        self._ended[turn_id] = outcome
        self._ended.move_to_end(turn_id)
        if len(self._ended) > _REMEMBERED_TURNS:
            forgotten, _ = self._ended.popitem(last=False)
            self._warned_late.discard(forgotten)


def _voice_of(settings: SessionSettings) -> TurnVoice:
    """What a bot begins with."""
    return TurnVoice(settings.voice, settings.lang, settings.speed, None, None, settings.lexicon)
