import asyncio
import logging
import threading

import pytest

from telephony_tts.engines.api import EngineStats, LangSource, Utterance
from telephony_tts.engines.catalog import AbsentEngine, Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice

ENGLISH = ["heart", "emma"]


def engines() -> list[FakeEngine]:
    return [
        FakeEngine(name="hibari", voice_names=ENGLISH, languages=["en"]),
        FakeEngine(name="cosyvoice2", voice_names=["mei", "heart"], languages=["zh", "en"]),
        FakeEngine(name="espeak", voice_names=["zh-tone"], languages=["cmn", "zh"]),
        FakeEngine(name="formant", voice_names=["fr-be", "fr"], languages=["fr"]),
    ]


def resolved(catalog: Catalog, voice: str | None, lang: str | None, text: str) -> str:
    engine, named = catalog.resolve(voice, lang, text)
    return f"{engine.name}/{named.name}"


@pytest.mark.parametrize(
    ("voice", "lang", "text", "expected"),
    [
        (None, None, "Hello", "hibari/heart"),
        (None, "en-GB", "Hello", "hibari/heart"),
        (None, None, "…", "hibari/heart"),
        ("emma", None, "Hello", "hibari/emma"),
        ("heart", None, "Hello", "hibari/heart"),
        ("cosyvoice2/heart", None, "Hello", "cosyvoice2/heart"),
        ("mei", "en", "Hello", "cosyvoice2/mei"),
        (None, None, "你好", "espeak/zh-tone"),
        (None, "en", "你好", "espeak/zh-tone"),
        (None, "zh-CN", "OK 123", "espeak/zh-tone"),
        ("emma", "en", "你好", "espeak/zh-tone"),
        ("mei", None, "你好", "cosyvoice2/mei"),
        (None, "fr", "Bonjour", "formant/fr-be"),
        (None, "de", "Guten Tag", "hibari/heart"),
        (None, None, "привет", "hibari/heart"),
        ("emma", None, "привет", "hibari/emma"),
    ],
)
def test_resolve(voice: str | None, lang: str | None, text: str, expected: str) -> None:
    assert resolved(Catalog(engines(), {"zh": "espeak"}), voice, lang, text) == expected


def test_without_a_route_the_first_engine_of_the_language_speaks_and_a_named_voice_is_kept() -> None:
    catalog = Catalog(engines())
    assert resolved(catalog, None, None, "你好") == "cosyvoice2/mei"
    assert resolved(catalog, "emma", None, "你好") == "hibari/emma"


@pytest.mark.parametrize(
    ("voice", "lang", "lang_source", "text", "expected"),
    [
        # a language detected from words leads only to its route
        (None, "fr", "words", "Bonjour", "formant/fr-be"),
        (None, "es", "words", "Buenos", "hibari/heart"),
        ("emma", "fr", "words", "Bonjour", "formant/fr-be"),
        ("emma", "es", "words", "Buenos", "hibari/emma"),
        ("fr", "fr", "words", "Bonjour", "formant/fr"),
        (None, "en", "words", "Hello", "hibari/heart"),
        # the bot's language leads to the first engine that has it; only a route replaces a named voice
        (None, "es", "bot", "Buenos", "espeak/es-tone"),
        ("emma", "es", "bot", "Buenos", "hibari/emma"),
        ("emma", "fr-CA", "bot", "Bonjour", "formant/fr-be"),
        (None, "no", "bot", "Hei", "espeak/nb-tone"),
        # Latin letters alone, which mean English, never replace a named voice
        ("fr", "en", "letters", "OK", "formant/fr"),
        (None, "en", "letters", "OK", "hibari/heart"),
        # the script decides first
        (None, "fr", "words", "你好", "cosyvoice2/mei"),
        ("fr", "zh", "letters", "你好", "cosyvoice2/mei"),
    ],
)
def test_resolve_by_the_source_of_the_language(
    voice: str | None, lang: str, lang_source: LangSource, text: str, expected: str
) -> None:
    more = FakeEngine(name="espeak", voice_names=["es-tone"], languages=["es"])
    more.voices += FakeEngine(name="espeak", voice_names=["nb-tone"], languages=["nb"]).voices
    first, second, _, formant = engines()
    catalog = Catalog([first, second, more, formant], {"fr": "formant", "en": "hibari", "zh": "cosyvoice2"})
    engine, named = catalog.resolve(voice, lang, text, lang_source)
    assert f"{engine.name}/{named.name}" == expected


class Reader(FakeEngine):
    reads_digits = ("ja",)


def japanese() -> Catalog:
    kana = Reader(name="kana", voice_names=["alpha"], languages=["ja"])
    kanji = FakeEngine(name="kanji", voice_names=["tone"], languages=["ja"])
    return Catalog([*engines(), kana, kanji], {"zh": "espeak", "ja": "kana"})


@pytest.mark.parametrize(
    ("voice", "lang", "expected"),
    [(None, "ja", "kana/alpha"), (None, "ja-JP", "kana/alpha"), ("alpha", None, "kana/alpha"),
     ("tone", "zh", "kanji/tone"), (None, "zh", "espeak/zh-tone"), (None, None, "espeak/zh-tone"),
     ("mei", "ja", "kana/alpha")],
)  # fmt: skip
def test_han_characters_alone_are_japanese_by_lang_or_by_voice(
    voice: str | None, lang: str | None, expected: str
) -> None:
    assert resolved(japanese(), voice, lang, "了解") == expected


def test_an_engine_says_whether_it_reads_digits() -> None:
    catalog = japanese()
    assert catalog.reads_digits(None, "ja") and catalog.reads_digits("alpha", "ja-JP")
    assert not catalog.reads_digits("tone", "ja"), "the voice of another engine"
    assert not catalog.reads_digits(None, "zh") and not catalog.reads_digits("stranger", "ja")
    assert not Catalog(engines()).reads_digits(None, "ja")


def test_the_default_engines_own_voice_for_a_language_needs_no_route() -> None:
    engine = FakeEngine(name="formant", voice_names=["en"], languages=["en"])
    engine.voices += FakeEngine(name="formant", voice_names=["de"], languages=["de"]).voices
    _, voice = Catalog([engine]).resolve(None, "de", "Guten Tag", "words")
    assert voice.name == "de"


def test_norwegian_has_two_tags_and_one_route() -> None:
    engine = FakeEngine(name="espeak", voice_names=["nb"], languages=["nb"])
    for key in ("no", "nb"):
        assert Catalog([FakeEngine(), engine], {key: "espeak"}).resolve("tone", "nb", "Hei", "words")[1].name == "nb"


def mismatch(catalog: Catalog, lang: str, text: str, voice: str | None = None, source: LangSource = "words") -> str:
    utterance = Utterance("u", text, voice=voice, lang=lang, lang_source=source)
    _, chosen = catalog.choose(utterance)
    return catalog.mismatch(utterance, chosen) or ""


def test_a_mismatch_is_reported_with_the_remedy() -> None:
    catalog = Catalog(engines())
    assert mismatch(catalog, "fr", "Bonjour") == (
        "the text seems to be in language fr, but voice heart speaks en: send `lang` fr or `voice` formant/fr-be, or "
        "set engines.routes to {fr: formant}. If it is not in fr, send the right `lang`"
    )
    assert ": send `voice` formant/fr-be, or set" in mismatch(catalog, "fr", "Bonjour", "emma")
    assert ": no engine here has a voice for it. If" in mismatch(catalog, "fi", "Terve")
    espeak = AbsentEngine("espeak", ("fi",), FakeEngine().check, "get it")
    with_absent = Catalog(engines(), absent=[espeak])
    assert ": espeak would: get it, and set engines.routes to {fi: espeak}. If" in mismatch(with_absent, "fi", "Terve")


def test_no_mismatch_if_the_voice_has_the_language_or_the_language_is_uncertain() -> None:
    catalog = Catalog(engines(), {"fr": "formant"})
    assert mismatch(catalog, "fr", "Bonjour") == mismatch(catalog, "en", "Hello") == ""
    assert mismatch(catalog, "fi", "Terve", source="bot") == mismatch(catalog, "en", "OK", "fr", "letters") == ""
    assert mismatch(catalog, "fi", "привет", "emma") == "", "a script is not a matter of words"


class Slow:
    """A detector that records the thread of its load."""

    def __init__(self) -> None:
        self.loaded_in: int | None = None

    def load(self) -> None:
        self.loaded_in = threading.get_ident()

    def detect(self, sentence: str) -> str | None:
        return "de" if self.loaded_in is not None else None


def test_the_detector_is_loaded_at_the_start_outside_the_event_loop() -> None:
    async def body() -> None:
        detector = Slow()
        catalog = Catalog(engines(), detector=detector)
        assert catalog.detect_language("Guten Tag") is None
        await catalog.start()
        assert detector.loaded_in not in (None, threading.get_ident())
        assert catalog.detect_language("Guten Tag") == "de"
        await catalog.close()

    asyncio.run(body())
    assert Catalog(engines()).detect_language("Guten Tag") is None


@pytest.mark.parametrize(
    ("voice", "says"),
    [
        ("hart", "near it: heart"),
        ("hibari/hart", "hibari/heart"),
        ("stranger", "no voice 'stranger'; the voices are hibari/heart, hibari/emma, cosyvoice2/mei, cosyvoice2/heart, "
         "espeak/zh-tone, formant/fr-be, formant/fr$"),
        ("nowhere/heart", "no voice 'nowhere/heart'"),
        ("hibari/mei", "no voice"),
        ("", "no voice ''"),
    ],
)
def test_an_unknown_voice_is_reported_with_similar_names(voice: str, says: str) -> None:
    with pytest.raises(UnknownVoice, match=says):
        Catalog(engines()).resolve(voice, None, "Hello")


@pytest.mark.parametrize(("n_voices", "says"), [(12, "the voices are many/v1, many/v2"), (13, "there are 13, which")])
def test_few_voices_are_named_and_many_are_counted(n_voices: int, says: str) -> None:
    catalog = Catalog([FakeEngine(name="many", voice_names=[f"v{i + 1}" for i in range(n_voices)], languages=["en"])])
    with pytest.raises(UnknownVoice) as caught:
        catalog.resolve("stranger", None, "Hello")
    assert says in caught.value.message
    assert ("`.venv/bin/telephony-tts voices` lists" in caught.value.message) == (n_voices == 13)
    assert ("many/v12" in caught.value.message) == (n_voices == 12)
    with pytest.raises(UnknownVoice, match="near it: v1"):
        catalog.resolve("v1x", None, "Hello")


def test_configuration_mistakes_are_found_at_once() -> None:
    with pytest.raises(ConfigError, match="'nowhere'"):
        Catalog(engines(), {"zh": "nowhere"})
    with pytest.raises(ConfigError, match="must differ"):
        Catalog([FakeEngine(), FakeEngine()])
    with pytest.raises(ConfigError, match="at least one"):
        Catalog([])


def test_voices_are_listed_default_engine_first() -> None:
    names = [f"{voice.engine}/{voice.name}" for voice in Catalog(engines()).voices]
    assert names[:3] == ["hibari/heart", "hibari/emma", "cosyvoice2/mei"] and len(names) == 7


class Unavailable(FakeEngine):
    async def start(self) -> None:
        raise EngineUnavailable("no such package")


class Stubborn(FakeEngine):
    async def close(self) -> None:
        raise OSError("will not close")


def test_stats_are_by_engine() -> None:
    async def body() -> None:
        catalog = Catalog(engines())
        await catalog.start()
        engine, voice = catalog.resolve("emma", None, "Hello")
        stream = engine.synthesize(Utterance("u", "Hello", voice=voice.name))
        await anext(stream)
        assert catalog.stats() == {
            "hibari": EngineStats(n_running=1),
            "cosyvoice2": EngineStats(),
            "espeak": EngineStats(),
            "formant": EngineStats(),
        }
        await stream.aclose()
        await catalog.close()

    asyncio.run(body())


def still_speaks(engine: FakeEngine) -> bool:
    async def body() -> bool:
        return bool([chunk async for chunk in engine.synthesize(Utterance("u", "Hello"))])

    return asyncio.run(body())


@pytest.mark.parametrize("broken", [Unavailable(name="broken"), Stubborn(name="broken")])
def test_a_broken_engine_does_not_leave_the_others_open(broken: FakeEngine) -> None:
    good = FakeEngine(name="good")
    catalog = Catalog([broken, good] if isinstance(broken, Stubborn) else [good, broken])

    async def body() -> None:
        await catalog.start()
        await catalog.close()

    with pytest.raises((EngineUnavailable, OSError)):
        asyncio.run(body())
    with pytest.raises(EngineError, match="was closed"):
        still_speaks(good)


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_engine_logs_while_it_loads_is_its_step(fails: bool) -> None:
    seen: list[tuple[dict[str, str], str]] = []

    class Slow(FakeEngine):
        async def start(self) -> None:
            seen.append((catalog.loading, catalog.loading_step))
            logging.getLogger("telephony_tts.engines.slow.files").warning("reads %d of 3 files", 2)
            seen.append((catalog.loading, catalog.loading_step))
            if fails:
                raise EngineUnavailable("a file is missing")

    catalog = Catalog([Slow(name="one"), FakeEngine(name="two")])
    n_before = len(logging.getLogger("telephony_tts.engines").handlers)
    try:
        asyncio.run(catalog.start())
    except EngineUnavailable:
        assert fails
    loading = {"one": "loading", "two": "waiting"}
    assert seen == [(loading, ""), (loading, "reads 2 of 3 files")]
    assert catalog.loading_step == ""
    assert len(logging.getLogger("telephony_tts.engines").handlers) == n_before
