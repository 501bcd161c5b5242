"""`telephony-tts serve` in a forked process (`forked_process`) whose fronts are forked too.

The imports are two of the three seconds of CPU that each process of a server takes to start. A front is a child of its
supervisor as ever, which signals it and waits for it in the same way. `front_server` starts `-m forked_fronts serve …`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket

import forked_process
from forked_asyncio import forking
from forked_process import Forks

from telephony_tts import cli, event_loop
from telephony_tts.fronts import front_process as front_process
from telephony_tts.http_api import asgi

# What `serve` imports late, without onnxruntime: its import starts a thread, which a fork would not have.
asgi.import_early()
event_loop.new_loop().close()


def main() -> int:
    """The command line, with fronts that are forked."""
    gc.freeze()  # what was imported before the fork
    if (forks := _forks_of_this_process()) is None:
        return 0
    asyncio.create_subprocess_exec = forking(forks, "fronts.front_process")
    return cli.main()


def _forks_of_this_process() -> Forks | None:
    """The process that forks this one's fronts. It is forked now, as later this one has an event loop and threads.
    None in such a front, when it has ended."""
    forked_process.adopt_orphans(1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # the pipes of the server end with it
            os.dup2(null, number)
        os.setsid()  # the signals of a terminal are for the supervisor
        forked_process._fork_on_request(theirs.detach())
        return None
    theirs.close()
    return Forks(ours)
