"""The language model of CosyVoice-300M against the formulas of its specification."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference_300m_lm import END, SlowRelativeLm
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import lm_outline
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import random_state
from telephony_tts.engines.cosyvoice2.model.config import RelativeLmConfig
from telephony_tts.engines.cosyvoice2.model.lm.prefill import part_of
from telephony_tts.engines.cosyvoice2.model.lm.relative_lm import RelativeCache, RelativeLm
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.runtime.errors import EngineError

CONFIG = RelativeLmConfig(n_text_rows=40, d_text=12, d_model=32, n_heads=4, d_ff=48, n_text_layers=2, n_layers=3)
TEXT, SPEECH = (3, 39, 0, 17, 5), (4095, 0, 77)
Lm = tuple[RelativeLm, SlowRelativeLm]


@pytest.fixture(scope="module")
def lm() -> Lm:
    state = random_state("llm.pt", lm_outline(CONFIG, {}).shapes, 3)
    for name, tensor in state.items():
        if "pos_bias" in name:
            tensor.mul_(30)  # so that a missing one shows
    return RelativeLm.from_state(CONFIG, {name: tensor.double() for name, tensor in state.items()}), SlowRelativeLm(
        state
    )


@pytest.fixture
def speaker() -> Tensor:
    return torch.randn(1, CONFIG.d_speaker, generator=torch.Generator().manual_seed(1)) * 7


def segments(speech: tuple[int, ...] = SPEECH, *, has_speaker: bool = True) -> list[TokenSegment]:
    table = EmbeddingTable
    parts = [(table.CONTROL, (0,)), (table.SPEAKER, (0,)), (table.TEXT, TEXT), (table.CONTROL, (1,))]
    found = [TokenSegment(*part) for part in (*parts, (table.SPEECH, speech)) if part[1]]
    return found if has_speaker else [found[0], *found[2:]]


def test_the_prompt_equals_the_reference(lm: Lm, speaker: Tensor) -> None:
    ours, slow = lm
    cache = ours.new_cache(2, 40)
    ours.set_speaker(cache, 1, speaker)
    rows = slow.prompt(TEXT, SPEECH, speaker)
    hidden = ours.feed(segments(), 1, cache)
    # 1e-5: the rows of distances are float32 in every precision of the weights.
    torch.testing.assert_close(hidden, slow.hidden(rows), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.logits(hidden[-1:])[0].double(), slow.logits(rows), rtol=1e-5, atol=1e-5)
    without = ours.feed(segments(has_speaker=False), 0, cache)
    torch.testing.assert_close(without, slow.hidden(slow.prompt(TEXT, SPEECH)), rtol=1e-5, atol=1e-5)
    assert cache.lengths == [len(without), len(hidden)]


def test_a_prompt_in_parts_equals_the_whole(lm: Lm, speaker: Tensor) -> None:
    ours, _ = lm
    cache = ours.new_cache(2, 40)
    for slot in (0, 1):
        ours.set_speaker(cache, slot, speaker)
    whole = ours.feed(segments(), 0, cache)
    first, n, parts = 0, len(whole), []
    while first < n:
        part = part_of(segments(), first, 3, {EmbeddingTable.TEXT})
        parts.append(ours.feed(part, 1, cache))
        first += sum(len(segment.ids) for segment in part)
    assert [len(part) for part in parts] == [7, 3, 1], "the text was cut, or all was fed at once"
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_ids_drawn_one_by_one_equal_the_reference(lm: Lm, speaker: Tensor) -> None:
    ours, slow = lm
    ids, found = slow.sentence(slow.prompt(TEXT[:2], (), speaker), 2, end_bias=-2.0)
    assert len(ids) >= 4
    cache = ours.new_cache(1, 60)
    ours.set_speaker(cache, 0, speaker)
    parts = segments(())
    parts[2] = TokenSegment(EmbeddingTable.TEXT, TEXT[:2])
    hidden = ours.feed(parts, 0, cache)[-1:]
    for n, wanted in enumerate(found):
        logits = ours.logits(hidden)[0].double()
        logits[END] += -2.0
        log_p = logits.log_softmax(0)
        finite = wanted.isfinite()
        torch.testing.assert_close(log_p[finite], wanted[finite], rtol=1e-4, atol=1e-4)
        if n < len(ids):
            hidden = ours.decode(ours.embed_speech(torch.tensor([ids[n]])), [0], cache)


ROUNDING = 0.03
"""Error of the logits by their spread."""


@pytest.fixture(scope="module")
def both() -> tuple[RelativeLm, RelativeLm]:
    """In float32 and in int8, of a width with whole vectors and with a rest, and with channels of different size."""
    config = replace(CONFIG, d_model=80, d_ff=100)
    state = random_state("llm.pt", lm_outline(config, {}).shapes, 4)
    for name, tensor in state.items():
        if "pos_bias" in name:
            tensor.mul_(30)
    large = torch.tensor([3, 40, 79])
    for i in range(config.n_layers):
        at = f"llm.encoders.{i}"
        # A channel that is large behind a norm has small weights in the maps, as in trained models.
        state[f"{at}.norm1.weight"][large] *= 50
        state[f"{at}.norm2.weight"][large] *= 50
        for name in ("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v", "feed_forward.w_1"):
            state[f"{at}.{name}.weight"][:, large] /= 50
    return RelativeLm.from_state(config, dict(state)), RelativeLm.from_state(config, dict(state), "int8")


def drawn(lm: RelativeLm, ids: list[int], speaker: Tensor) -> Tensor:
    cache = lm.new_cache(1, 80)
    lm.set_speaker(cache, 0, speaker)
    hidden = [lm.feed(segments(), 0, cache)[-1:]]
    hidden += [lm.decode(lm.embed_speech(torch.tensor([drawn])), [0], cache) for drawn in ids]
    return lm.logits(torch.cat(hidden))


@pytest.mark.parametrize("seed", range(4))
def test_int8_stays_near(both: tuple[RelativeLm, RelativeLm], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4096, (40,), generator=generator).tolist()
    speaker = torch.randn(1, CONFIG.d_speaker, generator=generator)
    exact, near = (drawn(lm, ids, speaker) for lm in both)
    assert near.dtype == both[1].dtype == torch.float32
    assert 0 < (near - exact).square().mean().sqrt() < ROUNDING * exact.std()
    assert [lm.rows_are_exact for lm in both] == [False, True]


def test_a_row_in_int8_has_the_same_bits_in_any_batch(both: tuple[RelativeLm, RelativeLm], speaker: Tensor) -> None:
    _, lm = both

    def filled() -> RelativeCache:
        cache = lm.new_cache(3, 80)
        for slot in range(3):
            lm.set_speaker(cache, slot, speaker * (slot - 1.5))
            lm.feed(segments(SPEECH[slot:]), slot, cache)
        return cache

    rows = lm.embed_speech(torch.tensor([5, 6, 7]))
    cache = filled()
    alone = torch.cat([lm.logits(lm.decode(rows[slot : slot + 1], [slot], cache)) for slot in range(3)])
    for slots in ([0, 1, 2], [2, 0], [1]):
        cache = filled()
        assert torch.equal(lm.logits(lm.decode(rows[slots], slots, cache)), alone[slots])
    cache = filled()
    bad = rows.clone()
    bad[1, 3] = torch.nan
    logits = lm.logits(lm.decode(bad, [0, 1, 2], cache))
    assert logits[1].isnan().all() and torch.equal(logits[[0, 2]], alone[[0, 2]])


def test_int8_reads_weights_with_any_strides(speaker: Tensor) -> None:
    """A file may hold a tensor whose values do not lie side by side."""
    state = random_state("llm.pt", lm_outline(CONFIG, {}).shapes, 3)
    name = "llm.encoders.0.self_attn.pos_bias_u"
    spread = dict(state) | {name: torch.stack([state[name] * 7, state[name]], dim=-1)[..., 1]}
    plain, strided = (RelativeLm.from_state(CONFIG, each, "int8") for each in (state, spread))
    assert torch.equal(drawn(plain, [1, 2], speaker), drawn(strided, [1, 2], speaker))


def test_int8_is_made_of_float32(lm: Lm) -> None:
    state = random_state("llm.pt", lm_outline(CONFIG, {}).shapes, 3)
    with pytest.raises(ValueError, match="int8 weights are made of float32 on the CPU"):
        RelativeLm.from_state(CONFIG, {name: tensor.bfloat16() for name, tensor in state.items()}, "int8")


def test_slots_do_not_change_each_other(lm: Lm, speaker: Tensor) -> None:
    ours, _ = lm

    def run(slots: list[int], cache: RelativeCache) -> Tensor:
        for slot in slots:
            ours.set_speaker(cache, slot, speaker * (1 if slot == 0 else -1))
            ours.feed(segments(SPEECH[slot:]), slot, cache)
        rows = ours.embed_speech(torch.tensor([5] * len(slots)))
        return ours.decode(rows, slots, cache)

    alone = run([0], ours.new_cache(1, 30))
    together = run([0, 1], ours.new_cache(2, 30))
    torch.testing.assert_close(together[:1], alone, rtol=1e-9, atol=1e-9)


def test_a_slot_that_was_emptied_is_like_a_new_one(lm: Lm, speaker: Tensor) -> None:
    ours, _ = lm
    cache = ours.new_cache(1, 30)
    ours.set_speaker(cache, 0, speaker)
    first = ours.feed(segments(), 0, cache)
    cache.clear(0)
    assert not cache.data.any()
    assert torch.equal(ours.feed(segments(), 0, cache), first)


def test_unfit_input_is_refused_before_anything_is_written(lm: Lm) -> None:
    ours, _ = lm
    cache = ours.new_cache(1, 10)
    with pytest.raises(EngineError, match="text token outside 0 to 39"):
        ours.feed([TokenSegment(EmbeddingTable.TEXT, (40,))], 0, cache)
    with pytest.raises(EngineError, match="exceed 10 tokens"):
        ours.feed(segments(), 0, cache)
    assert cache.lengths == [0] and not cache.data.any()


def test_a_state_that_does_not_fit_is_named() -> None:
    state = random_state("llm.pt", lm_outline(CONFIG, {}).shapes, 3)
    del state["llm.after_norm.bias"]
    state["more"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"missing llm.after_norm.bias \[32\]; unexpected more"):
        RelativeLm.from_state(CONFIG, state)
