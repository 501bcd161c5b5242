"""Calls here are on the real clock, a frame every 20 ms: little else may keep the machine busy meanwhile, and nothing
else where a test does so itself.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUSY = ("cosyvoice2", "embedded_voice", "languages", "voice_barge_in", "floods", "log_floods", "server", "faults")
"""Files that compute speech, flood a server, or measure what it costs."""
WITHOUT_CLOCK = ("command_line", "start")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if item.path.is_relative_to(HERE) and not name.startswith(WITHOUT_CLOCK):
            item.add_marker(pytest.mark.alone if name.startswith(BUSY) else pytest.mark.timed)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return cert, key
