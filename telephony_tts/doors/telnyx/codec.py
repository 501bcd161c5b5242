"""Telnyx media streaming; Telnyx is the WebSocket client (docs/protocol/telnyx.md).

The codec that `start` names is that of the caller's audio. The codec of our speech is what the operator set in
`stream_bidirectional_codec`. Telnyx does not tell it, so the address of the leg does if the two differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from telephony_tts.wire.fields import Fields, Wire, clean, quote
from telephony_tts.wire.media_stream import MediaStreamCodec, StreamKeys, swapped, whole
from telephony_tts.wire.messages import Frame, FromMedia, Invalid, MediaAudio, MediaStart, ToMedia
from telephony_tts.wire.query import MAX_OPTIONS

CODECS = {"pcmu": "ulaw", "ulaw": "ulaw", "pcma": "alaw", "alaw": "alaw", "l16": "pcm", "pcm": "pcm"}
RATES_HZ = (8000, 16000, 24000, 48000)
BYTE_ORDERS = ("little", "big")

WINDOW = 5
"""So many messages of the caller's audio (100 ms) wait for one before them. Then that one counts as lost."""

PTIME_MS = 20
"""Telnyx takes no message with less audio."""


@dataclass(frozen=True, slots=True)
class TelnyxOptions:
    """The options in the address of a leg. None: as `start` says. `is_big_endian` is the byte order of L16."""

    codec: str | None = None
    rate_hz: int | None = None
    is_big_endian: bool = False


def parse_options(path: str) -> TelnyxOptions | Invalid:
    """Read the options of a request target such as `/media/telnyx?codec=pcmu`. Other options are ignored."""
    try:
        given = dict(parse_qsl(path.partition("?")[2].partition("#")[0], max_num_fields=MAX_OPTIONS))
    except ValueError:
        return Invalid("bad_option", f"more than {MAX_OPTIONS} options in the address")
    codec, rate, order = given.get("codec"), given.get("rate"), given.get("byte_order", "little")
    if codec is not None and codec.lower() not in CODECS:
        return _bad("codec", codec, tuple(CODECS))
    if rate is not None and rate not in map(str, RATES_HZ):
        return _bad("rate", rate, tuple(map(str, RATES_HZ)))
    if order not in BYTE_ORDERS:
        return _bad("byte_order", order, BYTE_ORDERS)
    ours = None if codec is None else CODECS[codec.lower()]
    if rate not in (None, "8000") and ours in ("ulaw", "alaw"):
        return _bad("rate", rate or "", ("8000",))
    return TelnyxOptions(ours, None if rate is None else int(rate), order == "big")


def _bad(name: str, value: str, allowed: tuple[str, ...]) -> Invalid:
    return Invalid("bad_option", f"{name}={quote(clean(value))}: expected one of {', '.join(allowed)}")


class TelnyxCodec(MediaStreamCodec):
    """The codec of one media leg."""

    keys = StreamKeys(
        "Telnyx",
        stream="stream_id",
        call="call_control_id",
        parameters="custom_parameters",
        media_format="media_format",
        rate="sample_rate",
        formats={"pcmu": ("ulaw", (8000,)), "pcma": ("alaw", (8000,)), "l16": ("pcm", RATES_HZ)},
        facts=("from", "to", "call_session_id", "client_state"),
    )

    def __init__(self, options: TelnyxOptions | None = None) -> None:
        super().__init__()
        self._options = options or TelnyxOptions()
        self._swaps_inbound = self._swaps_outbound = False
        self._in_order = InOrder()

    def decode(self, data: str | bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        if not want_audio:
            self._in_order.begin_again()
        return super().decode(data, want_audio, is_text)

    def _event(self, f: Fields, want_audio: bool) -> FromMedia | None:
        if f.get("event") == "error":
            told = f.get("payload")
            detail = Fields(told) if isinstance(told, dict) else Fields({})
            what = f"{quote(detail.get('title'))}: {quote(detail.get('detail'))}"
            return Invalid("peer_error", f"Telnyx says {quote(detail.get('code'))} {what}")
        return super()._event(f, want_audio)

    def _started(self, call: str, stream: str, codec: str, rate_hz: int, parameters: dict[str, str]) -> MediaStart:
        options = self._options
        spoken = options.codec or codec
        spoken_hz = options.rate_hz or (rate_hz if spoken == codec == "pcm" else 8000)
        self._swaps_inbound = options.is_big_endian and codec == "pcm"
        self._swaps_outbound = options.is_big_endian and spoken == "pcm"
        return MediaStart(
            call, stream, spoken, spoken_hz if spoken == "pcm" else 8000, parameters, ptime_ms=PTIME_MS,
            caller_format=(codec, rate_hz),
        )

    def _audio(self, media: Fields) -> MediaAudio | None:
        audio = super()._audio(media)
        if audio is None:
            return None
        if self._swaps_inbound:
            audio = MediaAudio(swapped(audio.payload), audio.timestamp_ms)
        return self._in_order.put(whole(media.get("chunk")), audio)

    def encode(self, message: ToMedia) -> Wire:
        if self._swaps_outbound and type(message) is Frame:
            message = Frame(swapped(message.payload))
        return super().encode(message)

    def _begin(self, stream: str, start: MediaStart) -> None:
        # Telnyx needs no name of the stream in what it gets.
        self._media_head = b'{"event":"media","media":{"payload":"'
        self._mark_head, self._mark_tail = '{"event":"mark","mark":{"name":', "}}"
        self._clear = b'{"event":"clear"}'


class InOrder:
    """Puts the caller's audio in order by its `chunk`: Telnyx does not promise one.

    Audio in order passes at once. Audio that came early waits for at most `WINDOW` messages. Audio whose place has
    passed is dropped, unless as many came in a row: then the numbers have begun anew.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        self._early: dict[int, MediaAudio] = {}
        self._n_late = 0

    def begin_again(self) -> None:
        """Take the next message as the first one."""
        self._next = None
        self._n_late = 0
        self._early.clear()

    def put(self, chunk: int | None, audio: MediaAudio) -> MediaAudio | None:
        """The audio that is in order now, as one message; None if there is none. Without a number audio passes."""
        if chunk is None:
            return audio
        if self._next is None:
            self._next = chunk
        if chunk < self._next or chunk in self._early:
            self._n_late += 1
            if self._n_late < WINDOW:
                return None
            # So many in a row: the numbers begin anew.
            self.begin_again()
            self._next = chunk
        self._n_late = 0
        self._early[chunk] = audio
        if self._next not in self._early:
            if len(self._early) < WINDOW:
                return None
            self._next = min(self._early)
        ready = []
        while (found := self._early.pop(self._next, None)) is not None:
            ready.append(found)
            self._next += 1
        if len(ready) == 1:
            return ready[0]
        return MediaAudio(b"".join(each.payload for each in ready), ready[0].timestamp_ms)


def options_of(path: str) -> TelnyxOptions:
    """The options of a request target that was checked before."""
    options = parse_options(path)
    return TelnyxOptions() if isinstance(options, Invalid) else options
