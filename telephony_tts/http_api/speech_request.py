"""What an HTTP client wants to have spoken, whichever route it came by."""

from __future__ import annotations

from dataclasses import dataclass

from telephony_tts.ops.keys.key import NO_KEY, Key


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What to speak, and how. None: the server decides. `key` is the request's, and `lexicons` are those of its token,
    by name. `call` is the call whose caller hears it; None: the response has the speech. `door` is its
    name in the metrics, and `traceparent` the client's span."""

    text: str
    voice: str | None = None
    lang: str | None = None
    speed: float | None = None
    seed: int | None = None
    instruct: str | None = None
    lexicons: tuple[str, ...] = ()
    key: Key = NO_KEY
    call: str | None = None
    door: str = "http"
    traceparent: str | None = None
