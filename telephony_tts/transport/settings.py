"""What the transport is told once, at start-up."""

from __future__ import annotations

import hmac
import ssl
from dataclasses import dataclass, field

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire.asterisk import LEAD_MS


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Addresses, secrets and limits of the server; `speech` is what a call starts with."""

    speech: SessionSettings = field(default_factory=SessionSettings)
    host: str = "127.0.0.1"
    port: int = 8080
    tokens: tuple[str, ...] = field(default=(), repr=False)
    metrics_without_token: bool = True
    tls: ssl.SSLContext | None = None
    public_url: str | None = None
    origins: tuple[str, ...] = ()
    """Web pages that may use the server, beside those of its own host; "*" for all."""
    twilio_auth_token: str | None = field(default=None, repr=False)
    asterisk_urls: tuple[str, ...] = ()
    """What may be dialled when somebody asks for it."""
    asterisk_lead_ms: int = LEAD_MS
    drain_s: float = 30.0
    max_message_bytes: int = 65_536
    slow_reader_s: float = 5.0
    ping_interval_s: float = 20.0
    max_calls: int = 200
    call_claim_s: float = 20.0
    media_start_s: float = 10.0
    max_frame_lateness_ms: int = 100
    bot_url: str | None = field(default=None, repr=False)
    bot_token: str | None = field(default=None, repr=False)
    bot_connect_timeout_s: float = 5.0
    bot_inbound: str = "none"

    def knows(self, token: bytes) -> bool:
        """Whether `token` opens the server; without configured tokens everything does.

        Every token is compared, so the time taken does not tell which one was nearly right.
        """
        return not self.tokens or any([hmac.compare_digest(token, known.encode()) for known in self.tokens])
