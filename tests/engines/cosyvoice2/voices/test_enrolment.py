"""What is told of a recording, its transcript and a model before a voice is made. See also tests/test_cli_voices.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telephony_tts.engines.cosyvoice2.voices import enrolment
from telephony_tts.engines.cosyvoice2.voices.enrolment import ListedVoice, transcript_warnings
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.runtime.errors import EngineUnavailable


@pytest.mark.parametrize(
    ("transcript", "seconds", "found"),
    [
        ("", 10.0, ""),
        ("a" * 40, 10.0, ""),
        ("a" * 39, 10.0, "too short"),
        ("a" * 300, 10.0, ""),
        ("a" * 301, 10.0, "too long"),
        ("a, " * 40, 10.0, ""),
        ("你" * 12, 10.0, ""),
        ("你" * 11, 10.0, "too short"),
        ("你" * 85, 10.0, ""),
        ("你" * 86, 10.0, "too long"),
        ("か" * 80, 10.0, ""),
        ("한" * 80, 10.0, ""),
    ],
)
def test_a_transcript_can_be_said_in_the_time(transcript: str, seconds: float, found: str) -> None:
    warnings = transcript_warnings(transcript, seconds)
    assert (len(warnings) == 1 and found in warnings[0]) if found else warnings == []


def test_a_voice_is_described_by_what_is_known_of_it() -> None:
    preset = PromptFeatures(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 80), torch.ones(192))
    prompted = PromptFeatures(torch.zeros(100, dtype=torch.int64), torch.zeros(200, 80), torch.ones(192))
    assert ListedVoice("a", preset).description == "preset"
    assert ListedVoice("a", prompted).description == "cross-lingual, 4.0 s"
    assert ListedVoice("a", None, "damaged").description == ""


def test_a_flow_file_of_an_old_torch_tells_the_size_too(tmp_path: Path) -> None:
    state = {"spk_embed_affine_layer.weight": torch.zeros(80, 192)}
    torch.save(state, tmp_path / "flow.pt", _use_new_zipfile_serialization=False)
    assert enrolment.ModelSizes(tmp_path).n_embedding == 192


def test_a_flow_file_that_was_cut_off_is_named_in_a_line(tmp_path: Path) -> None:
    torch.save({"spk_embed_affine_layer.weight": torch.zeros(80, 192)}, tmp_path / "flow.pt")
    data = (tmp_path / "flow.pt").read_bytes()
    (tmp_path / "flow.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(EngineUnavailable) as caught:
        enrolment.ModelSizes(tmp_path)
    assert caught.value.message == (
        f"{tmp_path}/flow.pt cannot be read: it is cut off or damaged; "
        f"see .venv/bin/telephony-tts models check {tmp_path}"
    )


def test_a_flow_file_without_the_shape_is_named(tmp_path: Path) -> None:
    torch.save({"other": torch.zeros(1)}, tmp_path / "flow.pt")
    with pytest.raises(EngineUnavailable, match=r"spk_embed_affine_layer.*models check"):
        enrolment.ModelSizes(tmp_path)
