"""A fleet on paper: how many engine replicas a morning rush needs, and what losses, slow starts and a canary cost.

A simulation. Fronts have the server's own admission and failover times, replicas plan with the engine's own scheduler.
What a batch costs is an input: measured by `telephony-tts bench engine --json FILE` (--engine FILE) or, for an H200, by
`make gpu-check`; or assumed, and then the output says so. The quick model of a replica is compared with the engine's
real core in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fleet_parts import calibration, picture, price_check, sizing
from fleet_parts.callers import Habits, Rush, calls
from fleet_parts.figures import Prices, Targets, figures
from fleet_parts.prices import NAMED_PRICES, EnginePrices, from_bench_engine
from fleet_parts.simulation import Canary, Fleet, FleetSettings, Loss, Scaling
from harness import report

_EXAMPLES = """examples:
  python benchmarks/fleet.py                                        10,000 calls on replicas with an H200 each
  python benchmarks/fleet.py --engine callers.json --calls 500      with the measured prices of bench engine
  python benchmarks/fleet.py --parts size --p99-ms 300              only the number of replicas, for a stricter target
  python benchmarks/fleet.py --start-s 30,600 --parts scaling       replicas that need 30 s and 10 minutes to start
  python benchmarks/fleet.py --parts calibration                    only the quick model against the real core
  python benchmarks/fleet.py --validate                             only a real front with three replicas against this
"""
PARTS = ("calibration", "size", "loss", "scaling", "canary")
LARGE, SMALLER = 4000, 8
"""From so many calls on, the search for the number of replicas begins with a part of them."""
TOLERANCE = 0.05
"""The number of replicas that is found may be above the least one by this share."""


def main() -> None:
    flags = report.parser("fleet", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument(
        "--engine",
        default="h200",
        help="named prices: " + ", ".join(NAMED_PRICES) + "; or a JSON file of bench engine (default %(default)s)",
    )
    flags.add_argument("--parts", default=",".join(PARTS), help="separated by commas (default %(default)s)")
    flags.add_argument("--calls", type=int, default=10_000, help="of the rush (default %(default)s)")
    flags.add_argument("--minutes", type=float, default=30.0, help="in which they arrive (default %(default)s)")
    flags.add_argument("--call-s", type=float, default=Habits().call_s, help="mean length of a call (%(default)s)")
    flags.add_argument("--fronts", type=int, default=8, help="front processes (default %(default)s)")
    flags.add_argument("--calls-per-front", type=int, default=1000, help="limits.calls of each (default %(default)s)")
    flags.add_argument("--start-s", default="60,180,300", help="until a new replica is ready (default %(default)s)")
    flags.add_argument("--target-load", type=float, default=Scaling().target, help="of the scaling (%(default)s)")
    flags.add_argument("--lose", type=int, default=1, help="replicas lost at the peak (default %(default)s)")
    flags.add_argument("--canary", type=float, default=0.05, help="share of the calls (default %(default)s)")
    flags.add_argument("--canary-factor", type=float, default=1.3, help="its prices to the others' (%(default)s)")
    flags.add_argument(
        "--replica-price",
        type=float,
        default=4.0,
        help="of a node with one replica for an hour; ASSUMED unless you say it (default %(default)s)",
    )
    flags.add_argument(
        "--front-price",
        type=float,
        default=0.4,
        help="of a node with 8 front processes for an hour; ASSUMED too (default %(default)s)",
    )
    flags.add_argument("--p99-ms", type=float, default=Targets().first_audio_p99_ms, help="first audio (%(default)s)")
    flags.add_argument("--refused", type=float, default=Targets().refused, help="most calls refused (%(default)s)")
    flags.add_argument("--with-gap", type=float, default=Targets().with_gap, help="most turns with a gap (%(default)s)")
    flags.add_argument("--replicas", help="numbers to try, by comma, in place of a search for the least")
    flags.add_argument("--flow-group", type=int, default=1, help="Euler steps simulated as one (default %(default)s)")
    flags.add_argument("--decode-group", type=int, default=1, help="decode steps as one (default %(default)s)")
    flags.add_argument("--processes", type=int, default=2, help="runs at a time (default %(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="of calls and arrivals (default %(default)s)")
    flags.add_argument("--validate", action="store_true", help="only compare with a real front and three fake engines")
    flags.add_argument("--validate-calls", type=int, default=600, help="of the validation (default %(default)s)")
    flags.add_argument("--validate-s", type=float, default=300.0, help="in which they arrive (default %(default)s)")
    flags.add_argument("--picture", type=Path, help="PNG, SVG or PDF (default: the JSON file's name with .png)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.minutes, chosen.call_s, chosen.start_s, chosen.processes = 60, 1.0, 40.0, "20", 1
    if chosen.validate:
        _validate(chosen)
        return
    parts = [word for word in chosen.parts.split(",") if word]
    if unknown := [word for word in parts if word not in PARTS]:
        flags.error(f"--parts {','.join(unknown)}: expected some of {', '.join(PARTS)}")
    try:
        prices, document = _prices(chosen.engine)
        start_s = [float(word) for word in chosen.start_s.split(",")]
        numbers = [int(word) for word in chosen.replicas.split(",")] if chosen.replicas else []
    except (OSError, ValueError) as error:
        flags.error(str(error))
    print(f"engine: {prices.label}, " + ("MEASURED" if prices.measured else "ASSUMED, not measured"))
    for note in prices.notes:
        print(f"  {note}")
    checked = [] if document is None else _check_prices(prices, document)
    results = _Runs(chosen, prices, start_s, numbers).all(parts)
    if document is not None:
        results["price_check"] = checked
    results["prices_are_inputs"] = {
        "replica_hour": chosen.replica_price,
        "front_hour": chosen.front_price,
        "assumed": "both, unless the operator gave them",
    }
    report.save(chosen, results)


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


def _check_prices(prices: EnginePrices, document: dict[str, Any]) -> list[dict[str, Any]]:
    """The loads of the file again, on the engine's core with the prices that were derived from them."""
    rows = price_check.check(prices, document)
    report.table(
        "the measured loads again, with the derived prices on the engine's core",
        ("callers", "first audio measured", "simulated", "audio s/s measured", "simulated", "apart"),
        [
            (
                row["callers"],
                row["measured"]["first_audio_ms_p50"],
                row["simulated"]["first_audio_ms_p50"],
                row["measured"]["audio_seconds_per_second"],
                row["simulated"]["audio_seconds_per_second"],
                f"{max(map(abs, row['apart'].values())):.0%}",
            )
            for row in rows
        ],
    )
    return rows


def _validate(chosen: argparse.Namespace) -> None:
    """A real front and real engine servers under a known load, and the simulation of the same."""
    from fleet_parts import validation  # it needs gRPC

    known = validation.KnownLoad(n_calls=chosen.validate_calls, seconds=chosen.validate_s, seed=chosen.seed)
    if chosen.quick:
        known = replace(known, n_calls=6, seconds=5.0, habits=replace(known.habits, call_s=21.0), n_lone_turns=2)
    found = validation.validate(known, lambda line: print(f"  {line}", flush=True), chosen.priority)
    measured, simulated = found["measured"], found["simulated"]
    report.table(
        f"{known.n_replicas} fake engines with {known.pace.n_slots} slots each: measured and simulated",
        ("figure", "measured", "simulated", "apart"),
        [
            (name, measured[name], simulated[name], "-" if apart is None else f"{apart:+.1%}")
            for name, apart in found["apart"].items()
        ],
    )
    worst = max((abs(apart) for apart in found["apart"].values() if apart is not None), default=0.0)
    answer = "yes" if worst <= validation.WITHIN else "NO"
    print(f"\nthe worst is {worst:.1%} off; within {validation.WITHIN:.0%}: {answer}")
    report.save(chosen, found)


class _Runs:
    """The parts of the benchmark, each with a table of its figures."""

    def __init__(
        self, chosen: argparse.Namespace, prices: EnginePrices, start_s: Sequence[float], numbers: Sequence[int]
    ) -> None:
        self._chosen, self._prices, self._start_s, self._numbers = chosen, prices, start_s, numbers
        self._habits = Habits(call_s=chosen.call_s)
        self._rush = Rush(chosen.minutes * 60)
        self._money = Prices(chosen.replica_price, chosen.front_price)
        self._targets = Targets(chosen.refused, chosen.with_gap, chosen.p99_ms)
        self._drawn: dict[str, Mapping[str, Sequence[Any]]] = {}
        self._done: dict[_Job, dict[str, Any]] = {}

    def all(self, parts: Sequence[str]) -> dict[str, Any]:
        """The results of these parts."""
        results: dict[str, Any] = {
            "simulated": True,
            "engine": self._prices.described(),
            "habits": asdict(self._habits) | {"speaking_share": round(self._habits.speaking_share, 3)},
            "rush": asdict(self._rush),
            "targets": asdict(self._targets),
        }
        if "calibration" in parts:
            results["calibration"] = self._calibration()
        if set(parts) & {"size", "loss", "scaling", "canary"}:
            results["size"] = size = self._size()
            n = size["replicas_needed"]
            runs = {_name(n): self._settings(n)} | self._others(parts, n)
            results["runs"] = self._run(runs)
            self._draw()
        return results

    # ------------------------------------------------------------------------ the parts

    def _calibration(self) -> list[dict[str, Any]]:
        """The light replica against the real core."""
        shares = (0.1,) if self._chosen.quick else (0.1, 0.5, 0.8)
        rows = calibration.compare(
            self._prices,
            self._habits,
            shares=shares,
            seconds=20.0 if self._chosen.quick else 120.0,
            flow_group=self._chosen.flow_group,
            decode_group=self._chosen.decode_group,
            seed=self._chosen.seed,
        )
        report.table(
            "one replica, the light model against the engine's real core: first audio in ms",
            (
                "of the upper bound",
                "calls",
                "core p50",
                "light p50",
                "core p99",
                "light p99",
                "core used",
                "light used",
                "apart",
            ),
            [
                (
                    f"{row['share']:.0%}",
                    row["calls"],
                    row["core"]["first_audio_ms_p50"],
                    row["light"]["first_audio_ms_p50"],
                    row["core"]["first_audio_ms_p99"],
                    row["light"]["first_audio_ms_p99"],
                    f"{row['core']['utilisation']:.1%}",
                    f"{row['light']['utilisation']:.1%}",
                    f"{max(abs(off) for off in row['apart'].values() if off is not None):.2%}",
                )
                for row in rows
            ],
        )
        return rows

    def _size(self) -> dict[str, Any]:
        """The least number of replicas that reaches the targets."""
        upper = sizing.listeners_in_time(self._prices, self._habits.sentence_s)
        n_peak = self._peak_speaking()
        print(f"at the peak about {n_peak:.0f} bots speak at once; a replica serves {upper} at most, by its prices")
        rows: dict[int, dict[str, Any]] = {}
        try:
            needed, tried = self._try(rows) if self._numbers else self._search(math.ceil(n_peak / (0.3 * upper)), rows)
        except ValueError as error:
            raise SystemExit(f"fleet.py: {error}") from error
        described = sizing.described(tried, rows)
        report.table(
            "how many replicas the rush needs", ("replicas", "reaches", "refused", "with a gap", "p99 ms", "used"),
            [
                (row["replicas"], "yes" if row["reaches"] else "no", f"{row['refused_share']:.2%}",
                 f"{row['turns_with_gap_share']:.2%}", row["first_audio_ms_p99"], f"{row['utilisation']:.0%}")
                for row in described
            ],
        )  # fmt: skip
        return {
            "replicas_needed": needed,
            "reaches_the_targets": tried[needed],
            "tolerance": TOLERANCE,
            "listeners_at_most": upper,
            "speaking_at_peak": round(n_peak, 1),
            "tried": described,
        }

    def _try(self, rows: dict[int, dict[str, Any]]) -> tuple[int, Mapping[int, bool]]:
        """The least of the given numbers that reaches the targets, or the largest one."""
        jobs = [_Job(_name(n), self._settings(n), *self._job) for n in self._numbers]
        rows |= {n: one["figures"] for n, one in zip(self._numbers, self._simulated(jobs), strict=True)}
        tried = {n: not self._targets.missed_by(row) for n, row in rows.items()}
        return min((n for n, reached in tried.items() if reached), default=max(tried)), tried

    def _search(self, guess: int, rows: dict[int, dict[str, Any]]) -> tuple[int, Mapping[int, bool]]:
        """The least number that reaches the targets. Raises ValueError if none is found."""
        if self._chosen.calls >= LARGE:
            print(f"a first search with a {SMALLER}th of the calls:", flush=True)
            found, _ = sizing.least_number(math.ceil(guess / SMALLER), lambda n: self._reaches(n, {}, SMALLER), 0.1)
            guess = SMALLER * found
            print("and with all:", flush=True)
        return sizing.least_number(guess, lambda n: self._reaches(n, rows), TOLERANCE)

    def _reaches(self, n: int, rows: dict[int, dict[str, Any]], smaller: int = 1) -> bool:
        """Whether `n` replicas reach the targets; the figures go into `rows`. `smaller`: with a part of the calls."""
        job = _Job(_name(n), self._settings(n), *self._job)
        (one,) = self._simulated([replace(job, n_calls=job.n_calls // smaller)])
        rows[n] = one["figures"]
        missed = self._targets.missed_by(rows[n])
        print(f"  {n} replicas: " + (f"misses {', '.join(missed)}" if missed else "reaches the targets"), flush=True)
        return not missed

    def _others(self, parts: Sequence[str], n: int) -> dict[str, FleetSettings]:
        """The runs beside the one with the fixed number."""
        chosen, found = self._chosen, {}
        peak_s = self._rush.peak_at * self._rush.seconds
        if "loss" in parts:
            for start_s in (min(self._start_s), max(self._start_s)):
                loss = Loss(peak_s, chosen.lose)
                found[f"{n}, {chosen.lose} lost, back in {start_s:g} s"] = self._settings(n, start_s, losses=(loss,))
            spare = self._settings(n + chosen.lose, max(self._start_s), losses=(Loss(peak_s, chosen.lose),))
            found[f"{n} + {chosen.lose}, {chosen.lose} lost, back in {max(self._start_s):g} s"] = spare
        if "scaling" in parts:
            least = max(1, math.ceil(n * self._rush.base))
            for start_s in self._start_s:
                scaling = Scaling(chosen.target_load, least=least, most=3 * n)
                found[f"scaled from {least}, ready in {start_s:g} s"] = self._settings(least, start_s, scaling=scaling)
        if "canary" in parts:
            n_canaries = max(1, math.ceil(n * chosen.canary))
            canary = Canary(chosen.canary, n_canaries, chosen.canary_factor)
            rest = max(1, n - n_canaries)
            found[f"{rest}, {n_canaries} canary with {chosen.canary:.0%}"] = self._settings(rest, canary=canary)
        return found

    def _run(self, runs: Mapping[str, FleetSettings]) -> dict[str, Any]:
        jobs = [_Job(name, settings, *self._job) for name, settings in runs.items()]
        done = self._simulated(jobs)
        found = {job.name: one["figures"] for job, one in zip(jobs, done, strict=True)}
        self._drawn = {job.name: one["series"] for job, one in zip(jobs, done, strict=True)}
        report.table(
            f"{self._chosen.calls} calls in {self._chosen.minutes:g} minutes ({self._prices.label})",
            (
                "run",
                "replica h",
                "refused",
                "first audio p50",
                "p99",
                "with a gap",
                "moved",
                "silence p99",
                "used",
                "call-hour",
            ),
            [
                (
                    name,
                    row["replica_hours"],
                    f"{row['refused_share']:.2%}",
                    row["first_audio_ms"]["p50"],
                    row["first_audio_ms"]["p99"],
                    f"{row['turns_with_gap_share']:.2%}",
                    row["moved"],
                    row["moved_silence_ms"]["p99"],
                    f"{row['utilisation']:.0%}",
                    row["cost_per_call_hour"],
                )
                for name, row in found.items()
            ],
        )
        return found

    def _simulated(self, jobs: Sequence[_Job]) -> list[dict[str, Any]]:
        """The results of the jobs in their order, several at a time. A job that was done before is not done again."""
        new = [job for job in jobs if job not in self._done]
        with ProcessPoolExecutor(self._chosen.processes) as pool:
            for job, one in zip(new, pool.map(_simulate, new), strict=True):
                self._done[job] = one
        return [self._done[job] for job in jobs]

    def _draw(self) -> None:
        out = self._chosen.picture or self._chosen.json.with_suffix(".png")
        kind = "measured prices" if self._prices.measured else "ASSUMED prices"
        picture.draw(self._drawn, f"simulated: {self._chosen.calls} calls, {self._prices.label} ({kind})", out)
        print(f"\npicture in {out.name}")

    # -------------------------------------------------------------------------- settings

    @property
    def _job(self) -> tuple[Any, ...]:
        """What all jobs have in common."""
        chosen = self._chosen
        return (
            self._habits,
            self._rush,
            chosen.calls,
            chosen.seed,
            self._money,
            (chosen.flow_group, chosen.decode_group),
        )

    def _settings(self, n: int, start_s: float = 120.0, **more: Any) -> FleetSettings:
        settings = FleetSettings(
            self._prices, n, n_fronts=self._chosen.fronts, calls_per_front=self._chosen.calls_per_front, start_s=start_s
        )
        return replace(settings, **more)

    def _peak_speaking(self) -> float:
        """About how many bots speak at once at the peak, if every call is taken."""
        rush, n_bins = self._rush, 1000
        mean = sum(rush.weight((i + 0.5) / n_bins * rush.seconds) for i in range(n_bins)) / n_bins
        peak_rate = self._chosen.calls / rush.seconds / mean
        return peak_rate * self._habits.call_s * self._habits.speaking_share


@dataclass(frozen=True, slots=True)
class _Job:
    """One run, for a process of its own."""

    name: str
    settings: FleetSettings
    habits: Habits
    rush: Rush
    n_calls: int
    seed: int
    money: Prices
    groups: tuple[int, int]


def _name(n: int) -> str:
    return f"{n} replica{'' if n == 1 else 's'}"


def _simulate(job: _Job) -> dict[str, Any]:
    plans = calls(job.habits, job.rush.arrivals_ns(job.n_calls, job.seed), job.seed)
    fleet = Fleet(job.settings, plans, make_replica=calibration.light_replicas(*job.groups))
    record = fleet.run()
    return {
        "figures": figures(fleet, job.money),
        "series": picture.series(record.samples, record.first_audio, record.refused),
    }


if __name__ == "__main__":
    main()
