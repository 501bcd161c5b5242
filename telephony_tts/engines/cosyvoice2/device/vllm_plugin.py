"""The two parts of CosyVoice2 that vLLM lacks: a Qwen2 whose head has a bias, and repetition-aware sampling.

It can be imported only where vLLM is (`vllm_steps`). The sampling is that of `sampling`, with the same randomness: the
draw happens before vLLM's own sampler, which then finds one id that is possible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from telephony_tts.engines.cosyvoice2.device.sampling import draw, mask_stops, uniforms
from telephony_tts.engines.cosyvoice2.model.config import EOS, N_SPEECH_TOKENS, UNUSED_STOP, SamplingConfig

SEED, N_BANNED = "seed", "n_banned"
"""Arguments of a request: the seed of its piece; below so many ids its speech must not end."""


class CosyVoice2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """The architecture that `checkpoint.conversion` names."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        sizes = vllm_config.model_config.hf_config
        name = f"{prefix}.lm_head" if prefix else "lm_head"
        self.lm_head = ParallelLMHead(sizes.vocab_size, sizes.hidden_size, bias=True, prefix=name)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        logits: Tensor = self.logits_processor(self.lm_head, hidden_states, self.lm_head.bias)
        return logits


class RepetitionAwareSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws an id for each row and leaves only that one possible. `UNUSED_STOP` is never drawn: it stands for logits
    that are not finite."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._config = SamplingConfig(**vllm_config.additional_config["sampling"])
        self._device = device
        self._rows: dict[int, tuple[int, int, list[int]]] = {}
        """By its row in the batch, of each request: seed, number of bans, ids drawn so far."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(
            self._rows,
            batch_update,
            lambda params, _, drawn: (params.extra_args[SEED], params.extra_args[N_BANNED], drawn),
        )

    def apply(self, logits: Tensor) -> Tensor:
        """[B, V]"""
        rows = [self._rows[i] for i in range(len(logits))]
        window = self._config.window
        recent = [([-1] * window + drawn)[-window:] for _, _, drawn in rows]
        numbers = torch.tensor(
            [[seed, len(drawn), n_banned, *last] for (seed, n_banned, drawn), last in zip(rows, recent, strict=True)],
            device=self._device,
        )
        seeds, n_drawn, n_banned, window_ids = numbers[:, 0], numbers[:, 1], numbers[:, 2], numbers[:, 3:]
        banned = torch.zeros(len(rows), logits.shape[1] - N_SPEECH_TOKENS, dtype=torch.bool, device=self._device)
        banned[:, EOS - N_SPEECH_TOKENS] = n_drawn < n_banned
        banned[:, UNUSED_STOP - N_SPEECH_TOKENS] = True
        log_probs = mask_stops(logits, banned)
        ids = draw(log_probs, window_ids, *uniforms(seeds, n_drawn), self._config).ids
        ids = ids.masked_fill(log_probs[:, 0].isnan(), UNUSED_STOP)
        return torch.full_like(logits, -torch.inf).scatter_(1, ids[:, None], 0.0)
