"""Our server as a benchmark starts it: the real composition root on a free port, with settings from `--set KEY=VALUE`.

`--instant` caches what the fake engine renders: a repeated sentence costs nothing, so only the server is measured.
An embedded voice that is not the default is left out if its workers are not set.
`--profile OUT` writes a cProfile of the event loop's thread at the end. `--switch S` sets the interpreter's switch
interval. `--patch NAME` applies an experiment of experiments.py.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import signal
import sys
from functools import lru_cache
from pathlib import Path

import yaml

import telephony_tts

try:
    from telephony_tts.app import config
    from telephony_tts.app.processes import run
    from telephony_tts.engines.fake import engine as fake
except ImportError:  # an older commit, whose files had no rooms yet
    from telephony_tts import config
    from telephony_tts.app import run
    from telephony_tts.engines import fake


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    flags.add_argument("--instant", action="store_true")
    flags.add_argument("--profile")
    flags.add_argument("--switch", type=float)
    flags.add_argument("--patch", action="append", default=[])
    chosen = flags.parse_args()
    overrides: dict[str, object] = {
        "server.port": 0,
        "limits.calls": 2000,
        "limits.max_frame_lateness_ms": 10_000,
        "limits.idle_s": 3600,
        "server.drain_s": 1,
    }
    for word in chosen.settings:
        key, _, value = word.partition("=")
        overrides[key] = yaml.safe_load(value)
    for name in {"hibari", "espeak"} - {overrides.get("engines.default", "hibari")}:
        # An embedded voice would be much of the start and of the memory.
        overrides.setdefault(f"engines.{name}.workers", 0)
    if "BENCHMARK_QUICK" in os.environ:  # set by `process.py`
        overrides.setdefault("speech.detect_language", False)  # loading its network is a quarter of the start
    if chosen.instant:
        fake.render = lru_cache(maxsize=4096)(fake.render)
    for name in chosen.patch:
        from harness import experiments

        experiments.apply(name)
    if chosen.switch is not None:
        seconds, set_interval = chosen.switch, sys.setswitchinterval
        sys.setswitchinterval = lambda _asked: set_interval(seconds)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: gc.collect())  # memory.py asks before each sample
    package = Path(telephony_tts.__file__).resolve().parents[1]
    profile = cProfile.Profile() if chosen.profile else None
    if profile is not None:
        profile.enable()
    try:
        run(config.load(None, overrides), lambda served: print(f"port {served.port} {package}", flush=True))
    finally:
        if profile is not None:
            profile.disable()
            profile.dump_stats(chosen.profile)


if __name__ == "__main__":
    main()
