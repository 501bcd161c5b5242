"""An HTTP server of sounds for `play` with `url`: it is slow, redirects, breaks off, and sends what is no sound."""

from __future__ import annotations

import io
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np

from telephony_tts.audio.wav import write_wav

PATH = "/sounds/"
FETCH_S = 1
"""`sounds.fetch_s` of the servers under test."""
_SLOW_S = 0.4
_SOUND_S = 0.5
EITHER = ("slow",)
"""What can be played if the machine is not too slow. "good" can always be."""
BAD = ("none", "moved", "broken", "page", "noise", "stuck", "trickle")
"""404, a redirect, fewer bytes than promised, HTML, no sound, no answer, and a byte now and then."""


def no_server(kind: str, number: int) -> str:
    """The address of a sound where no server is."""
    return f"http://127.0.0.1{PATH}{kind}.wav?{number}"


class SoundServer:
    """Use as a context manager. `url` is the beginning of the addresses."""

    def __init__(self, n_addresses: int = 1000) -> None:
        """A server keeps a sound by its address, and each kind of sound has `n_addresses`."""
        self._n_addresses = n_addresses
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="sound server")
        self.url = f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def address(self, kind: str, number: int) -> str:
        """One of the addresses of this kind of sound."""
        return f"{self.url}{kind}.wav?{number % self._n_addresses}"

    def __enter__(self) -> SoundServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    sound: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        kind = self.path.removeprefix(PATH).partition(".")[0]
        with suppress(OSError):  # the server under test may hang up
            self._answer(kind)
        self.close_connection = True

    def _answer(self, kind: str) -> None:
        match kind:
            case "good":
                self._send(200, "audio/wav", _sound())
            case "slow":
                time.sleep(_SLOW_S)
                self._send(200, "audio/wav", _sound())
            case "moved":
                self._send(302, "audio/wav", b"", Location="good.wav")
            case "broken":
                self._send(200, "audio/wav", _sound()[:999], n_promised=len(_sound()))
            case "page":
                self._send(200, "text/html", b"<p>no sound</p>")
            case "noise":
                self._send(200, "audio/wav", bytes(range(200)))
            case "stuck":
                time.sleep(FETCH_S + 0.5)
            case "trickle":
                self._send(200, "audio/wav", b"", n_promised=1000)
                for _ in range(10):
                    self.wfile.write(b"R")
                    time.sleep(FETCH_S / 5)
            case _:
                self._send(404, "text/plain", b"")

    def _send(self, status: int, kind: str, content: bytes, n_promised: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) if n_promised is None else n_promised))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _sound() -> bytes:
    """Noise, which no letter sounds like."""
    if not _Handler.sound:
        noise = np.random.default_rng(2).normal(0, 4000, round(8000 * _SOUND_S)).clip(-32000, 32000)
        target = io.BytesIO()
        write_wav(target, noise.astype("<i2").tobytes(), "pcm", 8000)
        _Handler.sound = target.getvalue()
    return _Handler.sound
