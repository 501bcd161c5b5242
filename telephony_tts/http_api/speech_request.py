"""What an HTTP client wants to have spoken, whichever route it came by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What to speak, and how. None: the server decides. `lexicons` are those of the request's token, by name. `call`
    is the call whose caller hears it; None: the response has the speech. `door` is one of `metrics.DOORS`, and
    `traceparent` the client's span."""

    text: str
    voice: str | None = None
    lang: str | None = None
    speed: float | None = None
    seed: int | None = None
    instruct: str | None = None
    lexicons: tuple[str, ...] = ()
    call: str | None = None
    door: str = "http"
    traceparent: str | None = None
