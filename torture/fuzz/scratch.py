"""A folder for the files that parsers read. It is in memory where the machine allows that, because to empty a file on a
disk can take longer than to read it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torture.places import IN_MEMORY

_folder = tempfile.TemporaryDirectory(prefix="telephony-tts-fuzz-", dir=IN_MEMORY)
FOLDER = Path(_folder.name)
"""It goes with the process."""
