"""Voices that are replaced or removed while they are made ready."""

from __future__ import annotations

from typing import Any, cast

import pytest

from telephony_tts.engines.cosyvoice2.core.ready_voices import ReadyVoices
from telephony_tts.runtime.errors import UnknownVoice


def thing() -> Any:
    """Features, or a ready voice: only which one it is matters here."""
    return cast(Any, object())


def test_a_build_of_replaced_features_is_not_used() -> None:
    old, new, other, of_old, of_new = (thing() for _ in range(5))
    voices = ReadyVoices({"anna": old, "bert": other}, 2)
    assert voices.get("anna") is None and voices.get("bert") is None
    build, of_other = voices.builds
    voices.replace({"anna": new, "bert": other})
    assert voices.builds == [of_other] and voices.get("anna") is None
    _, again = voices.builds
    assert build.features is old and again.features is new
    voices.finish(build, of_old)
    voices.abandon(build)
    assert voices.get("anna") is None and voices.builds == [of_other, again]
    voices.finish(again, of_new)
    assert voices.get("anna") is of_new


def test_a_removed_voice_is_unknown_and_the_others_stay_ready() -> None:
    anna, bert, ready = thing(), thing(), thing()
    voices = ReadyVoices({"anna": anna, "bert": bert, "~secret": thing()}, 2)
    voices.get("bert")
    voices.finish(voices.builds[0], ready)
    voices.get("anna")
    voices.replace({"bert": bert, "~secret": thing()})
    assert voices.builds == [] and voices.get("bert") is ready
    with pytest.raises(UnknownVoice, match=r"'anna'; it has bert$"):
        voices.get("anna")
