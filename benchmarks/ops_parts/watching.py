"""What it costs to be watched: a scrape of /metrics beside speaking calls, and traces of their turns.

Scrapes: one server with calls that speak all the time is scraped once a second, as OpenMetrics. A frame that came more
than 20 ms late is compared with a window without scrapes.

Traces: two servers run at the same time on one core, one that sends the spans of its turns to a collector and one that
does not, so other load disturbs both alike. All threads of a server count.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

from telephony_tts.bench.measures import NS_PER_MS

_SERVE = ("--set", "engines.default=fake", "--instant")
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Windows with and without scrapes, then rounds with and without traces."""
    calls, traced_calls, seconds, n_rounds = (3, 2, 2.0, 1) if chosen.quick else (200, 50, 10.0, 5)
    window = {"seconds": seconds, "priority": chosen.priority}
    without, scraped = _scraped(calls, scrapes=False, **window), _scraped(calls, scrapes=True, **window)
    traced = [_traced(traced_calls, **window) for _ in range(n_rounds)]
    ratio = report.median([one["ratio"] for one in traced])
    late, late_without = scraped["late_over_20_ms_share"], without["late_over_20_ms_share"]
    rows = [
        {
            "what": f"scrape beside {calls} calls, ms p50 (p99)",
            "reached": f"{scraped['scrape_ms']['p50']} ({scraped['scrape_ms']['p99']})", "to_reach": "<= 20",
        },
        {"what": "series", "reached": scraped["n_series"], "to_reach": "<= 1,500"},
        {
            "what": "frames more than 20 ms late, with and without scrapes",
            "reached": f"{late:.4%}, {late_without:.4%}", "to_reach": "no more than without",
        },
        {"what": f"CPU with traces ÷ without, {traced_calls} calls", "reached": ratio, "to_reach": "<= 1.05"},
    ]  # fmt: skip
    return {"rows": rows, "scraped": scraped, "without_scrapes": without, "traced": traced}


def _load(server: ServerProcess, calls: int, seconds: float, priority: int | str, core: int) -> dict[str, Any]:
    spec = {
        "shape": "native", "calls": calls, "seconds": seconds, "warm_s": max(1.0, calls / 50) + min(5.0, seconds / 2),
        "inbound": False, "lead_ms": 200, "port": server.port, "server_pid": server.pid,
    }  # fmt: skip
    return run_load("speak", spec, core=core, priority=priority)


def _scraped(calls: int, *, scrapes: bool, seconds: float, priority: int | str) -> dict[str, Any]:
    server_core, load_core = cores()
    times_ms: list[float] = []
    stop, n_series = threading.Event(), 0

    def scrape(port: int) -> int:
        n = 0
        while not stop.wait(1.0):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            begun_ns = time.monotonic_ns()
            connection.request("GET", "/metrics", headers={"Accept": _ACCEPT})
            body = connection.getresponse().read()
            times_ms.append((time.monotonic_ns() - begun_ns) / NS_PER_MS)
            connection.close()
            n = sum(not line.startswith(b"#") for line in body.splitlines())
        return n

    args = (*_SERVE, "--set", "speech.lead_ms=200")
    with ServerProcess("serve", args, core=server_core, priority=priority) as server, ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape, server.port) if scrapes else None
        try:
            found = _load(server, calls, seconds, priority, load_core)
        finally:
            stop.set()
        n_series = scraping.result() if scraping is not None else 0
    figures = {"late_over_20_ms_share": found["late_over_20_ms_share"], "late_max_ms": found["late_ms"]["max"]}
    return figures | {"scrape_ms": report.percentiles(times_ms), "n_series": n_series}


def _traced(calls: int, *, seconds: float, priority: int | str) -> dict[str, Any]:
    server_core, load_core = cores()

    def window(*settings: str) -> float:
        with ServerProcess("serve", (*_SERVE, *settings), core=server_core, priority=priority) as server:
            found = _load(server, calls, seconds, priority, load_core)
        return float(found["server_cpu_ms_per_call_s"])

    with _collector() as (endpoint, taken), ThreadPoolExecutor(2) as pool:
        off = pool.submit(window)
        on = pool.submit(window, "--set", f"tracing.endpoint={endpoint}")
        figures = {"off_cpu_ms_per_call_s": off.result(), "on_cpu_ms_per_call_s": on.result()}
    assert taken["spans"], "no span came"
    ratio = figures["on_cpu_ms_per_call_s"] / figures["off_cpu_ms_per_call_s"]
    return {**figures, "ratio": round(ratio, 3), "n_spans": taken["spans"]}


@contextmanager
def _collector() -> Iterator[tuple[str, dict[str, int]]]:
    """The address of a collector for OTLP over HTTP, and how many spans it has taken."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    taken = {"spans": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            taken["spans"] += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", taken
        finally:
            server.shutdown()
            thread.join()
