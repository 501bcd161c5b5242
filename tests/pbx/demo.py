"""`make asterisk-demo`: a real Asterisk with the shipped configuration, the server with its embedded voice, the bridge
and a little bot, all on loopback; `make asterisk-call` dials it with a telephone and keeps what that hears.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import wave
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from asterisk_peer import free_port
from baresip_phone import baresip
from debian_packages import PeerUnavailable
from peer_process import PeerFailed, PeerProcess, wait_until
from shipped import shipped_asterisk
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

SIP_PORT = 5060
GREETING = "Hello! This is your telephony bot. Press a key, and I will tell you which. The star ends the call."
NAMES = {"*": "the star", "#": "the hash"}


def greet(socket: ServerConnection) -> None:
    """The bot: a greeting, then whatever key is pressed."""
    try:
        for message in socket:
            event = json.loads(message)
            if event.get("type") == "call":
                print(f"    a call: {event['call']}", flush=True)
                socket.send(json.dumps({"type": "say", "text": GREETING}))
            elif event.get("type") == "dtmf":
                digit = event["digit"]
                socket.send('{"type":"clear"}')
                ended = digit == "*"
                said = "Goodbye!" if ended else f"That was {NAMES.get(digit, digit)}."
                socket.send(json.dumps({"type": "say", "text": said}))
                if ended:
                    socket.send('{"type":"close"}')
    except ConnectionClosed:
        pass


@contextmanager
def program(name: str, port: int, *arguments: str) -> Iterator[None]:
    """One of ours, once it listens."""
    with tempfile.TemporaryDirectory() as folder:
        process = PeerProcess(name, [sys.executable, "-m", *arguments], Path(folder))
        try:
            wait_until(lambda: listens(port) or not process.running(), f"{name} listens", 30)
            if not process.running():
                raise PeerFailed(f"{name} has ended:\n{process.written()}")
            yield
        finally:
            process.stop()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(sip_port: int) -> None:
    """Until Ctrl-C."""
    bots = serve(greet, "127.0.0.1", 0, compression=None)
    bot_url = f"ws://127.0.0.1:{bots.socket.getsockname()[1]}/bot"
    threading.Thread(target=bots.serve_forever, daemon=True).start()
    port, audiosocket, http = (free_port(socket.SOCK_STREAM) for _ in range(3))
    with ExitStack() as running:
        running.callback(bots.shutdown)
        print("==> the server with its embedded voice", flush=True)
        settings = ["--set", f"bot.url={bot_url}", "--port", str(port)]
        running.enter_context(program("telephony-tts", port, "telephony_tts.cli", "serve", *settings))
        print("==> the bridge for AudioSocket", flush=True)
        url = f"ws://127.0.0.1:{port}/media/native"
        given = {"server.url": url, "audiosocket.port": audiosocket, "http.port": http}
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        running.enter_context(program("telephony-sip-bridge", audiosocket, "sip_bridge.cli", *sets))
        print("==> Asterisk (fetched once, 80 MB, into .peers)", flush=True)
        media_uri = f"ws://127.0.0.1:{port}/media/asterisk"
        running.enter_context(shipped_asterisk(media_uri, f"127.0.0.1:{audiosocket}", sip_port=sip_port))
        caller = shutil.which("baresip") or "baresip"
        print(
            f"\nDial sip:700@127.0.0.1:{sip_port} (over a WebSocket) or 701 (over AudioSocket), for example\n\n"
            f"    {caller} -e '/dial sip:700@127.0.0.1:{sip_port}'\n\n"
            f"or, without a sound card,\n\n    make asterisk-call\n\nCtrl-C stops.\n",
            flush=True,
        )
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        print("==> stopping", flush=True)


def call(extension: str, sip_port: int, path: Path, seconds: int) -> None:
    """Dial, listen, and keep what was heard."""
    with baresip(sip_port, extension, np.zeros(0, np.int16), seconds) as phone:
        print(f"==> dials {extension} and listens for {seconds} s", flush=True)
        phone.wait_ended(seconds + 10)
        heard = phone.heard()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, len(heard), "NONE", ""))
        file.writeframes(heard.astype("<i2").tobytes())
    loud_s = np.count_nonzero(np.abs(heard[: len(heard) // 160 * 160].reshape(-1, 160)).max(axis=1) > 300) * 0.02
    print(f"==> {path}: {len(heard) / 8000:.1f} s, {loud_s:.1f} s of it speech", flush=True)
    if not loud_s:
        raise PeerFailed("nothing was heard: does make asterisk-demo run?")


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--call", metavar="EXTENSION", help="dial the demo that runs, instead of being it")
    flags.add_argument("--sip-port", type=int, default=SIP_PORT, help="Asterisk's (default %(default)s)")
    flags.add_argument("--wav", type=Path, default=Path("heard.wav"), help="of --call: what was heard (%(default)s)")
    flags.add_argument("--seconds", type=int, default=8, help="of --call: how long it listens (default %(default)s)")
    chosen = flags.parse_args()
    # Waited for by `run`, and by nobody else.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM} if chosen.call is None else set())
    try:
        if chosen.call is None:
            run(chosen.sip_port)
        else:
            call(chosen.call, chosen.sip_port, chosen.wav, chosen.seconds)
    except (PeerFailed, PeerUnavailable) as error:
        print(f"asterisk-demo: {error}", file=sys.stderr)
        return 1
    except subprocess.SubprocessError as error:
        print(f"asterisk-demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
