"""The tests of this folder start servers and raw peers as the end-to-end tests do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import pytest
from announced import self_made_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    self_made_certificate(folder)
    return folder / "cert.pem", folder / "key.pem"
