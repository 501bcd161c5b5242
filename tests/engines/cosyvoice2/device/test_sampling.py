"""Repetition-aware sampling against a plain version of the rule, and the independence of utterances."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.sampling import Sampler, draw, mask_stops, splitmix64, uniforms
from telephony_tts.engines.cosyvoice2.model.config import EOS, FILL, N_SPEECH_ROWS, UNUSED_STOP, SamplingConfig

CONFIG = SamplingConfig()
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def unsigned(x: Tensor) -> int:
    return int(x) & MASK


def signed(x: int) -> int:
    x &= MASK
    return x - (1 << 64) if x >> 63 else x


def plain_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_the_mixer_is_splitmix64() -> None:
    """The sequence of seed 1234567, as published for implementations to check against."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = [signed(1234567 + k * GOLDEN) for k in range(1, 5)]
    assert [unsigned(x) for x in splitmix64(torch.tensor(states))] == expected


def test_uniforms_depend_only_on_seed_and_counter() -> None:
    rng = random.Random(1)
    seeds = [signed(rng.getrandbits(64)) for _ in range(50)] + [0, -1, 2**63 - 1, -(2**63)]
    counts = [rng.randrange(5000) for _ in seeds]
    both = uniforms(torch.tensor(seeds), torch.tensor(counts))
    few = [uniforms(torch.tensor(seeds[i : i + 3]), torch.tensor(counts[i : i + 3])) for i in range(0, 54, 3)]
    for k, u in enumerate(both):
        assert torch.equal(torch.cat([each[k] for each in few]), u), "few rows are computed in another way"
    for i, (seed, count) in enumerate(zip(seeds, counts, strict=True)):
        start = plain_mix((seed + GOLDEN) & MASK)
        for k, u in enumerate(both):
            word = plain_mix((start + (2 * count + k + 1) * GOLDEN) & MASK)
            assert float(u[i]) == (word >> 11) * 2.0**-53


def test_uniforms_are_uniform() -> None:
    u1, u2 = uniforms(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    u3, _ = uniforms(torch.full((20_000,), 7), torch.arange(20_000))
    for u in (u1, u2, u3):
        assert float(u.min()) >= 0
        assert float(u.max()) < 1
        counts = torch.histc(u, 20, 0, 1)
        # Chi-square with 19 degrees of freedom exceeds 43.8 once in a thousand.
        assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8
    assert abs(float(torch.corrcoef(torch.stack((u1, u2)))[0, 1])) < 0.03


def plain_draw(logits: list[float], recent: list[int], u1: float, u2: float) -> int:
    """The rule, one utterance and one number at a time (specification 4.3)."""

    def invert(weights: list[float], u: float) -> int:
        total, running = math.fsum(weights), 0.0
        for i, weight in enumerate(weights):
            running += weight
            if running / total > u:
                return i
        return len(weights) - 1

    most = max(logits)
    probs = [math.exp(x - most) for x in logits]
    total = math.fsum(probs)
    kept: list[int] = []
    mass = 0.0
    for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
        if mass >= CONFIG.top_p or len(kept) == CONFIG.top_k:
            break
        kept.append(i)
        mass += probs[i] / total
    first = kept[invert([probs[i] for i in kept], u1)]
    if recent.count(first) < CONFIG.window * CONFIG.max_repeat:
        return first
    return invert([0.0 if i == first else p for i, p in enumerate(probs)], u2)


def test_draws_equal_those_of_the_plain_rule() -> None:
    generator = torch.Generator().manual_seed(3)
    n_rows, n_repeated = 300, 0
    scale = torch.linspace(0.1, 12, n_rows)[:, None]
    logits = torch.randn(n_rows, 60, generator=generator) * scale
    u = torch.rand(2, n_rows, generator=generator, dtype=torch.float64)
    recent = torch.randint(-1, 60, (n_rows, CONFIG.window), generator=generator)
    recent[::2, 3] = logits[::2].argmax(dim=-1)
    drawn = draw(torch.log_softmax(logits, -1), recent, u[0], u[1], CONFIG)
    n_repeated = int(drawn.repeated.sum())
    expected = [plain_draw(*(x[i].tolist() for x in (logits, recent, u[0], u[1]))) for i in range(n_rows)]
    assert drawn.ids.tolist() == expected
    assert 50 < n_repeated < n_rows - 50
    assert int(drawn.nucleus_size.min()) == 1
    assert int(drawn.nucleus_size.max()) == CONFIG.top_k


def test_equal_probabilities_rank_by_id() -> None:
    logits = torch.zeros(1, 100)
    zero = torch.zeros(1, dtype=torch.float64)
    nothing = torch.full((1, CONFIG.window), -1)
    for k in range(CONFIG.top_k):
        u1 = torch.tensor([(k + 0.5) / CONFIG.top_k], dtype=torch.float64)
        assert int(draw(logits, nothing, u1, zero, CONFIG).ids) == k


@pytest.mark.parametrize("u2", [0.0, 0.3, 1 - 2**-53])
def test_the_second_draw_is_never_the_repeated_id(u2: float) -> None:
    """Not even if the id had almost all of the probability. Ids outside the nucleus may be drawn."""
    logits = torch.zeros(1, 50)
    logits[0, 20] = 40.0
    recent = torch.full((1, CONFIG.window), 20)
    zero, second = torch.zeros(1, dtype=torch.float64), torch.tensor([u2], dtype=torch.float64)
    drawn = draw(torch.log_softmax(logits, -1), recent, zero, second, CONFIG)
    assert int(drawn.ids) == {0.0: 0, 0.3: 14}.get(u2, 49)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_masked_ids_are_never_drawn(u: float) -> None:
    logits = torch.zeros(1, N_SPEECH_ROWS)
    logits[0, EOS:] = 30.0
    banned = torch.tensor([[True, False, True]])
    at = torch.tensor([u], dtype=torch.float64)
    nothing = torch.full((1, CONFIG.window), -1)
    log_probs = mask_stops(logits, banned)
    assert torch.isinf(log_probs[0, EOS:]).tolist() == [True, False, True]
    assert int(draw(log_probs, nothing, at, at, CONFIG).ids) == UNUSED_STOP
    repeated = torch.full((1, CONFIG.window), UNUSED_STOP)
    assert int(draw(log_probs, repeated, at, at, CONFIG).ids) in (0, EOS - 1)


def rows_of(n_steps: int, n_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return 3 * torch.randn(n_steps, n_rows, N_SPEECH_ROWS, generator=generator)


def test_an_utterance_draws_the_same_alone_and_in_a_batch() -> None:
    logits = rows_of(30, 3)
    # A few strong ids, so that the window matters.
    logits[:, :, :6] += 14
    alone = Sampler(CONFIG, 1)
    alone.start(0, seed=77)
    expected = [int(alone.sample(logits[i, 1:2], [0], [()])) for i in range(30)]
    crowd = Sampler(CONFIG, 3)
    for slot, seed in ((0, 5), (2, 77), (1, 6)):
        crowd.start(slot, seed)
    got = []
    for i in range(30):
        scratch = crowd.scratch_slot
        slots = [0, 2, 1] if i < 10 else [scratch, 2, scratch] if i < 20 else [1, 2, scratch]
        got.append(int(crowd.sample(logits[i], slots, [()] * 3)[1]))
        if i == 15:
            crowd.start(1, 9)
    assert got == expected
    assert len(set(expected)) > 5


def test_the_seed_decides_and_a_new_utterance_begins_a_new_sequence() -> None:
    logits = rows_of(12, 1)
    sampler = Sampler(CONFIG, 1)
    runs = []
    for seed in (1, 2, 1, -1, 2**64 - 1, 1 << 80 | 1):
        sampler.start(0, seed)
        runs.append([int(sampler.sample(row, [0], [()])) for row in logits])
    assert runs[0] == runs[2] == runs[5]
    assert runs[3] == runs[4]
    assert len({tuple(run) for run in runs}) == 3


def test_a_repeated_id_is_avoided_for_the_length_of_the_window() -> None:
    logits = torch.full((1, N_SPEECH_ROWS), -50.0)
    logits[0, :40] = torch.linspace(-4, -5, 40)
    logits[0, 7] = 10.0
    sampler = Sampler(CONFIG, 1)
    sampler.start(0, 4)
    said = [int(sampler.sample(logits, [0], [()])) for _ in range(45)]
    # The one id of the nucleus comes, and again as soon as the last one has left the window of ten.
    assert [i for i, item in enumerate(said) if item == 7] == [0, 11, 22, 33, 44]


def test_rows_obey_their_own_bans_and_forced_ids() -> None:
    logits = torch.zeros(3, N_SPEECH_ROWS)
    logits[:, EOS], logits[:, FILL] = 50.0, 40.0
    sampler = Sampler(CONFIG, 3)
    for slot in range(3):
        sampler.start(slot, slot)
    for likeliest in (False, True):
        bans = [(), (EOS,), (EOS, UNUSED_STOP)]
        ids = sampler.sample(logits, [0, 1, 2], bans, [None, None, 12], likeliest=likeliest)
        assert ids.tolist() == [EOS, FILL, 12]
        for slot in range(3):
            sampler.start(slot, slot)
    # A forced id is in the window like any other.
    logits[0, 12] = 90.0
    sampler.sample(logits[:1], [0], [()], [12])
    assert int(sampler.sample(logits[:1], [0], [()])) != 12


@pytest.mark.slow
def test_sampling_never_reads_from_the_device() -> None:
    """On meta tensors every read of a value fails."""
    sampler = Sampler(CONFIG, 4, device="meta")
    sampler.start(1, 5)
    logits = torch.zeros(3, N_SPEECH_ROWS, device="meta")
    ids = sampler.sample(logits, [1, 2, sampler.scratch_slot], [(EOS,), (), ()], [None, FILL, None])
    assert ids.shape == (3,)
    assert ids.device.type == "meta"


def test_rows_of_wrong_numbers_are_refused() -> None:
    sampler = Sampler(CONFIG, 2)
    logits = torch.zeros(2, N_SPEECH_ROWS)
    with pytest.raises(ValueError, match="2 rows of logits"):
        sampler.sample(logits, [0], [()])
    with pytest.raises(ValueError, match="only stop ids can be banned: 6561 to 6563"):
        sampler.sample(logits, [0, 1], [(), (5,)])
