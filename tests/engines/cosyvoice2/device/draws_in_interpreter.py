"""Runs the kernels of `triton_sampling` in Triton's interpreter, on a CPU: prints how much differs from PyTorch.

A JSON object: the name of a comparison, and how many numbers differ in it.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.decode_steps import DecodeSteps
from telephony_tts.engines.cosyvoice2.device.prompt_steps import PromptSteps
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler, banned_at, draw, mask_stops, uniforms
from telephony_tts.engines.cosyvoice2.device.triton_sampling import SlotDraws
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_ROWS, N_SPEECH_TOKENS, LmConfig, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.lm import DecoderLayer, KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable

CONFIG = SamplingConfig()
NOT_FINITE = [4, 5, 6, 7, 8]
"""Rows of `random_logits`; of the last two only the last stop id, which is banned."""
found: dict[str, int] = {}


def compare(name: str, ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    found[name] = found.get(name, 0) + int((ours != theirs).sum())


def two_samplers(n_slots: int, n_speech: int) -> tuple[Sampler, Sampler]:
    """In the same state; the first draws with the kernels."""
    seeds = torch.randint(-(2**62), 2**62, (n_slots,)).tolist()
    ours, theirs = (Sampler(CONFIG, n_slots, n_speech=n_speech) for _ in range(2))
    for sampler in (ours, theirs):
        for slot, seed in enumerate(seeds):
            sampler.start(slot, seed)
    ours.on_gpu = SlotDraws(ours.seeds, ours.n_drawn, ours.recent, CONFIG, n_speech)
    return ours, theirs


def random_logits(n: int, n_ids: int, dtype: torch.dtype) -> Tensor:
    """From flat to peaked. Some rows have many equal logits, and some are not finite."""
    logits = torch.randn(n, n_ids) * torch.linspace(0.05, 10, n)[:, None] + 20 * torch.rand(n, 1)
    logits[:2], logits[2:4] = 3.0, logits[2:4].round()
    logits[4, 9], logits[5, 9], logits[6] = torch.nan, torch.inf, -torch.inf
    logits[NOT_FINITE[3:], -1] = torch.tensor([torch.nan, torch.inf])
    logits[9, :9] = -torch.inf
    logits[::3, -1] += 30
    return logits.to(dtype)


def draws(n_ids: int, n_speech: int, dtype: torch.dtype, n_calls: int) -> None:
    """Rows of many kinds, in slots of any order. Half of them have said their likeliest ids before."""
    n = 24
    ours, theirs = two_samplers(n, n_speech)
    name, n_repeated = f"of {n_ids}, {dtype}", 0
    for call in range(n_calls):
        logits, slots = random_logits(n, n_ids, dtype), torch.randperm(n)
        bans = torch.randint(0, 1 << n_ids - n_speech, (n,))
        bans[NOT_FINITE[3:]] = 1 << n_ids - n_speech - 1
        forced = torch.where(torch.rand(n) < 0.1, torch.randint(0, n_ids, (n,)), -1) if call else None
        said = logits.float().nan_to_num(-9, -9, -9).topk(8).indices
        for sampler in (ours, theirs):
            sampler.recent[slots[::2], :8] = said[::2]
        log_probs = mask_stops(logits, banned_at(bans, n_ids - n_speech))
        u1, u2 = uniforms(theirs.seeds[slots], theirs.n_drawn[slots])
        n_repeated += int(draw(log_probs, theirs.recent[slots], u1, u2, CONFIG).repeated.sum())
        ids = ours.sample_at(logits, slots, bans, forced)
        compare(f"ids {name}", ids, theirs.sample_at(logits, slots, bans, forced))
        assert (ids == -1).nonzero()[:, 0].tolist() == NOT_FINITE
    compare(f"last ids {name}", ours.recent, theirs.recent)
    compare(f"numbers of draws {name}", ours.n_drawn, theirs.n_drawn)
    assert n_calls * n / 6 < n_repeated < n_calls * n


def small_model() -> LanguageModel:
    """One layer, and the official ids."""
    config = LmConfig(n_text_rows=30, d_model=48, n_layers=1, n_heads=3, n_kv_heads=1, d_ff=32)

    def matrix(n: int, d: int, norm: bool = False) -> FloatMatrix:
        return FloatMatrix(torch.randn(n, d) / d**0.5, RmsNorm(torch.rand(d) + 0.5, 1e-6) if norm else None)

    layer = DecoderLayer(matrix(80, 48, True), torch.randn(80), matrix(48, 48), matrix(64, 48, True), matrix(48, 32))
    sizes = {EmbeddingTable.CONTROL: 2, EmbeddingTable.TEXT: 30, EmbeddingTable.SPEECH: N_SPEECH_ROWS}
    tables = {table: torch.randn(n, 48) for table, n in sizes.items()}
    head_bias = torch.randn(N_SPEECH_ROWS)
    head_bias[N_SPEECH_TOKENS:] += 4
    return LanguageModel(config, tables, [layer], torch.rand(48) + 3, matrix(N_SPEECH_ROWS, 48), head_bias)


def decode_steps(model: LanguageModel) -> None:
    """Two calls of several steps. The second has fewer rows than the tensors, and one of them is not finite."""
    samplers, n_slots = two_samplers(4, N_SPEECH_TOKENS), 4
    kept = []
    for sampler in samplers:
        torch.manual_seed(5)
        cache = KvCache(model.config, n_slots, 32, torch.float32)
        steps = DecodeSteps(model, cache, sampler, 4, Graphs(torch.device("cpu")))
        stop = N_SPEECH_TOKENS
        bans = [((stop,), (stop + 1, stop + 2), (), (stop,))] * 3
        ids = [steps.draw([5, 6, 7], [2, 0, 3], bans, [None, 17, None]).clone()]
        cache.data[:, :, 3] = torch.nan
        ids.append(steps.draw([9, 3], [3, 1], [((),) * 3] * 2, [None, None]).clone())
        kept.append((*ids, steps._inputs[:, :2], steps._i[:2], cache.data[:, :, :3], sampler.recent, sampler.n_drawn))
    names = "ids", "ids of fewer rows", "inputs", "steps", "keys and values", "last ids", "numbers of draws"
    for name, ours, theirs in zip(names, *kept, strict=True):
        is_padding = name in ("last ids", "numbers of draws")
        compare(f"{name} of decode steps", *((each[:-1] if is_padding else each) for each in (ours, theirs)))
    assert kept[0][1][:, 0].tolist() == [-1] * 3


def prompt_rows(model: LanguageModel) -> None:
    table, ids = torch.tensor([0, 1, 2, 1, 0, 2]), torch.tensor([1, 29, N_SPEECH_ROWS - 1, 0, 0, 77])
    rows = []
    for sampler in two_samplers(1, N_SPEECH_TOKENS):
        cache = KvCache(model.config, 1, 32, torch.float32)
        rows.append(PromptSteps(model, cache, sampler, 1, Graphs(torch.device("cpu")))._embedded(table, ids))
    compare("embeddings of a prompt", *rows)


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    torch.set_num_threads(1)
    with torch.inference_mode():
        draws(N_SPEECH_ROWS, N_SPEECH_TOKENS, torch.float32, 4)
        draws(N_SPEECH_ROWS, N_SPEECH_TOKENS, torch.float16, 4)
        draws(20, 18, torch.float32, 3)
        model = small_model()
        decode_steps(model)
        prompt_rows(model)
    print(json.dumps(found))
