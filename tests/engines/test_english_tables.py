"""The compact forms of hibari's dictionary and of its tagger's weights say what the dicts say."""

from __future__ import annotations

from typing import Any

import pytest

from telephony_tts.engines.front_ends.english_tables import Phonemes, TagWeights

WEIGHTS = {"b": {"NN": 7.1, "VB": -3.8}, "w=read": {"VBD": 0.1}, "": {"NN": -0.0}, "z": {}}


def asset(name: str) -> Any:
    from hibari.g2p import _load_json

    return _load_json(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lexicon_us_gold.json.gz", "lexicon_us_silver.json.gz"])
def test_every_word_has_its_phonemes(name: str) -> None:
    entries = asset(name)
    phonemes = Phonemes(entries)
    assert [word for word in entries if phonemes.get(word) != entries[word]] == []
    assert [phonemes.get(word) for word in ("zzzq", "", "\U0010ffff")] == [None] * 3


@pytest.mark.slow
def test_every_feature_has_its_weights_in_their_order() -> None:
    weights = asset("tagger.json.gz")["weights"]
    compact = TagWeights(weights)
    assert [feature for feature in weights if compact.get(feature) != weights[feature]] == []
    assert all(list(compact.get(feature) or {}) == list(weights[feature]) for feature in list(weights)[::100])


def test_what_is_unknown_has_no_weights() -> None:
    compact = TagWeights(WEIGHTS)
    assert {feature: compact.get(feature) for feature in WEIGHTS} == WEIGHTS
    assert [compact.get(feature) for feature in ("a", "zz", "w=rea")] == [None] * 3


def test_words_with_several_parts_of_speech_keep_them() -> None:
    phonemes = Phonemes({"read": {"DEFAULT": "ɹˈid", "VBD": "ɹˈɛd"}, "red": "ɹˈɛd", "a": "ɐ"})
    assert [phonemes.get(word) for word in ("read", "red", "a", "re")] == [
        {"DEFAULT": "ɹˈid", "VBD": "ɹˈɛd"}, "ɹˈɛd", "ɐ", None,
    ]  # fmt: skip
