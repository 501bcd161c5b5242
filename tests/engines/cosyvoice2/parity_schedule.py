"""The upstream profile's plan of chunks against what the reference's driver was seen to do (specification 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity_rows import EXACT, Row, Skipped, guarded, measure, read_json

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.profile import UPSTREAM, Profile

Call = tuple[int, int, bool]
"""Tokens known, tokens given out before, whether it is the last."""


def profile(streaming: dict[str, int]) -> Profile:
    """The upstream profile with the hops of tiny_config.json's "streaming"; the official ones where it has none."""
    hop = streaming.get("token_hop_len", BLOCK_TOKENS)
    most = streaming.get("token_max_hop_len", UPSTREAM.later_block_tokens[-1])
    factor = streaming.get("stream_scale_factor", 2)
    hops = [hop]
    while len(hops) < 2 or hops[-1] != hops[-2]:
        hops.append(min(most, int(hops[-1] * factor)))
    return replace(UPSTREAM, later_block_tokens=tuple(hops[1:-1] or hops[1:]))


def check_golden(directory: Path) -> Iterator[Row]:
    yield from guarded("hop schedule", check_schedule(directory))


def check_schedule(directory: Path) -> Iterator[Row]:
    """Every run; one that began with the hop which another had left behind has to be as if it were the first."""
    schedule: dict[str, dict[str, Any]] = read_json(directory / "driver_schedule.json")
    streaming = read_json(directory / "tiny_config.json").get("streaming", {})
    hop = streaming.get("token_hop_len", BLOCK_TOKENS)
    plan = profile(streaming)
    fresh = {
        (run["prompt_tokens"], run["n_tokens"]): recorded(run)
        for run in schedule.values()
        if run.get("hop_len_at_start", hop) == hop
    }
    for name, run in schedule.items():
        title = f"hop schedule, {name}"
        if not is_streamed(run) and run["n_tokens"] >= hop + LOOKAHEAD_TOKENS + -run["prompt_tokens"] % hop:
            yield measure(title, lambda r=run: n_different(recorded(r), [(r["n_tokens"], 0, True)]), EXACT)
            continue
        if hop != BLOCK_TOKENS:
            yield Skipped(title, f"its first hop is {hop}; this engine's is {BLOCK_TOKENS}, a block of the model")
            continue
        size = run["prompt_tokens"], run["n_tokens"]
        stale = run.get("hop_len_at_start", hop) != hop
        if stale and size not in fresh:
            yield Skipped(title, "it began with the hop of an earlier request, and no first request is like it")
            continue
        title += ", as a first request" if stale else ""
        yield measure(title, lambda s=size: n_different(fresh[s], ended_early(list(plan.plan(*s)))), EXACT)


def ended_early(calls: list[Call]) -> list[Call]:
    """The plan as the reference ends it: when less is left than the chunk just given out would have needed.

    With hops that grow, as the official ones do, the next chunk needs more in any case, and this changes nothing.
    """
    n_tokens = calls[-1][0]
    for i, (known, offset, _) in enumerate(calls[:-1]):
        end = known - LOOKAHEAD_TOKENS
        if n_tokens - end < known - offset:
            return [*calls[: i + 1], (n_tokens, end, True)]
    return calls


def is_streamed(run: dict[str, Any]) -> bool:
    """By its calls: one that was too short for a first chunk looks like one that was never streamed."""
    return len(run["calls"]) > 1 or bool(run["calls"][0]["stream"])


def recorded(run: dict[str, Any]) -> list[Call]:
    return [(call["n_tok"], call["offset"], bool(call["finalize"])) for call in run["calls"]]


def n_different(ours: list[Call], theirs: list[Call]) -> float:
    return float(sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs)))
