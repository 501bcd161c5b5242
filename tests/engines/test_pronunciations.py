"""IPA and pinyin of an utterance: what each engine makes of them, and that timings stay those of the text."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Sequence
from contextlib import aclosing

import numpy as np
import pytest

from telephony_tts.engines import same_sound
from telephony_tts.engines.api import Chunk, Engine, Pcm, Pronunciation, Utterance
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.front_ends.english import hibari_phonemes
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.engines.same_sound import with_same_sounds

CHONGQING = (Pronunciation(2, 3, "pinyin", "chong2"), Pronunciation(3, 4, "pinyin", "qing4"))


def spoken(engine: Engine, utterances: Sequence[Utterance]) -> list[list[Chunk]]:
    async def body() -> list[list[Chunk]]:
        await engine.start()
        made = []
        for utterance in utterances:
            async with aclosing(engine.synthesize(utterance)) as stream:
                made.append([chunk async for chunk in stream])
        await engine.close()
        return made

    return asyncio.run(body())


def pcm(chunks: list[Chunk]) -> Pcm:
    whole: Pcm = np.concatenate([chunk.pcm for chunk in chunks])
    return whole


def words(text: str, chunks: list[Chunk]) -> list[str]:
    return [text[timing.start_char : timing.end_char] for chunk in chunks for timing in chunk.timings]


def test_a_character_of_the_wanted_reading_takes_its_place() -> None:
    text = "我在重庆。"
    assert with_same_sounds(text, CHONGQING) == "我在崇庆。"
    assert with_same_sounds(text, [Pronunciation(2, 4, "pinyin", "chong2 qing4")]) == "我在崇庆。"
    assert with_same_sounds(text, [Pronunciation(2, 3, "ipa", "x")]) == text
    for unknown in ("chong2 qing4", "xyz1", "de5", ""):
        assert with_same_sounds(text, [Pronunciation(2, 3, "pinyin", unknown)]) == text


def test_the_table_has_one_character_for_each_syllable() -> None:
    table = same_sound._CHARACTERS
    assert len(table) > 900
    for syllable, char in table.items():
        assert syllable[:-1].isascii() and syllable[-1] in "1234" and len(char) == 1
        assert unicodedata.name(char).startswith("CJK UNIFIED IDEOGRAPH")


def test_espeak_speaks_mandarin_by_its_pinyin() -> None:
    text = "我在重庆。"
    engine = EspeakEngine(n_workers=1)
    plain, given, meant = spoken(
        engine,
        [
            Utterance("a", text, voice="cmn"),
            Utterance("b", text, voice="cmn", pronunciations=CHONGQING),
            Utterance("c", "我在崇庆。", voice="cmn"),
        ],
    )
    assert len(pcm(given)) == len(pcm(meant)) and np.corrcoef(pcm(given), pcm(meant))[0, 1] > 0.95
    assert len(pcm(plain)) != len(pcm(meant)) or np.corrcoef(pcm(plain), pcm(meant))[0, 1] < 0.9
    assert words(text, given) == list("我在重庆")


@pytest.mark.parametrize(
    ("ipa", "ours"),
    [
        ("təˈmɑːtoʊ", "təmˈɑtO"),
        ("ˈdʒeɪsən", "ʤˈAsən"),
        ("ˈtʃɔɪs", "ʧˈYs"),
        ("ɡoʊ.ɪŋ", "ɡOɪŋ"),
        ("ˈt͡ʃɝːtʃ", "ʧˈɜɹʧ"),
        ("ˌɪntəˈnæʃənəl", "ˌɪntənˈæʃənəl"),
    ],
)
def test_ipa_in_the_letters_of_hibari(ipa: str, ours: str) -> None:
    assert hibari_phonemes(ipa) == ours


@pytest.mark.slow
def test_hibari_speaks_a_word_by_its_ipa() -> None:
    text = "Ask Nguyen about the Nguyen account, Mr. O'Neil."
    at = text.rindex("Nguyen")
    second = Pronunciation(at, at + 6, "ipa", "wɪn")
    irish = Pronunciation(text.index("O'Neil"), text.index("O'Neil") + 6, "ipa", "oʊˈniːl")
    made = spoken(
        HibariEngine(n_workers=1),
        [
            Utterance("a", text),
            Utterance("b", text, pronunciations=(second, irish)),
            Utterance("c", "Ask Nguyen about the win account, Mr. O'Neil."),
        ],
    )
    plain, given, meant = made
    assert abs(len(pcm(given)) - len(pcm(meant))) < 24_000 * 0.15 < abs(len(pcm(plain)) - len(pcm(given)))
    assert words(text, given) == words(text, plain)
    assert words(text, given) == ["Ask", "Nguyen", "about", "the", "Nguyen", "account", "Mr", "O'Neil"]
    timings = [timing for chunk in given for timing in chunk.timings]
    lasts = [timings[n].end_sample - timings[n].start_sample for n in (1, 4)]
    assert lasts[1] < 0.8 * lasts[0], "only the second one is short"


@pytest.mark.slow
def test_hibari_leaves_a_word_alone_that_it_cannot_find() -> None:
    text = "It is 5 kg."
    made = spoken(
        HibariEngine(n_workers=1),
        [Utterance("a", text), Utterance("b", text, pronunciations=(Pronunciation(8, 10, "ipa", "wɪn"),))],
    )
    assert np.array_equal(pcm(made[0]), pcm(made[1]))
