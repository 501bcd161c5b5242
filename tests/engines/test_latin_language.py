"""The language of Latin text: English sentences of telephone bots are never taken for another language."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from telephone_sentences import ENGLISH, FOREIGN

from telephony_tts.engines import latin_language
from telephony_tts.engines.latin_language import LatinLanguage
from telephony_tts.runtime.errors import EngineUnavailable

TESTS = Path(__file__).parents[1]
SHARED = TESTS.parents[1] / "shared" / "text"
"""More texts, which not every checkout has."""


@pytest.fixture(scope="module")
def detector() -> LatinLanguage:
    detector = LatinLanguage()
    detector.load()
    return detector


@pytest.mark.slow
@pytest.mark.parametrize("language", FOREIGN)
def test_most_sentences_show_their_language_and_none_shows_another(detector: LatinLanguage, language: str) -> None:
    told = [detector.detect(sentence) for sentence in FOREIGN[language]]
    assert set(told) <= {language, None}
    close_to_another = {"nb": 7, "da": 7, "id": 5}  # Danish and Norwegian, Indonesian and Malay
    assert told.count(language) >= close_to_another.get(language, 9)


def english_of(path: Path) -> Iterator[str]:
    """Whole texts, their sentences, and their normalised forms."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("lang") == "en":
            text = row.get("text") or row["marked"].replace("⏐", "")
            yield from (text, *row.get("expected", ()), *row.get("preferred", ()))
            yield from re.split(r"(?<=[.!?]) ", text)


def test_english_is_never_taken_for_another_language(detector: LatinLanguage) -> None:
    files = [TESTS / "text" / "sentences.jsonl", *sorted(SHARED.glob("*.jsonl"))]
    texts = {*ENGLISH, *(text for file in files for text in english_of(file))}
    assert len(texts) > 300
    told = {text: detector.detect(text) for text in texts}
    assert {text: language for text, language in told.items() if language not in (None, "en")} == {}
    assert sum(told[text] == "en" for text in ENGLISH) > 70


@pytest.mark.parametrize(
    "text",
    [
        "OK.",
        "Ja.",
        "Gut, danke.",
        "Müller.",
        "Hauptstraße 12, 10115 Berlin",
        "João da Silva e Sousa",
        "GUTEN TAG WIE GEHT ES IHNEN HEUTE",
        "SMS TAN PIN IBAN BIC SWIFT SEPA CVV",
        "info@beispiel.at www.ejemplo.es/ayuda",
        "12345 67890",
        "",
    ],
)
def test_names_codes_and_too_few_words_give_no_language(detector: LatinLanguage, text: str) -> None:
    assert detector.detect(text) is None


def test_names_and_numbers_in_a_sentence_do_not_hide_its_language(detector: LatinLanguage) -> None:
    assert detector.detect("Ihr Paket, Mr. Smith, ist am 12.05. um 14:30 Uhr in New York bei Walmart.") == "de"
    assert detector.detect("Am I speaking with Jürgen Müller-Lüdenscheidt from Hauptstraße 12?") == "en"


def test_only_a_bounded_part_of_a_text_is_read(detector: LatinLanguage) -> None:
    german = " ".join(FOREIGN["de"])
    assert detector.detect(german) == "de"
    assert detector.detect(german + " the and with your you" * 1000) == "de"


def test_before_load_there_is_no_answer() -> None:
    assert LatinLanguage().detect(FOREIGN["de"][0]) is None


def test_a_broken_package_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import py3langid.langid

    monkeypatch.setattr(py3langid.langid, "MODEL_FILE", os.fspath(tmp_path / "none.npz.xz"))
    with pytest.raises(EngineUnavailable, match=r"none\.npz\.xz.*install -e '\.\[lang\]'.*speech\.detect_language"):
        LatinLanguage().load()


def test_text_in_no_language_is_none(monkeypatch: pytest.MonkeyPatch, detector: LatinLanguage) -> None:
    class Odd:
        def classify(self, text: str) -> tuple[str, float]:
            return latin_language._NO_LANGUAGE, 1.0

    monkeypatch.setattr(detector, "_identifier", Odd())
    assert detector.detect("lorem ipsum dolor sit amet") is None
