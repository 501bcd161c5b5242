"""IPA for espeak: in its own names where the voice has the sound, and the spelling where it has not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest

from telephony_tts.engines.api import Chunk, Pcm, Pronunciation, Utterance
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.espeak.phonemes import VoicePhonemes

ENGLISH = VoicePhonemes(
    {"ə": "@", "ɑː": "A:", "oʊ": "oU", "ɪ": "I", "aɪ": "aI", "ɑ\u0303": "A~"},
    {"t": "t", "m": "m", "w": "w", "n": "n", "dʒ": "dZ", "ɹ": "r", "c\u0327": "C"},
)


@pytest.mark.parametrize(
    ("ipa", "names"),
    [
        ("təˈmɑːtoʊ", "[[t|@|m|'A:|t|oU]]"),
        ("təˈmɑtoʊ", "[[t|@|m|'A:|t|oU]]"),
        ("tə.mɑː.toʊ", "[[t|@|m|A:|t|oU]]"),
        ("wɪn", "[[w|'I|n]]"),
        ("ˌwɪnˈd͡ʒaɪ", "[[w|,I|n|dZ|'aI]]"),
        ("rɪn ˈçɑ̃", "[[r|'I|n C|'A~]]"),
        ("wɒn", None),
        ("", None),
        ("ˈ", None),
        ("[[wɪn", None),
    ],
)
def test_ipa_in_the_names_of_a_voice(ipa: str, names: str | None) -> None:
    assert ENGLISH.written(ipa) == names


@asynccontextmanager
async def started() -> AsyncIterator[EspeakEngine]:
    engine = EspeakEngine(n_workers=1)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def spoken(utterances: Sequence[Utterance]) -> list[list[Chunk]]:
    async def body() -> list[list[Chunk]]:
        made = []
        async with started() as engine:
            for utterance in utterances:
                async with aclosing(engine.synthesize(utterance)) as stream:
                    made.append([chunk async for chunk in stream])
        return made

    return asyncio.run(body())


def pcm(chunks: list[Chunk]) -> Pcm:
    whole: Pcm = np.concatenate([chunk.pcm for chunk in chunks])
    return whole


def words(text: str, chunks: list[Chunk]) -> list[str]:
    return [text[timing.start_char : timing.end_char] for chunk in chunks for timing in chunk.timings]


def assert_alike(one: Pcm, other: Pcm) -> None:
    assert len(one) == len(other) and np.corrcoef(one, other)[0, 1] > 0.95


ROUND_TRIPS = {
    "en-us": ["win", "choice", "vision", "thirty", "music", "laughing", "January"],
    "en-gb": ["win", "choice", "vision", "garden", "music", "bird", "through"],
    "de": ["Straße", "München", "Pfeffer", "öde", "Jahr", "zwei", "Häuser"],
    "fr-fr": ["bonjour", "vin", "peur", "montagne", "rue", "chaud", "oui"],
    "es": ["perro", "niño", "queso", "calle", "chico", "luz"],
    "it": ["vigna", "ciao", "zio", "pesce", "figlio"],
    "pl": ["cześć", "życie", "dziękuję", "szkoła"],
    "ru": ["\u043c\u0430\u043c\u0430", "\u0440\u0443\u043a\u0430", "\u0437\u0438\u043c\u0430"],
}


@pytest.mark.parametrize("voice", ROUND_TRIPS)
def test_a_voice_says_its_own_ipa_as_it_says_the_word(voice: str) -> None:
    """Its IPA of a word, written in names, has the same IPA again. So the names are those of these sounds."""

    async def body() -> None:
        async with started() as engine:
            installation = engine._installation
            assert installation is not None
            phonemes, read = installation.phonemes_of(voice), installation.idle[0].reader(voice)
            for word in ROUND_TRIPS[voice]:
                ipa = read(word, True).strip()
                names = phonemes.written(ipa)
                assert names is not None, (word, ipa)
                assert read(names, True).strip() == ipa, (word, names)

    asyncio.run(body())


def test_a_word_is_spoken_by_its_ipa_and_keeps_its_place_in_the_text() -> None:
    text = "Ask Nguyen about the Nguyen account, Mr. O'Neil."
    at = text.rindex("Nguyen")
    win = Pronunciation(at, at + 6, "ipa", "wɪn")
    plain, given, meant = spoken(
        [
            Utterance("a", text, voice="en-us"),
            Utterance("b", text, voice="en-us", pronunciations=(win,)),
            Utterance("c", text[:at] + "win" + text[at + 6 :], voice="en-us"),
        ]
    )
    assert_alike(pcm(given), pcm(meant))
    assert len(pcm(plain)) != len(pcm(given))
    assert words(text, given) == words(text, plain) == words(text, plain)
    (timing,) = [each for chunk in given for each in chunk.timings if each.start_char == at]
    (same,) = [each for chunk in meant for each in chunk.timings if each.start_char == at]
    assert abs(timing.start_sample - same.start_sample) < 500 and abs(timing.end_sample - same.end_sample) < 500


def test_a_sound_that_the_voice_has_not_leaves_the_spelling() -> None:
    text = "Ask Nguyen now."
    unknown = Pronunciation(4, 10, "ipa", "ŋwiən˧˥")
    plain, given = spoken(
        [Utterance("a", text, voice="en-us"), Utterance("b", text, voice="en-us", pronunciations=(unknown,))]
    )
    assert_alike(pcm(plain), pcm(given))


def test_brackets_of_the_bot_are_no_phonemes() -> None:
    """Also in a sentence that has phonemes of ours."""
    text = "Say [[t@m'A:toU]] and tomato."
    at = text.index("tomato.")
    ours = Pronunciation(at, at + 6, "ipa", "təˈmɑːtoʊ")
    plain, given, meant = spoken(
        [
            Utterance("a", text, voice="en-us"),
            Utterance("b", text, voice="en-us", pronunciations=(ours,)),
            Utterance("c", "Say   t@m'A:toU]] and tomahto.", voice="en-us"),
        ]
    )
    assert abs(len(pcm(given)) - len(pcm(plain))) < 22_050 * 0.4
    assert abs(len(pcm(given)) - len(pcm(meant))) < 22_050 * 0.1


def test_the_ipa_of_a_long_text_stands_in_its_own_piece() -> None:
    text = "The first clause of this text is long enough to be a piece of its own, I believe, and it ends here. " * 3
    text += "Then tomato comes."
    at = text.index("tomato")
    ours = Pronunciation(at, at + 6, "ipa", "wɪn")
    given, meant = spoken(
        [
            Utterance("a", text, voice="en-us", pronunciations=(ours,)),
            Utterance("b", text.replace("tomato", "win"), voice="en-us"),
        ]
    )
    assert len(pcm(given)) == len(pcm(meant))
    assert words(text, given)[-2:] == ["tomato", "comes"]
