"""The files around the code: Makefile, licence, decisions. What they name must exist, and failures must be clear."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME_OF_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


def help_of(*arguments: str) -> str:
    run = [sys.executable, "-c", "from telephony_tts.cli.main import main; main()", *arguments, "--help"]
    return subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout


# ------------------------------------------------------------------ the metadata


def test_the_base_install_is_light_and_the_notice_names_all_of_it() -> None:
    names = [NAME_OF_REQUIREMENT.match(line).group() for line in PROJECT["dependencies"]]  # type: ignore[union-attr]
    assert not {"torch", "espeakng-loader", "transformers"} & set(names)
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8").lower()
    assert [name for name in names if name.lower() not in notice] == []
    assert [extra for extra in PROJECT["optional-dependencies"] if extra != "dev" and f"[{extra}]" not in notice] == []


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert [n for n in range(1, 10) if not re.search(rf"^ +{n}\. ", text, re.MULTILINE)] == []


def test_each_decision_has_its_context_and_consequences() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. ")
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), page.name


# ------------------------------------------------------------------ the Makefile


def test_ci_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in text
    assert text.rstrip().endswith("make test-all")


def test_help_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in phony.split() if name != "help" and f"make {name} " not in shown] == []


def test_run_starts_the_server_with_flags_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"telephony-tts (serve .*) \$\(SERVE_ARGS\)", text)
    _, flag, file = command.split()
    assert flag in help_of("serve") and (ROOT / file).is_file()


PYTHON_STUB = """#!/bin/sh
# A Python of some version, as Debian ships it: without `venv` until apt-get brings it.
case "$*" in
  *"sys.exit(sys.version_info < (3, 11))"*) [ "{version}" -ge 311 ] ;;
  *-venv*)      echo python3.11-venv ;;
  --version)    echo "Python {version}" ;;
  "-m venv"*)   mkdir "$3" "$3/bin" && cp "$0" "$3/bin/python" || exit 1
                [ -e "{folder}/has-venv" ] || {{ echo "ensurepip is not available" >&2; exit 1; }} ;;
  "-m pip --version") [ -e "{folder}/has-venv" ] ;;
  *) exit 1 ;;
esac
"""


class Machine:
    """A folder with our Makefile, on a PATH that has only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("make", "sh", "rm", "cat", "cp", "mkdir"):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.program("id", "#!/bin/sh\necho 1000\n")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def python(self, name: str, version: int) -> None:
        self.program(name, PYTHON_STUB.format(version=version, folder=self.folder))

    def make_venv(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", ".venv/bin/python"], cwd=self.folder, env={"PATH": str(self.bin)}, capture_output=True, text=True
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_too_old_python_is_an_error(machine: Machine) -> None:
    machine.python("python3", 309)
    ended = machine.make_venv()
    assert ended.returncode != 0
    assert "Python 3.11 or newer was not found" in ended.stderr and "apt-get install python3" in ended.stderr


def test_the_first_working_python_is_used(machine: Machine) -> None:
    machine.python("python3", 310)
    machine.program("python3.13", "#!/bin/sh\nexit 127\n")  # a version manager's shim with nothing behind it
    machine.python("python3.12", 312)
    (machine.folder / "has-venv").touch()
    ended = machine.make_venv()
    assert ended.returncode == 0 and "with Python 312" in ended.stdout
    assert (machine.folder / ".venv" / "bin" / "python").is_file()


def test_root_on_debian_gets_the_missing_venv_package(machine: Machine) -> None:
    machine.python("python3", 311)
    machine.program("id", "#!/bin/sh\necho 0\n")
    folder = machine.folder
    # As on a fresh image: the first try fails because the package lists are empty.
    machine.program(
        "apt-get",
        f'#!/bin/sh\necho "$*" >>{folder}/apt.log\n'
        f'case "$1" in update) : >{folder}/lists ;; *) [ -e {folder}/lists ] && : >{folder}/has-venv ;; esac\n',
    )
    ended = machine.make_venv()
    assert ended.returncode == 0, ended.stderr
    install = "install -y -qq python3.11-venv"
    assert (folder / "apt.log").read_text().splitlines() == [install, "update -qq", install]
    assert sorted(path.name for path in folder.glob(".venv*")) == [".venv"]


def test_other_users_are_told_what_to_install_and_no_partial_environment_stays(machine: Machine) -> None:
    machine.python("python3", 311)
    machine.program("apt-get", "#!/bin/sh\necho not for this user >&2; exit 100\n")
    ended = machine.make_venv()
    assert ended.returncode != 0
    assert "as root: apt-get install python3-venv" in ended.stderr
    assert list(machine.folder.glob(".venv*")) == []


def test_the_base_install_builds_its_engines_without_any_package_of_an_extra() -> None:
    """Pinned: `make run` on a bare machine ended with "No module named 'tokenizers'". Here every extra is installed."""
    hidden = ("torch", "tokenizers", "safetensors", "soundfile", "py3langid", "espeakng_loader", "matplotlib", "av")
    source = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({hidden!r}))\n"
        "from telephony_tts.app import config, engines\n"
        "engines.installed = lambda engine: engine not in ('espeak', 'kokoro')\n"
        "print([engine.name for engine in engines.build_catalog(config.load(None, environ={})).engines])\n"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.stdout == "['hibari']\n", run.stderr
