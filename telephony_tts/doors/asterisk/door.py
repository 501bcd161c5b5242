"""Asterisk's chan_websocket: it dials the server, or the server dials it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from telephony_tts.doors.asterisk.codec import LEAD_MS, RATES_HZ
from telephony_tts.doors.asterisk.dial import call_of_dial, dial_in, serve_dialled
from telephony_tts.doors.asterisk.leg import AsteriskLeg
from telephony_tts.runtime.schema import Between, show
from telephony_tts.session.settings import MOST_PTIME_MS
from telephony_tts.transport.call import EngineCatalog
from telephony_tts.transport.connection import CallConnection, DirectConnection
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.registry import Registry
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.transport.settings import TransportSettings


@dataclass(frozen=True, slots=True)
class AsteriskSettings:
    """The section `asterisk`. `dial` lists media WebSockets that may be dialled: `ws://pbx:8088/media/` and what lies
    below it.

    `lead_ms` of our speech wait in Asterisk's own queue, but never more than `speech.ahead_ms`. It is at least a frame
    of any length: with less than the silence that keeps the queue filled, speech would never begin.
    """

    dial: tuple[str, ...] = ()
    lead_ms: Annotated[int, Between(MOST_PTIME_MS, 5_000)] = LEAD_MS

    def conflicts(self) -> Iterator[str]:
        for url in self.dial:
            if not url.startswith(("ws://", "wss://")):
                yield f"dial: {show(url)} is not the address of a WebSocket; expected one such as ws://127.0.0.1:8088/media/"


def lead_ms(settings: TransportSettings) -> int:
    """How much speech waits in Asterisk: no more than is synthesised ahead, and at least one frame."""
    return max(MOST_PTIME_MS, min(settings.of(AsteriskSettings).lead_ms, settings.speech.ahead_ms))


def _leg(connection: DirectConnection, settings: TransportSettings) -> AsteriskLeg:
    return AsteriskLeg(connection, lead_ms(settings))


def _control(
    connection: CallConnection, settings: TransportSettings, registry: Registry, catalog: EngineCatalog
) -> Coroutine[Any, Any, None] | None:
    url = dial_in(connection.target)
    if url is None:
        return None
    return serve_dialled(connection, url, settings.of(AsteriskSettings).dial, _leg, settings, registry, catalog)


def _call_in(head: RequestHead) -> str | None:
    return None if dial_in(head.target) is None else call_of_dial(head.target)


def _doubts(section: AsteriskSettings, speech: Any) -> Iterator[str]:
    if section.lead_ms > speech.ahead_ms:
        yield (
            f"asterisk.lead_ms: only {speech.ahead_ms} of {section.lead_ms} ms are used, because no "
            "more is synthesised ahead; raise speech.ahead_ms, or lower asterisk.lead_ms"
        )


DOOR = Door(
    "asterisk",
    media=MediaSide(AsteriskLeg, _leg, RATES_HZ, call_in=_call_in, control=_control),
    settings=AsteriskSettings,
    doubts=_doubts,
)
