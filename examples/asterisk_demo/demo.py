"""`make asterisk-demo`: a real Asterisk with the shipped configuration, the server with its embedded voice, the bridge
and a little bot, all on loopback; `make asterisk-call` dials it with a telephone and keeps what that hears. `--bot` is
the bot alone, for a server of one's own.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
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
NO_ANSWER_CHARS = 500
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
                print(f"    a key: {digit}", flush=True)
                socket.send('{"type":"clear"}')
                ended = digit == "*"
                said = "Goodbye!" if ended else f"That was {NAMES.get(digit, digit)}."
                socket.send(json.dumps({"type": "say", "text": said}))
                if ended:
                    socket.send('{"type":"close"}')
    except ConnectionClosed:
        pass


@contextmanager
def bot(port: int = 0) -> Iterator[str]:
    """The bot's address, while it can be dialled. Raises PeerFailed for a port in use."""
    try:
        bots = serve(greet, "127.0.0.1", port, compression=None)
    except OSError as error:
        raise PeerFailed(f"port {port} of 127.0.0.1: {error.strerror}; take another") from None
    threading.Thread(target=bots.serve_forever, daemon=True).start()
    try:
        yield f"ws://127.0.0.1:{bots.socket.getsockname()[1]}/bot"
    finally:
        bots.shutdown()


@contextmanager
def program(name: str, port: int, *arguments: str) -> Iterator[Path]:
    """One of ours, once it listens: where its log is."""
    with tempfile.TemporaryDirectory() as folder:
        process = PeerProcess(name, [sys.executable, "-m", *arguments], Path(folder))
        try:
            wait_until(lambda: listens(port) or not process.running(), f"{name} listens", 30)
            if not process.running():
                raise PeerFailed(f"{name} has ended:\n{process.written()}")
            yield process.output
        finally:
            process.stop()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_ready(port: int) -> bool:
    """Whether the server takes calls. It listens before its engines are loaded, and refuses calls until then."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def why_taken(sip_port: int) -> str | None:
    """Asked before: Asterisk would run on without its port, and a telephone wait long for nobody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", sip_port))
        except OSError as error:
            return error.strerror
    return None


def run(sip_port: int) -> None:
    """Until Ctrl-C."""
    why = why_taken(sip_port)
    if why is not None:
        raise PeerFailed(
            f"UDP port {sip_port} of 127.0.0.1: {why}. Another Asterisk may have it, or this demo, if it runs already."
            f" With another port: make asterisk-demo DEMO_ARGS='--sip-port {sip_port + 10}', and the same for make"
            " asterisk-call"
        )
    port, audiosocket, http = (free_port(socket.SOCK_STREAM) for _ in range(3))
    with ExitStack() as running:
        bot_url = running.enter_context(bot())
        print("==> the server with its embedded voice", flush=True)
        # One call, on a machine that may be doing other things: no reason to refuse it.
        settings = ["--set", f"bot.url={bot_url}", "--set", "limits.max_frame_lateness_ms=10000", "--port", str(port)]
        server_log = running.enter_context(program("telephony-tts", port, "telephony_tts.cli", "serve", *settings))
        print("==> the bridge for AudioSocket", flush=True)
        url = f"ws://127.0.0.1:{port}/media/native"
        given = {"server.url": url, "audiosocket.port": audiosocket, "http.port": http}
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        bridge_log = running.enter_context(program("telephony-sip-bridge", http, "sip_bridge.cli", *sets))
        print("==> Asterisk", flush=True)
        media_uri = f"ws://127.0.0.1:{port}/media/asterisk"
        pbx = running.enter_context(shipped_asterisk(media_uri, f"127.0.0.1:{audiosocket}", sip_port=sip_port))
        wait_until(lambda: is_ready(port), f"the server is ready, see {server_log}", 60)
        others = "" if sip_port == SIP_PORT else f" DEMO_ARGS='--sip-port {sip_port}'"
        print(
            f"\nDial sip:700@127.0.0.1:{sip_port} (over a WebSocket) or 701 (over AudioSocket). In another terminal\n\n"
            f"    make asterisk-call{others}\n\n"
            "keeps in heard.wav what a telephone hears. With a sound card, Debian's baresip-core is one to press keys"
            " on:\n\n"
            f"    baresip -e '/uanew <sip:demo@127.0.0.1>;regint=0' -e '/dial sip:700@127.0.0.1:{sip_port}'\n\n"
            f"Logs: {server_log}\n      {bridge_log}\n      {pbx.folder / 'log' / 'full'}\nCtrl-C stops.\n",
            flush=True,
        )
        signal.pause()


def be_bot(port: int) -> None:
    """Until Ctrl-C."""
    with bot(port) as url:
        print(f"A bot at {url}: make run SERVE_ARGS='--set bot.url={url}'   Ctrl-C stops.", flush=True)
        signal.pause()


def call(extension: str, sip_port: int, path: Path, seconds: int) -> None:
    """Dial, listen, and keep what was heard."""
    if why_taken(sip_port) is None:
        raise PeerFailed(f"nobody is at 127.0.0.1:{sip_port}: does Asterisk run, or make asterisk-demo?")
    with baresip(sip_port, extension, np.zeros(0, np.int16), seconds) as phone:
        print(f"==> dials {extension} and listens for {seconds} s", flush=True)
        phone.wait_ended(seconds + 10)
        try:
            heard = phone.heard()
        except PeerFailed as error:
            raise PeerFailed(why_unanswered(str(error), extension, sip_port)) from None
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, len(heard), "NONE", ""))
        file.writeframes(heard.astype("<i2").tobytes())
    loud_s = np.count_nonzero(np.abs(heard[: len(heard) // 160 * 160].reshape(-1, 160)).max(axis=1) > 300) * 0.02
    print(f"==> {path}: {len(heard) / 8000:.1f} s, {loud_s:.1f} s of it speech", flush=True)
    if not loud_s:
        raise PeerFailed("it was answered, and nothing said: see the end of docs/asterisk.md")


def why_unanswered(written: str, extension: str, sip_port: int) -> str:
    """What baresip wrote, in a line."""
    closed = re.search(r"session closed: (.*)", written)
    if closed is not None:
        return f"127.0.0.1:{sip_port} does not take the call to {extension}: {closed[1].strip()}"
    return f"the telephone does not work: {written[-NO_ANSWER_CHARS:]}"


def stop(_number: int, _frame: object) -> None:
    """Once: shells and make pass the signal on once more, which is not to disturb the stopping."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--call", metavar="EXTENSION", help="dial the demo that runs, instead of being it")
    flags.add_argument("--bot", metavar="PORT", type=int, help="be the bot alone, at this port, for a server of yours")
    flags.add_argument("--sip-port", type=int, default=SIP_PORT, help="Asterisk's (default %(default)s)")
    flags.add_argument("--wav", type=Path, default=Path("heard.wav"), help="of --call: what was heard (%(default)s)")
    flags.add_argument("--seconds", type=int, default=8, help="of --call: how long it listens (default %(default)s)")
    chosen = flags.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        if chosen.bot is not None:
            be_bot(chosen.bot)
        elif chosen.call is not None:
            call(chosen.call, chosen.sip_port, chosen.wav, chosen.seconds)
        else:
            run(chosen.sip_port)
    except (PeerFailed, PeerUnavailable, subprocess.SubprocessError) as error:
        print(f"asterisk-demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("==> stopped", flush=True)
        return 130 if chosen.call is not None else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
