"""The engines that there are. Each command imports this, so it imports little."""

from __future__ import annotations

from typing import Any

from telephony_tts.app import residents
from telephony_tts.engines.plugin import EnginePlugin
from telephony_tts.runtime.errors import ConfigError


def _found() -> tuple[EnginePlugin[Any], ...]:
    """Raises ConfigError if two packages have an engine of one name: its settings would be those of either."""
    found = residents.records("telephony_tts.engines", "plugin", "PLUGIN")
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two installed packages have an engine named {name}; uninstall one of them")
    return tuple(sorted(found, key=lambda each: (each.rank, each.name)))


PLUGINS = _found()
"""Those of this package and of others (`engines.plugin`), in their rank."""


def plugin_of(name: str, engines: object) -> EnginePlugin[Any]:
    """The plugin of this name, or that of the engine `name`, which the section `engines` allows."""
    return next(plugin for plugin in PLUGINS if name in (plugin.name, *plugin.names(plugin.own(engines))))
