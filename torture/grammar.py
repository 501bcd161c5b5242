"""Messages that no server can read, made from the grammar of those that it can. Each one of a bot gets one error of
§8.1; those of a telephone platform change nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_VALID: tuple[dict[str, Any], ...] = (
    {"type": "say", "text": "aaa.", "turn": "x"},
    {"type": "text", "text": "aaa", "turn": "x", "last": True},
    {"type": "clear", "turn": "x", "heard_ms": 5},
    {"type": "mark", "name": "m", "turn": "x"},
    {"type": "config", "speed": 1.0, "lang": "en", "min_speech_ms": 200},
    {"type": "ping", "id": 1},
    {"type": "dtmf", "digits": "12#"},
    {"type": "play", "name": "hold", "loop": True},
)
_LONG_NAME = "x" * 300
_WRONG: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "say": (("text", (7, None, True, [], {}, 1.5)), ("turn", (7, "", [], _LONG_NAME, "a\nb")), ("private", (1, "yes"))),
    "text": (("text", (7, None, [["x"]])), ("last", ("true", 1, [])), ("turn", ({}, -1, "\u0000"))),
    "clear": (("heard_ms", (-1, "5", 1.5, True, 10**12)), ("turn", (False, []))),
    "mark": (("name", ("", 5, None, _LONG_NAME)), ("turn", (0, []))),
    "config": (
        ("speed", (3, 0.1, "1", True)), ("min_speech_ms", (20, 5000, "200")), ("lang", (5, _LONG_NAME)),
        ("barge_in", (True, "maybe")), ("lexicon", ([], {"a": 1}, "x")),
    ),
    "ping": (("id", (1.5, [], True, 2**60, _LONG_NAME)),),
    "dtmf": (("digits", ("", "12x", 12, None, "1" * 65)),),
    "play": (("loop", ("forever", 1)), ("gain_db", ("loud", 99)), ("name", (5, ""))),
}  # fmt: skip


def invalid(choose: random.Random) -> tuple[bytes, bool]:
    """(the payload, whether it is text) of a message that gets one error and has no other effect."""
    message = dict(choose.choice(_VALID))
    match choose.randrange(7):
        case 0:
            whole = json.dumps(message)
            return whole[: choose.randrange(1, len(whole) - 1)].encode(), True
        case 1:
            message["type"] = choose.choice(["shout", "", None, 5, [], {}, "SAY", "say ", _LONG_NAME])
        case 2:
            del message["type"]
        case 3:
            return choose.randbytes(choose.randrange(0, 200)), False
        case 4:
            return json.dumps(message).encode()[:-1] + b',"x":"\xff\xfe"}', True
        case 5:
            depth = choose.choice([1, 50, 5000])
            return b'{"type":"say","text":' + b"[" * depth + choose.choice([b"]" * depth + b"}", b""]), True
        case _:
            field, values = choose.choice(_WRONG[message["type"]])
            message[field] = choose.choice(values)
    return json.dumps(message, ensure_ascii=choose.random() < 0.5).encode(), True


_STRANGE: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    1.5,
    10**30,
    "",
    "x",
    _LONG_NAME,
    "a\nb\u0000",
    [],
    {},
    [[["x"]]],
    {"x": {}},
)


def invalid_media(
    choose: random.Random, example: dict[str, Any], stamp: Callable[[], dict[str, Any]]
) -> tuple[bytes, bool]:
    """(the payload, whether it is text) of a message of a telephone platform that changes nothing in its call, made
    from a message that would change nothing. `stamp` gives what each message has besides its content; it is called for
    messages that can be parsed."""
    match choose.randrange(6):
        case 0:
            whole = json.dumps(example)
            return whole[: choose.randrange(1, len(whole) - 1)].encode(), True
        case 1:
            return choose.randbytes(2 * choose.randrange(0, 20)), False
        case 2:
            return choose.choice([b"", b"[]", b"null", b"7", b'"x"', b"{}", b"[" * 5000, b'{"x":"\xff\xfe"']), True
        case 3:
            key = next(iter(example))
            message = {**example, key: choose.choice([*_STRANGE, "shout"])}
        case _:
            message = json.loads(json.dumps(example))
            inner = message
            while nested := [each for each in inner.values() if isinstance(each, dict) and each]:
                if choose.random() < 0.3:
                    break
                inner = choose.choice(nested)
            key = choose.choice(list(inner))
            if choose.random() < 0.3:
                del inner[key]
            else:
                inner[key] = choose.choice(_STRANGE)
    return json.dumps({**message, **stamp()}, ensure_ascii=choose.random() < 0.5).encode(), True
