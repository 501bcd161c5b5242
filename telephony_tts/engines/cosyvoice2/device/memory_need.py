"""How much memory a model takes on a CPU, computed from its sizes before it is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.device.speech_model import MAX_POSITIONS, MAX_POSITIONS_300M
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN, TOKENS_PER_S, ModelConfig, RelativeLmConfig
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE, LM_FILE, VOCODER_FILE
from telephony_tts.engines.cosyvoice2.settings import INT8, MIXED, Precision

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, INT8: 1, MIXED: 4}
"""Of a weight in a matrix. The vocoder's in bfloat16 count as float32: each is only a part of it."""
BASE_BYTES = 350 << 20
"""The interpreter with PyTorch, and what a step computes with."""
SPOKEN_S = 15
"""Seconds whose frames the flow keeps: a voice's recording of 5 s and an utterance of 10 s."""
SCALE_BYTES = 4
"""Of a key or value of a head in int8."""
N_BRANCHES, KEYS_AND_VALUES = 2, 2


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of resident memory."""

    loading: int
    """At the peak of loading: the files as they are. Their tensors are freed while networks are made of them."""
    weights: int
    """With nothing but the weights."""
    speaking: int
    """With all slots, a ready voice and one utterance."""

    @property
    def total(self) -> int:
        return max(self.loading, self.speaking)


def n_weights(sizes: ModelConfig) -> int:
    """Weights of a model of these sizes."""
    return sum(math.prod(shape) for shapes in checkpoint_shapes(sizes).values() for shape in shapes.values())


def memory_need(sizes: ModelConfig, precision: Precision, n_slots: int) -> MemoryNeed:
    """The need of a model of these sizes. No precision is `auto`."""
    shapes = checkpoint_shapes(sizes)

    def count(file: str, *parts: str) -> int:
        """Weights of a file, or of those tensors whose names contain one of `parts`."""
        named = shapes[file].items()
        return sum(math.prod(shape) for name, shape in named if not parts or any(part in name for part in parts))

    tables, estimator = count(LM_FILE, "embed"), count(FLOW_FILE, "estimator")
    # Beside int8 products the rest is float32.
    lm_rest = 4 if precision.lm == INT8 else BYTES[precision.lm]
    flow_rest = 4 if precision.flow == INT8 else BYTES[precision.flow]
    weights = (
        (count(LM_FILE) - tables) * BYTES[precision.lm]
        + tables * lm_rest
        + estimator * BYTES[precision.flow]
        + (count(FLOW_FILE) - estimator) * flow_rest
        + count(VOCODER_FILE) * BYTES[precision.vocoder]
    )
    lm, decoder = sizes.lm, sizes.flow_decoder
    # The tables of distances of CosyVoice-300M are as large as the keys of a slot.
    n_tables = 0
    if isinstance(lm, RelativeLmConfig):
        n_kv_heads, n_positions, n_tables = lm.n_heads, MAX_POSITIONS_300M, 1
    else:
        n_kv_heads, n_positions = lm.n_kv_heads, MAX_POSITIONS
    keys = lm.n_layers * n_kv_heads * lm.d_head * n_positions * lm_rest
    cache = ((n_slots + 1) * KEYS_AND_VALUES + n_tables) * keys
    n_layers = (decoder.n_mid_stages + 2) * decoder.n_blocks
    head = decoder.d_head * BYTES[precision.flow] + (SCALE_BYTES if precision.flow == INT8 else 0)
    frame = n_layers * decoder.n_steps * N_BRANCHES * KEYS_AND_VALUES * decoder.n_heads * head
    # The flow of CosyVoice-300M keeps nothing.
    spoken = SPOKEN_S * TOKENS_PER_S * FRAMES_PER_TOKEN * frame if sizes.family.flow_streams else 0
    files = 4 * n_weights(sizes)
    return MemoryNeed(
        loading=BASE_BYTES + files,
        weights=BASE_BYTES + weights,
        speaking=BASE_BYTES + weights + cache + spoken,
    )
