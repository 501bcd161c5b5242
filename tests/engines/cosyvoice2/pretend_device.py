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
Step = tuple[Op, tuple[Any, ...], dict[str, Any], Any]
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
"""Operations whose result is a Python number."""


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
                for func, args, kwargs, result in steps:
                    again = func(*args, **kwargs)
                    for before, now in zip(_tensors(result), _tensors(again), strict=True):
                        if now.untyped_storage()._cdata != before.untyped_storage()._cdata:
                            before.copy_(now)

        return replay

    def __torch_dispatch__(self, func: Op, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_composite(func):
            # In inference mode they are not decomposed.
            with self:
                return func.decompose(*args, **kwargs)
        launched = _launched(func)
        if launched is not None:
            self.launches[launched] += 1
        n_crossed = len(self.waits) + len(self.sent)
        tensors = _tensors((args, kwargs))
        there = [each for each in tensors if isinstance(each, There)]
        to = kwargs.get("device")
        is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if not is_copy and there and any(not isinstance(each, There) and each.dim() for each in tensors):
            raise RuntimeError(f"{func}: tensors on two devices")
        if func in READS and there:
            self.waits.append(_place())
        if func is torch.ops.aten.copy_.default and isinstance(args[0], There) != isinstance(args[1], There):
            (self.sent if isinstance(args[0], There) else self.waits).append(_place())
        goes_there = bool(there) if to is None else torch.device(to).type == NAME
        if func is torch.ops.aten._to_copy.default and to is not None and bool(there) != goes_there:
            (self.sent if goes_there else self.waits).append(_place())
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if func is torch.ops.aten.copy_.default:
            goes_there = isinstance(args[0], There)
        inner = _mapped((args, kwargs), There, lambda each: each.here)
        result = func(*inner[0], **inner[1])
        if self._recorded is not None:
            if not goes_there or len(self.waits) + len(self.sent) > n_crossed:
                raise RuntimeError(f"{func} of {_place()} cannot be recorded")
            self._recorded.append((func, *inner, result))
        if not goes_there:
            return result
        # A tensor that the operation changed in place stays the same object.
        same = {id(each.here): each for each in there}
        return _mapped(result, Tensor, lambda each: same[id(each)] if id(each) in same else There(each))


def _mapped(value: Any, kind: type[Tensor], change: Callable[[Any], object]) -> Any:
    """Replace the tensors of one kind in an operation's arguments. PyTorch's own walk takes ten times as long: that was
    most of the time of these tests."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, _IN_ORDER):
        return type(value)([each if type(each) in _PLAIN else _mapped(each, kind, change) for each in value])
    if isinstance(value, dict):
        return {name: each if type(each) in _PLAIN else _mapped(each, kind, change) for name, each in value.items()}
    return value


_IN_ORDER = (tuple, list)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of most arguments, none of which contains a tensor."""


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
def _is_composite(func: Op) -> bool:
    """Whether the operation consists of other operations."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@functools.cache
def _launched(func: Op) -> str | None:
    """The name of the operation; None for a view."""
    is_view = any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)
    return None if is_view else func.name()


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
