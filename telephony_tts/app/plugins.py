"""The engines that there are. Each command imports this, so it imports little."""

from __future__ import annotations

from typing import Any

from telephony_tts.app import residents
from telephony_tts.engines.plugin import EnginePlugin
from telephony_tts.runtime.errors import ConfigError

PLUGINS: tuple[EnginePlugin[Any], ...] = tuple(
    sorted(residents.records("telephony_tts.engines", "plugin", "PLUGIN"), key=lambda each: (each.rank, each.name))
)
"""Those of this package and of others (`engines.plugin`), in their rank."""


def plugin_of(name: str, engines: object) -> EnginePlugin[Any]:
    """The plugin of this name, or that of the engine `name` in the section `engines`. Raises ConfigError."""
    for plugin in PLUGINS:
        if name in (plugin.name, *plugin.names(plugin.own(engines))):
            return plugin
    raise ConfigError(f"no engine is named {name!r}; there are {', '.join(plugin.name for plugin in PLUGINS)}")
