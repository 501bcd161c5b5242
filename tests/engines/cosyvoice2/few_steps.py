"""Fewer Euler steps for each block of the flow, in this process and in an engine's process.

Tests run this instead of `engine_process`. It imports little, because each engine process imports it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint, load_model_directory
from telephony_tts.engines.cosyvoice2.hosting import engine_process, loading

FEW_EULER = 4
"""A first, a last and two between. The official ten would take more than half of the time here, and nothing here
depends on their number. The tests of the flow and of the started engine use ten."""

CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; from few_steps import main as engine_process; "
    "engine_process(int(sys.argv[1]))"
)
"""Like `process_host._CHILD`. `engine_child` looks for "engine_process"."""


def with_steps(checkpoint: Checkpoint, n_euler: int) -> Checkpoint:
    """The checkpoint with `n_euler` steps for each block."""
    config = checkpoint.config
    return replace(checkpoint, config=replace(config, flow_decoder=replace(config.flow_decoder, n_steps=n_euler)))


def load_with_few_steps(*arguments: Any) -> Checkpoint:
    """In place of `load_model_directory`."""
    return with_steps(load_model_directory(*arguments), FEW_EULER)


def main(fd: int) -> None:
    """`engine_process.main` with fewer steps."""
    loading.load_model_directory = load_with_few_steps  # type: ignore[attr-defined]
    engine_process.main(fd)
