"""The commands for a voice of one's own in README.zh.md and docs/zh/cosyvoice2.md, run in their order on a CPU.

The English README has the same commands (tests/test_chinese_pages.py). The model is a tiny one with random weights,
from a hub on the loopback, and the configurations say `cpu` and float32 where they say `cuda`. So this shows that each
command does what the page says, not what a GPU computes, nor how the official model sounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from hub_rig import FakeHub, serving
from page_commands import ROOT, PageCommands, here, made
from websockets.asyncio.client import connect

from telephony_tts.engines.cosyvoice2.checkpoint.download import NEEDED, OFFICIAL_REPOS
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

README, PAGE = ROOT / "README.zh.md", ROOT / "docs/zh/cosyvoice2.md"
MODEL = "models/CosyVoice2-0.5B"
SPOKEN = "Thank you for calling. I am glad to help you with your order today, so please tell me its number."


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """The hub that the page names, with a tiny model."""
    path = tmp_path_factory.mktemp("hub")
    write_random_checkpoint(path)
    names = [name for name in (*NEEDED, "spk2info.pt") if (path / name).exists()]
    files = {name: (path / name).read_bytes() for name in names}
    with serving(FakeHub(OFFICIAL_REPOS["modelscope"], files, frozenset({"cosyvoice2.yaml"}))) as served:
        yield served


class Desk:
    """A folder like a checkout in which a reader types commands, with a recording and configurations for a CPU."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.folder = folder
        self._environment = {
            **os.environ, "MODELSCOPE_ENDPOINT": hub.url, "MODELSCOPE_CACHE": str(folder / "cache"),
            "MODELSCOPE_HOME": str(folder / "home"), "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        (folder / "configs").mkdir()
        for own in (ROOT / "configs").glob("*.yaml"):
            text = own.read_text(encoding="utf-8")
            on_cpu = text.replace("device: cuda", "device: cpu")
            on_cpu = re.sub(r"\bdtype: b?float16", "dtype: float32", on_cpu)
            assert on_cpu != text or own.name in ("server.yaml", "sip_bridge.yaml", "cosyvoice2-cpu.yaml")
            (folder / "configs" / own.name).write_text(on_cpu, encoding="utf-8")
        self.run(f"telephony-tts say '{SPOKEN}' anna.wav --codec pcm --rate 24000")

    def run(self, command: str, status: int = 0) -> str:
        """Run a command of this project; gives what it printed."""
        return self.run_plain(here(command if command.startswith(".venv/bin/") else f".venv/bin/{command}"), status)

    def run_plain(self, command: str, status: int = 0) -> str:
        """Run any command; gives what it printed."""
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=180,
            check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def serving(self, command: str) -> Iterator[int]:
        """Run a server until it is ready; gives its port, which is not the page's."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        served = subprocess.Popen(
            [*shlex.split(here(command)), "--port", str(port)], cwd=self.folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert served.stdout is not None
            hanging = threading.Timer(120, served.kill)
            hanging.start()
            ready = next((line for line in served.stdout if "is ready" in line), "it has ended")
            hanging.cancel()
            assert "voice cosyvoice2/anna" in ready
            yield port
        finally:
            served.kill()
            served.communicate()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Desk:
    """Where the page was followed up to the voice: its model is there."""
    made_here = Desk(tmp_path_factory.mktemp("desk"), hub)
    pull(made_here, PageCommands(PAGE))
    return made_here


def pull(desk: Desk, page: PageCommands) -> None:
    """`make model`, without the installation before it."""
    (fetch,) = re.findall(r"telephony-tts models pull [^|]*", made(page.take("^make model")))
    desk.run(fetch if "--source" in fetch else f"{fetch} --source modelscope")  # the hub of this test


async def _voice(port: int, text: str) -> str:
    """The voice of a call, once a sentence was spoken in it."""
    async with connect(f"ws://127.0.0.1:{port}/v1/stream?audio=none", compression=None) as call:
        voice = str(json.loads(await call.recv())["voice"])
        await call.send(json.dumps({"type": "say", "text": text}))
        async with asyncio.timeout(120):
            while json.loads(await call.recv())["type"] != "done":
                pass
        return voice


def test_the_readme_leads_to_a_server_with_ones_own_voice(hub: FakeHub, tmp_path: Path) -> None:
    desk, page = Desk(tmp_path, hub), PageCommands(README)
    pull(desk, page)
    assert "stored in" in desk.run(page.take("voices add"))
    with desk.serving(page.take("serve --config configs/cosyvoice2-cpu.yaml")) as port:
        assert asyncio.run(_voice(port, "您好。")) == "anna"


def test_the_page_leads_to_a_server_with_ones_own_voice(desk: Desk) -> None:
    """All of its commands in their order. `--concurrency` is smaller and the turns are short: it is a CPU."""
    page = PageCommands(PAGE)
    page.take("^make model")  # the fixture
    assert "complete and compatible" in desk.run(page.take("models check"))
    shown = desk.run(page.take("doctor"))
    assert not re.search("^broken", shown, re.MULTILINE), shown
    assert "problem" not in desk.run(page.take("voices check"))
    assert f"stored in {MODEL}/voices/anna.safetensors" in desk.run(page.take("voices add"))
    desk.run(page.take("telephony-tts say"))
    assert (desk.folder / "out.wav").stat().st_size > 4000
    with desk.serving(page.take("telephony-tts serve")) as port:
        assert "ready" in desk.run_plain(page.take("^curl").replace(":8080", f":{port}"))
        assert asyncio.run(_voice(port, "您好。")) == "anna"
    bench = re.sub(r"--concurrency \S+", "--concurrency 1,2", page.take("bench engine"))
    table = desk.run(f"{bench} --seconds 1 --turns 1")
    assert all(column in table for column in ("audible p50", "p95", "underruns", "RTF"))
    assert len(json.loads((desk.folder / "h200.json").read_text(encoding="utf-8"))["results"]) == 2
    check = re.search(r"\S+ \S+gpu_check\.py .*", made(page.take("^make gpu-check")))
    assert check is not None
    rehearsal = check[0].replace('"gpu-check"', str(desk.folder / "gpu-check"))
    desk.run_plain(f"{rehearsal} --device cpu --size tiny --plan quick --only environment --commit x")
    assert (desk.folder / "gpu-check/summary.md").exists()
    assert page.left == []


def test_what_the_page_says_of_faults_is_shown(desk: Desk, tmp_path: Path) -> None:
    """Where this machine has no GPU, also what `doctor` says of the real configuration."""
    page, none = PAGE.read_text(encoding="utf-8"), f"engines.cosyvoice2.model={tmp_path}/none"
    real = desk.run(f"telephony-tts doctor --config {ROOT}/configs/cosyvoice2-h200.yaml --set {none}", status=1)
    telephone = desk.run(f"telephony-tts say '{SPOKEN}' phone.wav --codec pcm")
    assert "s of speech" in telephone
    seen = {
        "there is no such directory": real,
        "fetches what is missing or damaged": real,
        "the recording cannot become a voice: its rate is 8000 Hz": desk.run(
            f"telephony-tts voices add bob --wav phone.wav --model {MODEL}", status=1
        ),
        "no voice 'anna'": desk.run("telephony-tts say Hello. out.wav --voice anna", status=1),
    }
    if not torch.cuda.is_available() and torch.version.cuda is None:
        seen["this PyTorch is built for CPUs"] = real
    for text, shown in seen.items():
        assert text in page and text in shown, shown


def test_the_table_of_cards_is_that_of_the_configurations() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("|") and "`configs/cosyvoice2-" in line]
    assert len(rows) == 3
    for _, path, dtype, slots, calls, _ in rows:
        config = yaml.safe_load((ROOT / path.strip("`")).read_text(encoding="utf-8"))
        engine = config["engines"]["cosyvoice2"]
        assert (dtype, int(slots), int(calls)) == (engine["dtype"], engine["slots"], config["limits"]["calls"])
