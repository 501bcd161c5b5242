"""Confines a failure in a batch to the items that cause it. Each stage calls `isolated` in exactly one place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

OnFailure = Callable[[int, Exception], object]
"""Called with the index of a stream that failed and its error, while the error is being handled."""


def isolated(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Iterable[Result]],
    on_failure: Callable[[Item, Exception], object],
) -> list[Result]:
    """The results of `work`. If it fails for several items, it is tried for each of them alone, so that one item does
    not fail the others. `work` must change nothing when it fails for several items.

    `on_failure` is called with each item that fails alone and its error, while the error is being handled.
    """
    if not items:
        return []
    try:
        return list(work(items))
    except Exception as error:
        if len(items) == 1:
            on_failure(items[0], error)
            return []
        log.warning("a batch of %d streams failed; each is tried alone", len(items), exc_info=True)
    # Outside the handler: the error holds the device memory that the batch had taken.
    return [result for item in items for result in isolated([item], work, on_failure)]
