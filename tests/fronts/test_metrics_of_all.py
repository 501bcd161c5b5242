"""The metrics of all fronts as one page, also of fronts that have ended."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from telephony_tts.fronts.front import Front
from telephony_tts.fronts.loads import Loads
from telephony_tts.fronts.metrics_folder import add_ended, keep, with_ended
from telephony_tts.fronts.metrics_of_all import Families, added, metrics_of, packed, snapshot, unpacked
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime.metrics import LoopHistogram, encode


class One:
    """The metrics of a pretended front."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.turns = Counter("telephony_tts_turns_total", "Turns.", ["outcome"], registry=registry)
        self.live = Gauge("telephony_tts_calls_live", "Calls.", ["media"], registry=registry)
        self.load = Gauge("telephony_tts_engine_load", "Load.", ["engine"], registry=registry)
        self.queued = Gauge("telephony_tts_engine_queued", "Queued.", ["engine"], registry=registry)
        self.started = Gauge("process_start_time_seconds", "Start.", registry=registry)
        self.late = LoopHistogram("telephony_tts_frame_lateness_ms", "Late.", (1, 5), registry)
        self.rtf = Histogram("telephony_tts_synthesis_rtf", "RTF.", ["engine"], buckets=(1, 2), registry=registry)

    def families(self) -> Families:
        return unpacked(packed(snapshot(self.registry)))


def page(families: Families, accept: str = "") -> str:
    return b"".join(encode(metrics_of(families), accept)).decode()


def values(families: Families) -> dict[str, float]:
    """The samples of the page, as Prometheus reads it."""
    found = {}
    for family in text_string_to_metric_families(page(families)):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def two() -> tuple[One, One]:
    one, other = One(), One()
    one.turns.labels("done").inc(3)
    other.turns.labels("done").inc(4)
    other.turns.labels('odd "quote"\n').inc()
    one.live.labels("twilio").set(2)
    other.live.labels("twilio").set(5)
    one.load.labels("a").set(0.25)
    other.load.labels("a").set(0.75)
    one.queued.labels("a").set(2)
    other.queued.labels("a").set(3)
    one.started.set(100)
    other.started.set(90)
    one.late.observe(0.5, 10)
    one.late.observe(7)
    other.late.observe(3, 2)
    one.rtf.labels("a").observe(0.5)
    other.rtf.labels("a").observe(1.5)
    return one, other


def test_samples_are_added_by_their_type() -> None:
    one, other = two()
    whole = values(added([one.families(), other.families()], []))
    assert whole["telephony_tts_turns_total{outcome=done}"] == 7
    assert whole['telephony_tts_turns_total{outcome=odd "quote"\n}'] == 1
    assert whole["telephony_tts_calls_live{media=twilio}"] == 7
    assert whole["telephony_tts_engine_load{engine=a}"] == 0.75, "a load is not a sum"
    assert whole["telephony_tts_engine_queued{engine=a}"] == 5
    assert whole["process_start_time_seconds"] == 90
    buckets = [whole[f"telephony_tts_frame_lateness_ms_bucket{{le={le}}}"] for le in ("1.0", "5.0", "+Inf")]
    assert buckets == [10, 12, 13] and whole["telephony_tts_frame_lateness_ms_count"] == 13
    assert whole["telephony_tts_frame_lateness_ms_sum"] == pytest.approx(5 + 7 + 6)
    assert whole["telephony_tts_synthesis_rtf_bucket{engine=a,le=1.0}"] == 1
    assert whole["telephony_tts_synthesis_rtf_count{engine=a}"] == 2


def test_one_front_alone_has_the_page_of_one_process() -> None:
    from prometheus_client import generate_latest

    one, _ = two()
    whole = page(added([one.families()], []))
    alone = generate_latest(one.registry).decode()
    assert sorted(whole.splitlines()) == sorted(alone.splitlines())


def test_of_two_exemplars_of_a_bucket_the_later_one_stays() -> None:
    one, other = One(), One()
    one.rtf.labels("a").observe(0.5, {"call": "first"})
    other.rtf.labels("a").observe(0.6, {"call": "later"})
    one.rtf.labels("a").observe(1.5, {"call": "of another bucket"})
    whole = added([one.families(), other.families()], [])
    text = page(whole, "application/openmetrics-text; version=1.0.0")
    read = {
        sample.labels["le"]: sample.exemplar.labels["call"]
        for family in open_metrics.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert read == {"1.0": "later", "2.0": "of another bucket"}
    assert "later" not in page(whole, "text/plain")


def test_what_is_the_same_for_all_fronts_is_not_added_up() -> None:
    families: list[Families] = []
    for free in (70, 60):
        registry = CollectorRegistry()
        Info("telephony_tts_build", "Build.", registry=registry).info({"version": "1"})
        Gauge("telephony_tts_fronts_wanted", "Wanted.", registry=registry).set(2)
        Gauge("telephony_tts_fronts_ready", "Ready.", registry=registry).set(1)
        Gauge("telephony_tts_calls_limit", "Limit.", ["of"], registry=registry).labels("calls").set(200)
        Gauge("telephony_tts_disk_free_bytes", "Free.", ["folder"], registry=registry).labels("phrases").set(free)
        Gauge("telephony_tts_disk_size_bytes", "Size.", ["folder"], registry=registry).labels("phrases").set(100)
        families.append(unpacked(packed(snapshot(registry))))
    whole = values(added(families, []))
    assert whole["telephony_tts_build_info{version=1}"] == 1 and whole["telephony_tts_fronts_wanted"] == 2
    assert whole["telephony_tts_fronts_ready"] == 2 and whole["telephony_tts_calls_limit{of=calls}"] == 200
    assert whole["telephony_tts_disk_free_bytes{folder=phrases}"] == 60
    assert whole["telephony_tts_disk_size_bytes{folder=phrases}"] == 100


def test_an_engine_that_all_share_is_not_counted_for_each_front() -> None:
    one, other = two()
    whole = values(added([one.families(), other.families()], [], frozenset({"a"})))
    assert whole["telephony_tts_engine_queued{engine=a}"] == 3


def test_of_a_front_that_has_ended_only_what_it_counted_remains() -> None:
    one, other = two()
    whole = values(added([one.families()], [other.families()]))
    assert whole["telephony_tts_turns_total{outcome=done}"] == 7
    assert whole["telephony_tts_frame_lateness_ms_count"] == 13
    assert whole["telephony_tts_calls_live{media=twilio}"] == 2
    assert whole["telephony_tts_engine_load{engine=a}"] == 0.25 and whole["process_start_time_seconds"] == 100


def turns(folder: Path, **running: One) -> float:
    now, ended = with_ended(folder, {name: one.families() for name, one in running.items()})
    return values(added(now, ended))["telephony_tts_turns_total{outcome=done}"]


def test_a_counter_never_goes_down_while_fronts_come_and_go(tmp_path: Path) -> None:
    one, other = two()
    keep(tmp_path, "0.1", packed(one.families()))
    keep(tmp_path, "1.1", packed(other.families()))
    assert turns(tmp_path, a=one, b=other) == 7 + 7  # as if both were others of theirs
    assert turns(tmp_path, **{"0.1": one, "1.1": other}) == 7
    # 1.1 is killed. Its file counts before and after the supervisor has added it to the sum.
    assert turns(tmp_path, **{"0.1": one}) == 7
    add_ended(tmp_path, "1.1")
    assert not (tmp_path / "1.1").exists() and turns(tmp_path, **{"0.1": one}) == 7
    # One that was asked just before it was killed is not counted twice.
    assert turns(tmp_path, **{"0.1": one, "1.1": other}) == 7
    again = One()
    again.turns.labels("done").inc()
    keep(tmp_path, "1.2", packed(again.families()))
    assert turns(tmp_path, **{"0.1": one, "1.2": again}) == 8
    add_ended(tmp_path, "1.2")
    add_ended(tmp_path, "0.1")
    assert turns(tmp_path) == 8


def test_the_supervisor_may_be_stopped_between_the_sum_and_the_file(tmp_path: Path) -> None:
    one, _ = two()
    keep(tmp_path, "0.1", packed(one.families()))
    kept = (tmp_path / "0.1").read_bytes()
    add_ended(tmp_path, "0.1")
    (tmp_path / "0.1").write_bytes(kept)
    assert turns(tmp_path) == 3


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    one, _ = two()
    keep(tmp_path, "0.1", packed(one.families()))
    (tmp_path / "1.1").write_bytes(b"{")
    (tmp_path / "2.1").write_bytes(b'{"a": 1}')
    (tmp_path / "3.1.part").write_bytes(b"")
    assert turns(tmp_path) == 3
    add_ended(tmp_path, "1.1")
    add_ended(tmp_path, "9.9")
    assert turns(tmp_path) == 3


@pytest.mark.slow
def test_a_full_folder_costs_the_kept_metrics_and_not_the_page(short: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The front says so and answers all the same."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", short], capture_output=True).returncode:
        pytest.skip("only root can make a file system that is full")
    try:
        folder = RuntimeFolder.make(str(short))
        loads = Loads(folder.loads, 1, create=True)
        front = Front(folder, loads, 0, 1)
        with (folder.path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        text = b"".join(encode(asyncio.run(front.metrics(lambda: None)), ""))
        assert b"telephony_tts_fronts" in text
        (line,) = [record for record in caplog.records if record.message == "metrics_not_kept"]
        assert os.strerror(errno.ENOSPC) in str(line.__dict__)
        loads.close()
        folder.close()
    finally:
        subprocess.run(["umount", short], check=True)
