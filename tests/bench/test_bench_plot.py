"""The chart: how results are read, and that a chart is drawn."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.bench.plot import PUBLISHED_MS, Series, draw, read_series
from telephony_tts.runtime.errors import ConfigError


def result(path: Path, *rows: tuple[str, int, float | None, float | None]) -> Path:
    keys = ("mode", "concurrency", "first_audio_ms_p50", "first_audio_ms_p95")
    results = [dict(zip(keys, row, strict=True)) for row in rows]
    path.write_text(json.dumps({"machine": {}, "commit": None, "settings": {}, "results": results}))
    return path


def test_each_loop_of_a_result_is_a_line_of_its_own(tmp_path: Path) -> None:
    one = result(
        tmp_path / "l20.json", ("closed", 4, 90.0, 120.0), ("closed", 1, 50.0, 60.0), ("open", 2, 70.0, 99.0),
        ("open", 64, None, None),
    )  # fmt: skip
    assert read_series([one]) == [
        Series("closed loop", [1, 4], [50.0, 90.0], [60.0, 120.0]),
        Series("open loop", [2], [70.0], [99.0]),
    ]
    two = result(tmp_path / "h200.json", ("closed", 1, 20.0, 30.0))
    labels = [series.label for series in read_series([one, two])]
    assert labels == ["l20, closed loop", "l20, open loop", "h200, closed loop"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "is not a result of"),
        ("[]", "is not a result of"),
        ('{"results": 3}', "is not a result of"),
        ('{"results": [{"mode": "closed"}]}', "is not a result of"),
        (
            '{"results": [{"mode": "closed", "concurrency": 0, "first_audio_ms_p50": 1, "first_audio_ms_p95": 1}]}',
            "is not a result of",
        ),
        ('{"results": []}', "nothing to draw"),
        ('{"results": [{"mode": "closed", "first_audio_ms_p50": null}]}', "nothing to draw"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_not_a_result_is_an_error(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=words) as told:
        read_series([file])
    assert str(file) in told.value.message


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 20_000
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.slow
def test_a_chart_is_drawn(tmp_path: Path) -> None:
    closed = Series("closed loop", [1, 2, 64], [40.0, 55.5, 4000.0], [50.0, 80.0, 9000.0])
    draw([closed, Series("open loop", [2], [7], [8])], tmp_path / "out.png")
    assert png_size(tmp_path / "out.png") == (1200, 750)


def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, series: list[Series]) -> Any:
    """The axes of the chart."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    draw(series, tmp_path / "out.png")
    return figures[0].axes[0]


def test_the_chart_has_our_figures_the_published_ones_and_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn(tmp_path, monkeypatch, [Series("ours", [1, 8], [40.0, 90.0], [50.0, 5000.0])])
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
    assert lines["ours, p50"] == ([1, 8], [40.0, 90.0]) and lines["ours, p95"] == ([1, 8], [50.0, 5000.0])
    assert lines["300 ms"][1] == [300, 300]
    assert lines["published CosyVoice2 servers"] == ([1, 1], [190, 209])
    published = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    assert ([4, 4], [510, 980]) in published and ([8], [1000]) in published
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == [1, 2, 4, 8]
    low, high = axes.get_ylim()
    assert low < 40 and high > 5000
    assert set(PUBLISHED_MS) == {1, 2, 4, 8}


def test_an_unknown_format_and_a_file_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    series = [Series("ours", [1], [40.0], [50.0])]
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf"):
        draw(series, tmp_path / "out.txt")
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        draw(series, tmp_path / "nowhere" / "out.png")


def test_without_matplotlib_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r".venv/bin/pip install -e '\.\[bench\]'") as told:
        draw([Series("ours", [1], [40.0], [50.0])], tmp_path / "out.png")
    assert "\n" not in told.value.message
