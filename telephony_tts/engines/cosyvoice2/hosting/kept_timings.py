"""The file in which the timings of a CPU are kept, so that a machine is measured once.

It lies in the user's cache directory (XDG). Its name depends on the machine and on the software, so timings of another
processor, of another share of it or of another version are never read. A file that cannot be read, or holds anything
else, counts as missing. A directory that cannot be written is no error: the machine is measured at each start.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from telephony_tts.engines.cosyvoice2.choice import CpuTimings

MAX_FILE_BYTES = 100_000
Machine = Mapping[str, str]
"""What the timings depend on: processor, cores, versions."""


def timings_file(machine: Machine, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file for this machine; None if the user has no cache directory."""
    cache = environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored (XDG Base Directory Specification).
    if not os.path.isabs(cache):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    key = hashlib.sha256(json.dumps(dict(machine), sort_keys=True).encode()).hexdigest()
    return Path(cache) / "telephony-tts" / f"cpu-timings-{key[:16]}.json"


def read_timings(file: Path, machine: Machine) -> CpuTimings | None:
    """The timings in a file; None if it is missing, damaged or of another machine."""
    try:
        with file.open("rb") as opened:
            data: Any = json.loads(opened.read(MAX_FILE_BYTES))
        if data["machine"] != dict(machine):
            return None
        timings: dict[str, Any] = data["timings"]
        return CpuTimings(**timings)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def keep_timings(file: Path, machine: Machine, timings: CpuTimings) -> str | None:
    """Write the file. Returns why that failed, or None. The file is complete at every moment."""
    text = json.dumps({"machine": dict(machine), "timings": asdict(timings)}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    except OSError as error:
        return error.strerror or str(error)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(name, file)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        return error.strerror or str(error)
    return None
