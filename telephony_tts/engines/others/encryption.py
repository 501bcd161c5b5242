"""The certificates that a connection to an engine's server trusts, and why a connection failed."""

from __future__ import annotations

import os
import ssl

from telephony_tts.runtime.errors import EngineUnavailable


def client_context(ca_file: str | None, setting: str) -> ssl.SSLContext:
    """Trusts the system's authorities, or those of `ca_file` alone. Raises EngineUnavailable."""
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise EngineUnavailable(f"{setting}.ca_file: {ca_file} has no certificate that can be read: {error}") from error


def connection_problem(error: BaseException, setting: str) -> str:
    """Why a connection failed, and what an operator can do about a certificate that was refused. The first error of the
    chain says most: others only say that a connection failed."""
    why = str(error) or type(error).__name__
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, ssl.SSLCertVerificationError):
            refused = each.verify_message or str(each)
            return f"its certificate is refused ({refused}); check the host in {setting}.url, or set {setting}.ca_file"
        if isinstance(each, OSError) and each.errno is not None:
            why = os.strerror(each.errno) if each.errno > 0 else str(each.strerror)
        each = each.__cause__ or each.__context__
    return why
