"""A server with a gRPC connection starts other processes. gRPC's handlers of fork() must not run in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

VARIABLES = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")

TELL_AT_IMPORT = f"""
import importlib, os, sys

class Watch:
    def find_spec(self, name, *_):
        if name == "grpc":
            print(*[os.environ.get(each) for each in {VARIABLES}])

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
"""

STARTS = """
import asyncio, collections, sys
from telephony_tts.runtime import event_loop
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.server import EngineServer

async def main():
    fake = FakeEngine()
    server = EngineServer(fake)
    address = str(await server.listen(parse_address(sys.argv[1])))
    await fake.start()
    server.engine_is_loaded()
    engine = RemoteEngine("remote", (address,), start_timeout_s=20)
    await engine.start()
    ends = collections.Counter()
    for _ in range(int(sys.argv[2])):
        process = await asyncio.create_subprocess_exec("/bin/true", stdin=asyncio.subprocess.PIPE)
        ends[await process.wait()] += 1
    print(dict(ends))
    await engine.close()
    await server.close()
    await fake.close()

event_loop.run(main())
"""


def output(program: str, *arguments: str) -> str:
    """What a new process prints that has none of the variables."""
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize(
    "module", ["remote.client", "remote.server", "remote.voice_client", "others.triton", "others.cosyvoice_grpc"]
)
def test_grpc_is_imported_without_its_handlers(module: str) -> None:
    """It reads the variables when it is imported, and not later."""
    assert output(TELL_AT_IMPORT, f"telephony_tts.engines.{module}").split() == ["0", "ERROR"]


def test_processes_that_are_started_beside_a_connection_run(tmp_path: Path) -> None:
    """Pinned: about one in forty died of SIGSEGV between fork and exec."""
    assert output(STARTS, f"unix:{tmp_path}/e.sock", "250").strip() == "{0: 250}"
