"""`telephony-tts serve` in a forked process (`forked_process`) whose fronts are forked too.

A front is a child of its supervisor as ever, which signals it and waits for it in the same way. `front_server` runs
this script.
"""

from __future__ import annotations

import asyncio
import sys

from forked_asyncio import forking
from forked_process import forks_of_this_process

from telephony_tts import cli, event_loop
from telephony_tts.fronts import front_process as front_process
from telephony_tts.http_api import asgi

# What `serve` imports late, without onnxruntime: its import starts a thread, which a fork would not have.
asgi.import_early()
event_loop.new_loop().close()

if __name__ == "__main__":
    asyncio.create_subprocess_exec = forking(forks_of_this_process(), "fronts.front_process")
    sys.exit(cli.main())
