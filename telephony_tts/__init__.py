"""A WebSocket server that gives a call-centre bot its voice."""

import os

# onnxruntime 1.29 and newer report each process to their maker over the network unless this is set before their import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
