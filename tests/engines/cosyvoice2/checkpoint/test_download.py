"""What a download shows, and what it knows of the official release. How it fetches: tests/test_cli_models.py."""

from __future__ import annotations

import io
import itertools
import re

import pytest

from telephony_tts.engines.cosyvoice2.checkpoint import download
from telephony_tts.engines.cosyvoice2.checkpoint.download import KNOWN, NEEDED, DownloadProgress
from telephony_tts.engines.cosyvoice2.model.file_names import (
    FLOW_FILE,
    LM_FILE,
    SETTINGS_NAMES,
    SPEAKER_ONNX,
    TOKENIZER_DIR,
    TOKENIZER_FILES,
    TOKENS_ONNX,
    VOCODER_FILE,
)

# ---------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_moves_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    monkeypatch.setattr("tqdm.std.time", lambda: 0.002 * next(calls))
    screen = Terminal()
    with DownloadProgress(screen) as progress:
        progress.start("llm.pt", 2_000_000_000, 1_000_000_000)
        for _ in range(100):
            progress.advance(1_000_000)
        progress.note("a note")
        progress.start("flow.pt", 1_000_000_000, 500_000_000)
        progress.restart()
    bars = screen.getvalue().split("\r")
    assert any(bar.startswith("fetching llm.pt:  50%") and "1.00G/2.00G" in bar for bar in bars)
    assert any(re.match(r"fetching llm\.pt:  5[1-5]%.*B/s", bar) for bar in bars)
    assert len(bars) < 15, "not with every chunk"
    assert "a note\n" in bars, "on a line of its own"
    assert any(bar.startswith("fetching flow.pt:   0%") for bar in bars)
    assert not bars[-2].strip() and not bars[-1], "the last bar is gone"


def test_in_a_log_a_large_file_has_a_line_for_each_tenth() -> None:
    log = io.StringIO()
    with DownloadProgress(log) as progress:
        progress.start("small", 1000, 0)
        progress.advance(1000)
        progress.start("llm.pt", 2_000_000_000, 0)
        for _ in range(2000):
            progress.advance(1_000_000)
        progress.start("flow.pt", 1_000_000_000, 350_000_000)
        progress.advance(100_000_000)
        progress.restart()
        progress.advance(100_000_000)
    lines = log.getvalue().splitlines()
    assert lines[10:] == ["fetching flow.pt (1.0 GB), continued from 350.0 MB", "  flow.pt 40 %", "  flow.pt 10 %"]
    del lines[10:]
    assert lines[0] == "fetching llm.pt (2.0 GB)" and lines[1:] == [f"  llm.pt {10 * n} %" for n in range(1, 10)]


# ------------------------------------------------------------------------------- facts


def test_what_is_known_covers_what_the_check_wants() -> None:
    tokenizer = {f"{TOKENIZER_DIR}/{name}" for name in TOKENIZER_FILES}
    checked = {*tokenizer, SETTINGS_NAMES[0], SPEAKER_ONNX, TOKENS_ONNX, LM_FILE, FLOW_FILE, VOCODER_FILE}
    assert checked <= set(NEEDED) == set(KNOWN) and not checked & set(download.DISPENSABLE)
    assert all(len(sha256) == 64 and int(sha256, 16) for _, sha256 in KNOWN.values())
    assert sum(size for size, _ in KNOWN.values()) == pytest.approx(3.09e9, rel=0.01), "as the help says"
