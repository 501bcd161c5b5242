"""Whisper's BPE from a file of ranks, against its rule applied step by step."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import write_ranks
from telephony_tts.engines.cosyvoice2.model.file_names import RANKS_FILE
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import (
    LANGUAGE_TAGS,
    N_CONTROL,
    WhisperTokenizer,
    ranks_path,
    read_ranks,
)
from telephony_tts.runtime.errors import EngineUnavailable

WORDS = [" the", "xyz", "zw", " call", "thank", " you", "ing", "aaa", "abab", "12", "你好", "!!"]
PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+")
"""As the official expression, for texts whose only numbers are digits and that have no underscore."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    write_ranks(path / RANKS_FILE, WORDS)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> WhisperTokenizer:
    return WhisperTokenizer(directory)


def stepwise(ranks: dict[bytes, int], piece: bytes) -> list[int]:
    """Join the first of the pairs whose joined bytes have the lowest id, again and again."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while True:
        joined = [ranks.get(parts[i] + parts[i + 1], 10**9) for i in range(len(parts) - 1)]
        if not joined or min(joined) == 10**9:
            return [ranks[part] for part in parts]
        i = joined.index(min(joined))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(st.text(alphabet="abthecalingkyou 12!?,.'你好再见é\n", max_size=40))
def test_ids_follow_the_rule(directory: Path, tokenizer: WhisperTokenizer, text: str) -> None:
    ranks = read_ranks(directory / RANKS_FILE)
    want = [number for piece in PIECES.findall(text) for number in stepwise(ranks, piece.encode())]
    assert tokenizer.encode(text) == want


def test_the_lowest_id_is_joined_first_and_not_the_shortest_entry(directory: Path, tokenizer: WhisperTokenizer) -> None:
    ranks = read_ranks(directory / RANKS_FILE)
    assert ranks[b"xyz"] < ranks[b"zw"]
    assert tokenizer.encode("xyzw") == [ranks[b"xyz"], ranks[b"w"]]


def test_control_tokens_follow_the_entries(directory: Path, tokenizer: WhisperTokenizer) -> None:
    n = len(read_ranks(directory / RANKS_FILE))
    assert tokenizer.n_ids == n + N_CONTROL
    # Officially n is 50257: en 50259, zh 50260, ko 50264, ja 50266, yue 50358.
    assert [tokenizer.special_ids[tag] - n for tag in LANGUAGE_TAGS] == [2, 3, 7, 9, 101]
    tagged = tokenizer.encode("<|zh|>你好", LANGUAGE_TAGS)
    assert tagged[0] == tokenizer.special_ids["<|zh|>"] and tagged[1:] == tokenizer.encode("你好")
    assert max(tokenizer.encode("<|zh|>你好")) < n, "what a user types is text"
    assert tokenizer.encode("") == [] and tokenizer.encode("\ud800") == tokenizer.encode("?")


def test_without_the_file_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "whisper").exists()])
    sys.modules.pop("whisper", None)
    with pytest.raises(EngineUnavailable, match="pip install --no-deps openai-whisper") as refused:
        WhisperTokenizer(tmp_path)
    assert str(tmp_path) in str(refused.value) and RANKS_FILE in str(refused.value)


def test_the_file_of_the_installed_package_is_found_and_nothing_is_imported(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "whisper"
    (package / "assets").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "assets" / RANKS_FILE).write_bytes((directory / RANKS_FILE).read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert ranks_path(tmp_path / "model") == package / "assets" / RANKS_FILE
    assert ranks_path(directory) == directory / RANKS_FILE, "the model's own file comes first"
    assert WhisperTokenizer(tmp_path / "model").encode("thank you")


def line(entry: bytes, rank: object) -> str:
    return f"{base64.b64encode(entry).decode()} {rank}\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2] + "\n", "cut off or damaged"),
        (lambda text: text.rpartition("\n")[0].rpartition("\n")[0].partition("\n")[2], "lacks entries"),
        (lambda text: text + "not base64 !\n", "cannot be read"),
        (lambda text: text + line(b"xyz", "x"), "cannot be read"),
        (lambda text: text + line(b"xyz", 10_000), "lacks entries"),
        (lambda text: "", "lacks entries"),
    ],
)
def test_a_damaged_file_is_named(directory: Path, tmp_path: Path, change: object, reason: str) -> None:
    text = (directory / RANKS_FILE).read_text()
    (tmp_path / RANKS_FILE).write_text(change(text))  # type: ignore[operator]
    with pytest.raises(EngineUnavailable, match=reason) as refused:
        WhisperTokenizer(tmp_path)
    assert str(tmp_path / RANKS_FILE) in str(refused.value) and "pip install" in str(refused.value)


def test_an_entry_without_bytes_is_read(tmp_path: Path, directory: Path) -> None:
    """The official file has one, written "="."""
    text = (directory / RANKS_FILE).read_text()
    n = len(text.splitlines())
    (tmp_path / RANKS_FILE).write_text(text + f"= {n}\n")
    tokenizer = WhisperTokenizer(tmp_path)
    assert tokenizer.n_ids == n + 1 + N_CONTROL
    assert tokenizer.encode("thank you") == WhisperTokenizer(directory).encode("thank you")
