"""Addresses of engine servers, as settings and flags have them."""

from __future__ import annotations

import pytest

from telephony_tts.engines.remote.addresses import EngineAddress, parse_address, parse_addresses
from telephony_tts.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address", "is_local"),
    [
        ("unix:/run/e.sock", EngineAddress(path="/run/e.sock"), True),
        (" unix:///run/e.sock ", EngineAddress(path="/run/e.sock"), True),
        ("127.0.0.1:8090", EngineAddress(host="127.0.0.1", port=8090), True),
        ("localhost:0", EngineAddress(host="localhost", port=0), True),
        ("[::1]:8090", EngineAddress(host="[::1]", port=8090), True),
        ("10.0.0.5:8090", EngineAddress(host="10.0.0.5", port=8090), False),
        ("0.0.0.0:8090", EngineAddress(host="0.0.0.0", port=8090), False),
        ("engine-0.engines.svc:8090", EngineAddress(host="engine-0.engines.svc", port=8090), False),
    ],
)
def test_an_address_is_read(text: str, address: EngineAddress, is_local: bool) -> None:
    read = parse_address(text)
    assert read == address and read.is_local is is_local
    assert parse_address(str(read)) == read


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:99999", "unix:", "unix:a.sock", "http://a:1", "a b:1", "unix:/" + "x" * 107]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected|at most 107"):
        parse_address(text)


def test_several_addresses_are_separated_by_commas() -> None:
    assert list(map(str, parse_addresses("unix:/a, 10.0.0.5:1,unix:/a,"))) == ["unix:/a", "10.0.0.5:1"]
    for text in ("", " , ", "10.0.0.5:0"):
        with pytest.raises(ConfigError):
            parse_addresses(text)
