"""Pages of a stream on a CPU: what is kept, in how many pieces, and what a pass that failed leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.host_pages import HostPage, HostPass, PassStorage, next_page
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable, PassLayout

B, H, D = 2, 3, 4
LAYOUT = PassLayout(n_rows=B, n_heads=H, d_head=D, rates=(1, 2), contexts=((2, 5),))


def new(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, H, n, D, generator=g), torch.randn(B, H, n, D, generator=g)


def begin_pass(storage: PassStorage, table: PageTable, n: int) -> tuple[HostPage, HostPass]:
    page = next_page(table, n, n_steps=0)
    pages = [each for each in table.pages if isinstance(each, HostPage)]
    sizes = table.n_tokens, page.n_copied, n
    return page, HostPass(storage, [each.encoder for each in pages], page.encoder, sizes)


@pytest.mark.parametrize(
    ("piece", "pieces"),
    [
        (0, [[5], [5, 5], [5, 5, 3], [5, 5, 3, 9]]),
        (10, [[5], [10], [10, 3], [10, 3, 9]]),
        (13, [[5], [10], [13], [13, 9]]),
        (99, [[5], [10], [13], [22]]),
    ],
)
def test_pieces_have_no_spare_room(piece: int, pieces: list[list[int]]) -> None:
    storage = PassStorage(LAYOUT, torch.empty(0), torch.float32, piece)
    voice = PageTable()
    page, context = begin_pass(storage, voice, 7)
    for layer, rate in enumerate(LAYOUT.rates):
        context.append(layer, *new(7 * rate, 0))
    context.commit()
    voice.append([page])
    table = voice.fork()
    chunks = [new(7, 0)]
    for seed, (n, lengths) in enumerate(zip((5, 5, 3, 9), pieces, strict=True), 1):
        _, failed = begin_pass(storage, table, n)
        failed.append(0, *new(n, 50))  # a pass that fails here has changed nothing
        chunks.append(new(n, seed))
        page, context = begin_pass(storage, table, n)
        seen = context.append(0, *chunks[-1])
        context.append(1, *new(2 * n, seed))
        context.commit()
        table.append([page])
        assert [k.shape[2] for k, _ in seen] == [7, *lengths]
        for i in (0, 1):
            assert torch.equal(torch.cat([piece[i] for piece in seen], dim=2), torch.cat([c[i] for c in chunks], dim=2))
            assert all(piece[i].is_contiguous() for piece in seen)
        assert sum(each.untyped_storage().nbytes() for each in page.encoder.kv[0]) == 4 * 2 * B * H * D * sum(lengths)
        assert table.n_shared == 1 and len(table.pages) == 2 and table.n_tokens == 7 + sum(lengths)


def test_a_voice_is_neither_grown_nor_copied_by_its_streams() -> None:
    storage = PassStorage(LAYOUT, torch.empty(0), torch.float32, 100)
    voice = PageTable()
    page, context = begin_pass(storage, voice, 7)
    of_voice = [context.append(layer, *new(7 * rate, 0))[0] for layer, rate in enumerate(LAYOUT.rates)]
    context.commit()
    voice.append([page])
    before = [k.clone() for k, _ in of_voice]
    for seed in (1, 2):
        table = voice.fork()
        _, context = begin_pass(storage, table, 5)
        seen = [context.append(layer, *new(5 * rate, seed)) for layer, rate in enumerate(LAYOUT.rates)]
        assert [pieces[0][0].data_ptr() for pieces in seen] == [k.data_ptr() for k, _ in of_voice]
        assert [[k.shape[2] for k, _ in pieces] for pieces in seen] == [[7, 5], [14, 10]]
    assert all(torch.equal(k, copy) for (k, _), copy in zip(of_voice, before, strict=True))
    assert voice.pages == (page,)


def test_a_block_begins_where_the_left_contexts_of_the_last_one_end() -> None:
    storage = PassStorage(LAYOUT, torch.empty(0), torch.float32, 100)
    table = PageTable()
    x = torch.randn(B, 9, 5, generator=torch.Generator().manual_seed(1))
    seen = []
    for part in x.split([4, 5], dim=1):
        page, context = begin_pass(storage, table, part.shape[1])
        for layer, rate in enumerate(LAYOUT.rates):
            context.append(layer, *new(part.shape[1] * rate, 0))
        seen.append(context.continued(part, 0, 2))
        context.commit()
        table.append([page])
    assert torch.equal(seen[0], torch.cat([torch.zeros(B, 2, 5), x[:, :4]], dim=1))
    assert torch.equal(seen[1], x[:, 2:])
