"""How soon speech pauses and goes on: `pause` to the last frame, and `resume` to the first one, in many calls.

All calls speak all the time. In the shape "native" speech and events share a socket; "twilio" has two legs.
"""

from __future__ import annotations

from harness import report
from harness.process import speaking_calls

_EXAMPLES = """examples:
  python benchmarks/pauses.py                  50 calls of each shape, about 1 minute
  python benchmarks/pauses.py --calls 100 --shapes twilio
"""


_TIMES = ("paused_ms", "last_frame_ms", "first_frame_ms")


def main() -> None:
    flags = report.parser("pauses", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=50, help="number of calls (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=20.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--period", type=float, default=1.0, help="seconds between two pauses (default %(default)s)")
    flags.add_argument("--shapes", default="native,twilio", help="shapes, separated by commas (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.period = 2, 1.0, 0.3
    windows = [speaking_calls("pauses", shape, chosen) for shape in chosen.shapes.split(",")]
    report.table(
        "from the bot's message, in ms",
        ("shape", "pauses", "paused p50", "p99", "last frame p50", "p99", "first frame p50", "p99", "stray", "failed"),
        [
            (
                w["shape"], w["pauses"], *(w[name].get(k, "-") for name in _TIMES for k in ("p50", "p99")),
                w["stray_frames"], len(w["failed"]),
            )
            for w in windows
        ],
    )  # fmt: skip
    report.save(chosen, windows)


if __name__ == "__main__":
    main()
