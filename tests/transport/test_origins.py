"""Which web pages may open a connection, by the headers that a browser sends and by the server's address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.transport.origins import is_allowed, is_loopback, parse_origin
from telephony_tts.transport.settings import ORIGIN

PUBLIC, LOOPBACK = "192.0.2.7", "127.0.0.1"


def allowed(
    origin: str, host: str, here: str = PUBLIC, *listed: str, public_url: str | None = None, has_tokens: bool = True
) -> bool:
    return is_allowed(origin, host, here, listed, public_url, has_tokens=has_tokens)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://tts.example.com:8080", "tts.example.com:8080"),
        ("http://tts.example.com", "tts.example.com"),
        ("HTTP://TTS.example.com", "tts.EXAMPLE.com"),
        ("http://tts.example.com", "tts.example.com:80"),
        ("https://tts.example.com", "tts.example.com:443"),
        ("https://tts.example.com", "tts.example.com"),  # a proxy ends TLS and passes Host on
        ("https://tts.example.com:443", "tts.example.com"),
        ("http://tts.example.com:443", "tts.example.com"),  # mod_audio_stream's, of wss://tts.example.com
        ("http://192.0.2.7:8080", "192.0.2.7:8080"),
        ("http://[2001:db8::7]:8080", "[2001:db8::7]:8080"),
    ],
)
def test_a_page_of_the_same_host_may(origin: str, host: str) -> None:
    assert allowed(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "tts.example.com"),
        ("https://evil.example", "tts.example.com:443"),
        ("http://tts.example.com:3000", "tts.example.com:8080"),
        ("http://tts.example.com:3000", "tts.example.com"),
        ("https://tts.example.com", "tts.example.com:8080"),
        ("https://tts.example.com.evil.example", "tts.example.com"),
        ("https://evil.example", ""),
        ("null", "null"),
        ("", ""),
        ("https://", ""),
        ("tts.example.com", "tts.example.com"),
        ("https://tts.example.com/", "tts.example.com"),
        ("https://tts.example.com@evil.example", "evil.example"),
        ("https://tts.example.com evil", "tts.example.com"),
        ("chrome-extension://abc", "abc"),
    ],
)
def test_other_pages_may_not(origin: str, host: str) -> None:
    assert not allowed(origin, host)
    assert allowed(origin, host, PUBLIC, "*"), "if that is wanted"


def test_only_listed_pages_are_allowed() -> None:
    listed = ("https://console.example.com", "http://localhost:3000", "chrome-extension://abc")
    for origin in (*listed, "https://console.example.com:443", "https://Console.example.com"):
        assert allowed(origin, "tts.example.com", PUBLIC, *listed)
    for origin in ("http://console.example.com", "https://console.example.com:8443", "http://localhost", "null"):
        assert not allowed(origin, "tts.example.com", PUBLIC, *listed)


@pytest.mark.parametrize(
    "public_url", ["wss://voice.example.com", "https://voice.example.com/", "wss://VOICE.example.com:443/x"]
)
def test_pages_of_the_public_address_may(public_url: str) -> None:
    """A proxy that sends its own target in Host hides the host that the browser dialled."""
    assert allowed("https://voice.example.com", "127.0.0.1:8080", LOOPBACK, public_url=public_url)
    assert not allowed("https://voice.example.com:8443", "127.0.0.1:8080", LOOPBACK, public_url=public_url)
    assert not allowed("https://evil.example", "127.0.0.1:8080", LOOPBACK, public_url=public_url)


@pytest.mark.parametrize("here", [LOOPBACK, "::1", "127.8.8.8"])
def test_on_loopback_a_rebound_name_is_not_the_same_host(here: str) -> None:
    """DNS rebinding: evil.example resolves to 127.0.0.1, so its page seems to ask its own host."""
    assert not allowed("http://evil.example:8080", "evil.example:8080", here)
    for host in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080", "tts.localhost:8080"):
        assert allowed(f"http://{host}", host, here)


@pytest.mark.parametrize("here", [PUBLIC, "172.17.0.2"])
def test_a_server_without_a_token_trusts_no_host_name(here: str) -> None:
    """A port that a container engine publishes on 127.0.0.1 is reached at the container's own address."""
    assert not allowed("http://evil.example:8080", "evil.example:8080", here, has_tokens=False)
    for host in ("127.0.0.1:8080", "localhost:8080", "192.0.2.7:8080", "[2001:db8::7]:8080"):
        assert allowed(f"http://{host}", host, here, has_tokens=False)


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.7", "0.0.0.0", "[::2]"]
)
def test_names_of_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@given(st.text(alphabet="htps:/wx.10[]@*-A ", max_size=24))
def test_what_may_be_listed_is_what_can_be_compared(text: str) -> None:
    if ORIGIN.accepts(text):
        assert parse_origin(text) is not None


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=10))
def test_no_header_raises(origin: str, host: str, scheme: str) -> None:
    assert allowed(origin, host) in (True, False)
    assert allowed(f"{scheme}://{origin}", host, LOOPBACK, public_url=origin) in (True, False)
