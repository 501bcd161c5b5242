"""Makes inputs from known ones: bytes, numbers, JSON values and nesting are changed, and inputs are joined.

The same seed gives the same inputs. Half of what peers send is JSON, so some changes know its form.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence

MAX_BYTES = 65_536
"""The default of `server.max_message_bytes`: a peer cannot send a longer message."""

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_JSON_VALUE = re.compile(rb'(?<=:)\s*(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)')
_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"255",
    b"256",
    b"65535",
    b"65536",
    b"2147483648",
    b"4294967295",
    b"9007199254740993",
    b"18446744073709551616",
    b"1e999",
    b"-1e999",
    b"1e-999",
    b"0.1",
    b"NaN",
    b"Infinity",
    b"00",
    b"0x10",
    b"1_000",
    b"\xd9\xa3",
    b"9" * 40,
    b"9" * 400,
)
_VALUES = (
    b"null",
    b"true",
    b"false",
    b'""',
    b"[]",
    b"{}",
    b"[[]]",
    b'{"":null}',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xf0\x9f\x98\x80"',
    b'"' + b"x" * 300 + b'"',
    b'"' + b"9" * 20 + b'"',
    b'"../../etc/passwd"',
    b'"\xff"',
    *_NUMBERS,
)
_BYTES = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b" ",
    b'"',
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"<",
    b">",
    b"&",
    b":",
    b",",
    b";",
    b"=",
    b"%",
    b"%00",
    b"%2e%2e",
    b"/",
    b"..",
    b"#",
    b"?",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xe2\x80\xa8",
    b"\xe4\xbd\xa0",
    b"\x1e",
)


class Mutator:
    """Makes inputs for one target. `words` are pieces that its parser knows, such as the names of fields."""

    def __init__(self, words: Sequence[bytes], seed: int) -> None:
        self._random = random.Random(seed)
        self._words = (*words, *_BYTES)
        self._changes: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._replace_byte,
            self._insert,
            self._insert,
            self._remove,
            self._copy,
            self._repeat,
            self._cut,
            self._number,
            self._value,
            self._value,
            self._nest,
        )

    def new_input(self, known: Sequence[bytes]) -> bytes:
        """A changed input. `known` has at least one."""
        data = self._random.choice(known)
        if len(known) > 1 and self._random.random() < 0.1:
            other = self._random.choice(known)
            data = data[: self._place(data)] + other[self._place(other) :]
        for _ in range(self._random.choice((1, 1, 2, 3, 5))):
            data = self._random.choice(self._changes)(data)
        return data[:MAX_BYTES]

    def _place(self, data: bytes) -> int:
        return self._random.randint(0, len(data))

    def _range(self, data: bytes) -> tuple[int, int]:
        """A part of the input, which is mostly short."""
        at = self._place(data)
        return at, min(len(data), at + self._random.choice((1, 2, 4, 8, 32, 256)))

    def _rarely(self) -> bool:
        """For changes that make an input long: most inputs should be short, and so quick to try."""
        return self._random.random() < 0.1

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes((data[at] ^ (1 << self._random.randrange(8)),)) + data[at + 1 :]

    def _replace_byte(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + bytes((self._random.randrange(256),)) + data[at + 1 :]

    def _insert(self, data: bytes) -> bytes:
        at = self._place(data)
        word = b"9" * 4_400 if self._random.random() < 0.002 else self._random.choice(self._words)
        return data[:at] + word + data[at:]

    def _remove(self, data: bytes) -> bytes:
        begin, end = self._range(data)
        return data[:begin] + data[end:]

    def _copy(self, data: bytes) -> bytes:
        begin, end = self._range(data)
        at = self._place(data)
        return data[:at] + data[begin:end] + data[at:]

    def _repeat(self, data: bytes) -> bytes:
        begin, end = self._range(data)
        n = min(
            self._random.choice((2, 3, 10, 100, 1_000) if self._rarely() else (2, 3, 10)),
            MAX_BYTES // max(1, end - begin),
        )
        return data[:begin] + data[begin:end] * n + data[end:]

    def _cut(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _number(self, data: bytes) -> bytes:
        return self._swap(data, _NUMBER, _NUMBERS)

    def _value(self, data: bytes) -> bytes:
        return self._swap(data, _JSON_VALUE, _VALUES)

    def _swap(self, data: bytes, pattern: re.Pattern[bytes], choices: Sequence[bytes]) -> bytes:
        found = list(pattern.finditer(data, 0, 4_096))
        if not found:
            return self._insert(data)
        place = self._random.choice(found)
        return data[: place.start()] + self._random.choice(choices) + data[place.end() :]

    def _nest(self, data: bytes) -> bytes:
        """Lists or objects inside each other, also as deep as Python's parsers of JSON and YAML just reach."""
        limit = sys.getrecursionlimit()
        deep_ones = (limit - self._random.randrange(120), limit - self._random.randrange(120), 5_000)
        depth = self._random.choice(deep_ones if self._rarely() else (3, 40))
        begin, end = self._random.choice(
            ((b"[", b"]"), (b'{"a":', b"}"), (b"- ", b""), (b"<p>", b"</p>"), (b"(", b")"))
        )
        deep = begin * depth + b"1" + end * depth
        if self._random.random() < 0.7:
            return self._swap(data, _JSON_VALUE, (deep,))
        at = self._place(data)
        return data[:at] + deep + data[at:]
