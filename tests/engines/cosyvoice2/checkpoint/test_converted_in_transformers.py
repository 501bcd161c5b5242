"""The converted folders in `transformers`, whose layout they have, compute what our language model computes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from peer_packages import run_with
from safetensors.torch import load_file, save_file
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.model.config import LmConfig
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.text.generation import whole_prompt
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.peer]

SCRIPT = Path(__file__).with_name("transformers_greedy.py")
ROUNDING = 2e-4
N_STEPS = 40
TEXT = "Hello, your order of today is here. 你好"
SPEECH = (5, 6560, 17, 17, 2000)


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


def run(folder: Path, out: Path, *prompt: str) -> dict[str, Tensor]:
    """What `transformers_greedy.py` computes."""
    run_with("vllm", SCRIPT, str(folder), str(out), str(N_STEPS), *prompt)
    return load_file(out)


def prompt_of(model: Path, lm: LanguageModel) -> tuple[Tensor, list[int]]:
    text_ids = TextTokenizer(model / "CosyVoice-BlankEN").encode(TEXT)
    return lm.embed(whole_prompt((), text_ids, SPEECH)), text_ids


def test_the_layout_of_vllm_computes_our_logits_and_ids(
    model: Path, ours: LanguageModel, tmp_path: Path
) -> None:
    prompt, _ = prompt_of(model, ours)
    logits, ids = greedy(ours, prompt)
    save_file({"prompt": prompt.clone()}, tmp_path / "prompt.safetensors")
    theirs = run(model / "vllm", tmp_path / "out", "--embeddings", str(tmp_path / "prompt.safetensors"))
    assert torch.allclose(theirs["logits"], logits, atol=ROUNDING)
    assert theirs["ids"].tolist() == ids and len(set(ids)) > N_STEPS // 4


def test_the_layout_of_hugging_face_computes_our_logits_and_ids(
    model: Path, ours: LanguageModel, tmp_path: Path
) -> None:
    """From text to ids: with its own tokenizer, and ids alone as a prompt."""
    prompt, text_ids = prompt_of(model, ours)
    logits, ids = greedy(ours, prompt)
    first = TextTokenizer(model / "CosyVoice-BlankEN").n_ids
    theirs = run(
        model / "hf", tmp_path / "out", "--text", TEXT, "--speech", ",".join(str(item) for item in SPEECH)
    )
    start, task = first + len(logits), first + len(logits) + 1
    assert theirs["prompt_ids"].tolist() == [start, *text_ids, task, *(first + item for item in SPEECH)]
    assert torch.allclose(theirs["logits"][first : first + len(logits)], logits, atol=ROUNDING)
    others = torch.cat((theirs["logits"][:first], theirs["logits"][first + len(logits) :]))
    assert others.eq(-torch.inf).all(), "no text can be drawn"
    assert [item - first for item in theirs["ids"].tolist()] == ids
