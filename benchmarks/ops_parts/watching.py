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

_EXAMPLES = """examples:
  python -m benchmarks.ops_parts.watching            about 4 minutes
  python -m benchmarks.ops_parts.watching --quick    seconds, to see that it runs
"""
_SERVE = ("--set", "engines.default=fake", "--instant")
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"
_LIMIT_MS, _MOST_SERIES, _MOST_CPU = 20.0, 1500, 1.05


def measure(
    *, calls: int = 200, traced_calls: int = 50, seconds: float = 10.0, rounds: int = 5, priority: int | str = 0
) -> dict[str, Any]:
    """The rows of this part, each with what is to be reached and whether it was."""
    window = {"seconds": seconds, "priority": priority}
    without, scraped = _scraped(calls, scrapes=False, **window), _scraped(calls, scrapes=True, **window)
    ratios = [_traced(traced_calls, **window) for _ in range(rounds)]
    ratio = report.median([one["ratio"] for one in ratios])
    scrape_ms, n_series = scraped["scrape_ms"], scraped["n_series"]
    return {
        "scrape": {
            "calls": calls, "scrape_ms": scrape_ms, "n_series": n_series,
            "late_over_20_ms_share": scraped["late_over_20_ms_share"], "late_max_ms": scraped["late_max_ms"],
            "without_scrapes": without, "reached": scrape_ms["p50"] <= _LIMIT_MS,
            "series_reached": n_series <= _MOST_SERIES,
            "frames_reached": scraped["late_over_20_ms_share"] <= without["late_over_20_ms_share"],
        },
        "traces": {
            "calls": traced_calls, "ratio": ratio, "ratios": [one["ratio"] for one in ratios],
            "n_spans": sum(one["n_spans"] for one in ratios), "reached": ratio <= _MOST_CPU,
        },
    }  # fmt: skip


def print_rows(rows: dict[str, Any]) -> None:
    scrape, traces = rows["scrape"], rows["traces"]
    report.table(
        "being watched",
        ("what", "to reach", "measured", "reached"),
        [
            (f"scrape beside {scrape['calls']} calls, ms p50 (p99)", "<= 20",
             f"{scrape['scrape_ms']['p50']} ({scrape['scrape_ms']['p99']})", scrape["reached"]),
            ("series", "<= 1,500", scrape["n_series"], scrape["series_reached"]),
            ("frames more than 20 ms late, with and without scrapes", "no more than without",
             f"{scrape['late_over_20_ms_share']:.4%}, {scrape['without_scrapes']['late_over_20_ms_share']:.4%}",
             scrape["frames_reached"]),
            (f"CPU with traces ÷ without, {traces['calls']} calls", "<= 1.05", traces["ratio"], traces["reached"]),
        ],
    )  # fmt: skip


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


def main() -> None:
    flags = report.parser("watching", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=200, help="calls beside the scrapes (default %(default)s)")
    flags.add_argument("--traced-calls", type=int, default=50, help="calls of each server (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=10.0, help="length of a window (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=5, help="rounds of the ratio (default %(default)s)")
    chosen: argparse.Namespace = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.traced_calls, chosen.seconds, chosen.repeat = 3, 2, 2.0, 1
    rows = measure(
        calls=chosen.calls, traced_calls=chosen.traced_calls, seconds=chosen.seconds, rounds=chosen.repeat,
        priority=chosen.priority,
    )  # fmt: skip
    print_rows(rows)
    report.save(chosen, rows)


if __name__ == "__main__":
    main()
