"""How soon speech stops: the time from `clear` to its answer, and the frames of the stopped turn that come after it.

All calls speak all the time. Each call is interrupted at intervals and says its next turn at once in another tone. The
tone of a frame shows which turn it belongs to. The shape "native" has speech and events on one socket. The shape
"twilio" has two legs, and the media leg's own `clear` is measured too.
"""

from __future__ import annotations

import argparse
from typing import Any

from harness import report
from harness.process import speaking_calls

_EXAMPLES = """examples:
  python benchmarks/barge_in.py                  50 calls of each shape, about 1 minute
  python benchmarks/barge_in.py --calls 200 --shapes twilio
"""


def main() -> None:
    flags = report.parser("barge_in", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=50, help="number of calls (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=20.0, help="length of a measured window (default %(default)s)")
    flags.add_argument(
        "--period", type=float, default=1.0, help="seconds between interruptions of a call (default %(default)s)"
    )
    flags.add_argument("--shapes", default="native,twilio", help="shapes, separated by commas (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=1, help="windows of each shape (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.period = 2, 1.0, 0.3
    windows = [_window(shape, chosen) for _ in range(chosen.repeat) for shape in chosen.shapes.split(",")]
    report.table(
        "from `clear` sent, in ms",
        (
            "shape",
            "clears",
            "cleared p50",
            "p99",
            "max",
            "media clear p99",
            "last frame p99",
            "stale",
            "judged",
            "failed",
        ),
        [
            (
                w["shape"],
                w["clears"],
                *(w["cleared_ms"].get(k, "-") for k in ("p50", "p99", "max")),
                w["media_clear_ms"].get("p99", "-"),
                w["last_frame_ms"].get("p99", "-"),
                w["stale_frames"],
                w["frames_judged"],
                len(w["failed"]),
            )
            for w in windows
        ],
    )
    report.save(chosen, windows)


def _window(shape: str, chosen: argparse.Namespace) -> dict[str, Any]:
    window = speaking_calls("barge_in", shape, chosen)
    print(f"  {shape}: {window['clears']} clears, {window['stale_frames']} stale frames", flush=True)
    return window


if __name__ == "__main__":
    main()
