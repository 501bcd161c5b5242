"""The script that builds and runs a FreeSWITCH. Without its sources it says what is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from freeswitch_peer import SCRIPT

pytestmark = pytest.mark.slow


def peer(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=20, check=False)


def test_a_build_without_sources_names_the_repository_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    ran = peer("build", tmp_path / "sources", tmp_path / "prefix")
    assert ran.returncode == 1
    assert ran.stderr == f"freeswitch-peer: {tmp_path}/sources/freeswitch is no git repository with commit v1.10.12\n"


def test_a_run_without_a_build_says_how_to_build(tmp_path: Path) -> None:
    ran = peer("run", tmp_path / "run", tmp_path / "prefix")
    assert ran.returncode == 1 and "freeswitch-peer build SOURCES" in ran.stderr


def test_without_a_verb_the_script_explains_itself() -> None:
    ran = peer()
    assert ran.returncode == 2
    for verb in ("build", "run", "start", "cli", "stop"):
        assert f"freeswitch-peer {verb} " in ran.stdout
