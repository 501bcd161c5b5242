"""Stores voices, each in a safetensors file with its provenance, and reads `spk2info.pt` (specification 3.4)."""

from __future__ import annotations

import json
import math
import os
import pickle
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import N_MELS
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures, aligned, is_plain
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder, partial_path
from telephony_tts.engines.cosyvoice2.voices.voice_records import ABOUT
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, UnknownVoice, shell_command

FORMAT = "telephony-tts cosyvoice2 voice 1"
_TENSORS = ("speech_tokens", "mel", "embedding", "transcript_ids")
MAX_SHOWN, MAX_REASON = 80, 300
"""Characters of a file's content, and of an error, that a message shows."""


class VoiceStore(VoiceFolder):
    """A folder of voices, and what is in their files."""

    def save(self, name: str, features: PromptFeatures, replace: bool = False) -> Path:
        """Stores a voice. The same features give the same bytes.

        Raises ConfigError for unusable features, an invalid name, an existing voice that is not to be replaced, and a
        folder that cannot be written to.
        """
        path = self.path(name)
        problems = features.problems()
        if problems:
            raise ConfigError(f"voice {name} cannot be stored: {'; '.join(problems)}")
        self.check_free(name, replace)
        about = {"format": FORMAT, "transcript": features.transcript, "provenance": dict(features.provenance)}
        # One entry, because safetensors writes several in an order that differs between processes.
        metadata = {ABOUT: json.dumps(about, ensure_ascii=False, sort_keys=True)}
        tensors = {
            "speech_tokens": features.speech_tokens.to(torch.int32).contiguous(),
            "mel": features.mel.contiguous(),
            "embedding": features.embedding.contiguous(),
            "transcript_ids": torch.tensor(features.transcript_ids, dtype=torch.int32),
        }
        partial = partial_path(path, os.getpid())
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_bytes(save(tensors, metadata))
                partial.replace(path)  # a server that reads now gets the old voice or the new one
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the voice folder {self.directory} cannot be written to ({error.strerror or error}): "
                "make it writable, or name another with --voices",
                code="voice_folder",
            ) from error
        return path

    def load(self, name: str) -> PromptFeatures:
        """Reads a voice. Raises UnknownVoice if it does not exist, EngineUnavailable if its file is damaged."""
        if not self.has(name):
            known = ", ".join(self.names()) or "none"
            raise UnknownVoice(f"there is no voice {name} in {self.directory} (voices: {known})")
        path = self.path(name)
        try:
            with safe_open(str(path), framework="pt") as file:
                about = _about((file.metadata() or {}).get(ABOUT, "{}"))
                tensors = {key: file.get_tensor(key) for key in _TENSORS}
            features = PromptFeatures(
                _plain(tensors, "speech_tokens").to(torch.int64),
                _plain(tensors, "mel").float(),
                _plain(tensors, "embedding").float(),
                about["transcript"],
                tuple(_plain(tensors, "transcript_ids").reshape(-1).tolist()),
                about["provenance"],
            )
            problems = features.problems()
            if problems:
                raise ValueError("; ".join(problems))
        except Exception as error:  # a file can be damaged in more ways than the reader has errors for
            reason = f"it has no {error}" if isinstance(error, KeyError) else _one_line(error)
            folder = shlex.quote(str(self.directory))
            again = shell_command(f"telephony-tts voices add {name} --replace --wav FILE --model DIR --voices {folder}")
            raise EngineUnavailable(
                f"the voice file {path} cannot be used ({reason}): make it again with {again}"
            ) from error
        return features


def _about(text: str) -> dict[str, Any]:
    """The metadata of a voice file. Raises ValueError for another format."""
    try:
        about = json.loads(text)
    except RecursionError:
        raise ValueError("its metadata is nested too deeply") from None
    file_format = about.get("format") if isinstance(about, dict) else None
    if file_format != FORMAT:
        raise ValueError(f"its format is {repr(file_format)[:MAX_SHOWN]}")
    metadata: dict[str, Any] = about
    return metadata


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:MAX_REASON]


# ----------------------------------------------------------------------------- import


def read_spk2info(path: Path) -> tuple[dict[str, PromptFeatures], list[str]]:
    """The usable voices of a spk2info.pt in any of its three layouts, and the problems of the other entries.

    Each problem begins with the name of its entry. Raises ConfigError if the file cannot be read at all.
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        raise ConfigError(f"{path} {unreadable(error)}") from error
    if not isinstance(data, Mapping) or (data and not any(isinstance(entry, Mapping) for entry in data.values())):
        raise ConfigError(f"{path} does not hold speakers by name")
    voices: dict[str, PromptFeatures] = {}
    problems = []
    for name, entry in data.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            problems.append(f"{repr(name)[:MAX_SHOWN]}: is not a name for a voice")
            continue
        try:
            features = _imported(entry, {"source": f"{Path(path).name}: {name}"})
            found = features.problems()
        except Exception as error:  # an entry can be damaged in more ways than there are checks
            found = [_one_line(error)]
        problems += [f"{name}: {problem}" for problem in found]
        if not found:
            voices[name] = features
    return voices, problems


def unreadable(error: Exception) -> str:
    """Why `torch.load` failed, as the rest of a sentence that begins with the name of the file.

    The messages of torch are paragraphs about its internals, or advise to run the code that the file holds.
    """
    if isinstance(error, pickle.UnpicklingError):
        return "is not a plain file of tensors (it is of another kind, damaged, or would run code): it was not read"
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "cannot be read: there is not enough memory for it"
    return "cannot be read: it is cut off or damaged"


def _imported(entry: Any, provenance: Mapping[str, str]) -> PromptFeatures:
    if not isinstance(entry, Mapping):
        raise ValueError("is not a speaker")
    if "flow_prompt_speech_token" in entry:  # (b) add_zero_shot_spk
        return aligned(
            _row(entry, "flow_prompt_speech_token"),
            _frames(entry, "prompt_speech_feat"),
            _row(entry, "flow_embedding"),
            transcript_ids=tuple(_row(entry, "prompt_text").tolist()) if "prompt_text" in entry else (),
            provenance={**provenance, "layout": "zero-shot"},
        )
    if "speech_token" in entry:  # (c) async_cosyvoice and the Triton recipe
        text = entry.get("prompt_text")
        if not isinstance(text, str | Tensor | None):
            raise ValueError(f"prompt_text is a {type(text).__name__} and should be text")
        return aligned(
            _row(entry, "speech_token"),
            _frames(entry, "speech_feat"),
            _row(entry, "embedding"),
            transcript=text if isinstance(text, str) else "",
            transcript_ids=tuple(_row(entry, "prompt_text_token").tolist()) if "prompt_text_token" in entry else (),
            provenance={**provenance, "layout": "third-party"},
        )
    if "embedding" in entry:  # (a) a preset speaker
        nothing = torch.zeros(0, dtype=torch.int64)
        embedding = _row(entry, "embedding")
        return aligned(nothing, torch.zeros(0, N_MELS), embedding, provenance={**provenance, "layout": "preset"})
    raise ValueError(f"has none of the known layouts; its entries are {_entries(entry)}")


def _entries(entry: Mapping[Any, Any]) -> str:
    return ", ".join(repr(key)[:MAX_SHOWN] for key in entry)[:MAX_REASON] or "none"


def _row(entry: Mapping[str, Any], key: str) -> Tensor:
    """Entry [1, N] or [N] as [N], cut to the length in its `_len` entry if there is one."""
    value = _plain(entry, key)
    if value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    if value.dim() != 1:
        raise ValueError(f"{key} is {list(value.shape)} and should be [1, N]")
    return value[: _length(entry, key, value.shape[0])]


def _frames(entry: Mapping[str, Any], key: str) -> Tensor:
    """Entry [1, F, 80] or [F, 80] as [F, 80], cut to the length in its `_len` entry if there is one."""
    value = _plain(entry, key)
    if value.dim() == 3 and value.shape[0] == 1:
        value = value[0]
    if value.dim() != 2 or value.shape[1] != N_MELS:
        raise ValueError(f"{key} is {list(value.shape)} and should be [1, F, {N_MELS}]")
    return value[: _length(entry, key, value.shape[0])]


def _plain(entry: Mapping[str, Any], key: str) -> Tensor:
    value = entry.get(key)
    if not isinstance(value, Tensor):
        raise ValueError(f"{key} is missing or not a tensor")
    if not is_plain(value):
        raise ValueError(f"{key} does not hold plain numbers")
    return value


def _length(entry: Mapping[str, Any], key: str, n: int) -> int:
    """The `_len` of an entry, at most n, which is the default. Raises ValueError if it is not a finite number."""
    length = entry.get(f"{key}_len")
    if not isinstance(length, Tensor) or length.numel() != 1:
        return n
    if not is_plain(length) or not math.isfinite(float(length)):
        raise ValueError(f"{key}_len is not a length")
    return min(max(int(length), 0), n)
