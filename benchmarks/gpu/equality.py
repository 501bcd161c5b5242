"""Does the device compute what a CPU computes? The whole engine with the tiny model, each network at full size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpu.check import Check
from gpu.devices import CheckedDevice, CpuDevice
from gpu.side import PROMPT_S, ModelSide, level_db
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_TOKENS
from telephony_tts.engines.cosyvoice2.model.lm.prefill import extend_batch
from telephony_tts.engines.cosyvoice2.random_speech import random_model, random_text, random_tokens
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.engines.cosyvoice2.text.generation import whole_prompt
from telephony_tts.engines.cosyvoice2.text.prompting import Request

MEL_DB, AUDIO_DB = -80.0, -60.0
"""Most distance of the tiny engine in float32: the order of sums differs."""
BOUNDS_DB = {
    "float32": {"logits": -80.0, "mel": -80.0, "audio": -60.0},
    "float16": {"logits": -40.0, "mel": -50.0, "audio": -40.0},
    "bfloat16": {"logits": -28.0, "mel": -44.0, "audio": -40.0},
}
"""Most distance at full size from float32 on a CPU: rms relative to that of the signal. bfloat16: twice what a CPU's
bfloat16 has (docs/cosyvoice2.md)."""
REQUESTS = (Request(random_text(1.6), 1), Request(random_text(2.4), 2, speed=1.3), Request(random_text(3.2), 3))


@contextmanager
def exact_float32() -> Iterator[None]:
    """Products and convolutions of float32 in float32. By default cuDNN rounds their inputs to TF32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


# -------------------------------------------------------------------------- the whole engine, tiny


def run_tiny(check: Check) -> None:
    """Units: tokens, mel and audio of one utterance; audio of several at once through the core."""
    n_slots = check.plan.equality_slots
    with random_model("tiny", PROMPT_S, check.weights / "tiny") as directory:
        here, there = CpuDevice(), check.device
        with here.computing():
            cpu = ModelSide(here, directory, Precision(), n_slots)
            text = random_text(check.plan.equality_s)
            tokens = cpu.speech_tokens(text, seed=7)
            mels = cpu.mel(tokens)
            audio = cpu.audio(mels, seed=7)
            alone = [cpu.spoken([request])[0] for request in REQUESTS]
        with there.computing(), exact_float32():
            side = ModelSide(there, directory, Precision(), n_slots)
            side.runner.prepare(lambda: None)
            if check.run.wants("tokens"):
                with check.run.unit("tokens") as found:
                    drawn = side.speech_tokens(text, seed=7)
                    pairs = enumerate(zip(drawn, tokens, strict=False))
                    n_alike = next((i for i, (a, b) in pairs if a != b), min(len(drawn), len(tokens)))
                    found({"n": len(tokens), "n_equal_from_start": n_alike, "ok": drawn == tokens})
            if check.run.wants("mel"):
                with check.run.unit("mel") as found:
                    found(_distance(torch.cat(side.mel(tokens), 2), torch.cat(mels, 2), MEL_DB))
            if check.run.wants("audio"):
                with check.run.unit("audio") as found:
                    found(_distance(side.audio(mels, seed=7), audio, AUDIO_DB))
            if check.run.wants("engine"):
                with check.run.unit("engine") as found:
                    ours = [torch.from_numpy(pcm).double() for pcm in side.spoken(REQUESTS)]
                    theirs = [torch.from_numpy(pcm).double() for pcm in alone]
                    found({"utterances": len(ours), **_distance(torch.cat(ours), torch.cat(theirs), AUDIO_DB)})
        if check.run.wants("audio with TF32"):
            with there.computing(), check.run.unit("audio with TF32") as found:
                # What a user's engine does: nothing sets these switches.
                found(_distance(side.audio(mels, seed=7), audio, None))


def _distance(ours: Tensor, theirs: Tensor, bound_db: float | None) -> dict[str, Any]:
    """Of tensors on the CPU."""
    ours, theirs = ours.cpu().double(), theirs.cpu().double()
    if ours.shape != theirs.shape:
        raise ValueError(f"{list(ours.shape)} values instead of {list(theirs.shape)}")
    found = {"distance_db": round(level_db(ours - theirs, theirs), 1)}
    return found if bound_db is None else {**found, "bound_db": bound_db, "ok": found["distance_db"] <= bound_db}


# --------------------------------------------------------------------------- each network, full size


def run_stages(check: Check) -> None:
    """A unit for each precision: the distance of logits, mel and audio from float32 on the CPU, of the same input."""
    wanted = [name for name in BOUNDS_DB if check.run.wants(name)]
    if not wanted:
        return
    n_threads = len(os.sched_getaffinity(0)) if check.size == "full" else 1
    with random_model(check.size, PROMPT_S, check.weights / check.size) as directory:
        cpu = CpuDevice()
        random = torch.Generator().manual_seed(3)
        tokens = torch.randint(N_SPEECH_TOKENS, (random_tokens(check.plan.stages_s),), generator=random).tolist()
        check.run.tell(f"the reference on the CPU, {n_threads} threads")
        with cpu.computing():
            side = ModelSide(cpu, directory, Precision(), 1, n_threads)
            logits = _logits(side, tokens[: check.plan.stages_n_ids], cpu)
            mels = side.mel(tokens)
            audio = side.audio(mels, seed=7)
            del side
        for name in wanted:
            check.run.tell(f"{name} on the device")
            with check.device.computing(), check.run.unit(name) as found, exact_float32():
                side = ModelSide(check.device, directory, Precision.of(name), 1)
                ours = _logits(side, tokens[: check.plan.stages_n_ids], check.device)
                bounds = BOUNDS_DB[name]
                rows = {
                    "logits": _distance(ours, logits, bounds["logits"]),
                    "mel": _distance(torch.cat(side.mel(tokens), 2), torch.cat(mels, 2), bounds["mel"]),
                    "audio": _distance(side.audio(mels, seed=7), audio, bounds["audio"]),
                }
                expected = logits.log_softmax(-1)
                kl = (expected.exp() * (expected - ours.log_softmax(-1))).sum(-1).mean()
                same = (ours.argmax(-1) == logits.argmax(-1)).float().mean()
                found({**rows, "kl": float(kl.clamp(min=0)), "same_best_id": round(float(same), 4)})
                found({"ok": all(row["ok"] for row in rows.values())})
                del side


def _logits(side: ModelSide, tokens: list[int], device: CheckedDevice) -> Tensor:
    """[n, 6561] float32 on the CPU, of the speech ids: after the prompt and after each of these ids, as the device
    computes them. Stop ids are left out: the random model never draws them, because their logits are far below."""
    lm, cache, prompt = side.model.lm, side.model.cache, side.prompt()
    cache.clear(0)
    segments = whole_prompt(prompt.transcript_ids, side.model.tokenizer.encode(random_text(2.4)), prompt.speech_tokens)
    if device.name == "cpu":
        rows = [lm.logits(lm.extend(lm.embed(segments), 0, cache)[-1:])]
        for each in tokens:
            rows.append(lm.logits(lm.decode(lm.embed_speech(torch.tensor([each])), [0], cache)))
        return torch.cat(rows)[:, :N_SPEECH_TOKENS]
    there = side.model.device
    rows = [lm.logits(extend_batch(lm, cache, [0], [segments]))]
    span = cache.lengths[0] + len(tokens) + 1
    slots = torch.zeros(1, dtype=torch.int64).to(there)
    for each in tokens:
        ids, at = (torch.tensor([n]).to(there) for n in (each, cache.lengths[0]))
        rows.append(lm.logits(lm.decode_at(lm.embed_speech(ids), slots, at, span, cache)))
        cache.lengths[0] += 1
    return torch.cat(rows)[:, :N_SPEECH_TOKENS].cpu()
