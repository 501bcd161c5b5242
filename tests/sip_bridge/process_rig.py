"""The bridge as a separate process on free ports."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "sip_bridge.cli"]
ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "default"}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=ENVIRONMENT
    )


@asynccontextmanager
async def running(url: str, *settings: str) -> AsyncIterator[tuple[Process, int, int]]:
    """Run the bridge; gives the process when it is ready, its AudioSocket port and its HTTP port."""
    flags = [f"server.url={url}", "audiosocket.port=0", "http.port=0", *settings]
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *[word for flag in flags for word in ("--set", flag)], stdout=PIPE, stderr=PIPE, cwd=ROOT,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        told = ""
        async with asyncio.timeout(20):
            while "Ctrl-C" not in told:
                line = await process.stdout.readline()
                assert line, await process.communicate()
                told += line.decode()
        ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)(?= |/metrics)", told)]
        yield process, ports[0], ports[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
