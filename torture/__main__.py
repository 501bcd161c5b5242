"""Tries the server by everything: random calls and faults, judged by models of what a client may expect.

Each round has a seed and a number. Calls enter through all doors at random times; processes are stopped and killed.
A round that fails is made short, and printed as a history that `--history` runs again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from torture import places, report
from torture.defects import DEFECTS
from torture.histories import ASTERISK, COSYVOICE2, SHAPES, Round, make_round

EXAMPLES = """examples:
  python -m torture --minutes 10
  python -m torture --seed 7 --only 12            round 12 of the seed 7 again
  python -m torture --history short.json          a history that a failed round was shortened to
  python -m torture --minutes 1 --defect late_frame     a server with a deliberate defect: it must be found
  python -m torture --shape asterisk --per-round 8      calls of a real Asterisk, which is fetched (95 MB)
  python -m torture soak --calls 10000            the core of the server on a virtual clock: hours in minutes
  python -m torture recovery --kills 5            how soon speech is back after kill -9, and which calls are lost
  python -m torture soak --real --minutes 5       the memory of a real server
  python -m torture soak --real --short --shape fronts --per-round 500    of two fronts, with many short calls
  python -m torture soak --real --short --defect leak_slowly      a server that keeps 400 bytes of each call
  python -m torture heard --calls 5000            what counts as heard, with telephone platforms that play late
"""


def main() -> int:
    flags = argparse.ArgumentParser(
        prog="python -m torture", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    flags.add_argument(
        "what", nargs="?", choices=("calls", "soak", "heard", "recovery"), default="calls", help="default: calls"
    )
    flags.add_argument("--minutes", type=float, default=1.0, help="how long rounds are begun (default 1)")
    flags.add_argument("--seed", type=int, default=1, help="of all rounds (default 1)")
    flags.add_argument("--only", type=int, metavar="NUMBER", help="run this round alone")
    flags.add_argument("--first", type=int, default=0, metavar="NUMBER", help="begin with this round (default 0)")
    flags.add_argument(
        "--shape", choices=(*SHAPES, ASTERISK, COSYVOICE2), help="of the server, in all rounds; default: by the seed"
    )
    flags.add_argument("--per-round", type=int, default=60, metavar="N", help="calls in a round (default 60)")
    flags.add_argument("--history", type=Path, help="run the round in this file")
    flags.add_argument(
        "--defect", action="append", default=[], choices=sorted(DEFECTS), help="plant a defect into the server"
    )
    flags.add_argument("--log", type=Path, metavar="OUT", help="write what was sent and received in failed calls")
    flags.add_argument("--no-shrink", action="store_true", help="do not make failing rounds short")
    flags.add_argument("--calls", type=int, default=1000, help="soak and heard: so many calls (default 1000)")
    flags.add_argument("--real", action="store_true", help="soak: call a real server for --minutes instead")
    flags.add_argument("--short", action="store_true", help="soak --real: calls end when their speech has begun")
    flags.add_argument("--call-minutes", type=float, default=10, help="soak: the length of a call (default 10)")
    flags.add_argument("--processes", type=int, default=1, help="soak and heard: so many processes (default 1)")
    flags.add_argument("--kills", type=int, default=3, help="recovery: how often each process is killed (default 3)")
    flags.add_argument(
        "--victims",
        default="",
        help="recovery: whom to kill, of engine, front, bridge, asterisk and cosyvoice2, or to stop: cosyvoice2_stop; "
        "separated by commas (default: all)",
    )
    flags.add_argument(
        "--json", type=Path, metavar="OUT", help="where the result is written, e.g. benchmarks/results/torture.json"
    )
    flags.add_argument("--note", default="", help="kept in the result, such as what else the machine was doing")
    chosen = flags.parse_args()
    places.use()
    if chosen.json is not None:
        report.commit()  # the result tells what began to run
    if chosen.what == "soak":
        from torture.soak import run_server_soak, run_soak

        return run_server_soak(chosen) if chosen.real else run_soak(chosen)
    if chosen.what == "heard":
        from torture.heard import run_heard

        return run_heard(chosen)
    if chosen.what == "recovery":
        from torture.recovery import run_recovery

        return run_recovery(chosen)
    return run_calls(chosen)


def run_calls(chosen: argparse.Namespace) -> int:
    from torture.runner import Runner, find_short, rounds, to_json

    if chosen.history is not None:
        chosen_rounds = [Round.from_json(json.loads(chosen.history.read_text(encoding="utf-8")))]
    elif chosen.only is not None:
        chosen_rounds = [make_round(chosen.seed, chosen.only, shape=chosen.shape, n_calls=chosen.per_round)]
    else:
        chosen_rounds = rounds(chosen.seed, chosen.shape, chosen.per_round, chosen.first)
    begun_s = time.monotonic()
    print(f"seed {chosen.seed}, {chosen.minutes:g} minutes", flush=True)
    runner = Runner(defects=chosen.defect, say=lambda line: print(line, flush=True))
    outcome = runner.run(chosen_rounds, begun_s + chosen.minutes * 60)
    report.show(outcome, time.monotonic() - begun_s)
    if chosen.json is not None:
        report.save_calls(chosen, outcome)
    if chosen.log is not None:
        lines = (f"call {call}\n" + "\n".join(log) for call, log in outcome.tally.logs.items())
        chosen.log.write_text("\n\n".join(lines), encoding="utf-8")
    if not outcome.tally.violations:
        return 0
    for whole, found in outcome.failed[:3]:
        again = f"--seed {whole.seed} --per-round {chosen.per_round} --only {whole.number}"
        print(f"\nround {whole.number} fails: python -m torture {again}")
        if whole.calls and not chosen.no_shrink:
            print(f"its short history:\n{to_json(find_short(whole, found, chosen.defect))}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
