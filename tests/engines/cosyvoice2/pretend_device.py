"""A pretended device: it computes on the CPU and is as strict as an accelerator.

Tensors must be sent to it, reading a value waits for it, and operations on tensors of two devices fail. The values are
real, so that results can be compared.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
Op = Callable[..., Any]
Step = tuple[Op, tuple[Any, ...], dict[str, Any], list[Tensor]]
_COPY, _TO_COPY = torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
"""Operations whose result is a Python number."""
WHOLE = {torch.ops.aten.linear.default, torch.ops.aten.layer_norm.default, torch.ops.aten.conv1d.default}
"""Frequent operations that are not taken apart, which would take time. They read no value and return a new tensor."""


class _Module:
    """What PyTorch asks of every registered device, also in other tests of this process."""

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It has no random generator."""

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """It has no random generator."""


@functools.cache
def device() -> torch.device:
    """The device, registered with PyTorch once."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, _Module())
    return torch.device(f"{NAME}:0")


class There(Tensor):
    """A tensor on the pretended device; `here` has its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        there: There = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=device(),
            requires_grad=False,
        )
        there.here = here
        return there

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Op, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of a Pretence")


class Pretence(TorchDispatchMode):
    """While it is entered, this thread can compute on `device()`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and the check for it would cost time at each operation."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        """Where the host waited for the device: file and function in the product."""
        self.sent: list[str] = []
        """Where the host sent something to the device."""
        self.launches: Counter[str] = Counter()
        """The operations that an accelerator would compute; views are not counted."""
        self._recorded: list[Step] | None = None

    def clear(self) -> None:
        """Reset the counts."""
        for record in (self.waits, self.sent, self.launches):
            record.clear()

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        """Record like a CUDA graph: do the work, and return a function that repeats it on the same memory. Raises
        RuntimeError if the work sends, reads or waits."""
        self._recorded = steps = []
        try:
            work()
        finally:
            self._recorded = None

        def replay() -> None:
            # The recorded tensors are on the CPU. Like the host during a graph, this mode takes no part.
            with _disable_current_modes():  # type: ignore[no-untyped-call]
                for func, args, kwargs, results in steps:
                    again = func(*args, **kwargs)
                    for before, now in zip(results, _tensors(again), strict=True):
                        if now.untyped_storage()._cdata != before.untyped_storage()._cdata:
                            before.copy_(now)

        return replay

    def __torch_dispatch__(self, func: Op, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        is_composite, launched = _about(func)
        if is_composite:
            # In inference mode they are not decomposed. `decompose` would take PyTorch's slower kernels in Python.
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs or {})  # type: ignore[attr-defined]
        if launched is not None:
            self.launches[launched] += 1
        n_crossed = len(self.waits) + len(self.sent)
        there: dict[int, There] = {}
        elsewhere: list[Tensor] = []
        inner = _inner(args, there, elsewhere)
        options = _inner(kwargs, there, elsewhere) if kwargs else {}
        to = options.get("device")
        is_copy = func is _COPY or func is _TO_COPY
        if elsewhere and there and not is_copy and any(each.dim() for each in elsewhere):
            raise RuntimeError(f"{func}: tensors on two devices")
        if there and func in READS:
            self.waits.append(_place())
        goes_there = bool(there) if to is None else torch.device(to).type == NAME
        if func is _COPY:
            goes_there = isinstance(args[0], There)
            if goes_there != isinstance(args[1], There):
                (self.sent if goes_there else self.waits).append(_place())
        elif func is _TO_COPY and bool(there) != goes_there:
            (self.sent if goes_there else self.waits).append(_place())
        if to is not None:
            options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
        result = func(*inner, **options)
        if self._recorded is not None:
            if not goes_there or len(self.waits) + len(self.sent) > n_crossed:
                raise RuntimeError(f"{func} of {_place()} cannot be recorded")
            if launched is not None:  # a view sees what its memory holds by then
                self._recorded.append((func, inner, options, _tensors(result)))
        return _outer(result, there) if goes_there else result


_IN_ORDER = (tuple, list)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of most arguments, none of which contains a tensor."""


def _inner(value: Any, there: dict[int, There], elsewhere: list[Tensor]) -> Any:
    """An operation's arguments with the tensors that have their values. `there` gets the tensors on the device, by the
    id of what replaces them, and `elsewhere` gets all others. PyTorch's own walk takes ten times as long: that was most
    of the time of these tests."""
    if isinstance(value, There):
        there[id(value.here)] = value
        return value.here
    if isinstance(value, Tensor):
        elsewhere.append(value)
    elif isinstance(value, _IN_ORDER):
        return type(value)([each if type(each) in _PLAIN else _inner(each, there, elsewhere) for each in value])
    elif isinstance(value, dict):
        return {
            name: each if type(each) in _PLAIN else _inner(each, there, elsewhere) for name, each in value.items()
        }
    return value


def _outer(result: Any, there: dict[int, There]) -> Any:
    """A result with its tensors on the device. A tensor that the operation changed in place stays the same object."""
    if isinstance(result, Tensor):
        same = there.get(id(result))
        return There(result) if same is None else same
    if isinstance(result, _IN_ORDER):
        return type(result)([_outer(each, there) for each in result])
    return result


def _tensors(value: Any) -> list[Any]:
    """All tensors in the arguments, in order."""
    found: list[Any] = []
    _find(value, found)
    return found


def _find(value: Any, found: list[Any]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, _IN_ORDER):
        for each in value:
            if type(each) not in _PLAIN:
                _find(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            if type(each) not in _PLAIN:
                _find(each, found)


@functools.cache
def _about(func: Op) -> tuple[bool, str | None]:
    """Whether the operation is computed as the operations that it consists of; its name, or None for a view."""
    is_composite = func not in WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)
    is_view = any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)
    return is_composite, None if is_view else func.name()


@functools.cache
def _is_ours(path: str) -> bool:
    return "telephony_tts" in Path(path).parts


def _place() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_ours(path):
            return f"{Path(path).name}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "a test"
