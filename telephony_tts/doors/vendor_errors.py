"""A vendor's form of errors, for its HTTP requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.door import Vendor


def at(path: re.Pattern[str], vendor: Vendor) -> Callable[[str], Callable[[TelephonyTTSError], Any] | None]:
    """`HttpRoutes.refusal` of a door: errors have the form of `vendor` at the paths that `path` matches."""

    def refusal(asked: str) -> Callable[[TelephonyTTSError], Any] | None:
        return (lambda error: _response(vendor, error)) if path.fullmatch(asked) else None

    return refusal


def _response(vendor: Vendor, error: TelephonyTTSError) -> Any:
    from fastapi.responses import Response

    from telephony_tts.http_api.responses import STATUS

    status = STATUS.get(error.code, 500)
    code = {"unauthorized": "INVALID_AUTH", "busy": "BUSY"}.get(error.code, error.code)
    refused = vendor.refuse(status, code, error.message)
    response = Response(refused.body, refused.status, dict(refused.headers), refused.content_type)
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    return response
