"""Bandwidth media streaming; Bandwidth is the WebSocket client (docs/protocol/bandwidth.md).

All audio is 8 kHz μ-law, base64 in JSON. There are no marks in this dialect, and no keys: not from the caller, and not
to the telephone.
"""

from __future__ import annotations

from typing import Any

from telephony_tts.wire.fields import BadField, Fields, quote
from telephony_tts.wire.media_stream import NO_AUDIO, MediaStreamCodec, StreamKeys
from telephony_tts.wire.messages import FromMedia, Invalid, MediaStart, MediaStop

EVENTS = ("start", "media", "stop")


class BandwidthCodec(MediaStreamCodec):
    """The codec of one media leg."""

    keys = StreamKeys(
        "Bandwidth",
        stream="streamId",
        call="callId",
        parameters="streamParams",
        media_format="mediaFormat",
        rate="sampleRate",
        formats={"pcmu": ("ulaw", (8000,))},
        event="eventType",
    )

    def _event(self, f: Fields, want_audio: bool) -> FromMedia | None:
        """The caller's audio stands beside `eventType`, not in an object of its own."""
        event = f.get("eventType")
        if event not in EVENTS:
            known = f"known events: {', '.join(EVENTS)}"
            return Invalid("unknown_type", f'"eventType" {quote(event)} is not known; {known}')
        if event == "start":
            return self._start(f)
        if self.stream is None:
            raise BadField(f'"{event}" came before "start"', "bad_order")
        if event == "stop":
            return MediaStop()
        return self._audio(f) if want_audio else NO_AUDIO

    def _start(self, f: Fields) -> MediaStart:
        """`metadata` is what other carriers call `start`. The parameters stand beside it, each track has its format."""
        told = f.inner("metadata")
        start = {name: told.get(name) for name in ("callId", "streamId")}
        start |= {"mediaFormat": _callers_format(told.get("tracks")), "streamParams": f.get("streamParams")}
        return super()._start(Fields({"start": start}))

    def _begin(self, stream: str, start: MediaStart) -> None:
        self._media_head = b'{"eventType":"playAudio","media":{"contentType":"audio/pcmu","payload":"'
        self._clear = b'{"eventType":"clear"}'


def _callers_format(tracks: Any) -> Any:
    """The format of the caller's track; None if there is no such track."""
    known = [track for track in tracks if isinstance(track, dict)] if isinstance(tracks, list) else []
    return next((track.get("mediaFormat") for track in known if track.get("name") == "inbound"), None)
