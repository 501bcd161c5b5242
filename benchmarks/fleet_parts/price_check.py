"""Whether derived prices give back the figures that they were derived from, on the engine's core. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_parts.core_replica import CoreReplica
from fleet_parts.events import Events
from fleet_parts.prices import EnginePrices
from fleet_parts.replica_api import TOKEN_NS, WORD_TOKENS
from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S, percentile

VOICE = "voice 0"
AHEAD_NS = NS_PER_S
"""A paced caller of `bench engine` takes audio when at most this much is left."""


def check(prices: EnginePrices, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each load of a closed loop without barge-ins: the measured figures, and those of the core with the prices."""
    rows = []
    n_words = max(1, round(float(document["settings"]["seconds"]) * NS_PER_S / (WORD_TOKENS * TOKEN_NS)))
    for row in document["results"]:
        if row["mode"] == "closed" and not row["cancelled"] and row["first_audio_ms_p50"] is not None:
            n_turns = max(1, row["turns"] // row["concurrency"])
            first_ms, speed = _closed_loop(prices, row["concurrency"], n_turns, n_words, bool(row["paced"]))
            rows.append(
                {
                    "callers": row["concurrency"],
                    "measured": {name: row[name] for name in ("first_audio_ms_p50", "audio_seconds_per_second")},
                    "simulated": {"first_audio_ms_p50": first_ms, "audio_seconds_per_second": speed},
                    "apart": {
                        "first_audio_ms_p50": round(first_ms / row["first_audio_ms_p50"] - 1, 4),
                        "audio_seconds_per_second": round(speed / row["audio_seconds_per_second"] - 1, 4),
                    },
                }
            )
    return rows


def _closed_loop(prices: EnginePrices, n_callers: int, n_turns: int, n_words: int, paced: bool) -> tuple[float, float]:
    """(first audio p50 in ms, seconds of speech in a second) of callers who begin again when they are done."""
    events = Events()
    begun: dict[int, int] = {}
    until: dict[int, int] = {}
    first_ms: list[float] = []
    left = {caller: n_turns for caller in range(1, n_callers + 1)}
    times = {"begin": 0, "end": 0, "sound": 0}

    def begin(key: int) -> None:
        begun[key] = events.now_ns
        until.pop(key, None)
        replica.submit(key, n_words, VOICE, events.now_ns, False)

    def heard(key: int, sound_ns: int) -> None:
        if key == 0:
            replica.take(key, sound_ns)
            return
        if key not in until:
            first_ms.append((events.now_ns - begun[key]) / NS_PER_MS)
        until[key] = max(until.get(key, 0), events.now_ns) + sound_ns
        times["sound"] += sound_ns
        times["end"] = events.now_ns
        wait_ns = max(events.now_ns, until[key] - sound_ns - AHEAD_NS) if paced else events.now_ns
        events.at(wait_ns, replica.take, key, sound_ns)

    def ended(key: int) -> None:
        if key == 0:  # the warm-up, which makes the voice ready
            times["begin"] = events.now_ns
            for caller in left:
                begin(caller)
            return
        left[key] -= 1
        if left[key]:
            events.at(max(events.now_ns, until[key] if paced else 0), begin, key)

    replica = CoreReplica(events, prices, [VOICE], heard, ended)
    begin(0)
    events.run()
    return round(percentile(first_ms, 0.5) or 0.0, 2), round(times["sound"] / (times["end"] - times["begin"]), 4)
