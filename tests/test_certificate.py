"""When a certificate ends, against those that openssl makes."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from telephony_tts.ops.certificate import expires_s


def made(folder: Path, days: int, *more: str) -> Path:
    cert = folder / f"{days}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
         str(days), "-subj", "/CN=localhost/O=Example", "-keyout", str(folder / "key.pem"), "-out", str(cert), *more],
        capture_output=True, check=True,
    )  # fmt: skip
    return cert


def told_by_openssl(cert: Path) -> float:
    told = subprocess.run(
        ["openssl", "x509", "-in", str(cert), "-noout", "-enddate"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return datetime.strptime(told, "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()


@pytest.mark.slow
@pytest.mark.parametrize("days", [2, 400, 40_000])
def test_the_end_is_that_which_openssl_tells(tmp_path: Path, days: int) -> None:
    """From 2050 on a certificate has its times in another form (RFC 5280 §4.1.2.5)."""
    cert = made(tmp_path, days, "-addext", "subjectAltName=DNS:localhost")
    assert expires_s(str(cert)) == told_by_openssl(cert)


@pytest.mark.slow
def test_of_a_chain_the_first_certificate_counts(tmp_path: Path) -> None:
    first, second = made(tmp_path, 3), made(tmp_path, 90)
    chain = tmp_path / "chain.pem"
    chain.write_text(f"Bag Attributes\n  friendlyName: x\n{first.read_text()}{second.read_text()}")
    assert expires_s(str(chain)) == told_by_openssl(first)


@pytest.mark.parametrize(
    "text",
    [
        "", "no PEM", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUJ2\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cert.pem"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"cert\.pem"):
        expires_s(str(file))
