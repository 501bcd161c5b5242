"""Who may import whom (ARCHITECTURE.md), held by reading the source.

The table is data, and `violations()` checks one file against it. The tests check the tree, and `violations()` itself.
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
"""With `time`: the modules that pure code, without I/O, clock and tasks, does not need."""


@dataclass(frozen=True)
class Row:
    """What a part may import: our own modules, third-party packages, and the standard modules that it may not."""

    ours: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    not_stdlib: frozenset[str] = frozenset()


def row(ours: str = "", outside: str = "", not_stdlib: frozenset[str] = frozenset()) -> Row:
    return Row(frozenset(ours.split()), frozenset(outside.split()), not_stdlib)


EVERYTHING = row("*", "*")

# The longest name that a module's own begins with decides. A package may always import from itself.
TABLE: dict[str, Row] = {
    "telephony_tts": row(),
    "telephony_tts.runtime.errors": row(),
    "telephony_tts.runtime.clock": row(),
    "telephony_tts.runtime.daemon_pool": row("runtime.errors"),
    "telephony_tts.runtime.schema": row(),
    "telephony_tts.runtime.metrics": row(outside="prometheus_client"),
    "telephony_tts.runtime.logs": row("runtime.errors runtime.clock"),
    "telephony_tts.ops.certificate": row(),
    # Traces of turns; the package is an extra, imported when a collector is configured.
    "telephony_tts.app.tracing": row("ops.logs runtime.clock session transport wire", "opentelemetry"),
    "telephony_tts.runtime.settings_tree": row("runtime.errors ops.schema", "yaml"),
    "telephony_tts.app.config": row(
        "runtime.errors ops.schema ops.settings_tree session.settings transport.settings recording.settings engines.remote.addresses "
        "engines.others.settings"
    ),
    "telephony_tts.runtime.event_loop": row("runtime.clock ops.logs runtime.name_lookup", "uvloop"),
    "telephony_tts.runtime.name_lookup": row(),
    "telephony_tts.ops.watched_file": row("runtime.errors ops.logs ops.metrics"),
    # Who may use the server. `key` decides; `key_file` reads.
    "telephony_tts.keys": row("runtime.errors ops.schema ops.settings_tree"),
    "telephony_tts.ops.keys.key": row(not_stdlib=TASKS | IO),
    # Which calls get what, and what came of it. `arms` and `sums` decide.
    "telephony_tts.experiments": row("runtime.errors ops.schema ops.settings_tree session.settings ops.keys.key"),
    "telephony_tts.experiments.arms": row("ops.keys.key", not_stdlib=TASKS | IO),
    "telephony_tts.experiments.sums": row(not_stdlib=TASKS | IO),
    "telephony_tts.experiments.running": row("ops.logs ops.metrics ops.keys.key", not_stdlib=TASKS | IO),
    # Reads lexicon files for the app; pypinyin and re2 are extras, imported when a file asks for them.
    "telephony_tts.ops.lexicon_files": row("runtime.errors ops.logs ops.metrics text.lexicon ops.watched_file", "yaml pypinyin re2"),
    "telephony_tts.text": row("runtime.errors", not_stdlib=TASKS | IO),
    "telephony_tts.wire": row("runtime.errors", not_stdlib=TASKS | IO),
    "telephony_tts.audio": row("runtime.errors", "numpy soxr audioop", TASKS),
    # PyAV, imported when a format needs it.
    "telephony_tts.audio.containers": row("runtime.errors", "numpy av", TASKS),
    "telephony_tts.audio.g722": row("runtime.errors", "numpy av", TASKS),
    # The network that detects the caller's voice runs where the audio is.
    # Sounds in files that only FFmpeg reads.
    "telephony_tts.audio.sound_file": row("runtime.errors", "numpy av", TASKS),
    "telephony_tts.audio.voice_activity": row("runtime.errors", "numpy onnxruntime", TASKS),
    "telephony_tts.session": row("runtime.errors ops.schema text audio wire engines.api engines.inserts", "numpy", TASKS | IO),
    "telephony_tts.engines": row("runtime.errors ops.metrics runtime.clock runtime.daemon_pool", "numpy"),
    "telephony_tts.engines.hibari.engine": row("runtime.errors ops.metrics runtime.clock", "numpy hibari onnxruntime"),
    "telephony_tts.engines.kokoro.engine": row("runtime.errors ops.metrics runtime.clock engines.cosyvoice2.kernels", "numpy onnxruntime"),
    "telephony_tts.engines.front_ends.english": row(outside="hibari"),
    "telephony_tts.engines.front_ends.mandarin": row(outside="pypinyin", not_stdlib=TASKS | IO),
    "telephony_tts.engines.front_ends.japanese": row(outside="pyopenjtalk", not_stdlib=TASKS | IO),
    "telephony_tts.engines.kokoro.reading": row(not_stdlib=TASKS | IO),
    "telephony_tts.engines.kokoro.styles": row("runtime.errors", "numpy", TASKS),
    "telephony_tts.engines.onnx_graph": row(outside="numpy", not_stdlib=TASKS | IO),
    "telephony_tts.engines.espeak.engine": row("runtime.errors ops.metrics runtime.clock", "numpy espeakng_loader"),
    "telephony_tts.engines.front_ends.ipa_by_espeak": row("runtime.errors", "espeakng_loader"),
    "telephony_tts.engines.latin_language": row("runtime.errors", "py3langid"),
    "telephony_tts.engines.phrase_store": row("runtime.errors ops.metrics runtime.clock runtime.daemon_pool", "numpy diskcache"),
    # An engine of another process. Only the two ends of the connection know gRPC; what decides is pure.
    "telephony_tts.engines.remote": row("runtime.errors runtime.clock ops.logs", "numpy", TASKS | IO),
    "telephony_tts.engines.remote.outgoing": row(),
    "telephony_tts.engines.remote.client": row("runtime.errors runtime.clock ops.logs"),
    "telephony_tts.engines.remote.connection": row("runtime.errors runtime.clock ops.logs", "grpc"),
    "telephony_tts.engines.remote.server": row("runtime.errors runtime.clock ops.logs", "grpc"),
    "telephony_tts.engines.remote.voice_server": row("runtime.errors ops.logs", "grpc"),
    "telephony_tts.engines.remote.voice_client": row("runtime.errors", "grpc"),
    "telephony_tts.engines.remote.tls": row("runtime.errors", not_stdlib=TASKS),
    # Ray is in two programs of their own: the replica and the watcher. A front imports none of them.
    "telephony_tts.engines.ray": row("runtime.errors runtime.clock ops.logs", not_stdlib=TASKS | IO),
    "telephony_tts.engines.ray.engine": row("runtime.errors runtime.clock ops.logs"),
    "telephony_tts.engines.ray.reach": row(outside="ray"),
    "telephony_tts.engines.ray.watcher": row("runtime.clock runtime.errors"),
    "telephony_tts.engines.ray.app": row("app.server app.config runtime.clock ops.logs", "ray"),
    # Speech servers of other projects. What decides and what reads bytes is pure; each client is an extra.
    "telephony_tts.engines.others": row("runtime.errors ops.schema", not_stdlib=TASKS | IO),
    "telephony_tts.engines.others.speech_server": row("runtime.errors audio.sound_file", "numpy"),
    "telephony_tts.engines.others.speech_request": row("runtime.errors"),
    "telephony_tts.engines.others.other_engine": row("runtime.errors runtime.clock ops.logs", "numpy"),
    "telephony_tts.engines.others.encryption": row("runtime.errors"),
    "telephony_tts.engines.others.http_speech": row("runtime.errors", "httpx2"),
    "telephony_tts.engines.others.omni_socket": row("runtime.errors", "websockets"),
    "telephony_tts.engines.others.protobuf_schema": row(outside="google"),
    "telephony_tts.engines.others.grpc_speech": row("runtime.errors", "grpc"),
    "telephony_tts.engines.others.cosyvoice_grpc": row("runtime.errors", "grpc"),
    "telephony_tts.engines.others.triton": row("runtime.errors", "grpc numpy"),
    # PyTorch is in the folders device, model, checkpoint and voices; the others decide without it.
    "telephony_tts.engines.cosyvoice2": row("runtime.errors ops.metrics runtime.clock"),
    "telephony_tts.engines.cosyvoice2.voice_service": row("runtime.errors runtime.clock runtime.daemon_pool"),
    "telephony_tts.engines.cosyvoice2.core": row("runtime.errors ops.metrics runtime.clock", not_stdlib=IO),
    "telephony_tts.engines.cosyvoice2.text": row("runtime.errors runtime.clock", not_stdlib=TASKS | IO),
    "telephony_tts.engines.cosyvoice2.text.tokenizer": row("runtime.errors", "tokenizers", TASKS),
    "telephony_tts.engines.cosyvoice2.text.whisper_tokenizer": row("runtime.errors", "tokenizers", TASKS),
    "telephony_tts.engines.cosyvoice2.hosting": row("runtime.errors ops.metrics runtime.clock"),
    "telephony_tts.engines.cosyvoice2.hosting.loading": row("runtime.errors ops.metrics runtime.clock", "torch"),
    "telephony_tts.engines.cosyvoice2.hosting.choosing": row("runtime.errors ops.metrics runtime.clock", "torch"),
    "telephony_tts.engines.cosyvoice2.device": row("runtime.errors ops.metrics runtime.clock", "numpy torch"),
    # vLLM, imported when it is the language model.
    "telephony_tts.engines.cosyvoice2.device.vllm_steps": row("runtime.errors", "torch vllm"),
    "telephony_tts.engines.cosyvoice2.device.vllm_plugin": row(outside="torch vllm"),
    "telephony_tts.engines.cosyvoice2.kernels": row("runtime.errors"),
    "telephony_tts.engines.cosyvoice2.model": row("runtime.errors runtime.clock", "numpy torch"),
    "telephony_tts.engines.cosyvoice2.model.triton_kernels": row(outside="torch triton"),
    "telephony_tts.engines.cosyvoice2.model.flow.triton_kernels": row(outside="torch triton"),
    "telephony_tts.engines.cosyvoice2.model.vocoder.triton_kernels": row(outside="torch triton"),
    "telephony_tts.engines.cosyvoice2.model.file_names": row(not_stdlib=TASKS | IO),
    "telephony_tts.engines.cosyvoice2.checkpoint": row("runtime.errors ops.metrics runtime.clock", "numpy torch safetensors"),
    "telephony_tts.engines.cosyvoice2.checkpoint.sizes": row("runtime.errors ops.metrics runtime.clock", "torch yaml"),
    "telephony_tts.engines.cosyvoice2.checkpoint.hubs": row("runtime.errors ops.metrics runtime.clock", "huggingface_hub modelscope_hub"),
    "telephony_tts.engines.cosyvoice2.checkpoint.download": row("runtime.errors ops.metrics runtime.clock", "tqdm"),
    "telephony_tts.engines.cosyvoice2.voices": row("runtime.errors ops.metrics runtime.clock", "numpy torch safetensors"),
    "telephony_tts.engines.cosyvoice2.voices.noise_reduction": row("runtime.errors ops.metrics runtime.clock", "numpy torch av"),
    "telephony_tts.engines.cosyvoice2.voices.voice": row(
        "runtime.errors ops.metrics runtime.clock audio.wav", "numpy torch onnxruntime soundfile"
    ),
    "telephony_tts.http_api": row(
        "runtime.errors runtime.clock runtime.daemon_pool ops.logs ops.metrics engines.api session audio wire transport ops.keys.key recording "
        "ops.lexicon_files text",
        "anyio fastapi starlette uvicorn h11 pydantic websockets numpy",
    ),
    # The pure part decides what is recorded; writer, folder and live write it, and the others read it.
    "telephony_tts.recording": row("runtime.errors audio wire session", "numpy", TASKS | IO),
    "telephony_tts.recording.settings": row("ops.schema", not_stdlib=TASKS | IO),
    "telephony_tts.recording.folder": row("runtime.errors", not_stdlib=TASKS),
    "telephony_tts.recording.listening": row("session wire", not_stdlib=TASKS | IO),
    "telephony_tts.recording.writer": row("runtime.clock ops.logs ops.metrics"),
    "telephony_tts.recording.live": row("runtime.clock ops.logs ops.metrics session wire"),
    "telephony_tts.recording.replay": row("runtime.errors audio.wav", "numpy", TASKS),
    "telephony_tts.recording.chart": row("runtime.errors", "numpy matplotlib", TASKS),
    "telephony_tts.transport": row(
        "runtime.errors ops.metrics runtime.clock ops.schema wire session engines.api engines.failover ops.logs recording ops.keys.key experiments "
        "runtime.event_loop",
        "websockets",
    ),
    # Writes the formats that clients of other vendors ask for.
    "telephony_tts.transport.vendor_leg": row(
        "runtime.errors ops.metrics runtime.clock ops.schema wire session engines.api ops.logs recording audio.containers audio.encoder ops.keys.key",
        "websockets",
    ),
    # Reads files in threads.
    "telephony_tts.transport.sound_store": row("runtime.errors ops.metrics runtime.daemon_pool audio transport.settings"),
    # The processes of one server. They share no memory but the runtime folder's.
    "telephony_tts.fronts": row("runtime.errors ops.logs ops.metrics runtime.clock transport.fronts"),
    "telephony_tts.fronts.socket_mover": row("ops.logs runtime.event_loop transport.fronts"),
    "telephony_tts.fronts.spreading": row("transport.fronts", not_stdlib=TASKS | IO),
    "telephony_tts.fronts.restarts": row("runtime.clock", not_stdlib=TASKS | IO),
    "telephony_tts.fronts.metrics_of_all": row(outside="prometheus_client", not_stdlib=TASKS | IO),
    "telephony_tts.fronts.supervisor": row("runtime.errors ops.logs runtime.clock runtime.event_loop"),
    # A composition root of its own: a front is the whole server.
    "telephony_tts.fronts.front_process": EVERYTHING,
    "telephony_tts.fronts.shared_engine_process": EVERYTHING,
    "telephony_tts.fronts.shared_voices": row("runtime.errors engines.api"),
    # Loads that network beside the event loop and hands it to sessions.
    "telephony_tts.transport.voice_model": row("runtime.clock runtime.errors ops.logs runtime.daemon_pool audio.voice_activity"),
    "telephony_tts.bench": row("runtime.errors runtime.clock engines.api"),
    "telephony_tts.bench.measures": row(not_stdlib=TASKS | IO),
    "telephony_tts.bench.audible": row("engines.api", "numpy", TASKS | IO),
    # The engine itself says why it cannot use a GPU.
    "telephony_tts.bench.machine": row("runtime.errors runtime.clock engines.cosyvoice2.hosting.loading", "torch"),
    "telephony_tts.bench.subject": row("runtime.errors engines.cosyvoice2"),
    "telephony_tts.bench.plot": row("runtime.errors", "matplotlib"),
    "telephony_tts.app.offline": row("runtime.errors wire session engines.api engines.catalog", not_stdlib=TASKS),
    "telephony_tts.app.server": EVERYTHING,
    "telephony_tts.__main__": row("cli"),
    "telephony_tts.cli.main": EVERYTHING,
    "telephony_tts.cli.settings": row("runtime.errors", "yaml"),
    "telephony_tts.cli.cosyvoice2": EVERYTHING,
    "telephony_tts.cli.kokoro": EVERYTHING,
    "telephony_tts.cli.bench": EVERYTHING,
    "telephony_tts.cli.lexicon": EVERYTHING,
    "telephony_tts.cli.engine": EVERYTHING,
    "telephony_tts.cli.experiments": EVERYTHING,
    "telephony_tts.cli.engine_status": EVERYTHING,
    "telephony_tts.cli.ray": EVERYTHING,
    "telephony_tts.app.announcement": EVERYTHING,
    "telephony_tts.cli.say": EVERYTHING,
    "telephony_tts.cli.phrases": EVERYTHING,
    "telephony_tts.cli.replay": EVERYTHING,
    "telephony_tts.app.doctor": EVERYTHING,
    # A WebSocket used synchronously is one thing, whichever process holds it: transport.connection.
    "sip_bridge": row(
        "wire audio runtime.errors runtime.clock ops.metrics ops.logs runtime.event_loop transport.connection transport.request_head "
        "transport.unserved",
        "numpy websockets prometheus_client",
    ),
    "sip_bridge.audiosocket.frames": row(not_stdlib=TASKS | IO),
    "sip_bridge.speech.pacer": row("runtime.clock", not_stdlib=TASKS | IO),
    "sip_bridge.speech.speech_queue": row("audio", "numpy", TASKS | IO),
    "sip_bridge.config": row("ops.schema ops.settings_tree"),
    "sip_bridge.freeswitch.config": row("ops.schema", not_stdlib=TASKS | IO),
    "sip_bridge.freeswitch.esl_messages": row(not_stdlib=TASKS | IO),
    "sip_bridge.freeswitch.file_player": row("runtime.clock", not_stdlib=TASKS | IO),
    "sip_bridge.ari.config": row("ops.schema", not_stdlib=TASKS | IO),
    "sip_bridge.ari.messages": row(not_stdlib=TASKS | IO),
    "sip_bridge.ari.formats": row(not_stdlib=TASKS | IO),
    "sip_bridge.ari.leftovers": row(not_stdlib=TASKS | IO),
    "sip_bridge.rtp.codec": row("audio", "numpy", TASKS | IO),
    "sip_bridge.rtp.concealment": row("audio", "numpy", TASKS | IO),
    "sip_bridge.rtp.packets": row("audio runtime.clock", not_stdlib=TASKS | IO),
    "sip_bridge.app": row("runtime.errors ops.logs runtime.event_loop transport.unserved"),
    "sip_bridge.cli": row("runtime.errors cli_settings"),
}

COSYVOICE2 = f"{PACKAGE}.engines.cosyvoice2"
ROOMS: dict[str, str] = {
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
    "kernels": "",
    "model.weight_memory": "",
    "model.linear": "kernels model.weight_memory",
    "model.kernel_conv": "kernels",
    "model.relative": "",
    "model.lm": "model.config model.file_names model.segments model.state model.border model.linear model.relative "
    "model.gpu_kernels kernels",
    "model.flow": "model.config model.failures model.file_names model.state model.border model.graphs model.linear "
    "model.relative model.kernel_conv model.gpu_kernels model.triton_kernels kernels",
    "model.vocoder": "model.config model.failures model.file_names model.state model.border model.graphs "
    "model.kernel_conv model.gpu_kernels model.triton_kernels kernels",
    "profile": "model.config",
    "settings": "profile",
    "choice": "settings",
    "text": "model.config model.file_names model.segments profile",
    "voices.voice_folder": "",
    "voices.voice_records": "voices.voice_folder",
    "voices": "model.config model.file_names voices.voice_folder voices.voice_records",
    "checkpoint": "model text voices",
    "device": "model checkpoint voices text profile settings choice kernels",
    "core": "device model.config model.failures model.flow text voices profile settings",
    "hosting": "core device checkpoint voices text model.config model.file_names profile settings choice kernels",
    "service": "hosting core text voices.voice_folder model.config model.file_names languages profile settings choice",
    "voice_service": "hosting voices.voice_folder model.file_names settings",
}
"""Which of its own folders and files each part of the CosyVoice2 engine may import: always downwards. `core` imports
`device`, never the other way. No network imports another; only `device` and `checkpoint` import networks."""

ENGINES = ("hibari", "kokoro", "espeak", "fake", "cosyvoice2", "ray", "others")
"""Engines may share what lies beside them, not reach into each other. kokoro is the exception: it computes with the
kernels of cosyvoice2, which need no PyTorch. `remote` is the transport that `ray` uses too."""


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
            # "from telephony_tts import clock" imports the module clock; "from x.y import name" is of x.y anyway.
            of_folder = start in (PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS_OF_MODULES), "sip_bridge")
            for alias in node.names:
                yield Import(f"{start}.{alias.name}" if of_folder else start, line)
        elif isinstance(node, ast.Call) and node.args and is_import_call(node):
            yield Import(ast.unparse(node.args[0]).strip("'"), line)
        yield from imports(node, module, is_package)


def is_import_call(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("__import__", "import_module", "importlib.import_module")


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """What `source`, as the file of `module`, imports against the table: "module:line imports X"."""
    # hibari_model.py belongs to hibari.py: an engine's files share its row.
    alike = module
    for engine in ENGINES:
        if module.startswith(f"{PACKAGE}.engines.{engine}_"):
            alike = f"{PACKAGE}.engines.{engine}"
    allowed = TABLE[max((name for name in TABLE if within(alike, name)), key=len)]
    own = "sip_bridge" if within(module, "sip_bridge") else ".".join(module.split(".")[:2])
    found = []
    for item in imports(ast.parse(source), module, is_package):
        if not may_import(alike, own, allowed, item):
            found.append(f"{module}:{item.line} imports {item.module}")
    return found


def room(module: str) -> str | None:
    """The part of the CosyVoice2 engine that a module is in, as `ROOMS` names it; None outside it."""
    names = module.removeprefix(COSYVOICE2 + ".").split(".") if within(module, COSYVOICE2) else []
    return max((name for name in ROOMS if within(".".join(names), name)), key=len, default=None)


def may_import(module: str, own: str, allowed: Row, item: Import) -> bool:
    top, _, rest = item.module.partition(".")
    ours, theirs = room(module), room(item.module)
    if ours is not None and theirs is not None and ours != theirs:
        return any(within(theirs, name) for name in ROOMS[ours].split())
    if top == "time":
        return module == f"{PACKAGE}.runtime.clock"
    if top in (PACKAGE, "sip_bridge"):
        if allowed is EVERYTHING:
            return True
        if module.startswith(f"{PACKAGE}.engines.") and item.module.startswith(f"{PACKAGE}.engines."):
            engine = item.module.split(".")[2].split("_")[0]
            is_shared = any(within(rest, part) for part in allowed.ours)
            return engine not in ENGINES or engine == module.split(".")[2] or is_shared
        in_own_package = own != PACKAGE and within(item.module, own) and own in packages()
        return in_own_package or any(within(rest, part) for part in allowed.ours)
    if top in sys.stdlib_module_names and top != "audioop":
        return top not in allowed.not_stdlib
    return top in allowed.outside or allowed is EVERYTHING


def packages() -> set[str]:
    return {"sip_bridge"} | {f"{PACKAGE}.{init.parent.name}" for init in (ROOT / PACKAGE).glob("*/__init__.py")}


def name_problems(path: Path) -> list[str]:
    words = {word for part in path.parts for word in Path(part).stem.split("_")}
    return [f"{path}: {word!r} says nothing about what is in it" for word in sorted(words & FORBIDDEN_NAMES)]


FILES = sorted(path.relative_to(ROOT) for top in (PACKAGE, "sip_bridge") for path in (ROOT / top).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---------------------------------------------------------------------- the tree


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_what_the_table_allows(path: Path) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert violations(module_of(path), source, path.name == "__init__.py") == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_is_named_for_what_is_in_it(path: Path) -> None:
    assert name_problems(path) == []


def test_the_table_has_no_missing_module() -> None:
    of_ours = [name for name in TABLE if within(name, PACKAGE)]
    missing = [name for name in of_ours if not within_tree(ROOT.joinpath(*name.split(".")))]
    assert missing == [], "rows without a module"


def test_every_part_of_the_cosyvoice2_engine_has_a_row_and_no_two_import_each_other() -> None:
    modules = {module_of(path) for path in FILES if path.name != "__init__.py"}
    parts = {room(module) for module in modules if within(module, COSYVOICE2)}
    assert parts == set(ROOMS), "a part without a row, or a row without a part"
    graph = {
        part: {each for name in may.split() for each in ROOMS if within(each, name)}
        for part, may in ROOMS.items()
    }
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("model.lm") < order.index("device") < order.index("core") < order.index("service")


@pytest.mark.slow
def test_the_core_of_the_cosyvoice2_engine_loads_without_pytorch() -> None:
    """Checked in a new process: another test may have loaded PyTorch in this one."""
    program = f"import sys, {COSYVOICE2}.core.core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def within_tree(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_the_architecture_page_names_every_folder_and_top_level_file() -> None:
    page = ROOT / "ARCHITECTURE.md"
    text = page.read_text(encoding="utf-8") if page.exists() else None
    if text is not None:
        folders = {f"{path.parent.name}/" for path in FILES if path.name == "__init__.py"}
        files = {path.name for path in FILES if path.parent == Path(PACKAGE)} - {"__init__.py"}
        assert [name for name in sorted(folders | files) if name not in text] == []


# --------------------------------------------------------------- the check itself


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("telephony_tts.session.playout", "import time"),
        ("telephony_tts.session.playout", "from time import monotonic_ns"),
        ("telephony_tts.app.server", "import time"),
        ("telephony_tts.session.playout", "import asyncio"),
        ("telephony_tts.session.playout", "from telephony_tts.transport.server import serve"),
        ("telephony_tts.session.playout", "from telephony_tts import metrics"),
        ("telephony_tts.session.playout", "from telephony_tts import clock as c"),
        ("telephony_tts.session.playout", "from telephony_tts.engines.hibari.engine import Hibari"),
        ("telephony_tts.session.playout", "from telephony_tts.engines import hibari"),
        ("telephony_tts.session.playout", "from ..transport import server"),
        ("telephony_tts.session.playout", "from .. import config"),
        ("telephony_tts.session.playout", "def f():\n    if x:\n        from websockets import connect"),
        ("telephony_tts.session.playout", "import soxr"),
        ("telephony_tts.wire.native", "import orjson"),
        ("telephony_tts.wire.native", "import importlib\nimportlib.import_module('numpy')"),
        ("telephony_tts.text.segmenter", "try:\n    import wetext\nexcept ImportError:\n    pass"),
        ("telephony_tts.runtime.errors", "from telephony_tts.runtime.clock import monotonic_ns"),
        ("telephony_tts.app.config", "from telephony_tts.runtime.logs import setup"),
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
        ("telephony_tts.transport.server", "from telephony_tts.app.server import App"),
        ("telephony_tts.transport.server", "import numpy"),
        ("telephony_tts.bench.measures", "from telephony_tts import clock"),
        ("telephony_tts.bench.load", "from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine"),
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
        ("telephony_tts.audio.g711", "import audioop\nimport soxr"),
        ("telephony_tts.engines.hibari.engine", "from telephony_tts.engines.hibari.model import Model\nimport onnxruntime"),
        ("telephony_tts.engines.hibari.model", "import hibari\nfrom telephony_tts.engines.words import words"),
        ("telephony_tts.engines.cosyvoice2.device.runner", "import torch"),
        ("telephony_tts.engines.cosyvoice2.model.lm.lm", "from torch import nn"),
        (f"{COSYVOICE2}.model.lm.weights", f"from {COSYVOICE2}.model.linear import Int8Linear"),
        (f"{COSYVOICE2}.core.core", f"from {COSYVOICE2}.device.requests import DecodeRow"),
        (f"{COSYVOICE2}.device.runner", f"from {COSYVOICE2}.model.graphs import Graphs"),
        ("telephony_tts.transport.server", "import asyncio\nfrom websockets.asyncio.server import serve"),
        ("telephony_tts.app.server", "import uvloop\nfrom telephony_tts.engines.hibari.engine import Hibari"),
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
