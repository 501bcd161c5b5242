"""The kernels of a GPU, in Triton's interpreter, compute what PyTorch's operations compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peer_packages import run_with

pytestmark = [pytest.mark.slow, pytest.mark.peer, pytest.mark.thorough]

SCRIPT = Path(__file__).with_name("kernels_in_interpreter.py")
EXACT = (
    "uniform 0", "uniform 1", "embeddings of three tables", "embeddings of two tables", "windows",
    "left context of the next block",
)  # fmt: skip
ROUNDING = {"float32": 2e-5, "float16": 2e-2}
"""Values are about 1. In float16 both sides round, at other places."""


def test_kernels_equal_torch() -> None:
    found = json.loads(run_with("triton_kernels", SCRIPT, "1", TRITON_INTERPRET="1").splitlines()[-1])
    assert len(found) == 55
    far = {name: off for name, off in found.items() if off > ROUNDING["float16" if "float16" in name else "float32"]}
    assert not far
    assert all(found[name] == 0 for name in EXACT)
