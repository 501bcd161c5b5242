"""Reads the weights of a network out of a state dict, by name and shape.

A network takes each of its tensors once and says which shape it expects, so the network itself is the list of its
tensors. In outline mode the reader returns meta tensors: taking them all lists the names and shapes of a network
of any size in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]


class TakenTensors:
    """Tensors by name, each of which is moved to a device when it is taken, and then forgotten.

    So a checkpoint leaves the memory while a network is made of it: int8 weights need a quarter of its room.
    """

    def __init__(
        self, tensors: dict[str, Tensor], device: str, dtype: torch.dtype, check_wanted: Callable[[], object]
    ) -> None:
        """`tensors` is emptied. `check_wanted` is called for each tensor; what it raises ends the loading."""
        self._tensors, self._check_wanted = tensors, check_wanted
        self.like = torch.empty(0, device=device, dtype=dtype)
        """Of the device and the dtype of all tensors that are taken."""

    def take(self, name: str) -> Tensor | None:
        self._check_wanted()
        tensor = self._tensors.pop(name, None)
        return None if tensor is None else tensor.to(self.like.device, self.like.dtype)

    def __iter__(self) -> Iterator[str]:
        """The names that were not taken yet."""
        return iter(self._tensors)


State = Mapping[str, Tensor] | TakenTensors


class StateReader:
    """Takes tensors by name and shape, and collects every problem of the state before it reports one.

    A missing or mis-shaped tensor is replaced by a placeholder of the right shape, so that reading goes on. `finish`
    raises before anything is computed with it.
    """

    def __init__(self, state: State, *, unused: Collection[str] = (), outline: bool = False) -> None:
        """`unused`: names that may be in the state and are never taken. `outline`: see the module."""
        self.outline = outline
        self.shapes: dict[str, Shape] = {}
        """Of every tensor that was asked for, in that order."""
        self.missing: list[str] = []
        self.misshaped: list[str] = []
        """One description for each tensor."""
        self._state = state
        self._take = state.take if isinstance(state, TakenTensors) else state.get
        self._unused = frozenset(unused)
        like = state.like if isinstance(state, TakenTensors) else next(iter(state.values()), torch.empty(0))
        self.dtype, self._device = like.dtype, like.device

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The tensor as the state has it. Raises ValueError if no tensor can have this shape."""
        self.shapes[name] = shape
        tensor = self._take(name)
        if tensor is None:
            self.missing.append(name)
        elif tuple(tensor.shape) != shape:
            self.misshaped.append(f"{name} is {list(tensor.shape)} and should be {list(shape)}")
        elif not self.outline:
            return tensor.detach()
        return self._placeholder(name, shape)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Tensors that were taken, joined along their first dimension: layers over one input are one product."""
        # In outline mode nothing is computed: on tensors without memory torch loads 800 modules for it first.
        return parts[0] if self.outline else torch.cat(list(parts))

    @property
    def unexpected(self) -> list[str]:
        """Tensors of the state that were not asked for."""
        return [name for name in self._state if name not in self.shapes and name not in self._unused]

    def finish(self, file: str) -> None:
        """Raises ValueError that names every missing, mis-shaped and unexpected tensor of `file`."""
        problems = [f"missing {name} {list(self.shapes[name])}" for name in self.missing]
        problems += self.misshaped
        problems += [f"unexpected {name}" for name in self.unexpected]
        if problems:
            raise ValueError(f"{file} does not fit its configuration: " + "; ".join(problems))

    def _placeholder(self, name: str, shape: Shape) -> Tensor:
        try:
            return torch.zeros(shape, dtype=self.dtype, device="meta" if self.outline else self._device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{name} cannot have the shape {list(shape)}") from error
