"""Handshakes of carriers at the real door: forged, changed, repeated."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from rig import get, run, serving

from telephony_tts.doors.genesys.http_signature import COMPONENTS, signature_base
from telephony_tts.doors.plivo import codec as plivo
from telephony_tts.doors.twilio import codec as twilio
from telephony_tts.ops.keys.key import digest_of

pytestmark = pytest.mark.slow

SECRET = "the secret of the carrier"
PUBLIC = "wss://tts.example"
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


async def knock(port: int, path: str, headers: Mapping[str, str] | list[tuple[str, str]]) -> int:
    """The status of a handshake."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: tts.example",
        *UPGRADE,
        *(f"{name}: {value}" for name, value in pairs),
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    status = int((await asyncio.wait_for(reader.readline(), 8)).split()[1])
    writer.close()
    return status


def test_twilio() -> None:
    async def main() -> None:
        async with serving(twilio_auth_token=SECRET, public_url=PUBLIC) as rig:
            good = twilio.signature(SECRET, f"{PUBLIC}/media/twilio?a=1")
            name = "X-Twilio-Signature"
            assert await knock(rig.port, "/media/twilio?a=1", {name: good}) == 101
            for path, headers in (
                ("/media/twilio?a=2", [(name, good)]),
                ("/media/twilio", [(name, good)]),
                ("/media/twilio?a=1", []),
                ("/media/twilio?a=1", [(name, "")]),
                ("/media/twilio?a=1", [(name, good), (name, good)]),
                ("/media/twilio?a=1", [(name, good[:-1])]),
                ("/media/twilio?a=1", [(name, good.lower())]),
                ("/media/twilio?a=1", [(name, twilio.signature("", f"{PUBLIC}/media/twilio?a=1"))]),
                ("/media/twilio?a=1", [(name, twilio.signature("other", f"{PUBLIC}/media/twilio?a=1"))]),
                ("/media/twilio?a=1", [("Authorization", f"Bearer {SECRET}")]),
            ):
                assert await knock(rig.port, path, headers) == 401, (path, headers)

    run(main)


def test_plivo_and_a_replay() -> None:
    async def main() -> None:
        async with serving(plivo_auth_token=SECRET, public_url=PUBLIC) as rig:

            def signed(nonce: str, path: str = "/media/plivo") -> dict[str, str]:
                given = plivo.signature_v3(SECRET, f"{PUBLIC}{path}", nonce)
                return {"X-Plivo-Signature-V3": given, "X-Plivo-Signature-V3-Nonce": nonce}

            assert await knock(rig.port, "/media/plivo", signed("1")) == 101
            assert await knock(rig.port, "/media/plivo", signed("1")) == 401, "a replay"
            assert await knock(rig.port, "/media/plivo", signed("2")) == 101
            assert await knock(rig.port, "/media/plivo", {**signed("3"), "X-Plivo-Signature-V3-Nonce": "4"}) == 401
            assert await knock(rig.port, "/media/plivo?a=1", signed("5")) == 401
            assert await knock(rig.port, "/media/plivo", {}) == 401

    run(main)


def jwt(claims: Mapping[str, Any], secret: str = SECRET, header: Mapping[str, Any] | None = None) -> str:
    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    signed = f"{part(header or {'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}"
    signature = base64.urlsafe_b64encode(hmac.digest(secret.encode(), signed.encode(), "sha256"))
    return f"{signed}.{signature.rstrip(b'=').decode()}"


def test_vonage_and_a_replay() -> None:
    async def main() -> None:
        async with serving(vonage_signature_secret=SECRET) as rig:
            now = int(time.time())
            good = jwt({"iat": now, "exp": now + 300, "jti": "1"})

            async def status(token: str) -> int:
                return await knock(rig.port, "/media/vonage?call=c1", {"Authorization": f"Bearer {token}"})

            assert await status(good) == 101
            assert await status(good) == 401, "a replay"
            head, claims, _ = jwt({"iat": now, "exp": now + 300, "jti": "2"}).split(".")
            none = jwt({"iat": now, "exp": now + 300}, header={"alg": "none"}).split(".")
            for forged in (
                f"{head}.{claims}.",
                f"{head}.{claims}.AAAA",
                f"{none[0]}.{none[1]}.",
                ".".join(none),
                jwt({"iat": now}, "other"),
                jwt({"iat": now - 4_000, "exp": now - 3_000}),
                jwt({"iat": now + 4_000, "exp": now + 5_000}),
                jwt({}),
                "a.b.c",
                "",
            ):
                assert await status(forged) == 401, forged

    run(main)


def test_genesys_and_a_replay() -> None:
    key, secret = "the key", b"0123456789abcdef"

    def signed(
        nonce: str, created: int, *, secret: bytes = secret, target: str = "/media/genesys?call=c1"
    ) -> dict[str, str]:
        values = {
            "@request-target": target,
            "@authority": "tts.example",
            "audiohook-organization-id": "o",
            "audiohook-session-id": "s",
            "audiohook-correlation-id": "c",
            "x-api-key": key,
        }
        told = " ".join(f'"{name}"' for name in COMPONENTS)
        signed_as = f'({told});keyid="{key}";nonce="{nonce}";alg="hmac-sha256";created={created};expires={created + 10}'
        base = signature_base([f'"{name}": {values[name]}' for name in COMPONENTS], signed_as)
        given = base64.b64encode(hmac.digest(secret, base, hashlib.sha256)).decode()
        headers = {name: value for name, value in values.items() if not name.startswith("@")}
        return {**headers, "Signature-Input": f"sig1={signed_as}", "Signature": f"sig1=:{given}:"}

    async def main() -> None:
        how = {"genesys_api_key": key, "genesys_client_secret": base64.b64encode(secret).decode()}
        async with serving(**how) as rig:
            now, path = int(time.time()), "/media/genesys?call=c1"
            first = signed("a" * 24, now)
            assert await knock(rig.port, path, first) == 101
            assert await knock(rig.port, path, first) == 401, "a replay"
            for forged in (
                signed("b" * 24, now, secret=b"another"),
                signed("c" * 24, now - 60),
                signed("d" * 24, now + 60),
                signed("short", now),
                signed("e" * 24, now, target="/media/genesys?call=c2"),
                {**signed("f" * 24, now), "audiohook-session-id": "other"},
                {**signed("g" * 24, now), "x-api-key": "other"},
                {},
            ):
                assert await knock(rig.port, path, forged) == 401, forged

    run(main)


def test_a_token_is_compared_with_every_token_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time tells neither how much of a token was right, nor which of several."""

    async def main() -> None:
        compared: list[bytes] = []
        right = hmac.compare_digest

        def counted(given: Any, known: Any) -> bool:
            compared.append(known)
            return right(given, known)

        monkeypatch.setattr("telephony_tts.ops.keys.key.hmac.compare_digest", counted)
        async with serving(tokens=("first", "second", "third")) as rig:
            for given, status in ((b"first", 426), (b"third", 426), (b"wrong", 401), (b"", 401)):
                compared.clear()
                answer = await get(rig.port, "/v1/stream", (f"Authorization: Bearer {given.decode()}",))
                assert answer[0] == status
                assert {digest_of(token) for token in (b"first", b"second", b"third")} <= set(compared)

    run(main)
