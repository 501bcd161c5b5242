"""A folder for the files that parsers read. It is in memory where the machine allows that, because to empty a file on a
disk can take longer than to read it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_IN_MEMORY = "/dev/shm"
_folder = tempfile.TemporaryDirectory(
    prefix="telephony-tts-fuzz-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK | os.X_OK) else None
)
FOLDER = Path(_folder.name)
"""It goes with the process."""
