"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import served
from forked_process import ForkServer, fork_server
from forked_voice_makers import forked_makers, maker_forks  # noqa: F401


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return cert, key


@pytest.fixture(scope="module")
def server_forks() -> Iterator[ForkServer]:
    """A fork server with the imports of a server and of CosyVoice2. The engines of such a server are forked too."""
    folder = "telephony_tts.engines.cosyvoice2"
    modules = ("telephony_tts.cli.main", "telephony_tts.app.serving", "telephony_tts.http_api.application",
               f"{folder}.service", f"{folder}.core.core", f"{folder}.hosting.loading")  # fmt: skip
    one_thread = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with fork_server(*modules, environment=one_thread, nested=True) as forks:
        yield forks


@pytest.fixture
def forked_server(server_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`served.process` forks a server and its CosyVoice2: for tests that judge neither their start nor their end."""
    monkeypatch.setattr(served, "subprocess", server_forks)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


WRITE_TINY = """
import sys
from dataclasses import replace
from pathlib import Path
from telephony_tts.engines.cosyvoice2.checkpoint import random_checkpoint

tiny = random_checkpoint.SIZES["tiny"]
few = replace(tiny.vocoder, res_kernels=(3, 7), res_dilations=(1, 3))
random_checkpoint.SIZES["tiny"] = replace(tiny, vocoder=few)
random_checkpoint.write_random_checkpoint(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def tiny_model(server_forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CosyVoice2 with few layers in the vocoder, which would take most of the time. Nothing writes to it. It is
    made in a forked process, as PyTorch is imported there."""
    path = tmp_path_factory.mktemp("tiny") / "model"
    assert server_forks.Popen([sys.executable, "-P", "-c", WRITE_TINY, str(path)]).wait(60) == 0
    return path
