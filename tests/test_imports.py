"""Who may import whom (ARCHITECTURE.md), held by reading the source.

Four tables are data: which rooms a room may use, which modules may use a package of others, which modules work without
I/O and tasks, and which parts of the CosyVoice2 engine may use which. `violations()` checks one file against them. The
tests check the tree, and `violations()` itself.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "telephony_tts"
FORBIDDEN_NAMES = {"utils", "util", "common", "base", "manager", "helpers", "helper", "misc"}

TASKS = frozenset({"asyncio", "concurrent", "multiprocessing", "queue", "sched", "signal", "subprocess", "threading"})
IO = frozenset({"os", "select", "selectors", "socket", "ssl"})

MAY_USE: dict[str, str] = {
    "runtime": "",
    "text": "runtime.errors",
    "wire": "runtime.errors",
    "audio": "runtime.errors",
    "ops": "runtime text.lexicon",
    "engines": "runtime",
    # What one engine needs beside what is shared.
    "engines.cosyvoice2": "runtime audio.wav text.normalizer",
    "engines.others": "runtime audio.sound_file",
    "session": "runtime.errors runtime.schema text audio wire engines.api engines.inserts",
    "experiments": "runtime ops.keys.key session.settings",
    "recording": "runtime audio wire session",
    "transport": "runtime ops.keys.key audio wire engines.api engines.failover session experiments recording",
    "http_api": "runtime ops text audio wire engines.api session recording transport",
    "doors": "runtime audio wire session transport http_api",
    "fronts": "runtime engines.api transport.fronts",
    "bench": "runtime engines",
    "app": "runtime text audio wire ops engines session experiments recording transport http_api doors fronts",
    "cli": "runtime audio wire ops engines session experiments recording transport bench app",
    "__main__": "cli",
    # A WebSocket used synchronously is one thing, whichever process holds it: transport.connection.
    "sip_bridge": "runtime wire audio transport.connection transport.request_head transport.unserved cli.settings",
}
"""The rooms, the lower ones first, and what each may use beside itself: rooms, or modules of them. The longest name
that a module's own begins with decides."""

PROGRAMS = ("fronts.front_process", "fronts.shared_engine_process", "engines.ray.app", "engines.ray.commands")
"""Programs of their own, each of which is a whole server or engine, and what starts one of them with the whole
configuration: they may use everything."""

FINDER = "app.residents"
"""Imports doors and engines by names that it finds."""

SHARED = {"ray": "engines.remote"}
"""What an engine may use of another one: the connection to other processes."""

OUTSIDE: dict[str, str] = {
    "anyio": "http_api.asgi",
    "audioop": "audio.g711",
    "av": "audio engines.cosyvoice2.voices.noise_reduction",
    "diskcache": "engines.phrase_store",
    "espeakng_loader": "engines.espeak engines.front_ends.ipa_by_espeak",
    "fastapi": "http_api doors",
    "google": "engines.others.protobuf_schema",
    "grpc": "engines.remote engines.others",
    "h11": "http_api.asgi",
    "hibari": "engines.hibari.model engines.front_ends.english",
    "httpx2": "engines.others.http_speech",
    "huggingface_hub": "engines.hubs",
    "matplotlib": "recording.chart bench.plot",
    "modelscope_hub": "engines.hubs",
    "numpy": "audio session engines recording http_api doors bench.audible cli.say sip_bridge",
    "onnxruntime": "audio.voice_activity engines.onnx_graph engines.kokoro.model engines.cosyvoice2.voices",
    "opentelemetry": "app.tracing",
    "prometheus_client": "runtime.metrics fronts.metrics_of_all sip_bridge.metrics",
    "py3langid": "engines.latin_language",
    "pydantic": "http_api doors",
    "pyopenjtalk": "engines.front_ends.japanese",
    "pypinyin": "engines.front_ends.mandarin ops.lexicon_files",
    # In two programs of their own, the replica and the watcher. A front imports none of them.
    "ray": "engines.ray.app engines.ray.reach engines.ray.commands",
    "re2": "ops.lexicon_files",
    "safetensors": "engines.cosyvoice2.checkpoint engines.cosyvoice2.voices",
    "soundfile": "engines.cosyvoice2.voices",
    "soxr": "audio.resampler",
    "starlette": "http_api",
    "tokenizers": "engines.cosyvoice2.text.tokenizer engines.cosyvoice2.text.whisper_tokenizer",
    "torch": "engines.cosyvoice2.model engines.cosyvoice2.device engines.cosyvoice2.voices "
    "engines.cosyvoice2.checkpoint engines.cosyvoice2.hosting.loading engines.cosyvoice2.hosting.choosing "
    "engines.cosyvoice2.examination bench.machine",
    "tqdm": "engines.cosyvoice2.checkpoint.download",
    "triton": "engines.cosyvoice2.model",
    "uvicorn": "http_api.asgi",
    "uvloop": "runtime.event_loop",
    "vllm": "engines.cosyvoice2.device",
    "websockets": "transport http_api.gate doors engines.others.omni_socket sip_bridge",
    "yaml": "runtime.settings_tree ops.lexicon_files engines.cosyvoice2.checkpoint cli.settings",
    # The clock is read in one place, so that tests can pretend it.
    "time": "runtime.clock",
}
"""Packages of others, and the module `time`: the modules that may import each."""

WITHOUT_TASKS = (
    "text wire audio session experiments ops.keys recording.settings recording.recorder recording.timeline "
    "recording.folder recording.replay recording.chart fronts.spreading fronts.restarts fronts.metrics_of_all "
    "engines.front_ends.english engines.front_ends.mandarin engines.front_ends.japanese engines.kokoro.reading "
    "engines.kokoro.styles engines.onnx_graph engines.remote.messages engines.remote.pieces engines.remote.tls "
    "engines.others.settings engines.cosyvoice2.text bench.measures bench.audible sip_bridge.audiosocket.frames "
    "sip_bridge.speech.pacer sip_bridge.speech.speech_queue sip_bridge.freeswitch.esl_messages "
    "sip_bridge.freeswitch.file_player sip_bridge.ari.messages sip_bridge.ari.formats sip_bridge.ari.leftovers "
    "sip_bridge.rtp.codec sip_bridge.rtp.concealment sip_bridge.rtp.packets"
)
"""What decides without tasks, threads and processes: the bytes come in, the bytes go out, and the clock is told."""

WITHOUT_IO = (
    "text wire session experiments ops.keys.key recording.settings recording.recorder recording.timeline "
    "fronts.spreading fronts.restarts fronts.metrics_of_all engines.front_ends.mandarin engines.front_ends.japanese "
    "engines.kokoro.reading engines.onnx_graph engines.remote.messages engines.remote.pieces engines.cosyvoice2.core "
    "engines.cosyvoice2.text engines.cosyvoice2.model.file_names bench.measures bench.audible "
    "sip_bridge.audiosocket.frames sip_bridge.speech.pacer sip_bridge.speech.speech_queue "
    "sip_bridge.freeswitch.esl_messages sip_bridge.ari.messages sip_bridge.ari.formats sip_bridge.rtp.codec "
    "sip_bridge.rtp.concealment sip_bridge.rtp.packets"
)
"""What opens no file and no socket."""

COSYVOICE2 = f"{PACKAGE}.engines.cosyvoice2"
PARTS: dict[str, str] = {
    "languages": "",
    "model.config": "",
    "model.failures": "",
    "model.file_names": "",
    "model.segments": "",
    "model.state": "",
    "model.border": "",
    "model.graphs": "",
    "model.gpu_kernels": "",
    "model.triton_kernels": "model.gpu_kernels",
    "model.weight_memory": "",
    "model.linear": "model.weight_memory",
    "model.kernel_conv": "",
    "model.relative": "",
    "model.lm": "model.config model.file_names model.segments model.state model.border model.linear model.relative "
    "model.gpu_kernels model.triton_kernels",
    "model.flow": "model.config model.failures model.file_names model.state model.border model.graphs model.linear "
    "model.relative model.kernel_conv model.gpu_kernels model.triton_kernels",
    "model.vocoder": "model.config model.failures model.file_names model.state model.border model.graphs "
    "model.kernel_conv model.gpu_kernels model.triton_kernels",
    "profile": "model.config",
    "settings": "profile",
    "choice": "settings",
    "text": "model.config model.file_names model.segments profile",
    "voices.voice_folder": "",
    "voices.voice_records": "voices.voice_folder",
    "voices": "model.config model.file_names voices.voice_folder voices.voice_records",
    "checkpoint": "model text voices",
    "device": "model checkpoint voices text profile settings choice",
    "core": "device model.config model.failures model.flow text voices profile settings",
    "hosting": "core device checkpoint voices text model.config model.file_names profile settings choice",
    "service": "hosting core text voices.voice_folder model.config model.file_names languages profile settings choice",
    "voice_service": "hosting voices.voice_folder model.file_names settings",
}
"""Which of its own folders and files each part of the CosyVoice2 engine may import: always downwards. What has no row,
such as its record and its commands, uses all of them. `core` imports `device`, never the other way. No network imports
another; only `device` and `checkpoint` import networks."""


@dataclass(frozen=True)
class Import:
    module: str
    line: int


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """Every import of a file, also the relative, the nested and the `importlib.import_module("...")` kind."""
    for node in ast.iter_child_nodes(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, line)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
                start = ".".join([*parents, *start.split(".")]).rstrip(".")
            for alias in node.names:
                # "from telephony_tts.runtime import clock" imports a module; "from x.y import name" is of x.y anyway.
                whole = f"{start}.{alias.name}"
                yield Import(whole if within_tree(ROOT.joinpath(*whole.split("."))) else start, line)
        elif isinstance(node, ast.Call) and node.args and is_import_call(node):
            yield Import(ast.unparse(node.args[0]).strip("'"), line)
        yield from imports(node, module, is_package)


def is_import_call(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("__import__", "import_module", "importlib.import_module")


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def within_any(module: str, parts: str) -> bool:
    return any(within(module, part) for part in parts.split())


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """What `source`, as the file of `module`, imports against the tables: "module:line imports X"."""
    found = imports(ast.parse(source), module, is_package)
    return [f"{module}:{item.line} imports {item.module}" for item in found if not may_import(module, item.module)]


def may_import(module: str, imported: str) -> bool:
    here = module.removeprefix(f"{PACKAGE}.")
    if here == FINDER:
        return True
    top = imported.partition(".")[0]
    if top in (PACKAGE, "sip_bridge"):
        return may_use(here, imported.removeprefix(f"{PACKAGE}."))
    if top in OUTSIDE or top not in sys.stdlib_module_names:
        return within_any(here, OUTSIDE.get(top, ""))
    if top in TASKS:
        return not within_any(here, WITHOUT_TASKS)
    return top not in IO or not within_any(here, WITHOUT_IO)


def may_use(here: str, there: str) -> bool:
    """Whether one of our modules may use another, both without the package's name."""
    if here in PROGRAMS:
        return True
    ours, theirs = part_of_cosyvoice2(here), part_of_cosyvoice2(there)
    if ours is not None and theirs is not None and ours != theirs:
        return within_any(theirs, PARTS[ours])
    for home in RESIDENTS:
        mine, other = resident(here, home), resident(there, home)
        if other is not None and within(here, home) and mine != other:
            # Two residents, or what residents share, which does not know them.
            return mine is not None and within_any(there, SHARED.get(mine, ""))
    if here.partition(".")[0] == there.partition(".")[0]:
        return True
    room = max((name for name in MAY_USE if within(here, name)), key=len, default=None)
    return room is not None and within_any(there, MAY_USE[room])


SHARED_FOLDERS = {"front_ends", "kernels"}
RESIDENTS = {
    home: {path.name for path in (ROOT / PACKAGE / home).iterdir() if (path / "__init__.py").is_file()} - SHARED_FOLDERS
    for home in ("engines", "doors")
}
"""The folders of rooms whose folders do not use each other."""


def resident(module: str, home: str) -> str | None:
    """The door or engine that a module belongs to; None if it belongs to none."""
    names = module.split(".")
    return names[1] if len(names) > 1 and names[0] == home and names[1] in RESIDENTS[home] else None


def part_of_cosyvoice2(module: str) -> str | None:
    """The part of the CosyVoice2 engine that a module is in, as `PARTS` names it; None outside it."""
    start = "engines.cosyvoice2."
    names = module.removeprefix(start) if module.startswith(start) else ""
    return max((name for name in PARTS if within(names, name)), key=len, default=None)


def name_problems(path: Path) -> list[str]:
    words = {word for part in path.parts for word in Path(part).stem.split("_")}
    return [f"{path}: {word!r} says nothing about what is in it" for word in sorted(words & FORBIDDEN_NAMES)]


FILES = sorted(path.relative_to(ROOT) for top in (PACKAGE, "sip_bridge") for path in (ROOT / top).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within_tree(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


# ---------------------------------------------------------------------- the tree


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_what_the_tables_allow(path: Path) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert violations(module_of(path), source, path.name == "__init__.py") == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_is_named_for_what_is_in_it(path: Path) -> None:
    assert name_problems(path) == []


def test_the_tables_have_no_missing_module() -> None:
    named = [*MAY_USE, *PROGRAMS, *WITHOUT_TASKS.split(), *WITHOUT_IO.split()]
    for parts in (*MAY_USE.values(), *SHARED.values(), *OUTSIDE.values()):
        named += parts.split()
    roots = {name: ROOT if within(name, "sip_bridge") else ROOT / PACKAGE for name in named}
    missing = [name for name, root in roots.items() if not within_tree(root.joinpath(*name.split(".")))]
    assert missing == [], "without a module"


def test_every_room_is_in_the_table_and_uses_only_rooms_before_it() -> None:
    rooms = {path.parts[1] for path in FILES if path.parts[0] == PACKAGE and len(path.parts) > 2}
    order = [name for name in MAY_USE if "." not in name]
    assert rooms == set(order) - {"__main__", "sip_bridge"}
    for at, name in enumerate(order):
        used = {each.partition(".")[0] for each in MAY_USE[name].split()}
        assert used <= set(order[:at]), f"{name} uses a room that stands behind it"


def test_every_part_of_the_cosyvoice2_engine_has_a_row_and_no_two_import_each_other() -> None:
    modules = {module_of(path).removeprefix(f"{PACKAGE}.") for path in FILES if path.name != "__init__.py"}
    parts = {part_of_cosyvoice2(module) for module in modules if within(module, "engines.cosyvoice2")} - {None}
    assert parts == set(PARTS), "a part without a row, or a row without a part"
    graph = {part: {each for each in PARTS if within_any(each, may)} for part, may in PARTS.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("model.lm") < order.index("device") < order.index("core") < order.index("service")


@pytest.mark.slow
def test_the_core_of_the_cosyvoice2_engine_loads_without_pytorch() -> None:
    """Checked in a new process: another test may have loaded PyTorch in this one."""
    program = f"import sys, {COSYVOICE2}.core.core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_the_architecture_page_names_every_folder_and_top_level_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = {f"{path.parent.name}/" for path in FILES if path.name == "__init__.py"}
    files = {path.name for path in FILES if path.parent == Path(PACKAGE)} - {"__init__.py"}
    assert [name for name in sorted(folders | files) if name not in text] == []


# --------------------------------------------------------------- the check itself


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("telephony_tts.session.playout", "import time"),
        ("telephony_tts.session.playout", "from time import monotonic_ns"),
        ("telephony_tts.app.serving", "import time"),
        ("telephony_tts.session.playout", "import asyncio"),
        ("telephony_tts.session.playout", "from telephony_tts.transport.server import serve"),
        ("telephony_tts.session.playout", "from telephony_tts.runtime import metrics"),
        ("telephony_tts.session.playout", "from telephony_tts.runtime import clock as c"),
        ("telephony_tts.session.playout", "from telephony_tts.engines.hibari.engine import Hibari"),
        ("telephony_tts.session.playout", "from telephony_tts.engines import hibari"),
        ("telephony_tts.session.playout", "from ..transport import server"),
        ("telephony_tts.session.playout", "from ..app import config"),
        ("telephony_tts.session.playout", "def f():\n    if x:\n        from websockets import connect"),
        ("telephony_tts.session.playout", "import soxr"),
        ("telephony_tts.wire.native", "import orjson"),
        ("telephony_tts.wire.native", "import importlib\nimportlib.import_module('numpy')"),
        ("telephony_tts.text.segmenter", "try:\n    import wetext\nexcept ImportError:\n    pass"),
        ("telephony_tts.runtime.errors", "from telephony_tts.ops.certificate import expires_s"),
        ("telephony_tts.doors.twilio.door", "from telephony_tts.doors.plivo.codec import PlivoCodec"),
        ("telephony_tts.transport.server", "from telephony_tts.doors.twilio.codec import TwilioCodec"),
        ("telephony_tts.http_api.application", "from telephony_tts.doors.openai.routes import openai_routes"),
        ("telephony_tts.doors.vendor_errors", "from telephony_tts.doors.deepgram.codec import refuse"),
        ("telephony_tts.runtime.logs", "import yaml"),
        ("telephony_tts.engines.fake.engine", "import hibari"),
        ("telephony_tts.engines.fake.engine", "from telephony_tts.engines.hibari.engine import Hibari"),
        ("telephony_tts.engines.fake.engine", "from telephony_tts.engines.hibari.model import Model"),
        ("telephony_tts.engines.hibari.engine", "from telephony_tts.audio.resampler import Resampler"),
        ("telephony_tts.engines.cosyvoice2.core.scheduler", "import torch"),
        ("telephony_tts.engines.cosyvoice2.core.core", "from torch import nn"),
        (f"{COSYVOICE2}.model.lm.lm", f"from {COSYVOICE2}.model.flow.layers import Conv"),
        (f"{COSYVOICE2}.model.flow.layers", f"from {COSYVOICE2}.model.lm.weights import RmsNorm"),
        (f"{COSYVOICE2}.model.lm.lm", f"from {COSYVOICE2}.text.generation import LmFeed"),
        (f"{COSYVOICE2}.device.runner", f"from {COSYVOICE2}.core.scheduler import Stage"),
        (f"{COSYVOICE2}.device.runner", f"if TYPE_CHECKING:\n    from {COSYVOICE2}.core.jobs import Job"),
        (f"{COSYVOICE2}.settings", f"from {COSYVOICE2}.core.scheduler import Stage"),
        (f"{COSYVOICE2}.core.core", f"from {COSYVOICE2}.hosting.loading import load"),
        (f"{COSYVOICE2}.text.prompting", f"from {COSYVOICE2}.service import CosyVoice2Engine"),
        (f"{COSYVOICE2}.voices.enrolment", f"from {COSYVOICE2}.checkpoint.weights import load_model_directory"),
        (f"{COSYVOICE2}.model.state", f"from {COSYVOICE2}.checkpoint import layout"),
        ("telephony_tts.transport.server", "from telephony_tts.engines.fake.engine import Fake"),
        ("telephony_tts.transport.server", "from telephony_tts.app.serving import serve"),
        ("telephony_tts.transport.server", "import numpy"),
        ("telephony_tts.transport.server", "import uvloop"),
        ("telephony_tts.bench.measures", "import asyncio"),
        ("telephony_tts.newcomer", "import numpy"),
        ("sip_bridge.ari.application", "from telephony_tts.session.session import Session"),
        ("sip_bridge.audiosocket.call", "from telephony_tts.transport.server import Server"),
        ("sip_bridge.speech.pacer", "import asyncio"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    (found,) = violations(module, source)
    assert found.startswith(f"{module}:")


def test_a_violation_names_the_line() -> None:
    source = "import re\n\ndef f():\n    import time\n"
    assert violations("telephony_tts.text.segmenter", source) == ["telephony_tts.text.segmenter:4 imports time"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("telephony_tts.runtime.clock", "import time"),
        ("telephony_tts.session.session", "from telephony_tts.session.turn import Turn\nfrom . import turn"),
        ("telephony_tts.session.session", "from telephony_tts.engines.api import Chunk\nimport numpy as np"),
        ("telephony_tts.session.session", "from telephony_tts.engines import api"),
        ("telephony_tts.audio.g711", "import audioop\nimport numpy"),
        ("telephony_tts.engines.hibari.engine", "from telephony_tts.engines.hibari.model import Model"),
        ("telephony_tts.engines.onnx_graph", "import onnxruntime"),
        ("telephony_tts.engines.hibari.model", "import hibari\nfrom telephony_tts.engines.words import words"),
        ("telephony_tts.engines.cosyvoice2.device.runner", "import torch"),
        ("telephony_tts.engines.cosyvoice2.model.lm.lm", "from torch import nn"),
        (f"{COSYVOICE2}.model.lm.weights", f"from {COSYVOICE2}.model.linear import Int8Linear"),
        (f"{COSYVOICE2}.core.core", f"from {COSYVOICE2}.device.requests import DecodeRow"),
        (f"{COSYVOICE2}.device.runner", f"from {COSYVOICE2}.model.graphs import Graphs"),
        ("telephony_tts.transport.server", "import asyncio\nfrom websockets.asyncio.server import serve"),
        ("telephony_tts.app.engines", "from telephony_tts.engines.hibari.engine import Hibari"),
        ("sip_bridge.ari.application", "import asyncio\nfrom telephony_tts.wire.messages import Say"),
        ("sip_bridge.audiosocket.call", "from sip_bridge.speech.pacer import Pacer\nimport numpy"),
        ("sip_bridge.server_leg", "from telephony_tts.transport.connection import DialledConnection"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_relative_imports_of_a_package_file_are_resolved() -> None:
    assert violations("telephony_tts.session", "from .turn import Turn", is_package=True) == []
    assert violations("telephony_tts.session", "from ..transport import server", is_package=True) != []


def test_vague_file_names_are_found() -> None:
    assert name_problems(Path("telephony_tts/text/utils.py")) and name_problems(Path("telephony_tts/common/x.py"))
    assert name_problems(Path("telephony_tts/session/turn_manager.py"))
    assert name_problems(Path("telephony_tts/session/database.py")) == []
