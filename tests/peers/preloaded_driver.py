"""A process that imports what a driver imports, once, and forks a child for each run of the driver.

An SDK takes one to five seconds of CPU to import, and a driver takes much less for its steps. The tests of one module
share the process. Each run is a child of its own, with its own arguments, variables and output.

This file has both sides. A test uses `PreloadedDriver`. The process is this file as a program, in the Python that has
the SDKs. A fork copies no threads, so the process checks that no import has started one.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any


class PreloadedDriver:
    """The process of one driver. It does one run at a time."""

    def __init__(self, python: Path, script: Path, variables: Mapping[str, str]) -> None:
        # A session of its own, so that `close` kills its child too. Pipes, because the tests count open sockets.
        self._process = subprocess.Popen(
            [str(python), "-X", "faulthandler", __file__, str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(variables), start_new_session=True,
        )  # fmt: skip

    def run(
        self, arguments: Sequence[str], variables: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the driver in a child, which sees what it would see in a process of its own.

        Raises subprocess.TimeoutExpired with what the driver printed. After an exception the process is closed.
        """
        with tempfile.TemporaryDirectory() as folder:
            stdout, stderr = outputs = Path(folder, "stdout"), Path(folder, "stderr")
            for output in outputs:
                output.touch()
            request = {
                "arguments": list(arguments),
                "variables": dict(variables),
                "folder": os.getcwd(),
                "outputs": [str(output) for output in outputs],
            }
            try:
                status = self._ask(request, timeout_s)
            except BaseException as failure:
                self.close()
                if isinstance(failure, TimeoutError):
                    late = subprocess.TimeoutExpired(arguments, timeout_s, stdout.read_bytes(), stderr.read_bytes())
                    raise late from None
                raise
            return subprocess.CompletedProcess(arguments, status, stdout.read_bytes(), stderr.read_bytes())

    def _ask(self, request: dict[str, Any], timeout_s: float) -> int:
        """The exit status of the run. Raises TimeoutError, and AssertionError if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        answer = self._process.stdout.readline()
        assert answer, f"the process that imports for a driver ended with {self._process.wait()}"
        return int(answer)

    def close(self) -> None:
        """Kill the process and its child."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


# ------------------------------------------------------------------------ the process


class DriverImports:
    """The import statements of a driver, which are executed before its runs.

    A driver of several services imports the chosen one inside a function. Such a statement is executed when an argument
    is part of the name of what it imports.
    """

    def __init__(self, script: Path) -> None:
        tree = ast.parse(script.read_bytes())
        # Not `reporting`, which moves the output of the run that imports it.
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and parts_of(node).isdisjoint(("__future__", "reporting"))
        ]
        self._inside = [node for node in found if node not in tree.body]
        execute(node for node in found if node in tree.body)

    def execute_named(self, arguments: list[str]) -> None:
        named = [node for node in self._inside if not parts_of(node).isdisjoint(arguments)]
        self._inside = [node for node in self._inside if node not in named]
        execute(named)


def parts_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The parts of the names in an import statement: `from a.b import c` has a, b and c."""
    names = [(node.module or "") if isinstance(node, ast.ImportFrom) else "", *(alias.name for alias in node.names)]
    return {part for name in names for part in name.split(".")}


def execute(nodes: Iterable[ast.stmt]) -> None:
    for node in nodes:
        # An import that fails will fail again in the run, which reports it.
        with suppress(Exception):
            exec(compile(ast.Module([node], []), "<imports>", "exec", dont_inherit=True), {})
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"an import started {n_threads - 1} threads, which a child would not have"


def wait_for_runs(script: Path) -> dict[str, Any]:
    """Fork a child for each request and tell how it ended. Returns the request, and only in a child.

    The process ends when its input ends, and so also when the test's process does.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever an import prints
    imports = DriverImports(script)
    for line in sys.stdin.buffer:
        request: dict[str, Any] = json.loads(line)
        imports.execute_named(request["arguments"])
        gc.freeze()  # otherwise each child would visit, and so copy, all that was imported
        child = os.fork()
        if child == 0:
            os.close(answers)
            return request
        _, status = os.waitpid(child, 0)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become_driver(script: Path, request: dict[str, Any]) -> None:
    """Run the driver as the main program of this process."""
    for number, name in enumerate([os.devnull, *request["outputs"]]):
        file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.argv = [str(script), *request["arguments"]]
    module = ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    SCRIPT = Path(sys.argv[1])
    sys.path[0] = str(SCRIPT.parent)
    become_driver(SCRIPT, wait_for_runs(SCRIPT))
