"""Makes a failing history short: it leaves out calls, faults and steps for as long as the rest still fails. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from torture.histories import CallHistory, Fault, Round, only

T = TypeVar("T")
Fails = Callable[[Round], Awaitable[bool]]


async def shrink(failing: Round, fails: Fails, likely: Sequence[int] = ()) -> Round:
    """A round that still fails and has as little as can be in it. `likely` are the calls in which a check failed; they
    are tried alone first. `fails` may end the search by returning False from then on."""
    calls, faults = list(failing.calls), list(failing.faults)
    for at in likely:
        if len(calls) > 1 and await fails(only(failing, [calls[at]], faults)):
            calls = [calls[at]]
            break

    async def with_calls(some: list[CallHistory]) -> bool:
        return await fails(only(failing, some, faults))

    async def with_faults(some: list[Fault]) -> bool:
        return await fails(only(failing, calls, some))

    calls = await _fewest(calls, with_calls)
    if faults and await with_faults([]):
        faults = []
    elif faults:
        faults = await _fewest(faults, with_faults)
    if len(calls) == 1:
        call = replace(calls[0], start_ms=0)

        async def with_steps(some: list[object]) -> bool:
            return await fails(only(failing, [replace(call, steps=tuple(some))], faults))  # type: ignore[arg-type]

        steps = await _fewest(list(call.steps), with_steps)  # type: ignore[arg-type]
        shorter = only(failing, [replace(call, steps=tuple(steps))], faults)
        return shorter if await fails(shorter) else only(failing, calls, faults)
    return only(failing, calls, faults)


async def _fewest(items: list[T], still_fails: Callable[[list[T]], Awaitable[bool]]) -> list[T]:
    """Leave out ever smaller parts of the list."""
    size = len(items) // 2
    while size >= 1:
        at = 0
        while at < len(items) and len(items) > 1:
            rest = items[:at] + items[at + size :]
            if rest and await still_fails(rest):
                items = rest
            else:
                at += size
        size //= 2
    return items
