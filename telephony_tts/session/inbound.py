"""The caller's audio for the bot, in the form, the codec and the rate that the bot asked for."""

from __future__ import annotations

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.transcoder import Transcoder
from telephony_tts.runtime.errors import AudioError
from telephony_tts.session.effects import Effect
from telephony_tts.wire.messages import Configure, ErrorEvent, InboundAudio, MediaAudio


class Inbound:
    """`out` is the session's own list."""

    def __init__(self, out: list[Effect]) -> None:
        self.form = "none"
        """ "none", "base64" or "binary"."""
        self._out = out
        self._codec: str | None = None
        self._rate_hz: int | None = None
        self.source: tuple[str, int] | None = None
        """The codec and the rate of the media leg's audio."""
        self._spoken = ("ulaw", 8000)
        self._transcoder: Transcoder | None = None

    def configure(self, message: Configure) -> None:
        """Take the settings of the caller's audio from the message."""
        self.form = message.inbound or self.form
        codec, rate_hz = message.inbound_codec, message.inbound_rate_hz
        if codec is None and rate_hz is None:
            return
        self._rate_hz = rate_hz or self._rate_hz
        if codec is not None:
            self._codec = codec
            if rate_hz is None and self._rate_hz not in CODECS[codec].rates_hz:
                self._rate_hz = None  # the bot asked for it with another codec
        self._choose()

    def media(self, heard: tuple[str, int], spoken: tuple[str, int]) -> None:
        """The media leg is there. It sends audio in the codec and rate `heard`, and gets `spoken`. The bot gets
        `spoken` too unless it asks for another format."""
        self.source, self._spoken = heard, spoken
        self._choose()

    def take(self, audio: MediaAudio) -> None:
        if self.form == "none":
            return
        payload = audio.payload if self._transcoder is None else self._transcoder.feed(audio.payload)
        if payload:
            self._out.append(InboundAudio(payload, audio.timestamp_ms or 0, self.form))

    def _choose(self) -> None:
        """Begin a new stream. A format that cannot be made is reported to the bot, which then gets the media leg's."""
        if self.source is None:
            return
        codec, rate_hz = self._spoken
        to_codec = self._codec or codec
        to_rate_hz = self._rate_hz or (rate_hz if rate_hz in CODECS[to_codec].rates_hz else 8000)
        try:
            self._transcoder = Transcoder(*self.source, to_codec, to_rate_hz)
        except AudioError as error:
            self._codec = self._rate_hz = None
            self._transcoder = None if self.source == self._spoken else Transcoder(*self.source, *self._spoken)
            self._out.append(ErrorEvent("bad_field", f"{error}; the caller comes as {codec} at {rate_hz} Hz"))
