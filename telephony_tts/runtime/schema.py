"""Reading a tree of plain values (from YAML) strictly into nested frozen dataclasses.

The dataclass is the schema: its field types and defaults, rules in `Annotated`, a `conflicts()` method for problems
between fields, and `field(repr=False)` for a secret. A field may be a section, or map names to sections of one kind.
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar

Section = TypeVar("Section")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
MAX_GUESSES = 4
"""The most keys that are suggested for an unknown key."""
_MOST_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, both included."""

    low: float
    high: float

    def accepts(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def expected(self, kind: str) -> str:
        return f"{kind} from {_plain(self.low)} to {_plain(self.high)}"


@dataclass(frozen=True, slots=True)
class OneOf:
    choices: tuple[str | int, ...]

    def accepts(self, value: Any) -> bool:
        return value in self.choices

    def expected(self, kind: str) -> str:
        return "one of " + ", ".join(str(choice) for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Spelt:
    """Text that matches the whole regular expression `pattern`. `says` describes it in an error message."""

    pattern: str
    says: str

    def accepts(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def expected(self, kind: str) -> str:
        return self.says


@dataclass(frozen=True, slots=True)
class Url:
    """A URL with one of `schemes` and a host."""

    schemes: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        scheme, _, rest = value.partition("://")
        return scheme in self.schemes and rest.strip("/") != "" and " " not in rest

    def expected(self, kind: str) -> str:
        return "a URL beginning with " + " or ".join(f"{scheme}://" for scheme in self.schemes)


def read_section(section: type[Section], raw: object, problems: list[str], path: str = "") -> Section:
    """Build the dataclass `section` from the mapping `raw` (None is an empty one).

    Each problem is appended to `problems` as "key.path: what, expected what", and the setting keeps its default.
    """
    return _Reader(section, problems).section(section, raw, path)


def names(section: type) -> list[str]:
    """The keys a section allows."""
    return [item.name for item in fields(section)]


def show(value: object) -> str:
    """`value` for an error message: short, whatever it is."""
    shown = ""
    for piece in _spelt(value):
        shown += piece
        if len(shown) > _MOST_SHOWN_CHARS:
            return shown[: _MOST_SHOWN_CHARS - 3] + "..."
    return shown


def _spelt(value: object) -> Iterator[str]:
    """`repr(value)` in pieces. The whole of it may be endless: with aliases a short YAML file says anything often."""
    if isinstance(value, dict | list):
        is_dict = isinstance(value, dict)
        yield "{" if is_dict else "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _spelt(item)
            if isinstance(value, dict):
                yield ": "
                yield from _spelt(value[item])
        yield "}" if is_dict else "]"
    elif isinstance(value, tuple):
        yield f"({show(list(value))[1:-1]})"
    else:
        yield repr(value)


class _Reader:
    def __init__(self, root: type, problems: list[str]) -> None:
        self._problems = problems
        self._keys = list(_keys(root))

    def section(self, section: type[Section], raw: object, path: str) -> Section:
        if raw is None:
            raw = {}
        if not isinstance(raw, Mapping):
            keys = ", ".join(names(section))
            self._problems.append(f"{path}: {show(raw)} is not a section; expected the keys {keys}")
            return section()
        n_before = len(self._problems)
        self._problems += [self._unknown(section, key, path) for key in raw if key not in names(section)]
        kind: type = section
        hints = _hints(kind)
        given: dict[str, Any] = {}
        for item in fields(section):  # type: ignore[arg-type]  # a dataclass, which a TypeVar cannot say
            if item.name not in raw:
                continue
            key, value, hint = _join(path, item.name), raw[item.name], hints[item.name]
            if is_dataclass(hint):
                given[item.name] = self.section(typing.cast(type[Any], hint), value, key)
                continue
            if (named := _named_section(hint)) is not None:
                given[item.name] = self.sections(named, value, key)
                continue
            try:
                given[item.name] = _convert(hint, value)
            except ValueError as expected:
                shown = show(value) if item.repr else "the value (not shown)"
                self._problems.append(f"{key}: {shown} is wrong; expected {expected}")
        built = section(**given)
        if len(self._problems) == n_before and hasattr(built, "conflicts"):
            self._problems += [_join(path, conflict) for conflict in built.conflicts()]
        return built

    def sections(self, section: type[Section], raw: object, path: str) -> dict[str, Section]:
        """Sections of one kind, each with a name that the operator chose."""
        if raw is None:
            return {}
        if not isinstance(raw, Mapping):
            self._problems.append(f"{path}: {show(raw)} is wrong; expected sections, each with a name of its own")
            return {}
        found = {}
        for name, content in raw.items():
            if isinstance(name, str) and _NAME.fullmatch(name):
                found[name] = self.section(section, content, _join(path, name))
            else:
                self._problems.append(f"{path}: {show(name)} is not a name; expected letters, digits, - and _")
        return found

    def _unknown(self, section: type, key: object, path: str) -> str:
        """The message for an unknown key. It suggests keys that are spelt alike in this section, or have the same name
        in other sections. At the top level the latter come first: the section was probably forgotten."""
        alike = difflib.get_close_matches(str(key)[:_MOST_SHOWN_CHARS], names(section), n=1)
        same = [name for name in self._keys if name.rpartition(".")[2] == key]
        near = (alike or same) if path else (same or alike)
        guess = f" Did you mean {_one_of(near)}?" if 0 < len(near) <= MAX_GUESSES else ""
        shown = str(key)[:_MOST_SHOWN_CHARS]
        return f"{_join(path, shown)}: unknown key.{guess} Allowed here: {', '.join(names(section))}"


def _named_section(hint: Any) -> type[Any] | None:
    """The dataclass of a field that maps names to sections. None for every other field."""
    if typing.get_origin(hint) not in (Mapping, dict):
        return None
    kind: type[Any] = typing.get_args(hint)[1]
    return kind if is_dataclass(kind) else None


def _convert(hint: Any, value: object) -> object:
    """Convert `value` to the type `hint`. Raises ValueError, with what is expected, for a wrong type or range."""
    hint, *rules = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    kinds = typing.get_args(hint) or (hint,)
    if value is None and NoneType in kinds:
        return None
    if tuple in (typing.get_origin(hint), typing.get_origin(kinds[0])):
        return _texts(value)
    if typing.get_origin(hint) is Mapping:
        return _text_by_text(value)
    words = [word for kind in kinds if typing.get_origin(kind) is typing.Literal for word in typing.get_args(kind)]
    if value in words:
        return value
    kind, fits = _SCALARS[kinds[0]]
    if not fits(value) or not all(rule.accepts(value) for rule in rules):
        expected = rules[0].expected(kind) if rules else kind
        quotes = "; put it in quotes" if kinds[0] is str and value is not None and not isinstance(value, str) else ""
        instead = "".join(f" or {word}" for word in [*words, *(["null"] if NoneType in kinds else [])])
        raise ValueError(expected + instead + quotes)
    return kinds[0](value)


_SCALARS: dict[type, tuple[str, Any]] = {
    # In Python a bool is an int, but "port: yes" is wrong. Every range refuses NaN and infinity.
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    str: ("text", lambda value: isinstance(value, str) and value != ""),
}


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of text, each in quotes")
    return tuple(value)


def _text_by_text(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ValueError('a mapping of text to text; put words that YAML reads as yes or no in quotes, such as "no"')
    return dict(value)


@functools.cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section, include_extras=True)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _keys(section: type, path: str = "") -> Iterator[str]:
    """All keys of a section and of its sections, dotted."""
    for name, hint in _hints(section).items():
        key = _join(path, name)
        hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
        yield key
        if is_dataclass(hint):
            yield from _keys(typing.cast(type, hint), key)


def _one_of(keys: Sequence[str]) -> str:
    *others, last = (f'"{key}"' for key in keys)
    return f"{', '.join(others)} or {last}" if others else last


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
