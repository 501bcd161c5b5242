"""One utterance of the CosyVoice2 engine on a CPU: cost as it grows, first audio, memory.

The weights are random and have the official sizes. One lane computes one utterance of a given length after a cached
prompt. `telephony-tts bench engine` measures many callers. There are six parts:

  chunks       a 50-frame chunk of the flow, from the first to the last: does its time grow by more than attention?
  totals       the whole utterance, with caches and by recomputing every prefix as the reference does
  first audio  speech tokens drawn before the first sound, for each profile, with and without a prompt
  end to end   first sound, real-time factor, and the seconds of each stage
  memory       bytes of one utterance per second of its length
  loading      seconds to load the weights and a voice
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from harness import report
from harness.process import give_back_unused, resident_kib
from harness.synthesis import Rig, Speaker, StageTimer, build, chunk_work, progress, ready_voice

from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_SPEECH_TOKENS,
    SAMPLES_PER_FRAME,
    TOKENS_PER_S,
)
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import HostPage
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt, FlowStream
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint, push_chunks
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, PROFILES, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.random_speech import random_tokens
from telephony_tts.engines.cosyvoice2.settings import DTYPES, FLOW_DTYPES, LM_DTYPES, VOCODER_DTYPES, Precision
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

_EXAMPLES = """examples:
  python benchmarks/engine.py                                the full size, 8 s, a quarter of an hour on one core
  python benchmarks/engine.py --seconds 2 --repetitions 1    a first look
  python benchmarks/engine.py --size tiny --seconds 2        a check that it runs, half a minute
  python benchmarks/engine.py --dtype bfloat16 --lm-dtype int8 --vocoder-dtype mixed --recompute 0 --json mixed.json

The weights are random, so the speech is noise; times and bytes do not depend on that. The benchmark needs 8 GB of
memory and, while it runs, 2.6 GB of disk. Most of its time is recomputing every prefix: --recompute 0 leaves it out.
"""
_SAMPLES_PER_TOKEN = FRAMES_PER_TOKEN * SAMPLES_PER_FRAME
GROWING = Profile(later_block_tokens=(25, 50, 100))
"""The default profile with blocks that grow, as in upstream's profile."""
UPSTREAM_CONSTANT = Profile(
    first_tokens=None, later_block_tokens=(BLOCK_TOKENS,), causal_finish=False, upstream_joint=True
)


def main() -> None:
    flags = report.parser("engine", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--size", choices=("full", "tiny"), default="full", help="of the networks (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="of the utterance (default %(default)s)")
    flags.add_argument("--prompt-seconds", type=float, default=3.5, help="of the voice's prompt (default %(default)s)")
    flags.add_argument("--dtype", choices=DTYPES, default="float32", help="of all networks (default %(default)s)")
    for network, dtypes in (("lm", LM_DTYPES), ("flow", FLOW_DTYPES), ("vocoder", VOCODER_DTYPES)):
        flags.add_argument(f"--{network}-dtype", choices=dtypes, help=f"of the {network}, in place of --dtype")
    flags.add_argument("--threads", type=int, default=1, help="threads of torch (default %(default)s)")
    flags.add_argument("--repetitions", type=int, default=3, help="of each measure, interleaved (default %(default)s)")
    flags.add_argument("--recompute", type=int, default=1, help="repetitions of recomputing (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.size, chosen.seconds, chosen.repetitions = "tiny", 2.4, 1
    torch.set_num_threads(chosen.threads)
    precision = Precision.of(chosen.dtype, chosen.lm_dtype, chosen.flow_dtype, chosen.vocoder_dtype)
    rig = build(chosen.size, precision)
    n_prompt, n_tokens = int(chosen.prompt_seconds * TOKENS_PER_S), random_tokens(chosen.seconds)
    features = rig.voice(n_prompt)
    results: dict[str, Any] = {
        "utterance": {
            "tokens": n_tokens, "seconds": n_tokens / TOKENS_PER_S, "prompt_tokens": n_prompt,
            "parameters": rig.n_parameters, "precision": dataclasses.asdict(precision),
        }
    }  # fmt: skip
    with torch.inference_mode():
        results["loading"] = _loading(rig, features, chosen.repetitions)
        results["first_audio"] = _first_audio(rig, features, chosen)
        results["end_to_end"] = _end_to_end(rig, features, n_tokens, chosen.repetitions)
        results["chunks"] = _chunks(rig, features, n_tokens, chosen.repetitions)
        results["totals"] = _totals(rig, features, n_tokens, chosen)
        results["memory"] = _memory(rig, features, n_tokens)
    _show(results)
    report.save(chosen, results)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": report.median(values, 4), "least": round(min(values), 4), "most": round(max(values), 4)}


def _loading(rig: Rig, features: PromptFeatures, n: int) -> dict[str, Any]:
    progress("a voice's prompt")
    seconds = [_timed(lambda: ready_voice(rig.model, features, DEFAULT)) for _ in range(n)]
    return {"write_s": round(rig.write_s, 2), "load_s": round(rig.load_s, 2), "prompt_s": _spread(seconds)}


# ------------------------------------------------------------------------- whole utterances


def _first_audio(rig: Rig, features: PromptFeatures, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """For each profile: the speech tokens drawn when the first sound is made, and the seconds to the first chunk. The
    engine may hold the first sound back, by what the steps cost; how much it draws meanwhile depends on the machine."""
    rows = []
    n_most = random_tokens(3.0)  # longer than the first chunk of any profile
    for name, profile in PROFILES.items():
        for n_prompt, voice in ((features.speech_tokens.numel(), features), (0, rig.voice(0))):
            speaker = rig.speaker(voice, profile)
            seconds, drawn = [], 0
            for _ in range(chosen.repetitions):
                progress(f"first audio, {name}, prompt of {n_prompt} tokens")
                begun = time.perf_counter()
                chunks = speaker.speak(n_most)
                with _drawn_at_first_sound(rig) as counts:
                    next(chunks)
                seconds.append(time.perf_counter() - begun)
                drawn = counts[0]
                chunks.close()
            found = {"profile": name, "prompt_tokens": n_prompt, "speech_tokens": drawn}
            rows.append({**found, "seconds": _spread(seconds)})
    return rows


@contextmanager
def _drawn_at_first_sound(rig: Rig) -> Iterator[list[int]]:
    """Meanwhile, a list of the speech tokens drawn so far: one more count each time that the engine asks whether a
    sound that was made may be heard. The first is the count at which it was made."""
    counts: list[int] = []
    ask = Job.may_be_heard

    def noted(*given: Any) -> bool:
        counts.append(int(rig.model.sampler.n_drawn[0]))
        return ask(*given)

    Job.may_be_heard = noted  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Job.may_be_heard = ask  # type: ignore[method-assign]


def _end_to_end(rig: Rig, features: PromptFeatures, n_tokens: int, n: int) -> list[dict[str, Any]]:
    """Whole utterances through all stages. The seconds of the stages are those of the run with the median total."""
    profiles = {"default": DEFAULT, "fast": PROFILES["fast"]}
    speakers = {name: rig.speaker(features, profile) for name, profile in profiles.items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in profiles}
    for _ in range(n):
        for name, speaker in speakers.items():
            progress(f"end to end, {name}")
            runs[name].append(_whole(rig, speaker, n_tokens))
    rows = []
    for name, measured in runs.items():
        middle = sorted(measured, key=lambda run: run["total_s"])[len(measured) // 2]
        first = _spread([run["first_audio_s"] for run in measured])
        rtf = _spread([run["total_s"] * TOKENS_PER_S / n_tokens for run in measured])
        rows.append({"profile": name, "first_audio_s": first, "rtf": rtf, "stages": middle["stages"]})
    return rows


def _whole(rig: Rig, speaker: Speaker, n_tokens: int) -> dict[str, Any]:
    """One whole utterance. Raises RuntimeError if its length is wrong."""
    timer, n_samples, first = StageTimer(), 0, 0.0
    begun = time.perf_counter()
    with timer.on(rig.model):
        for chunk in speaker.speak(n_tokens):
            first = first or time.perf_counter() - begun
            n_samples += len(chunk.pcm)
    total = time.perf_counter() - begun
    if n_samples != n_tokens * _SAMPLES_PER_TOKEN:
        raise RuntimeError(f"{n_tokens} tokens gave {n_samples} samples, not {n_tokens * _SAMPLES_PER_TOKEN}")
    stages = {f"{part}_s": round(seconds, 4) for part, seconds in timer.seconds.items()}
    decoding = timer.seconds["LM decode"] + timer.seconds["LM sampling"]
    stages["LM per token, ms"] = round(1000 * decoding / n_tokens, 3)
    stages["other_s"] = round(total - sum(timer.seconds.values()), 4)
    return {"first_audio_s": first, "total_s": total, "stages": stages}


# -------------------------------------------------------------------------------- the flow


def _ids(n: int) -> torch.Tensor:
    return torch.randint(N_SPEECH_TOKENS, (1, n), generator=torch.Generator().manual_seed(1))


def _cached(rig: Rig, prompt: SpeakerPrompt, tokens: torch.Tensor, profile: Profile) -> Iterator[torch.Tensor]:
    """Mel of shape (1, mels, frames), chunk after chunk, with caches."""
    stream = rig.model.flow.start(prompt.flow)
    n_cut = profile.n_cut(prompt.n_flow_tokens)
    for known, offset, last in profile.plan(prompt.n_flow_tokens + n_cut, tokens.shape[1]):
        yield _next_mel(rig.model.flow, stream, tokens, (offset, known), last=last)


def _next_mel(
    flow: Flow, stream: FlowStream, tokens: torch.Tensor, span: tuple[int, int], *, last: bool
) -> torch.Tensor:
    """The mel of a stream's next block. `span`: its first token, and the end of the tokens that it knows."""
    ids, n_new = tokens[0, slice(*span)].tolist(), span[1] - span[0] - (0 if last else LOOKAHEAD_TOKENS)
    (block,) = flow.begin([BlockRequest(stream, ids[:n_new], None if last else ids[n_new:])])
    return _stepped(flow, block)


def _stepped(flow: Flow, block: FlowBlock) -> torch.Tensor:
    while not block.done:
        flow.step([block])
    return block.mel()


def _kept_nbytes(table: PageTable) -> int:
    """Bytes of the pages that a stream or a voice has computed itself."""
    pages = [page for page in table.pages[table.n_shared :] if isinstance(page, HostPage)]
    records = [record for page in pages for record in (page.encoder, *page.steps)]
    tensors = [piece for record in records for pieces in record.kv for piece in pieces]
    tensors += [context for record in records for context in record.contexts]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _recomputed(rig: Rig, prompt: SpeakerPrompt, tokens: torch.Tensor, profile: Profile) -> Iterator[torch.Tensor]:
    """The same mel by recomputing from the first prompt token for every chunk, as the reference does."""
    flow = rig.model.flow
    unshared = FlowPrompt(prompt.flow.spk, prompt.flow_tokens, prompt.flow_mel.to(flow.dtype), PageTable())
    for known, offset, last in profile.plan(prompt.n_flow_tokens, tokens.shape[1]):
        if last:
            whole = flow.begin_whole(prompt.flow_tokens, tokens[:, :known], prompt.flow_mel, prompt.embedding)
            mel = _stepped(flow, whole)
        else:
            mel = _next_mel(flow, flow.start(unshared), tokens, (0, known), last=False)
        yield mel[:, :, offset * FRAMES_PER_TOKEN :]


def _chunks(rig: Rig, features: PromptFeatures, n_tokens: int, n: int) -> dict[str, Any]:
    """Chunks of 25 tokens with caches. Only attention is expected to grow, in proportion to its keys."""
    prompt, tokens = ready_voice(rig.model, features, DEFAULT), _ids(n_tokens)
    plan = list(DEFAULT.plan(features.speech_tokens.numel(), n_tokens))[:-1]
    ends = [known - LOOKAHEAD_TOKENS for known, _, _ in plan]
    seen = [prompt.n_flow_tokens + end for end in ends]
    # The first chunk also has the part of the prompt that is not shared, so every chunk has 25 tokens.
    tail = prompt.flow.tail_tokens.shape[1]
    news = [end - offset + (0 if offset else tail) for end, (_, offset, _) in zip(ends, plan, strict=True)]
    work = [chunk_work(rig.config, rig.linear, *of) for of in zip(news, seen, strict=True)]
    seconds: list[list[float]] = [[] for _ in ends]
    for _ in range(n):
        progress(f"{len(ends)} chunks of the flow")
        mels = _cached(rig, prompt, tokens, DEFAULT)
        for measured in seconds:
            measured.append(_timed(lambda mels=mels: next(mels)))  # type: ignore[misc]
        mels.close()  # type: ignore[attr-defined]
    medians = [statistics.median(measured) for measured in seconds]
    rate = medians[0] / sum(work[0])
    grown = (work[-1][1] - work[0][1]) * rate
    return {
        "frames": [new * FRAMES_PER_TOKEN for new in news],
        "frames_seen": [n_seen * FRAMES_PER_TOKEN for n_seen in seen],
        "seconds": [_spread(measured) for measured in seconds],
        "gflop": [round(sum(of) / 1e9, 4) for of in work],
        "gflop_attention": [round(of[1] / 1e9, 4) for of in work],
        "gflop_per_s": [round(sum(of) / 1e9 / s, 2) for of, s in zip(work, medians, strict=True)],
        "last_over_first": round(medians[-1] / medians[0], 3),
        "last_over_second": round(medians[-1] / medians[min(1, len(medians) - 1)], 3),
        "expected_of_attention": round(sum(work[-1]) / sum(work[0]), 3),
        "last_over_first_without_attention_growth": round((medians[-1] - grown) / medians[0], 3),
        "limit": 1.25,
    }


def _totals(rig: Rig, features: PromptFeatures, n_tokens: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Flow and vocoder of a whole utterance, four ways. The vocoder joins chunks as the profile says."""
    ways: dict[str, tuple[Profile, Callable[..., Iterator[torch.Tensor]], int]] = {
        "cached, 25": (DEFAULT, _cached, chosen.repetitions),
        "cached, 22 25 50 100": (GROWING, _cached, chosen.repetitions),
        "recomputed, 25": (UPSTREAM_CONSTANT, _recomputed, chosen.recompute),
        "recomputed, 25+pad 50 100": (UPSTREAM, _recomputed, chosen.recompute),
    }
    tokens = _ids(n_tokens)
    prompts = {name: ready_voice(rig.model, features, profile) for name, (profile, _, _) in ways.items()}
    flow: dict[str, list[float]] = {name: [] for name in ways}
    both: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(max(n for _, _, n in ways.values())):
        for name, (profile, way, n) in ways.items():
            if turn >= n:
                continue
            progress(f"whole utterance, {name}")
            noise = CounterNoise(1, rig.config.vocoder.n_harmonics + 1)
            joint = UpstreamJoint(rig.model.vocoder, noise) if profile.upstream_joint else ContinuousJoint(
                rig.model.vocoder, noise, profile.hold_frames
            )  # fmt: skip
            n_frames, flow_s, begun = 0, 0.0, time.perf_counter()
            mels = way(rig, prompts[name], tokens, profile)
            while n_frames < n_tokens * FRAMES_PER_TOKEN:
                at = time.perf_counter()
                mel = next(mels)
                flow_s += time.perf_counter() - at
                n_frames += mel.shape[2]
                push_chunks([joint], [mel], [n_frames == n_tokens * FRAMES_PER_TOKEN], _raise)
            both[name].append(time.perf_counter() - begun)
            flow[name].append(flow_s)
    found: dict[str, Any] = {
        name: {"flow_s": _spread(flow[name]), "flow_and_vocoder_s": _spread(both[name])} for name in ways if flow[name]
    }
    names = list(ways)
    if chosen.recompute:
        for ours, theirs, key in (
            (names[0], names[2], "constant_hops"),
            (names[1], names[3], "growing_hops"),
            (names[0], names[3], "default_against_upstream"),
        ):
            found[f"ratio_{key}"] = {
                "flow": round(statistics.median(flow[ours]) / statistics.median(flow[theirs]), 4),
                "flow_and_vocoder": round(statistics.median(both[ours]) / statistics.median(both[theirs]), 4),
            }
        found["limit_constant_hops"] = 0.25
    return found


# ---------------------------------------------------------------------------------- memory


def _memory(rig: Rig, features: PromptFeatures, n_tokens: int) -> dict[str, Any]:
    """Bytes of one utterance: the sum of its tensors, and the growth of the process. The prompt is shared."""
    progress("memory")
    model, cache = rig.model, rig.model.cache
    prompt, tokens = ready_voice(model, features, DEFAULT), _ids(n_tokens)
    joint = ContinuousJoint(model.vocoder, CounterNoise(1, rig.config.vocoder.n_harmonics + 1))
    gc.collect()
    give_back_unused()
    before_kib = resident_kib(os.getpid())
    stream = model.flow.start(prompt.flow)
    n_start, vocoder = _kept_nbytes(stream.table), 0
    for known, offset, last in DEFAULT.plan(features.speech_tokens.numel(), n_tokens):
        mel = _next_mel(model.flow, stream, tokens, (offset, known), last=last)
        push_chunks([joint], [mel], [last], _raise)
        vocoder = max(vocoder, _held_bytes(joint))
    held_kib = resident_kib(os.getpid()) - before_kib
    n_flow = _kept_nbytes(stream.table)
    seconds = n_tokens / TOKENS_PER_S
    tail_s = prompt.flow.tail_tokens.shape[1] / TOKENS_PER_S
    del stream, joint, mel
    gc.collect()
    give_back_unused()
    left_kib = resident_kib(os.getpid()) - before_kib
    bytes_per_slot = cache.data[:, :, 0].nbytes
    per_position = bytes_per_slot / cache.max_len
    return {
        "LM, bytes per second": round(per_position * TOKENS_PER_S),
        "LM, bytes of a slot, allocated at the start": bytes_per_slot,
        "flow, bytes per second": _kept_per_second(rig, prompt),
        "flow, bytes per second with spare room": round((n_flow - n_start) / (seconds + tail_s)),
        "flow, bytes at the start": n_start,
        "vocoder, bytes at most": vocoder,
        "prompt, bytes, shared": _kept_nbytes(prompt.flow.table),
        "process, bytes per second": round(held_kib * 1024 / seconds),
        "process, bytes left afterwards": left_kib * 1024,
    }


def _held_bytes(joint: ContinuousJoint) -> int:
    """Bytes that the joint holds between chunks, but for the phases and voicing of its sines."""
    tensors = [tensor for tensor in (joint._mel, joint._source, joint._tail) if tensor is not None]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _raise(_: int, error: Exception) -> None:
    raise error


def _kept_per_second(rig: Rig, prompt: SpeakerPrompt) -> int:
    """Bytes that the flow keeps of a second, measured as what a second block adds to the first."""
    stream, tokens = rig.model.flow.start(prompt.flow), _ids(3 * BLOCK_TOKENS)
    n_first = -prompt.n_flow_tokens % BLOCK_TOKENS or BLOCK_TOKENS
    _next_mel(rig.model.flow, stream, tokens, (0, n_first + LOOKAHEAD_TOKENS), last=False)
    n_start = _kept_nbytes(stream.table)
    n_known = n_first + BLOCK_TOKENS + LOOKAHEAD_TOKENS
    _next_mel(rig.model.flow, stream, tokens, (n_first, n_known), last=False)
    return round((_kept_nbytes(stream.table) - n_start) * TOKENS_PER_S / BLOCK_TOKENS)


# ---------------------------------------------------------------------------------- report


def _show(results: dict[str, Any]) -> None:
    chunks, totals = results["chunks"], results["totals"]
    report.table(
        "flow, chunks from the caches",
        ("frames seen", "new", "seconds", "least", "most", "GFLOP", "of attention", "GFLOP/s"),
        [
            (seen, new, s["median"], s["least"], s["most"], work, attention, rate)
            for seen, new, s, work, attention, rate in zip(
                chunks["frames_seen"], chunks["frames"], chunks["seconds"], chunks["gflop"], chunks["gflop_attention"],
                chunks["gflop_per_s"], strict=True,
            )
        ],
    )  # fmt: skip
    ratios = ("last_over_first", "last_over_second", "expected_of_attention")
    for key in (*ratios, "last_over_first_without_attention_growth", "limit"):
        print(f"  {key.replace('_', ' ')}: {chunks[key]}")
    report.table(
        "whole utterance, seconds",
        ("way, hops", "flow", "flow and vocoder"),
        [
            (name, found["flow_s"]["median"], found["flow_and_vocoder_s"]["median"])
            for name, found in totals.items()
            if isinstance(found, dict) and "flow_s" in found
        ],
    )
    for key in ("ratio_constant_hops", "ratio_growing_hops", "ratio_default_against_upstream"):
        if key in totals:
            print(f"  {key.replace('_', ' ')}: {totals[key]}")
    report.table(
        "first audio",
        ("profile", "prompt tokens", "speech tokens", "seconds"),
        [
            (row["profile"], row["prompt_tokens"], row["speech_tokens"], row["seconds"]["median"])
            for row in results["first_audio"]
        ],
    )
    report.table(
        "end to end",
        ("profile", "first audio, s", "RTF", *results["end_to_end"][0]["stages"]),
        [
            (row["profile"], row["first_audio_s"]["median"], row["rtf"]["median"], *row["stages"].values())
            for row in results["end_to_end"]
        ],
    )
    report.table("memory of one utterance", ("what", "bytes"), list(results["memory"].items()))
    loading = results["loading"]
    report.table(
        "loading, seconds",
        ("what", "seconds"),
        [("weights", loading["load_s"]), ("a voice's prompt", loading["prompt_s"]["median"])],
    )


if __name__ == "__main__":
    main()
