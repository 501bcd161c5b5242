"""The metrics of all fronts as one page: the samples of each are added up by their type. Pure, but for the registry.

Counters and histograms are sums over all fronts that ever ran, also those that have ended: a counter never goes down.
Gauges are sums over the fronts that run, except those of `_LARGEST` and `_SMALLEST`. Of the exemplars of a sample the
latest stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

_LARGEST = frozenset({
    "telephony_tts_engine_load", "telephony_tts_circuit_open", "process_max_fds", "telephony_tts_build",
    "telephony_tts_calls_limit", "telephony_tts_fronts_wanted", "telephony_tts_disk_size_bytes",
})  # fmt: skip
"""Gauges of which the page has the largest."""
_SMALLEST = frozenset({
    "process_start_time_seconds", "telephony_tts_disk_free_bytes", "telephony_tts_experiment_arm_on",
    "telephony_tts_certificate_expires_timestamp_seconds",
})  # fmt: skip
_OF_ENGINES = frozenset({
    "telephony_tts_engine_queued", "telephony_tts_engine_running", "telephony_tts_engine_work",
    "telephony_tts_engine_replicas", "telephony_tts_engine_restarts",
})  # fmt: skip
"""Gauges of an engine. If all fronts share the engine, each of them has the value of the whole."""
_ADDED_TYPES = frozenset({"counter", "histogram", "summary"})

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """A metric: its type, its text, its samples by name and labels, in their order, and the exemplars of some."""

    type: str
    text: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    exemplars: dict[tuple[str, Labels], Exemplar] = field(default_factory=dict)


Families = dict[str, Family]


def snapshot(collector: CollectorRegistry) -> Families:
    """All metrics of this process now."""
    found: Families = {}
    for metric in collector.collect():
        family = found[metric.name] = Family(metric.type, metric.documentation)
        for sample in metric.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            family.samples[key] = float(sample.value)
            if sample.exemplar is not None:
                family.exemplars[key] = sample.exemplar
    return found


def packed(families: Families) -> bytes:
    """As bytes, for `unpacked`."""
    whole = {
        name: [
            family.type, family.text, [[*key, value] for key, value in family.samples.items()],
            [[*key, each.labels, each.value, each.timestamp] for key, each in family.exemplars.items()],
        ]
        for name, family in families.items()
    }
    return json.dumps(whole).encode()


def unpacked(data: bytes) -> Families:
    """The opposite of `packed`. Raises ValueError for other bytes."""
    try:
        return {
            name: Family(
                kind, text,
                {(sample, _labels(labels)): float(value) for sample, labels, value in samples},
                {
                    (sample, _labels(labels)): Exemplar(dict(about), float(value), float(at_s))
                    for sample, labels, about, value, at_s in exemplars
                },
            )
            for name, (kind, text, samples, exemplars) in json.loads(data).items()
        }  # fmt: skip
    except (AttributeError, TypeError) as error:
        raise ValueError(f"these {len(data)} bytes are no metrics: {error}") from error


def _labels(packed_labels: Iterable[tuple[str, str]]) -> Labels:
    return tuple((key, word) for key, word in packed_labels)


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
        for key, exemplar in family.exemplars.items():
            known = into.exemplars.get(key)
            if known is None or float(exemplar.timestamp or 0) > float(known.timestamp or 0):
                into.exemplars[key] = exemplar


def _joined(name: str, key: tuple[str, Labels], one: float, other: float, shared: frozenset[str]) -> float:
    if name in _LARGEST or (name in _OF_ENGINES and dict(key[1]).get("engine") in shared):
        return max(one, other)
    if name in _SMALLEST:
        return min(one, other)
    return one + other


def metrics_of(families: Mapping[str, Family]) -> Iterator[Metric]:
    """As the library has metrics, for `metrics.encode`."""
    for name, family in families.items():
        metric = Metric(name, family.text, family.type)
        for (sample, labels), value in family.samples.items():
            metric.add_sample(sample, dict(labels), value, exemplar=family.exemplars.get((sample, labels)))
        yield metric
