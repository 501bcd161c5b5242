"""`telephony-tts doctor` on a CosyVoice2 model directory, its voices, and the packages of the extras."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest
import torch

from telephony_tts.cli import main
from telephony_tts.engines.cosyvoice2.random_checkpoint import write_random_checkpoint

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
    (model / "spk2info.pt").unlink()
    shutil.rmtree(model / "voices")
    assert main(flags) == 1
    assert "missing  cosyvoice2 voices      telephony-tts voices add NAME" in capsys.readouterr().out
    (model / "hift.pt").unlink()
    assert main(flags) == 1
    told = capsys.readouterr().out
    assert "hift.pt is missing" in told and f"telephony-tts models random {model}" in told, "no pull into this one"
    (model / "random.json").unlink()
    assert main(flags) == 1
    told = capsys.readouterr().out
    assert "hift.pt is missing" in told and f"telephony-tts models pull {model} fetches" in told


def test_doctor_names_the_extras(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without(package: str) -> str:
        if package in ("soundfile", "modelscope-hub"):
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert main(["doctor", "--set", "engines.default=fake", "--set", "server.port=0"]) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["torch"].startswith("ok") and "pip install -e '.[cosyvoice]'" in lines["soundfile"]
    assert lines["modelscope-hub"].startswith("missing") and "pip install -e '.[hub]'" in lines["modelscope-hub"]
