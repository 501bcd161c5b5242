"""Rules that keep whole kinds of mistakes out, checked by reading the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICKLED = {
    # Both ends run from one checkout, and the socket or pipe between them has no name: no one else can write to it.
    "telephony_tts/fronts/control_messages.py",
    "telephony_tts/fronts/supervisor.py",
    "telephony_tts/app/examination.py",
    "telephony_tts/app/doctor.py",
    "telephony_tts/engines/cosyvoice2/hosting/engine_process.py",
    "telephony_tts/engines/cosyvoice2/hosting/process_host.py",
    "telephony_tts/engines/cosyvoice2/hosting/process_messages.py",
    "telephony_tts/engines/cosyvoice2/hosting/voice_maker.py",
    "telephony_tts/engines/cosyvoice2/hosting/voice_maker_process.py",
    # For the name of an error only.
    "telephony_tts/engines/cosyvoice2/voices/voice_store.py",
}
NEVER = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "marshal.loads",
    "shelve.open",
    "yaml.unsafe_load",
    "yaml.full_load",
    "tempfile.mktemp",
    "hashlib.md5",
    "ssl._create_unverified_context",
    "jsonpickle.decode",
    "dill.loads",
}
SOURCES = sorted(path for package in ("telephony_tts", "sip_bridge") for path in (ROOT / package).rglob("*.py"))


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def option(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(each.value) for each in call.keywords if each.arg == name), None)


def violations(source: str, name: str) -> list[str]:
    tree = ast.parse(source)
    found = []
    for function, call in calls(tree):
        if function in NEVER or (function.startswith("random.") and "secret" in name):
            found.append(f"{name}:{call.lineno}: {function}")
        if option(call, "shell") not in (None, "False"):
            found.append(f"{name}:{call.lineno}: a shell")
        if function == "torch.load" and option(call, "weights_only") != "True":
            found.append(f"{name}:{call.lineno}: torch.load without weights_only=True can run code")
        if function in ("np.load", "numpy.load") and option(call, "allow_pickle") not in (None, "False"):
            found.append(f"{name}:{call.lineno}: np.load of pickles")
        if function == "yaml.load" and option(call, "Loader") != "_PlainLoader":
            found.append(f"{name}:{call.lineno}: yaml.load with a loader that may make objects")
        if function.endswith("verify_mode") or option(call, "verify") == "False":
            found.append(f"{name}:{call.lineno}: certificates are not checked")
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if "pickle" in names and name not in PICKLED:
            found.append(f"{name}:{node.lineno}: pickle")
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            for side in (node.left, *node.comparators):
                if ast.unparse(side).endswith((".token", "_token", ".password", ".secret", "auth_token", "signature")):
                    found.append(f"{name}:{node.lineno}: a secret is compared in a time that tells how much was right")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_no_source_breaks_a_rule(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))) == []


def test_the_exceptions_are_needed() -> None:
    unneeded = [
        name for name in PICKLED if not any("pickle" in line for line in (ROOT / name).read_text().splitlines())
    ]
    assert not unneeded


@pytest.mark.parametrize(
    "bad",
    [
        "eval(x)",
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(x, shell=True)",
        "yaml.load(x, Loader=yaml.Loader)",
        "np.load(x, allow_pickle=True)",
        "if given == self._token: pass",
        "if settings.password != given: pass",
        "get(url, verify=False)",
    ],
)
def test_the_rules_find_what_they_forbid(bad: str) -> None:
    assert violations(bad, "telephony_tts/x.py")
