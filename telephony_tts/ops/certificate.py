"""When a certificate ends. The standard library tells that of a peer's certificate only, so this reads the file."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def expires_s(file: str) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970. Raises ValueError and OSError."""
    found = _PEM.search(Path(file).read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise ValueError(f"{file} has no certificate in PEM")
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(found[0])).timestamp()
    except (IndexError, StopIteration, ValueError) as error:
        raise ValueError(f"{file}: the certificate cannot be read") from error


def _not_after(der: bytes) -> datetime:
    """RFC 5280 §4.1: version, serial number, signature, issuer and then the validity, which is two times."""
    _, certificate = next(_elements(der))
    _, signed = next(_elements(certificate))
    fields = [(tag, value) for tag, value in _elements(signed) if tag != _VERSION]
    tag, validity = fields[3]
    if tag != _SEQUENCE:
        raise ValueError("no validity")
    _, (tag, value) = _elements(validity)
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280 §4.1.2.5.1: two digits of the year, 1950 to 2049
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each element (X.690 §8.1)."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length >= 0x80:
            n_bytes = length & 0x7F
            length, at = int.from_bytes(der[at : at + n_bytes], "big"), at + n_bytes
        if at + length > len(der):
            raise ValueError("cut off")
        yield tag, der[at : at + length]
        at += length
