"""In place of `device.runner.Runner` under the engine's real `Core`: nothing is computed, and each batch has a price.

A text gives `TOKENS_PER_WORD` speech tokens for each of its words. In `waiting_device.py` the batches take real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.engine_prices import EnginePrices
from harness.simulated import N_EULER, ROW_TOKENS, TOKENS_PER_WORD, WordTokenizer
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow, TokenBlock
from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE2,
    EOS,
    FRAMES_PER_TOKEN,
    SAMPLES_PER_FRAME,
    LmConfig,
)
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed

N_POSITIONS = 4000
N_PROMPT_TOKENS = 53
"""Speech tokens of a voice's cut prompt in the flow."""
N_TRANSCRIPT = 8
"""Text tokens of a voice's recording. A word of an utterance is one token."""


@dataclass(frozen=True, slots=True)
class _Voice:
    """A voice, as far as the model's input and the ends of blocks depend on it."""

    n_flow_tokens: int
    transcript_ids: tuple[int, ...] = (0,) * N_TRANSCRIPT
    speech_tokens: tuple[int, ...] = (0,) * 75


@dataclass(slots=True, eq=False)
class _Block:
    """A block in the flow: the Euler steps made, of how many."""

    n_tokens: int
    n_steps: int
    before: _Block | None = None
    k: int = 0

    @property
    def done(self) -> bool:
        return self.k >= self.n_steps

    @property
    def may_step(self) -> bool:
        return not self.done and (self.before is None or self.before.k > self.k)


@dataclass(slots=True)
class _Track:
    """What the device would hold for a piece."""

    n_tokens: int = 0
    """Speech tokens that the model draws before it ends."""
    n_out: int = 0
    n_frames: int = 0
    last_block: _Block | None = None
    mels: deque[tuple[int, bool]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Ids:
    ids: list[int]

    @property
    def n(self) -> int:
        return len(self.ids)

    def read(self) -> list[int]:
        return self.ids


@dataclass(frozen=True, slots=True)
class _Sound:
    n_tokens: int
    n_frames: int
    is_last: bool
    audio: None = None
    """All sounds of a step come in one transfer."""

    def read(self) -> Any:
        return np.zeros(self.n_tokens * FRAMES_PER_TOKEN * SAMPLES_PER_FRAME, np.int16)


@dataclass(frozen=True, slots=True)
class _Moment:
    at_ns: int

    def ns_after(self, begin: _Moment) -> int:
        return self.at_ns - begin.at_ns

    def wait(self) -> None:
        return None


class _VoiceBuild:
    """Makes a voice ready: its prompt goes through the flow once."""

    def __init__(self, voice: _Voice, n_euler: int) -> None:
        self._voice = voice
        self.flow_block = _Block(voice.n_flow_tokens, n_euler)

    def finished(self) -> _Voice:
        return self._voice


class _NoLanes:
    can_help = False

    def n_calls(self) -> int:
        return 0

    def call(self) -> None:
        return None

    def wait(self, n_seen: int) -> None:
        raise AssertionError("a simulated lane never waits")


class _Model:
    """What `Core` asks of the model."""

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.family = COSYVOICE2
        self.lm = self
        self.config = LmConfig()

    def begin_prompt(self, features: object, profile: object) -> _VoiceBuild:
        return _VoiceBuild(_Voice(N_PROMPT_TOKENS), N_EULER)


class PricedRunner:
    """In place of `device.runner.Runner`: nothing is computed, and the clock moves on by the price."""

    def __init__(self, prices: EnginePrices) -> None:
        self.now_ns = self.busy_ns = 0
        self.model = _Model()
        self.batch_sizes = prices.sizes
        self.n_pass_rows = prices.sizes.prefill
        self.n_run_ahead = prices.cost.run_ahead
        self.draws_past_blocks = prices.sizes.flow > 1  # as a device, which batches the flow
        self.n_flow_steps = N_EULER
        self.n_slots = prices.n_slots
        self.n_positions = N_POSITIONS
        self.idle_lanes = _NoLanes()
        self._cost = prices.cost

    def _spend(self, stage: Stage, rows: float) -> None:
        spent_ns = max(1, self._cost.of(stage, rows))
        self.now_ns += spent_ns
        self.busy_ns += spent_ns

    def moment(self, now_ns: Callable[[], int]) -> _Moment:
        return _Moment(now_ns())

    def open(self, slot: int, seed: int, prompt: object, speed: float, profile: object) -> _Track:
        return _Track()

    def close(self, track: _Track) -> None:
        return None

    def check_room(self, track: _Track, feed: LmFeed) -> None:
        return None

    def prefill(self, tracks: Sequence[_Track], feeds: Sequence[LmFeed]) -> list[_Ids | None]:
        self._spend(Stage.PREFILL, len(tracks))
        for track, feed in zip(tracks, feeds, strict=True):
            (text,) = (segment for segment in feed.segments if segment.table is EmbeddingTable.TEXT)
            track.n_tokens = (len(text.ids) - N_TRANSCRIPT) * TOKENS_PER_WORD
        return [_Ids(_drawn(track, 1)) for track in tracks]

    def decode(self, tracks: Sequence[_Track], rows: Sequence[DecodeRow]) -> list[_Ids]:
        self._spend(Stage.DECODE, len(tracks))
        return [_Ids(_drawn(track, len(row.banned))) for track, row in zip(tracks, rows, strict=True)]

    def begin(self, tracks: Sequence[_Track], blocks: Sequence[TokenBlock]) -> list[_Block]:
        begun = []
        for track, block in zip(tracks, blocks, strict=True):
            n_tokens = len(block.all_ids or block.new)
            track.last_block = _Block(n_tokens, self.n_flow_steps if n_tokens else 0, track.last_block)
            begun.append(track.last_block)
        return begun

    def step_blocks(self, blocks: Sequence[_Block], on_failure: object = None) -> None:
        self._spend(Stage.FLOW, sum(max(1, block.n_tokens) / ROW_TOKENS for block in blocks))
        for block in blocks:
            block.k += 1
            block.before = None if block.before is None or block.before.done else block.before

    def queue_mel(self, track: _Track, block: TokenBlock, flow_block: _Block) -> list[int]:
        track.mels.append((len(block.new), block.ahead is None))
        return [len(block.new) * FRAMES_PER_TOKEN]

    def vocode(self, tracks: Sequence[_Track], on_failure: object) -> list[_Sound]:
        made = []
        for track in tracks:
            n_tokens, is_last = track.mels.popleft()
            track.n_frames += n_tokens * FRAMES_PER_TOKEN
            made.append(_Sound(n_tokens, track.n_frames, is_last))
        self._spend(Stage.VOCODE, sum(max(1, sound.n_tokens) / ROW_TOKENS for sound in made))
        return made


def _drawn(track: _Track, n: int) -> list[int]:
    """The next ids of a model that ends after the track's tokens. A device draws on past the end."""
    ids = [0 if track.n_out + i < track.n_tokens else EOS for i in range(n)]
    track.n_out += n
    return ids
