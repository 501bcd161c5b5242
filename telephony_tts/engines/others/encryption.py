"""The certificates that a connection to an engine's server trusts, and what is wrong with the server's own."""

from __future__ import annotations

import ssl

from telephony_tts.errors import EngineUnavailable


def client_context(ca_file: str | None, setting: str) -> ssl.SSLContext:
    """Trusts the system's authorities, or those of `ca_file` alone. Raises EngineUnavailable."""
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise EngineUnavailable(f"{setting}.ca_file: {ca_file} has no certificate that can be read: {error}") from error


def certificate_problem(error: BaseException, setting: str) -> str | None:
    """What an operator can do about a certificate that was refused. None if the error is another one."""
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, ssl.SSLCertVerificationError):
            why = each.verify_message or str(each)
            return f"its certificate is refused ({why}); check the host in {setting}.url, or set {setting}.ca_file"
        each = each.__cause__ or each.__context__
    return None
