"""The tiny checkpoint that the tests of this folder share; nothing writes to it."""

from pathlib import Path

import pytest
from speaking import Rig

from telephony_tts.engines.cosyvoice2.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def rig(model_dir: Path) -> Rig:
    return Rig(model_dir)
