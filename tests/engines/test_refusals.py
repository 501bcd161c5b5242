"""Text that an engine cannot read: the voices that a refusal names must speak it. Uses the real engines."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from conformance import joined, speak

from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog, installed
from telephony_tts.app.processes import config_of_front
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.catalog import AbsentEngine, Catalog
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.runtime import errors
from telephony_tts.runtime.errors import UnsupportedText, how_to_get, how_to_get_again, shell_command

pytestmark = pytest.mark.slow

TEXTS = {
    "thai": "สวัสดี",
    "hebrew": "שלום",
    "arabic": "مرحبا",
    "hindi": "नमस्ते",
    "bengali": "নমস্কার",
    "tamil": "வணக்கம்",
    "telugu": "నమస్కారం",
    "kannada": "ನಮಸ್ಕಾರ",
    "malayalam": "നമസ്കാരം",
    "gujarati": "નમસ્તે",
    "gurmukhi": "ਸਤ ਸ੍ਰੀ ਅਕਾਲ",
    "sinhala": "ආයුබෝවන්",
    "georgian": "გამარჯობა",
    "armenian": "բարեւ",
    "amharic": "ሰላም",
    "khmer": "សួស្តី",
    "lao": "ສະບາຍດີ",
    "burmese": "မင်္ဂလာပါ",
    "tibetan": "བཀྲ་ཤིས",
    "greek": "καλημέρα",
    "cyrillic": "добрый день",
    "ukrainian": "добрий день",
    "japanese": "こんにちは",
    "japanese with kanji": "今日は",
    "korean": "안녕하세요",
    "chinese": "你好",
    "bopomofo": "ㄅㄆㄇ",
    "chinese and latin": "OK 你好 Anna",
    "chinese and cyrillic": "你好 привет",
    "arabic and hebrew": "مرحبا שלום",
    "latin and thai": "Hello สวัสดี",
    "old and rare": "ᚠᚢᚦ",
}
NAMED = re.compile(r"voices that can: ([^ ]+(?:, [^ ]+)*)\. Send")


@pytest.mark.parametrize("default", ["hibari", "espeak"])
def test_the_voices_of_a_refusal_speak_the_text(default: str) -> None:
    """The bot names the default voice, which is kept, so most of these texts are refused."""
    outcomes: dict[str, str] = {}

    async def body() -> None:
        catalog = build_catalog(config.load(None, {"engines.default": default, "engines.routes": {}}, {}))
        assert {engine.name for engine in catalog.engines} - {"kokoro"} == {"hibari", "espeak"}
        await catalog.start()
        try:
            for name, text in TEXTS.items():
                for voice in (None, catalog.voices[0].name):
                    outcomes[f"{name} {voice}"] = await outcome(catalog, Utterance("u", text, voice=voice))
        finally:
            await catalog.close()

    asyncio.run(body())
    told = set(outcomes.values())
    assert told == {"spoken", "another voice", "an engine to get", "stranger"}, outcomes
    assert outcomes["cyrillic None"] == "spoken" and outcomes["thai None"] == "stranger"
    assert outcomes["japanese None"] == outcomes["chinese and cyrillic None"] == "an engine to get"


async def outcome(catalog: Catalog, utterance: Utterance) -> str:
    """The result for an utterance. Each voice that a refusal names must speak it."""
    try:
        engine, voice = catalog.choose(utterance)
    except UnsupportedText as refusal:
        named = NAMED.search(refusal.message)
        if named is None:
            assert all(not can_read(catalog, each, utterance) for each in voices(catalog)), refusal.message
            return "an engine to get" if " would: " in refusal.message else "stranger"
        for name in named[1].split(", "):
            assert await sounds(catalog, Utterance("u", utterance.text, voice=name)), f"{name}: {utterance.text}"
        return "another voice"
    assert await sounds(catalog, utterance), f"{engine.name}/{voice.name}: {utterance.text}"
    return "spoken"


async def sounds(catalog: Catalog, utterance: Utterance) -> bool:
    engine, voice = catalog.choose(utterance)
    pcm = joined(await speak(engine, Utterance("u", utterance.text, voice=voice.name)))
    return len(pcm) > 0 and int(abs(pcm).max()) > 500


def voices(catalog: Catalog) -> list[str]:
    return [f"{voice.engine}/{voice.name}" for voice in catalog.voices]


def can_read(catalog: Catalog, voice: str, utterance: Utterance) -> bool:
    try:
        catalog.choose(Utterance("u", utterance.text, voice=voice))
    except UnsupportedText:
        return False
    return True


def refusal(catalog: Catalog, text: str, voice: str | None = None) -> str:
    with pytest.raises(UnsupportedText) as caught:
        catalog.choose(Utterance("u", text, voice=voice))
    return caught.value.message


def test_a_refusal_names_voices_and_the_route_to_them() -> None:
    catalog = Catalog([HibariEngine(), EspeakEngine()])
    assert refusal(catalog, "привет", "heart") == (
        "hibari speaks English only, not cyrillic letters; voices that can: espeak/ru. "
        "Send one as `voice`, or set engines.routes to {ru: espeak}"
    )
    assert refusal(catalog, "你好", "en-us").endswith("voices that can: espeak/cmn. Send one as `voice`, or set "
                                                    "engines.routes to {zh: espeak}")  # fmt: skip


def test_a_refusal_without_an_able_engine_names_the_language() -> None:
    catalog = Catalog([HibariEngine(), EspeakEngine()])
    assert refusal(catalog, "สวัสดี") == (
        "hibari speaks English only, not thai letters; "
        "no engine of telephony-tts reads thai letters (language th): write the text in letters that a voice has"
    )
    assert "reads runic letters: " in refusal(catalog, TEXTS["old and rare"])


def test_an_absent_engine_is_named_only_for_text_that_it_would_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda part: part == "hibari")
    catalog = build_catalog(config.load(None, {}, {}))
    assert refusal(catalog, "привет").endswith(
        "no engine here can, but espeak would: .venv/bin/pip install -e '.[espeak]'"
    )
    both = refusal(catalog, "你好")
    assert "kokoro would: .venv/bin/pip install -e '.[kokoro]'; or espeak would: .venv/bin/pip install -e" in both
    assert "cosyvoice2 would: get its model" in both
    assert "espeak" not in refusal(catalog, "こんにちは") and "cosyvoice2 would" in refusal(catalog, "こんにちは")
    assert "would" not in refusal(catalog, "สวัสดี")


def test_a_hint_is_the_command_that_works_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert how_to_get("espeak") == ".venv/bin/pip install -e '.[espeak]'"
    assert how_to_get() == ".venv/bin/pip install -e ."
    assert shell_command("telephony-tts voices pull ja") == ".venv/bin/telephony-tts voices pull ja"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "telephony_tts" / "errors.py"))
    assert how_to_get("espeak") == "pip install 'telephony-tts[espeak]'"
    assert how_to_get() == "pip install telephony-tts"
    assert shell_command("telephony-tts voices pull ja") == "telephony-tts voices pull ja"
    assert how_to_get_again("hibari-tts==0.2.1") == "pip install --force-reinstall --no-deps hibari-tts==0.2.1"


def test_an_engine_without_the_language_is_not_named() -> None:
    """The fake engine accepts any text, but it has no Russian."""
    tones = FakeEngine(languages=["en"])
    absent = AbsentEngine("other", ("en",), tones.check, "get it")
    message = refusal(Catalog([HibariEngine(), tones], absent=[absent]), "привет")
    assert "tone" not in message and "other" not in message


def test_without_its_package_there_is_no_detector_and_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    german = "Guten Tag, wie kann ich Ihnen helfen?"

    def told(**settings: bool) -> str | None:
        overrides = {f"speech.{name}": value for name, value in settings.items()}
        catalog = build_catalog(config.load(None, {"engines.default": "fake", **overrides}, {}))
        if catalog._detector is not None:
            catalog._detector.load()
        return catalog.detect_language(german)

    assert told() == "de" and told(detect_language=False) is None
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda part: False)
    assert told() is None


def test_an_engine_with_0_workers_is_left_out_in_each_front() -> None:
    def there(**workers: int) -> list[str]:
        overrides = {f"engines.{name}.workers": n for name, n in workers.items()}
        loaded = config.load(None, {"engines.default": "fake", **overrides}, {})
        catalog = build_catalog(config_of_front(loaded, 1, 2))
        return sorted(engine.name for engine in catalog.engines)

    espeak = ["espeak"] if installed("espeak") else []
    assert there() == [*espeak, "fake", "hibari"]
    assert there(hibari=0) == [*espeak, "fake"]
    assert there(hibari=0, espeak=0) == ["fake"]


@pytest.mark.parametrize(("is_there", "how"), [(True, "set engines.espeak.workers"), (False, "pip install")])
def test_a_refusal_says_how_to_get_the_engine_that_is_left_out(
    is_there: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda part: is_there)
    settings = {"engines.espeak.workers": 0, "engines.routes": {}}
    assert how in refusal(build_catalog(config.load(None, settings, {})), "привет")
