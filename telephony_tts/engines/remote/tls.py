"""TLS between fronts and engine servers: the files of `engines.remote.tls`, read and checked once at the start."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from telephony_tts.runtime.errors import ConfigError

WHERE = "engines.remote.tls"


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """PEM texts. `ca` must have signed the other side's certificate. `cert` and `key` are this side's own.

    A front connects with TLS if it has `ca`. An engine server listens with TLS if it has `cert`. If it has `ca` too, it
    accepts only fronts with a certificate.
    """

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


def read_tls(ca: str | None, cert: str | None, key: str | None) -> TlsKeys | None:
    """The content of the files, None without any. Raises ConfigError if they cannot be used."""
    if ca is None and cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def passphrase() -> str:
        raise ConfigError(f"{WHERE}.key: {key} is encrypted; expected a key without a passphrase")

    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"{WHERE}.ca: no certificate can be read from {ca}: {error}") from error
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, passphrase)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"{WHERE}: {cert} and {key} do not work: {error}") from error
    return TlsKeys(*(None if file is None else Path(file).read_bytes() for file in (ca, cert, key)))
