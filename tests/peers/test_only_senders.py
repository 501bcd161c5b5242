"""Bots that send a sentence a second and never read, as long as it took until they were closed once: 40 s and 44 s.

tests/e2e/test_bots_that_only_send.py has the same in short.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environment import DRIVERS, INSTALL_S, PEERS, only_one
from rig import gather, run, serving

pytestmark = [pytest.mark.peer, pytest.mark.soak]

SECONDS = 60
WS, PICOWS = "ws@8.23.0", "picows==2.3.1"


def installed(name: str, *command: str) -> Path:
    """A folder of `.peers` that `command` fills once."""
    folder = PEERS / name
    PEERS.mkdir(exist_ok=True)
    with only_one(PEERS / f"{name}.lock"):
        if not (folder / ".done").exists():
            subprocess.run([*command, str(folder)], check=True, timeout=INSTALL_S, capture_output=True)
            (folder / ".done").touch()
    return folder


def test_bots_that_only_send_stay() -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is needed: apt-get install npm"
    ws = installed("ws", npm, "install", WS, "--no-audit", "--no-fund", "--silent", "--prefix")
    picows = installed("picows", sys.executable, "-m", "pip", "install", "--quiet", PICOWS, "--target")
    variables = {**os.environ, "NODE_PATH": str(ws / "node_modules"), "PYTHONPATH": str(picows)}

    async def n_sent(*command: str) -> int:
        driver = await asyncio.create_subprocess_exec(*command, str(SECONDS), stdout=subprocess.PIPE, env=variables)
        out, _ = await driver.communicate()
        assert driver.returncode == 0
        return int(out)

    async def main() -> None:
        async with serving(ping_interval_s=20.0) as rig:
            url, script = rig.url(audio="none"), str(DRIVERS / "only_sends.py")
            packages = ("websockets", "aiohttp", "picows")
            sent = await gather(
                *(n_sent(sys.executable, script, package, url) for package in packages),
                n_sent("node", str(DRIVERS / "only_sends.js"), url),
            )
            assert min(sent) >= SECONDS - 2, dict(zip((*packages, "ws"), sent, strict=True))

    run(main, within_s=SECONDS + 30)
