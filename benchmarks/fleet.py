"""How many engine replicas do so many calls need? A simulation of one replica finds how many calls it carries.

The replica plans with the engine's own scheduler; the time of each batch is an input: measured by `telephony-tts bench
engine --json FILE` on the machine (--engine FILE), or on an H200 by `make gpu-check`. Calls speak turns of one to three
sentences, and the caller answers after each. The router gives each sentence to the replica with the least load, so
replicas are taken as equally busy. Not simulated: the fronts, the network, barge-ins, and slow starts.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import report
from harness.engine_prices import NAMED_PRICES, EnginePrices, from_bench_engine
from harness.report import percentiles
from harness.simulated import TOKENS_PER_WORD, SimulatedUtterance, Simulation

from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S, TurnRecord, figures

_EXAMPLES = """examples:
  python benchmarks/fleet.py --calls 1000                              replicas with an H200 each
  python benchmarks/fleet.py --calls 50 --engine callers.json          with the measured prices of bench engine
  python benchmarks/fleet.py --calls 1000 --p99-ms 300 --spare 2       a stricter target, and two replicas may be lost
"""
WORD_NS = TOKENS_PER_WORD * 40 * NS_PER_MS
WARM_UP_S = 15.0
"""Turns that begin before this are not judged: the calls have only begun."""
LEAST_S = WARM_UP_S + 35.0
"""In this time each call begins a turn that is judged, if the engine keeps up."""
FIRST_TRY, TOLERANCE = 4, 0.05
"""The search begins with so many calls. What it finds may be below the most by this share."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How calls go. A range is uniform. A word is 0.4 s of speech."""

    sentences: tuple[int, int] = (1, 3)
    words: tuple[int, int] = (5, 16)
    reply_s: tuple[float, float] = (2.0, 14.0)


@dataclass(frozen=True, slots=True)
class Targets:
    """First audio of a turn at p99, and the share of turns with a silence within them, of any length."""

    first_audio_p99_ms: float = 500.0
    with_gap: float = 0.005

    def are_met_by(self, row: Mapping[str, Any]) -> bool:
        """`row`: see `one_replica`. An engine so slow that no turn could be judged meets nothing."""
        if not row["turns"]:
            return False
        p99_ms = row["first_audio_ms"]["p99"]
        return bool(p99_ms <= self.first_audio_p99_ms and row["turns_with_gap_share"] <= self.with_gap)


@dataclass(slots=True)
class Turn:
    """A turn of the bot: its sentences in the engine, one after the other."""

    asked_ns: int
    sentences: list[SimulatedUtterance] = field(default_factory=list)

    @property
    def first_audio_ms(self) -> float:
        return (self.sentences[0].arrivals[0][0] - self.asked_ns) / NS_PER_MS

    @property
    def has_gap(self) -> bool:
        """Whether the listener heard a silence in or between its sentences."""
        late = any(said.arrivals[0][0] > said.deadline_ns for said in self.sentences[1:])
        return late or any(said.underruns_ns for said in self.sentences)


def main() -> None:
    flags = report.parser("fleet", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument(
        "--engine",
        default="h200",
        help="named prices: " + ", ".join(NAMED_PRICES) + "; or a JSON file of bench engine (default %(default)s)",
    )
    flags.add_argument("--calls", type=int, default=1000, help="that are live at the same time (default %(default)s)")
    flags.add_argument("--spare", type=int, default=1, help="replicas that may be lost (default %(default)s)")
    targets = Targets()
    flags.add_argument("--p99-ms", type=float, default=targets.first_audio_p99_ms, help="first audio (%(default)s)")
    flags.add_argument("--with-gap", type=float, default=targets.with_gap, help="most turns with a gap (%(default)s)")
    flags.add_argument("--seconds", type=float, default=60.0, help="that are simulated (default %(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="of the calls (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds = min(chosen.calls, 8), LEAST_S
    if chosen.calls < 1 or chosen.spare < 0 or chosen.seconds < LEAST_S:
        flags.error(f"expected --calls of at least 1, --spare of at least 0, --seconds of at least {LEAST_S:g}")
    try:
        prices, document = _prices(chosen.engine)
    except (OSError, ValueError) as error:
        flags.error(str(error))
    print(f"engine: {prices.label}")
    for note in prices.notes:
        print(f"  {note}")
    results: dict[str, Any] = {"simulated": True, "engine": prices.described(), "habits": asdict(Habits())}
    if document is not None:
        results["price_check"] = _check_prices(prices, document)
    targets = Targets(chosen.p99_ms, chosen.with_gap)
    tried: dict[int, dict[str, Any]] = {}

    def carries(n_calls: int) -> bool:
        tried[n_calls] = row = one_replica(prices, n_calls, chosen.seconds, chosen.seed)
        row["reaches"] = targets.are_met_by(row)
        return bool(row["reaches"])

    most = most_calls(carries, chosen.calls)
    report.table(
        "calls on one replica", ("calls", "reaches", "first audio p50 ms", "p99 ms", "turns with a gap", "busy"),
        [
            (n, "yes" if row["reaches"] else "no", row["first_audio_ms"].get("p50"), row["first_audio_ms"].get("p99"),
             f"{row['turns_with_gap_share']:.2%}", f"{row['busy']:.0%}")
            for n, row in sorted(tried.items())
        ],
    )  # fmt: skip
    needed = replicas_needed(chosen.calls, most, chosen.spare) if most else None
    results |= {
        "targets": asdict(targets),
        "calls_on_one_replica": most,
        "tried": [{"calls": n, **row} for n, row in sorted(tried.items())],
        "replicas_needed": needed,
    }
    if needed is None:
        print("\nNot even one call reaches the targets on a replica: no number of replicas is enough.")
    else:
        print(f"\n{chosen.calls} calls need {needed} replicas: {most} calls on each, and {chosen.spare} may be lost.")
    report.save(chosen, results)


def most_calls(carries: Callable[[int], bool], limit: int) -> int:
    """The most calls, up to `limit`, that `carries` allows, or up to 5 % fewer; 0 if not even one."""
    good, bad = 0, limit + 1
    at = min(FIRST_TRY, limit)
    while bad - good > max(1, int(good * TOLERANCE)):
        if carries(at):
            good = at
        else:
            bad = at
        at = min(2 * good, limit) if bad > limit else (good + bad) // 2
    return good


def replicas_needed(n_calls: int, most: int, n_spare: int) -> int:
    """Replicas for `n_calls` of which each carries `most`, after `n_spare` of them are lost."""
    return math.ceil(n_calls / most) + n_spare


def one_replica(prices: EnginePrices, n_calls: int, seconds: float, seed: int, habits: Habits | None = None) -> Any:
    """Let `n_calls` speak on one replica for `seconds`, and all turns come to their end. The figures of the turns that
    began after the warm-up; `busy`: the share of the time until `seconds`."""
    sim = _simulation(prices)
    turns: list[Turn] = []
    how = habits or Habits()
    for number in range(n_calls):
        chance = random.Random(f"call {seed} {number}")
        _begin_turn(sim, turns, how, chance, round(chance.random() * WARM_UP_S * NS_PER_S), round(seconds * NS_PER_S))
    sim.run(round(seconds * NS_PER_S))
    busy_s = sum(sim.busy_ns.values()) / NS_PER_S
    sim.run()
    judged = [turn for turn in turns if turn.asked_ns >= WARM_UP_S * NS_PER_S]
    return {
        "turns": len(judged),
        "first_audio_ms": percentiles([turn.first_audio_ms for turn in judged]),
        "turns_with_gap_share": round(sum(turn.has_gap for turn in judged) / max(1, len(judged)), 6),
        "busy": round(busy_s / seconds, 4),
    }


def _simulation(prices: EnginePrices, **how: Any) -> Simulation:
    cost, sizes = prices.cost, prices.sizes
    return Simulation(cost, sizes, n_slots=prices.n_slots, ahead=prices.ahead, profile=prices.profile, **how)


def _begin_turn(
    sim: Simulation, turns: list[Turn], habits: Habits, chance: random.Random, at_ns: int, end_ns: int
) -> None:
    """Begin a turn at `at_ns`, and the next ones of the call, unless `end_ns` is over."""
    if at_ns >= end_ns:
        return
    turn = Turn(at_ns)
    turns.append(turn)
    n_sentences = chance.randint(*habits.sentences)

    def say(say_ns: int, silence_ns: int) -> None:
        key = sim.say(chance.randint(*habits.words), at_ns=say_ns, silence_ns=silence_ns, then=said)
        turn.sentences.append(sim.said[key])

    def said(until_ns: int) -> None:
        """All audio of the sentence was taken. It is heard until then."""
        if len(turn.sentences) < n_sentences:
            say(sim.now_ns, max(0, until_ns - sim.now_ns))
        else:
            next_ns = max(until_ns, sim.now_ns) + round(chance.uniform(*habits.reply_s) * NS_PER_S)
            _begin_turn(sim, turns, habits, chance, next_ns, end_ns)

    say(at_ns, 0)


def _prices(word: str) -> tuple[EnginePrices, dict[str, Any] | None]:
    """The prices of a named engine, or those derived from a file, with the file's content.

    Raises OSError or ValueError."""
    if word in NAMED_PRICES:
        return NAMED_PRICES[word], None
    path = Path(word)
    if not path.is_file():
        known = ", ".join(NAMED_PRICES)
        raise ValueError(f"--engine {word}: no such file; expected a file of bench engine, or {known}")
    document = json.loads(path.read_text(encoding="utf-8"))
    return from_bench_engine(document, path.name), document


def _check_prices(prices: EnginePrices, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The closed loads of the file again, simulated with the prices that were derived from them: a row for each."""
    n_words = max(1, round(float(document["settings"]["seconds"]) * NS_PER_S / WORD_NS))
    names = ("first_audio_ms_p50", "audio_seconds_per_second")
    rows = []
    for measured in document["results"]:
        if measured["mode"] == "closed" and not measured["cancelled"] and measured["first_audio_ms_p50"] is not None:
            n_callers, paced = measured["concurrency"], bool(measured["paced"])
            simulated = closed_loop(prices, n_callers, max(1, measured["turns"] // n_callers), n_words, paced)
            rows.append(
                {
                    "callers": n_callers,
                    "measured": {name: measured[name] for name in names},
                    "simulated": {name: simulated[name] for name in names},
                    "apart": {name: round(simulated[name] / measured[name] - 1, 4) for name in names},
                }
            )
    report.table(
        "the measured loads again, simulated with the derived prices",
        ("callers", "first audio measured", "simulated", "audio s/s measured", "simulated", "apart"),
        [
            (row["callers"], row["measured"][names[0]], row["simulated"][names[0]], row["measured"][names[1]],
             row["simulated"][names[1]], f"{max(map(abs, row['apart'].values())):.0%}")
            for row in rows
        ],
    )  # fmt: skip
    return rows


def closed_loop(prices: EnginePrices, n_callers: int, n_turns: int, n_words: int, paced: bool) -> dict[str, Any]:
    """The figures of callers who begin again when they have heard their turn, or have it if not `paced`."""
    sim = _simulation(prices, **({} if paced else {"listen_ns": 3600 * NS_PER_S}))

    def begin(at_ns: int, n_left: int) -> None:
        if n_left:
            sim.say(n_words, at_ns=at_ns, then=lambda end_ns: begin(end_ns if paced else sim.now_ns, n_left - 1))

    for _ in range(n_callers):
        begin(0, n_turns)
    sim.run()
    return figures([TurnRecord(said.asked_ns, said.arrivals, ended_ns=said.ended_ns) for said in sim.said.values()])


if __name__ == "__main__":
    main()
