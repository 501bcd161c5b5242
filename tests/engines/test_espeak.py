import asyncio
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conformance import Subject, joined, speak

from telephony_tts.engines.api import Timing, Utterance
from telephony_tts.engines.espeak.engine import _SCRIPT_OF_VOICE, SAMPLE_RATE_HZ, EspeakEngine, _install
from telephony_tts.runtime.errors import EngineUnavailable, UnknownVoice, UnsupportedText

same = Subject(min_correlation=0.98).same
TEXTS = {
    "en-us": "Thank you for calling, how can I help you today?",
    "en-gb": "Your parcel left the depot on Tuesday morning.",
    "cmn": "您好，请问有什么可以帮您？",
    "de": "Guten Tag, wie kann ich Ihnen helfen?",
    "fr-fr": "Bonjour, que puis-je faire pour vous ?",
    "es": "Buenos días, ¿en qué puedo ayudarle?",
    "ru": "Добрый день, чем я могу помочь?",
    "pt-br": "Bom dia, como posso ajudar?",
}


def spoken(text: str, voice: str | None = None, speed: float = 1.0) -> tuple[np.ndarray, list[Timing]]:
    async def body() -> tuple[np.ndarray, list[Timing]]:
        engine = EspeakEngine(n_workers=1)
        await engine.start()
        chunks = await speak(engine, Utterance("u", text, voice=voice, speed=speed))
        await engine.close()
        return joined(chunks), [timing for chunk in chunks for timing in chunk.timings]

    return asyncio.run(body())


@pytest.mark.parametrize("n_workers", [1, 4])
def test_eight_utterances_in_eight_languages_at_once_sound_as_alone(n_workers: int) -> None:
    alone = {voice: spoken(text, voice) for voice, text in TEXTS.items()}

    async def body() -> None:
        engine = EspeakEngine(n_workers=n_workers)
        await engine.start()
        voices = list(TEXTS) * 3
        together = await asyncio.gather(*(speak(engine, Utterance(v, TEXTS[v], voice=v)) for v in voices))
        await engine.close()
        for voice, chunks in zip(voices, together, strict=True):
            pcm, timings = alone[voice]
            assert same(joined(chunks), pcm), voice
            assert [timing for chunk in chunks for timing in chunk.timings] == timings, voice

    asyncio.run(body())


def test_every_voice_reads_its_own_script_and_sounds_the_same_twice() -> None:
    samples = {
        "CJK": "你好世界",
        "CYRILLIC": "привет мир",
        "GREEK": "καλημέρα",
        "ARABIC": "مرحبا",
        "DEVANAGARI": "नमस्ते",
        "HANGUL": "안녕하세요",
    }

    async def body() -> None:
        engine = EspeakEngine(n_workers=1)
        await engine.start()
        for voice, script in _SCRIPT_OF_VOICE.items():
            utterance = Utterance("u", samples.get(script, "banana 12 radio"), voice=voice)
            first, second = joined(await speak(engine, utterance)), joined(await speak(engine, utterance))
            assert len(first) > SAMPLE_RATE_HZ // 4 and same(first, second), voice
        await engine.close()

    asyncio.run(body())


def test_a_korean_sentence_with_a_name_in_han_letters_is_spoken() -> None:
    pcm, timings = spoken("田中 고객님, 예약 세 건 확인했습니다.")
    same_in_hangul, _ = spoken("전중 고객님, 예약 세 건 확인했습니다.")
    assert len(pcm) == len(same_in_hangul)
    assert timings[0].start_char == 0


def test_mandarin_is_timed_by_the_character() -> None:
    text = "我在iPhone上买了三个苹果，可以吗？"
    pcm, timings = spoken(text)
    heard = [text[t.start_char : t.end_char] for t in timings]
    assert heard == [*"我在", "iPhone", *"上买了三个苹果可以吗"]
    lengths_ms = [(t.end_sample - t.start_sample) * 1000 / SAMPLE_RATE_HZ for t in timings]
    assert min(lengths_ms) > 60 and max(lengths_ms) < 700
    assert timings[-1].end_sample <= len(pcm)


def test_a_word_begins_where_its_sound_does() -> None:
    """After the pause at a full stop the next word begins where the level rises again."""
    text = "Stop. Go. Wait. Ten. Pick."
    pcm, timings = spoken(text, "en-us")
    n_window = SAMPLE_RATE_HZ // 100
    levels = np.sqrt(np.square(pcm[: len(pcm) // n_window * n_window].reshape(-1, n_window).astype(float)).mean(axis=1))
    quiet = levels < 60
    rises = [i for i in range(10, len(quiet)) if not quiet[i] and quiet[i - 10 : i].all()]
    assert len(rises) == len(timings) - 1 == 4
    for rise, timing in zip(rises, timings[1:], strict=True):
        assert abs(rise * n_window - timing.start_sample) < 0.1 * SAMPLE_RATE_HZ


def test_emoji_and_apostrophes_do_not_move_the_words() -> None:
    text = "I don't 😀 know 𝐇er café, e.g. sixty-seven"
    _, timings = spoken(text, "en-us")
    heard = [text[t.start_char : t.end_char] for t in timings]
    assert heard == ["I", "don't", "know", "𝐇er", "café", "e.g", "sixty-seven"]
    assert same(spoken("Hi 😀 you", "en-us")[0], spoken("Hi   you", "en-us")[0])


@pytest.mark.parametrize(
    ("lang", "text", "like"),
    [
        (None, "Hello there", "en-us"),
        ("en-GB", "Hello there", "en-gb"),
        ("de-AT", "Guten Tag", "de"),
        ("zh-CN", "你好", "cmn"),
        (None, "你好", "cmn"),
        (None, "привет", "ru"),
        ("uk", "привіт", "uk"),
        ("en", "你好", "cmn"),
        ("xx", "Hello there", "en-us"),
    ],
)
def test_without_a_voice_the_language_and_then_the_script_decide(lang: str | None, text: str, like: str) -> None:
    async def body() -> None:
        engine = EspeakEngine(n_workers=1)
        await engine.start()
        chosen = joined(await speak(engine, Utterance("u", text, lang=lang)))
        assert same(chosen, joined(await speak(engine, Utterance("u", text, voice=like))))
        await engine.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("voice", "text", "says"),
    [
        ("en-us", "你好", "^espeak cannot read cjk letters with 'en-us'$"),
        ("cmn", "привет", "^espeak cannot read cyrillic letters with 'cmn'$"),
        (None, "สวัสดี", "^espeak cannot read thai letters with any of its voices$"),
        (None, "今日は", "^espeak cannot read cjk/hiragana letters with any of its voices$"),
        (None, "你好 привет", "^espeak cannot read cjk/cyrillic letters with any of its voices$"),
    ],
)
def test_unreadable_letters_are_refused_by_name(voice: str | None, text: str, says: str) -> None:
    with pytest.raises(UnsupportedText, match=says):
        EspeakEngine().check(Utterance("u", text, voice=voice))


def test_an_unknown_voice_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UnknownVoice, match="en-us, en-gb, cmn"):
        EspeakEngine().check(Utterance("u", "Hi", voice="xx"))


def test_private_copies_are_gone_after_close(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def engine_folder() -> Path:
        (folder,) = tmp_path.iterdir()
        return folder

    async def body() -> None:
        engine = EspeakEngine(n_workers=3)
        await engine.start()
        assert sum("libespeak" in name for name in os.listdir(engine_folder())) == 3
        stream = engine.synthesize(Utterance("u", TEXTS["en-us"] * 30))
        await anext(stream)
        await engine.close()

    asyncio.run(body())
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_the_callback_stops_espeak_at_once_and_the_next_sentence_is_clean() -> None:
    installation = _install(1)
    (library,) = installation.idle
    text = " ".join(TEXTS["en-us"] for _ in range(5))
    whole = library.speak(text, "en-us", 1.0, 0, bool)
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 3

    assert len(library.speak(text, "en-us", 1.0, 0, cancelled).pcm) == 0
    n_callbacks = len(whole.pcm) * 1000 // SAMPLE_RATE_HZ // 60
    assert len(asked) <= 6 < n_callbacks
    again = library.speak(text, "en-us", 1.0, 0, bool)
    assert same(again.pcm, whole.pcm) and again.timings == whole.timings
    installation.close()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(EngineUnavailable, match=r"\.venv/bin/pip install -e '\.\[espeak\]'"):
        asyncio.run(EspeakEngine().start())
