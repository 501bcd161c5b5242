"""A small random flow, and its frozen results in the golden format: `python freeze_flow.py DIR` writes them.

Except for the encoder's, the reference's vectors are too large for the repository. These are computed by our own code
(`plain_flow.recomputed`), at a commit at which `parity_flow.py` found it equal to all vectors of the reference. They
pin the code to its results of then, in other sizes. Write them again only after the reference's vectors have passed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity_flow import flow_config, steps
from plain_flow import recomputed, sequence, velocity
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.decoder import fixed_noise, time_sinusoids
from telephony_tts.engines.cosyvoice2.model.flow.encoder import relative_sinusoids
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader

N_PROMPT, N_TOKENS, N_VOCABULARY, D_SPEAKER, D_MODEL, N_MELS = 30, 95, 97, 24, 32, 80
SIZES = {
    "spk_embed_dim": D_SPEAKER,
    "output_size": N_MELS,
    "encoder": {
        "attention_heads": 2,
        "linear_units": 48,
        "num_blocks": 2,
        "num_up_blocks": 1,
        "norm_eps_blocks": 1e-12,
        "norm_eps_embed_and_after": 1e-5,
    },
    "cfm": {"n_timesteps": 10, "inference_cfg_rate": 0.7},
    "estimator": {
        "channels": [24],
        "num_heads": 3,
        "attention_head_dim": 16,
        "n_blocks": 2,
        "num_mid_blocks": 2,
        "out_channels": N_MELS,
    },
}
FEW_LAYERS = {**SIZES["estimator"], "n_blocks": 1, "num_mid_blocks": 1}  # type: ignore[dict-item]
"""Of the estimator: half the work, for tests that do not depend on the number of layers."""


class RandomReader(FlowReader):
    """Makes a random tensor for every key. Norms are around 1; all other weights keep the scale of a layer's input."""

    def __init__(self, seed: int) -> None:
        self.state: dict[str, Tensor] = {}
        super().__init__(self.state)
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, key: str, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._generator)
        if key.endswith("weight") and len(shape) > 1 and "embedding" not in key:
            values /= values[0].numel() ** 0.5
        elif key.endswith("weight") and len(shape) == 1:
            values = 1 + 0.1 * values
        elif len(shape) == 1:
            values *= 0.1
        self.state[key] = values
        return super().__call__(key, *shape)


def random_state(seed: int, *, few_layers: bool = False) -> dict[str, Tensor]:
    take, sizes = RandomReader(seed), with_steps(1, few_layers=few_layers)
    Flow(flow_config(sizes, {"input_embedding.weight": torch.empty(N_VOCABULARY, D_MODEL)}), take)
    return take.state


def with_steps(n_steps: int, *, few_layers: bool = False) -> dict[str, Any]:
    """`SIZES` with `n_steps` Euler steps."""
    sizes = {**SIZES, "cfm": {**SIZES["cfm"], "n_timesteps": n_steps}}  # type: ignore[dict-item]
    return {**sizes, "estimator": FEW_LAYERS} if few_layers else sizes


def small_flow(dtype: torch.dtype = torch.float32, n_steps: int = 10, *, few_layers: bool = False) -> Flow:
    state = {key: value.to(dtype) for key, value in random_state(5, few_layers=few_layers).items()}
    return Flow.from_state(flow_config(with_steps(n_steps, few_layers=few_layers), state), state)


def small_int8() -> Flow:
    state = random_state(seed=5)
    return Flow.from_state(flow_config(SIZES, state), state, "int8")


def write(directory: Path, name: str, **tensors: Tensor) -> None:
    arrays: dict[str, Any] = {key: value.numpy() for key, value in tensors.items()}
    np.savez_compressed(directory / f"{name}.npz", **arrays)


@torch.inference_mode()
def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    flow = small_flow()
    generator = torch.Generator().manual_seed(6)
    every = torch.randint(0, N_VOCABULARY, (1, N_PROMPT + N_TOKENS), generator=generator)
    prompt_tokens, tokens = every[:, :N_PROMPT], every[:, N_PROMPT:]
    prompt_mel = torch.randn(1, 2 * N_PROMPT, N_MELS, generator=generator)
    embedding = torch.randn(1, D_SPEAKER, generator=generator)

    noise = fixed_noise(N_MELS)
    np.savez_compressed(
        directory / "flow_noise.npz",
        first_400_frames=noise[:, :, :40].numpy(),
        frames_7000_7010=noise[:, :, 7000:7010].numpy(),
        last_10=noise[:, :, -10:].numpy(),
        sha256=hashlib.sha256(noise.numpy().tobytes()).hexdigest(),
    )
    n = 60
    ids, ahead = every[:, :n], every[:, n : n + LOOKAHEAD_TOKENS]
    encoder = flow.encoder
    h = encoder.encode(ids, ahead, sequence(streaming=True))
    voice = {"prompt_token": prompt_tokens, "token": tokens, "prompt_feat": prompt_mel, "embedding": embedding}
    write(
        directory,
        "flow_encoder",
        **voice,
        n_tokens=torch.tensor(n),
        spk=encoder.speaker(embedding),
        token_emb_first5=encoder.tokens[ids[:, :5]],
        after_embed_first5=encoder.embed_tokens(ids)[:, :5],
        rel_pos_emb_n4=relative_sinusoids(0, 4, D_MODEL, torch.device("cpu"))[None],
        after_lookahead=encoder.pre_lookahead(
            encoder.embed_tokens(ids), encoder.embed_tokens(ahead), sequence(streaming=True)
        ),
        enc_streaming_ctx=h,
        mu_streaming_ctx=encoder.mu(h),
        enc_full_noctx=encoder.encode(ids, None, sequence(streaming=False)),
        enc_streaming_noctx=encoder.encode(ids, None, sequence(streaming=True)),
    )
    x, mu, cond = (torch.randn(2, 67, N_MELS, generator=generator) for _ in range(3))
    t, spks = torch.tensor([0.0, 0.37]), torch.randn(2, N_MELS, generator=generator)
    estimator = flow.decoder.estimator
    write(
        directory,
        "flow_estimator",
        **{"x": x.mT, "mu": mu.mT, "cond": cond.mT, "t": t, "spks": spks},
        time_sinusoid=time_sinusoids(t, 4 * N_MELS),
        time_emb=estimator.time_embedding(t),
        out_streaming=velocity(flow, x, mu, t, spks, cond, streaming=True).mT,
        out_full=velocity(flow, x, mu, t, spks, cond, streaming=False).mT,
    )

    def full(n_tokens: int, *, streaming: bool, finalize: bool) -> Tensor:
        some = tokens[:, :n_tokens]
        return recomputed(flow, prompt_tokens, some, prompt_mel, embedding, streaming=streaming, finalize=finalize)

    n_0 = -N_PROMPT % BLOCK_TOKENS + LOOKAHEAD_TOKENS
    n_1 = n_0 + 2 * BLOCK_TOKENS
    chunk_0, chunk_1 = (full(n, streaming=True, finalize=False) for n in (n_0, n_1))
    n_offset = n_1 - LOOKAHEAD_TOKENS
    whole = full(N_TOKENS, streaming=False, finalize=True)
    write(
        directory,
        "flow_streaming",
        **voice,
        t_per_step=torch.tensor([t for t, _ in flow.decoder.euler_times]),
        x_per_step_chunk0=steps(flow, prompt_tokens, tokens[:, :n_0], prompt_mel, embedding)[:, :, ::8],
        x_stride=torch.tensor(8),
        chunk0_ntok_in=torch.tensor(n_0),
        chunk0_full_from_prompt_end=chunk_0,
        chunk0_emitted=chunk_0,
        chunk1_ntok_in=torch.tensor(n_1),
        chunk1_full_from_prompt_end=chunk_1,
        chunk1_emitted=chunk_1[:, :, 2 * (n_0 - LOOKAHEAD_TOKENS) :],
        offset_tokens=torch.tensor(n_offset),
        final_all_frames_nonstreaming=whole,
        final_upstream_nonstreaming_masks=whole[:, :, 2 * n_offset :],
        final_streaming_masks_variant=full(N_TOKENS, streaming=True, finalize=True)[:, :, 2 * n_offset :],
    )
    short = tokens[:, :9]
    mel = recomputed(flow, short[:, :0], short, prompt_mel[:, :0], embedding, streaming=False, finalize=True)
    write(directory, "flow_noprompt", token=short, embedding=embedding, mel=mel)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
