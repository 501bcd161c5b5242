"""Which format the audio of a call has between Asterisk and the server. Pure."""

from __future__ import annotations

import re

AUTO = "auto"
"""The setting that chooses by the telephone's codec."""

CODEC_VARIABLE = "CHANNEL(audionativeformat)"
"""Asked for, it gives the telephone's codecs, the preferred one first: "(g722)" or "(ulaw|alaw)"."""

_WIDE = re.compile(r"g722|g719|opus|siren(7|14)|amrwb|evs|speex(16|32)|silk(12|16|24)|slin(12|16|24|32|44|48|96|192)")
"""Asterisk's names of the codecs that carry more than the telephone band."""


def format_for(setting: str, telephone: str, *, is_rtp: bool) -> str:
    """Asterisk's name of the format. `telephone` is the answer for `CODEC_VARIABLE`, "" if it is missing.

    With `AUTO` a wide-band telephone gets 16 kHz, and any other telephone G.711, which costs least.
    """
    if setting != AUTO:
        return setting
    found = re.search(r"[a-z0-9]+", telephone.lower())
    codec = found[0] if found is not None else ""
    if _WIDE.fullmatch(codec):
        return "g722" if is_rtp else "slin16"
    return "alaw" if codec == "alaw" else "ulaw"
