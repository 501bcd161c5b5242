"""The limit of calls holds exactly, also if several processes begin calls at the same moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from calling_front import idle

from telephony_tts.fronts.loads import Loads
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime.errors import Busy
from telephony_tts.transport.registry import Registry

N_FRONTS, LIMIT = 3, 4


def test_a_call_above_the_limit_is_refused_when_it_begins_and_leaves_nothing_behind() -> None:
    """Handshakes are admitted before their calls begin: more of them may be under way than there is room."""

    async def main() -> None:
        registry = Registry()
        registry.max_calls, registry.max_requests = 2, 1
        told: list[int] = []
        registry.changed = lambda: told.append(registry.n_calls)
        async with asyncio.TaskGroup() as registry.group:
            first, second, third, request = idle("a"), idle("b"), idle("c"), idle("h", "http")
            registry.begin(first)
            registry.begin(second)
            with pytest.raises(Busy, match="2 calls are live, which is the limit"):
                registry.begin(third)
            assert registry.find("c") is None and registry.n_calls == 2
            assert told[-2:] == [3, 2], "others see the call before it is judged, and not after its refusal"
            registry.begin(request)
            with pytest.raises(Busy, match="1 HTTP requests are being spoken, which is the limit"):
                registry.begin(idle("i", "http"))
            first.finish()
            for _ in range(4):
                await asyncio.sleep(0)
            assert registry.n_calls == 1
            registry.begin(third)
            for call in (second, third, request):
                call.finish()
            await registry.wait_empty()

    asyncio.run(main())


@pytest.mark.slow
def test_processes_that_begin_calls_at_the_same_moment_stay_within_the_limit(short: Path) -> None:
    runtime = RuntimeFolder.make(str(short))
    Loads(runtime.loads, N_FRONTS, create=True).close()
    program = Path(__file__).with_name("calling_front.py")
    fronts = [
        subprocess.Popen(
            [sys.executable, str(program), str(runtime.path), str(number), str(N_FRONTS), str(LIMIT), "1.5"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(N_FRONTS)
    ]  # fmt: skip
    try:
        for front in fronts:
            assert front.stdout is not None and front.stdout.readline() == "ready\n"
        for front in fronts:
            assert front.stdin is not None
            front.stdin.write("\n")
            front.stdin.flush()
        calls = []
        for front in fronts:
            shown, _ = front.communicate(timeout=30)
            assert front.returncode == 0
            calls.append([tuple(map(int, line.split())) for line in shown.splitlines()])
    finally:
        for front in fronts:
            front.kill()
            front.wait()
        runtime.close()
    assert min(map(len, calls)) > 100, "each of them had calls"
    # An end before a beginning at the same instant: a call that is about to end counts no more.
    steps = sorted((at, step) for had in calls for begun, ended in had for at, step in ((begun, 1), (ended, -1)))
    live, most = 0, 0
    for _, step in steps:
        live += step
        most = max(most, live)
    assert most == LIMIT
