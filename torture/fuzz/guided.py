"""One target in a process of its own, with inputs that atheris (libFuzzer) chooses by the code that they reach.

    python -m torture.fuzz.guided TARGET INPUTS SEED OUT

It writes its result to OUT as JSON. `__main__` starts it, because libFuzzer ends its process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

_OUR_PACKAGES = ["telephony_tts", "sip_bridge"]
_MOST_INPUT_BYTES = 8_192
"""Longer inputs are slow to change and rarely reach more; `mutation.MAX_BYTES` is for the unguided run."""
_CHANGES_OF_OURS = 3
"""One input of so many is made by our own mutator, which knows JSON and nesting."""


def main(name: str, n_inputs: int, seed: int, out: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=_OUR_PACKAGES):
        from torture.fuzz.targets import TARGETS, known_inputs
    from torture.fuzz.corpus_files import keep
    from torture.fuzz.judge import Judge
    from torture.fuzz.mutation import Mutator
    from torture.fuzz.report import result_of

    target = TARGETS[name]
    known = known_inputs(target)
    judge, mutator = Judge(target, known), Mutator(target.words, seed)
    folder = Path(tempfile.mkdtemp(prefix="telephony-tts-corpus-"))
    for number, data in enumerate(known):
        (folder / f"seed{number}").write_bytes(data)
    begin_s = time.process_time()

    def test_one_input(data: bytes) -> None:
        judge.try_input(data)
        if judge.n_inputs >= n_inputs:
            found = [file.read_bytes() for file in folder.iterdir()]
            n_kept = keep(name, (data for data in found if data not in target.seeds))
            result = result_of(judge, time.process_time() - begin_s)
            out.write_text(json.dumps({**result, "reached": len(found), "kept": n_kept}), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)  # libFuzzer counts otherwise, and would end the process without a result

    def change(data: bytes, max_size: int, number: int) -> bytes:
        if number % _CHANGES_OF_OURS:
            return bytes(atheris.Mutate(data, max_size))
        return mutator.new_input([data])[:max_size]

    options = [
        f"-seed={seed}",
        f"-max_len={_MOST_INPUT_BYTES}",
        "-rss_limit_mb=0",
        "-timeout=0",
        "-print_final_stats=0",
        "-verbosity=0",
        "-detect_leaks=0",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], test_one_input, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
