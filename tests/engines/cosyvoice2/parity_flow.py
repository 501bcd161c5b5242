"""Parity of the flow: every stage of a directory of reference vectors (any sizes, lengths, seeds) against our code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    LOOKAHEAD_TOKENS,
    FlowDecoderConfig,
    FlowEncoderConfig,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow_decoder import time_sinusoids
from telephony_tts.engines.cosyvoice2.model.flow_encoder import FlowEncoder, relative_sinusoids

Stage = tuple[str, float, float]
"""Name, largest error, tolerance."""
LAYER, SOLVED, EXACT = 1e-4, 5e-4, 0.0
"""Tolerances: one network, ten Euler steps of it, what is the same to the bit."""
PRODUCT = 1e-5
"""Our two ways to the same frames, cached and recomputed, may differ by no more than the order of sums."""


def vectors(path: Path) -> dict[str, Tensor]:
    """All numeric arrays of an .npz."""
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files if file[name].dtype.kind in "fiu"}


def flow_config(sizes: dict[str, Any], state: dict[str, Tensor]) -> ModelConfig:
    """What the tensors tell is read from them, the rest from the configuration's "flow"."""
    encoder, cfm, estimator = sizes["encoder"], sizes["cfm"], sizes["estimator"]
    n_tokens, d_model = state["input_embedding.weight"].shape
    return ModelConfig(
        flow_encoder=FlowEncoderConfig(
            n_tokens=n_tokens,
            d_model=d_model,
            n_heads=encoder["attention_heads"],
            d_ff=encoder["linear_units"],
            n_layers=encoder["num_blocks"],
            n_up_layers=encoder["num_up_blocks"],
            d_speaker=sizes["spk_embed_dim"],
            d_out=sizes["output_size"],
            norm_eps=encoder["norm_eps_blocks"],
            embed_norm_eps=encoder["norm_eps_embed_and_after"],
        ),
        flow_decoder=FlowDecoderConfig(
            n_channels=estimator["channels"][0],
            n_heads=estimator["num_heads"],
            d_head=estimator["attention_head_dim"],
            n_blocks=estimator["n_blocks"],
            n_mid_stages=estimator["num_mid_blocks"],
            d_mel=estimator["out_channels"],
            n_steps=cfm["n_timesteps"],
            guidance=cfm["inference_cfg_rate"],
        ),
    )


def load(directory: Path) -> Flow:
    state = torch.load(directory / "tiny_flow.pt", weights_only=True)
    sizes = json.loads((directory / "tiny_config.json").read_text())["flow"]
    return Flow.from_state(flow_config(sizes, state), state)


def error(ours: Tensor, reference: Tensor) -> float:
    if ours.shape != reference.shape:
        return float("inf")
    return float((ours - reference).abs().max())


@torch.inference_mode()
def check_golden(directory: Path) -> Iterator[Stage]:
    """Everything the directory has of the flow, in the order the flow computes it."""
    yield from check_flow(load(directory), directory)


def check_flow(flow: Flow, directory: Path) -> Iterator[Stage]:
    yield from check_noise(flow, directory / "flow_noise.npz")
    yield from check_encoder(flow.encoder, vectors(directory / "flow_encoder.npz"))
    yield from check_estimator(flow, vectors(directory / "flow_estimator.npz"))
    yield from check_streaming(flow, vectors(directory / "flow_streaming.npz"))
    yield from check_no_prompt(flow, vectors(directory / "flow_noprompt.npz"))


def check_noise(flow: Flow, path: Path) -> Iterator[Stage]:
    noise = flow.decoder.noise
    with np.load(path) as file:
        same = hashlib.sha256(noise.numpy().tobytes()).hexdigest() == str(file["sha256"])
        head = torch.from_numpy(file["first_400_frames"])
        yield "flow noise sha256", 0.0 if same else 1.0, EXACT
        yield "flow noise head", error(noise[:, :, : head.shape[2]], head), EXACT
        yield "flow noise middle", error(noise[:, :, 7000:7010], torch.from_numpy(file["frames_7000_7010"])), EXACT
        yield "flow noise tail", error(noise[:, :, -10:], torch.from_numpy(file["last_10"])), EXACT


def check_encoder(encoder: FlowEncoder, golden: dict[str, Tensor]) -> Iterator[Stage]:
    n = int(golden["n_tokens"])
    every = torch.cat([golden["prompt_token"], golden["token"]], dim=1)
    ids, ahead = every[:, :n], every[:, n : n + LOOKAHEAD_TOKENS]
    reference = golden["rel_pos_emb_n4"][0]
    n_distances, d_model = reference.shape
    n_table = (n_distances + 1) // 2
    x = encoder.look(ids)
    streaming = encoder.encode(ids, ahead, streaming=True)
    stages = {
        "spk": encoder.speaker(golden["embedding"]),
        "token_emb_first5": torch.nn.functional.embedding(ids[:, :5], encoder.tokens),
        "after_embed_first5": x[:, :5],
        "after_lookahead": encoder.pre_lookahead(x, encoder.look(ahead), None),
        "enc_streaming_ctx": streaming,
        "mu_streaming_ctx": encoder.mu(streaming),
        "enc_full_noctx": encoder.encode(ids, None, streaming=False),
        "enc_streaming_noctx": encoder.encode(ids, None, streaming=True),
    }
    table = relative_sinusoids(0, n_table, d_model, torch.device("cpu"))
    yield "flow encoder rel_pos_emb_n4", error(table, reference), LAYER
    for name, ours in stages.items():
        yield f"flow encoder {name}", error(ours, golden[name]), LAYER


def check_estimator(flow: Flow, golden: dict[str, Tensor]) -> Iterator[Stage]:
    estimator = flow.decoder.estimator
    t = golden["t"]
    x, mu, cond = (golden[name].transpose(1, 2) for name in ("x", "mu", "cond"))
    d_sinusoid = golden["time_sinusoid"].shape[1]
    yield "flow estimator time_sinusoid", error(time_sinusoids(t, d_sinusoid), golden["time_sinusoid"]), LAYER
    yield "flow estimator time_emb", error(estimator.time_embedding(t), golden["time_emb"]), LAYER
    for name, streaming in (("out_streaming", True), ("out_full", False)):
        v = estimator(x, mu, t, golden["spks"], cond, streaming=streaming)
        yield f"flow estimator {name}", error(v.transpose(1, 2), golden[name]), LAYER


def steps(flow: Flow, prompt_tokens: Tensor, tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> Tensor:
    """x [n_steps, 80, T] before every Euler step of a non-final chunk, recomputed."""
    every = torch.cat([prompt_tokens, tokens], dim=1)
    ids, ahead = every[:, :-LOOKAHEAD_TOKENS], every[:, -LOOKAHEAD_TOKENS:]
    mu = flow.encoder.mu(flow.encoder.encode(ids, ahead, streaming=True))
    cond = torch.zeros_like(mu)
    cond[:, : prompt_mel.shape[1]] = prompt_mel
    spk = flow.encoder.speaker(embedding)
    x, before = flow.decoder.start(0, mu.shape[1]), []
    for k in range(len(flow.decoder.times)):
        before.append(x[0].T)
        x = flow.decoder.step(k, x, mu, spk, cond, streaming=True)
    return torch.stack(before)


def check_streaming(flow: Flow, golden: dict[str, Tensor]) -> Iterator[Stage]:
    tokens, n_offset = golden["token"], int(golden["offset_tokens"])
    voice = golden["prompt_token"], golden["prompt_feat"], golden["embedding"]

    def full(n_tokens: int, *, streaming: bool, finalize: bool) -> Tensor:
        prompt_tokens, mel, embedding = voice
        return flow.full(prompt_tokens, tokens[:, :n_tokens], mel, embedding, streaming=streaming, finalize=finalize)

    n_all = tokens.shape[1]
    times = torch.tensor([t for t, _ in flow.decoder.times])
    yield "flow t_per_step", error(times, golden["t_per_step"]), 1e-6
    n_first = int(golden["chunk0_ntok_in"])
    x = steps(flow, voice[0], tokens[:, :n_first], voice[1], voice[2])[:, :, :: int(golden["x_stride"])]
    for k, (ours, reference) in enumerate(zip(x, golden["x_per_step_chunk0"], strict=True)):
        yield f"flow x before step {k}", error(ours, reference), SOLVED
    # Upstream's chunks, by recomputation, by one cached stream that shares its prompt, and by one that does not.
    shared = flow.start(flow.prompt(*voice))
    alone = flow.start(flow.prompt(*voice, n_blocks=0))
    n_emitted = 0
    for i in range(sum(name.endswith("_ntok_in") for name in golden)):
        n_in = int(golden[f"chunk{i}_ntok_in"])
        whole, emitted = golden[f"chunk{i}_full_from_prompt_end"], golden[f"chunk{i}_emitted"]
        recomputed = full(n_in, streaming=True, finalize=False)
        yield f"flow chunk {i} recomputed", error(recomputed, whole), SOLVED
        new, ahead = tokens[:, n_emitted : n_in - LOOKAHEAD_TOKENS], tokens[:, n_in - LOOKAHEAD_TOKENS : n_in]
        ours = flow.extend(shared, new, ahead)
        yield f"flow chunk {i} cached", error(ours, emitted), SOLVED
        yield f"flow chunk {i} own prompt", error(flow.extend(alone, new, ahead), emitted), SOLVED
        yield f"flow chunk {i} cached = recomputed", error(ours, recomputed[:, :, 2 * n_emitted :]), PRODUCT
        n_emitted = n_in - LOOKAHEAD_TOKENS
    recomputed = full(n_all, streaming=False, finalize=True)
    yield "flow whole, all visible", error(recomputed, golden["final_all_frames_nonstreaming"]), SOLVED
    reference = golden["final_upstream_nonstreaming_masks"]
    yield "flow finish, all visible", error(recomputed[:, :, 2 * n_offset :], reference), SOLVED
    recomputed = full(n_all, streaming=True, finalize=True)[:, :, 2 * n_offset :]
    reference = golden["final_streaming_masks_variant"]
    yield "flow finish, block-causal, recomputed", error(recomputed, reference), SOLVED
    ours = flow.finish(shared, tokens[:, n_emitted:])
    yield "flow finish, block-causal, cached", error(ours, reference), SOLVED
    yield "flow finish, cached = recomputed", error(ours, recomputed), PRODUCT
    yield "flow finish, own prompt", error(flow.finish(alone, tokens[:, n_emitted:]), reference), SOLVED


def check_no_prompt(flow: Flow, golden: dict[str, Tensor]) -> Iterator[Stage]:
    nothing = golden["token"][:, :0], torch.zeros(1, 0, golden["mel"].shape[1]), golden["embedding"]
    mel = flow.full(nothing[0], golden["token"], nothing[1], nothing[2], streaming=False, finalize=True)
    yield "flow without prompt", error(mel, golden["mel"]), SOLVED
