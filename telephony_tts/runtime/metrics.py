"""All metrics of the server. `render()` is the body of `/metrics`.

The metrics are in `REGISTRY`, not in the library's global registry. They count for the whole life of the process, so a
test reads them before and after:

    before = value("telephony_tts_turns_total", outcome="cleared")
    ...
    assert value("telephony_tts_turns_total", outcome="cleared") == before + 1

Label values come from the fixed sets below or from the configuration. Where a peer or an engine could bring others,
`BoundedLabel` limits how many there are. No series is ever deleted.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)


class LoopHistogram(Collector):
    """A histogram without a lock, which only the event loop's thread may observe.

    It is for events of every frame: observe() takes 0.14 µs where the library's takes 0.57 µs (CPython 3.11, 12
    buckets), a difference of 4 ms per second at 200 calls of 50 frames/s.
    """

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, amount: float, n: int = 1) -> None:
        """Count `n` observations of `amount`, in the unit at the end of the metric's name."""
        self._counts[bisect_left(self._bounds, amount)] += n
        self._sum += amount * n

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._documentation)

    def collect(self) -> Iterator[Metric]:
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)


MetricFamilies = Iterator[Metric]
"""What a registry of the library collects."""


class BoundedLabel:
    """At most `most` values of a label: the first ones that were used. All others are "other", and so is a value that
    is not a plain word."""

    _PLAIN = re.compile(r"[\w.:+ -]{1,64}")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, value: str, may_be_new: Callable[[], bool] = lambda: True) -> str:
        """The label for `value`. `may_be_new` says whether a value that was not used before may have its own label."""
        if value in self._known:
            return value
        if len(self._known) >= self._most or not self._PLAIN.fullmatch(value) or not may_be_new():
            return "other"
        self._known.add(value)
        return value


RELOADS = ("loaded", "failed")
OUTCOMES = ("done", "cleared", "error")
TURN_STAGES = ("text", "queue", "first_audio")
UTTERANCE_OUTCOMES = ("done", "cancelled", "failed")
HTTP_CODES = ("2xx", "4xx", "5xx")
REPLICA_STATES = ("known", "ready")
PHRASE_PLACES = ("memory", "disk", "made", "not_kept")
LEGS = ("bot", "media")
MARK_STATES = ("played", "cleared")
SPEECH_OUTCOMES = ("interrupted", "none")
PAUSE_REASONS = ("bot", "barge_in", "hold")
DTMF_WAYS = ("message", "tones")
SOUND_OUTCOMES = ("played", "failed")
RECORDING_ENDS = ("stopped", "call_ended", "max_s", "max_mb", "disk_full", "write_failed")
MOVES = ("call", "start", "load")
REFUSALS = (
    "busy", "unauthorized", "origin", "starting", "draining", "bad_request", "call_taken", "unclaimed", "key_limit",
)  # fmt: skip
WATCHED_FILES = ("keys", "experiments")

FIRST_AUDIO_BUCKETS_MS = (1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1000, 2000)
LATENESS_BUCKETS_MS = (0.5, 1, 2, 5, 10, 20, 40, 60, 100, 200, 500, 1000)
UNDERRUN_BUCKETS_MS = (20, 40, 60, 100, 200, 500, 1000, 2000, 5000)
"""From one frame of silence, which few callers notice, to a pause after which they speak."""
CALL_BUCKETS_S = (5, 15, 30, 60, 120, 300, 600, 1800, 3600)

VOICES = BoundedLabel(40)
ERROR_CODES = BoundedLabel(40)

BUILD = Info("telephony_tts_build", "What is running.", registry=REGISTRY)
_PYTHON = platform.python_version()
BUILD.info({"version": "unknown", "python": _PYTHON})
with suppress(importlib.metadata.PackageNotFoundError):  # it may run from a folder that was not installed
    BUILD.info({"version": importlib.metadata.version("telephony-tts"), "python": _PYTHON})

# ------------------------------------------------------------------------ calls

CALLS_LIVE = Gauge("telephony_tts_calls_live", "Calls now, by media kind.", ["media"], registry=REGISTRY)
CALLS = Counter("telephony_tts_calls_total", "Calls accepted, by media kind.", ["media"], registry=REGISTRY)
CALLS_LIMIT = Gauge(
    "telephony_tts_calls_limit",
    "The most calls (limits.calls) and HTTP requests (vendors.http_streams) at a time.",
    ["of"],
    registry=REGISTRY,
)
CALL_SECONDS = Histogram(
    "telephony_tts_call_seconds",
    "Duration of calls that have ended, by media kind.",
    ["media"],
    buckets=CALL_BUCKETS_S,
    registry=REGISTRY,
)
REFUSED = Counter("telephony_tts_refused_total", "Connections refused, by reason.", ["reason"], registry=REGISTRY)

FRONTS = Gauge("telephony_tts_fronts", "Processes of the server that are running.", registry=REGISTRY)
FRONTS.set(1)
FRONTS_WANTED = Gauge(
    "telephony_tts_fronts_wanted", "Processes of the server that should run (server.processes).", registry=REGISTRY
)
FRONTS_WANTED.set(1)
FRONTS_READY = Gauge(
    "telephony_tts_fronts_ready", "Processes of the server that can begin calls: loaded, and not draining.",
    registry=REGISTRY,
)
FRONT_RESTARTS = Counter(
    "telephony_tts_front_restarts_total", "Processes of the server that replaced one that had ended.", registry=REGISTRY
)
HTTP_RESPONSES = Counter(
    "telephony_tts_http_responses_total", "Responses of the HTTP API, by door and status code.", ["door", "code"],
    registry=REGISTRY,
)
MOVED = Counter(
    "telephony_tts_connections_moved_total",
    "Connections that were moved to another process of the server: it has their call, known from the address (call) or "
    "from the first messages (start), or it has less to do (load).",
    ["why"],
    registry=REGISTRY,
)

# ------------------------------------------------------------------------ turns

TURNS = Counter(
    "telephony_tts_turns_total", "Turns ended, by door and outcome.", ["door", "outcome"], registry=REGISTRY
)
ERRORS = Counter("telephony_tts_errors_total", "Errors that bots were told, by code.", ["code"], registry=REGISTRY)
MARKS = Counter("telephony_tts_marks_total", "Marks ended, by state.", ["state"], registry=REGISTRY)
TEXT_CHARACTERS = Counter("telephony_tts_text_characters_total", "Characters of text received.", registry=REGISTRY)
FIRST_AUDIO_MS = Histogram(
    "telephony_tts_first_audio_ms",
    "First sentence of a turn complete to its first frame written, by door.",
    ["door"],
    buckets=FIRST_AUDIO_BUCKETS_MS,
    registry=REGISTRY,
)
TURN_STAGE_MS = Histogram(
    "telephony_tts_turn_stage_ms",
    "Where the time before a turn is heard went: the bot writes its first sentence (text), the sentence waits for an "
    "engine (queue), the engine works and the first frame is sent (first_audio).",
    ["stage"],
    buckets=FIRST_AUDIO_BUCKETS_MS,
    registry=REGISTRY,
)
CANCEL_TO_SILENCE_MS = Histogram(
    "telephony_tts_cancel_to_silence_ms",
    "Interruption received to the last frame of the turn and the peer's clear written.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)

CALLER_SPEECH = Counter(
    "telephony_tts_caller_speech_total",
    "Times that callers spoke while barge-in was enabled, by the effect on our speech.",
    ["outcome"],
    registry=REGISTRY,
)

CALLER_SILENT = Counter(
    "telephony_tts_caller_silent_total", "Times that a bot was told that nobody speaks.", registry=REGISTRY
)

ANSWERING_MACHINES = Counter(
    "telephony_tts_answering_machines_total",
    "Times that a bot was told of an answering machine, by what was heard of it.",
    ["cause"],
    registry=REGISTRY,
)

DTMF_SENT = Counter(
    "telephony_tts_dtmf_sent_total",
    "Digits given to the telephone side, by the platform's message or as tones in the audio.",
    ["by"],
    registry=REGISTRY,
)
BAD_MARKUP = Counter(
    "telephony_tts_bad_markup_total", "Turns of SSML whose markup was partly wrong.", registry=REGISTRY
)
LEXICON_READINGS = Counter(
    "telephony_tts_lexicon_readings_total", "Words of ended turns that a lexicon read.", registry=REGISTRY
)
PAUSES = Counter("telephony_tts_pauses_total", "Pauses of speech, by reason.", ["reason"], registry=REGISTRY)
SOUNDS = Counter(
    "telephony_tts_sounds_total",
    "Sounds that bots asked for, and whether they could be read.",
    ["outcome"],
    registry=REGISTRY,
)

# ---------------------------------------------------------------------- playout

FRAME_LATENESS_MS = LoopHistogram(
    "telephony_tts_frame_lateness_ms",
    "How much later than its time on the schedule a frame was written.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)
UNDERRUNS = Counter("telephony_tts_underruns_total", "A frame was due and none was ready.", registry=REGISTRY)
UNDERRUN_MS = Histogram(
    "telephony_tts_underrun_ms",
    "Silence that an underrun put into the speech. Underruns that an interruption ended are not in it.",
    buckets=UNDERRUN_BUCKETS_MS,
    registry=REGISTRY,
)
EVENT_LOOP_LAG_MS = LoopHistogram(
    "telephony_tts_event_loop_lag_ms",
    "How much later than asked the event loop ran a timer.",
    buckets=LATENESS_BUCKETS_MS,
    registry=REGISTRY,
)
SENT_BYTES = Counter("telephony_tts_sent_bytes_total", "Message bytes sent, by leg.", ["leg"], registry=REGISTRY)
RECEIVED_BYTES = Counter(
    "telephony_tts_received_bytes_total", "Message bytes received, by leg.", ["leg"], registry=REGISTRY
)
LEXICON_RELOADS = Counter(
    "telephony_tts_lexicon_reloads_total", "Lexicon files read again, by outcome.", ["outcome"], registry=REGISTRY
)

FILE_RELOADS = Counter(
    "telephony_tts_file_reloads_total",
    "Files of keys and experiments read again, by outcome.",
    ["file", "outcome"],
    registry=REGISTRY,
)

# ------------------------------------------------------------------ experiments

EXPERIMENT_FIRST_AUDIO_MS = Histogram(
    "telephony_tts_experiment_first_audio_ms",
    "First sentence of a turn complete to its first frame written, by experiment and arm.",
    ["experiment", "arm"],
    buckets=FIRST_AUDIO_BUCKETS_MS,
    registry=REGISTRY,
)
EXPERIMENT_SUMS = Counter(
    "telephony_tts_experiment_sums_total",
    "Sums over the ended calls of an arm, from which `telephony-tts experiments report` computes means and intervals.",
    ["experiment", "arm", "sum"],
    registry=REGISTRY,
)
EXPERIMENT_ARM_ON = Gauge(
    "telephony_tts_experiment_arm_on",
    "1 while an arm takes calls; 0 after a stop rule has turned it off.",
    ["experiment", "arm"],
    registry=REGISTRY,
)

# ---------------------------------------------------------------------- engines

ENGINE_QUEUED = Gauge(
    "telephony_tts_engine_queued", "Utterances waiting in an engine.", ["engine"], registry=REGISTRY
)
ENGINE_RUNNING = Gauge(
    "telephony_tts_engine_running", "Utterances being synthesised by an engine.", ["engine"], registry=REGISTRY
)
ENGINE_LOAD = Gauge(
    "telephony_tts_engine_load",
    "Active speech and one more sentence, divided by what the engine can make in time; 0 if idle or unknown.",
    ["engine"],
    registry=REGISTRY,
)
ENGINE_WORK = Gauge(
    "telephony_tts_engine_work",
    "Work of an engine since its process began, by the engine's names (docs/cosyvoice2.md): steps, cancellations "
    "and seconds of speech; batches, rows and seconds by stage.",
    ["engine", "what"],
    registry=REGISTRY,
)
ENGINE_REPLICAS = Gauge(
    "telephony_tts_engine_replicas",
    "Processes of an engine that are known, and those of them that accept sentences.",
    ["engine", "state"],
    registry=REGISTRY,
)
ENGINE_RESTARTS = Gauge(
    "telephony_tts_engine_restarts",
    "Times that a process of an engine was replaced after it had failed. Only grows.",
    ["engine"],
    registry=REGISTRY,
)
ENGINE_FIRST_CHUNK_MS = Histogram(
    "telephony_tts_engine_first_chunk_ms",
    "An engine was asked for a sentence to its first audio, by engine.",
    ["engine"],
    buckets=FIRST_AUDIO_BUCKETS_MS,
    registry=REGISTRY,
)
UTTERANCES = Counter(
    "telephony_tts_utterances_total",
    "Sentences given to an engine, by engine, voice and outcome.",
    ["engine", "voice", "outcome"],
    registry=REGISTRY,
)
SPEECH_SECONDS = Counter(
    "telephony_tts_speech_seconds_total", "Speech that engines have made, by engine and voice.", ["engine", "voice"],
    registry=REGISTRY,
)
SYNTHESIS_SECONDS = Counter(
    "telephony_tts_synthesis_seconds_total",
    "Time that calls waited for that speech, by engine and voice.",
    ["engine", "voice"],
    registry=REGISTRY,
)
FAILOVERS = Counter(
    "telephony_tts_failovers_total",
    "Sentences that another engine had to speak, by the engine that did not and the reason.",
    ["engine", "reason"],
    registry=REGISTRY,
)
REPLICAS_LOST = Counter(
    "telephony_tts_replicas_lost_total",
    "Sentences that another replica of the engine went on with, after audio had come from one that was lost.",
    ["engine"],
    registry=REGISTRY,
)
ENGINE_CIRCUIT_OPEN = Gauge(
    "telephony_tts_circuit_open",
    "1 while an engine is left out because it failed (engines.fallback).",
    ["engine"],
    registry=REGISTRY,
)
PHRASES = Counter(
    "telephony_tts_phrases_total",
    "Sentences with `phrases.enabled`: found in memory or on disk, made by the engine, or of a kind that is not kept.",
    ["found"],
    registry=REGISTRY,
)
PHRASE_BYTES = Gauge("telephony_tts_phrase_bytes", "Memory that holds the audio of phrases.", registry=REGISTRY)
SYNTHESIS_RTF = Histogram(
    "telephony_tts_synthesis_rtf",
    "Compute seconds per second of audio, by engine; below 1 is faster than real time.",
    ["engine"],
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 5),
    registry=REGISTRY,
)

# ------------------------------------------------------------------- recordings

CONSOLE_WATCHERS = Gauge(
    "telephony_tts_console_watchers", "Pages of the console that watch the calls or listen to one.", registry=REGISTRY
)
RECORDINGS_LIVE = Gauge("telephony_tts_recordings_live", "Calls that are being recorded.", registry=REGISTRY)
RECORDINGS = Counter("telephony_tts_recordings_total", "Recordings ended, by reason.", ["reason"], registry=REGISTRY)
RECORDED_BYTES = Counter("telephony_tts_recorded_bytes_total", "Bytes of recordings written.", registry=REGISTRY)
RECORDING_HOLES = Counter(
    "telephony_tts_recording_holes_total", "Holes in recordings because the disk was too slow.", registry=REGISTRY
)

# ----------------------------------------------------------------- the machine

DISK_FREE_BYTES = Gauge(
    "telephony_tts_disk_free_bytes", "Free space of the disk of a folder that the server writes to.", ["folder"],
    registry=REGISTRY,
)
DISK_SIZE_BYTES = Gauge(
    "telephony_tts_disk_size_bytes", "Size of the disk of a folder that the server writes to.", ["folder"],
    registry=REGISTRY,
)
CERTIFICATE_EXPIRES = Gauge(
    "telephony_tts_certificate_expires_timestamp_seconds",
    "When the certificate ends that the server uses (server.tls.cert).",
    ["setting"],
    registry=REGISTRY,
)

# A series that appears with its first event has no increase() for that event, so all series are made here. labels()
# costs more than inc(), so code on the frame path keeps the child: SENT_BYTES.labels(leg="media").
for _metric, _values in (
    (CALLS_LIMIT, ("calls", "requests")),
    (TURN_STAGE_MS, TURN_STAGES),
    (REFUSED, REFUSALS),
    (MOVED, MOVES),
    (MARKS, MARK_STATES),
    (CALLER_SPEECH, SPEECH_OUTCOMES),
    (PAUSES, PAUSE_REASONS),
    (DTMF_SENT, DTMF_WAYS),
    (ANSWERING_MACHINES, ("greeting", "beep")),
    (SOUNDS, SOUND_OUTCOMES),
    (RECORDINGS, RECORDING_ENDS),
    (SENT_BYTES, LEGS),
    (PHRASES, PHRASE_PLACES),
    (RECEIVED_BYTES, LEGS),
    (LEXICON_RELOADS, RELOADS),
):
    for _value in _values:
        _metric.labels(_value)
for _file in WATCHED_FILES:
    for _value in RELOADS:
        FILE_RELOADS.labels(_file, _value)


def know_doors(media_kinds: Sequence[str], doors: Sequence[str]) -> None:
    """Make the series of the ways in, before the first call: `media_kinds` says where a call's frames may go, `doors`
    whose protocol a bot may speak. "http" is our own API, `/tts/stream`."""
    for kind in media_kinds:
        for metric in (CALLS_LIVE, CALLS, CALL_SECONDS):
            metric.labels(kind)
    for door in doors:
        FIRST_AUDIO_MS.labels(door)
        for outcome in OUTCOMES:
            TURNS.labels(door, outcome)
        for code in HTTP_CODES:
            HTTP_RESPONSES.labels(door, code)


def know_engine(name: str) -> None:
    """Make the series of an engine, before its first sentence."""
    for metric in (ENGINE_QUEUED, ENGINE_RUNNING, ENGINE_LOAD, ENGINE_RESTARTS, ENGINE_FIRST_CHUNK_MS, REPLICAS_LOST):
        metric.labels(name)
    SYNTHESIS_RTF.labels(name)
    for state in REPLICA_STATES:
        ENGINE_REPLICAS.labels(name, state)
    know_voice(name, "other")


def know_voice(engine: str, voice: str) -> None:
    """Make the series of a voice, before the end of its first sentence. `voice` is a label of `VOICES`."""
    for outcome in UTTERANCE_OUTCOMES:
        UTTERANCES.labels(engine, voice, outcome)
    SPEECH_SECONDS.labels(engine, voice)
    SYNTHESIS_SECONDS.labels(engine, voice)


class _OneFamily:
    """A registry of one metric, for an encoder of the library."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


_END = b"# EOF\n"
"""Ends a page of OpenMetrics."""


def encode(families: Iterable[Metric], accept: str) -> Iterator[bytes]:
    """The body of `/metrics`, a metric at a time, so that the event loop can do other work between two of them.

    `accept` is the header of the scraper. Exemplars are in the page if it accepts OpenMetrics.
    """
    encoder: Callable[..., bytes] = choose_encoder(accept)[0]
    if content_type(accept).startswith("application/openmetrics-text"):
        # Our names look alike in every way of escaping. In this one the library does not go through each of them
        # character by character, which was a third of a page's time.
        encoder = partial(encoder, escaping=ALLOWUTF8)
    is_open = False
    for metric in families:
        page = encoder(_OneFamily(metric))
        is_open = is_open or page.endswith(_END)
        yield page.removesuffix(_END)
    if is_open:
        yield _END


def content_type(accept: str) -> str:
    """Of the page that `encode` makes."""
    return choose_encoder(accept)[1]


def render(accept: str = "") -> tuple[bytes, str]:
    """The body of `/metrics` and its content type."""
    return b"".join(encode(REGISTRY.collect(), accept)), content_type(accept)


def value(sample: str, **labels: str) -> float:
    """The sum of the samples of an exposed name, such as "telephony_tts_first_audio_ms_count", that have these labels.
    Raises KeyError if there is none."""
    found = [
        each.value
        for metric in REGISTRY.collect()
        for each in metric.samples
        if each.name == sample and labels.items() <= each.labels.items()
    ]
    if not found:
        raise KeyError(f"{sample} {labels}")
    return float(sum(found))
