"""An engine's process whose first vocoder step takes long or ends its lane. Tests run it, not `engine_process`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from few_steps import CHILD, load_with_few_steps

from telephony_tts.engines.cosyvoice2.hosting import engine_process, loading

STEP_S = 3.2


def slow_child(how: str) -> str:
    """Like `process_host._CHILD`."""
    return CHILD.replace("few_steps", __name__).replace("sys.argv[1])", f"sys.argv[1]), {how!r}")


def main(fd: int, how: str) -> None:
    """`how`: "python" runs byte code all the time, "numpy" computes without the interpreter's lock, "fail" ends the
    lane."""
    load = loading.load
    loading.load_model_directory = load_with_few_steps  # type: ignore[attr-defined]

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
