"""An engine's process whose first vocoder step takes long or ends its lane. Tests run it, not `engine_process`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from telephony_tts.engines.cosyvoice2.hosting import engine_process, loading

STEP_S = 4.0


def main(fd: int, how: str) -> None:
    """`how`: "python" runs byte code all the time, "numpy" computes without the interpreter's lock, "fail" ends the
    lane."""
    load = loading.load

    def slow_load(*args: Any) -> Any:
        engine = load(*args)
        runner = engine.core.runner
        vocode = runner.vocode
        rest = [STEP_S]

        def slowly(*args: Any) -> Any:
            if how == "fail":
                raise SystemExit(1)
            end_s = time.monotonic() + (rest.pop() if rest else 0.0)
            matrix = np.ones((500, 500))
            while time.monotonic() < end_s:
                if how == "numpy":
                    matrix @ matrix
            return vocode(*args)

        runner.vocode = slowly
        return engine

    loading.load = slow_load
    engine_process.main(fd)
