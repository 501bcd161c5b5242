"""The plain values of a configuration as a tree: those of a YAML file, then those that are set by dotted key.

`schema.read_section` makes dataclasses of the tree. Problems of settings are collected in `problems`, one line each,
and `raise_problems` reports them at the end. A file without a readable tree is a `ConfigError` at once. An error in the
YAML is reported by its place. The line itself is not shown, because it may hold a secret.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.schema import names, show

Tree = dict[Any, Any]
_MOST_LISTED = 50
"""The most problems of a file that an error lists."""
_MOST_SHOWN_CHARS = 200


def read_tree(path: str, root: type, problems: list[str]) -> Tree:
    """The values of the file, for the dataclass `root`. Raises ConfigError for a file without sections."""
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
    except RecursionError as error:
        raise ConfigError(f"{path}: not YAML: nested too deeply; expected sections with settings") from error
    except Exception as error:  # PyYAML has an error of its own for each tag with a wrong value, such as 2026-13-40
        raise ConfigError(f"{path}: not YAML: {str(error)[:_MOST_SHOWN_CHARS] or type(error).__name__}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected sections ({', '.join(names(root))}), found {show(tree)}")
    return tree


def get(tree: Tree, dotted: str) -> object:
    """The value of a dotted key such as "server.port". None if it is not set."""
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
    """Set those of `values` that are not None, by their dotted key. None means "not given"."""
    for key, value in values.items():
        if value is not None:
            put(tree, key, value)


def raise_problems(path: str | None, problems: Sequence[str]) -> None:
    """Raises one ConfigError that lists all problems, if there are any."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        shown = list(problems[:_MOST_LISTED])
        if len(shown) < len(problems):
            shown.append(f"and {len(problems) - len(shown)} more")
        raise ConfigError("\n  ".join([f"{path or 'settings'}: {count}", *shown]))


def _parse(text: str, problems: list[str]) -> object:
    loader = _Loader(text)
    loader.repeated = problems
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Notes keys that are given twice. YAML forbids them, but PyYAML silently takes the last one."""

    repeated: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # a tag can claim a list to be one
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    shown = key.value[:_MOST_SHOWN_CHARS]
                    self.repeated.append(f"{shown}: given twice in one section (line {key.start_mark.line + 1})")
                seen.add(key.value)
        return super().construct_mapping(node, deep)
