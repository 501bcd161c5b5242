"""`telephony-tts ray ...` for `PreloadedDriver`, which executes these imports once for all commands of a module."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray
import ray.serve

from telephony_tts.cli import main
from telephony_tts.engines.ray import app

LOADED = ray.serve, app
"""The command imports them inside functions. They take two seconds of CPU."""

if __name__ == "__main__":
    # As `python -m telephony_tts.cli` in the checkout has it. A folder of a script on the path goes to Ray's workers.
    root = Path(__file__).resolve().parents[3]
    os.chdir(root)
    sys.path[0] = str(root)
    sys.exit(main())
