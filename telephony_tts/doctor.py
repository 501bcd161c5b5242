"""What is installed, what is missing and how to get it, one line each."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import shutil
import socket
from collections.abc import Mapping

from telephony_tts import app, config, offline
from telephony_tts.engines.catalog import Catalog
from telephony_tts.errors import ConfigError, TelephonyTTSError
from telephony_tts.session.settings import SessionSettings


def examine(config_path: str | None, overrides: Mapping[str, object]) -> int:
    """One line each: ok, missing (and how to get it), or broken. Exit status 1 if `serve` would not start."""
    failed = False

    def line(state: str, what: str, detail: str) -> None:
        print(f"{state:<8} {what:<22} {detail}")

    line("ok", "python", platform.python_version())
    for package, extra, use in (
        ("numpy", "", ""), ("soxr", "", ""), ("websockets", "", ""), ("uvloop", "", "the faster event loop"),
        ("onnxruntime", "", ""), ("hibari-tts", "", "the embedded English voice"),
        ("espeakng-loader", "espeak", "about 100 languages, robotic; GPL-3"),
    ):
        try:
            line("ok", package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            if extra:
                line("missing", package, f"{use}: pip install -e '.[{extra}]' in the checkout")
            else:
                failed = failed or package != "uvloop"
                line("missing", package, "pip install telephony-tts")
    try:
        settings = config.load(config_path, overrides)
        line("ok", "configuration", config_path or "defaults")
    except ConfigError as error:
        line("broken", "configuration", error.message)
        return 1
    try:
        catalog = app.build_catalog(settings)
        spoken_s = asyncio.run(_try_speech(catalog, app.session_settings(settings)))
        line("ok", "speech", f"{spoken_s:.1f} s of test speech from {catalog.engines[0].name}")
    except TelephonyTTSError as error:
        line("broken", "speech", error.message)
        failed = True
    line(*_port_state(settings.server.host, settings.server.port))
    npx = shutil.which("npx")
    line("ok" if npx else "missing", "npx (wscat)", npx or "only to type into the server: apt-get install npm")
    return 1 if failed else 0


async def _try_speech(catalog: Catalog, settings: SessionSettings) -> float:
    try:
        await catalog.start()
        done = await offline.speak("This is a test.", catalog, settings, on_frame=lambda payload: None)
        return done.audio_ms / 1000
    finally:
        await catalog.close()


def _port_state(host: str, port: int) -> tuple[str, str, str]:
    try:
        with socket.create_server((host, port)):
            return "ok", f"port {port}", f"free on {host}"
    except OSError as error:
        return "in use", f"port {port}", f"{error.strerror} on {host}: is the server running already?"
