"""POST /originate: a client with the token orders an outgoing call.

    {"endpoint": "PJSIP/+4930123456@trunk", "caller_id": "Shop <+4930999>", "call": "order-17",
     "variables": {"LANG": "de"}, "timeout_s": 30, "wait": true}

Only `endpoint` is required. The answer is JSON with the call's name, by which the bot joins, or with the error.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from sip_bridge import metrics
from sip_bridge.ari.application import NewCallRefused
from sip_bridge.ari.call import AriCall, NotAnswered, OriginateRequest
from sip_bridge.ari.config import MAX_ORDER_VARIABLES, ORIGINATE_TOKEN_VARIABLE, OriginateConfig, is_variable
from sip_bridge.ari.connection import AriLost, AriRefused
from telephony_tts.wire.fields import CALL_NAME

_KEYS = ("endpoint", "caller_id", "call", "variables", "timeout_s", "wait")
_MAX_TEXT = 256

Result = tuple[HTTPStatus, dict[str, Any]]


class Originator:
    """Answers requests; `make` starts the call (AriApplication.originate)."""

    def __init__(self, settings: OriginateConfig, make: Callable[[OriginateRequest], Awaitable[AriCall]]) -> None:
        self._settings = settings
        self._make = make

    async def answer(self, authorization: str, body: bytes) -> Result:
        """The status and the JSON of the answer to one request. Raises nothing."""
        status, told = await self._answer(authorization, body)
        kind = "made" if status in (HTTPStatus.OK, HTTPStatus.CREATED) else "refused"
        metrics.ORIGINATED.labels("not_answered" if told.get("error") == "not_answered" else kind).inc()
        return status, told

    async def _answer(self, authorization: str, body: bytes) -> Result:
        token = self._settings.token
        if token is None:
            why = f"starting calls is off: set ari.originate.token or {ORIGINATE_TOKEN_VARIABLE}"
            return _no(HTTPStatus.FORBIDDEN, "off", why)
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            return _no(HTTPStatus.UNAUTHORIZED, "unauthorized", "Authorization: Bearer with the token is needed")
        try:
            order, waits = self._read(body)
        except ValueError as error:
            return _no(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        try:
            call = await self._make(order)
            if not waits:
                return HTTPStatus.CREATED, {"call": order.call, "state": "calling"}
            await asyncio.shield(call.answered)
            return HTTPStatus.OK, {"call": order.call, "state": "answered"}
        except NewCallRefused as error:
            return _no(HTTPStatus.SERVICE_UNAVAILABLE, "no_room", str(error))
        except AriLost as error:
            return _no(HTTPStatus.SERVICE_UNAVAILABLE, "asterisk_lost", str(error))
        except AriRefused as error:
            # Asterisk answers 500 and no more for an unknown or unregistered endpoint.
            hint = "; does Asterisk know the endpoint, and is that registered?" if error.status == 500 else ""
            return _no(HTTPStatus.BAD_GATEWAY, "asterisk_refused", f"Asterisk does not make the call: {error}{hint}")
        except NotAnswered as error:
            status, told = _no(HTTPStatus.CONFLICT, error.reason, f"the call was not answered: {error}")
            return status, {**told, "call": order.call, "cause": error.cause}

    def _read(self, body: bytes) -> tuple[OriginateRequest, bool]:
        """The order, and whether the answer waits until the call is answered. Raises ValueError with the problem."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("the body is not JSON") from None
        if not isinstance(given, dict):
            raise ValueError(f"the body must be an object with {', '.join(_KEYS)}")
        unknown = [str(key)[:40] for key in given if key not in _KEYS]
        if unknown:
            raise ValueError(f"{', '.join(unknown[:5])}: not known; known are {', '.join(_KEYS)}")
        endpoint = _text(given, "endpoint")
        if not endpoint:
            raise ValueError("endpoint: is missing; expected the endpoint to call, such as PJSIP/100")
        # No comma, ampersand or parenthesis: Asterisk would read options or several endpoints.
        if not endpoint.isascii() or not endpoint.isprintable() or set(endpoint) & set(" ,&|()^\"'\\"):
            raise ValueError("endpoint: must be one endpoint in visible ASCII characters without , & | ( ) ^ quotes")
        allowed = self._settings.endpoints
        if not any(endpoint.startswith(beginning) and endpoint != beginning for beginning in allowed):
            raise ValueError(f"endpoint: must begin with {' or '.join(allowed)} (ari.originate.endpoints)")
        call = _text(given, "call") or f"out-{secrets.token_hex(8)}"
        if not CALL_NAME.fullmatch(call):
            raise ValueError("call: must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -")
        timeout_s, longest_s = given.get("timeout_s"), self._settings.ring_timeout_s
        if timeout_s is None:
            timeout_s = longest_s
        if type(timeout_s) is not int or not 1 <= timeout_s <= longest_s:
            raise ValueError(f"timeout_s: must be a whole number from 1 to {longest_s} (ari.originate.ring_timeout_s)")
        waits = given.get("wait", False)
        if not isinstance(waits, bool):
            raise ValueError("wait: must be true or false")
        caller_id, variables = _text(given, "caller_id"), _variables(given.get("variables"))
        return OriginateRequest(endpoint, call, timeout_s, caller_id, variables), waits


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name}: must be printable text of at most {_MAX_TEXT} characters")
    return value


def _variables(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_ORDER_VARIABLES:
        raise ValueError(f"variables: must be an object of at most {MAX_ORDER_VARIABLES} texts")
    for name, text in value.items():
        if not is_variable(name) or not isinstance(text, str) or len(text) > 1024:
            raise ValueError("variables: names are those of channel variables, values texts of at most 1024 characters")
    return dict(value)


def _no(status: HTTPStatus, error: str, message: str) -> Result:
    return status, {"error": error, "message": message}
