"""What all utterances share: the networks, the tokenizer, the language model's slots, voices made ready to speak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow import Flow, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.flow_decoder import BeforeStep, nothing
from telephony_tts.engines.cosyvoice2.model.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.sampling import Sampler
from telephony_tts.engines.cosyvoice2.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.weights import Checkpoint

MAX_POSITIONS = 4096
"""Of a slot: prompt, text and speech of one piece; 48 MB at full size in float16."""

RUN_AHEAD = 5
"""Speech ids drawn on an accelerator before the host reads any; what is drawn past the end is thrown away."""


@dataclass(frozen=True, slots=True)
class SpeakerPrompt:
    """A voice, ready to speak; shared by its utterances, written by none."""

    transcript_ids: tuple[int, ...]
    speech_tokens: tuple[int, ...]
    """Of the language model: none where there is no transcript ("cross-lingual", specification 3.4)."""
    flow: FlowPrompt
    flow_tokens: Tensor
    """int64 [1, P]: the prompt as the flow has it, cut at the front by the profile."""
    flow_mel: Tensor
    """[1, 2P, 80]"""
    embedding: Tensor
    """[1, 192]"""

    @property
    def n_flow_tokens(self) -> int:
        return self.flow_tokens.shape[1]


class Slots:
    """The language model's slots, for many threads; each is had by one piece of text at a time.

    Text that is still being written may have only half of them: it holds its slot while its bot thinks, and whole
    sentences of other calls must not wait for that.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._growing: set[int] = set()
        self._most_growing = cache.n_slots // 2

    @property
    def n_free(self) -> int:
        return self._cache.n_free

    def acquire(self, growing: bool = False) -> int | None:
        """A free slot, or None: then `on_free` tells when to ask again."""
        with self._lock:
            if not self._may(growing):
                return None
            slot = self._cache.acquire()
            if growing:
                self._growing.add(slot)
            return slot

    @contextmanager
    def held(self, slot: int) -> Iterator[None]:
        """Give an acquired slot back at the end."""
        try:
            yield
        finally:
            self.release(slot)

    def release(self, slot: int) -> None:
        waiting: list[Callable[[], None]] = []
        try:
            with self._lock:
                self._growing.discard(slot)
                waiting, self._waiting = self._waiting, []
                self._cache.release(slot)
        finally:
            # Not under the lock: those who are told take locks of their own.
            for wake in waiting:
                wake()

    def on_free(self, wake: Callable[[], None], growing: bool = False) -> None:
        """Call `wake` once when a slot may be had; now, if one can be already."""
        with self._lock:
            may = self._may(growing)
            if not may:
                self._waiting.append(wake)
        if may:
            wake()

    def _may(self, growing: bool) -> bool:
        return self._cache.n_free > 0 and not (growing and len(self._growing) >= self._most_growing)


class SpeechModel:
    """Only the slots, and what the sampler knows of each, change after loading."""

    def __init__(
        self, tokenizer: TextTokenizer, lm: LanguageModel, flow: Flow, vocoder: Vocoder, sampler: Sampler, n_slots: int
    ) -> None:
        self.tokenizer, self.lm, self.flow, self.vocoder, self.sampler = tokenizer, lm, flow, vocoder, sampler
        self.cache = lm.new_cache(n_slots, MAX_POSITIONS)
        self.slots = Slots(self.cache)
        self.device = lm.device
        self.n_run_ahead = 1 if self.device.type == "cpu" else RUN_AHEAD

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, dtype: torch.dtype, n_slots: int) -> Self:
        def moved(state: dict[str, Tensor], to: torch.dtype) -> dict[str, Tensor]:
            return {name: tensor.to(device, to) for name, tensor in state.items()}

        config = checkpoint.config
        hift = moved(checkpoint.hift, torch.float32)  # the pitch is never less, whatever the convolutions are
        # bfloat16 is heard there: 11 % of the level.
        vocoder_dtype = torch.float32 if dtype is torch.bfloat16 else dtype
        return cls(
            TextTokenizer(checkpoint.tokenizer_dir),
            LanguageModel.from_state(config.lm, moved(checkpoint.lm, dtype)),
            Flow.from_state(config, moved(checkpoint.flow, dtype)),
            Vocoder.from_state(config.vocoder, hift, dtype=vocoder_dtype, wide=torch.float64),
            Sampler(config.sampling, n_slots, device),
            n_slots,
        )

    def prompt(
        self, features: PromptFeatures, profile: Profile, before_step: BeforeStep = nothing
    ) -> SpeakerPrompt:
        """What a voice's utterances share; costs about as much as speaking for the prompt's length."""
        ids = features.transcript_ids or tuple(self.tokenizer.encode(features.transcript))
        n_cut = profile.n_cut(features.speech_tokens.numel())
        tokens = features.speech_tokens[None, n_cut:].to(self.device)
        mel = features.mel[None, n_cut * FRAMES_PER_TOKEN :].to(self.device)
        embedding = features.embedding[None].to(self.device, self.flow.dtype)
        flow = self.flow.prompt(tokens, mel, embedding, before_step=before_step)
        speech = tuple(features.speech_tokens.tolist()) if ids else ()
        return SpeakerPrompt(ids, speech, flow, tokens, mel, embedding)
