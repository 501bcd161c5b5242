"""A model on a device, and its stages one by one: the two sides of a comparison, and what is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness.synthesis import LinearWork
from torch import Tensor

from gpu.devices import CheckedDevice, CountedRecorder
from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint, load_model_directory
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import Event, SubmitUtterance, UtteranceEnded
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow, TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Track
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    BLOCK_TOKENS,
    LOOKAHEAD_TOKENS,
    N_MELS,
    N_SPEECH_TOKENS,
)
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.random_speech import random_text, random_voice
from telephony_tts.engines.cosyvoice2.settings import AheadLimits, Precision
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed, SentenceDecoding, whole_prompt
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info

PROMPT_S = 3.5
TAKES_ALL = AheadLimits(audio_ms=10**9)
"""No limit: nothing here reports that audio was taken."""
SPEECH_ID = 5
"""Any speech id: the work does not depend on it."""


@dataclass(frozen=True, slots=True)
class LeastWork:
    """What a step computes and reads at least: the linear layers. Attention and all that lies between come on top."""

    lm_weights: int
    flow_weights: int
    flow_flop_per_frame: float
    """Of one Euler step, both guidance branches."""
    bytes_per_weight: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, bytes_per_weight: int) -> LeastWork:
        def n_weights(state: Mapping[str, Tensor], begin: str, without: tuple[str, ...] = ()) -> int:
            names = [name for name in state if name.startswith(begin) and not any(word in name for word in without)]
            return sum(state[name].numel() for name in names if state[name].dim() > 1)

        return cls(
            n_weights(checkpoint.lm, "", ("embed", "lm_head")),
            n_weights(checkpoint.flow, "decoder.estimator."),
            2 * LinearWork.of(checkpoint.flow).per_frame_and_pass,
            bytes_per_weight,
        )

    def floor_ms(self, n: int, flop_per_s: float, bytes_per_s: float) -> dict[str, float]:
        """The shortest times of a decode step and of an Euler step of a block of 50 frames, for n utterances."""

        def ms(flop: float, weights: int) -> float:
            return round(1000 * max(flop / flop_per_s, weights * self.bytes_per_weight / bytes_per_s), 4)

        return {
            "decode": ms(2.0 * n * self.lm_weights, self.lm_weights),
            "flow step": ms(n * BLOCK_FRAMES * self.flow_flop_per_frame, self.flow_weights),
        }


class ModelSide:
    """Create and use it within `device.computing()`."""

    def __init__(
        self, device: CheckedDevice, directory: Path, precision: Precision, n_slots: int, n_threads: int = 1
    ) -> None:
        checkpoint = load_model_directory(directory)
        assert checkpoint.spk2info is not None
        self.device = device
        self.features = read_spk2info(checkpoint.spk2info)[0]
        self.work = LeastWork.of(checkpoint, getattr(torch, precision.flow).itemsize)
        self.model = SpeechModel.load(checkpoint, device=device.name, precision=precision, n_slots=n_slots)
        record = device.recorder()
        self.recorded = None if record is None else CountedRecorder(record)
        self.runner = Runner(self.model, n_threads, graphs=Graphs(self.model.device, self.recorded))
        self.runner.enter()
        self._prompt: SpeakerPrompt | None = None

    def prompt(self) -> SpeakerPrompt:
        """The random model's voice with a prompt, ready."""
        if self._prompt is None:
            build = self.model.begin_prompt(self.features[random_voice(PROMPT_S)], DEFAULT)
            while not build.flow_block.done:
                self.model.flow.step([build.flow_block])
            self._prompt = build.finished()
        return self._prompt

    def open(self, slot: int, seed: int) -> Track:
        self.model.cache.clear(slot)
        return self.runner.open(slot, seed, self.prompt(), 1.0, DEFAULT)

    # ------------------------------------------------------------------------- one utterance, stage by stage

    def speech_tokens(self, text: str, seed: int) -> list[int]:
        """All ids of an utterance, drawn by the engine's own steps."""
        track, prompt = self.open(0, seed), self.prompt()
        decoding = SentenceDecoding(prompt.transcript_ids, self.model.tokenizer.encode(text), prompt.speech_tokens)
        tokens: list[int] = []
        while (feed := decoding.next_feed()) is not None:
            if feed.speech_id is None:
                (drawn,) = self.runner.prefill([track], [feed])
            else:
                (drawn,) = self.runner.decode([track], [DecodeRow(feed.speech_id, (feed.banned,), feed.forced)])
            if drawn is not None:  # else more of the prompt is to be fed
                speech = decoding.consume(drawn.read()[0])
                tokens += [] if speech is None else [speech]
        return tokens

    def mel(self, tokens: Sequence[int]) -> list[Tensor]:
        """The mel of an utterance [1, 80, n] on the CPU, block by block."""
        track = self.open(0, 1)
        mels = []
        n_prompt = self.features[random_voice(PROMPT_S)].speech_tokens.numel()
        for n_known, n_out, is_last in DEFAULT.plan(n_prompt, len(tokens)):
            n_new = n_known if is_last else n_known - LOOKAHEAD_TOKENS
            ahead = None if is_last else tuple(tokens[n_new:n_known])
            (block,) = self.runner.begin([track], [TokenBlock(tuple(tokens[n_out:n_new]), ahead)])
            while not block.done:
                self.runner.step_blocks([block])
            mels.append(block.mel().float().cpu())
        return mels

    def audio(self, mels: Sequence[Tensor], seed: int) -> Tensor:
        """The audio [n] of these blocks of mel, on the CPU."""
        track = self.open(0, seed)
        parts = []
        for i, mel in enumerate(mels):
            track.mels.append((mel.to(self.model.device), i == len(mels) - 1))
            (sound,) = self.runner.vocode([track], _raise)
            assert sound is not None
            parts.append(sound.audio.read()[sound.begin : sound.end])
        return torch.cat(parts)

    # ----------------------------------------------------------------------------------- whole engine

    def spoken(self, requests: Sequence[Request]) -> list[Pcm]:
        """The audio of these utterances, all at once, through the engine's core."""
        heard: dict[int, list[Pcm]] = {key: [] for key in range(len(requests))}
        errors: list[Exception] = []

        def tell(key: int, event: Event) -> None:
            if isinstance(event, Chunk):
                heard[key].append(event.pcm)
            elif isinstance(event, UtteranceEnded) and event.error is not None:
                errors.append(event.error)

        core = Core(self.runner, self.features, DEFAULT, tell, ahead=TAKES_ALL)
        for key, request in enumerate(requests):
            core.receive(SubmitUtterance(key, random_voice(PROMPT_S), request))
        while core.step():
            pass
        if errors:
            raise errors[0]
        return [np.concatenate(heard[key]) for key in heard]


def _raise(_: int, error: Exception) -> None:
    raise error


class StageWork:
    """The stages of `n` utterances at once, in the slots 0 to n - 1."""

    def __init__(self, side: ModelSide, n: int, text_seconds: float = 4.0) -> None:
        self._side, self.n = side, n
        self._runner = side.runner
        prompt, model = side.prompt(), side.model
        self.tracks: list[Track] = []
        text = model.tokenizer.encode(random_text(text_seconds))
        self._feed = LmFeed(whole_prompt(prompt.transcript_ids, text, prompt.speech_tokens))
        self._block_tokens: list[int] = []
        self._blocks: list[FlowBlock] = []
        random = torch.Generator().manual_seed(1)
        self._mel = torch.randn(1, N_MELS, 2 * BLOCK_TOKENS, generator=random).to(model.device) - 5

        self.renew()

    def renew(self) -> None:
        """Begin all utterances anew. A second of speech of 64 takes 7 GB of the flow's memory in float16."""
        self.tracks, self._blocks = [], []
        self.tracks = [self._side.open(slot, 40 + slot) for slot in range(self.n)]
        self._block_tokens = [DEFAULT.block_tokens(0, self._side.prompt().n_flow_tokens), BLOCK_TOKENS]

    def prefill(self) -> None:
        """The prompts of all, from the start."""
        size = self._runner.n_pass_rows
        for first in range(0, self.n, size):
            group = self.tracks[first : first + size]
            for track in group:
                self._side.model.cache.clear(track.slot)
                track.n_fed = 0
            drawn: Sequence[object] = [None]
            while any(each is None for each in drawn):
                drawn = self._runner.prefill(group, [self._feed] * len(group))

    def decode(self) -> int:
        """Draw ids for each utterance and return how many: `n_ids`, on a CPU fewer if they take long."""
        return self._runner.decode(self.tracks, [DecodeRow(SPEECH_ID, ((),) * self.n_ids, None)] * self.n)[0].n

    @property
    def n_ids(self) -> int:
        return self._runner.n_run_ahead

    def begin_block(self) -> None:
        """The encoder's pass of the next block of each."""
        n = self._block_tokens[0] if len(self._block_tokens) == 1 else self._block_tokens.pop(0)
        ids = tuple((SPEECH_ID + i) % N_SPEECH_TOKENS for i in range(n + LOOKAHEAD_TOKENS))
        self._blocks = self._runner.begin(self.tracks, [TokenBlock(ids[:n], ids[n:])] * self.n)

    def flow_step(self) -> None:
        """One Euler step of each block."""
        self._runner.step_blocks(self._blocks)

    @property
    def n_steps(self) -> int:
        return self._runner.n_flow_steps

    def vocode(self) -> None:
        """The audio of a block of each."""
        for track in self.tracks:
            track.mels.append((self._mel, False))
        self._runner.vocode(self.tracks, _raise)


def level_db(distance: Tensor, reference: Tensor) -> float:
    """The level of a distance relative to the reference, in dB of their rms; -200 for none."""
    of_signal = float(reference.double().square().mean().sqrt())
    of_distance = float(distance.double().square().mean().sqrt())
    if not math.isfinite(of_distance):
        return math.inf
    return max(-200.0, 20 * math.log10(of_distance / of_signal)) if of_distance and of_signal else -200.0
