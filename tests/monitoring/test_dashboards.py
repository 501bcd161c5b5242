"""A real Prometheus scrapes a real server under load: every expression of the dashboards and rules has data."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from loaded_server import TOKEN, load, server
from prometheus_peer import ROOT, RULES, Prometheus, prometheus

from telephony_tts.runtime import metrics

pytestmark = [pytest.mark.slow, pytest.mark.peer]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
_WITHIN_S = 90.0
_COMPARISON = re.compile(r"(?P<figure>.+) (?:>|<) (?:[\d.]+|scalar\(.+\))", re.DOTALL)


def panels() -> list[dict[str, Any]]:
    return [panel for path in DASHBOARDS for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]]


def queries_of_panels() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def as_prometheus_gets_it(query: str) -> str:
    """With the variables that Grafana fills in."""
    return query.replace("$__rate_interval", "30s").replace("$job", ".*")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def figure_of(alert: str) -> str:
    """What an alert compares with its threshold."""
    found = _COMPARISON.fullmatch(alert)
    assert found is not None, f"an alert is one comparison: {alert}"
    return found["figure"]


# ------------------------------------------------------------- without Prometheus


def test_there_is_a_dashboard_for_calls_latency_engines_and_the_fleet() -> None:
    read = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS]
    assert {each["title"].rpartition(": ")[2] for each in read} == {"calls", "latency", "engines", "fleet"}
    assert len({each["uid"] for each in read}) == 4
    for each in read:
        places = [panel["gridPos"] for panel in each["panels"]]
        cells = [
            (x, y)
            for at in places
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24, "no panel hides another"
        assert len({panel["id"] for panel in each["panels"]}) == len(places)
        assert all(panel["targets"] and panel["title"] for panel in each["panels"])


def test_dashboards_and_rules_name_metrics_that_the_server_has() -> None:
    exposed = metrics.render()[0].decode()
    described = set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))
    known = described | {f"{name}{end}" for name in described for end in ("_bucket", "_sum", "_count")}
    expressions = [*queries_of_panels(), *(rule["expr"] for rule in rules())]
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in expressions:
        names = set(re.findall(r"\b(?:telephony_tts|process)_\w+(?::\w+)*", expression))
        unknown = {name for name in names if ":" not in name} - known
        assert unknown == set() and {name for name in names if ":" in name} <= recorded, expression


def test_every_metric_of_the_server_is_in_the_operators_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    exposed = set(re.findall(r"^# TYPE (telephony_tts_\w+)", metrics.render()[0].decode(), re.MULTILINE))
    assert {name for name in exposed if f"`{name}`" not in page} == set()
    named = set(re.findall(r"`(telephony_tts_\w+)`", page))
    assert named - exposed == set()


# --------------------------------------------------------------- with Prometheus


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Prometheus]:
    """A Prometheus that has scraped a server under load for some seconds, and still does."""
    folder = tmp_path_factory.mktemp("watched")
    job = {
        "job_name": "telephony-tts", "scheme": "https", "tls_config": {"insecure_skip_verify": True},
        "authorization": {"credentials": TOKEN},
    }  # fmt: skip
    with server(folder, certificate) as port, prometheus(folder, [f"127.0.0.1:{port}"], job=job) as running:
        stop, loop = asyncio.Event(), asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(load(port, stop)))
        thread.start()
        try:
            yield running
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()


def without_data(running: Prometheus, expressions: list[str]) -> list[str]:
    """The expressions that have no sample, or none that is a number."""
    return [each for each in expressions if not any(not math.isnan(value) for _, value in running.query(each))]


def wait_for_data(running: Prometheus, expressions: list[str]) -> None:
    end_s = time.monotonic() + _WITHIN_S
    while missing := without_data(running, expressions):
        assert time.monotonic() < end_s, "\n".join(missing)
        time.sleep(1)
        expressions = missing


def wait_for_value(running: Prometheus, expression: str, value: float) -> None:
    """A scrape or an evaluation that the machine delayed comes later."""
    end_s = time.monotonic() + _WITHIN_S
    while [each for _, each in running.query(expression)] != [value]:
        assert time.monotonic() < end_s, (expression, running.query(expression))
        time.sleep(1)


def test_every_panel_has_data(scraping: Prometheus) -> None:
    """A panel may have several queries, each of which must have data."""
    wait_for_data(scraping, [as_prometheus_gets_it(query) for query in queries_of_panels()])


def test_every_recording_rule_has_data_and_every_alert_a_figure_to_judge(scraping: Prometheus) -> None:
    wait_for_data(scraping, [rule["record"] for rule in rules() if "record" in rule])
    wait_for_data(scraping, [figure_of(rule["expr"]) for rule in rules() if "alert" in rule])


def test_what_prometheus_has_is_what_happens(scraping: Prometheus) -> None:
    """The engine speaks at two thirds of real time, so there are gaps, and the certificate ends in two days."""
    wait_for_data(scraping, ["telephony_tts:underruns_per_turn:ratio_5m > 0.02"])
    for fronts in ("ready", "wanted"):  # the sums of both processes, and not twice what is wanted
        wait_for_value(scraping, f"telephony_tts_fronts_{fronts}", 2)
    wait_for_value(scraping, 'sum(telephony_tts_calls_live{media="stream"}) >= bool 1', 1)
    wait_for_value(scraping, "telephony_tts_build_info", 1)
    ((labels, _),) = scraping.query("telephony_tts_build_info")
    assert labels["version"] and labels["python"]
    for alert in ("TelephonyTtsCertificateEnds", "TelephonyTtsUnderruns"):
        wait_for_value(scraping, f'count(ALERTS{{alertname="{alert}"}}) >= bool 1', 1)
    for alert in ("TelephonyTtsDown", "TelephonyTtsFrontGone", "TelephonyTtsDiskFull"):
        wait_for_value(scraping, f'absent(ALERTS{{alertname="{alert}"}})', 1)


def test_exemplars_name_the_call_of_a_slow_turn(scraping: Prometheus) -> None:
    """Prometheus asks for OpenMetrics by itself."""
    end_s = time.monotonic() + _WITHIN_S
    for series in ("telephony_tts_first_audio_ms_bucket", "telephony_tts_underrun_ms_bucket"):
        while not (found := scraping.exemplars(series)):
            assert time.monotonic() < end_s, series
            time.sleep(1)
        assert all(re.fullmatch(r"c\d+\.\d+|h[0-9a-f]{12}", each["call"]) and each["turn"] for each in found)


def test_a_scrape_has_a_bounded_number_of_series(scraping: Prometheus) -> None:
    ((_, n_series),) = scraping.query("scrape_samples_scraped")
    assert 500 < n_series <= 1500
