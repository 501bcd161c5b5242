"""`serve` in one process or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from telephony_tts.app.config import Config
from telephony_tts.app.engines import shared_engine
from telephony_tts.app.plugins import PLUGINS
from telephony_tts.app.serving import Served, import_slow_modules, serve
from telephony_tts.app.settings import open_keys, open_lexicons, transport_settings
from telephony_tts.fronts.supervisor import supervise
from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.machine_limits import cpu_share

_MOST_PROCESSES = 64
"""As in the setting `server.processes`."""


def run(config: Config, announce: Callable[[Served], None] | None = None) -> None:
    """Run `serve`, on uvloop if it is installed; with several processes, run it in each of them."""
    event_loop.share_one_arena()
    logs.setup(config.log)
    n = n_processes(config)
    if n > 1:
        event_loop.run(_supervise(config, n, announce))
        return
    import_slow_modules()
    with event_loop.quick_turns():
        event_loop.run(serve(config, announce))


def n_processes(config: Config) -> int:
    """How many front processes `serve` runs. A quota of the container counts, rounded down."""
    wanted = config.server.processes
    if wanted != "auto":
        return wanted
    share = cpu_share()
    return max(1, min(share.n_cpus, _MOST_PROCESSES, math.floor(share.quota or share.n_cpus)))


async def _supervise(config: Config, n: int, announce: Callable[[Served], None] | None) -> None:
    """Run `n` fronts. What can be wrong with the settings is checked here, so that it is reported once."""
    transport_settings(config, open_lexicons(config), open_keys(config))
    shared = shared_engine(config)

    def tell(served: Served) -> None:
        if announce is not None:
            announce(replace(served, n_processes=n))

    server = config.server
    configs = [config_of_front(config, number, n) for number in range(n)]
    drain_s = server.drain_calls_s + server.drain_s
    reloads = bool(config.lexicons.files) or config.keys.file is not None or config.experiments.file is not None
    await supervise(
        configs, server.host, server.port, drain_s, server.runtime_folder, tell,
        None if shared is None else (shared, config), reloads=reloads,
    )  # fmt: skip


def config_of_front(config: Config, number: int, n: int) -> Config:
    """The configuration of one of `n` fronts: its part of the engines' threads, of the requests that other engines
    serve at once, and of the memory for audio. Raises ConfigError if there are fewer slots than fronts."""

    def part(whole: int) -> int:
        return max(min(1, whole), whole // n + (number < whole % n))

    engines, phrases, sounds = config.engines, config.phrases, config.sounds
    parts: dict[str, Any] = {plugin.name: plugin.of_front(plugin.own(engines), part, n) for plugin in PLUGINS}
    return replace(
        config,
        engines=replace(engines, **parts),
        phrases=replace(phrases, memory_mb=part(phrases.memory_mb)),
        sounds=replace(sounds, memory_mb=part(sounds.memory_mb)),
    )
