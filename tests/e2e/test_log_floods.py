"""No peer can fill the log: lines are bounded per call, and for all connections outside calls; the rest is counted."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from log_lines import lines
from rig import get, run, serving
from served import process

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

N = 5_000
N_REFUSED = 1_600
MAX_LOG_BYTES = 50_000
"""The log of one flood, which takes seconds: 60 lines at once and 5 a second, of 150 to 250 bytes each."""


def told(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("message", "event"), [({"type": "end"}, "warning"), ({"type": "clear"}, "warning"), ('{"broken', "error")], ids=str
)
def test_thousands_of_messages_are_a_few_lines(message: dict[str, Any] | str, event: str, tmp_path: Path) -> None:
    """Pinned: `end` without a turn and `clear` with nothing to clear wrote 3.3 MB in 4.7 s."""
    log = tmp_path / "log"
    with process(log=log) as (served, port):
        flooder = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("flooder.py")), f"ws://127.0.0.1:{port}/v1/stream?audio=none",
             json.dumps(message), str(N)],
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert flooder.returncode == 0 and int(flooder.stdout) == N, "each has its answer"
        served.terminate()
        served.wait(20)
    assert log.stat().st_size < MAX_LOG_BYTES
    said = told(log)
    (call,) = {line["call"] for line in said if "call" in line}
    *of_call, audit = [line for line in said if line.get("call") == call]
    assert audit["event"] == "call_audit"
    assert of_call[-1]["event"] == "call_ended" and of_call[0]["event"] == "call_started"
    assert sum(line["event"] == event for line in of_call) >= 50, "its actions are logged"
    # All that the call would have said: its start, the flood, that the bot has left.
    assert len(of_call[:-1]) + of_call[-1]["lines_left_out"] == 1 + N + 1


def test_thousands_of_refused_connections_are_a_few_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def knock(port: int) -> None:
        for _ in range(N_REFUSED // 4):
            assert (await get(port, "/v1/stream", ("Upgrade: websocket", "Connection: Upgrade")))[0] == 401

    async def main(port: int) -> None:
        await asyncio.gather(*(knock(port) for _ in range(4)))

    with process("--set", "server.tokens=['secret']", log=log) as (served, port):
        asyncio.run(main(port))
        served.terminate()
        served.wait(20)
    said = told(log)
    refused = [line for line in said if line["event"] == "refused"]
    assert 20 <= len(refused) <= 60 and {line["reason"] for line in refused} == {"unauthorized"}
    (last,) = [line for line in said if line["event"] == "lines_left_out"]
    assert len(refused) + last["lines_left_out"] == N_REFUSED
    assert sum(line.get("left_out", 0) for line in refused) <= last["lines_left_out"]


def test_an_error_on_every_connection_is_logged_and_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WebSocket library logs it, with a traceback each time."""
    caplog.set_level(logging.INFO, "telephony_tts")

    async def main() -> None:
        async with serving() as rig:
            monkeypatch.setattr(rig.server.admission, "check", None)
            for _ in range(100):
                status, _, _ = await get(rig.port, "/v1/stream", ("Upgrade: websocket", "Connection: Upgrade"))
                assert status == 500

    run(main)
    crashes = [record for record in caplog.records if record.exc_info is not None]
    assert 20 <= len(crashes) <= 25 and crashes[0].exc_info[0] is TypeError  # type: ignore[index]
    (last,) = lines(caplog, "lines_left_out")
    assert len(crashes) + last["lines_left_out"] == 100


def test_a_peer_cannot_choose_the_length_of_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")

    async def main() -> None:
        async with serving(twilio_auth_token="secret") as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(b"GET /media/twilio HTTP/1.1\r\nHost: " + b"h" * 7000 + b"\r\n\r\n")
            assert b" 401 " in await reader.read(100)
            writer.close()

    run(main)
    (line,) = lines(caplog, "refused")
    assert line["why"].startswith("X-Twilio-Signature does not sign wss://hhh") and len(line["why"]) == 200
