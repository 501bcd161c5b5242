"""The command line: see the package's text."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from telephony_tts.bench.machine import commit, machine
from torture.fuzz.judge import FuzzTarget, Judge
from torture.fuzz.mutation import Mutator
from torture.fuzz.report import result_of, table
from torture.fuzz.targets import TARGETS, known_inputs

_ROOT = Path(__file__).resolve().parents[2]


def fuzz(target: FuzzTarget, n_inputs: int, seed: int) -> Judge:
    """Try what is known, and then inputs that are made from it. The same arguments give the same inputs."""
    known = known_inputs(target)
    judge, mutator = Judge(target, known), Mutator(target.words, seed)
    for data in known:
        judge.try_input(data)
    while judge.n_inputs < n_inputs:
        judge.try_input(mutator.new_input(known))
    return judge


def fuzz_guided(name: str, n_inputs: int, seed: int) -> dict[str, Any]:
    """The same in a process with atheris. Raises RuntimeError if it dies.

    Then a parser has crashed in C, or atheris has given up: its message has the last input, to be tried alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "torture.fuzz.guided", name, str(n_inputs), str(seed), str(out)]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if not out.exists():
            raise RuntimeError(f"{name}: the process ended with {done.returncode}\n{done.stderr[-3_000:]}")
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torture.fuzz",
        description="Give parsers inputs that they do not expect. Only documented errors may come back, within 50 ms "
        "of CPU time and 64 MB of memory. Exits with 1 if something else was found.",
        epilog=f"targets: {', '.join(TARGETS)}",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which parsers; all if none is named")
    parser.add_argument(
        "--inputs", type=int, default=1_000, metavar="N", help="inputs for each target (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed gives the same inputs (default: 1)"
    )
    parser.add_argument(
        "--guided",
        action="store_true",
        help="choose inputs by the code they reach, and keep some in torture/fuzz/corpus (needs: pip install atheris)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="add the results to those in the file: another seed tries other inputs",
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no target is named {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.guided and importlib.util.find_spec("atheris") is None:
        parser.error("--guided needs atheris: pip install atheris")
    results = []
    for name in given.targets or TARGETS:
        begin_s = time.process_time()
        if given.guided:
            try:
                result = fuzz_guided(name, given.inputs, given.seed)
            except RuntimeError as error:
                print(f"{error}\nTry the input alone. If nothing happens, go on with another --seed.", file=sys.stderr)
                return 2
        else:
            result = result_of(fuzz(TARGETS[name], given.inputs, given.seed), time.process_time() - begin_s)
        results.append(result)
        print(table([result]).splitlines()[-1], flush=True)
        for finding in result["findings"]:
            print(
                f"  {finding['kind']}: {finding['place']}\n    {finding['input'][:300]}\n{finding['detail']}",
                flush=True,
            )
        if given.json is not None:
            _write(given.json, result, given.seed, guided=given.guided)
    print(f"\n{table(results)}")
    return 1 if any(result["findings"] for result in results) else 0


def _setting() -> dict[str, Any]:
    return {"commit": commit(), "machine": machine("cpu", ("atheris", "websockets", "pyyaml", "av", "torch"))}


def _write(file: Path, result: dict[str, Any], seed: int, *, guided: bool) -> None:
    """Add a run to the target's entry in the file. A run with the same settings replaces the one that is there."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"targets": {}}
    name = result["target"]
    run = {
        "seed": seed,
        "guided": guided,
        **{key: value for key, value in result.items() if key != "target"},
        **_setting(),
    }
    earlier = kept["targets"].get(name, {}).get("runs", [])
    runs = [each for each in earlier if (each["seed"], each["guided"]) != (seed, guided)] + [run]
    kept["targets"][name] = {
        "inputs": sum(each["inputs"] for each in runs),
        "slowest_ms": max(each["slowest_ms"] for each in runs),
        "findings": sum(len(each["findings"]) for each in runs),
        "runs": runs,
    }
    kept["inputs"] = sum(each["inputs"] for each in kept["targets"].values())
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
