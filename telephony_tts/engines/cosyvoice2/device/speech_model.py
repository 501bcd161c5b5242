"""What all utterances share: the networks, the tokenizer, the language model's cache, and ready voices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.device.vllm_steps import VllmSlots, start_vllm
from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE_300M,
    FRAMES_PER_TOKEN,
    ModelFamily,
    RelativeLmConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow, Weights
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.flow.whole_flow import WholeFlow
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel, PromptTables
from telephony_tts.engines.cosyvoice2.model.lm.relative_lm import RelativeCache, RelativeLm
from telephony_tts.engines.cosyvoice2.model.state import StateReader, TakenTensors
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.settings import INT8, MIXED, Precision
from telephony_tts.engines.cosyvoice2.text.tokenizer import ControlledBpe, TextTokenizer
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import WhisperTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

FLOW_SHARE = 0.75
"""Share of a GPU's free memory after loading for what the flow keeps. The rest is for what it computes."""
FLOW_BYTES_ELSEWHERE = 128 << 20
"""Memory for the flow on a device that does not report how much it has."""
MAX_POSITIONS = 4096
"""Positions of a slot: prompt, text and speech of one piece. They take 48 MB at full size in float16."""
MAX_POSITIONS_300M = 2048
"""A slot has 235 MB of them at full size in float32, of which a CPU takes what is used. The tables of their distances
take 117 MB."""


@dataclass(slots=True)
class KeptTranscript:
    """What the language model keeps of a voice's transcript, for the slots of later utterances."""

    positions: Tensor | None = None
    """Of the start id and the transcript (`SlotCache.copied`). None until an utterance has fed them."""


@dataclass(frozen=True, slots=True)
class SpeakerPrompt:
    """A ready voice, which its utterances share. Nothing writes to it, but the first utterance to `kept_transcript`."""

    transcript_ids: tuple[int, ...]
    speech_tokens: tuple[int, ...]
    """The language model's prompt; empty without a transcript ("cross-lingual", specification 3.4)."""
    flow: FlowPrompt
    flow_tokens: Tensor
    """int64 [1, P]: the flow's prompt, whose beginning the profile has cut."""
    flow_mel: Tensor
    """[1, 2P, 80]"""
    embedding: Tensor
    """[1, 192]"""
    kept_transcript: KeptTranscript = field(default_factory=KeptTranscript)

    @property
    def n_flow_tokens(self) -> int:
        return self.flow_tokens.shape[1]


@dataclass(slots=True)
class PromptBuild:
    """A voice that is being built: the flow solves its blocks like any other."""

    features: PromptFeatures
    transcript_ids: tuple[int, ...]
    flow_tokens: Tensor
    flow_mel: Tensor
    embedding: Tensor
    flow_block: FlowBlock

    def finished(self) -> SpeakerPrompt:
        """The ready voice. Call it when `flow_block` is done."""
        ids = self.transcript_ids
        speech = tuple(self.features.speech_tokens.tolist()) if ids else ()
        return SpeakerPrompt(ids, speech, self.flow_block.prompt(), self.flow_tokens, self.flow_mel, self.embedding)


class SpeechModel:
    """After loading, only the cache and the sampler's state of each slot change."""

    def __init__(
        self,
        family: ModelFamily,
        tokenizer: ControlledBpe,
        lm: LanguageModel | RelativeLm | PromptTables,
        flow: Flow | WholeFlow,
        vocoder: Vocoder,
        sampler: Sampler,
        cache: KvCache | RelativeCache | VllmSlots,
    ) -> None:
        self.family = family
        self.tokenizer, self.lm, self.flow, self.vocoder, self.sampler = tokenizer, lm, flow, vocoder, sampler
        self.cache = cache
        self.device = lm.device

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        device: str,
        precision: Precision,
        n_slots: int,
        uses_vllm: bool = False,
        flow_memory_mb: int | None = None,
        check_wanted: Callable[[], object] = lambda: None,
    ) -> Self:
        """`uses_vllm`: vLLM is the language model, from the directory's folder `vllm`. `flow_memory_mb`: memory of an
        accelerator for what the flow keeps; None is a share of the free memory.
        `check_wanted` is called before each tensor; what it raises ends the loading. The states of `checkpoint` are
        emptied.

        Raises ValueError for a precision that the device does not have, EngineUnavailable if the memory does not
        suffice."""

        def moved(state: dict[str, Tensor], to: str) -> TakenTensors:
            return TakenTensors(state, device, getattr(torch, to), check_wanted)

        config, family = checkpoint.config, checkpoint.config.family
        cache: KvCache | RelativeCache | VllmSlots
        hift = moved(checkpoint.hift, "float32")  # the pitch is always float32, whatever the convolutions are
        lm: LanguageModel | RelativeLm | PromptTables
        flow: Flow | WholeFlow
        # int8 weights are made of float32.
        lm_weights: Literal["int8"] | None = INT8 if precision.lm == INT8 else None
        lm_state = moved(checkpoint.lm, "float32" if lm_weights else precision.lm)
        if isinstance(config.lm, RelativeLmConfig):
            lm = RelativeLm.from_state(config.lm, lm_state, lm_weights)
            cache = lm.new_cache(n_slots, MAX_POSITIONS_300M)
        elif uses_vllm:
            lm = PromptTables(config.lm, PromptTables.read_tables(config.lm, StateReader(lm_state)))
            checkpoint.lm.clear()
            folder, sampling = checkpoint.directory / "vllm", config.sampling
            cache = start_vllm(folder, config.lm, sampling, device, precision.lm, n_slots, MAX_POSITIONS)
        else:
            lm = LanguageModel.from_state(config.lm, lm_state, lm_weights)
            cache = lm.new_cache(n_slots, MAX_POSITIONS)
        flow_weights: Weights = INT8 if precision.flow == INT8 else "float"
        flow_state = moved(checkpoint.flow, "float32" if flow_weights == INT8 else precision.flow)
        flow_kind = WholeFlow if family is COSYVOICE_300M else Flow
        flow = flow_kind.from_state(config, flow_state, flow_weights)
        if precision.vocoder == MIXED:
            vocoder = Vocoder.mixed(config.vocoder, hift, wide=torch.float64)
        else:
            vocoder = Vocoder.from_state(
                config.vocoder, hift, dtype=getattr(torch, precision.vocoder), wide=torch.float64
            )
        is_300m = family is COSYVOICE_300M
        model = cls(
            family,
            WhisperTokenizer(checkpoint.directory) if is_300m else TextTokenizer(checkpoint.tokenizer_dir),
            lm,
            flow,
            vocoder,
            Sampler(config.sampling, n_slots, device, family.n_speech_tokens),
            cache,
        )
        if isinstance(flow, Flow) and model.device.type != "cpu":
            flow.use_device_pages(_flow_bytes(model.device) if flow_memory_mb is None else flow_memory_mb << 20)
        return model

    @torch.inference_mode()
    def begin_prompt(self, features: PromptFeatures, profile: Profile) -> PromptBuild:
        """Begin to build what a voice's utterances share. It costs about as much as speech of the prompt's length."""
        ids = features.transcript_ids or tuple(self.tokenizer.encode(features.transcript))
        n_cut = profile.n_cut(features.speech_tokens.numel())
        tokens = features.speech_tokens[None, n_cut:].to(self.device)
        mel = features.mel[None, n_cut * FRAMES_PER_TOKEN :].to(self.device)
        embedding = features.embedding[None].to(self.device, self.flow.dtype)
        block = self.flow.begin_prompt(tokens, mel, embedding)
        return PromptBuild(features, ids, tokens, mel, embedding, block)


def _flow_bytes(device: torch.device) -> int:
    """Bytes of a device for the flow by default."""
    if device.type != "cuda":
        return FLOW_BYTES_ELSEWHERE
    torch.cuda.empty_cache()  # PyTorch's spare memory counts as taken
    n_free, _ = torch.cuda.mem_get_info(device)
    return int(FLOW_SHARE * n_free)
