"""Languages that Kokoro reads by espeak-ng's phonemes: Spanish, French, Italian, Portuguese and Hindi."""

from __future__ import annotations

import pytest

from telephony_tts.engines.api import Pronunciation
from telephony_tts.engines.front_ends.english import english_reader
from telephony_tts.engines.kokoro.reading import KokoroReader

pytestmark = pytest.mark.slow

SENTENCES = [
    ("es", "¿Desea pagarla ahora, o chocolate?", "desˈea paɣˈaɾla aˈoɾa, o ʧˌokolˈate?"),
    ("fr", "Bonjour, un bon «parking».", "bɔ̃ʒˈuʁ, œ̃ bˈɔ̃“ pˈɑːkɪŋ”."),
    ("it", "Buongiorno, grazie.", "bʊonʤˈɔrno, ɡrˈaʦje."),
    ("pt", "Bom dia, trinta reais.", "bˈoŋ ʤˈiæ, trˈiŋtæ xeˈIs."),
    ("hi", "नमस्ते, आपका बिल।", "nəmˈʌsteː, ˌaːpkˌaː bˈɪl."),
]


@pytest.fixture(scope="module")
def reader() -> KokoroReader:
    return KokoroReader()


@pytest.mark.parametrize(("language", "text", "given"), SENTENCES)
def test_a_sentence_in_symbols_that_the_network_has(
    language: str, text: str, given: str, reader: KokoroReader
) -> None:
    reading = reader.read(text, (), language)
    assert reading.written == given
    assert len(reading.symbols) == len(given), "no symbol is left out"
    assert reading.symbols == english_reader().ids(given)


@pytest.mark.parametrize(("language", "text", "given"), SENTENCES)
def test_each_word_has_its_time(language: str, text: str, given: str, reader: KokoroReader) -> None:
    reading = reader.read(text, (), language)
    timings = reader.timings(reading, list(range(len(reading.symbols) + 1)))
    said = [text[timing.start_char : timing.end_char] for timing in timings]
    assert said == [word.strip("¿?,.।«»") for word in text.split()]


def test_words_that_espeak_joins_are_heard_as_one_and_none_is_lost(reader: KokoroReader) -> None:
    text = "Son 35 euros, gracias."
    reading = reader.read(text, (), "es")
    timings = reader.timings(reading, list(range(len(reading.symbols) + 1)))
    said = [text[timing.start_char : timing.end_char] for timing in timings]
    assert said in (["Son 35 euros", "gracias"], ["Son", "35", "euros", "gracias"])
    assert "ˈeʊɾos" in reading.written and "θˈinko" in reading.written


def test_phonemes_of_the_bot_replace_a_word(reader: KokoroReader) -> None:
    given = [Pronunciation(5, 10, "ipa", "t͡ʃˈika")]
    assert reader.read("hola maria", given, "es").written == "ˈola ʧˈika"
