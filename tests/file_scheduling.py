"""Which process runs which test files, also when a test ends its process (`--dist loadfile`).

pytest-xdist 3.8 gives the test that ended a process to the next one too, until no process is left, and may wait for
ever for a process that has one test or none (pytest-xdist#1327, #1371, #1378).
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """Whole files, as xdist has it. A test that ended its process has failed and is not run again."""

    def remove_node(self, node: WorkerController) -> str | None:
        files = self.assigned_work.pop(node)
        left = {
            file: unfinished
            for file, tests in files.items()
            if (unfinished := {test: False for test, is_done in tests.items() if not is_done})
        }
        if not left:
            return None
        first = next(iter(left))
        crashed = next(iter(left[first]))
        del left[first][crashed]
        self.workqueue.update({file: tests for file, tests in left.items() if tests})
        for other in self.assigned_work:
            if other in self.registered_collections:  # else it begins when it has collected its tests
                self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """A process begins its last test only when it gets one more or is told that it was the last."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
