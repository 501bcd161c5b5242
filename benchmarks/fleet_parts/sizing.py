"""How many replicas a load needs: an estimate from the prices, and the least number that reaches the targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet_parts.prices import MS_PER_S, ROW_TOKENS, TOKENS_PER_S, EnginePrices

MOST_RUNS = 12


def listeners_in_time(prices: EnginePrices, sentence_s: float) -> int:
    """The listeners that a replica would serve in real time if all of them shared every batch: an upper bound."""
    most = 0
    for n in range(1, prices.n_slots + 1):
        if _computing_ms(prices, n, sentence_s) > MS_PER_S:
            break
        most = n
    return max(1, most)


def _computing_ms(prices: EnginePrices, n: int, sentence_s: float) -> float:
    """For a second of speech of each of `n` listeners."""
    cost, sizes = prices.cost, prices.sizes

    def of(price: tuple[float, float], most_rows: int) -> float:
        return -(-n // most_rows) * price[0] + n * price[1]

    rows_per_s = TOKENS_PER_S / ROW_TOKENS
    decode_ms = TOKENS_PER_S / cost.run_ahead * of(cost.decode, sizes.decode)
    flow_ms = prices.n_euler * rows_per_s * of(cost.flow, sizes.flow)
    return (
        decode_ms + flow_ms + rows_per_s * of(cost.vocode, sizes.vocode) + of(cost.prefill, sizes.prefill) / sentence_s
    )


def least_number(guess: int, reaches: Callable[[int], bool], tolerance: float = 0.0) -> tuple[int, Mapping[int, bool]]:
    """The least number for which `reaches` is true, if more never do worse, and all numbers that were tried.

    `tolerance`: it may be above the least one by this share, which saves runs.

    Raises ValueError if none is found within `MOST_RUNS`.
    """
    tried: dict[int, bool] = {}

    def ask(n: int) -> bool:
        if n not in tried:
            if len(tried) >= MOST_RUNS:
                raise ValueError(f"no number of replicas reaches the targets; tried {sorted(tried)}")
            tried[n] = reaches(n)
        return tried[n]

    good, step = max(1, guess), max(1, guess // 8)
    bad = 0
    while not ask(good):
        bad, good = good, good + step
        step *= 2
    while good - bad > max(1, int(good * tolerance)):
        middle = max(bad + 1, good - step) if bad == 0 else (good + bad) // 2
        if ask(middle):
            good = middle
            step *= 2
        else:
            bad = middle
    return good, tried


def described(tried: Mapping[int, bool], rows: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each number that was tried."""
    keys = ("refused_share", "turns_with_gap_share", "utilisation")
    return [
        {"replicas": n, "reaches": tried[n], "first_audio_ms_p99": rows[n]["first_audio_ms"]["p99"]}
        | {key: rows[n][key] for key in keys}
        for n in sorted(tried)
    ]
