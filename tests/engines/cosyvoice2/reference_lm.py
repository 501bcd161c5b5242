"""The language model once more, slowly: formulas of the specification (4) in float64, everything anew at each step.

No cache, no batch, no code of the engine: made to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

EOS, FILL, N_SPEECH = 6561, 6563, 6561
BODY = "llm.model.model."


class SlowLm:
    def __init__(self, state: dict[str, Tensor], n_heads: int, n_kv_heads: int, eps: float, theta: float) -> None:
        self.w = {name: tensor.double() for name, tensor in state.items()}
        self.n_heads, self.n_kv_heads, self.eps, self.theta = n_heads, n_kv_heads, eps, theta
        self.n_layers = sum(name.endswith("input_layernorm.weight") for name in state)

    def text(self, ids: Sequence[int]) -> Tensor:
        return self.w[f"{BODY}embed_tokens.weight"][list(ids)]

    def speech(self, ids: Sequence[int]) -> Tensor:
        return self.w["speech_embedding.weight"][list(ids)]

    def control(self, which: int) -> Tensor:
        return self.w["llm_embedding.weight"][which : which + 1]

    def hidden(self, x: Tensor) -> Tensor:
        """All positions [n, D] at once -> [n, D]."""
        n = len(x)
        for i in range(self.n_layers):
            at = f"{BODY}layers.{i}."
            h = self._norm(x, at + "input_layernorm.weight")
            q, k, v = (
                F.linear(h, self.w[f"{at}self_attn.{p}_proj.weight"], self.w[f"{at}self_attn.{p}_proj.bias"])
                for p in "qkv"
            )
            d = q.shape[1] // self.n_heads
            out = []
            for head in range(self.n_heads):
                shared = head * self.n_kv_heads // self.n_heads
                one = self._turn(q[:, head * d : (head + 1) * d])
                other = self._turn(k[:, shared * d : (shared + 1) * d])
                scores = (one @ other.T / math.sqrt(d)).masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf)
                out.append(scores.softmax(1) @ v[:, shared * d : (shared + 1) * d])
            x = x + F.linear(torch.cat(out, 1), self.w[at + "self_attn.o_proj.weight"])
            h = self._norm(x, at + "post_attention_layernorm.weight")
            gate, up = (F.linear(h, self.w[f"{at}mlp.{p}_proj.weight"]) for p in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.w[at + "mlp.down_proj.weight"])
        return self._norm(x, f"{BODY}norm.weight")

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(hidden, self.w["llm_decoder.weight"], self.w["llm_decoder.bias"] if bias is None else bias)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(1, keepdim=True) + self.eps).sqrt() * self.w[name]

    def _turn(self, x: Tensor) -> Tensor:
        """Rotary positions: pair (j, j + d/2) turned by position * theta^(-2j/d)."""
        n, d = x.shape
        angle = torch.arange(n).double()[:, None] * self.theta ** (-torch.arange(0, d, 2).double() / d)
        a, b = x[:, : d // 2], x[:, d // 2 :]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1)


@dataclass
class Said:
    """What a run gave: ids, margins between best and second best, log-probabilities before the choice."""

    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)


def prompt(lm: SlowLm, prompt_text: Sequence[int], text: Sequence[int], prompt_speech: Sequence[int]) -> Tensor:
    return torch.cat([lm.control(0), lm.text([*prompt_text, *text]), lm.control(1), lm.speech(prompt_speech)])


def sentence(lm: SlowLm, x: Tensor, n_text: int, bias: Tensor | None = None) -> Said:
    """The likeliest ids after x, from 2 to 20 for each text token; only 6561 waits for the shortest length."""
    said = Said()
    for n in range(20 * n_text):
        log_p = lm.logits(lm.hidden(x)[-1], bias).log_softmax(0)
        if n < 2 * n_text:
            log_p[EOS] = -math.inf
        best = log_p.topk(2)
        token = int(best.indices[0])
        said.log_probs.append(log_p)
        if token >= N_SPEECH:
            return said
        said.ids.append(token)
        said.margins.append(float(best.values[0] - best.values[1]))
        x = torch.cat([x, lm.speech([token])])
    return said


@dataclass
class Interleaved:
    """What the interleaved mode did; `error` where it ended in one."""

    yielded: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    pulls: list[tuple[int, int]] = field(default_factory=list)
    error: str = ""


def interleaved(
    lm: SlowLm,
    prompt_text: Sequence[int],
    prompt_speech: Sequence[int],
    text: Sequence[int],
    bias: Tensor,
    n_most: int,
    mix: tuple[int, int],
) -> Interleaved:
    """Specification 4.4 as it is written there, greedy; the end is forced after n_most ids."""
    run = Interleaved()
    seen = lm.text([])
    out: list[int] = []

    def forward(x: Tensor) -> Tensor:
        nonlocal seen
        run.lengths.append(len(x))
        seen = torch.cat([seen, x])
        return lm.logits(lm.hidden(seen)[-1], bias)

    def best(logits: Tensor, banned: list[int]) -> int:
        logits[banned] = -math.inf
        return int(logits.argmax())

    for token in _interleave(lm, list(prompt_text), list(prompt_speech), text, mix, n_most, out, run, forward, best):
        run.yielded.append(token)
    return run


def _interleave(
    lm: SlowLm,
    cached: list[int],
    speech: list[int],
    text: Sequence[int],
    mix: tuple[int, int],
    n_most: int,
    out: list[int],
    run: Interleaved,
    forward: Callable[[Tensor], Tensor],
    best: Callable[[Tensor, list[int]], int],
) -> Iterator[int]:
    n_text, n_speech = mix
    x = start = lm.control(0)
    next_fill = (len(speech) // n_speech + 1) * n_speech - len(speech)
    for index, token in enumerate(text):
        run.pulls.append((index, len(run.yielded)))
        cached.append(token)
        while speech and len(cached) >= n_text:
            x = torch.cat([x, lm.text(cached[:n_text]), lm.speech(speech[:n_speech])])
            cached, speech = cached[n_text:], speech[n_speech:]
        if speech:
            continue
        after_fill = bool(out) and out[-1] == FILL
        if after_fill or (not out and len(x) == 1):
            if len(cached) < n_text:
                continue
            x = torch.cat([x[:0] if after_fill else start, lm.text(cached[:n_text])])
            cached = cached[n_text:]
        while True:
            logits = forward(x)
            token = FILL if len(out) == next_fill else best(logits, [EOS])
            if token == FILL:
                next_fill = len(out) + n_speech + 1
            out.append(token)
            if token == FILL:
                break
            if token >= N_SPEECH:
                run.error = "ValueError"
                return
            yield token
            x = lm.speech([token])
    x = torch.cat([x, lm.text(cached), lm.control(1)])
    while True:
        logits = forward(x)
        token = EOS if len(out) >= n_most else best(logits, [EOS + 1, FILL])
        out.append(token)
        if token == EOS:
            return
        yield token
        x = lm.speech([token])


def nucleus_draw(
    log_p: Tensor, recent: Sequence[int], u1: float, u2: float, top_p: float, top_k: int, window: int, share: float
) -> dict[str, object]:
    """Repetition-aware sampling (specification 4.3), one id at a time."""
    p = log_p.double().softmax(0).tolist()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept: list[int] = []
    total = 0.0
    for i in order:
        if total >= top_p or len(kept) >= top_k:
            break
        kept.append(i)
        total += p[i]

    def choose(ids: Sequence[int], weights: Sequence[float], u: float) -> int:
        whole, so_far = math.fsum(weights), 0.0
        for place, weight in enumerate(weights):
            so_far += weight
            if so_far / whole > u:
                return place
        return len(ids) - 1

    pick = choose(kept, [p[i] for i in kept], u1)
    final = kept[pick]
    repeated = list(recent[-window:]).count(final) >= window * share
    if repeated:
        others = [i for i in range(len(p)) if i != final]
        final = others[choose(others, [p[i] for i in others], u2)]
    return {"n": len(kept), "probs": [p[i] for i in kept], "pick": pick, "repeated": repeated, "final": final}
