"""A collector: an HTTP server that takes OTLP and decodes it with the protocol's own protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanOnWire


@dataclass
class Collector:
    """`spans` are those that came. `status` is what the collector answers."""

    endpoint: str = ""
    status: int = 200
    spans: list[SpanOnWire] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    n_requests: int = 0
    n_open: int = 0
    """Connections that are not closed yet."""

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)

    def turns(self) -> list[SpanOnWire]:
        """The spans of turns, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == "turn"), key=lambda span: span.start_time_unix_nano)

    def children(self, of: SpanOnWire) -> list[SpanOnWire]:
        found = [span for span in self.spans if span.parent_span_id == of.span_id and span.trace_id == of.trace_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def attributes(span: SpanOnWire) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        assert kind is not None
        found[each.key] = getattr(each.value, kind)
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port of loopback."""
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.n_requests += 1
            if taken.status == 200:
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                taken.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(taken.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            taken.n_open += 1
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            taken.n_open -= 1

    with Server(("127.0.0.1", 0), Handler) as server:
        taken.endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield taken
        finally:
            server.shutdown()
            thread.join()
