"""Keys and values of a stream: what is kept, in how many pieces, and what a failed step leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.cache import KeyValues

B, H, D = 2, 3, 4


def key_values(growth: int, device: str = "cpu") -> KeyValues:
    return KeyValues(torch.empty(2, B, H, 0, device=device), D, growth)


def new(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, H, n, D, generator=g), torch.randn(B, H, n, D, generator=g)


@pytest.mark.parametrize(
    ("growth", "pieces"),
    [
        (0, [[5], [5, 5], [5, 5, 3], [5, 5, 3, 9]]),
        (10, [[5], [10], [10, 3], [10, 3, 9]]),
        (13, [[5], [10], [13], [13, 9]]),
        (99, [[5], [10], [13], [22]]),
    ],
)
def test_on_a_cpu_pieces_have_no_spare_room(growth: int, pieces: list[list[int]]) -> None:
    prompt = key_values(0)
    prompt.append(*new(7, 0))
    prompt.commit()
    kv, chunks = prompt.fork(growth), [new(7, 0)]
    for seed, (n, lengths) in enumerate(zip((5, 5, 3, 9), pieces, strict=True), 1):
        kv.append(*new(n, 50))  # of a step that failed: it counts for nothing
        chunks.append(new(n, seed))
        seen = kv.append(*chunks[-1])
        kv.commit()
        assert [k.shape[2] for k, _ in seen] == [7, *lengths]
        for i in (0, 1):
            assert torch.equal(torch.cat([piece[i] for piece in seen], dim=2), torch.cat([c[i] for c in chunks], dim=2))
            assert all(piece[i].is_contiguous() for piece in seen)
        assert sum(t.numel() for t in kv.tensors()) == 2 * B * H * D * sum(lengths)


def test_elsewhere_one_buffer_grows() -> None:
    kv = key_values(10, "meta")
    for n, total, capacity in ((5, 5, 10), (5, 10, 10), (3, 13, 20), (19, 32, 32)):
        seen = kv.append(*(part.to("meta") for part in new(n, 1)))
        kv.commit()
        assert [k.shape[2] for k, _ in seen] == [total] and kv.own.shape[3] == capacity * D


def test_only_one_full_piece_is_forked() -> None:
    kv = key_values(0)
    for seed in range(2):
        kv.append(*new(5, seed))
        kv.commit()
    with pytest.raises(ValueError, match="one piece"):
        kv.fork(10)
