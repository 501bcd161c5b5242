"""Whether this machine multiplies in int8, and how."""

from __future__ import annotations

import os

SWITCH = "TELEPHONY_TTS_KERNELS"
"""Environment variable. "off" leaves int8 out."""


def available() -> bool:
    """Whether int8 can be used."""
    return problem() is None


def problem() -> str | None:
    """Why int8 cannot be used; None if it can."""
    return f"{SWITCH} is off" if os.environ.get(SWITCH, "").lower() == "off" else None


def level() -> str:
    """The instructions that int8 products use."""
    return "off" if problem() else "torch"
