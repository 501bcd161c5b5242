"""The metrics as a scraper sees them, read with the library's parser."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from telephony_tts.app.config import doors
from telephony_tts.runtime import metrics
from telephony_tts.runtime.metrics import BoundedLabel, LoopHistogram, value
from telephony_tts.transport.door import Doors

WAYS = Doors(doors())
metrics.know_doors(WAYS.media_kinds, WAYS.bot_names)


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
    assert exposed(generate_latest(ours)) == pytest.approx(exposed(generate_latest(theirs)))


def test_a_name_can_be_used_only_once() -> None:
    registry = CollectorRegistry()
    LoopHistogram("lateness_ms", "How late.", (1,), registry)
    with pytest.raises(ValueError, match="Duplicated"):
        LoopHistogram("lateness_ms", "How late.", (1,), registry)


def test_render_shows_observations_under_names_with_units() -> None:
    before = exposed(metrics.render()[0])
    metrics.FRAME_LATENESS_MS.observe(7.0, 2)
    metrics.FIRST_AUDIO_MS.labels(door="openai").observe(35)
    metrics.SENT_BYTES.labels(leg="media").inc(160)
    metrics.TURNS.labels(door="native", outcome="cleared").inc()
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
    assert_grew(0, "first_audio_ms_bucket", door="openai", le="20.0")
    assert_grew(1, "first_audio_ms_bucket", door="openai", le="40.0")
    assert_grew(1, "first_audio_ms_count", door="openai")
    assert_grew(0, "first_audio_ms_count", door="native")
    assert_grew(160, "sent_bytes_total", leg="media")
    assert_grew(0, "sent_bytes_total", leg="bot")
    assert_grew(1, "turns_total", door="native", outcome="cleared")
    assert_grew(0, "turns_total", door="native", outcome="done")
    assert after["telephony_tts_engine_queued", (("engine", "hibari"),)] == 4
    assert_grew(1, "synthesis_rtf_bucket", engine="hibari", le="0.05")
    assert content_type.startswith("text/plain")


def test_every_known_label_value_is_there_from_the_start() -> None:
    samples = exposed(metrics.render()[0])
    for name, label, values in (
        ("calls_live", "media", WAYS.media_kinds),
        ("calls_total", "media", WAYS.media_kinds),
        ("marks_total", "state", metrics.MARK_STATES),
        ("refused_total", "reason", metrics.REFUSALS),
        ("caller_speech_total", "outcome", metrics.SPEECH_OUTCOMES),
        ("sent_bytes_total", "leg", metrics.LEGS),
        ("received_bytes_total", "leg", metrics.LEGS),
    ):
        for item in values:
            assert (f"telephony_tts_{name}", ((label, item),)) in samples
    for door in WAYS.bot_names:
        for outcome in metrics.OUTCOMES:
            assert ("telephony_tts_turns_total", (("door", door), ("outcome", outcome))) in samples
        assert ("telephony_tts_first_audio_ms_count", (("door", door),)) in samples


def test_nothing_of_ours_is_in_the_librarys_global_registry() -> None:
    assert b"telephony_tts_" not in generate_latest(prometheus_client.REGISTRY)


def test_value_reads_one_sample_and_refuses_an_unknown_one() -> None:
    before = value("telephony_tts_marks_total", state="played")
    metrics.MARKS.labels(state="played").inc(3)
    assert value("telephony_tts_marks_total", state="played") == before + 3
    with pytest.raises(KeyError, match="marks_total"):
        value("telephony_tts_marks_total", state="lost")


def test_value_adds_up_the_labels_that_are_not_given() -> None:
    before = value("telephony_tts_turns_total", outcome="error")
    metrics.TURNS.labels("native", "error").inc(2)
    metrics.TURNS.labels("cartesia", "error").inc(3)
    assert value("telephony_tts_turns_total", outcome="error") == before + 5


# ------------------------------------------------------------------ OpenMetrics

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"
"""As Prometheus asks."""


def test_a_scraper_that_asks_for_open_metrics_gets_exemplars() -> None:
    metrics.FIRST_AUDIO_MS.labels("vapi").observe(35, {"call": "CA-scraped", "turn": "t1", "trace_id": "0" * 31 + "1"})
    page, content_type = metrics.render(OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text") and page.endswith(b"# EOF\n")
    assert page.count(b"# EOF") == 1
    families = {family.name: family for family in open_metrics.text_string_to_metric_families(page.decode())}
    (found,) = [
        sample
        for sample in families["telephony_tts_first_audio_ms"].samples
        if sample.exemplar is not None and sample.exemplar.labels.get("call") == "CA-scraped"  # others have spoken, too
    ]
    assert found.labels["le"] == "40.0" and found.exemplar is not None and found.exemplar.value == 35
    assert found.exemplar.labels == {"call": "CA-scraped", "turn": "t1", "trace_id": "0" * 31 + "1"}
    # The other form has the same samples, and no exemplars.
    plain, plain_type = metrics.render("text/plain")
    assert plain_type.startswith("text/plain") and b"CA-scraped" not in plain
    names = {sample.name for family in families.values() for sample in family.samples}
    assert {name for name, _ in exposed(plain)} == names


def test_the_page_comes_in_pieces_of_one_metric() -> None:
    """So the event loop can send frames between two of them."""
    for accept in ("", OPEN_METRICS):
        pieces = list(metrics.encode(metrics.REGISTRY.collect(), accept))
        heads = [piece.splitlines()[0] for piece in pieces if piece != b"# EOF\n"]
        assert len(heads) == len(set(heads)) > 50
        assert all(piece.count(b"# TYPE") <= 2 for piece in pieces), "OpenMetrics has info and gauge apart"
        assert max(piece.count(b"\n") for piece in pieces) < 300


def test_no_series_has_the_time_at_which_it_was_made() -> None:
    """They would double the number of counters."""
    assert not [name for name, _ in exposed(metrics.render()[0]) if name.endswith("_created")]


# ------------------------------------------------------------------- few series


@given(st.lists(st.text(max_size=80)))
def test_a_label_has_no_more_values_than_its_limit(values: list[str]) -> None:
    label = BoundedLabel(3)
    given_labels = [label.of(each) for each in values]
    assert len(set(given_labels) - {"other"}) <= 3
    for each, got in zip(values, given_labels, strict=True):
        assert got in (each, "other")
        assert got == "other" or got.isprintable()


def test_the_first_plain_values_of_a_label_keep_their_names() -> None:
    label = BoundedLabel(2)
    assert [label.of(v) for v in ("anna", 'x"}\n', "", "y" * 65, "zh-CN female 1")] == [
        "anna", "other", "other", "other", "zh-CN female 1",
    ]  # fmt: skip
    assert label.of("third") == "other" and label.of("anna") == "anna"
    assert BoundedLabel(2).of("unlisted", lambda: False) == "other"


@pytest.mark.parametrize(
    "accept", ["", "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5", "text/plain;version=1.0.0"]
)
def test_a_page_made_a_metric_at_a_time_is_the_librarys_page(accept: str) -> None:
    registry = CollectorRegistry()
    turns = prometheus_client.Counter("turns", 'Turns "that" have\nended.', ["door"], registry=registry)
    turns.labels('a"b\\c').inc()
    Histogram("wait_ms", "Wait.", registry=registry).observe(3, {"call": "CA1"})
    prometheus_client.Info("build", "What runs.", registry=registry).info({"version": "1"})
    page = b"".join(metrics.encode(registry.collect(), accept))
    assert page == choose_encoder(accept)[0](registry)
