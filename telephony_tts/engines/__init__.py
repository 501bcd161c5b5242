"""Engines, which turn text into speech. `api` says what an engine is."""

import os

# gRPC reads these when it is imported, which only modules of this package do.
# Without the first it writes lines of its own into the log, such as each server that goes away.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Its handlers of fork() crash a part of the processes that uvloop starts. They are for a fork without exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
