"""HTTP Message Signatures as Genesys Cloud makes them (docs/protocol/genesys.md).

The form is RFC 9421, in the profile of Genesys: one signature, HMAC-SHA256, over the target and the headers that name
the session. The clock is an argument.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping

COMPONENTS = (
    "@request-target",
    "@authority",
    "audiohook-organization-id",
    "audiohook-session-id",
    "audiohook-correlation-id",
    "x-api-key",
)
"""What a signature must cover. It may cover more headers."""

MIN_NONCE_CHARS = 22
MAX_AGE_S = 10
MAX_SKEW_S = 3
"""By how much the signer's clock may be ahead of ours."""

# One member of a dictionary (RFC 8941 §3.2): a list of strings, and parameters that are strings or whole numbers.
_INPUT = re.compile(
    r"""([a-z*][a-z0-9_.*-]*)=(\((?:"[a-z0-9@-]+"(?:[ ]"[a-z0-9@-]+")*)?\)((?:;[a-z]+=(?:"[^"\\]*"|[0-9]{1,15}))*))"""
)
_PARAMETER = re.compile(r';([a-z]+)=(?:"([^"\\]*)"|([0-9]+))')
_COMPONENT = re.compile(r'"([^"]+)"')
_SIGNATURE = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]+={0,2}):")


class SignatureVerifier:
    """Checks the handshakes of one account. It remembers each nonce as long as its signature could be used again."""

    def __init__(
        self, api_key: str, secret: bytes, is_new: Callable[[str], bool] = lambda nonce: True
    ) -> None:
        """`is_new` remembers a nonce. It is False if another process of this server has had it before."""
        self._is_new = is_new
        self._api_key = api_key
        self._secret = secret
        self._used: dict[str, float] = {}
        """Each nonce, and until when it is remembered. The oldest stands first."""

    def flaw(self, headers: Mapping[str, str], target: str, authorities: tuple[str, ...], now_s: float) -> str | None:
        """What is wrong with the signature of a request; None if it is valid.

        `headers` has the request's headers by their names in small letters. `target` is its path with the query.
        `authorities` are the spellings of the server's name that the signer may have dialled. `now_s` is in seconds
        since 1970. Never raises.
        """
        found = _INPUT.fullmatch(headers.get("signature-input", "").strip())
        given = _SIGNATURE.fullmatch(headers.get("signature", "").strip())
        if found is None or given is None or found[1] != given[1]:
            return "Signature and Signature-Input must have one signature of the same label"
        parameters = {name: text or number for name, text, number in _PARAMETER.findall(found[3])}
        components = _COMPONENT.findall(found[2].partition(")")[0])
        if len(set(components)) != len(components):
            return "a component is signed twice"
        if missing := [name for name in COMPONENTS if name not in components]:
            return f"the signature does not cover {', '.join(missing)}"
        if parameters.get("alg", "hmac-sha256") != "hmac-sha256":
            return "the algorithm must be hmac-sha256"
        if not self._is_signed(found[2], components, given[2], headers, target, authorities):
            return "the signature does not match; is server.public_url what Genesys dials, and the secret the same?"
        key, nonce = parameters.get("keyid", ""), parameters.get("nonce", "")
        if key != self._api_key or headers.get("x-api-key", "").strip() != key:
            return "keyid and X-API-KEY must be the configured key"
        created_s, expires_s = parameters.get("created"), parameters.get("expires")
        if created_s is None or not created_s.isdecimal() or not (expires_s or "0").isdecimal():
            return "created is missing, or it or expires is not a whole number"
        if int(created_s) > now_s + MAX_SKEW_S:
            return "the signature is from the future; compare the clocks"
        if int(created_s) + MAX_AGE_S < now_s or (expires_s is not None and int(expires_s) < now_s):
            return "the signature has expired"
        return self._flaw_of_nonce(nonce, now_s)

    def _is_signed(
        self,
        signed_as: str,
        components: list[str],
        given: str,
        headers: Mapping[str, str],
        target: str,
        authorities: tuple[str, ...],
    ) -> bool:
        try:
            signature = base64.b64decode(given, validate=True)
        except ValueError:
            return False
        matches = []
        for authority in authorities:
            values = {"@request-target": target, "@authority": authority}
            lines = []
            for name in components:
                value = values.get(name) if name.startswith("@") else headers.get(name)
                if value is None:
                    return False
                lines.append(f'"{name}": {value.strip()}')
            base = signature_base(lines, signed_as)
            matches.append(hmac.compare_digest(hmac.digest(self._secret, base, "sha256"), signature))
        return any(matches)

    def _flaw_of_nonce(self, nonce: str, now_s: float) -> str | None:
        while self._used and (oldest := next(iter(self._used))) and self._used[oldest] < now_s:
            del self._used[oldest]
        if len(nonce) < MIN_NONCE_CHARS:
            return f"the nonce must have at least {MIN_NONCE_CHARS} characters"
        if nonce in self._used or not self._is_new(nonce):
            return "the nonce was used before: this request is a replay"
        # Only nonces of valid signatures come here, so a stranger cannot fill the memory.
        self._used[nonce] = now_s + MAX_AGE_S + MAX_SKEW_S
        return None


def signature_base(lines: list[str], signed_as: str) -> bytes:
    """What is signed (RFC 9421 §2.5): a line for each component, and the list of them with its parameters."""
    return "\n".join([*lines, f'"@signature-params": {signed_as}']).encode("utf-8", "surrogatepass")
