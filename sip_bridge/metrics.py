"""Every metric of the bridge, in one list. `/metrics` is `render()`.

Label values come from the fixed sets below, never from a peer. Every series exists from the start, so that PromQL's
increase() counts the first event too.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sip_bridge.audiosocket.frames import BAD_KINDS
from telephony_tts.runtime.metrics import LATENESS_BUCKETS_MS, LoopHistogram

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

ENDS = (
    "hangup",
    "finished",
    "server_draining",
    "server_refused",
    "server_unreachable",
    "server_lost",
    "no_uuid",
    "bad_peer",
    "slow_reader",
    "queue_overflow",
    "asterisk_lost",
    "asterisk_refused",
    "media_failed",
    "not_answered",
    "refused",
    "taken",
    "drain",
    "failed",
)
"""Why a call ended.

- hangup: the phone hung up; finished: the bot left; server_draining: the server stops.
- server_refused, server_unreachable, server_lost: the server refused the call, was not reached, or was lost.
- no_uuid, bad_peer, slow_reader: the AudioSocket peer sent no UUID, sent garbage, or did not read.
- queue_overflow: the server sent far more speech than was played.
- asterisk_lost, asterisk_refused, media_failed, not_answered: with ARI, Asterisk was lost, refused a request, did not
  reach the server with its media, or an outgoing call was not answered.
- taken: another bridge took the FreeSWITCH call from this one, which did not answer.
- refused: the bridge had no room. drain, failed: the bridge stopped, or had a fault.
"""

REFUSALS = ("not_allowed", "busy", "draining")
BAD_INPUT = (
    *BAD_KINDS,
    "asterisk_error",
    "digit_flood",
    "server_message",
    "server_audio",
    "server_mark_flood",
    "ari_message",
    "rtp_stranger",
    "rtp_unreadable",
    "freeswitch_event",
)

FILE_BUCKETS_MS = (5, 10, 20, 35, 50, 75, 100, 125, 150, 200, 300, 500, 1000, 3000)
QUEUE_BUCKETS_MS = (0, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1000, 2000)

CALLS_LIVE = Gauge("telephony_sip_bridge_calls_live", "Live connections of Asterisk.", registry=REGISTRY)
CALLS = Counter("telephony_sip_bridge_calls_total", "Calls ended, by reason.", ["reason"], registry=REGISTRY)
REFUSED = Counter(
    "telephony_sip_bridge_refused_total", "Connections refused, by reason.", ["reason"], registry=REGISTRY
)
BAD = Counter(
    "telephony_sip_bridge_bad_input_total", "Frames and messages that cannot be used.", ["kind"], registry=REGISTRY
)
CONNECT_RETRIES = Counter(
    "telephony_sip_bridge_connect_retries_total", "Repeated attempts to connect to the server.", registry=REGISTRY
)

FRAME_LATENESS_MS = LoopHistogram(
    "telephony_sip_bridge_frame_lateness_ms",
    "How much later than scheduled a frame was written to Asterisk.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)
QUEUE_MS = LoopHistogram(
    "telephony_sip_bridge_queue_ms",
    "Speech queued for Asterisk when a frame of speech was written, that frame included.",
    buckets=QUEUE_BUCKETS_MS,
    registry=REGISTRY,
)
SPEECH_DELAY_MS = LoopHistogram(
    "telephony_sip_bridge_speech_delay_ms",
    "Delay that the bridge adds to speech: from receiving a frame of the server, with an empty queue, to writing it to"
    " Asterisk.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)
CALLER_DELAY_MS = LoopHistogram(
    "telephony_sip_bridge_caller_delay_ms",
    "Delay that the bridge adds to the caller's audio: from reading it from Asterisk to writing it to the server.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)
SPEECH_FRAMES = Counter("telephony_sip_bridge_speech_frames_total", "Frames of speech written.", registry=REGISTRY)
SILENCE_FRAMES = Counter("telephony_sip_bridge_silence_frames_total", "Frames of silence written.", registry=REGISTRY)
UNDERRUNS = Counter(
    "telephony_sip_bridge_underruns_total",
    "Silences of at most 100 ms between two frames of speech: frames of the server came late.",
    registry=REGISTRY,
)
CALLER_BYTES_DROPPED = Counter(
    "telephony_sip_bridge_caller_bytes_dropped_total",
    "Bytes of callers' audio that were dropped because the server did not read.",
    registry=REGISTRY,
)

ARI_CONNECTED = Gauge("telephony_sip_bridge_ari_connected", "1 while Asterisk's ARI is connected.", registry=REGISTRY)
ARI_CONNECT_RETRIES = Counter(
    "telephony_sip_bridge_ari_connect_retries_total", "Failed attempts to connect to Asterisk's ARI.", registry=REGISTRY
)
ARI_REQUEST_FAILURES = ("refused", "timeout", "lost")
ARI_REQUESTS_FAILED = Counter(
    "telephony_sip_bridge_ari_requests_failed_total",
    "Requests that failed: refused by Asterisk, timed out, or lost with the connection.",
    ["kind"],
    registry=REGISTRY,
)
ARI_LEFTOVERS = Counter(
    "telephony_sip_bridge_ari_leftovers_total",
    "Channels and bridges of ended calls that Asterisk still had and was told to remove.",
    registry=REGISTRY,
)
ORIGINATES = ("made", "not_answered", "refused")
ORIGINATED = Counter(
    "telephony_sip_bridge_originate_requests_total", "Requests for outgoing calls.", ["outcome"], registry=REGISTRY
)
RTP_MISSED = ("lost", "late", "doubled")
RTP_PACKETS_MISSED = Counter(
    "telephony_sip_bridge_rtp_packets_missed_total",
    "RTP packets that were lost, came too late to be played, or came twice.",
    ["kind"],
    registry=REGISTRY,
)

FILE_OUTCOMES = ("playing", "played", "failed", "again")
FILES = Counter(
    "telephony_sip_bridge_files_total",
    "Reports to the server about FreeSWITCH's files: playing, played, failed, or all to be sent again.",
    ["outcome"],
    registry=REGISTRY,
)
FILE_START_MS = LoopHistogram(
    "telephony_sip_bridge_file_start_ms",
    "From the command to play a file to FreeSWITCH's event that it plays.",
    buckets=FILE_BUCKETS_MS,
    registry=REGISTRY,
)
BREAK_MS = LoopHistogram(
    "telephony_sip_bridge_break_ms",
    "From the command to stop a file to FreeSWITCH's event that it has ended.",
    buckets=FILE_BUCKETS_MS,
    registry=REGISTRY,
)
ESL_CONNECT_RETRIES = Counter(
    "telephony_sip_bridge_esl_connect_retries_total",
    "Failed attempts to connect to FreeSWITCH's event socket.",
    registry=REGISTRY,
)

for _counter, _values in (
    (CALLS, ENDS),
    (REFUSED, REFUSALS),
    (BAD, BAD_INPUT),
    (FILES, FILE_OUTCOMES),
    (ARI_REQUESTS_FAILED, ARI_REQUEST_FAILURES),
    (ORIGINATED, ORIGINATES),
    (RTP_PACKETS_MISSED, RTP_MISSED),
):
    for _value in _values:
        _counter.labels(_value)


def render() -> tuple[bytes, str]:
    """The body of `/metrics` and its content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


def value(sample: str, **labels: str) -> float:
    """The value of one sample by its exposed name. Raises KeyError for an unknown one."""
    found = REGISTRY.get_sample_value(sample, labels)
    if found is None:
        raise KeyError(f"{sample} {labels}")
    return found
