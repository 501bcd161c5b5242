"""Say in the report where each thread of a process stood when a test ended it: a test that hung, or a crash.

pytest's faulthandler writes that to the standard error of the process that ran the test. With pytest-xdist it would be
lost among the output of the other processes, so each process writes to a file of its own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

_FOLDER = "telephony_crashes"
"""The entry of a worker's input with the folder of the files."""


@pytest.hookimpl(trylast=True)  # pytest's faulthandler opens its file descriptor first
def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is not None:
        with Path(given[_FOLDER], given["workerid"]).open("ab") as file:
            os.dup2(file.fileno(), config.stash[fault_handler_stderr_fd_key], inheritable=False)
    elif config.pluginmanager.hasplugin("dsession"):
        folder = tempfile.TemporaryDirectory(prefix="telephony-tts-crashes-")
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(_Crashes(Path(folder.name)))


class _Crashes:
    """In the process that prints the report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_FOLDER] = str(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        file = self._folder / report.node.gateway.id
        if text := file.read_text(encoding="utf-8", errors="replace") if file.exists() else "":
            report.sections.append(("where each thread stood", text))
