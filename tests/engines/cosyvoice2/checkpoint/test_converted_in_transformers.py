"""The converted folders in the library whose layout they have compute what our language model computes.

`transformers` takes 170 MB, so it is not in the environment of the tests: the first test installs it in
`.peers/transformers`, without PyTorch, which comes from here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.model.config import LmConfig
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.text.generation import whole_prompt
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.peer]

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[3] / ".peers"
PACKAGES = ("transformers==5.23.0",)
INSTALL_S = 300
RUN_S = 120
ROUNDING = 2e-4
N_STEPS = 40
TEXT = "Hello, your order of today is here. 你好"
SPEECH = (5, 6560, 17, 17, 2000)


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder of packages, made on first use and again when PACKAGES changed."""
    folder, wanted = PEERS / "transformers", f"{sys.version}\n{PACKAGES}"
    stamp = folder / "installed.txt"
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "transformers.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
             "--only-binary", ":all:", "--target", str(folder), *PACKAGES],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"transformers was not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Path:
    copy = tmp_path_factory.mktemp("converted") / "model"
    shutil.copytree(model_dir, copy)
    convert(copy, "vllm", "float32")
    convert(copy, "hf", "float32")
    return copy


@pytest.fixture(scope="module")
def ours(model: Path) -> LanguageModel:
    checkpoint = load_model_directory(model)
    assert isinstance(checkpoint.config.lm, LmConfig)
    return LanguageModel.from_state(checkpoint.config.lm, checkpoint.lm)


def greedy(lm: LanguageModel, prompt: Tensor) -> tuple[Tensor, list[int]]:
    """The logits after a prompt [n, D], and the likeliest ids from there on."""
    cache = lm.new_cache(1, 200)
    logits = first = lm.logits(lm.extend(prompt, 0, cache)[-1:])
    ids: list[int] = []
    for _ in range(N_STEPS):
        drawn = logits.argmax(dim=-1)
        ids.append(int(drawn))
        logits = lm.logits(lm.decode(lm.embed_speech(drawn), [0], cache))
    return first[0], ids


def run(library: Path, folder: Path, out: Path, *prompt: str) -> dict[str, Tensor]:
    """What `transformers_greedy.py` computes."""
    command = [sys.executable, str(HERE / "transformers_greedy.py"), str(folder), str(out), str(N_STEPS), *prompt]
    environment = {**os.environ, "PYTHONPATH": str(library), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S, env=environment)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return load_file(out)


def prompt_of(model: Path, lm: LanguageModel) -> tuple[Tensor, list[int]]:
    text_ids = TextTokenizer(model / "CosyVoice-BlankEN").encode(TEXT)
    return lm.embed(whole_prompt((), text_ids, SPEECH)), text_ids


def test_the_layout_of_vllm_computes_our_logits_and_ids(
    library: Path, model: Path, ours: LanguageModel, tmp_path: Path
) -> None:
    prompt, _ = prompt_of(model, ours)
    logits, ids = greedy(ours, prompt)
    save_file({"prompt": prompt.clone()}, tmp_path / "prompt.safetensors")
    theirs = run(library, model / "vllm", tmp_path / "out", "--embeddings", str(tmp_path / "prompt.safetensors"))
    assert torch.allclose(theirs["logits"], logits, atol=ROUNDING)
    assert theirs["ids"].tolist() == ids and len(set(ids)) > N_STEPS // 4


def test_the_layout_of_hugging_face_computes_our_logits_and_ids(
    library: Path, model: Path, ours: LanguageModel, tmp_path: Path
) -> None:
    """From text to ids: with its own tokenizer, and ids alone as a prompt."""
    prompt, text_ids = prompt_of(model, ours)
    logits, ids = greedy(ours, prompt)
    first = TextTokenizer(model / "CosyVoice-BlankEN").n_ids
    theirs = run(
        library, model / "hf", tmp_path / "out", "--text", TEXT, "--speech", ",".join(str(item) for item in SPEECH)
    )
    start, task = first + len(logits), first + len(logits) + 1
    assert theirs["prompt_ids"].tolist() == [start, *text_ids, task, *(first + item for item in SPEECH)]
    assert torch.allclose(theirs["logits"][first : first + len(logits)], logits, atol=ROUNDING)
    others = torch.cat((theirs["logits"][:first], theirs["logits"][first + len(logits) :]))
    assert others.eq(-torch.inf).all(), "no text can be drawn"
    assert [item - first for item in theirs["ids"].tolist()] == ids
