"""The metrics of all fronts as one page: the samples of each are added up by their type. Pure, but for the registry.

Counters and histograms are sums over all fronts that ever ran, also those that have ended: a counter never goes down.
Gauges are sums over the fronts that run, except those of `_LARGEST` and `_SMALLEST`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_LARGEST = frozenset({"telephony_tts_engine_load", "telephony_tts_circuit_open", "process_max_fds"})
"""Gauges of which the page has the largest."""
_SMALLEST = frozenset({"process_start_time_seconds", "telephony_tts_experiment_arm_on"})
_OF_ENGINES = frozenset({"telephony_tts_engine_queued", "telephony_tts_engine_running", "telephony_tts_engine_work"})
"""Gauges of an engine. If all fronts share the engine, each of them has the value of the whole."""
_ADDED_TYPES = frozenset({"counter", "histogram", "summary"})

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """A metric: its type, its text, and its samples by name and labels, in their order."""

    type: str
    text: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


Families = dict[str, Family]


def snapshot(collector: CollectorRegistry) -> Families:
    """All metrics of this process now."""
    found: Families = {}
    for metric in collector.collect():
        family = found[metric.name] = Family(metric.type, metric.documentation)
        for sample in metric.samples:
            family.samples[sample.name, tuple(sorted(sample.labels.items()))] = float(sample.value)
    return found


def packed(families: Families) -> bytes:
    """As bytes, for `unpacked`."""
    whole = {
        name: [family.type, family.text, [[*key, value] for key, value in family.samples.items()]]
        for name, family in families.items()
    }
    return json.dumps(whole).encode()


def unpacked(data: bytes) -> Families:
    """The opposite of `packed`. Raises ValueError for other bytes."""
    try:
        return {
            name: Family(kind, text, {
                (sample, tuple((key, word) for key, word in labels)): float(value) for sample, labels, value in samples
            })
            for name, (kind, text, samples) in json.loads(data).items()
        }  # fmt: skip
    except (AttributeError, TypeError) as error:
        raise ValueError(f"these {len(data)} bytes are no metrics: {error}") from error


def added(running: Iterable[Families], ended: Iterable[Families], shared: frozenset[str] = frozenset()) -> Families:
    """The metrics of fronts that run and of fronts that have ended. `shared`: engines that all fronts use together."""
    whole: Families = {}
    for families in running:
        _add(whole, families, shared)
    for families in ended:
        of_past = {name: family for name, family in families.items() if family.type in _ADDED_TYPES}
        _add(whole, of_past, shared)
    return whole


def _add(whole: Families, families: Families, shared: frozenset[str]) -> None:
    for name, family in families.items():
        into = whole.setdefault(name, Family(family.type, family.text))
        for key, value in family.samples.items():
            before = into.samples.get(key)
            into.samples[key] = value if before is None else _joined(name, key, before, value, shared)


def _joined(name: str, key: tuple[str, Labels], one: float, other: float, shared: frozenset[str]) -> float:
    sample, labels = key
    if name in _LARGEST or (name in _OF_ENGINES and dict(labels).get("engine") in shared):
        return max(one, other)
    if name in _SMALLEST or sample.endswith("_created"):
        return min(one, other)
    return one + other


def page(families: Mapping[str, Family]) -> tuple[bytes, str]:
    """The body of `/metrics`, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Whole(families))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Whole(Collector):
    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.text, family.type)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
