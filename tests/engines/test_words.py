import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.words import MAX_WORD_CHARS, language_of, pieces, scripts, without_endless_words, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't say “e-mail”, OK?", ["Don't", "say", "e-mail", "OK"]),
        ("我在iPhone上买了三个，好！", ["我", "在", "iPhone", "上", "买", "了", "三", "个", "好"]),
        ("こんにちは世界", list("こんにちは世界")),
        ("안녕 하세요.", ["안녕", "하세요"]),
        ("… — 😀 !", []),
        ("𠮷野家 is open", ["𠮷", "野", "家", "is", "open"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in words(text)] == expected


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello 5", None),
        ("café Łódź 10 µm", None),
        ("Ｆｕｌｌ 𝐇ello ﬁne №", None),
        ("你好 world", "zh"),
        ("今日は", "ja"),
        ("안녕 世界", "ko"),
        ("привет", "ru"),
        ("γεια", "el"),
        ("مرحبا", "ar"),
        ("שלום", "he"),
        ("नमस्ते", "hi"),
        ("สวัสดี", "th"),
        ("123 …", None),
    ],
)
def test_language_of_a_script(text: str, language: str | None) -> None:
    assert language_of(text) == language


def test_scripts_are_those_of_letters_alone() -> None:
    assert scripts("Hi, 世界 мир!") == {"LATIN", "CJK", "CYRILLIC"}
    assert scripts("12 … 😀 。") == frozenset()


@given(st.text(alphabet="ab ,.;!?。，字\n", max_size=900))
def test_pieces_cover_the_text_and_are_short(text: str) -> None:
    spans = pieces(text)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(0 < end - start <= 200 for start, end in spans)
    if len(text) <= 120:
        assert len(spans) <= 1


def test_pieces_end_at_sentences_and_clauses() -> None:
    text = (
        "When you called us on Monday, we were not yet able to say. Today we are, and we would like to tell you that "
        "your order has left the depot and will be with you before noon, unless it snows."
    )
    parts = [text[start:end] for start, end in pieces(text)]
    assert parts[0] == "When you called us on Monday, we were not yet able to say. "
    assert all(part.rstrip()[-1] in ",." for part in parts)


def test_only_the_first_piece_is_short() -> None:
    lengths = [end - start for start, end in pieces("and then, " * 50)]
    assert 40 < lengths[0] <= 50
    assert all(length > 100 for length in lengths[1:-1]) and len(lengths) <= 6


def test_a_text_without_punctuation_is_cut_between_words() -> None:
    text = "seven " * 100
    assert all(text[start:end].strip().split(" ").count("seven") * 6 == end - start for start, end in pieces(text))


@given(st.text(alphabet="aB9-字 ", max_size=300))
def test_endless_words_are_blanked_in_place(text: str) -> None:
    result = without_endless_words(text)
    assert len(result) == len(text)
    assert all(after in (before, " ") for before, after in zip(text, result, strict=True))


def test_only_the_excess_of_a_word_is_lost() -> None:
    assert without_endless_words("say " + "A" * 300 + " now").split() == ["say", "A" * MAX_WORD_CHARS, "now"]
    assert without_endless_words("字" * 300) == "字" * 300
    assert without_endless_words("honorificabilitudinitatibus") == "honorificabilitudinitatibus"
