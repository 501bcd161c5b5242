"""What `doctor` finds, for the console."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from typing import Any

from telephony_tts.app.config import Config
from telephony_tts.runtime import logs
from telephony_tts.runtime.errors import EngineError

_log = logs.get(__name__)

_DOCTOR_S = 60.0
"""The longest that the examination for the console may take. To import PyTorch from a cold disk takes many seconds."""


async def findings(config: Config) -> list[dict[str, Any]]:
    """What `doctor` finds beside this server, from a process of its own. Raises EngineError."""
    doctor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "telephony_tts.app.doctor", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_DOCTOR_S):
            told, complaint = await doctor.communicate(pickle.dumps(config))
    except TimeoutError as error:
        raise EngineError(f"the examination took longer than {_DOCTOR_S:.0f} s") from error
    except RuntimeError as error:  # of uvloop, if the process has ended before it could be written to
        raise EngineError("the examination failed: its process ended at once") from error
    finally:
        if doctor.returncode is None:
            doctor.kill()
            await doctor.wait()
    if doctor.returncode:
        _log.error("doctor_failed", why=complaint[-1000:].decode(errors="replace"))
        raise EngineError("the examination failed; see the server's log")
    found: list[dict[str, Any]] = json.loads(told)
    return found
