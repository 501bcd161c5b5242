"""The language model of CosyVoice-300M, slowly: formulas of the specification (300M, 4) in float64, everything anew.

No cache, no table of positions, no code of the engine: made to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

END = 4096


class SlowRelativeLm:
    def __init__(self, state: dict[str, Tensor]) -> None:
        self.w = {name: tensor.double() for name, tensor in state.items()}

    def speaker(self, embedding: Tensor) -> Tensor:
        """[1, 192] -> [1, D]"""
        x = embedding.double()
        return self._linear(x / x.square().sum().sqrt(), "spk_embed_affine_layer")

    def text(self, ids: Sequence[int]) -> Tensor:
        """The text encoder: token i sees tokens 0..i."""
        x = self.w["text_embedding.weight"][list(ids)]
        x = self._norm(self._linear(x, "text_encoder.embed.out.0"), "text_encoder.embed.out.1", 1e-5)
        x = self._stack(x * math.sqrt(x.shape[1]), "text_encoder", ("norm_mha", "norm_ff"), F.silu)
        return self._linear(x, "text_encoder_affine_layer")

    def prompt(
        self, text: Sequence[int], speech: Sequence[int] = (), speaker: Tensor | None = None
    ) -> Tensor:
        """sos | speaker | text | task | prompt speech, as rows before the decoder's input layer."""
        control = self.w["llm_embedding.weight"]
        rows = [control[:1], *([] if speaker is None else [self.speaker(speaker)]), self.text(text), control[1:]]
        return torch.cat([*rows, self.speech(speech)])

    def speech(self, ids: Sequence[int]) -> Tensor:
        return self.w["speech_embedding.weight"][list(ids)]

    def hidden(self, rows: Tensor) -> Tensor:
        x = F.relu(self._norm(self._linear(rows, "llm.embed.out.0"), "llm.embed.out.1", 1e-5))
        return self._stack(x * math.sqrt(x.shape[1]), "llm", ("norm1", "norm2"), F.relu)

    def logits(self, rows: Tensor) -> Tensor:
        """Of the id after the last row, [4097]."""
        return self._linear(self.hidden(rows)[-1], "llm_decoder")

    def sentence(self, rows: Tensor, n_text: int, end_bias: float = 0.0) -> tuple[list[int], list[Tensor]]:
        """The likeliest ids after the rows, from 2 to 20 for each text token, and the log-probabilities of each."""
        ids: list[int] = []
        found = []
        for n in range(20 * n_text):
            logits = self.logits(rows)
            logits[END] += end_bias
            log_p = logits.log_softmax(0)
            if n < 2 * n_text:
                log_p[END] = -math.inf
            found.append(log_p)
            best = int(log_p.argmax())
            if best == END:
                break
            ids.append(best)
            rows = torch.cat([rows, self.speech([best])])
        return ids, found

    def _stack(self, x: Tensor, name: str, norms: tuple[str, str], activation: object) -> Tensor:
        n_layers = len({key.split(".")[2] for key in self.w if key.startswith(f"{name}.encoders.")})
        for i in range(n_layers):
            at = f"{name}.encoders.{i}"
            x = x + self._attention(self._norm(x, f"{at}.{norms[0]}", 1e-12), f"{at}.self_attn")
            h = self._linear(self._norm(x, f"{at}.{norms[1]}", 1e-12), f"{at}.feed_forward.w_1")
            x = x + self._linear(activation(h), f"{at}.feed_forward.w_2")  # type: ignore[operator]
        return self._norm(x, f"{name}.after_norm", 1e-5)

    def _attention(self, x: Tensor, at: str) -> Tensor:
        """Each score by itself: ((q + u) k + (q + v) W r(i - j)) / sqrt(d)."""
        u, v = self.w[f"{at}.pos_bias_u"], self.w[f"{at}.pos_bias_v"]
        n_heads, d = u.shape
        n = len(x)
        q, k, values = (self._linear(x, f"{at}.linear_{part}").view(n, n_heads, d) for part in "qkv")
        positions = [F.linear(sinusoid(r, n_heads * d), self.w[f"{at}.linear_pos.weight"]) for r in range(n)]
        rows = []
        for i in range(n):
            heads = []
            for h in range(n_heads):
                of_head = slice(h * d, (h + 1) * d)
                scores = [
                    (q[i, h] + u[h]) @ k[j, h] + (q[i, h] + v[h]) @ positions[i - j][of_head] for j in range(i + 1)
                ]
                weights = (torch.stack(scores) / math.sqrt(d)).softmax(0)
                heads.append(weights @ values[: i + 1, h])
            rows.append(torch.cat(heads))
        return self._linear(torch.stack(rows), f"{at}.linear_out")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        wide = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        return centred / wide * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]


def sinusoid(distance: int, d: int) -> Tensor:
    """Sine and cosine by turns, of distance * 10000^(-2i/d)."""
    angle = distance * 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    return torch.stack([angle.sin(), angle.cos()], 1).flatten()
