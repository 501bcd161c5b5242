"""The choices that the configuration offers are those that the engine has."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from telephony_tts.engines.cosyvoice2.configuration import CosyVoice2Settings
from telephony_tts.engines.cosyvoice2.profile import PROFILES
from telephony_tts.engines.cosyvoice2.settings import (
    AUTO,
    DTYPES,
    FLOW_DTYPES,
    LM_BACKENDS,
    LM_DTYPES,
    VOCODER_DTYPES,
    Precision,
)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("dtype", (AUTO, *DTYPES)),
        ("lm_dtype", (AUTO, *LM_DTYPES)),
        ("flow_dtype", (AUTO, *FLOW_DTYPES)),
        ("vocoder_dtype", (AUTO, *VOCODER_DTYPES)),
        ("profile", (AUTO, *PROFILES)),
        ("lm_backend", LM_BACKENDS),
    ],
)
def test_the_configuration_offers_what_the_engine_has(name: str, choices: tuple[str, ...]) -> None:
    """The configuration must not import the engine, so it lists the choices again."""
    hint: Any = get_type_hints(CosyVoice2Settings, include_extras=True)[name]
    (rule,) = get_args(hint)[1:]
    assert set(rule.choices) == set(choices)


def test_auto_can_be_set_for_all_networks_or_for_one() -> None:
    assert Precision.of(AUTO) == Precision(AUTO, AUTO, AUTO)
    assert Precision.of(AUTO, flow="float32") == Precision(AUTO, "float32", AUTO)
    assert Precision.of("bfloat16", lm=AUTO) == Precision(AUTO, "bfloat16", "mixed")
