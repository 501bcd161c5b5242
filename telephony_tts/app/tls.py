"""The server's certificate."""

from __future__ import annotations

import ssl

from telephony_tts.ops.certificate import expires_s
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.transport.settings import TlsFiles

_log = logs.get(__name__)

_MAX_PASSPHRASE_BYTES = 1024
"""OpenSSL's own limit."""
_WRONG_PASSPHRASE = (None, "BAD_DECRYPT")
"""The reasons that OpenSSL gives for a wrong passphrase. Most versions give none."""


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Load the server's certificate. Never asks a terminal for a passphrase. Raises ConfigError."""
    assert files.cert is not None and files.key is not None
    given = None if files.passphrase_file is None else _passphrase(files.passphrase_file)
    is_encrypted = False

    def passphrase() -> bytes:
        nonlocal is_encrypted
        is_encrypted = True
        if given is None:
            raise ConfigError(
                f"server.tls.key: {files.key} is encrypted; put its passphrase into a file and name it in "
                "server.tls.passphrase_file"
            )
        return given

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2  # whatever the system's configuration of OpenSSL allows
    tls.options |= ssl.OP_NO_RENEGOTIATION  # it costs a peer nothing and the server a signature
    try:
        tls.load_cert_chain(files.cert, files.key, passphrase)
    except (ssl.SSLError, OSError) as error:
        if is_encrypted and getattr(error, "reason", None) in _WRONG_PASSPHRASE:
            why = f"the passphrase in {files.passphrase_file} does not open {files.key}"
            raise ConfigError(f"server.tls.passphrase_file: {why}") from error
        raise ConfigError(f"server.tls: {files.cert} and {files.key} do not work: {error}") from error
    try:
        metrics.CERTIFICATE_EXPIRES.labels("server.tls.cert").set(expires_s(files.cert))
    except ValueError as error:  # it works, so the server starts
        _log.warning("certificate_end_unknown", why=str(error))
    return tls


def _passphrase(file: str) -> bytes:
    """The file's first line. Raises ConfigError."""
    try:
        with open(file, "rb") as lines:
            line = lines.readline(_MAX_PASSPHRASE_BYTES + len(b"\r\n") + 1)
    except OSError as error:
        raise ConfigError(f"server.tls.passphrase_file: cannot read {file}: {error.strerror}") from error
    passphrase = line.removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase:
        raise ConfigError(f"server.tls.passphrase_file: the first line of {file} is empty; expected the passphrase")
    if len(passphrase) > _MAX_PASSPHRASE_BYTES:
        limit = f"expected at most {_MAX_PASSPHRASE_BYTES} bytes"
        raise ConfigError(f"server.tls.passphrase_file: the first line of {file} is too long; {limit}")
    return passphrase
