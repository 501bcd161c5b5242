"""What a caller's voice has to cause, by PROTOCOL.md §5.16 and §6.9. No I/O: the times come from `NativeOracle`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torture.violations import Stops

MS = 1_000_000
SURE_MS = 600
"""A voice of this length must be noticed, with the `min_speech_ms` that scripts ask for."""
_NOTICED_NS = 1000 * MS
"""By when it must be noticed, from its begin."""
_AFTER_NS = 3000 * MS
"""A voice that has ended may be told of so much later at most."""
_SETTLED_NS = 300 * MS
"""Settings and speech that are older than this were there before the voice."""
_MOST_LATE_MS = 100
_DEFAULT_HOLD_OFF_MS = 500
_MOST_MIN_SPEECH_MS = 200


@dataclass(slots=True)
class _Voice:
    begin_ns: int
    end_ns: int | None
    """None while it lasts."""
    ms: int
    must_be_noticed: bool
    is_noticed: bool = False


class CallerRules:
    """One call. Each method gives what did not hold, "" if all holds."""

    def __init__(self, stops: Stops, sure_ms: int = SURE_MS) -> None:
        self._stops = stops
        self._sure_ms = sure_ms
        self._voices: list[_Voice] = []
        self._settings: dict[str, Any] = {}
        self._settings_ns = 0
        self.was_armed = False
        self._is_speaking = False
        self._has_interrupted = False
        self._must_interrupt = False

    @property
    def _is_armed(self) -> bool:
        return self._settings.get("barge_in") == "on"

    def configured(self, message: dict[str, Any], now_ns: int) -> None:
        """The bot sends `config`."""
        known = ("barge_in", "min_speech_ms", "hold_off_ms", "barge_in_action")
        changed = {name: message[name] for name in known if name in message}
        if not changed:
            return
        self._settings |= changed
        self._settings_ns = now_ns
        self.was_armed |= self._is_armed
        self._must_interrupt = False
        for voice in self._voices:
            if voice.end_ns is None or voice.end_ns + _NOTICED_NS > now_ns:
                voice.must_be_noticed = False

    def speaks(self, now_ns: int, ms: int) -> None:
        """The caller begins to speak, for so long."""
        is_short = self._settings.get("min_speech_ms", _MOST_MIN_SPEECH_MS) <= _MOST_MIN_SPEECH_MS
        is_sure = self._is_armed and is_short and ms >= self._sure_ms and now_ns - self._settings_ns > _SETTLED_NS
        # A voice that goes on where the one before has ended is the same speech.
        self._voices.append(_Voice(now_ns, None, ms, is_sure, self._is_speaking))

    def spoke(self, now_ns: int) -> None:
        """The caller has said it all. It may have taken longer than it should, and then what is heard is not known."""
        voice = self._voices[-1]
        voice.end_ns = now_ns
        if now_ns - voice.begin_ns > (voice.ms + _MOST_LATE_MS) * MS:
            voice.must_be_noticed = False

    def event(self, event: dict[str, Any], now_ns: int, speech_since_ns: int | None) -> str:
        """`caller` came. `speech_since_ns`: since when the caller has heard speech that goes on; None if that is not
        so, or if it is uncertain."""
        is_speaking = event["state"] == "speaking"
        if not self.was_armed:
            return f"caller {event['state']} came, and barge-in was never on"
        if is_speaking == self._is_speaking:
            return f"caller {event['state']} came twice"
        self._is_speaking = is_speaking
        if not is_speaking:
            must, did = self._must_interrupt, self._has_interrupted
            self._must_interrupt = self._has_interrupted = False
            if event["interrupted"] is not did:
                return f"caller silent says interrupted {event['interrupted']}, and turns were interrupted: {did}"
            return "the caller spoke over a turn, and did not interrupt it" if must else ""
        heard = [voice for voice in self._voices if voice.begin_ns <= now_ns <= self._latest_ns(voice)]
        if not heard:
            return "caller speaking came, and the caller did not speak"
        for voice in heard:
            voice.is_noticed = True
        hold_off_ns = self._settings.get("hold_off_ms", _DEFAULT_HOLD_OFF_MS) * MS
        begin_ns = heard[-1].begin_ns
        self._must_interrupt = (
            self._is_armed
            and self._settings.get("barge_in_action", "clear") == "clear"
            and begin_ns - self._settings_ns > _SETTLED_NS
            and speech_since_ns is not None
            and speech_since_ns + hold_off_ns + _SETTLED_NS < begin_ns
            and self._stops.within(speech_since_ns, now_ns) < _MOST_LATE_MS * MS
        )
        return ""

    def bot_acts(self) -> None:
        """The bot stops or pauses the speech, so that there may be nothing to interrupt."""
        self._must_interrupt = False

    def interrupts(self, turn: str, how: str) -> str:
        """A turn is cleared or paused by the caller's voice."""
        if not self._is_speaking:
            return f"{turn} is {how} by the caller, and no caller speaking came before"
        self._must_interrupt = False
        self._has_interrupted |= how == "cleared"
        return ""

    def finish(self, end_ns: int) -> list[str]:
        """The call is over, or the server has noticed its end, at this time."""
        wrong = []
        for voice in self._voices:
            lost_ns = self._stops.within(voice.begin_ns, voice.begin_ns + _NOTICED_NS)
            is_over = end_ns < voice.begin_ns + _NOTICED_NS + lost_ns
            is_whole = voice.end_ns is not None and not is_over and lost_ns < _MOST_LATE_MS * MS
            if voice.must_be_noticed and not voice.is_noticed and is_whole:
                wrong.append(f"the caller spoke for {voice.ms} ms, and no caller came")
        return wrong

    def _latest_ns(self, voice: _Voice) -> float:
        if voice.end_ns is None:
            return math.inf
        return voice.end_ns + _AFTER_NS + self._stops.within(voice.begin_ns, voice.end_ns + _AFTER_NS)
