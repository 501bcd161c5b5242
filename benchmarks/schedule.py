"""A simulation of the engine's schedule: the real planner, with the price of a batch as an input, in virtual time.

Nothing here is measured. The price of a batch is an input (--cost, --price): a guess, or a figure of a benchmark. The
results follow from the prices. They compare schedules, block lengths and limits with each other; they promise nothing
for a machine. Every caller says a sentence, hears it to its end, is silent for 0.5 to 2.5 s and says the next one.
Lanes do not slow each other, but for `--cost zen4`, whose lanes help each other when they have no other work.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, fields, replace
from typing import Any

from harness import report
from harness.cost import H200, Cost, HelpingLanes
from harness.engine_prices import wide
from harness.simulated import LISTEN_NS, Planner, Simulation

from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S, TurnRecord, figures
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage, plan
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.cosyvoice2.profile import PROFILES
from telephony_tts.engines.cosyvoice2.settings import AheadLimits

_EXAMPLES = """examples:
  python benchmarks/schedule.py                                      two lanes of a small machine
  python benchmarks/schedule.py --cost h200 --callers 8,32,64        a machine that computes many rows at once
  python benchmarks/schedule.py --price decode=12,5 --hops 25        dearer decoding, only short blocks
  python benchmarks/schedule.py --cost tiny --callers 8 --cancelling 1   with a caller that cancels every 100 ms
  python benchmarks/schedule.py --cost zen5 --without batching           without waiting to decode in larger batches
  python benchmarks/schedule.py --cost zen4 --profile cpu --callers 1 --words 20 --unpaced   turns of 8 s

All prices are inputs, in milliseconds for a batch and for each row: prefill, decode, flow (one of ten Euler steps) and
vocode. A row of flow or vocoder has 25 tokens. Nothing is measured.
"""


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """The prices of a machine, and how the engine uses it."""

    cost: Cost
    n_lanes: int
    has_wide_batches: bool
    helping: HelpingLanes | None = None

    def widths(self, n_slots: int, steps: str) -> BatchSizes:
        if not self.has_wide_batches:
            return BatchSizes(decode=min(4, n_slots))
        return replace(wide(n_slots), all_stages=steps == "all")


MACHINES = {
    "cpu": PricedMachine(Cost((20, 150), (7, 4), (2, 40), (5, 95)), 2, False),
    "zen5": PricedMachine(Cost((330, 0), (17, 3), (0, 85), (0, 120)), 2, False),
    "zen4": PricedMachine(Cost((347, 0), (13.5, 3), (0, 75.5), (35, 160)), 2, False, HelpingLanes()),
    "tiny": PricedMachine(Cost((4, 0), (1, 0.8), (0.3, 4.5), (2, 38)), 1, False),
    "h200": PricedMachine(H200, 1, True),
}
"""`cpu`: two cores that read the language model's weights at 34 GB/s and multiply at 400 GFLOP/s. `zen5`: about two Zen
5 cores with the full size; `zen4`: two Zen 4 cores in int8, whose lanes help each other; `tiny`: one core of
a Zen 5 with the tiny random checkpoint (docs/experiments.md); `h200`: as measured, see `harness/cost.py`."""
UNPACED_NS = 3600 * NS_PER_S
_RULES = ("delay", "batching")
"""`delay`: new utterances wait while active ones would underrun. `batching`: decoding waits for larger batches."""


def main() -> None:
    flags = report.parser("schedule", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--cost", choices=MACHINES, default="cpu", help="prices to start from (default %(default)s)")
    flags.add_argument("--price", action="append", default=[], metavar="STAGE=BATCH,ROW", help="another price, in ms")
    flags.add_argument("--callers", default="1,2,3,4", help="numbers of callers, by comma (default %(default)s)")
    flags.add_argument("--lanes", type=int, help="threads that compute steps (default: those of --cost)")
    flags.add_argument(
        "--steps", choices=("one", "all"), default="one",
        help="stages of a step on a wide machine (default %(default)s, as in the engine)",
    )  # fmt: skip
    flags.add_argument("--slots", type=int, default=64, help="slots of the language model (default %(default)s)")
    flags.add_argument("--profile", choices=PROFILES, default="default", help="block lengths (default %(default)s)")
    flags.add_argument("--hops", help="lengths in tokens of the blocks after the first, separated by commas")
    flags.add_argument("--ahead-ms", type=int, default=AheadLimits().audio_ms, help="limit of audio made and not taken")
    flags.add_argument("--ahead-tokens", type=int, default=AheadLimits().n_tokens,
                       help="tokens drawn beyond the next block")
    flags.add_argument("--words", type=int, help="words of every sentence, 0.4 s each (default 8 to 30 by chance)")
    flags.add_argument("--unpaced", action="store_true", help="callers take audio as soon as it is made")
    flags.add_argument("--cancelling", type=int, default=0, help="callers that start and cancel every 100 ms")
    flags.add_argument(
        "--without", action="append", default=[], choices=_RULES, help="leave out a rule of the schedule"
    )
    flags.add_argument("--scale", type=float, default=1.0, help="factor of all prices (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=200.0, help="sentences begin within this (default %(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="seed of the sentences and pauses (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.callers, chosen.seconds = "1,2", 10.0
    try:
        machine = _scaled(_priced(MACHINES[chosen.cost], chosen.price), chosen.scale)
        runs = [_run(machine, int(word), chosen) for word in chosen.callers.split(",")]
    except ValueError as error:
        flags.error(str(error))
    print("prices are inputs and nothing was measured, in ms of a batch and of a row:", _prices(machine.cost))
    report.table(
        f"what would follow from these prices ({chosen.cost})",
        (
            "callers",
            "sentences",
            "first audio ms p50",
            "p95",
            "C100",
            "audio s/s",
            "gaps",
            "most",
            "busy",
            "decode rows",
            "RTF",
        ),
        [
            (
                run["callers"],
                run["turns"],
                *(run[name] for name in ("first_audio_ms_p50", "first_audio_ms_p95", "c100")),
                run["audio_seconds_per_second"],
                run["underruns"],
                run["underrun_ms_max"] or 0,
                run["busy"],
                run["decode_rows"],
                run["rtf"],
            )
            for run in runs
        ],
    )
    print("\nC100: share of sentences without a gap above 100 ms. busy: of the lanes' time. decode rows: in a batch.")
    report.save(chosen, {"measured": False, "prices_ms": _prices(machine.cost), "runs": runs})


def _priced(machine: PricedMachine, prices: list[str]) -> PricedMachine:
    """The machine with these prices in place of its own. Raises ValueError for a malformed price."""
    names = [field.name for field in fields(Cost) if field.name != "run_ahead"]
    cost = machine.cost
    for word in prices:
        name, _, pair = word.partition("=")
        try:
            made, row = (float(number) for number in pair.split(","))
        except ValueError:
            made = row = -1.0
        if name not in names or min(made, row) < 0:
            raise ValueError(f"--price {word}: expected STAGE=BATCH,ROW in ms, STAGE one of {', '.join(names)}")
        cost = replace(cost, **{name: (made, row)})
    return replace(machine, cost=cost)


def _scaled(machine: PricedMachine, factor: float) -> PricedMachine:
    """The machine with all prices times `factor`. Raises ValueError unless the factor is above 0."""
    if factor <= 0:
        raise ValueError(f"--scale {factor}: expected more than 0")
    pairs = {name: getattr(machine.cost, name) for name in ("prefill", "decode", "flow", "vocode")}
    scaled = {name: (made * factor, row * factor) for name, (made, row) in pairs.items()}
    return replace(machine, cost=replace(machine.cost, **scaled))


def _prices(cost: Cost) -> dict[str, Any]:
    return {field.name: getattr(cost, field.name) for field in fields(cost)}


def _run(machine: PricedMachine, n_callers: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Simulate the callers until the last has heard its last sentence; the figures."""
    profile = PROFILES[chosen.profile]
    if chosen.hops:
        profile = replace(profile, later_block_tokens=tuple(int(word) for word in chosen.hops.split(",")))
    sim = Simulation(
        machine.cost,
        machine.widths(chosen.slots, chosen.steps),
        n_lanes=chosen.lanes or machine.n_lanes,
        n_slots=chosen.slots,
        ahead=AheadLimits(chosen.ahead_ms, chosen.ahead_tokens),
        profile=profile,
        planner=_planner(chosen.without),
        helping=machine.helping,
        listen_ns=UNPACED_NS if chosen.unpaced else LISTEN_NS,
    )
    cancelling: set[int] = set()
    for i in range(n_callers):
        chance = random.Random(1000 * chosen.seed + i)
        _converse(sim, chance, round(chance.uniform(0, 6) * NS_PER_S), chosen.seconds, chosen.words)
    for _ in range(chosen.cancelling):
        cancelling |= _start_and_cancel(sim, chosen.seconds)
    sim.run()
    heard = [said for key, said in sim.said.items() if key not in cancelling]
    turns = [TurnRecord(said.asked_ns, said.arrivals, ended_ns=said.ended_ns) for said in heard]
    n_batches = max(1, sim.n_batches[Stage.DECODE])
    return {
        "callers": n_callers,
        **figures(turns),
        "busy": round(sum(sim.busy_ns.values()) / (len(sim.lanes) * max(1, sim.now_ns)), 3),
        "decode_rows": round(sim.n_rows[Stage.DECODE] / n_batches, 2),
    }


def _planner(without: list[str]) -> Planner:
    def planned(*arguments: Any) -> Any:
        needs, lane, widths, n_drawing, wait_ns = arguments
        return plan(
            needs, lane, widths, 0 if "batching" in without else n_drawing, 0 if "delay" in without else wait_ns
        )

    return planned


def _start_and_cancel(sim: Simulation, until_s: float) -> set[int]:
    """Start an utterance of 8 s every 100 ms and cancel it 1 to 80 ms later. Returns the keys of the utterances."""
    keys = set()
    for n in range(round(10 * until_s)):
        at_ns = n * 100 * NS_PER_MS
        keys.add(key := sim.say(20, at_ns=at_ns))
        sim.cancel(key, at_ns=at_ns + (1, 10, 20, 40, 80)[n % 5] * NS_PER_MS)
    return keys


def _converse(sim: Simulation, chance: random.Random, at_ns: int, until_s: float, n_words: int | None) -> None:
    """Say a sentence, of 3 to 12 s if `n_words` is None, pause when it was heard, and say the next."""
    if at_ns < until_s * NS_PER_S:
        pause_ns = round(chance.uniform(0.5, 2.5) * NS_PER_S)
        sim.say(
            chance.randint(8, 30) if n_words is None else n_words,
            at_ns=at_ns,
            then=lambda end_ns: _converse(sim, chance, end_ns + pause_ns, until_s, n_words),
        )


if __name__ == "__main__":
    main()
