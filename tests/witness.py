"""Reports the stalls of one core. standstill.py starts it: `python witness.py CORE`.

The first line says whether it has real-time priority ("first" or "with others"). Each further line is the beginning and
the end of a pause over 5 ms, in nanoseconds of the monotonic clock. It exits soon after its standard input is closed.
"""

import os
import select
import sys
import time

_SLEEP_S = 0.002
_LEAST_NS = 5_000_000
_N_SLEEPS = 50
"""Between two looks at the standard input, each of which costs as much as a sleep. Several witnesses may run."""


def main(core: int) -> None:
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        print("with others", flush=True)
    else:
        print("first", flush=True)
    last_ns = time.monotonic_ns()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(_N_SLEEPS):
            time.sleep(_SLEEP_S)
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > _LEAST_NS:
                print(last_ns, now_ns, flush=True)
            last_ns = now_ns


if __name__ == "__main__":
    main(int(sys.argv[1]))
