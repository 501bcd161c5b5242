"""The format of a call's audio: as set, or as the telephone's codec suggests."""

from __future__ import annotations

import pytest

from sip_bridge.ari.formats import format_for


@pytest.mark.parametrize(
    ("telephone", "websocket", "rtp"),
    [
        ("(g722)", "slin16", "g722"),
        ("(g722|ulaw|alaw)", "slin16", "g722"),
        ("(opus)", "slin16", "g722"),
        ("(slin48)", "slin16", "g722"),
        ("(ulaw)", "ulaw", "ulaw"),
        ("(alaw|g722)", "alaw", "alaw"),
        ("(slin)", "ulaw", "ulaw"),
        ("(gsm)", "ulaw", "ulaw"),
        ("(g7221x)", "ulaw", "ulaw"),
        ("(nothing)", "ulaw", "ulaw"),
        ("", "ulaw", "ulaw"),
        ("((", "ulaw", "ulaw"),
    ],
)
def test_auto_follows_the_codec_that_the_telephone_prefers(telephone: str, websocket: str, rtp: str) -> None:
    assert format_for("auto", telephone, is_rtp=False) == websocket
    assert format_for("auto", telephone, is_rtp=True) == rtp


@pytest.mark.parametrize("setting", ["ulaw", "slin16", "slin48"])
def test_a_set_format_is_used_for_every_telephone(setting: str) -> None:
    assert format_for(setting, "(g722)", is_rtp=False) == setting
