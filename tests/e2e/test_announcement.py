"""The lines that `serve` prints when it is ready are correct: the commands run and the address accepts connections."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from announced import announced, command_with, self_made_certificate
from forked_process import ForkServer, fork_server
from websockets.asyncio.client import connect

from telephony_tts.audio.wav import read_wav

pytestmark = pytest.mark.timed

ENVIRONMENT = Path(sys.prefix)
SCRIPT = ENVIRONMENT / "bin" / "telephony-tts"
TOKEN = "open-sesame"


def typed(command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in another shell."""
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def greeted(command: str) -> dict[str, Any]:
    """The `ready` that a client receives when given the same options as wscat."""
    words = shlex.split(command)
    assert words[:3] == ["npx", "wscat", "-c"], words
    headers = dict([words[words.index("-H") + 1].replace("TOKEN", TOKEN).split(": ")]) if "-H" in words else {}
    context = None
    if "--no-check" in words:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async def main() -> dict[str, Any]:
        async with connect(words[3], additional_headers=headers, ssl=context, proxy=None) as client:
            ready: dict[str, Any] = json.loads(await client.recv())
            return ready

    # Not the synchronous client: it reads and writes a TLS socket in two threads, and one run in 400 hangs.
    return asyncio.run(asyncio.wait_for(main(), 20))


@pytest.fixture
def npx(tmp_path: Path) -> dict[str, str]:
    """An environment that has an npx, whether this machine has one or not."""
    folder = tmp_path / "npx-is-here"
    folder.mkdir()
    (folder / "npx").write_text("#!/bin/sh\nexit 1\n")
    (folder / "npx").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


# ------------------------------------------------------------------------- the program


@pytest.mark.parametrize("way", ["path", "absolute", "relative", "linked", "python"])
def test_the_printed_command_runs_in_any_directory(
    way: str, tmp_path: Path, npx: dict[str, str]
) -> None:
    """Pinned: the command always named `.venv/bin/telephony-tts`."""
    here, there = tmp_path / "a project", tmp_path / "elsewhere"
    for folder in (here, there):
        folder.mkdir()
    (here / "my server.yaml").write_text("speech: {speed: 2.0, detect_language: false}\n")
    (here / "env").symlink_to(ENVIRONMENT)
    os.symlink(SCRIPT, there / "telephony-tts")
    environment = dict(npx)
    without_it = os.pathsep.join(
        folder for folder in npx["PATH"].split(os.pathsep) if not (Path(folder) / "telephony-tts").exists()
    )
    environment["PATH"] = f"{there}{os.pathsep}{without_it}" if way == "path" else without_it
    started, word = {
        "path": (["telephony-tts"], "telephony-tts"),
        "absolute": ([str(SCRIPT)], str(SCRIPT)),
        "relative": ([os.path.relpath(SCRIPT, here)], str(SCRIPT)),
        "linked": (["env/bin/telephony-tts"], f"{here}/env/bin/telephony-tts"),
        "python": ([sys.executable, "-m", "telephony_tts"], sys.executable),
    }[way]
    with announced(["env", *started], "--config", "my server.yaml", cwd=here, environment=environment) as lines:
        say = command_with(" say ", lines)
        assert shlex.split(say)[0] == word
        out = tmp_path / "hello.wav"
        ended = typed(say.replace(" hello.wav ", f" {out} "), there, environment)
        assert ended.returncode == 0, ended.stderr
        ended = typed(say, here, environment)
        assert ended.returncode == 0, ended.stderr
        for heard in (out, here / "hello.wav"):
            assert len(read_wav(heard).payload) == 2880, "12 characters at twice the speed, as the file says"


# ------------------------------------------------------------------------- the address


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags for a self-signed certificate with another name."""
    return self_made_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """A fork server for the servers of the tests below. How a real one is started and names itself is tested above."""
    with fork_server("telephony_tts.cli.main", "telephony_tts.http_api.asgi", "telephony_tts.app.serving") as made:
        yield made


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")]
)
def test_the_printed_address_takes_a_connection(
    host: str, here: str, is_tls: bool, certificate: list[str], tmp_path: Path, npx: dict[str, str], forks: ForkServer
) -> None:
    """Pinned: `wss://0.0.0.0` was printed, and nothing about the token and the certificate."""
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    environment = {**npx, "TELEPHONY_TTS_TOKENS": TOKEN}
    flags = ["--host", host, "--set", "server.metrics_without_token=false", *(certificate if is_tls else [])]
    server = [sys.executable, "-m", "telephony_tts"]
    with announced(server, *flags, cwd=tmp_path, environment=environment, forks=forks) as lines:
        scheme = "wss" if is_tls else "ws"
        assert f"is ready at {scheme}://{here}:" in lines[2] and TOKEN not in "\n".join(lines)
        assert f" http{scheme[2:]}://{here}:" in lines[1] and lines[1].endswith("/console/")
        wscat = command_with("/v1/stream", lines)
        assert f"{scheme}://{here}:" in wscat and ("--no-check" in wscat) is is_tls
        assert greeted(wscat)["voice"] == "tone"
        if shutil.which("curl") is not None:
            curl = command_with("curl", lines)
            assert "telephony_tts_" in typed(curl.replace("TOKEN", TOKEN), tmp_path).stdout
            assert typed(curl, tmp_path).returncode == 1, "a token must be given"


def test_a_server_without_token_and_tls_prints_neither(tmp_path: Path, npx: dict[str, str], forks: ForkServer) -> None:
    with announced([sys.executable, "-m", "telephony_tts"], cwd=tmp_path, environment=npx, forks=forks) as lines:
        wscat = command_with("/v1/stream", lines)
        assert shlex.split(wscat)[4:] == [] and greeted(wscat)["codec"] == "ulaw"
        assert "TOKEN" not in "\n".join(lines) and "certificate" not in "\n".join(lines)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_the_printed_client_without_npx_connects(
    is_tls: bool, certificate: list[str], tmp_path: Path, forks: ForkServer
) -> None:
    environment = {"PATH": str(tmp_path), "TELEPHONY_TTS_TOKENS": TOKEN}
    flags = certificate if is_tls else []
    server = [sys.executable, "-m", "telephony_tts"]
    with announced(server, *flags, cwd=tmp_path, environment=environment, forks=forks) as lines:
        client = command_with("/v1/stream", lines).replace("TOKEN", TOKEN)
        assert client.startswith(f"{sys.executable} -m websockets ")
        with subprocess.Popen(
            ["bash", "-c", client], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as typing:
            assert typing.stdin is not None and typing.stdout is not None
            watchdog = threading.Timer(60, typing.kill)
            watchdog.start()
            typing.stdin.write("Hi.\n")
            seen = ""
            while '"type":"done"' not in seen and (line := typing.stdout.readline()):
                seen += line
            typing.stdin.close()
            watchdog.cancel()
        assert '"type":"ready"' in seen and '"type":"done"' in seen, seen
