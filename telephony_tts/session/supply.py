"""Sentences to the engine: one at a time, early enough that joints have no gap, never further ahead than `ahead_ms`.

Chunks are pulled in runs: once full, nothing is asked for until half a second has been played. An engine that is
woken for every 100 ms it may make costs more in waking than in encoding (docs/experiments.md).
"""

from __future__ import annotations

from telephony_tts.session.effects import CancelUtterance, Effect, FeedText, Pull, Synthesize
from telephony_tts.session.turn import Part, Turn

_RUN_NS = 500_000_000


class Supply:
    """Keeps the call's encoders fed. `turns` and `out` are the session's own lists."""

    def __init__(self, turns: list[Turn], out: list[Effect], ahead_ns: int, patience_ns: int) -> None:
        self._turns = turns
        self._out = out
        self.keep_ahead(ahead_ns)
        self._filling = True
        self._patience_ns = patience_ns
        self._asked_ns = 0
        self._active: tuple[Turn, Part] | None = None
        self._hungry = False
        """A chunk has come and the engine waits to be asked for the next one."""

    def keep_ahead(self, ahead_ns: int) -> None:
        """Make speech so far ahead of the listener, and no further."""
        self._ahead_ns = ahead_ns
        self._refill_ns = ahead_ns - min(_RUN_NS, ahead_ns // 2)

    def poll(self, now_ns: int, media_end_ns: int) -> int | None:
        """Submit or pull what is wanted now; returns when to look again."""
        if self._active is not None:
            self._feed(self._active[0], self._active[1], now_ns)
            if self._hungry:
                dry_ns = self.dry_ns(now_ns, media_end_ns)
                is_whole = self._active[0].settings.whole_sentences  # the peer waits for all of it
                if not is_whole and dry_ns - (self._ahead_ns if self._filling else self._refill_ns) > now_ns:
                    self._filling = False
                    return dry_ns - self._refill_ns
                utterance = self._active[1].utterance
                assert utterance is not None
                self._filling = True
                self._ask(now_ns)
                self._out.append(Pull(utterance.id))
            return self._patient_until_ns()
        candidate = self._next(now_ns)
        if candidate is None:
            return None
        turn, part = candidate
        # Whole sentences apart there is no gate: the end of the utterance before was itself pulled no earlier than
        # `ahead` before it is needed.
        dry_ns = self.dry_ns(now_ns, media_end_ns)
        if turn.settings.whole_sentences and dry_ns - self._ahead_ns > now_ns:
            return dry_ns - self._ahead_ns
        deadline_ns = dry_ns if dry_ns > now_ns else min(now_ns, part.ready_ns)
        self._active = candidate
        self._ask(now_ns)
        self._out.append(Synthesize(turn.submit(part, deadline_ns, now_ns)))
        return self._patient_until_ns()

    def _feed(self, turn: Turn, part: Part, now_ns: int) -> None:
        """Give the engine what the bot has written of the sentence it has begun."""
        more = turn.more_text()
        if more is not None:
            assert part.utterance is not None
            text, last = more
            self._asked_ns = now_ns
            self._out.append(FeedText(part.utterance.id, text, last))

    def _patient_until_ns(self) -> int | None:
        """When the engine will have been silent for too long; None while it may be waiting for the bot's text."""
        if self._active is None or self._active[0].waits_for_bot:
            return None
        return self._asked_ns + self._patience_ns

    def _ask(self, now_ns: int) -> None:
        self._hungry = False
        self._asked_ns = now_ns

    def stuck(self, now_ns: int) -> Turn | None:
        """The turn whose engine was asked for audio and has given none for longer than a caller would wait.

        A sentence that is still being written is waited for with it; the time counts from the end of its text.
        """
        if self._active is None or self._hungry:
            return None
        until_ns = self._patient_until_ns()
        return self._active[0] if until_ns is not None and now_ns >= until_ns else None

    def _next(self, now_ns: int) -> tuple[Turn, Part] | None:
        """The next sentence in speaking order; a turn still open holds back the turns after it.

        Where none is complete, it is the beginning of the one being written, if the call speaks interleaved.
        """
        for turn in self._turns:
            part = turn.next_part()
            if part is not None:
                return turn, part
            if not turn.text_exhausted:
                part = turn.open_part(now_ns)
                return (turn, part) if part is not None else None
        return None

    def dry_ns(self, now_ns: int, media_end_ns: int) -> int:
        """When the caller would hear silence if nothing more came from the engine."""
        at_ns = max(now_ns, media_end_ns)
        for turn in self._turns:
            if turn.sent_all:
                continue
            if turn.playout.t0_ns is not None:
                at_ns = max(now_ns, turn.playout.due_ns())
            at_ns += turn.ready_ns()
        return at_ns

    def part_of(self, utterance_id: str) -> tuple[Turn, Part] | None:
        """The turn and the part of the active utterance. None for any other: its turn is over."""
        if self._active is None:
            return None
        utterance = self._active[1].utterance
        return self._active if utterance is not None and utterance.id == utterance_id else None

    def chunk_came(self, utterance_id: str) -> tuple[Turn, Part] | None:
        """An engine gave a chunk: `part_of` it. The engine waits until it is asked for the next one."""
        found = self.part_of(utterance_id)
        if found is not None:
            self._hungry = True
        return found

    def ended(self) -> None:
        """The active utterance is complete."""
        self._active = None

    def drop(self, turn: Turn) -> None:
        """The turn was interrupted: cancel its utterance if one is in the engine."""
        if self._active is not None and self._active[0] is turn:
            utterance = self._active[1].utterance
            assert utterance is not None
            self._active = None
            self._out.append(CancelUtterance(utterance.id))
