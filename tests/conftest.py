"""What every test runs under."""

from __future__ import annotations

import os

# Before numpy is imported anywhere: OpenBLAS threads spin against onnxruntime's and double the time of a sentence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

# The same examples on every run, and no verdict by the clock of a shared machine.
settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")
