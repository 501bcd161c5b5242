"""Parity of the flow: our code against every stage of a directory of reference vectors, of any sizes and seeds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from parity_rows import (
    EXACT,
    Arrays,
    Row,
    Skipped,
    Stage,
    error,
    guarded,
    measure,
    read_json,
    read_npz,
    read_state,
)
from plain_flow import extend, finish, prompt_of, recomputed, sequence, states
from plain_flow import velocity as velocity_of
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    FlowDecoderConfig,
    FlowEncoderConfig,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.decoder import time_sinusoids
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder, relative_sinusoids
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowStream

LAYER, SOLVED = 1e-4, 5e-4
"""Tolerances for one network, and for all Euler steps."""
PRODUCT = 1e-5
"""Tolerance between cached and recomputed frames, which may differ by the order of sums only."""
LARGE = 10.0
"""Larger than any log-mel. The tolerance for mels beyond this is relative to their size."""
TIMES = 1e-6

Voice = tuple[Tensor, Tensor, Tensor]
"""Prompt tokens [1, P], prompt mel [1, 2P, 80], embedding [1, 192]."""


def vectors(path: Path) -> Arrays:
    """All numeric arrays of an .npz."""
    return Arrays(path)


def flow_config(sizes: dict[str, Any], state: dict[str, Tensor]) -> ModelConfig:
    """Sizes that tensors have are read from them, the others from the configuration's "flow"."""
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
    state = read_state(directory / "tiny_flow.pt")
    return Flow.from_state(flow_config(read_json(directory / "tiny_config.json")["flow"], state), state)


@torch.inference_mode()
def check_golden(directory: Path) -> Iterator[Row]:
    """All stages of the flow that the directory has, in the order in which the flow computes them."""
    yield from guarded("flow", check_loaded(directory))


def check_loaded(directory: Path) -> Iterator[Row]:
    yield from check_flow(load(directory), directory)


def check_flow(flow: Flow, directory: Path) -> Iterator[Row]:
    yield from guarded("flow noise", check_noise(flow, directory / "flow_noise.npz"))
    for title, name, check in (
        ("flow encoder", "flow_encoder", lambda golden: check_encoder(flow.encoder, golden)),
        ("flow estimator", "flow_estimator", lambda golden: check_estimator(flow, golden)),
        ("flow streaming", "flow_streaming", lambda golden: check_streaming(flow, golden)),
        ("flow without prompt", "flow_noprompt", lambda golden: check_no_prompt(flow, golden)),
    ):
        yield from guarded(title, of_file(directory / f"{name}.npz", check))


def of_file(path: Path, check: Callable[[Arrays], Iterator[Row]]) -> Iterator[Row]:
    """A generator, so that `guarded` sees the exception of a file that cannot be read."""
    yield from check(vectors(path))


def check_noise(flow: Flow, path: Path) -> Iterator[Row]:
    """The name of each array says which frames of the noise it has."""
    noise = flow.decoder.noise
    file = read_npz(path)
    if "sha256" in file:
        same = hashlib.sha256(noise.numpy().tobytes()).hexdigest() == str(file["sha256"])
        yield Stage("flow noise sha256", 0.0 if same else 1.0, EXACT)
    for name, array in file.items():
        if name == "shape":
            yield measure("flow noise shape", lambda s=array: float(list(s) != list(noise.shape)), EXACT)
        elif numbers := re.fullmatch(r"first_\d+_frames|frames_(\d+)_\d+|last_\d+", name):
            n = array.shape[2]
            start = int(numbers[1]) if numbers[1] else noise.shape[2] - n if name.startswith("last") else 0
            ours = noise[:, :, start : start + n]
            yield measure(f"flow noise {name}", lambda o=ours, a=array: error(o, torch.from_numpy(a)), EXACT)


def check_encoder(encoder: FlowEncoder, golden: Arrays) -> Iterator[Row]:
    n = int(golden["n_tokens"])
    every = torch.cat([golden.ids("prompt_token"), golden.ids("token")], dim=1)
    ids, ahead = every[:, :n], every[:, n : n + LOOKAHEAD_TOKENS]
    x = encoder.embed_tokens(ids)

    def table() -> float:
        reference = golden["rel_pos_emb_n4"][0]
        n_distances, d_model = reference.shape
        return error(relative_sinusoids(0, (n_distances + 1) // 2, d_model, torch.device("cpu")), reference)

    def streaming() -> Tensor:
        return encoder.encode(ids, ahead, sequence(streaming=True))

    stages = {
        "spk": lambda: encoder.speaker(golden["embedding"]),
        "token_emb_first5": lambda: torch.nn.functional.embedding(
            ids[:, : golden["token_emb_first5"].shape[1]].clamp(min=0), encoder.tokens
        ),
        "after_embed_first5": lambda: x[:, : golden["after_embed_first5"].shape[1]],
        "after_lookahead": lambda: encoder.pre_lookahead(x, encoder.embed_tokens(ahead), sequence(streaming=True)),
        "enc_streaming_ctx": streaming,
        "mu_streaming_ctx": lambda: encoder.mu(streaming()),
        "enc_full_noctx": lambda: encoder.encode(ids, None, sequence(streaming=False)),
        "enc_streaming_noctx": lambda: encoder.encode(ids, None, sequence(streaming=True)),
    }
    yield measure("flow encoder rel_pos_emb_n4", table, LAYER)
    for name, ours in stages.items():
        yield measure(f"flow encoder {name}", lambda n=name, o=ours: error(o(), golden[n]), LAYER)


def check_estimator(flow: Flow, golden: Arrays) -> Iterator[Row]:
    estimator = flow.decoder.estimator
    t = golden["t"]

    def velocity(name: str, *, streaming: bool) -> float:
        """Row by row, without masked frames: padding does not change the frames before it."""
        worst = 0.0
        for i in range(len(t)):
            n = int(golden["mask"][i].sum()) if "mask" in golden else golden["x"].shape[2]
            x, mu, cond = (golden[part][i : i + 1, :, :n].transpose(1, 2) for part in ("x", "mu", "cond"))
            v = velocity_of(flow, x, mu, t[i : i + 1], golden["spks"][i : i + 1], cond, streaming=streaming)
            worst = max(worst, error(v.transpose(1, 2), golden[name][i : i + 1, :, :n]))
        return worst

    def sinusoid() -> float:
        return error(time_sinusoids(t, golden["time_sinusoid"].shape[1]), golden["time_sinusoid"])

    yield measure("flow estimator time_sinusoid", sinusoid, LAYER)
    yield measure(
        "flow estimator time_emb", lambda: error(estimator.time_embedding(t), golden["time_emb"]), LAYER
    )
    yield measure("flow estimator out_streaming", lambda: velocity("out_streaming", streaming=True), LAYER)
    yield measure("flow estimator out_full", lambda: velocity("out_full", streaming=False), LAYER)


def steps(flow: Flow, prompt_tokens: Tensor, tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> Tensor:
    """x [n_steps, 80, T] before every Euler step of a non-final chunk, recomputed."""
    x = states(flow, prompt_tokens, tokens, prompt_mel, embedding, streaming=True, finalize=False)
    return torch.stack([state[0].T for state in x[:-1]])


def check_streaming(flow: Flow, golden: Arrays) -> Iterator[Row]:
    voice = golden.ids("prompt_token"), golden["prompt_feat"], golden["embedding"]
    tokens = golden.ids("token")
    times = torch.tensor([t for t, _ in flow.decoder.euler_times])
    yield measure("flow t_per_step", lambda: error(times, golden["t_per_step"]), TIMES)
    yield from guarded("flow x before each step", check_steps(flow, golden, voice, tokens))
    # Upstream's chunks: recomputed, by a cached stream that shares its prompt, and by one that does not.
    streams = Streams(flow, voice, tokens)
    n_chunks = 0
    while f"chunk{n_chunks}_ntok_in" in golden:
        yield from guarded(f"flow chunk {n_chunks}", check_chunk(streams, golden, n_chunks))
        n_chunks += 1
    if not n_chunks:
        yield Skipped("flow chunks", f"{golden.file} has none")
    yield from guarded("flow finish", check_finish(streams, golden))


def check_steps(flow: Flow, golden: Arrays, voice: Voice, tokens: Tensor) -> Iterator[Row]:
    """The state before every Euler step of the first chunk, every `x_stride` frames."""
    want = golden["x_per_step_chunk0"]
    ours = steps(flow, voice[0], tokens[:, : int(golden["chunk0_ntok_in"])], voice[1], voice[2])
    ours = ours[:, :, :: int(golden["x_stride"])]
    if len(ours) != len(want):
        raise ValueError(f"{len(ours)} steps, and the vectors have {len(want)}")
    for k, (x, reference) in enumerate(zip(ours, want, strict=True)):
        yield Stage(f"flow x before step {k}", error(x, reference), SOLVED)


class Streams:
    """Two cached streams of one utterance; one shares its prompt. Both go to the ends of blocks only."""

    def __init__(self, flow: Flow, voice: Voice, tokens: Tensor) -> None:
        self.flow, self.voice, self.tokens = flow, voice, tokens
        self.by_name: dict[str, FlowStream] = {
            "cached": flow.start(prompt_of(flow, *voice)),
            "own prompt": flow.start(prompt_of(flow, *voice, n_blocks=0)),
        }
        self.at = dict.fromkeys(self.by_name, 0)
        """Tokens each has emitted."""

    def full(self, n_tokens: int, *, streaming: bool, finalize: bool) -> Tensor:
        prompt_tokens, mel, embedding = self.voice
        tokens = self.tokens[:, :n_tokens]
        return recomputed(self.flow, prompt_tokens, tokens, mel, embedding, streaming=streaming, finalize=finalize)

    def ends_on_block(self, n_tokens: int) -> bool:
        return (self.voice[0].shape[1] + n_tokens) % BLOCK_TOKENS == 0

    def extend(self, name: str, n_tokens: int) -> Tensor:
        """The stream's next frames, up to token `n_tokens`. Raises ValueError if no block ends there."""
        new = self.tokens[:, self.at[name] : n_tokens]
        ahead = self.tokens[:, n_tokens : n_tokens + LOOKAHEAD_TOKENS]
        mel = extend(self.flow, self.by_name[name], new, ahead)
        self.at[name] = n_tokens
        return mel

    def finish(self, name: str) -> Tensor:
        return finish(self.flow, self.by_name[name], self.tokens[:, self.at[name] :])


def last_frames(mel: Tensor, n: int) -> Tensor:
    """The last n frames, or all frames if there are fewer, so that the shapes differ."""
    return mel[:, :, max(0, mel.shape[2] - n) :]


def within_order(reference: Tensor) -> float:
    return PRODUCT * max(1.0, float(reference.abs().max()) / LARGE)


def check_chunk(streams: Streams, golden: Arrays, i: int) -> Iterator[Row]:
    """Chunk i: recomputed at any length, and by cached streams if it ends on a block of 25 tokens.

    A cached stream must refuse any other end. The reference computes such frames again in its next chunk, with other
    results, which no cache can follow (specification 8). The stream goes on at the next chunk that ends on a block.
    """
    n_in = int(golden[f"chunk{i}_ntok_in"])
    n_end = n_in - LOOKAHEAD_TOKENS
    recomputed = streams.full(n_in, streaming=True, finalize=False)
    emitted, whole = golden[f"chunk{i}_emitted"], golden.get(f"chunk{i}_full_from_prompt_end", recomputed)
    n_frames = emitted.shape[2]
    differences = error(recomputed, whole), error(last_frames(recomputed, n_frames), emitted)
    yield Stage(f"flow chunk {i} recomputed", max(differences), SOLVED)
    if not streams.ends_on_block(n_end):
        yield Stage(f"flow chunk {i} refused by the cached stream", float(not refuses(streams, n_end)), EXACT)
        yield Skipped(f"flow chunk {i} cached", f"it ends within a block of {BLOCK_TOKENS} tokens")
        return
    begin = streams.at["cached"] * FRAMES_PER_TOKEN
    ours = {name: streams.extend(name, n_end) for name in streams.by_name}
    for name, mel in ours.items():
        yield Stage(f"flow chunk {i} {name}", error(last_frames(mel, n_frames), emitted), SOLVED)
    difference = error(ours["cached"], recomputed[:, :, begin:])
    yield Stage(f"flow chunk {i} cached = recomputed", difference, within_order(recomputed))


def refuses(streams: Streams, n_end: int) -> bool:
    before = streams.by_name["cached"].n_emitted
    try:
        streams.extend("cached", n_end)
    except ValueError:
        return streams.by_name["cached"].n_emitted == before
    return False


def check_finish(streams: Streams, golden: Arrays) -> Iterator[Row]:
    """Both ends: the reference's, in which all frames see all others, and the block-causal one of cached streams."""
    n_all, offset = streams.tokens.shape[1], FRAMES_PER_TOKEN * int(golden["offset_tokens"])
    whole = streams.full(n_all, streaming=False, finalize=True)
    for title, mel, name in (
        ("flow whole, all visible", whole, "final_all_frames_nonstreaming"),
        ("flow finish, all visible", whole[:, :, offset:], "final_upstream_nonstreaming_masks"),
    ):
        yield measure(title, lambda m=mel, n=name: error(m, golden[n]), SOLVED)
    want = golden["final_streaming_masks_variant"]
    recomputed = streams.full(n_all, streaming=True, finalize=True)
    yield Stage("flow finish, block-causal, recomputed", error(recomputed[:, :, offset:], want), SOLVED)
    begin = streams.at["cached"] * FRAMES_PER_TOKEN
    ours = streams.finish("cached")
    yield Stage("flow finish, block-causal, cached", error(last_frames(ours, want.shape[2]), want), SOLVED)
    yield Stage("flow finish, cached = recomputed", error(ours, recomputed[:, :, begin:]), within_order(recomputed))
    ours = last_frames(streams.finish("own prompt"), want.shape[2])
    yield Stage("flow finish, own prompt", error(ours, want), SOLVED)


def check_no_prompt(flow: Flow, golden: Arrays) -> Iterator[Row]:
    token, want = golden.ids("token"), golden["mel"]
    nothing = torch.zeros(1, 0, want.shape[1])
    mel = recomputed(flow, token[:, :0], token, nothing, golden["embedding"], streaming=False, finalize=True)
    yield Stage("flow without prompt", error(mel, want), SOLVED)
