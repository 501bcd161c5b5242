"""How many replicas the present load needs. Pure. Ray Serve delays the decision: soon up, late down."""

from __future__ import annotations

import math
from collections.abc import Sequence


def replica_load(load: float, n_utterances: int, typical_utterances: int) -> float:
    """The load of a replica: by the engine's own measure, else by the number of utterances.

    `typical_utterances`: how many a replica speaks in time, where the engine does not know its load.
    """
    return load if load else n_utterances / typical_utterances


def wanted_replicas(loads: Sequence[float], n_current: int, target_load: float) -> int:
    """The replicas that bring the mean load to `target_load`. `loads`: those of the replicas that are known.

    A replica without a figure is new and has no load yet.
    """
    if not loads:
        return n_current
    return max(1, math.ceil(sum(loads) / target_load - 1e-9))
