"""`experiments report` against a stand-in for Prometheus: what is asked, what is shown, and what is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from telephony_tts.cli.main import main
from telephony_tts.experiments.report import PrometheusApi, read_arms
from telephony_tts.experiments.sums import SUMS, CallSums
from telephony_tts.runtime.errors import TelephonyTTSError

pytestmark = pytest.mark.slow


def sums_of(calls: list[CallSums]) -> dict[str, float]:
    sums = dict.fromkeys(SUMS, 0.0)
    for call in calls:
        for name, amount in call.terms().items():
            sums[name] += amount
    return sums


CONTROL = sums_of([CallSums(4, 4, 4 * (200.0 + n % 5), 0, n % 2) for n in range(60)])
SLOW = sums_of([CallSums(4, 4, 4 * (260.0 + n % 5), n % 3 == 0, n % 2) for n in range(50)])
FEW = sums_of([CallSums(2, 2, 500.0)] * 3)


class StandIn(ThreadingHTTPServer):
    """Answers each query from `answers`, by the metric that it names."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.status, self.body = 200, b""
        self.series: dict[str, list[dict[str, Any]]] = {"sums": [], "quantile": [], "arm_on": []}

    def add(
        self, arm: str, sums: dict[str, float], p95: str = "300", is_on: int = 1, experiment: str = "voice"
    ) -> None:
        labels = {"experiment": experiment, "arm": arm}
        self.series["sums"] += [
            {"metric": {**labels, "sum": name}, "value": [0, str(value)]} for name, value in sums.items()
        ]
        self.series["quantile"].append({"metric": labels, "value": [0, p95]})
        self.series["arm_on"].append({"metric": labels, "value": [0, str(is_on)]})


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        (query,) = parse_qs(address.query)["query"]
        self.server.asked.append(query)
        assert address.path == "/api/v1/query"
        kind = next(each for each in ("quantile", "arm_on", "sums") if each in query)
        body = self.server.body or json.dumps(
            {"status": "success", "data": {"resultType": "vector", "result": self.server.series[kind]}}
        ).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def prometheus() -> Iterator[StandIn]:
    with running(StandIn()) as server:
        yield server


@contextmanager
def running(server: StandIn) -> Iterator[StandIn]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def url(server: StandIn) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_the_arms_are_compared_with_the_control(prometheus: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    prometheus.add("slow", SLOW, "420", is_on=0)
    prometheus.add("control", CONTROL)
    assert main(["experiments", "report", "--prometheus", url(prometheus), "--since", "7d"]) == 0
    head, titles, control, slow, against, *differences = capsys.readouterr().out.splitlines()
    assert head.startswith("experiment voice, last 7d")
    assert titles.split()[:3] == ["arm", "calls", "turns"]
    assert control.split()[:4] == ["control", "60", "240", "202"] and control.endswith("300")
    assert slow.split()[:5] == ["slow", "(off)", "50", "200", "262"] and slow.endswith("420")
    assert against == "  slow against control:"
    first, underruns, interruptions, errors = differences[:4]
    assert "+60 (" in first and first.endswith(": more")
    assert underruns.endswith(": more") and "+0.085" in underruns
    assert interruptions.endswith(": no clear difference")
    assert errors.endswith(": no clear difference")


def test_the_range_is_asked_for_and_series_of_all_servers_are_added(prometheus: StandIn) -> None:
    prometheus.add("control", CONTROL)
    read_arms(PrometheusApi(url(prometheus) + "/"), "12h")
    sums, quantile, arm_on = prometheus.asked
    assert sums == "sum by (experiment, arm, sum) (increase(telephony_tts_experiment_sums_total[12h]))"
    assert quantile.startswith("histogram_quantile(0.95, sum by (experiment, arm, le) (increase(")
    assert "[12h]" in quantile
    assert arm_on == "min by (experiment, arm) (telephony_tts_experiment_arm_on)"


def test_few_calls_have_no_interval_and_no_verdict(prometheus: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    prometheus.add("control", CONTROL)
    prometheus.add("few", FEW, "NaN")
    prometheus.add("none", sums_of([]), "NaN")
    assert main(["experiments", "report", "--prometheus", url(prometheus)]) == 0
    told = capsys.readouterr().out
    (few,) = (line for line in told.splitlines() if line.startswith("  few  "))
    assert "250 (fewer than 30 calls)" in few and few.endswith("-")
    (none,) = (line for line in told.splitlines() if line.startswith("  none  "))
    assert none.split()[1:] == ["0", "0", "-", "-", "-", "-", "-"]
    assert "+48 (fewer than 30 calls)" in told
    assert "more" not in told.partition("few against control")[2].partition("against")[0]


def test_the_json_has_the_numbers(prometheus: StandIn, tmp_path: Path) -> None:
    prometheus.add("slow", SLOW)
    prometheus.add("control", CONTROL)
    prometheus.add("b", CONTROL, experiment="other")
    prometheus.add("a", CONTROL, experiment="other")
    file = tmp_path / "report.json"
    assert main(["experiments", "report", "--prometheus", url(prometheus), "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told["since"] == "1d" and set(told["experiments"]) == {"voice", "other"}
    voice = told["experiments"]["voice"]
    assert voice["compared_with"] == "control" and "against" not in voice["arms"]["control"]
    difference = voice["arms"]["slow"]["against"]["first_audio_ms"]
    assert difference["value"] == pytest.approx(60.0) and difference["interval_95"][0] > 59
    assert told["experiments"]["other"]["compared_with"] == "a", "without a control, the first by name"


def test_nothing_to_report(prometheus: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiments", "report", "--prometheus", url(prometheus)]) == 0
    assert "no experiment in the last 1d" in capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert main(["experiments", "report", *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("telephony-tts: ") and error.count("\n") == 1
    return error


def test_a_prometheus_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    with running(StandIn()) as server:
        address = url(server)
    told = failed(capsys, 1, "--prometheus", address)
    assert f"Prometheus at {address} cannot be asked" in told and "refused" in told and "Is --prometheus right?" in told


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>", "its answer is not that of a Prometheus"),
        (200, b'{"data": {"result": [{"metric": {}, "value": [0]}]}}', "its answer is not that of a Prometheus"),
        (200, b"[]", "its answer is not that of a Prometheus"),
        (404, b"not here", "HTTP status 404"),
        (400, b'{"status": "error", "error": "parse error at char 3"}', "parse error at char 3"),
        (503, b"", "HTTP status 503"),
    ],
)
def test_answers_that_are_none(prometheus: StandIn, status: int, body: bytes, told: str) -> None:
    prometheus.status, prometheus.body = status, body or b"\n"
    with pytest.raises(TelephonyTTSError) as raised:
        read_arms(PrometheusApi(url(prometheus)), "1d")
    assert told in raised.value.message


def test_wrong_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path, prometheus: StandIn) -> None:
    assert "--prometheus: 'here' is no address" in failed(capsys, 2, "--prometheus", "here")
    assert "--since: 'yesterday' is no range" in failed(capsys, 2, "--prometheus", "http://x", "--since", "yesterday")
    prometheus.add("control", CONTROL)
    gone = str(tmp_path / "gone" / "x.json")
    assert main(["experiments", "report", "--prometheus", url(prometheus), "--json", gone]) == 2
    assert "--json: cannot write" in capsys.readouterr().err


# ------------------------------------------------------------- the other commands


def test_check_and_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("experiments: {voice: {numbers: ['+49*'], arms: {anna: {share: 30, voice: anna}}}}")
    assert main(["experiments", "check", "--file", str(file)]) == 0
    assert capsys.readouterr().out == "voice: anna 30 %, control 70 %\n"
    assert main(["experiments", "arm", "CA1", "--file", str(file)]) == 0
    assert capsys.readouterr().out == "CA1: in no experiment\n"
    assert main(["experiments", "arm", "CA1", "--number", "+49 30", "--file", str(file)]) == 0
    assert capsys.readouterr().out in ("CA1: voice/anna\n", "CA1: voice/control\n")
    file.write_text("experiments: {voice: {arms: {anna: {share: 130, voice: anna}}}}")
    assert main(["experiments", "check", "--file", str(file)]) == 2
    assert "130 is wrong" in capsys.readouterr().err
    assert main(["experiments", "check"]) == 2
    assert "which experiments?" in capsys.readouterr().err


def test_a_new_key_works_where_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from telephony_tts.ops.keys.key import digest_of
    from telephony_tts.ops.keys.key_file import read_keys

    assert main(["keys", "new", "acme"]) == 0
    first, _, *entry = capsys.readouterr().out.splitlines()
    token = first.rpartition(" ")[2]
    file = tmp_path / "keys.yaml"
    file.write_text("\n".join(["keys:", *entry, "    calls: 3", "    voices: [heart]"]))
    (key,) = read_keys(file)
    assert key.digest == digest_of(token.encode()) and len(token) >= 32
    assert main(["keys", "check", "--file", str(file)]) == 0
    assert capsys.readouterr().out == "acme: calls 3; voices heart\n"
    assert main(["keys", "new", "two words"]) == 2
    assert "is no name for a key" in capsys.readouterr().err
    assert main(["keys", "check"]) == 2
