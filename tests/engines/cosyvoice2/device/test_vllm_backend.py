"""A real vLLM as the language model: the same ids, and so the same samples, as our own draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from core_speech import CANCELLED, SENTENCES, settings_of, speak
from peer_packages import run_with

from telephony_tts.engines.cosyvoice2.checkpoint import random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert
from telephony_tts.engines.cosyvoice2.model.config import EOS, LmConfig

pytestmark = [pytest.mark.slow, pytest.mark.peer, pytest.mark.thorough]

HEADS_OF_32 = LmConfig(n_text_rows=512, d_model=128, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=256)
"""vLLM's attention for CPUs has no smaller heads."""
LIKELY, LIKELIER = slice(0, 8), 6.0
"""With so few likely ids the same one comes again and again, so the repetition rule decides."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vllm") / "model"
    tiny = random_checkpoint.SIZES["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_checkpoint.SIZES, "tiny", replace(tiny, lm=HEADS_OF_32))
        random_checkpoint.write_random_checkpoint(path)
    state = torch.load(path / "llm.pt")
    state["llm_decoder.bias"][LIKELY] += LIKELIER
    state["llm_decoder.bias"][EOS] = LIKELIER - 2
    torch.save(state, path / "llm.pt")
    convert(path, "vllm", "float32")
    return path


def test_sentences_at_once_sound_as_with_our_own_model_and_a_cancel_aborts(model: Path, tmp_path: Path) -> None:
    """Every sample is a function of all ids before it, so equal audio means equal draws: with prompts of both kinds,
    the repetition rule, and the ban of an early end."""
    ours, _ = speak(settings_of(model, uses_vllm=False))
    run_with("vllm", Path(__file__).with_name("core_speech.py"), str(model), str(tmp_path / "out.npz"))
    theirs = np.load(tmp_path / "out.npz")
    assert ours.keys() == SENTENCES.keys() - {CANCELLED}
    for key, pcm in ours.items():
        assert len(pcm) > 12_000 and np.array_equal(theirs[str(key)], pcm), f"sentence {key}"
    most, before, after, at_the_end = theirs["n_requests"]
    assert most > 1, "they were drawn in one batch"
    assert after == before - 1 and at_the_end == 0
