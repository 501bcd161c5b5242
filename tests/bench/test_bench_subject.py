"""What a benchmark makes a model say, and the random model that says it to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from telephony_tts.bench.subject import (
    CHINESE,
    ENGLISH,
    random_model,
    random_seconds,
    random_text,
    random_voice,
    real_text,
    spoken_seconds,
)
from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory
from telephony_tts.engines.cosyvoice2.model.config import EOS
from telephony_tts.engines.cosyvoice2.model.file_names import TOKENIZER_DIR
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info
from telephony_tts.errors import ConfigError


@pytest.mark.parametrize("seconds", [1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("index", range(30))
def test_sentences_take_about_as_long_as_is_asked(seconds: float, index: int) -> None:
    text = real_text(index, seconds)
    longest = max(spoken_seconds(sentence) for sentence in (ENGLISH, CHINESE)[index % 2])
    assert abs(spoken_seconds(text) - seconds) <= max(longest / 2, longest - seconds)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in text) == bool(index % 2)


def test_turns_do_not_all_say_the_same() -> None:
    texts = {real_text(index, 8.0) for index in range(16)}
    assert len(texts) == 16
    assert all(not letter.isdigit() for text in texts for letter in text), "an engine is given words"


@pytest.mark.parametrize(("asked", "gets"), [(0.1, 1.6), (1.6, 1.6), (1.7, 2.4), (8.0, 8.0), (8.1, 8.8)])
def test_a_random_model_speaks_by_steps(asked: float, gets: float) -> None:
    assert random_seconds(asked) == pytest.approx(gets)


def test_a_random_model_never_ends_and_reads_a_word_as_a_token(tmp_path: Path) -> None:
    with random_model("tiny", 2.0) as directory:
        assert check_model_directory(directory) == []
        bias = torch.load(directory / "llm.pt", weights_only=True)["llm_decoder.bias"]
        assert bias[EOS:].tolist() == [-1e4] * 3 and bias[:EOS].abs().max() < 1
        tokenizer = TextTokenizer(directory / TOKENIZER_DIR)
        for seconds in (1.0, 8.0):
            assert len(tokenizer.encode(random_text(seconds))) * 20 == round(random_seconds(seconds) * 25)
        voices, problems = read_spk2info(directory / "spk2info.pt")
        assert problems == [] and voices[random_voice(2.0)].speech_tokens.numel() == 50
    assert not directory.exists()


def test_no_prompt_is_a_voice_without_one() -> None:
    with random_model("tiny", 0.0) as directory:
        assert list(read_spk2info(directory / "spk2info.pt")[0]) == [random_voice(0.0)] == ["preset"]
        assert check_model_directory(directory) == []


def test_a_kept_model_is_made_once(tmp_path: Path) -> None:
    keep = tmp_path / "models" / "random"
    with random_model("tiny", 3.5, keep) as directory:
        assert directory == keep
    before = (keep / "llm.pt").stat().st_mtime_ns
    assert [path.name for path in keep.parent.iterdir()] == ["random"]
    with random_model("tiny", 3.5, keep):
        pass
    assert (keep / "llm.pt").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="another random model"), random_model("tiny", 2.0, keep):
        pass


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"), random_model("tiny", 3.5, tmp_path):
        pass
    (tmp_path / "random.json").write_text(json.dumps({"random": True, "size": "tiny", "seed": 0}))
    with pytest.raises(ConfigError, match="another random model"), random_model("tiny", 3.5, tmp_path):
        pass
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("write failed: No space left on device\nin a stack of frames")

    monkeypatch.setattr(torch, "save", full)
    keep = tmp_path / "random"
    words = r"No space left on device\); --keep DIR"
    with pytest.raises(ConfigError, match=words) as told, random_model("tiny", 1, keep):
        pass
    assert "\n" not in told.value.message and not keep.exists()
    monkeypatch.undo()
    with random_model("tiny", 1, keep):  # what was left half written is no hindrance
        assert check_model_directory(keep) == []
