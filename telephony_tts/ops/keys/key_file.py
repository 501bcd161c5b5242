"""The file of named keys (`keys.file`): YAML, read strictly. It is read again when it changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from telephony_tts.ops.keys.key import Key, digest_of
from telephony_tts.runtime.errors import ConfigError, shell_command
from telephony_tts.runtime.schema import Between, Spelt, read_section, show
from telephony_tts.runtime.settings_tree import raise_problems, read_tree

MAX_KEYS = 1_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN = Spelt(r"[!-~]+", "visible ASCII characters without spaces")
_HOW_TO_MAKE = shell_command("telephony-tts keys new NAME")
_SHA256 = Spelt(r"[0-9a-f]{64}", "64 hexadecimal digits in lower case")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """One key: its token, or the SHA-256 of its token, and its limits."""

    token: Annotated[str | None, _TOKEN] = field(default=None, repr=False)
    sha256: Annotated[str | None, _SHA256] = field(default=None, repr=False)
    calls: Annotated[int | None, Between(0, 1e9)] = None
    chars_per_day: Annotated[int | None, Between(0, 1e15)] = None
    voices: tuple[str, ...] | None = None
    lexicons: tuple[str, ...] | None = None
    experiments: tuple[str, ...] | None = None
    supervisor: bool = False
    media_legs: bool = True

    def conflicts(self) -> Iterator[str]:
        if (self.token is None) == (self.sha256 is None):
            yield f"token: expected either token or sha256, which `{_HOW_TO_MAKE}` makes"

    def key(self, name: str) -> Key:
        digest = digest_of(self.token.encode()) if self.token is not None else bytes.fromhex(self.sha256 or "")
        limits = self.calls, self.chars_per_day, self.voices, self.lexicons, self.experiments
        return Key(name, digest, *limits, supervises=self.supervisor, media_legs=self.media_legs)


@dataclass(frozen=True, slots=True)
class KeyFileLayout:
    """The one section of the file: keys by name."""

    keys: dict[str, Any]


def read_keys(path: Path, tokens: Iterable[str] = ()) -> tuple[Key, ...]:
    """The keys of a file. `tokens` are those of `server.tokens`, which no key may have. Raises ConfigError, which lists
    all problems."""
    problems: list[str] = []
    tree = read_tree(str(path), KeyFileLayout, problems)
    problems += [f"{show(name)}: unknown key. Allowed here: keys" for name in tree if name != "keys"]
    entries = tree.get("keys") or {}
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: keys: expected names of keys with their settings, found {show(entries)}")
    if len(entries) > MAX_KEYS:
        raise ConfigError(f"{path}: {len(entries)} keys; the limit is {MAX_KEYS}")
    if not entries:
        # Without keys the server may be open to everyone, and an operator who names a file wants it closed.
        problems.append(f"keys: the file has no key; `{_HOW_TO_MAKE}` makes one")
    keys: list[Key] = []
    owners = {digest_of(token.encode()): "server.tokens" for token in tokens}
    for name, raw in entries.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            problems.append(f"keys: {show(name)} is no name; expected up to 64 letters, digits, '_', '.' and '-'")
            continue
        n_before = len(problems)
        settings = read_section(KeySettings, raw, problems, f"keys.{name}")
        if len(problems) > n_before:
            continue
        key = settings.key(name)
        if (other := owners.get(key.digest)) is not None:
            problems.append(f"keys.{name}: it has the same token as {other}; each key needs its own")
            continue
        owners[key.digest] = f"keys.{name}"
        keys.append(key)
    raise_problems(str(path), problems)
    return tuple(keys)
