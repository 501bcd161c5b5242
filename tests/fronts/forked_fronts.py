"""`telephony-tts serve` for a fork server (`forked_process`). Its fronts come from a nested fork server.

A front is still a child of its supervisor, which signals it and waits for it. `front_server` runs this script.
"""

from __future__ import annotations

import asyncio
import sys

from forked_asyncio import forking
from forked_process import nested_fork_server

from telephony_tts.cli import main as cli
from telephony_tts.fronts import front_process as front_process
from telephony_tts.http_api import asgi
from telephony_tts.runtime import event_loop

# What `serve` imports late, without onnxruntime: its import starts a thread, which a fork would not have.
asgi.import_early()
event_loop.new_loop().close()

if __name__ == "__main__":
    asyncio.create_subprocess_exec = forking(nested_fork_server(), "fronts.front_process")
    sys.exit(cli.main())
