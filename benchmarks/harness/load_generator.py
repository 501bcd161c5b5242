"""The load generator's process: a scenario's name as argument, its settings as JSON on stdin, its figures on stdout."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import uvloop

from harness import churn, speak, turns

SCENARIOS = {
    "speak": speak.run,
    "first_audio": turns.first_audio,
    "barge_in": turns.barge_in,
    "calls": churn.calls,
    "barge_ins": churn.barge_ins,
}


async def main() -> dict[str, Any]:
    spec = json.load(sys.stdin)
    # A collection in the middle would look like a late frame.
    gc.freeze()
    gc.disable()
    return await SCENARIOS[sys.argv[1]](spec)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main())))
