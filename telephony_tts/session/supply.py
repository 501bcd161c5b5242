"""Sentences to the engine: one at a time, early enough to leave no gap, never further ahead than `ahead_ms`.

Chunks are pulled in runs: when enough is synthesised, nothing is pulled until half a second has been played. To wake
an engine for every 100 ms of speech costs more than to encode that speech (docs/experiments.md).
"""

from __future__ import annotations

from telephony_tts.session.effects import CancelSynthesis, Effect, FeedText, Pull, Synthesize
from telephony_tts.session.turn import Part, Turn

_RUN_NS = 500_000_000
_HELD_NS = 5_000_000_000
_INSERT_AHEAD_NS = 1_500_000_000
"""How far ahead a peer that plays files gets sounds: what it has of a sound delays the speech behind it."""


class Supply:
    """Keeps the call's encoders fed. `turns` and `out` are the session's own lists."""

    def __init__(self, turns: list[Turn], out: list[Effect], ahead_ns: int, timeout_ns: int) -> None:
        self._turns = turns
        self._out = out
        self.keep_ahead(ahead_ns)
        self._filling = True
        self.is_held = False
        """The socket is full. Only a little speech is made until it takes more, however far ahead it should be."""
        self._timeout_ns = timeout_ns
        self._pulled_ns = 0
        self._active: tuple[Turn, Part] | None = None
        self._waits_for_pull = False
        """A chunk has come, and the engine waits until the next one is pulled."""

    def keep_ahead(self, ahead_ns: int) -> None:
        """Synthesise speech this far ahead of the listener, and no further."""
        self._ahead_ns = ahead_ns
        self._refill_ns = ahead_ns - min(_RUN_NS, ahead_ns // 2)

    def poll(self, now_ns: int, media_end_ns: int) -> int | None:
        """Submit or pull what is needed now. Returns when to look again."""
        is_idle = self._active is None or self._waits_for_pull
        if self.is_held and is_idle and sum(turn.ready_ns() for turn in self._turns) > _HELD_NS:
            return None
        if self._active is not None:
            self._feed(self._active[0], self._active[1], now_ns)
            if self._waits_for_pull:
                dry_ns = self.dry_ns(now_ns, media_end_ns)
                is_whole = self._active[0].settings.whole_sentences  # the peer waits for the whole sentence
                ahead_ns, refill_ns = self._ahead_ns, self._refill_ns
                if self._active[1].insert is not None and ahead_ns > _INSERT_AHEAD_NS:
                    ahead_ns, refill_ns = _INSERT_AHEAD_NS, _INSERT_AHEAD_NS - _RUN_NS  # it may be endless
                if not is_whole and dry_ns - (ahead_ns if self._filling else refill_ns) > now_ns:
                    self._filling = False
                    return dry_ns - refill_ns
                utterance = self._active[1].utterance
                assert utterance is not None
                self._filling = True
                self._note_pull(now_ns)
                self._out.append(Pull(utterance.id))
            return self._times_out_ns()
        candidate = self._next(now_ns)
        if candidate is None:
            return None
        turn, part = candidate
        # Only whole sentences need this check. Otherwise the end of the utterance before was pulled in time: no earlier
        # than `ahead` before it is needed.
        dry_ns = self.dry_ns(now_ns, media_end_ns)
        ahead_ns = self._ahead_ns if part.insert is None else min(self._ahead_ns, _INSERT_AHEAD_NS)
        if turn.settings.whole_sentences and dry_ns - ahead_ns > now_ns:
            return dry_ns - ahead_ns
        deadline_ns = dry_ns if dry_ns > now_ns else min(now_ns, part.ready_ns)
        deadline_ns += turn.settings.patience_ms * 1_000_000
        self._active = candidate
        self._note_pull(now_ns)
        self._out.append(Synthesize(turn.submit(part, deadline_ns, now_ns)))
        return self._times_out_ns()

    def _feed(self, turn: Turn, part: Part, now_ns: int) -> None:
        """Give the engine the new text of the sentence that it speaks."""
        more = turn.more_text()
        if more is not None:
            assert part.utterance is not None
            text, last = more
            self._pulled_ns = now_ns
            self._out.append(FeedText(part.utterance.id, text, last))

    def _times_out_ns(self) -> int | None:
        """When the engine times out. None while it may be waiting for the bot's text."""
        if self._active is None or self._active[0].waits_for_bot:
            return None
        return self._pulled_ns + self._timeout_ns

    def _note_pull(self, now_ns: int) -> None:
        self._waits_for_pull = False
        self._pulled_ns = now_ns

    def stuck(self, now_ns: int) -> Turn | None:
        """The turn whose engine has timed out: it was asked for audio and gave none.

        While the bot still writes the sentence there is no timeout. The time counts from the end of its text.
        """
        if self._active is None or self._waits_for_pull:
            return None
        until_ns = self._times_out_ns()
        return self._active[0] if until_ns is not None and now_ns >= until_ns else None

    def _next(self, now_ns: int) -> tuple[Turn, Part] | None:
        """The next sentence in speaking order. A turn that is still open holds back the turns after it.

        If the call speaks interleaved and no sentence is complete, it is the beginning of the one that the bot writes.
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
        """When the caller will hear silence if the engine gives nothing more."""
        at_ns = max(now_ns, media_end_ns)
        for turn in self._turns:
            if turn.sent_all or turn.is_hurried:
                continue
            if turn.playout.t0_ns is not None:
                at_ns = max(now_ns, turn.playout.due_ns())
            at_ns += turn.ready_ns()
        return at_ns

    @property
    def insert(self) -> tuple[Turn, Part] | None:
        """The insert that is being played, as long as it has not given all its audio."""
        return self._active if self._active is not None and self._active[1].insert is not None else None

    def part_of(self, utterance_id: str) -> tuple[Turn, Part] | None:
        """The turn and the part of the active utterance. None for any other: its turn is over."""
        if self._active is None:
            return None
        utterance = self._active[1].utterance
        return self._active if utterance is not None and utterance.id == utterance_id else None

    def chunk_came(self, utterance_id: str) -> tuple[Turn, Part] | None:
        """The engine gave a chunk and waits until the next one is pulled. Returns `part_of` the chunk's utterance."""
        found = self.part_of(utterance_id)
        if found is not None:
            self._waits_for_pull = True
        return found

    def handed_over(self, now_ns: int) -> None:
        """Another engine goes on with the active utterance, and is asked for audio now."""
        self._note_pull(now_ns)

    def ended(self) -> None:
        """The engine has given all the audio of the active utterance."""
        self._active = None

    def drop(self, turn: Turn) -> None:
        """The turn was interrupted: cancel its utterance if the engine has one."""
        if self._active is not None and self._active[0] is turn:
            utterance = self._active[1].utterance
            assert utterance is not None
            self._active = None
            self._out.append(CancelSynthesis(utterance.id))
