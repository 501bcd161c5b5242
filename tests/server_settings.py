"""Settings of a server under test, each named without saying which section of the configuration it is in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from telephony_tts.app.config import Config, doors
from telephony_tts.ops.keys.key import KeyRing
from telephony_tts.runtime.schema import names
from telephony_tts.transport.door import Doors
from telephony_tts.transport.settings import TransportSettings

SECTIONS = ("server", "limits", "bot", "vendors")


def transport_settings(**values: Any) -> TransportSettings:
    """A name may begin with that of its section: `drain_s=1.0`, `calls=2`, `bot_url="ws://..."`, `asterisk_dial=()`."""
    settings = TransportSettings(doors=Doors(doors()), sections=Config().door_sections)
    for name, value in {"host": "127.0.0.1", "port": 0, **values}.items():
        if name in names(TransportSettings):
            settings = replace(settings, **{name: value})
            continue
        for section in SECTIONS:
            here, field = getattr(settings, section), name.removeprefix(f"{section}_")
            if field in names(type(here)):
                settings = replace(settings, **{section: replace(here, **{field: value})})
                break
        else:
            section, _, field = name.partition("_")
            if section not in settings.sections:
                raise TypeError(f"the transport has no setting {name}")
            changed = replace(settings.sections[section], **{field: value})
            settings = replace(settings, sections={**settings.sections, section: changed})
    if "keys" not in values:
        server = settings.server
        settings = replace(settings, keys=KeyRing(server.tokens, supervisor_tokens=server.supervisor_tokens))
    return settings
