"""Genesys's signatures: its documentation's example, others computed step by step, and those that must be refused."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.genesys.http_signature import COMPONENTS, SignatureVerifier, signature_base

KEY = "SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh"
SECRET = base64.b64decode("TXlTdXBlclNlY3JldEtleVRlbGxOby0xITJAMyM0JDU=")
NOW_S = 1_641_013_205
TARGET = "/media/genesys?call=c1"
HOST = ("audiohook.example.com",)

EXAMPLE = {
    "host": "audiohook.example.com",
    "audiohook-organization-id": "d7934305-0972-4844-938e-9060eef73d05",
    "audiohook-session-id": "30b0e395-84d3-4570-ac13-9a62d8f514c0",
    "audiohook-correlation-id": "e160e428-53e2-487c-977d-96989bf5c99d",
    "x-api-key": KEY,
    "signature": "sig1=:NZBwyBHRRyRoeLqy1IzOa9VYBuI8TgMFt2GRDkDuJh4=:",
    "signature-input": (
        'sig1=("@request-target" "@authority" "audiohook-organization-id" "audiohook-session-id" '
        f'"audiohook-correlation-id" "x-api-key");keyid="{KEY}";nonce="VGhpc0lzQVVuaXF1ZU5vbmNl";alg="hmac-sha256";'
        "created=1641013200;expires=3282026430"
    ),
}
"""The example in Genesys's documentation of AudioHook, whose secrets are public."""


def signed(
    components: tuple[str, ...] = COMPONENTS, secret: bytes = SECRET, target: str = TARGET, **changed: Any
) -> dict[str, str]:
    """A signed request, computed as RFC 9421 §2.5 and RFC 2104 describe it, without `hmac`."""
    headers = {name: value for name, value in EXAMPLE.items() if not name.startswith("signature")}
    parameters = {"keyid": KEY, "nonce": "MDEyMzQ1Njc4OWFiY2RlZg", "alg": "hmac-sha256", "created": NOW_S - 5} | changed
    listed = "(" + " ".join(f'"{name}"' for name in components) + ")"
    for name, value in parameters.items():
        if value is not None:
            listed += f";{name}={value}" if isinstance(value, int) else f';{name}="{value}"'
    lines = []
    for name in components:
        value = {"@request-target": target, "@authority": HOST[0]}.get(name) or headers[name]
        lines.append(f'"{name}": {value}')
    base = "\n".join([*lines, f'"@signature-params": {listed}']).encode()
    key = secret.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + base).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return headers | {"signature-input": f"sig1={listed}", "signature": f"sig1=:{base64.b64encode(outer).decode()}:"}


def flaw(headers: dict[str, str], now_s: float = NOW_S, target: str = TARGET) -> str | None:
    return SignatureVerifier(KEY, SECRET).flaw(headers, target, HOST, now_s)


def test_the_example_of_the_documentation_is_valid() -> None:
    assert flaw(EXAMPLE, NOW_S, "/api/v1/voicebiometrics/ws") is None
    assert "does not match" in str(flaw(EXAMPLE, NOW_S, "/api/v1/voicebiometrics/other"))


def test_the_base_is_one_line_for_each_component() -> None:
    assert signature_base(['"@authority": example.com', '"x-api-key": k'], '("@authority" "x-api-key");created=1') == (
        b'"@authority": example.com\n"x-api-key": k\n"@signature-params": ("@authority" "x-api-key");created=1'
    )


def test_a_request_that_was_signed_step_by_step_is_valid() -> None:
    assert flaw(signed()) is None
    assert flaw(signed(expires=NOW_S)) is None
    assert flaw(signed((*reversed(COMPONENTS), "host"))) is None


def test_the_server_may_have_two_names() -> None:
    verifier = SignatureVerifier(KEY, SECRET)
    assert "does not match" in str(verifier.flaw(signed(), TARGET, ("10.0.0.7:8080",), NOW_S))
    assert verifier.flaw(signed(), TARGET, ("10.0.0.7:8080", *HOST), NOW_S) is None


@pytest.mark.parametrize(
    ("headers", "hint"),
    [
        ({}, "must have one signature"),
        (signed() | {"signature": ""}, "must have one signature"),
        (signed() | {"signature": signed()["signature"].replace("sig1", "sig2")}, "same label"),
        (signed() | {"signature": "sig1=:AAAA:"}, "does not match"),
        (signed() | {"signature": "sig1=:A:"}, "does not match"),
        (signed(secret=b"another secret"), "does not match"),
        (signed() | {"audiohook-session-id": "another"}, "does not match"),
        ({name: value for name, value in signed().items() if name != "x-api-key"}, "does not match"),
        (signed(COMPONENTS[:-1]), "cover x-api-key"),
        (signed(COMPONENTS[1:]), "cover @request-target"),
        (signed((*COMPONENTS, "x-api-key")), "twice"),
        (signed(alg="rsa-pss-sha512"), "hmac-sha256"),
        (signed(keyid="another"), "keyid"),
        (signed(created=None), "created"),
        (signed(created="yesterday"), "created"),
        (signed(created=NOW_S + 4), "future"),
        (signed(created=NOW_S - 11), "expired"),
        (signed(expires=NOW_S - 1), "expired"),
        (signed(nonce="short-and-not-22-chars"[:21]), "22 characters"),
        (signed(nonce=None), "22 characters"),
    ],
)
def test_any_other_request_is_refused_with_the_reason(headers: dict[str, str], hint: str) -> None:
    assert hint in str(flaw(headers))


def test_a_replay_is_refused_as_long_as_its_signature_is_valid() -> None:
    verifier = SignatureVerifier(KEY, SECRET)
    request = signed(created=NOW_S)
    assert verifier.flaw(request, TARGET, HOST, NOW_S) is None
    for later_s in (0, 5, 10):
        assert "replay" in str(verifier.flaw(request, TARGET, HOST, NOW_S + later_s))
    assert "expired" in str(verifier.flaw(request, TARGET, HOST, NOW_S + 11))


def test_used_nonces_are_forgotten_and_those_of_strangers_are_not_kept() -> None:
    verifier = SignatureVerifier(KEY, SECRET)
    for n in range(500):
        now_s = NOW_S + n
        assert verifier.flaw(signed(nonce=f"{n:022}", created=now_s), TARGET, HOST, now_s) is None
        forged = signed(nonce=f"x{n:022}", created=now_s, secret=b"another")
        assert verifier.flaw(forged, TARGET, HOST, now_s) is not None
    assert len(verifier._used) < 20


@given(st.text(max_size=60), st.text(max_size=120))
def test_no_header_raises(signature: str, given_input: str) -> None:
    assert flaw(signed() | {"signature": signature, "signature-input": given_input}) is not None
    assert flaw(signed() | {"signature": f"sig1=:{signature}:", "signature-input": f"sig1=({given_input})"}) is not None
