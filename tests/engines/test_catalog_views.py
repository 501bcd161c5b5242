"""A catalog as one call may use it: some voices, another default engine, the same engines."""

from __future__ import annotations

import numpy as np
import pytest

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import ConfigError, UnknownVoice


def engines() -> list[FakeEngine]:
    return [
        FakeEngine(name="one", voice_names=["heart", "emma"], languages=["en"]),
        FakeEngine(name="two", voice_names=["mei", "heart"], languages=["zh", "en"]),
        FakeEngine(name="three", voice_names=["hans"], languages=["de"]),
    ]


def only(*names: str) -> object:
    return lambda voice: f"{voice.engine}/{voice.name}" in names


def resolved(catalog: Catalog, voice: str | None = None, lang: str | None = None, text: str = "Hello") -> str:
    engine, named = catalog.resolve(voice, lang, text)
    return f"{engine.name}/{named.name}"


def test_only_allowed_voices_are_listed_named_and_chosen() -> None:
    seen = Catalog(engines(), {"zh": "two", "de": "three"}).seen_by(only("one/emma", "two/heart"))  # type: ignore[arg-type]
    assert [f"{voice.engine}/{voice.name}" for voice in seen.voices] == ["one/emma", "two/heart"]
    assert resolved(seen) == "one/emma"
    assert resolved(seen, "heart") == "two/heart", "the first engine's voice of this name is not allowed"
    assert resolved(seen, text="你好") == "two/heart"
    assert resolved(seen, lang="de") == "one/emma", "the route leads to an engine without an allowed voice"
    for name in ("mei", "one/heart", "hans"):
        with pytest.raises(UnknownVoice) as raised:
            seen.resolve(name, None, "")
        assert not seen.knows_voice(name)
        told = raised.value.message.partition("near it")[2]
        assert "hans" not in told and "two/mei" not in told and "one/heart" not in told


def test_the_default_engine_is_one_with_an_allowed_voice_or_the_one_that_is_asked_for() -> None:
    catalog = Catalog(engines())
    assert resolved(catalog.seen_by(only("two/mei", "three/hans"))) == "two/mei"  # type: ignore[arg-type]
    seen = catalog.seen_by(lambda voice: True, "two")
    assert resolved(seen) == "two/mei" and resolved(seen, lang="en") == "two/mei"
    assert resolved(seen, "heart") == "two/heart", "its engine comes first"
    assert resolved(seen, "emma") == "one/emma"
    assert resolved(catalog) == "one/heart" and resolved(catalog, "heart") == "one/heart", "others see the whole"
    with pytest.raises(ConfigError, match="no engine 'four'"):
        catalog.seen_by(lambda voice: True, "four")


def test_without_any_allowed_voice_nothing_can_be_spoken() -> None:
    seen = Catalog(engines()).seen_by(lambda voice: False)
    with pytest.raises(UnknownVoice):
        seen.resolve(None, None, "Hello")


def test_what_is_allowed_may_change_later() -> None:
    allowed = {"emma"}
    seen = Catalog(engines()).seen_by(lambda voice: voice.name in allowed)
    assert not seen.knows_voice("heart")
    allowed.add("heart")
    assert seen.knows_voice("heart")


def test_a_fallback_speaks_with_allowed_voices_and_shares_its_circuits() -> None:
    all_engines = engines()
    failover = Failover(all_engines, ["two", "one"], timeout_ms=100, after=1, retry_s=60)
    catalog = Catalog(all_engines, failover=failover)
    seen = catalog.seen_by(only("one/emma", "two/heart"))  # type: ignore[arg-type]
    assert seen.failover is not None and seen.failover is not failover
    utterance = Utterance("u", "Hello")
    given = seen.failover.next(utterance, Voice("emma", "one", ("en",), 24_000), ("one",), "failed", 0)
    assert given is not None and (given[0].name, given[1].name) == ("two", "heart")
    seen.failover.failed("two", 0)
    assert failover.open_circuits(1)["two"]


class Finding(FakeEngine):
    """An engine that has a voice which it does not list, and audio which it has kept."""

    def find_voice(self, name: str) -> Voice | None:
        return Voice(name, self.name, ("en",), 24_000) if name.startswith("prompt-") else None

    def recall(self, utterance: Utterance) -> list[Chunk] | None:
        return None if utterance.voice != "heart" else [Chunk(np.zeros(10, np.int16), 24_000)]


def test_voices_that_are_not_listed_are_allowed_or_not_like_others() -> None:
    catalog = Catalog([Finding(name="one", voice_names=["heart", "emma"], languages=["en"])])
    seen = catalog.seen_by(lambda voice: voice.name in ("emma", "prompt-1"))
    assert resolved(seen, "prompt-1") == "one/prompt-1" and resolved(catalog, "prompt-2") == "one/prompt-2"
    with pytest.raises(UnknownVoice):
        seen.resolve("prompt-2", None, "")
    assert catalog.recall(Utterance("u", "Hello", voice="heart")) is not None
    assert seen.recall(Utterance("u", "Hello", voice="heart")) is None
    assert seen.recall(Utterance("u", "Hello", voice="emma")) is None
    assert isinstance(seen.stats()["one"], EngineStats)
