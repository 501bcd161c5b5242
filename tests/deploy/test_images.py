"""The images: what their files name exists, what they pin fits the project, and hadolint has nothing to say.

`make images` builds them, which takes minutes and a network; docs/deploy.md says how.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_tools import ROOT, tools
from forked_process import ForkServer, fork_server
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sip_bridge import config as bridge_config
from telephony_tts.runtime import errors
from telephony_tts.runtime.errors import how_to_get, how_to_get_again, shell_command

pytestmark = pytest.mark.slow

DOCKER = ROOT / "docker"
FILES = sorted([DOCKER / "Dockerfile", *DOCKER.glob("*.Dockerfile")])
LOCKS = DOCKER / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

Instruction = tuple[str, str]


def stages(file: Path = DOCKER / "Dockerfile") -> dict[str, list[Instruction]]:
    """The (instruction, arguments) pairs of each stage by its name, continuations joined. "" has what stands before."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[Instruction]] = {"": []}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            name = rest.split(" AS ")[1] if " AS " in rest else "only"
            found[name] = []
        found[list(found)[-1]].append((word, rest))
    return found


def lines_of(target: str) -> list[Instruction]:
    """The instructions of a target and of the stages below it."""
    here = stages()
    own = here[target]
    below = own[0][1].split()[0]
    return [*(lines_of(below) if below in here else []), *own]


def command_of(target: str) -> list[str]:
    words = dict(lines_of(target))
    return [*json.loads(words["ENTRYPOINT"]), *json.loads(words["CMD"])]


def copied() -> set[str]:
    """What all files of this folder copy from the project."""
    rows = [rest for file in FILES for stage in stages(file).values() for word, rest in stage if word == "COPY"]
    parts = [
        [each for each in shlex.split(row) if not each.startswith("--chmod")] for row in rows if "--from=" not in row
    ]
    return {source for *sources, _ in parts for source in sources}


# ------------------------------------------------------------------- the files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    found = subprocess.run(
        [str(tools() / "bin" / "hadolint"), str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr


def test_hadolint_is_at_work(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian:latest\nRUN cd /tmp && apt-get install wget\n")
    found = subprocess.run([str(tools() / "bin" / "hadolint"), str(wrong)], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "DL3007" in found.stdout


def test_all_that_the_images_copy_exists_and_is_not_ignored() -> None:
    sources = copied()
    assert {
        "pyproject.toml",
        "LICENSE",
        "telephony_tts",
        "sip_bridge",
        "configs/server.yaml",
        "docker/locks",
    } <= sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    assert lines[1] == "*", "what is not named here stays out, such as models and environments"
    assert [each for each in sources if not any(each == one or each.startswith(f"{one}/") for one in allowed)] == []


def test_the_image_has_all_that_building_the_package_reads() -> None:
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= copied()


@pytest.mark.parametrize("target", ["server", "bridge"])
def test_the_image_runs_as_an_unprivileged_user_with_labels_and_a_health_check(target: str) -> None:
    instructions = lines_of(target)
    words = dict(instructions)
    assert int(words["USER"].split(":")[0]) > 0
    runs = [rest for word, rest in instructions if word == "RUN"]
    assert all(run.startswith('if [ "$VARIANT" = cuda ]; then') for run in runs) and len(runs) == 1, (
        "nothing is built or fetched in the final image, but the compiler for a GPU's kernels"
    )
    titles = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", words["LABEL"]))
    assert titles >= {"title", "description", "licenses", "version", "revision", "created", "base.name"}
    assert words["FROM"].split()[0] == "runtime" and stages()["runtime"][0] == ("FROM", "system AS runtime")
    assert stages()["system"][0] == ("FROM", "${BASE} AS system"), "without what building leaves behind"
    check = json.loads(words["HEALTHCHECK"].split("CMD", 1)[1])
    assert check[:2] == ["python3", "-c"]
    compile(check[2], "healthcheck", "exec")
    (port,) = re.findall(r"127\.0\.0\.1:(\d+)/", check[2])
    assert port in words["EXPOSE"].split()


def test_a_base_is_an_argument_and_has_a_version() -> None:
    for file in FILES:
        (base,) = [rest for word, rest in stages(file)[""] if rest.startswith("BASE=")]
        assert re.fullmatch(r"BASE=[a-z]+:[0-9a-z.]+-[a-z-]+", base), base


def test_a_pip_configuration_is_mounted_and_not_copied() -> None:
    runs = [rest for stage in stages().values() for word, rest in stage if word == "RUN" and "pip install" in rest]
    fetching = [run for run in runs if "--no-index" not in run]
    assert len(fetching) == 3 and all("--mount=type=secret,id=pip_conf,target=/etc/pip.conf" in run for run in fetching)


def test_a_hint_in_an_image_builds_one_with_the_extra_because_it_has_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = [rest for word, rest in stages()["venv"] if word == "RUN" and "image-name" in rest]
    written = re.search(r'echo "\$VARIANT" > /opt/telephony-tts/([a-z-]+) ', run)
    assert written is not None and "pip uninstall --yes --quiet pip" in run
    (tmp_path / written[1]).write_text("cpu\n")
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "telephony_tts" / "errors.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    hint = how_to_get("japanese")
    assert hint == "make images IMAGES=cpu EXTRAS=japanese"
    assert how_to_get("cosyvoice") == "make images IMAGES=cuda"
    assert how_to_get() == how_to_get_again("hibari-tts==0.2.1") == "make images IMAGES=cpu"
    assert shell_command("telephony-tts voices pull ja") == "telephony-tts voices pull ja"
    dry = [*hint.split(), "-n", "BUILDER=docker"]
    shown = subprocess.run(dry, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--build-arg VARIANT=$image" in shown.stdout and "--build-arg EXTRAS=japanese" in shown.stdout
    assert '"telephony-tts[$EXTRAS]"' in run and ("ARG", "EXTRAS=") in stages()["venv"]


# ------------------------------------------------------------------- the start


def test_the_server_starts_with_flags_that_exist() -> None:
    entry, *command = command_of("server")
    assert entry in PROJECT["scripts"] and command[0] == "serve"
    run = [sys.executable, "-m", "telephony_tts", "serve", "--help"]
    usage = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout
    assert [flag for flag in command if flag.startswith("--") and flag not in usage] == []
    given = dict(zip(command[1::2], command[2::2], strict=True))
    assert given["--host"] == "0.0.0.0", "loopback inside a container cannot be reached from outside"
    assert ("COPY", f"configs/server.yaml {given['--config']}") in lines_of("server")
    assert given["--port"] == dict(lines_of("server"))["EXPOSE"]


def test_a_container_without_a_token_stops_and_says_how_to_get_one() -> None:
    command = [
        str(ROOT / "configs" / "server.yaml") if part.endswith(".yaml") else part for part in command_of("server")
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TELEPHONY_TTS_")}
    ended = subprocess.run(
        [sys.executable, "-m", "telephony_tts", *command[1:]],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=environ,
    )  # fmt: skip
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert "server.host is 0.0.0.0" in ended.stderr and "TELEPHONY_TTS_TOKENS" in ended.stderr
    usage = (DOCKER / "Dockerfile").read_text(encoding="utf-8").partition("\nARG BASE")[0]
    assert "export TELEPHONY_TTS_TOKENS=" in usage and "-e TELEPHONY_TTS_TOKENS telephony-tts-cpu" in usage


def test_the_bridge_starts_with_its_configuration() -> None:
    entry, flag, file = command_of("bridge")
    assert entry in PROJECT["scripts"] and flag == "--config"
    assert ("COPY", f"configs/sip_bridge.yaml {file}") in lines_of("bridge")
    read = bridge_config.load(str(ROOT / "configs" / "sip_bridge.yaml"), environ={})
    assert {str(read.audiosocket.port), str(read.http.port)} == set(dict(lines_of("bridge"))["EXPOSE"].split())


# -------------------------------------------------------------------- the pins


def locked(name: str) -> dict[str, Version]:
    """The versions that a lock file pins. Each has a hash, without which pip refuses the file."""
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    rows = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    pinned = {}
    for row in rows:
        pin = re.match(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==(\S+)", row)
        assert pin is not None and "--hash=sha256:" in row, row[:80]
        pinned[canonicalize_name(pin[1])] = Version(pin[2])
    return pinned


def extras_of(lock: str) -> list[str]:
    """The extras of the project that `make locks` puts into a lock file, by the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^LOCK_{lock.upper()} *:= (.*)$", text, re.MULTILINE)
    return str(listed).split()


@pytest.mark.parametrize("lock", ["cpu", "cuda"])
def test_the_lock_has_what_the_project_requires(lock: str) -> None:
    """`make locks` writes them anew. PyTorch is not in a lock: which build is right depends on the card."""
    pinned = locked(lock)
    wanted = [*PROJECT["dependencies"]]
    for extra in extras_of(lock):
        wanted += PROJECT["optional-dependencies"][extra]
    assert len(wanted) > len(PROJECT["dependencies"]) + 3
    missing = []
    for requirement in map(Requirement, wanted):
        if requirement.name == "torch" or (
            requirement.marker and not requirement.marker.evaluate({"python_version": "3.12"})
        ):
            continue
        version = pinned.get(canonicalize_name(requirement.name))
        if version is None or version not in requirement.specifier:
            missing.append(f"{requirement} ({version})")
    assert missing == []


def test_the_build_has_what_builds_the_package() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    (needed,) = map(Requirement, build["requires"])
    assert locked("build")[needed.name] in needed.specifier


def test_the_bridges_image_has_what_the_bridge_imports() -> None:
    """Its lock names only those packages."""
    program = (
        "import sys, sip_bridge.cli, sip_bridge.app, telephony_tts.runtime.event_loop\n"
        "import telephony_tts.audio.resampler, uvloop\n"
        "print(*sorted({name.partition('.')[0] for name, module in sys.modules.items()"
        " if 'site-packages' in (getattr(module, '__file__', None) or '')}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    names = {"yaml": "pyyaml", "prometheus_client": "prometheus-client", "_cffi_backend": "cffi"}
    imported = {names.get(each, canonicalize_name(each)) for each in ended.stdout.split() if not each.startswith("_")}
    assert {"numpy", "websockets", "pyyaml"} <= imported
    assert imported - set(locked("bridge")) - {"telephony-tts", "sip-bridge"} == set()


@pytest.fixture(scope="module")
def with_torch() -> Iterator[ForkServer]:
    """PyTorch takes four seconds to import."""
    with fork_server("torch") as programs:
        yield programs


@pytest.mark.parametrize(
    ("variant", "cuda", "says"),
    [
        ("cuda", "none", ""),
        ("cuda", "any", "this PyTorch is for CUDA None"),
        ("v100", "12.6", "CUDA=12.6 was asked for"),
    ],
)
def test_an_image_with_the_wrong_pytorch_is_not_built(
    variant: str, cuda: str, says: str, with_torch: ForkServer
) -> None:
    """The tests have a build for CPUs, which is right only where one is asked for."""
    command = [sys.executable, str(LOCKS / "check_torch.py"), variant, cuda]
    ended = with_torch.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode == 0) == (not says) and says in ended.stderr, ended.stderr
