"""A witness on one core, of its standstills; standstill.py starts it: `python witness.py CORE`.

It says whether it runs before everything else, and then the beginning and the end of each time over 5 ms in which it
did not run, in nanoseconds of the monotonic clock. It ends with its input.
"""

import os
import select
import sys
import time

_SLEEP_S = 0.002
_LEAST_NS = 5_000_000


def main(core: int) -> None:
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        print("with others", flush=True)
    else:
        print("first", flush=True)
    last_ns = time.monotonic_ns()
    while not select.select([sys.stdin], [], [], _SLEEP_S)[0]:
        now_ns = time.monotonic_ns()
        if now_ns - last_ns > _LEAST_NS:
            print(last_ns, now_ns, flush=True)
        last_ns = now_ns


if __name__ == "__main__":
    main(int(sys.argv[1]))
