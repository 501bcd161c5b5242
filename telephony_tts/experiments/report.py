"""`experiments report`: asks Prometheus for the sums of each arm, and compares the arms."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from telephony_tts.experiments.arms import CONTROL
from telephony_tts.experiments.sums import FEWEST_CALLS, PER_TURN, Mean, mean
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError

SINCE = re.compile(r"[1-9][0-9]*[smhdw]")
"""A range as Prometheus writes it."""
_ANSWER_S = 20.0
_MAX_ANSWER_BYTES = 16_000_000
_LABELS = "experiment, arm"
_HEADINGS = {
    "first_audio_ms": "first audio, ms", "underruns": "underruns/turn", "interruptions": "interruptions/turn",
    "errors": "errors/turn",
}  # fmt: skip


@dataclass(slots=True)
class ArmReport:
    """What Prometheus has of one arm. `p95_ms` is None without speech; `is_on` is None if no server has it now."""

    experiment: str
    arm: str
    sums: dict[str, float] = field(default_factory=dict)
    p95_ms: float | None = None
    is_on: bool | None = None


class PrometheusApi:
    """The HTTP API of a Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError for an address that is not one of HTTP."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--prometheus: {url!r} is no address; expected one such as http://127.0.0.1:9090")
        self._url = url.rstrip("/")

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series of an expression now. Raises TelephonyTTSError."""
        address = f"{self._url}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(address, timeout=_ANSWER_S) as answer:
                data = answer.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                data = error.read(_MAX_ANSWER_BYTES)
            raise self._failed(_message(data) or f"HTTP status {error.code}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._failed(str(reason) or type(error).__name__) from error
        try:
            found = json.loads(data)["data"]["result"]
            return [(dict(each["metric"]), float(each["value"][1])) for each in found]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise self._failed("its answer is not that of a Prometheus") from error

    def _failed(self, why: str) -> TelephonyTTSError:
        return TelephonyTTSError(f"Prometheus at {self._url} cannot be asked: {why}. Is --prometheus right?")


def _message(data: bytes) -> str | None:
    """What Prometheus says is wrong with a query."""
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return None


def read_arms(prometheus: PrometheusApi, since: str) -> list[ArmReport]:
    """The arms of all experiments that had calls in the last `since`. Raises TelephonyTTSError."""
    arms: dict[tuple[str, str], ArmReport] = {}

    def arm_of(labels: Mapping[str, str]) -> ArmReport:
        name = labels.get("experiment", ""), labels.get("arm", "")
        return arms.setdefault(name, ArmReport(*name))

    for labels, value in prometheus.query(
        f"sum by ({_LABELS}, sum) (increase(telephony_tts_experiment_sums_total[{since}]))"
    ):
        arm_of(labels).sums[labels.get("sum", "")] = value
    buckets = f"increase(telephony_tts_experiment_first_audio_ms_bucket[{since}])"
    for labels, value in prometheus.query(f"histogram_quantile(0.95, sum by ({_LABELS}, le) ({buckets}))"):
        if value == value:  # without speech it is NaN
            arm_of(labels).p95_ms = value
    for labels, value in prometheus.query(f"min by ({_LABELS}) (telephony_tts_experiment_arm_on)"):
        arm_of(labels).is_on = value > 0
    return sorted(arms.values(), key=lambda arm: (arm.experiment, arm.arm != CONTROL, arm.arm))


def lines(arms: list[ArmReport], since: str) -> Iterator[str]:
    """The report as a table for each experiment, and below it what differs."""
    for name in dict.fromkeys(arm.experiment for arm in arms):
        of_experiment = [arm for arm in arms if arm.experiment == name]
        yield f"experiment {name}, last {since}; means per turn with 95 % confidence intervals"
        rows = [("arm", "calls", "turns", *_HEADINGS.values(), "p95 first audio, ms"), *map(_row, of_experiment)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        for row in rows:
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        base = of_experiment[0]
        for arm in of_experiment[1:]:
            yield f"  {arm.arm} against {base.arm}:"
            for measure, heading in _HEADINGS.items():
                yield f"    {heading:<20}{_difference(arm, base, measure)}"
        yield ""


def as_json(arms: list[ArmReport], since: str) -> dict[str, Any]:
    """The report for programs. The first arm of an experiment is the one that the others are compared with."""
    experiments: dict[str, Any] = {}
    for arm in arms:
        told = experiments.setdefault(arm.experiment, {"compared_with": arm.arm, "arms": {}})
        told["arms"][arm.arm] = {
            "calls": arm.sums.get("calls", 0.0), "turns": arm.sums.get("turns", 0.0), "is_on": arm.is_on,
            "first_audio_p95_ms": arm.p95_ms,
            **{measure: _numbers(mean(arm.sums, measure)) for measure in PER_TURN},
        }  # fmt: skip
    for name, told in experiments.items():
        base = next(arm for arm in arms if arm.experiment == name and arm.arm == told["compared_with"])
        for arm in arms:
            if arm.experiment == name and arm is not base:
                told["arms"][arm.arm]["against"] = {
                    measure: _numbers(difference(arm, base, measure)) for measure in PER_TURN
                }
    return {"since": since, "experiments": experiments}


def difference(arm: ArmReport, base: ArmReport, measure: str) -> Mean | None:
    """How much more an arm has than another one. None if one of them had no turn."""
    here, there = mean(arm.sums, measure), mean(base.sums, measure)
    return None if here is None or there is None else here.minus(there)


def _row(arm: ArmReport) -> tuple[str, ...]:
    off = "" if arm.is_on in (True, None) else " (off)"
    means = (_shown(mean(arm.sums, measure)) for measure in PER_TURN)
    p95 = "-" if arm.p95_ms is None else f"{arm.p95_ms:.0f}"
    return f"{arm.arm}{off}", f"{arm.sums.get('calls', 0):.0f}", f"{arm.sums.get('turns', 0):.0f}", *means, p95


def _shown(found: Mean | None, sign: str = "") -> str:
    if found is None:
        return "-"
    value = f"{found.value:{sign}.3g}"
    if found.interval is None:
        return f"{value} (fewer than {FEWEST_CALLS} calls)"
    low, high = found.interval
    return f"{value} ({low:{sign}.3g} to {high:{sign}.3g})"


def _difference(arm: ArmReport, base: ArmReport, measure: str) -> str:
    found = difference(arm, base, measure)
    shown = _shown(found, "+")
    if found is None or found.interval is None:
        return shown
    low, high = found.interval
    if low > 0 or high < 0:
        return f"{shown}: {'more' if low > 0 else 'less'}"
    return f"{shown}: no clear difference"


def _numbers(found: Mean | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"value": found.value, "interval_95": None if found.interval is None else list(found.interval)}
