"""The noise of the line: how loud a window must be to be more than it. Pure."""

from __future__ import annotations

_LEAST_STEP_DB, _DEVIATIONS, _MOST_STEP_DB = 2.0, 2.0, 8.0
"""A voice is so much above the mean of the noise: at least, in mean deviations of the noise, and at most. A steady
noise hardly varies, voices in the background do."""
_HIGHEST_FLOOR_DBOV = -28.0
"""However loud the noise is, a loud caller is heard."""
_SLOW, _FAST = 1 / 32, 1 / 4
"""How much of a window the mean takes over: of one that is louder, and of one that is quieter than usual."""


class NoiseFloor:
    """Levels are in dBov."""

    def __init__(self, floor_dbov: float) -> None:
        self._least_dbov = floor_dbov
        self.floor_dbov = floor_dbov
        """Windows from this level on are more than noise."""
        self._mean_dbov, self._deviation_db = floor_dbov - 20.0, 0.0
        self._n_learned = 0

    def learn(self, level_dbov: float) -> None:
        """The window of this level was no voice."""
        apart_db = level_dbov - self._mean_dbov
        share = _SLOW if apart_db > -2 * self._deviation_db else _FAST
        self._n_learned += 1
        share = max(share, 1 / self._n_learned)
        self._mean_dbov += share * apart_db
        self._deviation_db += share * (abs(apart_db) - self._deviation_db)
        step_db = min(_MOST_STEP_DB, max(_LEAST_STEP_DB, _DEVIATIONS * self._deviation_db))
        self.floor_dbov = min(_HIGHEST_FLOOR_DBOV, max(self._least_dbov, self._mean_dbov + step_db))
