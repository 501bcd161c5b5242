"""OpenTelemetry: a span for each turn, with children that say where its time went (docs/operations.md).

    turn ─┬─ text         first text to the first sentence that can be spoken
          ├─ queue        until an engine began to work on that sentence
          ├─ first_audio  until its first frame was sent
          └─ play_out     until the turn was over

The spans are made when the turn is over, from times that the session has anyway. They wait in a bounded queue, and a
thread of the library sends them to the collector. A collector that is away costs spans, never speech.
"""

from __future__ import annotations

import os
import socket

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import monotonic_ns, unix_ns
from telephony_tts.session.report import stages
from telephony_tts.session.session import TurnEnd
from telephony_tts.session.turn import Turn
from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m

_log = logs.get(__name__)
_Attributes = dict[str, str | int | float]
_STAGES = ("text", "queue", "first_audio", "play_out")


class TurnTracing:
    """The traces of all calls of this process.

    `endpoint` is the collector's address for OTLP over HTTP. `share` of the turns without a span of the bot is traced;
    for the others the bot has decided. The library reads its own variables too, such as OTEL_EXPORTER_OTLP_HEADERS.
    """

    def __init__(self, endpoint: str, share: float, version: str) -> None:
        resource = Resource.create({
            "service.name": "telephony-tts",
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        })  # fmt: skip
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)), resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer = self._provider.get_tracer("telephony_tts", version)

    def of_call(self, call: Call) -> TracesOfCall:
        return TracesOfCall(self.tracer, call)

    def close(self) -> None:
        """Send what waits. Blocks for as long as the collector takes, at most some seconds."""
        self._provider.shutdown()


class TracesOfCall:
    """The spans of the turns of one call that are not over."""

    def __init__(self, tracer: trace.Tracer, call: Call) -> None:
        self._tracer = tracer
        self._call = call
        self._to_unix_ns = unix_ns() - monotonic_ns()
        """From the server's clock to that of the collector."""
        self._spans: dict[Turn, Span] = {}

    def trace_id(self, turn: Turn | None) -> str | None:
        if turn is None:
            return None
        span = self._spans.get(turn)
        if span is None:
            span = self._spans[turn] = self._begin(turn)
        return format(span.get_span_context().trace_id, "032x") if span.is_recording() else None

    def ended(self, turn: Turn, event: TurnEnd) -> None:
        try:
            span = self._spans.pop(turn, None) or self._begin(turn)
            if span.is_recording():
                self._end(span, turn, event)
        except Exception:  # the speech goes on, whatever the library does
            self._call.log.exception("turn_not_traced", turn=turn.id)

    def _begin(self, turn: Turn) -> Span:
        call = self._call
        return self._tracer.start_span(
            "turn",
            _parent(turn.traceparent or call.traceparent),
            SpanKind.SERVER,
            {
                "telephony.call": call.id, "telephony.turn": turn.id, "telephony.media": call.kind,
                "telephony.door": call.door,
            },
            start_time=turn.begun_ns + self._to_unix_ns,
        )  # fmt: skip

    def _end(self, span: Span, turn: Turn, event: TurnEnd) -> None:
        offset_ns, end_ns = self._to_unix_ns, monotonic_ns()
        span.set_attributes(_facts(turn, event))
        context = trace.set_span_in_context(span, Context())
        times = stages(turn)
        at_ns = list(times.values())[-1][1] if times else turn.begun_ns
        # The stage in which it ended is not among those that it has passed.
        times[_STAGES[len(times)]] = at_ns, max(at_ns, end_ns)
        for name, (begin_ns, until_ns) in times.items():
            child = self._tracer.start_span(name, context, start_time=begin_ns + offset_ns)
            chunk_ns = turn.parts[0].first_pcm_ns if name == "first_audio" else None
            if chunk_ns is not None:
                child.add_event("first chunk of the engine", timestamp=chunk_ns + offset_ns)
            child.end(until_ns + offset_ns)
        if isinstance(event, m.ErrorEvent):
            span.set_status(Status(StatusCode.ERROR, event.message))
        span.end(end_ns + offset_ns)


def _facts(turn: Turn, event: TurnEnd) -> _Attributes:
    """What is known of a turn that is over. Its text is not among it: that is private."""
    facts: _Attributes = {
        "telephony.text_chars": turn.n_source_chars,
        "telephony.sentences": len(turn.parts),
        "telephony.underruns": turn.underruns,
    }
    if turn.first_audio_ms is not None:
        facts["telephony.first_audio_ms"] = turn.first_audio_ms
    if engines := dict.fromkeys(name for part in turn.parts for name in part.engines):
        facts["telephony.engines"] = ",".join(engines)
    match event:
        case m.Done():
            return facts | {"telephony.outcome": "done", "telephony.audio_ms": event.audio_ms}
        case m.Cleared():
            outcome = {"telephony.outcome": "cleared", "telephony.reason": event.reason}
            return facts | outcome | {"telephony.heard_ms": event.heard_ms}
        case m.ErrorEvent():
            return facts | {"telephony.outcome": "error", "telephony.error": event.code}


def _parent(traceparent: str | None) -> Context:
    """The context with the bot's span as the parent. `traceparent` has the form of W3C Trace Context."""
    if traceparent is None:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")[:4]
    bots = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))
    return trace.set_span_in_context(NonRecordingSpan(bots), Context())
