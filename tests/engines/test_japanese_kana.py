"""Japanese text as kana and as Kokoro's symbols. `japanese.tsv` has lines of a call centre with their readings."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from telephony_tts.engines.api import Pronunciation
from telephony_tts.engines.front_ends.english import english_reader
from telephony_tts.engines.front_ends.japanese import Japanese, kana_symbols, katakana
from telephony_tts.engines.kokoro.reading import KokoroReader
from telephony_tts.text.normalizer import normalize

pytestmark = pytest.mark.slow

LINES = [line.split("\t") for line in Path(__file__).with_name("japanese.tsv").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("kana", "symbols"),
    [
        ("セーキュー", "seːkʲɨː"),
        ("キンガク", "kʲiŋɡakɯ"),
        ("サンポ", "sampo"),
        ("ホンヤ", "hoɴja"),
        ("コンニチワ", "koɲɲiʨiβa"),
        ("シンジュク", "ɕiɲʥɨkɯ"),
        ("ガッコー", "ɡaʔkoː"),
        ("ファックス", "ɸaʔkɯsɨ"),
        ("ウェブ、ティー", "βebɯtʲiː"),
        ("クォーツ", "kᵝoːʦɨ"),
        ("ヂヅヲ", "ʥizɨo"),
        ("ンー", "ɴː"),
    ],
)
def test_kana_in_symbols(kana: str, symbols: str) -> None:
    assert kana_symbols(kana) == symbols


def test_every_kana_has_symbols_that_the_network_knows() -> None:
    known = english_reader().symbols
    small = "ァィゥェォャュョヮ"
    for first in map(chr, range(ord("ァ"), ord("ヺ") + 1)):
        for kana in (first, first + "ー", *(first + each for each in small)):
            assert kana_symbols(kana) and all(symbol in known for symbol in kana_symbols(kana)), kana


@pytest.mark.parametrize(
    ("word", "kana"),
    [("support", "サポート"), ("station", "ステーション"), ("computer", "コンピューター"), ("cash", "キャッシュ"),
     ("delivery", "デリバリー"), ("Smith", "スミス"), ("internet", "インターネット"), ("click", "クリック"),
     ("pay", "ペイ"), ("singer", "シンガー"), ("menu", "メニュー")],
)  # fmt: skip
def test_english_words_in_kana(word: str, kana: str) -> None:
    english = english_reader()
    letters = {number: letter for letter, number in english.symbols.items()}
    assert katakana("".join(letters[number] for number in english.read(word).ids[1:-1]), word) == kana


@pytest.fixture(scope="module")
def japanese() -> Japanese:
    pytest.importorskip("pyopenjtalk", reason="the extra [japanese] is not installed")
    return Japanese(english_reader())


@pytest.fixture(scope="module")
def reader(japanese: Japanese) -> KokoroReader:
    return KokoroReader()


def plain(kana: str) -> str:
    return "".join(re.findall("[ァ-ヺー]", kana.replace("ヲ", "オ")))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_lines_of_a_call_centre(line: list[str], japanese: Japanese) -> None:
    said = "".join(word.kana for word in japanese.read(normalize(line[0], "ja-x-digits")))
    assert plain(said) in [plain(reading) for reading in line[1:]]


@pytest.mark.parametrize(
    "text", ["", " ", "。", "12,000円です", "１０万円", "Wi-FiとPIN、PIN", "ｶﾞｲﾄﾞ", "𠮷野家", "\ue000"]
)
def test_the_words_stand_in_order_within_the_text(text: str, japanese: Japanese) -> None:
    words = japanese.read(text)
    assert all(0 <= word.start <= word.end <= len(text) for word in words)
    assert [word.start for word in words] == sorted(word.start for word in words)
    spoken = {place for word in words for place in range(word.start, word.end) if plain(word.kana)}
    assert spoken >= {place for place, char in enumerate(text) if char in "円万ガ"}


def test_a_reading_has_the_symbols_and_the_time_of_each_word(reader: KokoroReader) -> None:
    text = "合計は12,000円です。Amazon Payで。"
    reading = reader.read(text, (), "ja")
    assert reading.written == "ɡoːkeː βa iʨi maɴ ɲi seɴ eɴ desɨ. amaʣoɴ pei de."
    assert reading.citation == "ゴーケーワイチマンニセンエンデス。アマゾン ペイデ。"
    timings = reader.timings(reading, list(range(len(reading.symbols) + 1)))
    said = [text[timing.start_char : timing.end_char] for timing in timings]
    assert said[:2] == ["合計", "は"] and "円" in said and said[-3:] == ["Amazon", "Pay", "で"]
    assert all(a.end_sample <= b.start_sample for a, b in pairwise(timings))


def test_phonemes_of_a_lexicon_are_taken(reader: KokoroReader) -> None:
    given = [Pronunciation(2, 4, "ipa", "joɕino")]
    reading = reader.read("私は吉野です", given, "ja")
    assert reading.citation == "ワタシワ/joɕino/デス" and " joɕino desɨ" in reading.written
