"""Traces of turns, as calls need them: `telephony_tts.app.tracing` implements them with OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from telephony_tts.session.session import TurnEnd
from telephony_tts.session.turn import Turn

if TYPE_CHECKING:
    from telephony_tts.transport.call import Call


class CallTraces(Protocol):
    """The traces of one call. None of its methods waits or raises."""

    def trace_id(self, turn: Turn | None) -> str | None:
        """The trace that a turn which is not over belongs to. None if it is not recorded, or is over already."""

    def ended(self, turn: Turn, event: TurnEnd) -> None:
        """The turn is over: its spans can be exported."""


class Tracing(Protocol):
    """Makes the traces of all calls."""

    def of_call(self, call: Call) -> CallTraces:
        """For a call that begins now."""
