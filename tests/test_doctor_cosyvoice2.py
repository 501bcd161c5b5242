"""`telephony-tts doctor`: a CosyVoice2 model directory, its voices, GPUs, and the packages of the extras."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from telephony_tts.app import config
from telephony_tts.app.engines import setup_of
from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2 import examination
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.choice import CpuTimings
from telephony_tts.engines.cosyvoice2.hosting import choosing
from telephony_tts.engines.cosyvoice2.hosting.kept_timings import keep_timings
from telephony_tts.engines.cosyvoice2.plugin import PLUGIN
from telephony_tts.runtime.machine_limits import CpuShare

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def test_doctor_looks_at_the_model_and_its_voices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    write_random_checkpoint(model)
    flags = ["doctor", "--set", f"engines.cosyvoice2.model={model}", "--set", "server.port=0"]
    (model / "voices").mkdir()
    (model / "voices" / "broken.safetensors").write_bytes(b"nothing")
    assert main(flags) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "cosyvoice2 " in line]
    assert lines[0].startswith("ok       cosyvoice2 model") and "random weights" in lines[0]
    assert lines[1].startswith("broken   cosyvoice2 voice") and "voices add broken" in lines[1]
    assert lines[2].startswith("ok       cosyvoice2 voices") and "2: preset, prompted" in lines[2]
    flags += ["--set", "engines.cosyvoice2.isolation=thread"]  # another test uses a process
    (model / "spk2info.pt").unlink()
    shutil.rmtree(model / "voices")
    assert main(flags) == 1
    assert "missing  cosyvoice2 voices      .venv/bin/telephony-tts voices add NAME" in capsys.readouterr().out
    (model / "hift.pt").unlink()
    assert main(flags) == 1
    told = capsys.readouterr().out
    assert "hift.pt is missing" in told and f"telephony-tts models random {model}" in told, "no pull into this one"
    (model / "random.json").unlink()
    assert main(flags) == 1
    told = capsys.readouterr().out
    assert "hift.pt is missing" in told and f"telephony-tts models pull {model} fetches" in told


def findings(settings: config.Config) -> list[tuple[str, str, str]]:
    """What the engine says, without the GPUs."""
    found = PLUGIN.findings(setup_of(settings, "cosyvoice2"), is_running=False)
    return [each for each in found if each[1] != "gpu"]


def test_doctor_says_what_this_cpu_computes_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"float32": 0.2}
    timings = CpuTimings(one, one, {"float32": 0.9, "bfloat16": 1.9}, one, 1.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choosing, "cpu_share", lambda: CpuShare(2, 2, quota=0.5))
    kept = choosing.where_kept()
    assert kept is not None and keep_timings(kept, choosing.this_machine(CpuShare(2, 2, quota=0.5)), timings) is None
    monkeypatch.setattr(choosing, "SMALL", 0)  # a tiny model is not timed otherwise
    model = tmp_path / "model"
    write_random_checkpoint(model)
    settings = config.load(None, {"engines.cosyvoice2.model": str(model)})
    lines = findings(settings)
    told = [detail for _, what, detail in lines if what == "cosyvoice2 settings"]
    assert told[1].startswith("flow: float32 (seconds for a second of speech: float32 0.90, bfloat16 1.90")
    assert told[3] == "workers: 1, threads: 1 (2 CPUs, of which the control group allows 0.5)"
    assert ("ok", "cosyvoice2 timings", f"{kept}; delete it to time this machine again") in lines
    ((state, _, warning),) = [line for line in lines if "callers hear gaps" in line[2]]
    assert state == "warning" and warning.startswith("a second of speech takes 2.6 s on 2 CPUs, of which")
    monkeypatch.setattr(choosing, "memory_free", lambda: 1 << 20)
    assert [what for state, what, _ in findings(settings) if state == "broken"] == ["cosyvoice2 settings"]


@pytest.mark.parametrize(
    ("switch", "warns"), [("always [madvise] never\n", False), ("always madvise [never]\n", True), (None, False)]
)
def test_doctor_warns_where_weights_get_small_pages_only(tmp_path: Path, switch: str | None, warns: bool) -> None:
    file = tmp_path / "enabled"
    if switch is not None:
        file.write_text(switch)
    told = examination.small_pages(file)
    assert (told is not None) == warns
    assert told is None or f"echo madvise > {file}" in told


def test_doctor_names_the_extras(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without(package: str) -> str:
        if package in ("soundfile", "modelscope-hub"):
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert main(["doctor", "--set", "engines.default=fake", "--set", "server.port=0"]) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["torch"].startswith("ok") and ".venv/bin/pip install -e '.[cosyvoice]'" in lines["soundfile"]
    assert lines["modelscope-hub"].startswith("optional")
    assert ".venv/bin/pip install -e '.[hub]'" in lines["modelscope-hub"]


# ---------------------------------------------------------------------------- GPUs

TONES = ["doctor", "--set", "engines.default=fake", "--set", "server.port=0"]
ON_A_GPU = ["--set", "engines.cosyvoice2.device=cuda"]


@pytest.fixture
def tones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the other engines, which would load and speak in each test."""
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda engine: False)


def gpu_lines(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    """The lines about GPUs, with one blank between words."""
    assert main([*TONES, *flags]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.split()[1] == "gpu"]


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, folder: Path, *capabilities: tuple[int, int]) -> None:
    """Simulate `n` GPUs, a PyTorch for compute capability 7.5 and newer, and the driver's tool."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for name, answer in (
        ("is_available", lambda: bool(capabilities)), ("device_count", lambda: len(capabilities)),
        ("get_device_properties", lambda n: SimpleNamespace(name=f"Model {n}", total_memory=48 << 30)),
        ("get_device_capability", lambda device: capabilities[torch.device(device).index or 0]),
        ("get_arch_list", lambda: ["sm_75", "sm_90"]),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, answer)
    tool = folder / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && printf "570.1\\n570.1\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("tones_alone")
def test_a_missing_gpu_is_an_error_only_if_one_is_configured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_lines(capsys) == ["ok gpu no GPU: device cpu works (this PyTorch is built for CPUs)"]
    (wrong,) = gpu_lines(capsys, *ON_A_GPU)
    assert wrong.startswith("broken gpu engines.cosyvoice2.device is cuda: this PyTorch is built for CPUs; install one")
    assert "engines.cosyvoice2.device: cpu needs no GPU" in wrong
    pretend_gpus(monkeypatch, tmp_path)
    assert gpu_lines(capsys) == ["ok gpu no GPU: device cpu works (no GPU is found)"]
    (wrong,) = gpu_lines(capsys, *ON_A_GPU)
    assert "is cuda: no GPU is found; see whether nvidia-smi lists one with a driver for CUDA 12.8" in wrong


@pytest.mark.usefixtures("tones_alone")
def test_doctor_lists_gpus_and_their_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_gpus(monkeypatch, tmp_path, (9, 0), (7, 0))
    first, second = gpu_lines(capsys, *ON_A_GPU)
    assert first == "ok gpu cuda:0 Model 0, 48 GiB, driver 570.1, PyTorch built for CUDA 12.8"
    assert second.startswith("ok gpu cuda:1 Model 1, ") and "not used: this PyTorch is built for GPUs of" in second
    for device, words in (("cuda:1", "of compute capability 7.5 and newer"), ("cuda:7", "cuda:0 to cuda:1")):
        *_, wrong = gpu_lines(capsys, "--set", f"engines.cosyvoice2.device={device}")
        assert wrong.startswith(f"broken gpu engines.cosyvoice2.device is {device}: ") and words in wrong
    for broken in ("#!/bin/sh\nexit 9\n", "not a program"):
        (tmp_path / "nvidia-smi").write_text(broken)
        assert "driver unknown" in gpu_lines(capsys)[0]


@pytest.mark.usefixtures("tones_alone")
def test_without_pytorch_there_is_no_gpu_line_and_a_failed_import_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "telephony_tts.engines.cosyvoice2.hosting.loading", None)
    (wrong,) = gpu_lines(capsys)
    assert wrong.startswith("broken gpu PyTorch cannot be imported: ")
    found: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    assert gpu_lines(capsys) == []
