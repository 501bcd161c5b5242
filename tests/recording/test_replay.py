"""A recording read back and drawn: a whole one, damaged ones, and other files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
import struct
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telephony_tts.cli import main as cli
from telephony_tts.recording.page import page
from telephony_tts.recording.replay import Replay, Span, read_recording
from telephony_tts.recording.stereo import header
from telephony_tts.runtime.errors import ConfigError

EVIL = '</text><script>alert(1)</script> "quoted" & <img src=x onerror=alert(2)> $\\frac{'
ROWS: list[dict[str, Any]] = [
    {"ms": 0, "by": "server", "type": "recording", "version": 1, "wav": "x.wav", "call": EVIL, "unix_s": 1.8e9},
    {"ms": 100, "by": "bot", "type": "text", "turn": "t1", "text": "Hello "},
    {"ms": 120, "by": "bot", "type": "text", "turn": "t1", "text": "there."},
    {"ms": 130, "by": "server", "type": "started", "turn": "t1", "first_audio_ms": 12.5, "heard_ms": 130},
    {"ms": 200, "by": "server", "type": "sentence", "turn": "t1", "index": 0, "text": EVIL, "start_ms": 0,
     "end_ms": 1000, "heard_ms": 130},
    {"ms": 201, "by": "server", "type": "words", "turn": "t1", "index": 0, "basis": "engine",
     "words": [{"text": "Hello", "start_ms": 0, "end_ms": 400, "from": 0, "to": 5},
               {"text": "there.", "start_ms": 450, "end_ms": 1000, "from": 6, "to": 12}]},
    {"ms": 600, "by": "server", "type": "paused", "turn": "t1", "heard_text": "Hello", "heard_ms": 470,
     "reason": "bot"},
    {"ms": 1000, "by": "server", "type": "resumed", "turn": "t1", "from_ms": 450},
    {"ms": 1500, "by": "server", "type": "cleared", "turn": "t1", "heard_text": "Hello there", "heard_ms": 950,
     "reason": "barge_in", "unheard_text": ""},
    {"ms": 1500, "by": "server", "type": "mark", "name": "<b>m</b>", "state": "cleared"},
    {"ms": 1400, "by": "server", "type": "caller", "state": "speaking"},
    {"ms": 1900, "by": "server", "type": "caller", "state": "silent", "spoken_ms": 480, "interrupted": True},
    {"ms": 1950, "by": "server", "type": "dtmf", "digit": "5"},
    {"ms": 1960, "by": "server", "type": "done", "turn": "t2", "latency": {"queue_ms": 3.0, "first_pcm_ms": 40.25}},
    {"ms": 130, "by": "server", "type": "heard", "end_ms": 600},
    {"ms": 2000, "by": "server", "type": "ended", "reason": "call_ended", "length_ms": 2000},
]  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The path of a timeline with its WAV file: 2 s, a loud caller in the second one."""
    both = np.zeros((16_000, 2), "<i2")
    both[8000:, 0] = 16_384
    both[1040:4800, 1] = 8_192
    (tmp_path / "x.wav").write_bytes(header(16_000) + both.tobytes())
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "x.jsonl"


class Reader(HTMLParser):
    """All tags with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_recording_is_read_with_its_times(recording: Path) -> None:
    replay = read_recording(recording)
    assert replay.length_ms == 2000 and replay.problems == []
    assert replay.lanes["paused"] == [Span(600, 1000)]
    assert replay.lanes["speaking"] == [Span(1400, 1900)]
    assert replay.lanes["heard"] == [Span(130, 600)]
    words = [(span.start_ms, span.end_ms, span.label) for span in replay.lanes["words"]]
    assert words == [(130, 530, "Hello"), (580, 600, "there."), (1000, 1500, "there.")], "cut by pause and clear"
    sentences = [(span.start_ms, span.end_ms) for span in replay.lanes["sentences"]]
    assert sentences == [(130, 600), (1000, 1500)]
    assert (100, "bot", "Hello there.") in replay.story, "pieces of a turn are one line"
    assert [turn.stages for turn in replay.turns] == [{}, {"queue_ms": 3.0, "first_pcm_ms": 40.25}]
    left, right = replay.peaks(0, 4), replay.peaks(1, 4)
    assert left.tolist() == [0, 0, 0.5, 0.5] and right.tolist() == [0.25, 0.25, 0, 0]
    assert read_recording(recording.with_suffix(".wav")).lanes == replay.lanes


PAUSED_AT_600 = [
    {"ms": 100, "by": "server", "type": "started", "turn": "a", "first_audio_ms": 1, "heard_ms": 100},
    {"ms": 600, "by": "server", "type": "paused", "turn": "a", "heard_ms": 500, "reason": "barge_in"},
]
ENDED_AT_2000 = [{"ms": 2000, "by": "server", "type": "ended", "reason": "call_ended", "length_ms": 2000}]


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([("cleared", 800, "a"), ("started", 1200, "b"), ("done", 1900, "b")], [Span(600, 800)]),
        ([("cleared", 800, "a"), ("paused", 1000, "b"), ("resumed", 1500, "b")], [Span(600, 800), Span(1000, 1500)]),
        ([("cleared", 800, "a")], [Span(600, 800)]),
        ([("cleared", 800, "a"), ("resumed", 1000, "b"), ("started", 1000, "b")], [Span(600, 1000)]),
        ([("paused", 900, "a"), ("resumed", 1200, "a")], [Span(600, 1200)]),
        ([], [Span(600, 2000)]),
    ],
    ids=["cleared", "cleared, paused anew", "cleared at last", "the next turn waited", "taken over", "to the end"],
)  # fmt: skip
def test_a_pause_is_drawn_as_long_as_it_was(
    rows: list[tuple[str, int, str]], spans: list[Span], recording: Path
) -> None:
    """Pinned: all that followed a pause that was cleared was drawn as paused."""
    more = [{"ms": ms, "by": "server", "type": kind, "turn": turn, "from_ms": 450} for kind, ms, turn in rows]
    recording.write_text("".join(json.dumps(row) + "\n" for row in [ROWS[0], *PAUSED_AT_600, *more, *ENDED_AT_2000]))
    assert read_recording(recording).lanes["paused"] == spans


def test_the_page_loads_nothing_and_runs_nothing_of_the_recording(recording: Path) -> None:
    read = Reader(page(read_recording(recording)))
    tags = [tag for tag, _ in read.tags]
    assert tags.count("script") == 1 and "img" not in tags and "link" not in tags and "iframe" not in tags
    handlers = [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert handlers == []
    sources = [attributes.get("src") or attributes.get("href") for _, attributes in read.tags]
    assert [source for source in sources if source] == ["x.wav"]
    assert "http" not in re.sub(r"\s", "", page(read_recording(recording))).replace("http-equiv", "")
    assert "url(" not in page(read_recording(recording)) and "@import" not in page(read_recording(recording))
    assert EVIL in read.text, "it is shown as it was said"


def test_the_page_suits_a_telephone_and_both_lights(recording: Path) -> None:
    html = page(read_recording(recording))
    assert 'name="viewport" content="width=device-width,initial-scale=1"' in html
    assert "prefers-color-scheme:dark" in html and "color-scheme:light dark" in html and '<html lang="en">' in html
    read = Reader(html)
    buttons = [attributes["data-ms"] for tag, attributes in read.tags if tag == "button"]
    assert "100" in buttons and "1950" in buttons
    bars = [attributes["title"] for tag, attributes in read.tags if tag == "i" and "title" in attributes]
    assert "engine's first audio: 40.2 ms" in bars


def test_an_hour_is_a_page_of_a_few_hundred_kilobytes(recording: Path) -> None:
    recording.with_suffix(".wav").write_bytes(header(3600 * 8000)[:44] + bytes(4))
    rows = [ROWS[0], *({"ms": n * 1000, "by": "server", "type": "dtmf", "digit": "1"} for n in range(3600))]
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = read_recording(recording)
    replay.length_ms = 3_600_000
    assert len(page(replay)) < 2_000_000


# ----------------------------------------------------------------- damaged files


def test_what_a_killed_server_leaves_is_read_as_far_as_it_goes(recording: Path) -> None:
    text = recording.read_bytes()
    recording.write_bytes(text[: text.index(b'"cleared"')])
    wav = recording.with_suffix(".wav")
    wav.write_bytes(wav.read_bytes()[:30_001])
    replay = read_recording(recording)
    assert len(replay.samples) == (30_001 - 44) // 4
    assert any("no end" in problem for problem in replay.problems)
    assert any("1 lines" in problem for problem in replay.problems)
    assert "no end" in Reader(page(replay)).text


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 5000, b"\xff\xfe garbage", b"{}\n" * 300, b"[1]\n", b'"x"\n', b'{"ms":0,"by":"bot","type":"say"}\n',
     b"[" * 200_000, os.urandom(20_000), b'{"ms":0,"by":"server","type":7}\n'],
)  # fmt: skip
def test_a_file_that_is_no_timeline_is_an_error_of_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    assert cli.main(["replay", str(tmp_path / "x.jsonl")]) == 2
    told = capsys.readouterr().err
    assert "x.jsonl: is not the timeline of a recording" in told and told.count("\n") == 1
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.parametrize("path", [".", "/", ".."])
def test_a_folder_is_an_error_of_one_line(path: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", path]) == 2
    assert "is a folder; name the .jsonl or the .wav of a recording" in capsys.readouterr().err
    assert cli.main(["replay", str(recording), "--out", path]) == 2
    assert "is not the name of a file" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400])
def test_a_number_that_json_does_not_have_costs_its_row(number: str, recording: Path) -> None:
    text = recording.read_text()
    recording.write_text(text.replace('"first_pcm_ms": 40.25', f'"first_pcm_ms": {number}'))
    replay = read_recording(recording)
    assert len(replay.problems) == 1 and replay.length_ms == 2000
    assert "Hello there." in Reader(page(replay)).text
    recording.write_text(text.replace('"unix_s": 1800000000.0', f'"unix_s": {number}'))
    if number[0] == "1" and "e" not in number:
        page(read_recording(recording))
    else:
        with pytest.raises(ConfigError, match="is not the timeline of a recording"):
            read_recording(recording)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        read_recording(tmp_path / "nowhere.wav")


@pytest.mark.parametrize("content", [b"", b"RIFF", b"garbage" * 100, header(10)[:40], b"RIFF\0\0\0\0WAVEfmt "])
def test_a_damaged_wav_file_is_a_problem_and_the_timeline_is_drawn(content: bytes, recording: Path) -> None:
    recording.with_suffix(".wav").write_bytes(content)
    replay = read_recording(recording)
    assert len(replay.samples) == 0 and replay.length_ms == 2000 and len(replay.problems) == 1
    assert "Hello there." in Reader(page(replay)).text


@pytest.mark.parametrize("n_said", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_file_without_its_length_is_drawn_to_its_end(n_said: int, recording: Path) -> None:
    wav, length = recording.with_suffix(".wav"), struct.pack("<I", n_said)
    content = wav.read_bytes()
    wav.write_bytes(content[:4] + length + content[8:40] + length + content[44:])
    replay = read_recording(recording)
    assert len(replay.samples) == 16_000 and not replay.problems


def test_a_missing_wav_file_is_told(recording: Path) -> None:
    recording.with_suffix(".wav").unlink()
    read = Reader(page(read_recording(recording)))
    assert "audio" not in [tag for tag, _ in read.tags] and "not beside the timeline" in read.text


@pytest.mark.parametrize("seed", range(20))
def test_rows_with_fields_of_any_type_are_drawn(seed: int, recording: Path) -> None:
    random = np.random.default_rng(seed)
    values = [None, True, -1, 1e300, "x" * 100, [], {}, [[]], {"a": None}, "\u202e\ud800"]
    rows = [dict(row) for row in ROWS]
    for row in rows[1:]:
        for name in row:
            if name not in ("by", "type") and random.random() < 0.4:
                row[name] = values[random.integers(len(values))]
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = read_recording(recording)
    html = page(replay)
    html.encode("utf-8", "replace")
    assert html.endswith("</html>\n") and "nan" not in html.partition("<svg")[2].partition("</svg>")[0]


# ------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_writes_both_beside_the_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["replay", str(recording)]) == 0
    files = [recording.with_suffix(suffix) for suffix in (".html", ".png")]
    assert capsys.readouterr().out.split() == [str(path) for path in files]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_page_replaces_the_old_one_and_follows_no_link(recording: Path, tmp_path: Path) -> None:
    out, other = recording.with_suffix(".html"), tmp_path / "other"
    other.write_text("mine")
    out.symlink_to(other)
    assert cli.main(["replay", str(recording), "--only", "html"]) == 0
    assert other.read_text() == "mine" and not out.is_symlink() and "Hello there." in out.read_text()
    out.write_text("old")
    out.chmod(0o644)
    assert cli.main(["replay", str(recording), "--only", "html"]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and "Hello there." in out.read_text()
    out.unlink()
    out.mkdir()
    assert cli.main(["replay", str(recording), "--only", "html"]) == 2
    assert sorted(os.listdir(tmp_path)) == ["other", "x.html", "x.jsonl", "x.wav"], "nothing is left over"


def test_without_matplotlib_there_is_the_page_and_a_clear_message(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    assert cli.main(["replay", str(recording)]) == 0
    assert "no picture: matplotlib is not installed" in capsys.readouterr().err
    assert recording.with_suffix(".html").exists() and not recording.with_suffix(".png").exists()
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["replay", str(recording), "--only", "png"]) == 2
    assert "matplotlib is not installed: .venv/bin/pip install" in capsys.readouterr().err
    assert not recording.with_suffix(".png").exists()


def test_another_place_for_the_page_keeps_the_way_to_the_sound(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    assert cli.main(["replay", str(recording), "--only", "html", "--out", str(tmp_path / "pages" / "call")]) == 0
    read = Reader((tmp_path / "pages" / "call.html").read_text())
    assert [attributes["src"] for tag, attributes in read.tags if tag == "audio"] == ["../x.wav"]
    assert cli.main(["replay", str(recording), "--only", "html", "--out", str(tmp_path / "none" / "call")]) == 2


def test_a_name_of_a_file_is_quoted_in_the_page(recording: Path) -> None:
    replay = read_recording(recording)
    named = Replay(**{**{name: getattr(replay, name) for name in replay.__slots__}, "wav": 'a"b <c>.wav'})
    read = Reader(page(named))
    assert [attributes["src"] for tag, attributes in read.tags if tag == "audio"] == ["a%22b%20%3Cc%3E.wav"]
