"""The settings of FreeSWITCH: its event socket, and how calls end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from telephony_tts.runtime.schema import Between

ESL_PASSWORD_VARIABLE = "TELEPHONY_SIP_BRIDGE_ESL_PASSWORD"


@dataclass(frozen=True, slots=True)
class FreeSwitchConfig:
    """The event socket, by which the bridge plays the server's files of speech."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, Between(1, 65_535)] = 8021
    password: str | None = field(default=None, repr=False)
    connect_timeout_s: Annotated[float, Between(0.1, 60)] = 4.0
    reply_timeout_s: Annotated[float, Between(0.1, 60)] = 4.0
    hang_up: bool = True
    remove_files: bool = True
    max_calls: Annotated[int, Between(1, 100_000)] = 500

    def conflicts(self) -> Iterator[str]:
        text = self.password
        if text is not None and not (text.isascii() and text.isprintable() and text and " " not in text):
            yield "password: must be visible ASCII characters without spaces, as in event_socket.conf.xml"
