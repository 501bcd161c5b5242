"""The tree of values that both configurations use: cases that the tests of the configurations do not cover."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.settings_tree import get, put, put_given, raise_problems, read_tree


@dataclass(frozen=True)
class Sections:
    server: int = 0
    log: int = 0


def refusal(data: bytes, folder: Path) -> str:
    """The error of reading a file of `data`, without the file's name."""
    file = folder / "settings.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_tree(str(file), Sections, [])
    message = caught.value.message
    assert message.startswith(str(file))
    return message.removeprefix(str(file))


def test_a_file_gives_its_values_and_an_empty_file_gives_an_empty_tree(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("server: {tls: {cert: c.pem}, port: 1}\nlog:\n", encoding="utf-8")
    problems: list[str] = []
    assert read_tree(str(file), Sections, problems) == {"server": {"tls": {"cert": "c.pem"}, "port": 1}, "log": None}
    file.write_text("# nothing\n", encoding="utf-8")
    assert read_tree(str(file), Sections, problems) == {}
    assert problems == []


def test_keys_given_twice_are_problems_and_the_last_one_stands(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("log: {a: 1, a: 2}\nserver: 1\nserver: 2\n", encoding="utf-8")
    problems = ["one before"]
    assert read_tree(str(file), Sections, problems) == {"log": {"a": 2}, "server": 2}
    assert problems == [
        "one before",
        "server: given twice in one section (line 3)",
        "a: given twice in one section (line 1)",
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"server:\n  token: s3cret: [\n", ", line 2, column 16: not YAML: mapping values are not allowed here"),
        (b"token: 's3cret", ", line 1, column 15: not YAML: found unexpected end of stream"),
        (b"token: s3cret\n---\ntoken: s3cret\n", ", line 2, column 1: not YAML: but found another document"),
        (b"{[s3cret]: 1}", ", line 1, column 2: not YAML: found unhashable key"),
    ],
)
def test_an_error_in_the_yaml_has_its_place_and_not_its_text(data: bytes, says: str, tmp_path: Path) -> None:
    """Such a line often holds a token without quotes."""
    assert refusal(data, tmp_path) == says


def test_a_character_that_yaml_forbids_is_reported(tmp_path: Path) -> None:
    told = refusal(b"server: {host: a\x01}", tmp_path)
    assert told.startswith(": not YAML: unacceptable character #x0001") and "position 16" in told


def test_a_file_without_sections_is_an_error_that_lists_the_sections(tmp_path: Path) -> None:
    assert refusal(b"just text", tmp_path) == ": expected sections (server, log), found 'just text'"


def test_a_dotted_key_makes_the_sections_it_lies_in() -> None:
    tree: dict[Any, Any] = {"server": None, "log": {"level": "info"}}
    put(tree, "server.tls.cert", "c.pem")
    put(tree, "log.level", "debug")
    put(tree, "drain_s", 3)
    assert tree == {"server": {"tls": {"cert": "c.pem"}}, "log": {"level": "debug"}, "drain_s": 3}
    assert get(tree, "server.tls.cert") == "c.pem" and get(tree, "drain_s") == 3
    assert get(tree, "server.tls.key") is None and get(tree, "drain_s.x") is None and get(tree, "bot.url") is None


def test_a_section_of_the_wrong_type_is_left_for_the_schema_to_report() -> None:
    tree: dict[Any, Any] = {"server": [1]}
    put(tree, "server.port", 80)
    put(tree, "server.tls.cert", "c.pem")
    assert tree == {"server": [1]}


def test_none_means_not_given() -> None:
    tree: dict[Any, Any] = {"port": 1, "metrics": True, "host": "h", "calls": 2}
    put_given(tree, {"port": None, "metrics": False, "host": "", "calls": 0})
    assert tree == {"port": 1, "metrics": False, "host": "", "calls": 0}


def test_all_problems_are_one_error_that_names_the_file() -> None:
    raise_problems("some.yaml", [])
    with pytest.raises(ConfigError) as caught:
        raise_problems("some.yaml", ["a: wrong"])
    assert caught.value.message == "some.yaml: 1 problem\n  a: wrong"
    with pytest.raises(ConfigError) as caught:
        raise_problems(None, ["a: wrong", "b: wrong"])
    assert caught.value.message == "settings: 2 problems\n  a: wrong\n  b: wrong"
