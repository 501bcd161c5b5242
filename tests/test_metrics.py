"""The metrics as a scraper sees them, read with the library's parser."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from telephony_tts import metrics
from telephony_tts.metrics import LoopHistogram, value


def exposed(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(body.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.7, 1.0, 3.0, 10.0, 11.0, 1e6]), st.integers(1, 3))))
def test_the_loop_histogram_exposes_the_same_samples_as_the_librarys(observed: list[tuple[float, int]]) -> None:
    """The same observations, at and between the bounds, give the same samples."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = LoopHistogram("lateness_ms", "How late.", (0.5, 1, 10), ours)
    slow = Histogram("lateness_ms", "How late.", buckets=(0.5, 1, 10), registry=theirs)
    for amount, n in observed:
        fast.observe(amount, n)
        for _ in range(n):
            slow.observe(amount)
    expected = {key: v for key, v in exposed(generate_latest(theirs)).items() if not key[0].endswith("_created")}
    assert exposed(generate_latest(ours)) == pytest.approx(expected)


def test_a_name_can_be_used_only_once() -> None:
    registry = CollectorRegistry()
    LoopHistogram("lateness_ms", "How late.", (1,), registry)
    with pytest.raises(ValueError, match="Duplicated"):
        LoopHistogram("lateness_ms", "How late.", (1,), registry)


def test_render_shows_observations_under_names_with_units() -> None:
    before = exposed(metrics.render()[0])
    metrics.FRAME_LATENESS_MS.observe(7.0, 2)
    metrics.FIRST_AUDIO_MS.observe(35)
    metrics.SENT_BYTES.labels(leg="media").inc(160)
    metrics.TURNS.labels(outcome="cleared").inc()
    metrics.ENGINE_QUEUED.labels(engine="hibari").set(4)
    metrics.SYNTHESIS_RTF.labels(engine="hibari").observe(0.04)
    body, content_type = metrics.render()
    after = exposed(body)

    def assert_grew(by: float, name: str, **labels: str) -> None:
        key = f"telephony_tts_{name}", tuple(sorted(labels.items()))
        # Compare sums: a difference is rounded if fractions were observed before.
        assert after[key] == before.get(key, 0.0) + by, key

    assert_grew(0, "frame_lateness_ms_bucket", le="5.0")
    assert_grew(2, "frame_lateness_ms_bucket", le="10.0")
    assert_grew(2, "frame_lateness_ms_bucket", le="+Inf")
    assert_grew(14, "frame_lateness_ms_sum")
    assert_grew(0, "first_audio_ms_bucket", le="20.0")
    assert_grew(1, "first_audio_ms_bucket", le="40.0")
    assert_grew(1, "first_audio_ms_count")
    assert_grew(160, "sent_bytes_total", leg="media")
    assert_grew(0, "sent_bytes_total", leg="bot")
    assert_grew(1, "turns_total", outcome="cleared")
    assert_grew(0, "turns_total", outcome="done")
    assert after["telephony_tts_engine_queued", (("engine", "hibari"),)] == 4
    assert_grew(1, "synthesis_rtf_bucket", engine="hibari", le="0.05")
    assert content_type.startswith("text/plain")


def test_every_known_label_value_is_there_from_the_start() -> None:
    samples = exposed(metrics.render()[0])
    for name, label, values in (
        ("calls_live", "media", metrics.MEDIA_KINDS),
        ("calls_total", "media", metrics.MEDIA_KINDS),
        ("turns_total", "outcome", metrics.OUTCOMES),
        ("marks_total", "state", metrics.MARK_STATES),
        ("refused_total", "reason", metrics.REFUSALS),
        ("caller_speech_total", "outcome", metrics.SPEECH_OUTCOMES),
        ("sent_bytes_total", "leg", metrics.LEGS),
        ("received_bytes_total", "leg", metrics.LEGS),
    ):
        for item in values:
            assert (f"telephony_tts_{name}", ((label, item),)) in samples


def test_nothing_of_ours_is_in_the_librarys_global_registry() -> None:
    assert b"telephony_tts_" not in generate_latest(prometheus_client.REGISTRY)


def test_value_reads_one_sample_and_refuses_an_unknown_one() -> None:
    before = value("telephony_tts_marks_total", state="played")
    metrics.MARKS.labels(state="played").inc(3)
    assert value("telephony_tts_marks_total", state="played") == before + 3
    with pytest.raises(KeyError, match="marks_total"):
        value("telephony_tts_marks_total", state="lost")
