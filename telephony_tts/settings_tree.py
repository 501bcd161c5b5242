"""The tree of plain values under a configuration: what a YAML file says, then what is set by dotted key.

`schema.read_section` makes dataclasses of it. What is wrong with a setting is appended to `problems`, one line each,
and told at the end by `raise_problems`; what leaves no tree to read is a `ConfigError` at once. Of what is no YAML the
place is told and not the line, in which a secret may stand.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from telephony_tts.errors import ConfigError
from telephony_tts.schema import names, show

Tree = dict[Any, Any]


def read_tree(path: str, root: type, problems: list[str]) -> Tree:
    """The values of the file; `root` is the dataclass they are for. Raises ConfigError where it holds no sections."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    try:
        tree = _parse(text, problems)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        where = f", line {at.line + 1}, column {at.column + 1}" if at else ""
        raise ConfigError(f"{path}{where}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # PyYAML lets a date such as 2026-13-40 through as ValueError
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected sections ({', '.join(names(root))}), found {show(tree)}")
    return tree


def get(tree: Tree, dotted: str) -> object:
    """The value of a dotted key such as "server.port"; None where there is none."""
    value: object = tree
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def put(tree: Tree, dotted: str, value: object) -> None:
    """Set a value by its dotted key. A section of the wrong type stays, for `read_section` to report."""
    *sections, last = dotted.split(".")
    here: Any = tree
    for name in sections:
        if here.get(name) is None:
            here[name] = {}
        here = here[name]
        if not isinstance(here, dict):
            return
    here[last] = value


def put_given(tree: Tree, values: Mapping[str, object]) -> None:
    """Set the values of `values`, by dotted key, that are not None: that means "not given"."""
    for key, value in values.items():
        if value is not None:
            put(tree, key, value)


def raise_problems(path: str | None, problems: Sequence[str]) -> None:
    """Raises one ConfigError that lists all, if there are any."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError("\n  ".join([f"{path or 'settings'}: {count}", *problems]))


def _parse(text: str, problems: list[str]) -> object:
    loader = _Loader(text)
    loader.repeated = problems
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Notes keys given twice, which YAML forbids and PyYAML lets pass (the last one would win in silence)."""

    repeated: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.repeated.append(f"{key.value}: given twice in one section (line {key.start_mark.line + 1})")
                seen.add(key.value)
        return super().construct_mapping(node, deep)
