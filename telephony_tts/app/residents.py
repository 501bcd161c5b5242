"""The doors and the engines that are there: each is a folder with a record, or an entry point of another package.

Only this room finds them. The other rooms are given their records, so the rest works without any of these folders.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeVar

Base = TypeVar("Base")


def records(package: str, module: str, name: str) -> tuple[Any, ...]:
    """The records of a package's folders, in the order of their names, then those of other packages.

    A folder has its record in `module` under `name`: `telephony_tts/doors/NAME/door.py` has DOOR. Another package
    names its own as an entry point of the group `package`. Raises what such a package raises when it is imported: a
    server must not start without what was installed for it.
    """
    folders = importlib.import_module(package).__path__
    own = [f"{package}.{found.name}.{module}" for found in pkgutil.iter_modules(folders) if found.ispkg]
    here = [getattr(importlib.import_module(each), name) for each in sorted(own) if find_spec(each) is not None]
    others = sorted(entry_points(group=package), key=lambda point: point.name)
    return (*here, *(point.load() for point in others))


def with_sections(base: type[Base], sections: Mapping[str, type], name: str, module: str) -> type[Base]:
    """`base`, a frozen dataclass of settings, with a further section for each of `sections`. `name` and `module` say
    where the result is kept, because the settings are sent to other processes."""
    made = make_dataclass(
        name,
        [(key, kind, field(default_factory=kind)) for key, kind in sections.items()],
        bases=(base,),
        frozen=True,
        slots=True,
    )
    made.__module__, made.__qualname__ = module, name
    return made
