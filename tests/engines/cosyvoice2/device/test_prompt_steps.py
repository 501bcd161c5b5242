"""Prompts in recorded batches: the same as each prompt alone on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from pretend_device import Pretence, device
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device import prompt_steps
from telephony_tts.engines.cosyvoice2.device.lm_steps import CpuLmSteps
from telephony_tts.engines.cosyvoice2.device.prompt_steps import PromptSteps
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_TOKENS
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

N_SLOTS, N_PROMPTS = 5, 3
STOP = N_SPEECH_TOKENS


def loaded(directory: Path, where: str) -> SpeechModel:
    model = SpeechModel.load(load_model_directory(directory), device=where, precision=Precision(), n_slots=N_SLOTS)
    for slot in range(N_SLOTS):
        model.sampler.start(slot, 40 + slot)
    return model


@pytest.fixture
def there(model_dir: Path, pretence: Pretence) -> SpeechModel:
    return loaded(model_dir, str(device()))


@pytest.fixture
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches of `FEEDS` have up to 87 positions. Recording hundreds of them would take most of the time."""
    monkeypatch.setattr(prompt_steps, "PREFILL_CHUNK", 64)


def prompt(n_text: int, n_speech: int, first: int) -> tuple[TokenSegment, ...]:
    text = tuple((first + i) % 300 for i in range(n_text))
    speech = tuple((7 * first + i) % N_SPEECH_TOKENS for i in range(n_speech))
    return (
        TokenSegment(EmbeddingTable.CONTROL, (0,)),
        TokenSegment(EmbeddingTable.TEXT, text),
        TokenSegment(EmbeddingTable.CONTROL, (1,)),
        TokenSegment(EmbeddingTable.SPEECH, speech),
    )


FEEDS = [
    LmFeed(prompt(9, 30, 3), banned=(STOP,)),
    LmFeed(prompt(2, 1, 200), forced=17),
    LmFeed(prompt(40, 60, 5), banned=(STOP, STOP + 1, STOP + 2)),
    LmFeed(prompt(5, 0, 90)),
    LmFeed(prompt(11, 12, 31)),
]


def drawn_there(
    steps: PromptSteps, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
) -> list[int | None]:
    ids = steps.draw(slots, parts, ended).cpu().tolist()
    return [None if feed is None else drawn for drawn, feed in zip(ids, ended, strict=True)]


def keys_and_values(model: SpeechModel) -> Tensor:
    """Of all slots but the scratch slot, on the CPU."""
    return model.cache.data[:, :, :-1].cpu()


@pytest.mark.usefixtures("short_prompts")
@pytest.mark.parametrize("recorded", [False, True])
def test_prompts_of_several_slots_draw_the_same_ids_as_alone(
    model_dir: Path, there: SpeechModel, pretence: Pretence, recorded: bool
) -> None:
    here = loaded(model_dir, "cpu")
    cpu = CpuLmSteps(here.lm, here.cache, here.sampler, N_SPEECH_TOKENS)  # type: ignore[arg-type]
    graphs = Graphs(there.device, pretence.record if recorded else None)
    steps = PromptSteps(there.lm, there.cache, there.sampler, N_PROMPTS, graphs)  # type: ignore[arg-type]
    steps.prepare(lambda: None)
    pretence.sent.clear()
    # The third prompt comes in two parts, the first of which draws nothing.
    part, rest = FEEDS[2].segments[:2], FEEDS[2].segments[2:]
    calls: list[tuple[list[int], list[Sequence[TokenSegment]], list[LmFeed | None]]] = [
        ([4, 0, 2], [FEEDS[0].segments, FEEDS[1].segments, part], [FEEDS[0], FEEDS[1], None]),
        ([2], [rest], [FEEDS[2]]),
        ([3, 1], [FEEDS[3].segments, FEEDS[4].segments], [FEEDS[3], FEEDS[4]]),
    ]
    for slots, parts, ended in calls:
        drawn = drawn_there(steps, slots, parts, ended)
        expected = [None if ids is None else ids.read()[0] for ids in cpu.prefill(slots, parts, ended)]
        assert drawn == expected
    assert drawn_there(steps, [], [], []) == []
    assert there.cache.lengths == here.cache.lengths
    assert torch.allclose(keys_and_values(there), keys_and_values(here), atol=1e-5)
    for mine, theirs in ((there.sampler.n_drawn, here.sampler.n_drawn), (there.sampler.recent, here.sampler.recent)):
        assert torch.equal(mine[:-1].cpu(), theirs[:-1])
    assert set(pretence.waits) <= {"a test"}


def test_the_largest_size_holds_the_longest_part_of_every_prompt(there: SpeechModel) -> None:
    steps = PromptSteps(
        there.lm, there.cache, there.sampler, N_PROMPTS, Graphs(there.device)  # type: ignore[arg-type]
    )
    assert steps.sizes == [64, 128, 192, 256, 384, 512, N_PROMPTS * 256]


@pytest.mark.usefixtures("short_prompts")
def test_recording_touches_no_slot(there: SpeechModel, pretence: Pretence) -> None:
    before = keys_and_values(there), there.sampler.n_drawn[:-1].cpu(), list(there.cache.lengths)
    steps = PromptSteps(
        there.lm, there.cache, there.sampler, N_PROMPTS, Graphs(there.device, pretence.record)  # type: ignore[arg-type]
    )
    looks: list[int] = []
    steps.prepare(lambda: looks.append(1))
    assert len(looks) == len(steps.sizes) == 3
    after = keys_and_values(there), there.sampler.n_drawn[:-1].cpu(), list(there.cache.lengths)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2] == after[2]


def test_what_cannot_be_fed_changes_nothing(there: SpeechModel) -> None:
    steps = PromptSteps(
        there.lm, there.cache, there.sampler, N_PROMPTS, Graphs(there.device)  # type: ignore[arg-type]
    )
    before = keys_and_values(there)
    unknown = (TokenSegment(EmbeddingTable.SPEECH, (N_SPEECH_TOKENS + 3,)),)
    with pytest.raises(EngineError, match="speech token outside"):
        steps.draw([0, 1], [FEEDS[0].segments, unknown], [FEEDS[0], FEEDS[1]])
    there.cache.lengths[1] = there.cache.max_len - 3
    with pytest.raises(EngineError, match="speak it in shorter pieces"):
        steps.draw([0, 1], [FEEDS[0].segments, FEEDS[1].segments], [FEEDS[0], FEEDS[1]])
    with pytest.raises(ValueError, match="cannot be fed twice"):
        steps.draw([0, 0], [FEEDS[0].segments, FEEDS[1].segments], [FEEDS[0], FEEDS[1]])
    assert torch.equal(keys_and_values(there), before) and there.cache.lengths[0] == 0
