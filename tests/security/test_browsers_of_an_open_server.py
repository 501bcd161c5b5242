"""DNS rebinding of plain HTTP: a browser sends no `Origin` with a GET to its page's own host, only `Host`."""

from __future__ import annotations

import pytest
from http_peer import Answer, http_peer, request
from rig import Rig, run, serving

pytestmark = pytest.mark.slow

PATHS = ("/console/api/state", "/console/api/recordings", "/console/api/lexicons", "/v1/voices", "/tts/stream?text=Hi.")


async def get(rig: Rig, path: str, host: str, **headers: str) -> Answer:
    async with http_peer(rig.port) as peer:
        peer.writer.write(request("GET", path, **headers).replace(b"Host: x", f"Host: {host}".encode()))
        return await peer.answer()


async def statuses(rig: Rig, host: str) -> list[int]:
    return [(await get(rig, path, host)).status for path in PATHS]


def test_a_page_that_uses_dns_rebinding_reads_nothing() -> None:
    async def main() -> None:
        async with serving() as rig:
            for host in (f"evil.example.com:{rig.port}", "EVIL.example.com", "127.0.0.1.evil.example"):
                assert await statuses(rig, host) == [403] * len(PATHS), host
            refused = await get(rig, PATHS[0], "evil.example.com")
            assert refused.code == "origin" and "server.public_url" in refused.json()["error"]["message"]

    run(main)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost", "[::1]:8080", "tts:8080", "tts.localhost", "host.docker.internal:8080"]
)
def test_names_that_cannot_be_registered_are_served(host: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            assert await statuses(rig, host) == [200] * len(PATHS)

    run(main)


def test_a_name_of_the_operator_and_a_server_with_tokens_are_served() -> None:
    async def main() -> None:
        for how in (
            {"public_url": "https://tts.example.com"}, {"origins": ("https://tts.example.com",)}, {"origins": ("*",)},
        ):  # fmt: skip
            async with serving(**how) as rig:  # type: ignore[arg-type]
                assert await statuses(rig, "tts.example.com") == [200] * len(PATHS), how
        async with serving(tokens=("sesame",)) as rig:
            known = await get(rig, "/v1/voices", "tts.example.com", Authorization="Bearer sesame")
            assert known.status == 200
            assert await statuses(rig, "tts.example.com") == [401] * len(PATHS)

    run(main)
