"""What all utterances share: the networks, the tokenizer, the language model's cache, voices made ready to speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.settings import INT4, INT8, MIXED, Precision
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

FLOW_SHARE = 0.6
"""Of a GPU's memory that is free after loading, for what the flow keeps; the rest is for what is computed."""
FLOW_BYTES_ELSEWHERE = 128 << 20
"""Where a device does not say how much it has."""
MAX_POSITIONS = 4096
"""Of a slot: prompt, text and speech of one piece; 48 MB at full size in float16."""


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


@dataclass(slots=True)
class PromptInTheMaking:
    """A voice on its way to be ready: its blocks are solved as any block is."""

    features: PromptFeatures
    transcript_ids: tuple[int, ...]
    flow_tokens: Tensor
    flow_mel: Tensor
    embedding: Tensor
    solve: FlowBlock

    def prompt(self) -> SpeakerPrompt:
        """When the solve is done."""
        ids = self.transcript_ids
        speech = tuple(self.features.speech_tokens.tolist()) if ids else ()
        return SpeakerPrompt(ids, speech, self.solve.prompt(), self.flow_tokens, self.flow_mel, self.embedding)


class _Watched(Mapping[str, Tensor]):
    """Tensors by name. `look` is called before each is read; what it raises ends the loading between two of them."""

    def __init__(self, tensors: Mapping[str, Tensor], look: Callable[[], object]) -> None:
        self._tensors, self._look = tensors, look

    def __getitem__(self, name: str) -> Tensor:
        self._look()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class SpeechModel:
    """Only the cache's slots, and what the sampler knows of each, change after loading."""

    def __init__(
        self, tokenizer: TextTokenizer, lm: LanguageModel, flow: Flow, vocoder: Vocoder, sampler: Sampler, n_slots: int
    ) -> None:
        self.tokenizer, self.lm, self.flow, self.vocoder, self.sampler = tokenizer, lm, flow, vocoder, sampler
        self.cache = lm.new_cache(n_slots, MAX_POSITIONS)
        self.device = lm.device

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        device: str,
        precision: Precision,
        n_slots: int,
        flow_memory_mb: int | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> Self:
        """`flow_memory_mb`: of a device other than a CPU, for what the flow keeps; None is a share of what is free.

        Raises ValueError for a precision that the device does not have, EngineUnavailable where the memory does not do,
        and what `look` raises: it is called before each tensor."""

        def moved(state: dict[str, Tensor], to: str) -> Mapping[str, Tensor]:
            there = {name: tensor.to(device, getattr(torch, to)) for name, tensor in _Watched(state, look).items()}
            return _Watched(there, look)

        config = checkpoint.config
        hift = moved(checkpoint.hift, "float32")  # the pitch is never less, whatever the convolutions are
        if precision.lm == INT8 or precision.lm == INT4:
            weights: Literal["int8", "int4"] = "int4" if precision.lm == INT4 else "int8"
            lm = LanguageModel.from_state(config.lm, moved(checkpoint.lm, "float32"), weights=weights)
        else:
            lm = LanguageModel.from_state(config.lm, moved(checkpoint.lm, precision.lm))
        if precision.flow == INT8:
            flow = Flow.from_state(config, moved(checkpoint.flow, "bfloat16"), weights="int8")
        else:
            flow = Flow.from_state(config, moved(checkpoint.flow, precision.flow))
        if precision.vocoder == MIXED:
            vocoder = Vocoder.mixed(config.vocoder, hift, wide=torch.float64)
        else:
            vocoder = Vocoder.from_state(
                config.vocoder, hift, dtype=getattr(torch, precision.vocoder), wide=torch.float64
            )
        model = cls(
            TextTokenizer(checkpoint.tokenizer_dir),
            lm,
            flow,
            vocoder,
            Sampler(config.sampling, n_slots, device),
            n_slots,
        )
        if model.device.type != "cpu":
            flow.use_device_pages(_flow_bytes(model.device) if flow_memory_mb is None else flow_memory_mb << 20)
        return model

    @torch.inference_mode()
    def begin_prompt(self, features: PromptFeatures, profile: Profile) -> PromptInTheMaking:
        """What a voice's utterances share; costs about as much as speaking for the prompt's length."""
        ids = features.transcript_ids or tuple(self.tokenizer.encode(features.transcript))
        n_cut = profile.n_cut(features.speech_tokens.numel())
        tokens = features.speech_tokens[None, n_cut:].to(self.device)
        mel = features.mel[None, n_cut * FRAMES_PER_TOKEN :].to(self.device)
        embedding = features.embedding[None].to(self.device, self.flow.dtype)
        solve = self.flow.begin_prompt(tokens, mel, embedding)
        return PromptInTheMaking(features, ids, tokens, mel, embedding, solve)

    def prompt(self, features: PromptFeatures, profile: Profile) -> SpeakerPrompt:
        """The same, at once."""
        making = self.begin_prompt(features, profile)
        while not making.solve.done:
            self.flow.step([making.solve])
        return making.prompt()


def _flow_bytes(device: torch.device) -> int:
    """How much of a device the flow may have where nobody said it."""
    if device.type != "cuda":
        return FLOW_BYTES_ELSEWHERE
    torch.cuda.empty_cache()  # what loading has left over is counted as taken
    n_free, _ = torch.cuda.mem_get_info(device)
    return int(FLOW_SHARE * n_free)
