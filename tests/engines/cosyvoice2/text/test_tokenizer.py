import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_front import check_tokenizer

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import byte_letters, write_tokenizer
from telephony_tts.engines.cosyvoice2.model.config import LmConfig
from telephony_tts.engines.cosyvoice2.text.tokenizer import SPECIAL_TOKENS, TextTokenizer
from telephony_tts.runtime.errors import EngineUnavailable

VECTORS = Path(__file__).parents[1] / "vectors" / "front"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path, LmConfig())
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> TextTokenizer:
    return TextTokenizer(directory)


def decoded(directory: Path, ids: list[int]) -> str:
    vocabulary = json.loads((directory / "vocab.json").read_text())
    spelt = {number: letters for letters, number in vocabulary.items()}
    byte = {letter: number for number, letter in byte_letters().items()}
    return bytes(byte[letter] for number in ids for letter in spelt[number]).decode()


def test_the_reference_ids() -> None:
    rows = list(check_tokenizer(VECTORS))
    assert [name for name, _, _ in rows] == ["special tokens", "token ids of 13 texts"]
    assert [(name, error) for name, error, _ in rows if error] == []


def test_single_bytes_have_the_official_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("123 456") == [16, 17, 18, 220, 19, 20, 21]
    assert tokenizer.encode("a\nb") == [64, 198, 65]


def test_no_text_has_no_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("") == [] and tokenizer.encode("", SPECIAL_TOKENS) == []


def test_words_and_characters_of_the_merges_are_single_tokens(tokenizer: TextTokenizer) -> None:
    assert len(tokenizer.encode(" hello")) == 1 and len(tokenizer.encode("你好")) == 2


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_control_tokens_count_only_where_allowed(directory: Path, tokenizer: TextTokenizer, token: str) -> None:
    text = f"a{token}b"
    before, after = tokenizer.encode("a"), tokenizer.encode("b")
    assert tokenizer.encode(text, SPECIAL_TOKENS) == [*before, tokenizer.special_ids[token], *after]
    typed = tokenizer.encode(text)
    assert not set(typed) & set(tokenizer.special_ids.values())
    assert decoded(directory, typed) == text


def test_composed_and_decomposed_letters_are_the_same_text(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_special_ids_follow_the_vocabulary(tokenizer: TextTokenizer) -> None:
    ids = list(tokenizer.special_ids.values())
    assert ids == list(range(tokenizer.n_ids - 20, tokenizer.n_ids))


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Mn", "Mc", "Lm"]), max_size=30))
def test_any_text_comes_back_from_its_ids(directory: Path, tokenizer: TextTokenizer, text: str) -> None:
    assert decoded(directory, tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "🙂" * 500, "x" * 2000, " " * 50])
def test_odd_text_is_encoded(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.encode(text)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", "{"),
        ("vocab.json", "{}"),
        ("vocab.json", None),
        ("merges.txt", "#version: 0.2\nzq zzz\n"),
        ("merges.txt", None),
        ("tokenizer_config.json", "["),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"17": {"content": "<|endoftext|>"}}}'),
    ],
)
def test_files_that_do_not_fit_are_an_error(tmp_path: Path, name: str, content: str | None) -> None:
    write_tokenizer(tmp_path, LmConfig())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(EngineUnavailable, match=r"models pull|cannot be read"):
        TextTokenizer(tmp_path)
