"""A script of benchmarks/ run within this process: most of a tiny run in one of its own is the import of PyTorch."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


def run_here(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python SCRIPT ARGUMENTS` does and tells."""
    shown, error, code = io.StringIO(), io.StringIO(), 0
    command = [str(script), *arguments]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown), contextlib.redirect_stderr(error):
        patch.setattr(sys, "argv", command)
        patch.syspath_prepend(str(script.parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(command, code, shown.getvalue(), error.getvalue())
