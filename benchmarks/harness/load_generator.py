"""The load generator's process: the scenario's name is its argument, settings come as JSON on stdin, figures leave on
stdout."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import uvloop

from harness import churn, doors, fleet_calls, other_engines, speak, turns

SCENARIOS = {
    "speak": speak.run,
    "first_audio": turns.first_audio,
    "barge_in": turns.barge_in,
    "pauses": turns.pauses,
    "calls": churn.calls,
    "barge_ins": churn.barge_ins,
    "door_first_audio": doors.first_audio,
    "door_cost": doors.cost,
    "door_interruption": doors.interruption,
    "http_streams": doors.http_streams,
    "watched_speech": fleet_calls.watched_speech,
    "calls_through_restarts": fleet_calls.calls_through_restarts,
    "direct_first_audio": other_engines.direct_first_audio,
    "clears_until_seen": other_engines.clears_until_seen,
}


async def main() -> dict[str, Any]:
    spec = json.load(sys.stdin)
    # A garbage collection would look like a late frame.
    gc.freeze()
    gc.disable()
    return await SCENARIOS[sys.argv[1]](spec)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main())))
