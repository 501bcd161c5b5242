"""A DNS server that may fall silent, and a speech server that is found by its name.

Some names have the address of this machine, and a client has to ask for them each time: nothing is kept. All other
names are never answered.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from telephony_tts.engines.fake.engine import render

ADDRESS = "127.0.0.153"
"""Where the DNS server is. It has the port 53, which clients cannot choose."""
ENGINE, VOICES = "engine.torture.example", "voices.torture.example"
"""The names that are known: of an engine in another process, and of a speech server over HTTP."""
_A, _QUESTION = 1, struct.Struct("!6H")
_HERE = socket.inet_aton("127.0.0.1")
_POLL_S = 0.2


class NameServer:
    """`is_silent`: it answers nothing."""

    def __init__(self) -> None:
        self.is_silent = False

    def answer(self, question: bytes) -> bytes | None:
        """The answer to a packet; None if it gets no answer."""
        with suppress(struct.error, IndexError, UnicodeDecodeError):
            number, *_ = _QUESTION.unpack_from(question)
            labels, at = [], _QUESTION.size
            while n := question[at]:
                labels.append(question[at + 1 : at + 1 + n].decode("ascii").lower())
                at += 1 + n
            end = at + 5
            (kind,) = struct.unpack_from("!H", question, at + 1)
            if self.is_silent or ".".join(labels) not in (ENGINE, VOICES):
                return None
            n_answers = 1 if kind == _A else 0
            head = _QUESTION.pack(number, 0x8180, 1, n_answers, 0, 0)
            # The name is that of the question, and the answer holds for 0 s.
            found = struct.pack("!HHHIH", 0xC00C, _A, 1, 0, len(_HERE)) + _HERE
            return head + question[_QUESTION.size : end] + (found if n_answers else b"")
        return None


@contextmanager
def name_server() -> Iterator[NameServer]:
    """A server that runs, in a thread. Raises OSError where this user may not have its port."""
    names, over = NameServer(), threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((ADDRESS, 53))
        own.settimeout(_POLL_S)

        def serve() -> None:
            while not over.is_set():
                with suppress(OSError):
                    question, client = own.recvfrom(1500)
                    if (answer := names.answer(question)) is not None:
                        own.sendto(answer, client)

        thread = threading.Thread(target=serve, name="name server")
        thread.start()
        try:
            yield names
        finally:
            over.set()
            thread.join()


class _Voices(BaseHTTPRequestHandler):
    """OpenAI's way to ask for speech. It closes the connection behind each answer, so that its name is needed again."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(n_bytes := int(self.headers["Content-Length"]))
        if len(body) < n_bytes:
            return  # the client has left
        told = json.loads(body)
        self.send_response(200)
        self.send_header("Content-Type", "audio/pcm")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(render(told["input"]).tobytes())

    def log_message(self, format: str, *args: object) -> None:
        """Its lines are not counted as errors."""


@contextmanager
def speech_server() -> Iterator[int]:
    """The port of a server that speaks tones over HTTP."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Voices) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="speech server")
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
