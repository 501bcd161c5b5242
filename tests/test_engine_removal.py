"""An engine is one folder: taken away, nothing else misses it. Nothing outside imports an engine's inside."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from linked_package import PACKAGE, linked_package

from telephony_tts.audio.wav import read_wav

ROOT = Path(__file__).parents[1]
ENGINES = PACKAGE / "engines"
FOLDERS = sorted(path.parent.name for path in ENGINES.glob("*/plugin.py"))
SHARED = "remote"
"""The transport of engines in other processes. `ray` is made with it, and everyone may use its `__init__.py`."""
IMPORT_ALL = """
import pkgutil, telephony_tts
from telephony_tts.app.plugins import PLUGINS
print(telephony_tts.__file__, *(each.name for each in PLUGINS))
for found in pkgutil.walk_packages(telephony_tts.__path__, "telephony_tts."):
    inside = found.name.startswith("telephony_tts.engines.") and not found.name.endswith((".plugin", "commands"))
    if not inside and not found.name.endswith("__main__"):
        __import__(found.name)
"""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of each import of a file, also in functions, and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def may_import(path: Path, module: str) -> bool:
    """Whether a file may import a module, as far as engines are concerned."""
    top, *names = module.split(".")
    if top != "telephony_tts" or names[:1] != ["engines"] or len(names) < 2 or names[1] not in FOLDERS:
        return True
    if path.is_relative_to(ENGINES / names[1]) or (names[1] == SHARED and path.is_relative_to(ENGINES / "ray")):
        return True
    module_file = ENGINES.joinpath(*names[1:3])
    is_name = len(names) == 2 or not (module_file.is_dir() or module_file.with_suffix(".py").is_file())
    return names[1] == SHARED and is_name


def test_nothing_outside_an_engines_folder_imports_its_inside() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for top in (PACKAGE, ROOT / "sip_bridge")
        for path in sorted(top.rglob("*.py"))
        for line, module in imports(path)
        if not may_import(path, module)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "module", "may"),
    [
        ("app/engines.py", "telephony_tts.engines.kokoro.engine", False),
        ("app/engines.py", "telephony_tts.engines.kokoro", False),
        ("engines/hibari/engine.py", "telephony_tts.engines.kokoro.engine.KokoroEngine", False),
        ("engines/catalog.py", "telephony_tts.engines.fake.engine", False),
        ("cli/engine.py", "telephony_tts.engines.remote.client", False),
        ("cli/engine.py", "telephony_tts.engines.remote", True),
        ("cli/engine.py", "telephony_tts.engines.remote.connect", True),
        ("engines/ray/engine.py", "telephony_tts.engines.remote.client.RemoteEngine", True),
        ("engines/kokoro/plugin.py", "telephony_tts.engines.kokoro.engine", True),
        ("app/engines.py", "telephony_tts.engines.front_ends.english", True),
    ],
)
def test_the_rule_itself(path: str, module: str, may: bool) -> None:
    assert may_import(PACKAGE / path, module) is may


@pytest.mark.slow
@pytest.mark.parametrize("removed", [name for name in FOLDERS if name != SHARED])
def test_a_server_without_an_engines_folder_speaks_with_another_one(removed: str, tmp_path: Path) -> None:
    package = linked_package(tmp_path, "engines", removed)

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    imported = python("-c", IMPORT_ALL)
    assert imported.returncode == 0, imported.stderr
    file, *there = imported.stdout.split()
    assert Path(file).parent == package and sorted([*there, removed]) == FOLDERS

    default = "fake" if removed != "fake" else "hibari"
    idle = [name for name in ("hibari", "kokoro", "espeak") if name not in (removed, default)]
    settings = [f"engines.default={default}", "speech.detect_language=false", *(f"engines.{n}.workers=0" for n in idle)]
    flags = [part for each in settings for part in ("--set", each)]
    serve = [sys.executable, "-m", "telephony_tts", "serve", "--port", "0", *flags]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as server:
        try:
            assert server.stdout is not None
            found = (re.search(r"is ready at ws://(\S+),", line) for line in server.stdout)
            address = next(match[1] for match in found if match is not None)
            with urllib.request.urlopen(f"http://{address}/tts/stream?text=Hello%20there.", timeout=60) as answer:
                heard = answer.read()
        finally:
            server.kill()
    (tmp_path / "heard.wav").write_bytes(heard)
    samples = np.frombuffer(read_wav(str(tmp_path / "heard.wav")).payload, np.int16)
    assert np.count_nonzero(np.abs(samples.astype(int)) > 1_000) > 1_000

    if removed == "others":
        asked, why = "engines.others.x.kind=openai", "engines.others: unknown key"
    else:
        asked, why = f"engines.default={removed}", f"engines.default: {removed!r} is wrong; expected one of "
    refused = python("-m", "telephony_tts", "voices", "--set", asked)
    assert refused.returncode == 2 and why in refused.stderr, refused.stderr
    if removed == "hibari":
        refused = python("-m", "telephony_tts", "voices")
        assert refused.returncode == 2 and "no engine is named 'hibari'; there are kokoro, " in refused.stderr
