"""A browser sends the origin of the page that opens a connection, and pages of other origins may not use the server."""

from __future__ import annotations

from typing import Any

import pytest
from rig import Rig, get, run, serving
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from telephony_tts.runtime import metrics

pytestmark = pytest.mark.timed

PATHS = ("/v1/stream", "/media/twilio", "/media/asterisk", "/media/freeswitch", "/media/native")
EVIL = "https://evil.example"


async def status(rig: Rig, path: str, origin: str | None, **options: Any) -> int:
    """The HTTP status of a handshake as a browser makes it."""
    try:
        async with connect(rig.url(path), origin=origin, proxy=None, **options):  # type: ignore[arg-type]
            return 101
    except InvalidStatus as refused:
        response = refused.response
        if response.status_code == 403:
            assert response.body is not None and b"server.origins" in response.body
        return response.status_code


def refused() -> float:
    return metrics.value("telephony_tts_refused_total", reason="origin")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_another_origin_is_refused(path: str) -> None:
    async def main() -> None:
        async with serving(media_start_s=0.2) as rig:
            before = refused()
            for origin in (EVIL, "null", "", f"http://127.0.0.1:{rig.port + 1}", f"http://evil.example:{rig.port}"):
                assert await status(rig, path, origin) == 403
            assert refused() == before + 5
            for origin in (None, f"http://127.0.0.1:{rig.port}"):  # a carrier; mod_audio_stream
                assert await status(rig, path, origin) == 101
            assert refused() == before + 5

    run(main)


def test_the_operator_configures_the_allowed_origins() -> None:
    async def main() -> None:
        async with serving(origins=("https://console.example.com",), public_url="wss://voice.example.com") as rig:
            for origin in ("https://console.example.com", "https://voice.example.com"):
                assert await status(rig, "/v1/stream", origin) == 101
            assert await status(rig, "/v1/stream", EVIL) == 403
        async with serving(origins=("*",)) as rig:
            for origin in (EVIL, "null"):
                assert await status(rig, "/v1/stream", origin) == 101

    run(main)


def test_a_page_needs_the_token_as_well_and_learns_nothing_without_its_origin() -> None:
    async def main() -> None:
        async with serving(tokens=("sesame",), origins=("https://console.example.com",)) as rig:
            assert await status(rig, "/v1/stream?token=sesame", EVIL) == 403
            assert await status(rig, "/v1/stream", EVIL) == 403
            assert await status(rig, "/v1/stream", "https://console.example.com") == 401
            assert await status(rig, "/v1/stream?token=sesame", "https://console.example.com") == 101

    run(main)


@pytest.mark.parametrize("path", PATHS)
def test_a_program_with_a_token_in_its_header_is_not_treated_as_a_page(path: str) -> None:
    """Some programs send the host that they dial as Origin, and a proxy in front of us hides that host."""
    async def main() -> None:
        async with serving(tokens=("sesame",), media_start_s=0.2) as rig:
            for word in ("Bearer", "token"):
                head = {"Authorization": f"{word} sesame"}
                assert await status(rig, path, "http://tts.example.com", additional_headers=head) == 101
            assert await status(rig, path, EVIL, additional_headers={"Authorization": "Bearer open"}) == 403
            basic = {"Authorization": "Basic OnNlc2FtZQ=="}  # which a browser sends by itself
            assert await status(rig, path, EVIL, additional_headers=basic) == 403
        async with serving(media_start_s=0.2) as rig:
            assert await status(rig, path, EVIL, additional_headers={"Authorization": "Bearer sesame"}) == 403

    run(main)


def test_plain_http() -> None:
    async def main() -> None:
        async with serving() as rig:
            page = (f"Origin: {EVIL}",)
            assert (await get(rig.port, "/metrics", page))[0] == 403
            assert (await get(rig.port, "/metrics"))[0] == 200
            for path in ("/healthz", "/readyz"):
                assert (await get(rig.port, path, page))[0] == 200
            twice = (*page, f"Origin: http://127.0.0.1:{rig.port}")
            assert (await get(rig.port, "/metrics", twice))[0] == 403
            hostile = (f"Origin: http://{'x' * 8000}",)
            code, _, body = await get(rig.port, "/metrics", hostile)
            assert code == 403 and len(body) < 300

    run(main)


def test_dns_rebinding_to_loopback_is_refused() -> None:
    async def main() -> None:
        async with serving() as rig:
            name = f"evil.example:{rig.port}"
            bent: dict[str, Any] = {"origin": f"http://{name}", "host": "127.0.0.1", "port": rig.port}
            with pytest.raises(InvalidStatus) as answer:
                async with connect(f"ws://{name}/v1/stream", proxy=None, **bent):
                    pass
            assert answer.value.response.status_code == 403

    run(main)
