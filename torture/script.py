"""Performs the steps of a history on a bot's socket, real or simulated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from torture.grammar import invalid
from torture.histories import CallHistory, Step
from torture.letters import markup, sentence
from torture.oracle import NativeOracle
from torture.sound_server import BAD, no_server

SOUND, BED = "ringback", "hold"
"""Sounds that each server under test has. The second one has no pauses."""
_CHANGES: tuple[dict[str, Any], ...] = (
    {"speed": 1.0}, {"speed": 1.5}, {"speed": 0.8}, {"voice": "tone"}, {"lang": "en"}, {"lang": "zh"}, {"seed": 7},
    {"barge_in": "on", "min_speech_ms": 100, "hold_off_ms": 0},
    {"barge_in": "on", "min_speech_ms": 100, "hold_off_ms": 100, "barge_in_action": "pause"},
    {"barge_in": "off"}, {"step_back_ms": 0}, {"step_back_ms": 500}, {"words": "on"}, {"text_type": "auto"},
    {"thinking": "spoken"},
)  # fmt: skip
"""What a bot changes for the turns that begin later."""


_PLAYS: tuple[dict[str, Any], ...] = (
    {}, {"loop": "until_speech"}, {"gain_db": -6}, {"stop": True}, {"stop": True},
    *({"under": True, "gain_db": -12},) * 5, {"url": "good"}, {"url": "slow"}, *({"url": kind} for kind in BAD),
)  # fmt: skip


class BotSide(Protocol):
    """The bot's end of a connection."""

    def send(self, message: dict[str, Any]) -> None: ...
    def send_raw(self, payload: bytes, *, is_text: bool) -> None: ...
    async def stop_reading(self, ms: int) -> None: ...
    async def caller_speaks(self, ms: int) -> None:
        """The caller speaks for so long. Nothing happens if there is no caller here."""

    def telephone_errs(self, n: int) -> None:
        """The telephone side sends so many messages that cannot be read, or that have no place."""


class Script:
    """What the bot of one native call does. It names all its turns and marks."""

    def __init__(
        self, call: CallHistory, side: BotSide, oracle: NativeOracle, now_ns: Callable[[], int],
        sound_address: Callable[[str, int], str] = no_server,
    ) -> None:  # fmt: skip
        """`sound_address(kind, number)` is where the torture's server of sounds has a sound of this kind."""
        self._steps = call.steps
        self._side = side
        self._oracle = oracle
        self._now_ns = now_ns
        self._sound_address = sound_address
        self._choose = random.Random(f"{call.seed} words")
        self._n_turns = 0
        self._n_marks = 0
        self._open: str | None = None
        self._newest: str | None = None

    async def perform(self, is_over: Callable[[], bool]) -> None:
        for step in self._steps:
            if step.after_ms:
                await asyncio.sleep(step.after_ms / 1000)
            if is_over():
                return
            await self._do(step)

    async def _do(self, step: Step) -> None:
        match step.do:
            case "say":
                self._say(step.n)
            case "say_storm":
                for _ in range(step.n):
                    self._say(2)
            case "text":
                self._text(step.n)
            case "last":
                self._end()
            case "flush" if self._open_turn() is not None:
                self.send({"type": "flush", "turn": self._open})
            case "clear":
                self.send({"type": "clear"})
            case "clear_turn" if self._newest is not None:
                self.send({"type": "clear", "turn": f"b{self._choose.randint(1, self._n_turns)}"})
            case "mark" if self._newest is not None:
                self.mark()
            case "pause" | "resume" | "status":
                self.send({"type": step.do})
            case "ping":
                self._n_marks += 1
                self.send({"type": "ping", "id": self._n_marks})
            case "invalid":
                for _ in range(step.n):
                    payload, is_text = invalid(self._choose)
                    self._oracle.sent_invalid()
                    self._side.send_raw(payload, is_text=is_text)
                self._side.telephone_errs(step.n)
            case "clear_storm":
                for _ in range(5 * step.n):
                    self.send({"type": "clear"})
            case "pause_storm":
                for _ in range(step.n):
                    self.send({"type": "pause"})
                    self.send({"type": "resume"})
            case "ssml":
                self._ssml(step.n)
            case "config":
                self.send({"type": "config", **self._choose.choice(_CHANGES)})
            case "listen":
                self.send({"type": "config", "barge_in": "on", "min_speech_ms": 100, "hold_off_ms": 0})
            case "record":
                self.send({"type": "record", "action": "stop" if step.n == 1 else "start"})
            case "play":
                self._play()
            case "stop_sounds":
                self.send({"type": "play", "stop": True})
            case "dtmf":
                self.send({"type": "dtmf", "digits": self._choose.choice(["5", "12", "1w#", "*0*"])})
            case "voice":
                await self._side.caller_speaks(100 * step.n)
            case "stuck":
                await self._side.stop_reading(40 * step.n)

    def send(self, message: dict[str, Any], letter: str = "") -> None:
        self._oracle.sent(message, self._now_ns(), letter)
        self._side.send(message)

    def mark(self) -> None:
        self._n_marks += 1
        self.send({"type": "mark", "name": f"m{self._n_marks}", "turn": self._newest})

    def _say(self, n_words: int) -> None:
        letter = self._oracle.free_letter()
        if letter is None:
            return
        texts = [sentence(self._choose, letter, n_words)]
        if self._choose.random() < 0.4:
            texts.append(sentence(self._choose, letter, 2))
        self._begin_turn()
        self.send({"type": "say", "turn": self._newest, "text": " ".join(texts)}, letter)

    def _ssml(self, n_words: int) -> None:
        """A turn of markup, in one message or in two that cut it anywhere."""
        letter = self._oracle.free_letter()
        if letter is None:
            return
        self._n_marks += 1
        text = markup(self._choose, letter, n_words, f"m{self._n_marks}")
        turn = self._begin_turn()
        if self._choose.random() < 0.5:
            self.send({"type": "say", "turn": turn, "text": text}, letter)
            return
        cut = self._choose.randint(8, len(text))
        self.send({"type": "text", "turn": turn, "text": text[:cut]}, letter)
        self.send({"type": "text", "turn": turn, "text": text[cut:], "last": True}, letter)

    def _play(self) -> None:
        """A sound in the open turn, or as a turn of its own; or the end of all sounds."""
        turn = self._open_turn()
        how = self._choose.choice(_PLAYS)
        if "stop" in how:
            self.send({"type": "play", **how})
            return
        if "under" in how:
            in_turn = {"turn": turn} if turn is not None and self._choose.random() < 0.3 else {}
            self.send({"type": "play", "name": BED, **how, **in_turn})
            return
        what = {"name": SOUND}
        if "url" in how:
            # A sound is kept by its address, so most addresses are new, where the server of sounds has so many.
            what = {"url": self._sound_address(how["url"], self._choose.randint(0, 1000))}
            how = {}
        if turn is None or self._choose.random() < 0.5:
            self._n_turns += 1
            turn = f"b{self._n_turns}"
        self.send({"type": "play", "turn": turn, **what, **how})

    def _text(self, n_words: int) -> None:
        """A piece of the open turn, in one or two messages that may cut a word."""
        turn = self._open_turn()
        letter = self._oracle.free_letter() if turn is None else self._oracle.turns[turn].letter
        if letter is None:
            return
        if turn is None:
            turn = self._open = self._begin_turn()
        piece = sentence(self._choose, letter, n_words) + " "
        cut = self._choose.randint(1, len(piece))
        for text in (piece[:cut], piece[cut:]):
            if text:
                self.send({"type": "text", "turn": turn, "text": text}, letter)

    def _end(self) -> None:
        if self._open_turn() is not None:
            self.send({"type": "end", "turn": self._open})
            self._open = None

    def _begin_turn(self) -> str:
        self._n_turns += 1
        self._newest = f"b{self._n_turns}"
        return self._newest

    def _open_turn(self) -> str | None:
        if self._open is not None and not self._oracle.turns[self._open].is_live:
            self._open = None
        return self._open
