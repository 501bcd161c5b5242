"""The commands of docs/asterisk.md that change Asterisk's own files, run in a shell against a running Asterisk."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from asterisk_peer import asterisk

pytestmark = [pytest.mark.peer, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


def commands_that_change_files() -> str:
    """What a shell can run of the page's blocks that name /etc/asterisk, without the commands to Asterisk itself."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", (ROOT / "docs/asterisk.md").read_text(encoding="utf-8"), re.M | re.S)
    changing = [block for block in blocks if re.search(r">>|cp .*/etc/asterisk", block)]
    assert len(changing) >= 2, "the dialplan and the telephone"
    return re.sub(r"^ *asterisk -rx .*$", "", "\n".join(changing), flags=re.M)


def test_the_commands_can_be_run_twice() -> None:
    """Pinned: they appended whole files, so a second run had every section twice."""
    with asterisk() as running:
        folder = running.folder / "etc"
        script = commands_that_change_files().replace("/etc/asterisk", str(folder))
        for _ in range(2):
            subprocess.run(["sh", "-euc", script], cwd=ROOT, check=True, timeout=10)
        for part in ("websocket_client", "extensions", "pjsip"):
            own = (folder / f"{part}.conf").read_text(encoding="utf-8")
            assert own.count(f"#include telephony_tts_{part}.conf") == 1
        running.cli("dialplan reload")
        shown = running.cli("dialplan show 700@telephony-tts")
        assert shown.count("Dial(WebSocket/telephony_tts/c(ulaw)f(json)") == 1, shown
