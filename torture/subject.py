"""The processes under test: a server of one of the shapes of `histories`, with its engine, its bridge or Asterisk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.histories import COSYVOICE2
from torture.name_server import ENGINE, VOICES, NameServer, speech_server
from torture.places import IN_MEMORY, ROOT
from torture.sandbox import NO_TORCH, has_torch, own_resolver
from torture.sound_server import FETCH_S, SoundServer
from torture.surroundings import PING_S

_START_S = 60.0
_DRAIN_S = 10.0
_LOOK_S = 10.0
SETTINGS = (
    "server.port=0", "server.drain_s=3", "server.slow_reader_s=1", f"server.ping_interval_s={PING_S}",
    "engines.default=fake", "engines.hibari.workers=0", "engines.espeak.workers=0", "engines.routes={}",
    "limits.calls=1000", "limits.max_frame_lateness_ms=10000",
    "speech.detect_language=false", "limits.call_claim_s=10", "vendors.rejoin_s=1", "log.format=json",
)  # fmt: skip
_DESCRIPTORS = 220
_SOUNDS_MB = 1
"""The store of sounds is full after some seconds, so that what it keeps is no growth of memory."""
_ALL_SOUNDS_MB, _FEW_ADDRESSES = 64, 2
"""All sounds that calls play fit in so much, where each kind of sound has so few addresses."""
_PATHS = (ROOT, ROOT / "benchmarks", ROOT / "torture" / "inside")
"""Of the processes under test. The last one has `sitecustomize`, which they import by themselves."""
_TOKEN = "the-token-of-the-engine"


@dataclass(frozen=True)
class Holdings:
    """What the server holds, and (descriptors, threads) of the other processes, by their names and numbers."""

    descriptors: int
    threads: int
    tasks: int
    resident_kib: int
    files: int
    others: dict[str, tuple[int, int]] = field(default_factory=dict)


class Subject:
    """Use as a context manager. `port` is where bots and carriers connect, `media_port` where the bridge awaits
    Asterisk. `asterisk` is a real one."""

    def __init__(self, shape: str, *, defects: Sequence[str] = (), keeps_sounds: bool = False) -> None:
        """`keeps_sounds`: the server keeps all sounds that calls play, so that its memory does not swing by what it
        loads again. Then few sounds are fetched."""
        self.shape = shape
        self._keeps_sounds = keeps_sounds
        self._defects = defects
        self.folder = Path(tempfile.mkdtemp(prefix="torture-"))
        self.runtime: Path
        """What fronts share."""
        self.port = self.media_port = 0
        self.server: subprocess.Popen[str]
        self.bridge: subprocess.Popen[str] | None = None
        self.engine: subprocess.Popen[str] | None = None
        self.engine_port = 0
        self.names: NameServer | None = None
        """The DNS server that the server asks; None if it asks that of the machine."""
        self.disk: Path | None = None
        self.asterisk: Any = None
        self.sounds: SoundServer
        self._asterisk_stack = ExitStack()
        self._stack = ExitStack()
        self._logs: list[Path] = []
        self.recordings = self.folder / "recordings"
        (self.folder / "tmp").mkdir()
        (self.folder / "inside").mkdir()

    def __enter__(self) -> Subject:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.sounds = self._stack.enter_context(SoundServer(_FEW_ADDRESSES) if self._keeps_sounds else SoundServer())
        settings = [*SETTINGS, f'sounds.urls=["{self.sounds.url}"]', f"sounds.fetch_s={FETCH_S}",
                    f"sounds.memory_mb={_ALL_SOUNDS_MB if self._keeps_sounds else _SOUNDS_MB}",
                    f"recordings.folder={self.recordings}", "recordings.keep_mb=0"]  # fmt: skip
        flags: list[str] = []
        if self.shape == "engine":
            self.start_engine()
            target = f"engines.remote.target=unix:{self.folder}/engine.sock"
            settings += ["engines.default=remote", target, f"engines.remote.token={_TOKEN}"]
        if self.shape == "fronts":
            # The server keeps this folder in memory too, unless it is told otherwise.
            made = tempfile.TemporaryDirectory(prefix="torture-", dir=IN_MEMORY)
            self.runtime = Path(self._stack.enter_context(made))
            settings += ["server.processes=2", f"server.runtime_folder={self.runtime}"]
        if self.shape == "small":
            flags = ["--descriptors", str(_DESCRIPTORS)]
            if (disk := small_disk(self.folder / "disk")) is not None:
                self.disk = self.recordings = disk
                settings += [f"recordings.folder={disk}", "recordings.calls=all"]
        prefix: Sequence[str] = ()
        if self.shape == "names":
            prefix, self.names = self._stack.enter_context(own_resolver(self.folder / "resolv.conf"))
            settings += ["bot.url=ws://bot.torture.example:9/", "bot.connect_timeout_s=2"]
        if self.names is not None:
            settings += self._far_engines()
        if self.shape == COSYVOICE2:
            settings += self._cosyvoice2()
        words = [word for setting in settings for word in ("--set", setting)]
        flags += self._defect_flags()
        self.server = self._run("server", "-m", "torture.subject_server", *flags, *words, prefix=prefix)
        self.port = self._port(self.server, r"port (\d+)")
        if self.shape in ("bridge", "asterisk"):
            self.start_bridge()
        if self.shape == "asterisk":
            self.start_asterisk()

    def _defect_flags(self) -> list[str]:
        return [word for defect in self._defects for word in ("--defect", defect)]

    def _far_engines(self) -> Sequence[str]:
        """Start engines that are found by their names. The settings that speak Chinese and German with them."""
        self.start_engine()
        port = self._stack.enter_context(speech_server())
        far = {
            "kind": "openai", "url": f"http://{VOICES}:{port}", "voices": "{tone: {}}", "languages": "[de]",
            # So it is never full, which would refuse new calls.
            "slots": "1000",
        }  # fmt: skip
        return (
            "engines.routes={zh: remote, de: far}", f"engines.remote.target={ENGINE}:{self.engine_port}",
            f"engines.remote.token={_TOKEN}",
            *(f"engines.others.far.{name}={value}" for name, value in far.items()),
        )  # fmt: skip

    def _cosyvoice2(self) -> Sequence[str]:
        """Write a tiny random model. The settings that speak with it."""
        if not has_torch():
            raise SystemExit(f"--shape {COSYVOICE2}: {NO_TORCH}")
        model = self.folder / "model"
        writing = self._run("model", "-m", "telephony_tts", "models", "random", str(model))
        self._line(writing, r"(a random tiny checkpoint)")
        _forget(writing)
        own = {"model": model, "dtype": "float32", "workers": 1, "threads": 1, "slots": 8, "flow_steps": 2}
        return ("engines.default=cosyvoice2", *(f"engines.cosyvoice2.{name}={value}" for name, value in own.items()))

    def cosyvoice2_pid(self) -> int:
        """CosyVoice2's own process, which the server starts again when it ends."""
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s:
            for pid in children(self.server.pid):
                with suppress(OSError):
                    if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
            time.sleep(0.01)
        raise RuntimeError("CosyVoice2 has no process")

    def start_engine(self) -> None:
        """Start the engine's process, or another one at the same place after it was killed."""
        _forget(self.engine)
        place = f"unix:{self.folder}/engine.sock"
        if self.names is not None:
            self.engine_port = self.engine_port or free_port()
            place = f"127.0.0.1:{self.engine_port}"
        self.engine = self._run(
            "engine", "-m", "telephony_tts", "engine", "serve", "--set", "engines.default=fake",
            "--set", f"engines.remote.token={_TOKEN}", "--listen", place,
        )  # fmt: skip
        self._line(self.engine, r"engine fake (with)")

    def start_bridge(self) -> None:
        """Start the bridge, or another one on the same port after it was killed."""
        _forget(self.bridge)
        settings = (f"server.url=ws://127.0.0.1:{self.port}/media/native", f"audiosocket.port={self.media_port}",
                    "http.port=0", "drain_s=1")  # fmt: skip
        words = [word for setting in settings for word in ("--set", setting)]
        self.bridge = self._run("bridge", "-m", "torture.subject_bridge", *self._defect_flags(), *words)
        self.media_port = self._port(self.bridge, r"127\.0\.0\.1:(\d+)(?= )")

    def start_asterisk(self) -> None:
        """Start an Asterisk with the shipped dialplan, or another one on the same port after it was killed."""
        from harness.pbx_peers import shipped_asterisk

        sip_port = None if self.asterisk is None else self.asterisk.sip_port
        self._asterisk_stack.close()
        media_uri = f"ws://127.0.0.1:{self.port}/media/asterisk"
        running = shipped_asterisk(media_uri, f"127.0.0.1:{self.media_port}", sip_port=sip_port)
        self.asterisk = self._asterisk_stack.enter_context(running)

    def _run(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        log = self.folder / f"{name}{len(self._logs)}.log"
        self._logs.append(log)
        paths = [*map(str, _PATHS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "default",
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": str(self.folder / "tmp"),
            "TORTURE_INSIDE": str(self.folder / "inside"),
        }
        with open(log, "w") as errors:
            return subprocess.Popen(
                [*prefix, sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, cwd=ROOT,
            )  # fmt: skip

    def _port(self, process: subprocess.Popen[str], pattern: str) -> int:
        return int(self._line(process, pattern))

    def _line(self, process: subprocess.Popen[str], pattern: str) -> str:
        assert process.stdout is not None
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s:
            line = process.stdout.readline()
            if not line:
                break
            if (found := re.search(pattern, line)) is not None:
                return found[1]
        process.kill()
        raise RuntimeError(f"a process did not start: {' '.join(map(str, process.args))}\n{self.log_text()[-2000:]}")  # type: ignore[arg-type]

    # ------------------------------------------------------------------ looking

    def fronts(self) -> list[int]:
        """The processes that hold calls."""
        if self.shape != "fronts":
            return [self.server.pid]
        return children(self.server.pid)

    def pids(self) -> list[int]:
        """All processes whose waits for a core may make calls late."""
        asterisk = [] if self.asterisk is None else [self.asterisk.pid]
        others = self._others().values()
        # CosyVoice2 computes in threads. Each of them has an id that serves as that of a process here.
        computing = [thread for pid in others for thread in threads(pid)] if self.shape == COSYVOICE2 else []
        return list({*self.fronts(), *others, *asterisk, *computing})

    def _others(self) -> dict[str, int]:
        """Our processes beside the server that run, by their names and numbers."""
        named = {"engine": self.engine, "bridge": self.bridge}
        running = {f"{name} {each.pid}": each.pid for name, each in named.items() if each and each.poll() is None}
        if self.shape == "fronts":
            running |= {f"front {pid}": pid for pid in children(self.server.pid)}
        if self.shape == COSYVOICE2:
            running |= {f"cosyvoice2 {pid}": pid for pid in children(self.server.pid)}
        return running

    def owner(self, call: str) -> int | None:
        """The number of the front that has this call."""
        name = hashlib.blake2b(call.encode(), digest_size=16).hexdigest()
        for folder in self.runtime.iterdir():
            with suppress(FileNotFoundError):
                return int(os.readlink(folder / "calls" / name).partition(".")[0])
        return None

    def front_pid(self, number: int) -> int:
        """The process of this front now."""
        started = [line for line in self.logged("front_started") if line["front"] == number]
        return int(started[-1]["pid"])

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of this event in the logs so far."""
        found = []
        for line in self.log_text().splitlines():
            if f'"{event}"' in line:
                with suppress(ValueError):
                    told = json.loads(line)
                    if told.get("event") == event:
                        found.append(told)
        return found

    def holdings(self) -> Holdings:
        """What the server holds now, after a garbage collection. Raises TimeoutError if it does not tell."""
        pid = self.server.pid
        if (told := self.look_inside(pid)) is None:
            raise TimeoutError("the server does not tell what it holds")
        return Holdings(
            len(os.listdir(f"/proc/{pid}/fd")), told["threads"], told["tasks"], resident_kib(pid),
            sum(1 for _ in (self.folder / "tmp").rglob("*")),
            {name: self._held_by(pid) for name, pid in self._others().items()},
        )  # fmt: skip

    def _held_by(self, pid: int) -> tuple[int, int]:
        """(descriptors, threads) of a process; none if it has just ended."""
        n_descriptors, n_threads = held_by(pid)
        told = self.look_inside(pid)
        return n_descriptors, told["threads"] if told is not None else n_threads

    def processes(self) -> dict[str, int]:
        """All our processes that run, by names that say what they do."""
        name = "supervisor" if self.shape == "fronts" else "server"
        return {name: self.server.pid, **self._others()}

    def look_inside(self, pid: int) -> dict[str, Any] | None:
        """What `torture/inside/sitecustomize.py` tells of this process, and its resident memory after that. None if it
        does not answer: it may just be starting or ending."""
        path = self.folder / "inside" / f"{pid}.json"
        path.unlink(missing_ok=True)
        try:
            if not catches(pid, signal.SIGUSR1):
                return None
            os.kill(pid, signal.SIGUSR1)
            end_s = time.monotonic() + _LOOK_S
            while not path.exists():
                if time.monotonic() > end_s:
                    return None
                time.sleep(0.01)
            return {**json.loads(path.read_text(encoding="utf-8")), "resident_kib": resident_kib(pid)}
        except (FileNotFoundError, ProcessLookupError):
            return None

    def n_live_calls(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
        return int(sum(float(n) for n in re.findall(r"^telephony_tts_calls_live\{[^}]*\} (\S+)", page, re.MULTILINE)))

    def log_text(self) -> str:
        return "".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    # ------------------------------------------------------------------- ending

    def drain(self) -> dict[str, int | None]:
        """SIGTERM to all processes; their exit statuses, None for one that had to be killed."""
        found: dict[str, int | None] = {}
        for name, process in (("bridge", self.bridge), ("server", self.server), ("engine", self.engine)):
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                found[name] = process.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                found[name] = None
        return found

    def close(self) -> None:
        self._asterisk_stack.close()
        for process in (self.bridge, getattr(self, "server", None), self.engine):
            if process is not None:
                if process.poll() is None:
                    for child in children(process.pid):
                        with suppress(ProcessLookupError):
                            os.kill(child, signal.SIGKILL)
                    process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
        if self.disk is not None:
            subprocess.run(["umount", "-l", str(self.disk)], check=False, capture_output=True)
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def held_by(pid: int) -> tuple[int, int]:
    """(descriptors, threads) of a process; none if it has just ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0, 0


def threads(pid: int) -> list[int]:
    """The ids of its threads; none if it has just ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []


def _forget(process: subprocess.Popen[str] | None) -> None:
    """Close the pipe of a process that was killed."""
    if process is not None and process.stdout is not None:
        process.wait()
        process.stdout.close()


def children(pid: int) -> list[int]:
    """The processes that this one has started and that live."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal. Raises FileNotFoundError if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def small_disk(folder: Path, size: str = "400k") -> Path | None:
    """A file system of this size; None where this user may not mount one."""
    folder.mkdir()
    command: Sequence[str] = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    return folder if subprocess.run(command, check=False, capture_output=True).returncode == 0 else None
