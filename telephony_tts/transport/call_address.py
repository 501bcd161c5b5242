"""The call that a request names in its address or its headers, read as the leg itself will read it.

With several front processes this decides, before the handshake is answered, which front gets the connection.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from telephony_tts.transport.door import Doors, open_dialect, split_call
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.wire.fields import CALL_NAME
from telephony_tts.wire.query import parse_stream_query
from telephony_tts.wire.vendor import Refused, query_of

_IN_CONSOLE = re.compile(r"/console/api/calls/([^/?]+)(?:/sound)?(?:\?.*)?")
"""A call that a person hears or ends in the console."""


def call_in(head: RequestHead, doors: Doors) -> str | None:
    """The call of a complete head without a flaw. None if it names none, or one that will be refused."""
    target = head.target
    media = doors.media_of(target)
    if target.partition("?")[0] == "/v1/stream" or (media is not None and media.reads_options):
        return getattr(parse_stream_query(target), "call", None)  # Invalid has none
    if media is not None:
        return None if media.call_in is None else media.call_in(head)
    vendor = doors.vendor_of(target)
    if vendor is None:
        return None
    dialect = open_dialect(vendor, target)
    call = None if isinstance(dialect, Refused) else dialect.options.call
    return call if call is not None and CALL_NAME.fullmatch(call) else None


def call_of_http(target: str) -> str | None:
    """The call that an HTTP request joins, hears or ends. None if it does none of it, or will be refused."""
    if (shown := _IN_CONSOLE.fullmatch(target)) is not None:
        return unquote(shown[1])
    call, rest = split_call(target)
    if call is None:
        call = query_of(rest).get("call")
    return call if call is not None and CALL_NAME.fullmatch(call) else None
