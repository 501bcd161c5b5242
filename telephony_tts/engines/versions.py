"""The versions of the packages that engines speak with."""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache


@lru_cache(maxsize=32)
def package_version(name: str) -> str:
    """The package's name and version; only its name if it is not installed as a package."""
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name
