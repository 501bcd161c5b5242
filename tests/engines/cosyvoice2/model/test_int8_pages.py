"""Memory of int8 pieces: it is used again, is never shared, and does not grow without limit."""

from __future__ import annotations

import threading

import pytest

from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import MAX_SPARE, PieceMemory


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PieceMemory, "_spare", [])


def test_memory_is_used_again_for_a_piece_of_its_size() -> None:
    first = PieceMemory(100)
    address = first.tensor.data_ptr()
    del first
    other = PieceMemory(200)
    again = PieceMemory(100)
    assert again.tensor.data_ptr() == address and len(other.tensor) == 200
    assert PieceMemory._spare == []


def test_memory_in_use_is_never_given_twice() -> None:
    used: list[PieceMemory] = []

    def take_and_drop() -> None:
        for i in range(300):
            memory = PieceMemory(64)
            if i % 3 == 0:
                used.append(memory)

    threads = [threading.Thread(target=take_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spare = [tensor.data_ptr() for tensor in PieceMemory._spare]
    assert len({*spare, *(memory.tensor.data_ptr() for memory in used)}) == len(spare) + len(used) == len(spare) + 400


def test_only_so_much_is_kept() -> None:
    pieces = [PieceMemory(64) for _ in range(3 * MAX_SPARE)]
    del pieces
    assert len(PieceMemory._spare) == MAX_SPARE
