"""The texts of a benchmark, and random models, whose speech never ends early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from telephony_tts.bench.sentences import CHINESE, ENGLISH, real_text, spoken_seconds
from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE_300M, EOS
from telephony_tts.engines.cosyvoice2.model.file_names import TOKENIZER_DIR
from telephony_tts.engines.cosyvoice2.profile import WHOLE
from telephony_tts.engines.cosyvoice2.random_speech import random_model, random_seconds, random_text, random_voice
from telephony_tts.engines.cosyvoice2.text.prompting import cut
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import WhisperTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info
from telephony_tts.runtime.errors import ConfigError


@pytest.mark.parametrize("seconds", [1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("index", range(30))
def test_sentences_take_about_as_long_as_is_asked(seconds: float, index: int) -> None:
    text = real_text(index, seconds)
    longest = max(spoken_seconds(sentence) for sentence in (ENGLISH, CHINESE)[index % 2])
    assert abs(spoken_seconds(text) - seconds) <= max(longest / 2, longest - seconds)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in text) == bool(index % 2)


def test_turns_say_different_texts() -> None:
    texts = {real_text(index, 8.0) for index in range(16)}
    assert len(texts) == 16
    assert all(not letter.isdigit() for text in texts for letter in text), "an engine gets words, not digits"


@pytest.mark.parametrize(("asked", "gets"), [(0.1, 1.6), (1.6, 1.6), (1.7, 2.4), (8.0, 8.0), (8.1, 8.8)])
def test_the_speech_of_a_random_model_has_steps_of_800_ms(asked: float, gets: float) -> None:
    assert random_seconds(asked) == pytest.approx(gets)


def test_a_random_model_never_ends_early_and_a_word_is_one_token(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("asked", "gets", "pieces"),
    [
        (0.1, 1.2, [3]), (1.3, 1.6, [4]), (2.0, 2.0, [5]), (2.4, 2.4, [3, 3]), (3.0, 3.2, [3, 5]),
        (8.0, 8.0, [3, 5, 5, 7]), (8.1, 8.4, [3, 5, 5, 5, 3]),
    ],
)  # fmt: skip
def test_the_small_model_speaks_a_first_clause_and_then_longer_pieces(
    tmp_path: Path, asked: float, gets: float, pieces: list[int]
) -> None:
    with random_model("tiny", 0.0, family="300m") as directory:
        assert check_model_directory(directory) == []
        bias = torch.load(directory / "llm.pt", weights_only=True)["llm_decoder.bias"]
        assert bias[COSYVOICE_300M.end_of_speech] == -1e4 and bias[:-1].abs().max() < 1
        assert random_voice(0.0, "300m") in read_spk2info(directory / "spk2info.pt")[0]
        tokenizer = WhisperTokenizer(directory)
        text = random_text(asked, "300m")
        lengths = [len(tokenizer.encode(piece)) for _, _, piece in cut(text, WHOLE, tokenizer)]
    assert random_seconds(asked, "300m") == pytest.approx(gets) and lengths == pieces
    assert sum(lengths) * 20 == round(gets * COSYVOICE_300M.tokens_per_s)


def test_a_kept_model_of_the_other_family_is_left_alone(tmp_path: Path) -> None:
    keep = tmp_path / "random"
    with random_model("tiny", 0.0, keep, "300m"):
        before = (keep / "llm.pt").stat().st_mtime_ns
    with random_model("tiny", 0.0, keep, "300m"):
        assert (keep / "llm.pt").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="another random model"), random_model("tiny", 0.0, keep):
        pass


def test_without_a_prompt_the_voice_is_the_preset() -> None:
    with random_model("tiny", 0.0) as directory:
        assert list(read_spk2info(directory / "spk2info.pt")[0]) == [random_voice(0.0)] == ["preset"]
        assert check_model_directory(directory) == []


def test_a_kept_model_is_written_once(tmp_path: Path) -> None:
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


def test_a_full_disk_is_an_error_that_names_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("write failed: No space left on device\nin a stack of frames")

    monkeypatch.setattr(torch, "save", full)
    keep = tmp_path / "random"
    words = r"No space left on device\); use --keep DIR"
    with pytest.raises(ConfigError, match=words) as told, random_model("tiny", 1, keep):
        pass
    assert "\n" not in told.value.message and not keep.exists()
    monkeypatch.undo()
    with random_model("tiny", 1, keep):  # an unfinished directory does not matter
        assert check_model_directory(keep) == []
