"""The kernels that draw ids on a GPU, in Triton's interpreter, draw what PyTorch's operations draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peer_packages import run_with

pytestmark = [pytest.mark.slow, pytest.mark.peer]

SCRIPT = Path(__file__).with_name("draws_in_interpreter.py")


def test_draws_equal_torch() -> None:
    """Both sum in other orders. A draw could differ where a random number lies at a border, once in some 100,000."""
    found = json.loads(run_with("triton_kernels", SCRIPT, "1", TRITON_INTERPRET="1").splitlines()[-1])
    assert len(found) == 17
    assert not {name: n_other for name, n_other in found.items() if n_other}
