"""The command `engine serve`: the configured engine as a server of its own, for fronts on this or other machines."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import TYPE_CHECKING

from telephony_tts.cli.engine_status import add_status
from telephony_tts.cli.settings import config_flags, load
from telephony_tts.engines.plugin import AddCommand

if TYPE_CHECKING:
    from telephony_tts.app.config import Config
    from telephony_tts.engines.api import Engine
    from telephony_tts.engines.remote import EngineServer

EXAMPLES = """examples:
  telephony-tts engine serve --config configs/server.yaml --listen unix:/run/telephony-tts/engine.sock
  telephony-tts engine serve --set engines.default=hibari --listen 127.0.0.1:8090
  TELEPHONY_TTS_ENGINE_TOKEN="$(cat token)" telephony-tts engine serve --config engine.yaml --listen 10.0.0.5:8090

It serves the engine engines.default. A front uses it with engines.default: remote and engines.remote.target: ADDRESS.
On other machines both sides need the same engines.remote.token; engines.remote.tls encrypts the connection.
SIGTERM drains it: what it speaks is finished, for up to server.drain_s, and new sentences go to other replicas.
"""
DEFAULT_ADDRESS = "127.0.0.1:8090"



def add_engine(command: AddCommand) -> None:
    """The command `engine serve`."""
    parser = command("engine", "serve an engine to other processes or machines", EXAMPLES, _serve)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser(
        "serve", help="run the configured default engine as a server", description="Run an engine server.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    config_flags(serve)
    serve.add_argument(
        "--listen", metavar="ADDRESS", default=DEFAULT_ADDRESS,
        help=f"unix:/PATH or HOST:PORT (default {DEFAULT_ADDRESS}; port 0 picks a free one)",
    )  # fmt: skip
    serve.set_defaults(run=_serve)
    add_status(actions)


def _serve(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.app.engines import served_engine
    from telephony_tts.engines.remote import need_grpc
    from telephony_tts.runtime import event_loop, logs

    event_loop.share_one_arena()
    settings = load(config.load, arguments, {})
    need_grpc()
    engine = served_engine(settings)
    logs.setup(settings.log)
    with event_loop.quick_turns():
        event_loop.run(_run(settings, engine, arguments.listen))
    return 0


async def _run(settings: Config, engine: Engine, listen: str) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal does not wait."""
    from telephony_tts.app.engines import engine_server, engine_voices
    from telephony_tts.app.serving import unless_stopped
    from telephony_tts.engines.remote import parse_address
    from telephony_tts.runtime import event_loop

    address = parse_address(listen)
    voices = engine_voices(settings, engine)
    server = engine_server(settings, engine, voices)
    at_once = asyncio.Event()
    with event_loop.stop_signals(at_once.set) as stop:
        try:
            address = await server.listen(address)
            if not await unless_stopped(stop, engine.start()):
                return
            event_loop.settle()
            server.engine_is_loaded()
            _tell(engine, str(address))
            await stop.wait()
            await _drain(server, settings.server.drain_s, at_once)
        finally:
            try:
                await server.close()
            finally:
                if voices is not None:
                    await voices.close()
                await engine.close()


async def _drain(server: EngineServer, within_s: float, at_once: asyncio.Event) -> None:
    drained, stopped = asyncio.create_task(server.drain(within_s)), asyncio.create_task(at_once.wait())
    try:
        await asyncio.wait((drained, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (drained, stopped):
            task.cancel()
        await asyncio.gather(drained, stopped, return_exceptions=True)


def _tell(engine: Engine, address: str) -> None:
    n_voices = len(engine.voices)
    voices = f"{n_voices} voice{'' if n_voices == 1 else 's'}"
    # The server keeps running if its output has no reader.
    with contextlib.suppress(OSError):
        print(f"engine {engine.name} with {voices} on {address}", flush=True)
        print(f"in a front: --set engines.default=remote --set engines.remote.target={address}", flush=True)
