"""A real Asterisk to call, on loopback.

`make asterisk-demo` starts Asterisk with the files of configs/asterisk, the server with its embedded voice, the bridge
and a small bot. `make asterisk-call` dials it with a telephone and records what it hears. `--bot` starts only the bot,
for a server of yours. With `--lang zh` the bot speaks Mandarin.
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
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class Words:
    """What the bot says in one language; `pressed` has {} for the name of a key."""

    greeting: str
    pressed: str
    goodbye: str
    star: str
    hash: str

    def name(self, digit: str) -> str:
        return {"*": self.star, "#": self.hash}.get(digit, digit)


WORDS = {
    "en": Words(
        "Hello! This is your telephony bot. Press a key, and I will tell you which. The star ends the call.",
        "That was {}.", "Goodbye!", "the star", "the hash",
    ),
    "zh": Words(
        "您好！我是电话语音机器人。您可以按任意键，我会告诉您按的是哪个键。按星号键结束通话。",
        "您按的是{}。", "再见！", "星号键", "井号键",
    ),
}  # fmt: skip


def greet(socket: ServerConnection, words: Words) -> None:
    """The bot: it greets the caller, then names each key that is pressed. The star ends the call."""
    try:
        for message in socket:
            event = json.loads(message)
            if event.get("type") == "call":
                print(f"    a call: {event['call']}", flush=True)
                socket.send(json.dumps({"type": "say", "text": words.greeting}))
            elif event.get("type") == "dtmf":
                digit = event["digit"]
                print(f"    a key: {digit}", flush=True)
                socket.send('{"type":"clear"}')
                ended = digit == "*"
                said = words.goodbye if ended else words.pressed.format(words.name(digit))
                socket.send(json.dumps({"type": "say", "text": said}))
                if ended:
                    socket.send('{"type":"close"}')
    except ConnectionClosed:
        pass


@contextmanager
def bot(lang: str, port: int = 0) -> Iterator[str]:
    """Run the bot; gives its address. Raises PeerFailed for a port in use."""
    try:
        bots = serve(partial(greet, words=WORDS[lang]), "127.0.0.1", port, compression=None)
    except OSError as error:
        raise PeerFailed(f"port {port} of 127.0.0.1: {error.strerror}; choose another port") from None
    threading.Thread(target=bots.serve_forever, daemon=True).start()
    try:
        yield f"ws://127.0.0.1:{bots.socket.getsockname()[1]}/bot"
    finally:
        bots.shutdown()


@contextmanager
def program(name: str, port: int, *arguments: str) -> Iterator[Path]:
    """Run a module of this project; gives the path of its log once it listens."""
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
    """Why the UDP port cannot be bound, None if it is free. Checked first: Asterisk would run without its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", sip_port))
        except OSError as error:
            return error.strerror
    return None


def run(sip_port: int, lang: str) -> None:
    """Run the demo until Ctrl-C."""
    why = why_taken(sip_port)
    if why is not None:
        raise PeerFailed(
            f"UDP port {sip_port} of 127.0.0.1: {why}. Another Asterisk may use it, or this demo may run already."
            f" With another port: make asterisk-demo DEMO_ARGS='--sip-port {sip_port + 10}', and the same for make"
            " asterisk-call"
        )
    port, audiosocket, http = (free_port(socket.SOCK_STREAM) for _ in range(3))
    with ExitStack() as running:
        bot_url = running.enter_context(bot(lang))
        print("==> the server with its embedded voice", flush=True)
        # The machine may be busy with other work. Do not refuse the one call of this demo for that.
        settings = ["--set", f"bot.url={bot_url}", "--set", "limits.max_frame_lateness_ms=10000", "--port", str(port)]
        settings += language_flags(lang)
        server_log = running.enter_context(program("telephony-tts", port, "telephony_tts", "serve", *settings))
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
            "records what a telephone hears in heard.wav. With a sound card, Debian's baresip-core is a telephone with"
            " keys:\n\n"
            f"    baresip -e '/uanew <sip:demo@127.0.0.1>;regint=0' -e '/dial sip:700@127.0.0.1:{sip_port}'\n\n"
            f"Logs: {server_log}\n      {bridge_log}\n      {pbx.folder / 'log' / 'full'}\nCtrl-C stops.\n",
            flush=True,
        )
        signal.pause()


def language_flags(lang: str) -> list[str]:
    """The flags of `serve` for the bot's language. For Mandarin they load its voice before the first call."""
    return [] if lang == "en" else ["--set", f"speech.lang={lang}"]


def run_bot(port: int, lang: str) -> None:
    """Run the bot until Ctrl-C."""
    with bot(lang, port) as url:
        flags = " ".join(["--set", f"bot.url={url}", *language_flags(lang)])
        print(f"A bot at {url}: make run SERVE_ARGS='{flags}'   Ctrl-C stops.", flush=True)
        signal.pause()


def call(extension: str, sip_port: int, path: Path, seconds: int) -> None:
    """Dial, listen, and record what was heard."""
    if why_taken(sip_port) is None:
        raise PeerFailed(f"nothing listens at 127.0.0.1:{sip_port}: does Asterisk run, or make asterisk-demo?")
    with baresip(sip_port, extension, np.zeros(0, np.int16), seconds) as phone:
        print(f"==> dialling {extension} and listening for {seconds} s", flush=True)
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
        raise PeerFailed("the call was answered, but no speech was heard: see the end of docs/asterisk.md")


def why_unanswered(written: str, extension: str, sip_port: int) -> str:
    """The reason that baresip wrote, in one line."""
    closed = re.search(r"session closed: (.*)", written)
    if closed is not None:
        return f"127.0.0.1:{sip_port} does not accept the call to {extension}: {closed[1].strip()}"
    return f"the telephone has failed: {written[-NO_ANSWER_CHARS:]}"


def stop(_number: int, _frame: object) -> None:
    """Stop on the first signal. Shells and make send it again, which must not interrupt the stopping."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--call", metavar="EXTENSION", help="dial a running demo instead of starting one")
    flags.add_argument("--bot", metavar="PORT", type=int, help="start only the bot, for a server of yours")
    flags.add_argument("--sip-port", type=int, default=SIP_PORT, help="the SIP port of Asterisk (default %(default)s)")
    flags.add_argument("--lang", choices=list(WORDS), default="en", help="what the bot speaks (default %(default)s)")
    recording = Path("heard.wav")
    flags.add_argument("--wav", type=Path, default=recording, help="with --call: the recording (default %(default)s)")
    flags.add_argument("--seconds", type=int, default=8, help="with --call: how long to listen (default %(default)s)")
    chosen = flags.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        if chosen.bot is not None:
            run_bot(chosen.bot, chosen.lang)
        elif chosen.call is not None:
            call(chosen.call, chosen.sip_port, chosen.wav, chosen.seconds)
        else:
            run(chosen.sip_port, chosen.lang)
    except (PeerFailed, PeerUnavailable, subprocess.SubprocessError) as error:
        print(f"asterisk-demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("==> stopped", flush=True)
        return 130 if chosen.call is not None else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
