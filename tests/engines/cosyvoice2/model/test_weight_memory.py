"""Memory for weights: it is private, it asks for large pages, and it goes back to the system."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
import torch

from telephony_tts.engines.cosyvoice2.model.weight_memory import LINE_BYTES, MAPPING_BYTES, PAGE_BYTES, WeightMemory


def mapping_at(address: int) -> dict[str, str] | None:
    """What the kernel says of the mapping that has this address; None if no mapping has it."""
    found: dict[str, str] | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            if found is not None:
                return found
            if int(match[1], 16) <= address < int(match[2], 16):
                found = {}
        elif found is not None:
            name, _, value = line.partition(":")
            found[name] = value
    return found


def test_each_taker_has_its_own_zeros_at_the_beginning_of_a_line() -> None:
    memory = WeightMemory()
    sizes = [1, 63, 64, 65, 0, 5_000_000, MAPPING_BYTES - 100, 70, MAPPING_BYTES + 1]
    taken = [memory.take(n) for n in sizes]
    for i, each in enumerate(taken, 1):
        assert each.data_ptr() % LINE_BYTES == 0 and not each.any()
        each.fill_(i)
    assert [len(each) for each in taken] == sizes
    assert all((each == i).all() for i, each in enumerate(taken, 1))


def test_small_weights_lie_side_by_side() -> None:
    """Alone, each would be smaller than a large page."""
    memory = WeightMemory()
    first, second = memory.take(100_000), memory.take(100_000)
    assert first.data_ptr() % PAGE_BYTES == 0
    assert 100_000 <= second.data_ptr() - first.data_ptr() < 100_000 + LINE_BYTES


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a kernel without large pages")
@pytest.mark.parametrize("n_bytes", [1000, MAPPING_BYTES + 1])
def test_large_pages_are_asked_for(n_bytes: int) -> None:
    taken = WeightMemory().take(n_bytes)
    mapping = mapping_at(taken.data_ptr())
    assert mapping is not None
    flags = mapping["VmFlags"].split()
    # Most systems have no large pages for shared memory, even on request.
    assert "hg" in flags and "sh" not in flags


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="this system does not list mappings")
def test_a_mapping_is_freed_with_the_last_of_its_weights() -> None:
    memory = WeightMemory()
    first, second = memory.take(3000), memory.take(3000)
    address = first.data_ptr()
    memory.take(MAPPING_BYTES)  # does not fit beside them, so a new mapping is the one to take from
    del first
    gc.collect()
    assert mapping_at(address) is not None and torch.equal(second, torch.zeros(3000, dtype=torch.uint8))
    del second
    gc.collect()
    assert mapping_at(address) is None
