"""The command `engine status`: whether an engine server is ready. Kubernetes asks it while a pod starts."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from telephony_tts.cli.settings import config_flags, load
from telephony_tts.runtime.errors import ConfigError

if TYPE_CHECKING:
    from telephony_tts.engines.remote import RemoteSettings

STATUS_EXAMPLES = """examples:
  telephony-tts engine status 127.0.0.1:8090
  telephony-tts engine status 10.0.0.5:8090,10.0.0.6:8090 --within-s 10
  telephony-tts engine status --config configs/server.yaml        the addresses of engines.remote.target

It exits with 0 if at least one of them is ready, and with 1 if none is.
"""


def add_status(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The action `status` of `engine`."""
    status = actions.add_parser(
        "status", help="tell whether engine servers are ready", description="Tell whether engine servers are ready.",
        epilog=STATUS_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    config_flags(status)
    status.add_argument("address", nargs="?", help="HOST:PORT or unix:/PATH, several separated by commas")
    status.add_argument("--within-s", type=float, default=3.0, help="wait so long for a ready one (default 3)")
    status.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.app.engines import remote_settings
    from telephony_tts.engines.remote import need_grpc

    settings = remote_settings(load(config.load, arguments, {}))
    need_grpc()
    return asyncio.run(_ask(settings, arguments.address or settings.target, arguments.within_s))


async def _ask(settings: RemoteSettings, listed: str | None, within_s: float) -> int:
    from telephony_tts.engines.remote import connect, parse_addresses

    if listed is None:
        raise ConfigError("no address; give one such as 10.0.0.5:8090, or set engines.remote.target")
    targets = [str(address) for address in parse_addresses(listed)]
    engine = connect("remote", targets, settings, start_timeout_s=within_s)
    await engine.start()
    try:
        stats = engine.stats()
        work = f"{stats.n_running} speaking, {stats.n_queued} waiting, load {stats.load:.2f}"
        n_voices = len(engine.voices)
        print(f"ready: {n_voices} voice{'' if n_voices == 1 else 's'}, {work}")
    finally:
        await engine.close()
    return 0
