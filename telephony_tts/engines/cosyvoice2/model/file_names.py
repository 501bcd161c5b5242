"""Names of the files of a model directory: CosyVoice2 (specification 1.1), CosyVoice-300M (specification 300M, 1)."""

from __future__ import annotations

from pathlib import Path

SETTINGS_NAMES = ("cosyvoice2.yaml", "cosyvoice.yaml")
"""Today's name, and the name from December 2024 to April 2025."""
LM_FILE, FLOW_FILE, VOCODER_FILE = "llm.pt", "flow.pt", "hift.pt"
TOKENIZER_DIR = "CosyVoice-BlankEN"
TOKENIZER_FILES = ("config.json", "merges.txt", "vocab.json")
SPEAKER_ONNX = "campplus.onnx"
TOKENS_ONNX = "speech_tokenizer_v2.onnx"
FIRST_SETTINGS_NAME = "cosyvoice.yaml"
"""Of CosyVoice-300M. CosyVoice2 had the same name for some months, beside its tokenizer's folder."""
FIRST_TOKENS_ONNX = "speech_tokenizer_v1.onnx"
RANKS_FILE = "multilingual.tiktoken"
"""Whisper's vocabulary, which CosyVoice-300M reads text with. Its official directory does not have the file."""
SPEAKERS_FILE = "spk2info.pt"
RANDOM_MARK = "random.json"
"""Only in a directory with random weights: such a model makes noises, not speech."""


def is_first_generation(directory: Path) -> bool:
    """Whether a model directory is of CosyVoice-300M, by the names of its files."""
    if not (directory / FIRST_SETTINGS_NAME).is_file():
        return False
    return not any((directory / name).exists() for name in (SETTINGS_NAMES[0], TOKENIZER_DIR, TOKENS_ONNX))
