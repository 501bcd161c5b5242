"""`telephony-tts say --show`: how a text is read, without a sound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from telephony_tts.cli.main import main

pytestmark = pytest.mark.slow


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["say", "--show", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_sentence_is_a_line_with_what_its_voice_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    mandarin, english = shown(capsys, "您好，一共还款3,500元。Your balance is $5.")
    assert mandarin == {
        "text": "您好，一共还款3,500元。",
        "from": 0,
        "to": 14,
        "language": "zh",
        "voice": "kokoro/zm_yunxi",
        "reading": "您好，一共还款三千五百元。",
        "pinyin": "nin2 hao3 yi1 gong4 huan2 kuan3 san1 qian1 wu3 bai3 yuan2",
        "given": "nin2 hao3 , yi2 gong4 huan2 kuan3 san1 qian1 wu3 bai3 yuan2 .",
    }
    assert (english["from"], english["to"]) == (14, 33)
    assert (english["language"], english["voice"]) == ("en", "hibari/heart")
    assert english["reading"] == "Your balance is five dollars." and english["given"].endswith("fˈIv dˈɑləɹz.")


def test_pinyin_and_ipa_of_a_lexicon_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    lexicon = tmp_path / "own.yaml"
    lexicon.write_text("还款: huan4 kuan1\n", encoding="utf-8")
    (line,) = shown(capsys, "请还款", "--lexicon", str(lexicon))
    assert line["given"] == "qing3 huan4 kuan1"


def test_pinyin_that_is_no_syllable_leaves_the_usual_reading(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    lexicon = tmp_path / "own.yaml"
    lexicon.write_text("还款: xo2 kuan1\n", encoding="utf-8")
    (line,) = shown(capsys, "请還款", "--lexicon", str(lexicon))
    assert line["given"] == "qing3 huan2 kuan3", "traditional characters are read too"
    (line,) = shown(capsys, "请还款", "--lexicon", str(lexicon))
    assert line["given"] == "qing3 huan2 kuan1"


def test_neither_a_file_nor_show_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello."]) == 2 and "name a file" in capsys.readouterr().err
    assert main(["say", "--show", "Hello.", "x.wav"]) == 2 and "--show writes no sound" in capsys.readouterr().err
