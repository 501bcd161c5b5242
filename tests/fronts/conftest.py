"""Fixtures of the tests with several front processes. The clients of the end-to-end tests are used here too."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_process import ForkServer, fork_server

sys.path.append(str(Path(__file__).parents[1] / "e2e"))


def short_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fronts-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets in it; that of `tmp_path` may not be."""
    yield from short_folder()


@pytest.fixture(scope="module")
def short_of_module() -> Iterator[Path]:
    """The same for all tests of a file."""
    yield from short_folder()


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """For `front_server`: a fork server with the imports of a server."""
    with fork_server("forked_fronts") as made:
        yield made
