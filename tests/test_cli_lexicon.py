"""`telephony-tts lexicon check` and `lexicon say`, and `say --lexicon`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from telephony_tts.cli.main import main
from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, recognise


@pytest.fixture
def brands(tmp_path: Path) -> str:
    file = tmp_path / "brands.yaml"
    file.write_text('SQL: sequel\n/ACME-(\\d+)/: "acme $1"\n重庆: chong2 qing4\n', encoding="utf-8")
    return str(file)


def test_check_tells_what_good_files_have(brands: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lexicon", "check", brands]) == 0
    assert capsys.readouterr().out == f"{brands}: 2 words, 1 patterns\n"


def test_check_lists_what_is_wrong_in_each_file(
    brands: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: b\nSQL:\n")
    assert main(["lexicon", "check", str(bad), brands, str(tmp_path / "none.yaml")]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith(brands)
    assert "line 2: 'SQL': has no reading" in shown.err and "none.yaml: cannot be read" in shown.err


def test_say_shows_the_spoken_text_and_what_was_changed(brands: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lexicon", "say", "Ask ACME-12 about SQL. Pay $5.", "--file", brands]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Ask acme twelve about sequel.",
        "  ACME-12 -> acme twelve",
        "  SQL -> sequel",
        "Pay five dollars.",
    ]


def test_say_shows_sounds_and_reads_standard_input(
    brands: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("我在重庆。"))
    assert main(["lexicon", "say", "-", "--file", brands]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "我在重庆。", "  重 -> 重 [pinyin chong2]", "  庆 -> 庆 [pinyin qing4]",
    ]  # fmt: skip


def test_say_takes_the_lexicons_of_the_configuration(
    brands: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, config = tmp_path / "own.yaml", tmp_path / "server.yaml"
    own.write_text("SQL: squeal")
    config.write_text('lexicons: {files: {brands: brands.yaml}, languages: {zh: brands}, voices: {anna: brands}}')
    for more, spoken in (
        ([], "SQL"), (["--voice", "anna"], "sequel"), (["--lang", "zh-CN"], "sequel"),
        (["--voice", "anna", "--file", str(own)], "squeal"),
    ):  # fmt: skip
        assert main(["lexicon", "say", "SQL", "--config", str(config), *more]) == 0
        assert capsys.readouterr().out.splitlines()[0] == spoken


def test_a_lexicon_without_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lexicon", "say", "x", "--set", "lexicons.languages={en: brands}"]) == 2
    assert "lexicons.languages.en: no lexicon is named 'brands'; lexicons.files has none" in capsys.readouterr().err


def test_a_token_is_not_shown_in_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lexicon", "say", "x", "--set", "lexicons.tokens={secret-token: brands}"]) == 2
    shown = capsys.readouterr().err
    assert "lexicons.tokens: no lexicon is named 'brands'" in shown and "secret-token" not in shown


def test_the_command_say_speaks_with_a_lexicon(brands: str, tmp_path: Path) -> None:
    out = tmp_path / "out.raw"
    given = ["say", "SQL", str(out), "--engine", "fake", "--pcm", "--lexicon", brands]
    assert main(given) == 0
    assert recognise(np.frombuffer(out.read_bytes(), "<i2"), "sequlSQL", sample_rate_hz=SAMPLE_RATE_HZ) == "sequel"
