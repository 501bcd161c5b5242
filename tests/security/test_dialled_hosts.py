"""Where the server may be sent: addresses that bots and programs name, and peers that send it elsewhere (SSRF)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from raw_peer import raw_peer
from rig import run, serving

from sip_bridge.ari.config import AriConfig
from sip_bridge.ari.connection import AriLost, connect_ari
from sip_bridge.config import TtsServerConfig
from sip_bridge.server_leg import NotJoined, join
from telephony_tts.audio.wav import write_wav
from telephony_tts.doors.asterisk.dial import may_dial
from telephony_tts.runtime.errors import SoundError
from telephony_tts.transport import sound_fetch

pytestmark = pytest.mark.slow


class Hosts:
    """A host that answers with a redirect to a second one, which must get no request."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.reached: list[bytes] = []
        self.port = self.forbidden_port = 0

    async def redirect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await _head(reader))
        to = f"ws://127.0.0.1:{self.forbidden_port}/internal"
        writer.write(f"HTTP/1.1 307 Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(await _head(reader))
        writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)


@asynccontextmanager
async def redirecting() -> AsyncIterator[Hosts]:
    hosts = Hosts()
    first = await asyncio.start_server(hosts.redirect, "127.0.0.1", 0)
    second = await asyncio.start_server(hosts.answer, "127.0.0.1", 0)
    hosts.port, hosts.forbidden_port = (each.sockets[0].getsockname()[1] for each in (first, second))
    async with first, second:
        yield hosts
    assert hosts.asked and not hosts.reached, "a redirect was followed"


def test_an_asterisk_that_redirects_is_not_followed() -> None:
    async def main() -> None:
        async with redirecting() as hosts:
            allowed = (f"ws://127.0.0.1:{hosts.port}/media/",)
            async with serving(asterisk_dial=allowed) as rig:
                address = quote(f"ws://127.0.0.1:{hosts.port}/media/x", safe="")
                async with raw_peer(rig.port, f"/media/asterisk?dial={address}") as peer:
                    assert await peer.read_to_close() == 1011
                    assert b"307" in peer.data

    run(main)


def test_a_bot_that_redirects_is_not_followed_and_its_token_goes_nowhere_else() -> None:
    async def main() -> None:
        async with redirecting() as hosts:
            bot = {"bot_url": f"ws://127.0.0.1:{hosts.port}/bot", "bot_token": "s3cret", "bot_connect_timeout_s": 2.0}
            async with serving(**bot) as rig, raw_peer(rig.port, "/media/native") as peer:
                await peer.send({"type": "start", "call": "c1"})
                await peer.read_to_close()
            assert b"Bearer s3cret" in hosts.asked[0]

    run(main)


def test_the_bridge_follows_no_redirect_either() -> None:
    async def main() -> None:
        async with redirecting() as hosts:
            with pytest.raises(NotJoined, match="307"):
                await join(TtsServerConfig(url=f"ws://127.0.0.1:{hosts.port}/media/native", token="t"))
            with pytest.raises(AriLost):
                await connect_ari(AriConfig(url=f"ws://127.0.0.1:{hosts.port}/ari", password="p"))

    run(main)


ALLOWED = ("ws://pbx.example:8088/media/",)


@pytest.mark.parametrize(
    "url",
    [
        "ws://evil.example/media/x",
        "ws://pbx.example:8088@evil.example/media/x",
        "ws://pbx.example:8088.evil.example/media/x",
        "ws://pbx.example:80880/media/x",
        "ws://pbx.example/media/x",
        "wss://pbx.example:8088/media/x",
        "http://pbx.example:8088/media/x",
        "ws://pbx.example:8088/mediax",
        "ws://pbx.example:8088/media/../ari/events",
        "ws://pbx.example:8088/media/%2e%2e/ari",
        "ws://pbx.example:8088\\@evil.example/media/x",
        "ws://pbx.example:8088/media/..\t/ari",
        "//pbx.example:8088/media/x",
        "ws://PBX.example:8088/media/x\r\nX: y",
        "file:///media/x",
        "ws://[::1]:8088/media/x",
        "ws://[pbx/media/x",
        "ws://pbx.example:8088/media/x HTTP/1.0",
        "ws://pbx.example:8088/media/x?v=%00",
        "ws://pbx.example:8088/media/x?v=a%0d%0aX:y",
        "ws://pbx.example:8088/media/x?v=%250a",
        "ws://pbx.example:8088/media/x?v=%252525252541",
        "",
    ],
)
def test_only_what_lies_below_a_listed_address_is_dialled(url: str) -> None:
    assert not may_dial(url, ALLOWED)
    assert may_dial("ws://pbx.example:8088/media/1.2", ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1%lo",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        # They stand for an IPv4 address: NAT64, 6to4, Teredo.
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:c0a8:1::1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        # Nothing public begins so: IPv4-compatible, IPv4-translated, local NAT64, site-local.
        "::127.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b:1::a00:1",
        "fec0::1",
    ],
)
def test_a_name_that_leads_into_the_operators_network_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, **how: Any) -> list[Any]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)[: 4 if ":" in address else 2])]

    def connect(self: socket.socket, place: object) -> None:
        raise AssertionError(f"connected to {place}")

    monkeypatch.setattr(sound_fetch.socket, "getaddrinfo", found)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(SoundError, match="no public address"):
        sound_fetch.fetch_sound("http://sounds.example/a.wav", ["http://sounds.example/"], 1_000, 1)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_a_public_address_is_connected_to_as_it_was_checked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the name is looked up once, and the connection goes to the address that was checked."""
    looked_up, connected = [], []

    def found(host: str, port: int, **how: Any) -> list[Any]:
        looked_up.append(host)
        now = address if len(looked_up) == 1 else "127.0.0.1"
        return [(socket.AF_INET6 if ":" in now else socket.AF_INET, socket.SOCK_STREAM, 6, "", (now, port))]

    def connect(self: socket.socket, place: tuple[str, int]) -> None:
        connected.append(place)
        raise ConnectionRefusedError("as far as this test goes")

    monkeypatch.setattr(sound_fetch.socket, "getaddrinfo", found)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(SoundError):
        sound_fetch.fetch_sound("http://sounds.example/a.wav", ["http://sounds.example/"], 1_000, 1)
    assert looked_up == ["sounds.example"] and connected == [(address, 80)]


def test_a_bot_cannot_have_an_address_fetched_unless_the_operator_lists_it(tmp_path: Path) -> None:
    """The whole way: a bot asks, over its socket, for a sound of a host on this machine."""

    async def main() -> None:
        reached: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(await _head(reader))
            content = (tmp_path / "a.wav").read_bytes()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
            writer.close()

        write_wav(str(tmp_path / "a.wav"), bytes(1_600), "ulaw", 8_000)
        site = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/sounds/a.wav"
        from telephony_tts.transport.settings import SoundSettings
        from telephony_tts.transport.sound_store import SoundStore

        async with site:
            for urls, is_fetched in (((), False), ((url.rpartition("/")[0] + "/",), True)):
                store = SoundStore(SoundSettings(urls=urls))
                async with serving(find_sound=store.find) as rig, rig.bot(audio="none") as bot:
                    await bot.send({"type": "play", "turn": "p", "url": url})
                    ended = await bot.event("done" if is_fetched else "error")
                    assert bool(reached) is is_fetched, ended

    run(main)


@pytest.mark.parametrize(
    "path",
    ["%25252e%25252e/private/a.wav", "..;/private/a.wav", "..;x=1/private/a.wav", "%2e%2e%3b/private/a.wav",
     "..%5cprivate%5ca.wav", "..%255cprivate"],
)  # fmt: skip
def test_a_path_that_some_server_reads_as_one_step_up_is_refused(path: str) -> None:
    """Servers of Java drop what stands behind a semicolon, others read a backslash as a slash, and proxies decode once
    more."""
    with pytest.raises(SoundError, match="its path is not plain"):
        sound_fetch.fetch_sound(f"https://cdn.example.com/sounds/{path}", ["https://cdn.example.com/sounds/"], 1_000, 1)
