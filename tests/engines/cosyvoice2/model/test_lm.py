"""The language model against reference vectors and against itself: in chunks, in batches, in half precision.

`vectors/lm.npz` is the reference's small model with most rows of the 6564 cut away: those that no vector mentions, but
for 200 kept at random. They come back as zero rows with a bias that no draw reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_lm import Run, check_golden, configs, load_state, prefill, speak
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import lm_outline
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_ROWS, LmConfig
from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.lm import AttendSlots, KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding, whole_prompt
from telephony_tts.runtime.errors import EngineError

VECTORS = Path(__file__).parents[1] / "vectors" / "lm.npz"
UNLIKELY = -60.0
ROUNDING = 2e-5
PROMPT = whole_prompt(range(20), range(30, 50), range(100, 160))
"""102 positions, of which the speech rows may be cut ones: zeros are embeddings too."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors as a directory in the format the parity check reads."""
    directory = tmp_path_factory.mktemp("golden")
    with np.load(VECTORS) as file:
        found = dict(file)
    rows = torch.from_numpy(found.pop("rows")).long()
    (directory / "tiny_config.json").write_text(str(found.pop("config")), encoding="utf-8")
    state: dict[str, Tensor] = {}
    files: dict[str, dict[str, np.ndarray]] = {}
    for key, array in found.items():
        kind, _, name = key.partition("/")
        if kind != "state":
            files.setdefault(kind, {})[name] = array
        elif len(array) == len(rows):
            state[name] = torch.full((N_SPEECH_ROWS, *array.shape[1:]), UNLIKELY if array.ndim == 1 else 0.0)
            state[name][rows] = torch.from_numpy(array)
        else:
            state[name] = torch.from_numpy(array)
    logits = np.full((*files["llm_forward"]["logits"].shape[:2], N_SPEECH_ROWS), UNLIKELY, dtype=np.float32)
    logits[..., rows.numpy()] = files["llm_forward"]["logits"]
    files["llm_forward"]["logits"] = logits
    torch.save(state, directory / "tiny_llm.pt")
    for name, arrays in files.items():
        np.savez(directory / f"{name}.npz", **arrays)
    return directory


@pytest.fixture(scope="module")
def config(golden: Path) -> LmConfig:
    return configs(golden)[0]


@pytest.fixture(scope="module")
def state(golden: Path) -> dict[str, Tensor]:
    return load_state(golden)


@pytest.fixture(scope="module")
def model(config: LmConfig, state: dict[str, Tensor]) -> LanguageModel:
    return LanguageModel.from_state(config, state)


@pytest.fixture(scope="module")
def rounded(config: LmConfig, state: dict[str, Tensor]) -> LanguageModel:
    return LanguageModel.from_state(config, state, "int8")


@pytest.mark.slow
def test_every_stage_agrees_with_the_reference(golden: Path) -> None:
    rows = list(check_golden(golden))
    assert [row for row in rows if not row[1] <= row[2]] == []
    stages = {stage for stage, _, _ in rows}
    assert {"lm logits", "lm greedy instruct2", "lm stop never_stops", "lm bistream model_fill ids"} <= stages
    assert "sampling id" in stages


def decode_batch(model: LanguageModel, x: Tensor, slots: Sequence[int], cache: KvCache) -> Tensor:
    """`decode` as an accelerator computes it: all rows attend in one call, over the longest span."""
    starts = [cache.room(slot, 1) for slot in slots]
    span = min(-(-(max(starts) + 1) // 128) * 128, cache.max_len)
    hidden = model.decode_at(x, torch.tensor(slots), torch.tensor(starts), span, cache)
    for slot in slots:
        if slot != cache.scratch_slot:
            cache.lengths[slot] += 1
    return hidden


Decode = Callable[[LanguageModel, Tensor, Sequence[int], KvCache], Tensor]
both_ways = pytest.mark.parametrize("decode", [LanguageModel.decode, decode_batch], ids=["each", "batch"])


def filled(model: LanguageModel, lengths: Sequence[int]) -> tuple[KvCache, Tensor]:
    """A cache whose slot i holds lengths[i] positions, and as many rows [B, D] to go on with."""
    cache = model.new_cache(len(lengths), 300)
    x = torch.randn(len(lengths), 300, model.config.d_model, generator=torch.Generator().manual_seed(5))
    for i, length in enumerate(lengths):
        prefill(model, x[i, :length], i, cache)
    return cache, x[:, -1]


@pytest.mark.parametrize("n_chunk", [1, 7, 64])
def test_prefill_in_chunks_equals_the_whole(model: LanguageModel, n_chunk: int) -> None:
    x = model.embed(PROMPT)
    cache = model.new_cache(2, 200)
    whole, pieces = 0, 1
    expected = prefill(model, x, whole, cache)
    assert torch.allclose(prefill(model, x, pieces, cache, n_chunk), expected, atol=ROUNDING)
    assert cache.lengths == [len(x), len(x)]
    assert torch.allclose(cache.data[:, :, pieces], cache.data[:, :, whole], atol=ROUNDING)


def test_a_cached_step_equals_a_full_recomputation(model: LanguageModel) -> None:
    x = model.embed(PROMPT)
    cache = model.new_cache(2, 200)
    whole, stepped = 0, 1
    expected = model.extend(x, whole, cache)
    prefill(model, x[:60], stepped, cache)
    steps = torch.cat([model.decode(x[i : i + 1], [stepped], cache) for i in range(60, len(x))])
    assert torch.allclose(steps, expected[60:], atol=ROUNDING)


@both_ways
def test_rows_at_different_positions_equal_each_alone(model: LanguageModel, decode: Decode) -> None:
    lengths = [3, 130, 1, 77]
    cache, x = filled(model, lengths)
    order = [2, 0, 3, 1]
    for step in range(3):
        batch = decode(model, x[order] * (step + 1), order, cache)
        assert cache.lengths == [length + step + 1 for length in lengths]
        for row, slot in enumerate(order):
            alone, _ = filled(model, lengths)
            for k in range(step + 1):
                expected = decode(model, x[slot : slot + 1] * (k + 1), [slot], alone)
            assert torch.allclose(batch[row], expected[0], atol=ROUNDING)


def test_a_batch_attends_as_each_slot_by_itself(model: LanguageModel) -> None:
    lengths = [3, 130, 1, 77]
    each, x = filled(model, lengths)
    batch, _ = filled(model, lengths)
    for slots in ([0, 1, 2, 3], [3, 1], [each.scratch_slot, 1, each.scratch_slot, 3]):
        a = model.decode(x[: len(slots)], slots, each)
        b = decode_batch(model, x[: len(slots)], slots, batch)
        busy = [i for i, slot in enumerate(slots) if slot != each.scratch_slot]
        assert torch.allclose(a[busy], b[busy], atol=ROUNDING)
    assert each.lengths == batch.lengths == [4, 133, 2, 80]


def test_other_slots_change_no_bit_of_a_row(model: LanguageModel) -> None:
    """Row i is always slot i or the scratch slot. Another slot is cleared half-way and used again."""
    results = []
    for with_neighbours in (False, True):
        cache, x = filled(model, [20, 30, 10])
        if not with_neighbours:
            cache.clear(0)
            cache.clear(2)
        hidden = []
        for step in range(12):
            if with_neighbours and step == 5:
                cache.clear(0)
            if with_neighbours and step == 8:
                prefill(model, torch.randn(140, model.config.d_model), 0, cache)
            slots = [slot if cache.lengths[slot] else cache.scratch_slot for slot in range(3)]
            hidden.append(model.decode(x * (step + 1), slots, cache)[1])
        results.append(torch.stack(hidden))
    assert torch.equal(*results)


@both_ways
def test_a_cleared_slot_remembers_nothing(model: LanguageModel, decode: Decode) -> None:
    cache, x = filled(model, [140])
    # What overflow in half precision could have left behind.
    cache.data[:, :, 0, :, :140] = math.nan
    cache.clear(0)
    assert cache.lengths == [0]
    assert not cache.data.any()
    fresh, _ = filled(model, [9])
    prompt = torch.randn(1, 300, model.config.d_model, generator=torch.Generator().manual_seed(5))[0, :9]
    prefill(model, prompt, 0, cache)
    assert torch.equal(decode(model, x, [0], cache), decode(model, x, [0], fresh))


@pytest.mark.slow
def test_two_utterances_in_turn_equal_each_alone(golden: Path, model: LanguageModel) -> None:
    sampling = configs(golden)[1]
    texts = ([1, 2, 3], [40, 41, 42, 43])
    alone = [speak(Run(model, sampling, 200), SentenceDecoding([], text, [])) for text in texts]
    runs = [Run(model, sampling, 200) for _ in texts]
    decodings = [SentenceDecoding([], text, []) for text in texts]
    said: list[list[int]] = [[], []]
    while not all(decoding.done for decoding in decodings):
        for i, decoding in enumerate(decodings):
            speech = None if decoding.done else runs[i].step(decoding)
            said[i] += [] if speech is None else [speech]
    assert said == alone
    assert all(alone)


def test_an_utterance_writes_nothing_to_the_model(golden: Path, config: LmConfig, state: dict[str, Tensor]) -> None:
    kept = {name: tensor.clone() for name, tensor in state.items()}
    model = LanguageModel.from_state(config, state)
    before = {name: value for name, value in vars(model).items()}
    speak(Run(model, configs(golden)[1], 200), SentenceDecoding([4, 5], [1, 2, 3], [100]))
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())
    assert vars(model) == before


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_stays_near(
    config: LmConfig, state: dict[str, Tensor], model: LanguageModel, dtype: torch.dtype, bound: float
) -> None:
    """Largest difference of a hidden value, which are of size 1 after the final norm; logits are made in float32."""
    half = LanguageModel.from_state(config, {name: tensor.to(dtype) for name, tensor in state.items()})
    hidden = []
    for each in (model, half):
        cache = each.new_cache(1, 200)
        slot = 0
        x = each.embed(PROMPT)
        prefill(each, x[:-20], slot, cache)
        steps = [each.decode(x[i : i + 1], [slot], cache) for i in range(len(x) - 20, len(x))]
        hidden.append(torch.cat(steps).float())
        assert cache.data.dtype == each.dtype
        assert each.logits(steps[-1]).dtype == torch.float32
    error = (hidden[0] - hidden[1]).abs().max()
    assert 0 < error < bound


def steps_after_a_prompt(model: LanguageModel) -> Tensor:
    """Logits of 20 steps."""
    cache, x = model.new_cache(1, 200), model.embed(PROMPT)
    slot = 0
    prefill(model, x[:-20], slot, cache)
    return model.logits(torch.cat([model.decode(row, [slot], cache) for row in torch.split(x[-20:], 1)]))


def test_rounded_weights_stay_near(model: LanguageModel, rounded: LanguageModel) -> None:
    """The error as a share of the spread of all likely logits."""
    exact, near = steps_after_a_prompt(model), steps_after_a_prompt(rounded)
    assert near.dtype == rounded.dtype == torch.float32
    likely = exact > UNLIKELY / 2
    error = (near - exact)[likely]
    assert 0 < error.square().mean().sqrt() < 0.03 * exact[likely].std()
    assert (model.rows_are_exact, rounded.rows_are_exact) == (False, True)


def test_a_rounded_step_is_its_layers_one_after_the_other(rounded: LanguageModel) -> None:
    """The one call for all layers, beside the same maps called from PyTorch."""
    lengths = [1, 40, 17, 130]
    (cache, x), (other, _) = filled(rounded, lengths), filled(rounded, lengths)
    for step in range(3):
        slots = [2, 0, 3]
        rows = x[slots] * (step + 1)
        got = rounded.decode(rows, slots, cache)
        starts = [other.room(slot, 1) for slot in slots]
        wanted = rounded.run_layers(rows, other.rotary[:, starts], AttendSlots(other, slots, starts))
        for slot in slots:
            other.lengths[slot] += 1
        assert torch.allclose(got, wanted, rtol=0, atol=2e-3 * float(wanted.std()))
        assert torch.allclose(cache.data, other.data, rtol=0, atol=2e-3 * float(other.data.std()))


def test_a_row_with_rounded_weights_has_the_same_bits_in_any_batch(rounded: LanguageModel) -> None:
    """One, two or five rows in any order, with or without padding rows, of different lengths."""
    lengths = [3, 130, 1, 77, 20]
    alone = []
    cache, x = filled(rounded, lengths)
    for slot in range(len(lengths)):
        steps = [rounded.decode(x[slot : slot + 1] * (k + 1), [slot], cache) for k in range(5)]
        alone.append([(hidden[0], rounded.logits(hidden)[0]) for hidden in steps])
    cache, x = filled(rounded, lengths)
    scratch = cache.scratch_slot
    crowds = [[0, 1, 2, 3, 4], [4, 1], [scratch, 3, scratch], [2, 0, 3], [1], [3, 4, 2, 0, 1], [0, 2, 3, 4, 1]]
    n_done = [0] * len(lengths)
    for crowd in crowds:
        rows = torch.stack([x[slot] * (n_done[slot] + 1) if slot != scratch else x[0] for slot in crowd])
        hidden = rounded.decode(rows, crowd, cache)
        logits = rounded.logits(hidden)
        for i, slot in enumerate(crowd):
            if slot != scratch:
                expected = alone[slot][n_done[slot]]
                assert torch.equal(hidden[i], expected[0])
                assert torch.equal(logits[i], expected[1])
                n_done[slot] += 1
    assert min(n_done) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_changes_no_other_rounded_row(rounded: LanguageModel, bad: float) -> None:
    cache, x = filled(rounded, [30, 5, 12])
    clean, _ = filled(rounded, [30, 5, 12])
    x = x.clone()
    expected = rounded.decode(x, [0, 1, 2], clean)
    x[1, 7] = bad
    hidden = rounded.decode(x, [0, 1, 2], cache)
    assert rounded.logits(hidden)[1].isnan().all()
    assert torch.equal(hidden[[0, 2]], expected[[0, 2]])
    assert torch.equal(cache.data[:, :, [0, 2]], clean.data[:, :, [0, 2]])


def test_other_weights_than_int8_are_refused(config: LmConfig, state: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="int8 or None, not int3"):
        LanguageModel.from_state(config, state, "int3")  # type: ignore[arg-type]
    half = {name: tensor.half() for name, tensor in state.items()}
    with pytest.raises(ValueError, match="int8 weights are made of float32 on the CPU"):
        LanguageModel.from_state(config, half, "int8")


def test_the_norm_does_not_overflow_in_half_precision() -> None:
    """A value of 1000 squared is beyond float16; trained models have such values."""
    x = torch.tensor([[1000.0, -3000.0, 0.5, 0.0]])
    expected = x / x.square().mean().sqrt()
    got = RmsNorm(torch.ones(4, dtype=torch.float16), 1e-6)(x.half())
    assert torch.allclose(got.float(), expected, atol=2e-3)


def test_one_error_lists_every_bad_tensor(config: LmConfig, state: dict[str, Tensor]) -> None:
    bad = dict(state)
    del bad["llm_decoder.bias"]
    bad["speech_embedding.weight"] = bad["speech_embedding.weight"][:-1]
    bad["something.else"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"missing llm_decoder\.bias") as raised:
        LanguageModel.from_state(config, bad)
    assert "unexpected something.else" in str(raised.value)
    assert "speech_embedding.weight is [6563, 64] and should be [6564, 64]" in str(raised.value)


def test_a_tied_text_head_is_accepted_and_not_kept(config: LmConfig, state: dict[str, Tensor]) -> None:
    head = torch.zeros(config.n_text_rows, config.d_model)
    model = LanguageModel.from_state(config, {**state, "llm.model.lm_head.weight": head})
    assert all(value is not head for value in vars(model).values())


def test_the_official_sizes_make_the_official_count() -> None:
    """505 803 812 elements without the duplicate head (specification 2)."""
    shapes = lm_outline(LmConfig(), {}).shapes
    assert sum(math.prod(shape) for shape in shapes.values()) == 505_803_812
    assert len(shapes) == 295 - 1


def test_a_full_cache_is_an_error_and_changes_nothing(model: LanguageModel) -> None:
    cache = model.new_cache(2, 10)
    x = torch.zeros(11, model.config.d_model)
    full, other = 0, 1
    with pytest.raises(EngineError, match="shorter pieces"):
        prefill(model, x, full, cache, n_chunk=4)
    assert cache.lengths == [0, 0]
    prefill(model, x[:10], full, cache)
    before = cache.data.clone()
    with pytest.raises(EngineError, match="exceed 10"):
        model.decode(x[:2], [other, full], cache)
    assert cache.lengths == [10, 0]
    assert torch.equal(cache.data, before)


def test_only_a_slot_can_be_cleared(model: LanguageModel) -> None:
    cache = model.new_cache(2, 10)
    for slot in (-1, cache.scratch_slot, 7):
        with pytest.raises(ValueError, match=f"no slot {slot} among 2"):
            cache.clear(slot)
    cache.clear(0)
    assert cache.lengths == [0, 0]


def test_a_batch_names_each_slot_once(model: LanguageModel) -> None:
    cache, x = filled(model, [3, 3])
    with pytest.raises(ValueError, match="no slot twice"):
        model.decode(x, [1, 1], cache)
    with pytest.raises(ValueError, match="one row for each slot"):
        model.decode(x, [1], cache)
    with pytest.raises(ValueError, match="no slot 7"):
        model.decode(x, [0, 7], cache)
    with pytest.raises(ValueError, match="needs slots and positions"):
        model.new_cache(0, 10)


def test_an_unknown_id_is_an_error(model: LanguageModel) -> None:
    for table, ids in ((EmbeddingTable.TEXT, (model.config.n_text_rows,)), (EmbeddingTable.SPEECH, (1, -1))):
        segment = TokenSegment(table, ids)
        with pytest.raises(EngineError, match=r"token outside 0 to \d+"):
            model.embed([segment])


def test_speech_ids_on_the_device_embed_alike(model: LanguageModel) -> None:
    ids = (5, 6563, 0)
    assert torch.equal(model.embed_speech(torch.tensor(ids)), model.embed([TokenSegment(EmbeddingTable.SPEECH, ids)]))
