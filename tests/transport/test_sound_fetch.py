"""Sounds by their address: what may be fetched, from a real HTTP server on this machine, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import http.server
import itertools
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from telephony_tts.audio.sound import Sound
from telephony_tts.audio.wav import write_wav
from telephony_tts.runtime.errors import SoundError
from telephony_tts.transport import sound_fetch
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_fetch import SoundAddress, fetch_sound
from telephony_tts.transport.sound_store import SoundStore

pytestmark = pytest.mark.slow


class Handler(http.server.BaseHTTPRequestHandler):
    wav = b""
    asked: ClassVar[list[str]] = []
    hosts: ClassVar[list[str]] = []
    """The `Host` of each request."""

    def do_GET(self) -> None:
        Handler.asked.append(self.path)
        Handler.hosts.append(self.headers["Host"])
        path = self.path.partition("?")[0]
        if path == "/sounds/gone.wav":
            self.send_error(404)
        elif path == "/sounds/moved.wav":
            self.send_response(302)
            self.send_header("Location", "/sounds/hold.wav")
            self.end_headers()
        elif path == "/sounds/slow.wav":
            self.answer(Handler.wav, pause_s=0.1)
        elif path == "/sounds/page.wav":
            self.answer(b"<html>", "text/html; charset=utf-8")
        elif path == "/sounds/short.wav":
            self.answer(Handler.wav[:400], n_promised=len(Handler.wav))
        elif path == "/sounds/endless.wav":
            self.answer(Handler.wav, n_promised=None, n_times=10_000)
        else:
            self.answer(Handler.wav, "")

    def answer(self, body: bytes, kind: str = "audio/wav", *, n_promised: int | None = -1, n_times: int = 1,
               pause_s: float = 0.0) -> None:  # fmt: skip
        self.send_response(200)
        if kind:
            self.send_header("Content-Type", kind)
        if n_promised is not None:
            self.send_header("Content-Length", str(len(body) if n_promised < 0 else n_promised))
        self.end_headers()
        try:
            for _ in range(n_times):
                for at in range(0, len(body), 200 if pause_s else len(body)):
                    self.wfile.write(body[at : at + 200] if pause_s else body)
                    time.sleep(pause_s)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a server, which has `/sounds/hold.wav` and other things under that path."""
    write_wav(tmp_path / "hold.wav", np.full(1600, 700, "<i2").tobytes(), "pcm", 8_000)
    Handler.wav, Handler.asked, Handler.hosts = (tmp_path / "hold.wav").read_bytes(), [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


def refusal(url: str, *allowed: str, max_bytes: int = 1_000_000, within_s: float = 5) -> str:
    with pytest.raises(SoundError) as refused:
        fetch_sound(url, allowed, max_bytes, within_s)
    return refused.value.message


def test_an_allowed_address_is_fetched_with_its_query(site: str) -> None:
    assert fetch_sound(f"{site}/sounds/hold.wav?key=1", [f"{site}/sounds/"], 1_000_000, 5) == Handler.wav
    assert fetch_sound(f"{site}/sounds/hold.wav", ["https://a.example/", site], 1_000_000, 5) == Handler.wav
    assert Handler.asked == ["/sounds/hold.wav?key=1", "/sounds/hold.wav"]


@pytest.mark.parametrize(
    "url",
    [
        "{site}/other/hold.wav", "{site}/sounds/../secret", "{site}/sounds/%2e%2e/secret", "{site}/sounds/%252e%252e/x",
        "{site}@evil.example/sounds/a.wav", "http://127.0.0.1/sounds/a.wav", "http://127.0.0.1:1/sounds/a.wav",
        "https{rest}/sounds/a.wav", "http://localhost:{port}/sounds/a.wav", "http://evil.example/sounds/", "http://",
        "{site}/sounds/a b", "{site}/sounds\\a", "{site}/sounds/\u00e4", "http://[::1", "http://a:b/",
    ],
)  # fmt: skip
def test_no_other_address_is_fetched(site: str, url: str) -> None:
    url = url.format(site=site, rest=site.removeprefix("http"), port=site.rpartition(":")[2])
    assert "sound" in refusal(url, f"{site}/sounds/")
    assert not Handler.asked


@pytest.mark.parametrize(
    "control", ["%00", "%0a", "%0D%0Ax", "%1f", "%7F", "%C2%85", "%2500", "%25250d", "\0", "\n", "\x7f"]
)
@pytest.mark.parametrize(
    "url",
    [
        "{site}/sounds/hold{control}.wav", "{site}/sounds/hold.wav?a={control}", "{site}/sounds/hold.wav?{control}=a",
        "{site}/sounds/hold.wav#{control}", "{site}{control}/sounds/hold.wav", "http://{control}{host}/sounds/hold.wav",
        "http://a{control}:b@{host}/sounds/hold.wav",
    ],
)  # fmt: skip
def test_an_address_with_a_control_character_is_not_fetched(site: str, url: str, control: str) -> None:
    """Pinned: `%00` in the path was fetched. Some server on the way may end the path there, or begin a new header."""
    url = url.format(site=site, host=site.partition("//")[2], control=control)
    assert "the sound's address cannot be used" in refusal(url, f"{site}/sounds/")
    assert not Handler.asked


def test_an_address_with_other_encoded_characters_is_fetched(site: str) -> None:
    url = f"{site}/sounds/%E8%AF%B7%20hold.wav?text=a%2Bb%25&sign=%2F%C3%A9%85"
    assert fetch_sound(url, [f"{site}/sounds/"], 1_000_000, 5) == Handler.wav
    assert len(Handler.asked) == 1


def test_without_a_setting_nothing_is_fetched(site: str) -> None:
    assert "sounds.urls allows no address" in refusal(f"{site}/sounds/hold.wav")
    assert not Handler.asked


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "answered 404"), ("moved", "answered 302"), ("page", "calls it text/html"),
        ("short", "IncompleteRead|not complete"), ("endless", "more than 20000 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_whole_sound_is_refused(site: str, name: str, why: str) -> None:
    message = refusal(f"{site}/sounds/{name}.wav?secret=7", f"{site}/sounds/", max_bytes=20_000)
    assert any(part in message for part in why.split("|")) and "secret" not in message
    assert len(Handler.asked) == 1, "a redirect is not followed"


def test_a_slow_server_is_left_after_the_time_for_all_of_it(site: str) -> None:
    """Each piece comes in time; together they take 1.7 s."""
    begun = time.monotonic()
    assert "longer than 0.5 s (sounds.fetch_s)" in refusal(f"{site}/sounds/slow.wav", site, within_s=0.5)
    assert time.monotonic() - begun < 1.5


def test_a_server_that_does_not_answer_is_left(site: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        begun = time.monotonic()
        assert "longer than 0.3 s" in refusal(url + "a.wav", url, within_s=0.3)
        assert time.monotonic() - begun < 1.5


def test_a_server_whose_headers_never_end_is_left() -> None:
    def drip(mute: socket.socket) -> None:
        peer, _ = mute.accept()
        with peer, suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            for n in range(100):
                peer.sendall(b"X-A: %d\r\n" % n)
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as mute:
        thread = threading.Thread(target=drip, args=(mute,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        begun = time.monotonic()
        assert "longer than 0.3 s" in refusal(url + "a.wav", url, within_s=0.3)
        assert time.monotonic() - begun < 1.5
        thread.join(10)


def test_a_name_that_leads_to_a_private_address_is_refused(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator allowed a host on the internet, and its owner points it at this machine."""
    port = int(site.rpartition(":")[2])
    place = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: [place])
    url = f"http://sounds.example.com:{port}/"
    assert "no public address" in refusal(url + "sounds/hold.wav", url)
    assert not Handler.asked
    assert SoundAddress.of("http://10.0.0.5/a").names_the_machine


def lead(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> None:
    """Every name leads to these places of this machine, in this order, as if they were public."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    monkeypatch.setattr(sound_fetch, "_is_public", lambda _address: True)


@pytest.fixture
def tls_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of an HTTPS server with the certificate of sounds.example, which this process trusts."""
    key, made = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sounds.example",
         "-addext", "subjectAltName=DNS:sounds.example", "-keyout", key, "-out", made],
        check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    Handler.wav, Handler.asked, Handler.hosts = b"RIFF", [], []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize(
    ("beginning", "host"),
    [("https://sounds.example", "sounds.example"), ("https://sounds.example:8443", "sounds.example:8443"),
     ("https://sounds.example:80", "sounds.example:80")],
)  # fmt: skip
def test_https_names_its_port_only_if_it_is_not_443(
    tls_site: int, monkeypatch: pytest.MonkeyPatch, beginning: str, host: str
) -> None:
    """Signed addresses, such as those of S3, sign the host as the address has it."""
    lead(monkeypatch, ("127.0.0.1", tls_site))
    assert fetch_sound(f"{beginning}/a.wav", [f"{beginning}/"], 1_000, 5) == b"RIFF"
    assert Handler.hosts == [host]


@pytest.mark.parametrize(
    ("beginning", "host"),
    [("http://sounds.example", "sounds.example"), ("http://sounds.example:443", "sounds.example:443")],
)
def test_http_names_its_port_only_if_it_is_not_80(
    site: str, monkeypatch: pytest.MonkeyPatch, beginning: str, host: str
) -> None:
    lead(monkeypatch, ("127.0.0.1", int(site.rpartition(":")[2])))
    assert fetch_sound(f"{beginning}/a.wav", [f"{beginning}/"], 10_000, 5) == Handler.wav
    assert Handler.hosts == [host]


@contextmanager
def refusing() -> Iterator[tuple[str, int]]:
    """A place that refuses connections, like a host that is up and whose server is not."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """A place that answers nothing, like a host that is down: its queue of connections is full."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        yield full.getsockname()


@pytest.mark.parametrize("dead", [[refusing], [silent], [refusing, silent, refusing]])
def test_a_host_with_dead_addresses_is_fetched_from_the_one_that_works(
    site: str, monkeypatch: pytest.MonkeyPatch, dead: list[Callable[[], AbstractContextManager[tuple[str, int]]]]
) -> None:
    with ExitStack() as stack:
        places = [stack.enter_context(place()) for place in dead]
        lead(monkeypatch, *places, ("127.0.0.1", int(site.rpartition(":")[2])))
        assert fetch_sound("http://sounds.example/a.wav", ["http://sounds.example/"], 10_000, 2) == Handler.wav


@pytest.mark.parametrize(
    ("dead", "why"), [([refusing] * 3, "Connection refused"), ([silent] * 20, "longer than 0.4 s (sounds.fetch_s)")]
)
def test_a_host_whose_addresses_are_all_dead_is_left_in_time(
    monkeypatch: pytest.MonkeyPatch, dead: list[Callable[[], AbstractContextManager[tuple[str, int]]]], why: str
) -> None:
    with ExitStack() as stack:
        lead(monkeypatch, *(stack.enter_context(place()) for place in dead))
        begun = time.monotonic()
        assert why in refusal("http://sounds.example/a.wav", "http://sounds.example/", within_s=0.4)
        assert time.monotonic() - begun < 1


def test_of_the_addresses_of_a_host_only_public_ones_are_tried(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing() as refused:
        lead(monkeypatch, refused, ("127.0.0.1", int(site.rpartition(":")[2])))
        answers = iter([True, False])
        monkeypatch.setattr(sound_fetch, "_is_public", lambda _address: next(answers))
        assert "Connection refused" in refusal("http://sounds.example/a.wav", "http://sounds.example/")
    assert not Handler.asked


def test_a_tls_handshake_that_drips_is_left() -> None:
    def drip(mute: socket.socket) -> None:
        peer, _ = mute.accept()
        with peer, suppress(OSError):
            peer.sendall(b"\x16\x03\x03\x3f\xff")  # a record of 16 KB
            for _ in range(60):
                peer.sendall(b"\x02")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as mute:
        thread = threading.Thread(target=drip, args=(mute,), daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{mute.getsockname()[1]}/"
        begun = time.monotonic()
        assert "longer than 0.3 s" in refusal(url + "a.wav", url, within_s=0.3)
        assert time.monotonic() - begun < 1.5
        thread.join(10)


def test_a_socket_is_closed_when_the_time_is_over_at_any_step(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: between the connection and the request it stayed open."""
    opened: list[socket.socket] = []
    clock = sound_fetch.monotonic_ns

    class Recorded(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not kwargs:  # the server's own have a descriptor already
                opened.append(self)

    monkeypatch.setattr(sound_fetch.socket, "socket", Recorded)
    for n_in_time in range(1, 5):
        calls = itertools.count()
        monkeypatch.setattr(
            sound_fetch, "monotonic_ns", lambda n=n_in_time, calls=calls: clock() + (next(calls) >= n) * 10**12
        )
        assert "longer than" in refusal(f"{site}/sounds/hold.wav", f"{site}/sounds/")
    assert len(opened) == 4 and all(each.fileno() == -1 for each in opened)


def test_a_store_fetches_an_address_once(site: str) -> None:
    store = SoundStore(SoundSettings(urls=(f"{site}/sounds/",)))

    async def main() -> None:
        url = f"{site}/sounds/hold.wav"
        first, second = await asyncio.gather(store.find(url).load(8_000), store.find(url).load(8_000))
        assert set(first.pcm.tolist()) == {700} and first.duration_ms == 200 and second is first
        assert await store.find(url).load(8_000) is first
        assert Handler.asked == ["/sounds/hold.wav"]
        with pytest.raises(SoundError, match="allows no address"):
            await store.find(f"{site}/elsewhere.wav").load(8_000)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["no thread", "resampling"])
def test_faults_of_this_machine_do_not_tell_the_query(
    fault: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of an address may have a secret, and the message goes into the log and to the bot."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def too_large(*_: object) -> None:
        raise MemoryError

    store = SoundStore(SoundSettings(urls=(site,)))
    if fault == "no thread":
        monkeypatch.setattr(sound_fetch.threading.Timer, "start", fail)
    else:
        monkeypatch.setattr(Sound, "at", too_large)
    why = "RuntimeError" if fault == "no thread" else "not enough memory"
    with pytest.raises(SoundError, match=f"hold.*{why}") as refused:
        asyncio.run(store.find(f"{site}/sounds/hold.wav?secret=7").load(8_000))
    assert "secret" not in refused.value.message
    gc.collect()  # a socket that is left open is a ResourceWarning, which is an error here


def test_what_is_not_audio_is_refused(site: str) -> None:
    Handler.wav = b"RIFF" + bytes(4) + b"WAVE" + bytes(100)
    store = SoundStore(SoundSettings(urls=(site,)))
    with pytest.raises(SoundError, match="cannot be played") as refused:
        asyncio.run(store.find(f"{site}/a.wav?secret=7").load(8_000))
    assert "secret" not in refused.value.message
