"""Runs a script of benchmarks/ within this process, which saves the import of PyTorch."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


def run_here(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The exit status and output of `python SCRIPT ARGUMENTS`."""
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
