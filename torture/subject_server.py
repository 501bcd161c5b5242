"""The server under test: the real composition root with `--set KEY=VALUE`, and with a `--defect` if one is to be found.

It prints "port N" when it is ready. On SIGUSR2 its clock of the day steps: an hour forward, the next time two hours
back, then an hour forward.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import signal
import time
from functools import lru_cache

import yaml

from telephony_tts.app import config
from telephony_tts.app.processes import run
from telephony_tts.engines.fake import engine as fake
from torture import defects

_STEPS_S = itertools.cycle([3600, -7200, 3600])
_time_s, _time_ns = time.time, time.time_ns
_step_s = 0


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    flags.add_argument("--defect", action="append", default=[], choices=sorted(defects.DEFECTS))
    flags.add_argument("--descriptors", type=int, help="how many file descriptors it may have")
    chosen = flags.parse_args()
    if chosen.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (chosen.descriptors, chosen.descriptors))
    fake.render = lru_cache(maxsize=64)(fake.render)  # more would look like a leak, because texts are random
    for name in chosen.defect:
        defects.plant(name)
    settings: dict[str, object] = {}
    for word in chosen.settings:
        key, _, value = word.partition("=")
        settings[key] = yaml.safe_load(value)
    signal.signal(signal.SIGUSR2, lambda _number, _frame: step_clock())
    run(config.load(None, settings), ready)


def ready(served: object) -> None:
    print(f"port {served.port}", flush=True)  # type: ignore[attr-defined]


def step_clock() -> None:
    """Step the clock that is read with `time.time` and `time.time_ns`, as a wrong time server would. The monotonic
    clock goes on: no system steps it."""
    global _step_s
    _step_s += next(_STEPS_S)
    time.time = lambda: _time_s() + _step_s
    time.time_ns = lambda: _time_ns() + _step_s * 1_000_000_000


if __name__ == "__main__":
    main()
