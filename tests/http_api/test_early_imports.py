"""A request imports nothing: an import stops the event loop, and with it the frames of all calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

_SCRIPT = """
import asyncio, sys, urllib.request
sys.path[:0] = ["tests", "tests/e2e", "tests/engines"]
from rig import serving

def get(port, format):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/tts/stream?text=Hello&format={format}") as answer:
        return answer.read()

async def main():
    async with serving() as rig:
        port = rig.port
        before = set(sys.modules)
        for format in ("pcm", "mp3"):
            assert await asyncio.to_thread(get, port, format)
        late = set(sys.modules) - before
        print(sorted(name for name in late if name in ("av", "anyio._backends._asyncio") or "starlette" in name))

asyncio.run(main())
"""


def test_a_request_imports_no_package_for_the_first_time() -> None:
    pytest.importorskip("av")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
