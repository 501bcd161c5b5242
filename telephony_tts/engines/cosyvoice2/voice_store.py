"""Voices on disk: one safetensors file each, with its provenance. The import of `spk2info.pt` (specification 3.4)."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import N_MELS
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures, aligned
from telephony_tts.errors import ConfigError, EngineUnavailable, UnknownVoice

SUFFIX = ".safetensors"
FORMAT = "telephony-tts cosyvoice2 voice 1"
_NAME = re.compile(r"\w[\w.-]{0,63}")
_ABOUT = "voice"
"""The one metadata entry of a voice file: JSON."""


class VoiceStore:
    """A folder of voices. Holds no state but the folder's path: what is on disk is what there is."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)

    def names(self) -> list[str]:
        """Names of all voices, sorted."""
        if not self.directory.is_dir():
            return []
        files = (path for path in self.directory.glob(f"*{SUFFIX}") if path.is_file())
        return sorted(name for name in (path.name.removesuffix(SUFFIX) for path in files) if _NAME.fullmatch(name))

    def check_free(self, name: str, replace: bool = False) -> None:
        """Raises ConfigError where the name cannot be, or is there and not to be replaced."""
        if self._path(name).exists() and not replace:
            raise ConfigError(
                f"there is a voice {name} already in {self.directory}: give --replace, or choose another name"
            )

    def save(self, name: str, features: PromptFeatures, replace: bool = False) -> Path:
        """Store a voice. The same features give the same bytes.

        Raises ConfigError where the name cannot be, or is there and not to be replaced, or the folder cannot be
        written to.
        """
        path = self._path(name)
        problems = features.problems()
        if problems:
            raise ConfigError(f"voice {name} cannot be stored: {'; '.join(problems)}")
        self.check_free(name, replace)
        about = {"format": FORMAT, "transcript": features.transcript, "provenance": dict(features.provenance)}
        # One entry: the order in which safetensors writes several differs from one process to the next.
        metadata = {_ABOUT: json.dumps(about, ensure_ascii=False, sort_keys=True)}
        tensors = {
            "speech_tokens": features.speech_tokens.to(torch.int32).contiguous(),
            "mel": features.mel.contiguous(),
            "embedding": features.embedding.contiguous(),
            "transcript_ids": torch.tensor(features.transcript_ids, dtype=torch.int32),
        }
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_bytes(save(tensors, metadata))
                partial.replace(path)  # a server that reads meanwhile sees the old voice or the new, never half
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the voice folder {self.directory} cannot be written to ({error.strerror or error}): "
                "make it writable, or name another with --voices"
            ) from error
        return path

    def load(self, name: str) -> PromptFeatures:
        """Read a voice. Raises UnknownVoice, or EngineUnavailable where its file is damaged."""
        if not _NAME.fullmatch(name) or not self._path(name).is_file():
            known = ", ".join(self.names()) or "none"
            raise UnknownVoice(f"there is no voice {name} in {self.directory} (there: {known})")
        path = self._path(name)
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
                if about.get("format") != FORMAT:
                    raise ValueError(f"its format is {about.get('format')!r}")
                features = PromptFeatures(
                    file.get_tensor("speech_tokens").to(torch.int64),
                    file.get_tensor("mel").float(),
                    file.get_tensor("embedding").float(),
                    about["transcript"],
                    tuple(file.get_tensor("transcript_ids").tolist()),
                    about["provenance"],
                )
            problems = features.problems()
            if problems:
                raise ValueError("; ".join(problems))
        except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
            raise EngineUnavailable(
                f"the voice file {path} cannot be used ({error}): make it again with telephony-tts voices add {name}"
            ) from error
        return features

    def remove(self, name: str) -> None:
        """Raises UnknownVoice with the names near it, ConfigError where the folder cannot be written to."""
        if not _NAME.fullmatch(name) or not self._path(name).is_file():
            near = get_close_matches(name, self.names(), n=3, cutoff=0.5)
            known = f"near it: {', '.join(near)}" if near else f"there: {', '.join(self.names()) or 'none'}"
            raise UnknownVoice(f"there is no voice {name} in {self.directory} ({known})")
        try:
            self._path(name).unlink()
        except OSError as error:
            raise ConfigError(f"{self._path(name)} cannot be removed: {error.strerror or error}") from error

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be a voice's name: use up to 64 letters, digits, '-', '_' and '.'")
        return self.directory / f"{name}{SUFFIX}"


# ----------------------------------------------------------------------------- import


def read_spk2info(path: Path) -> tuple[dict[str, PromptFeatures], list[str]]:
    """The voices of a spk2info.pt in any of its three layouts, and what is wrong with those that are none.

    Raises ConfigError where the file cannot be read at all.
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{path} is no plain file of tensors, so it was not read: {_first_line(error)}") from error
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        raise ConfigError(f"{path} cannot be read, it is damaged or no spk2info.pt: {_first_line(error)}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} holds no speakers by name")
    voices: dict[str, PromptFeatures] = {}
    problems = []
    for name, entry in data.items():
        try:
            features = _imported(entry, {"source": f"{Path(path).name}: {name}"})
        except (ValueError, KeyError) as error:
            problems.append(f"{name}: {error}")
            continue
        found = features.problems()
        problems += [f"{name}: {problem}" for problem in found]
        if not found:
            voices[str(name)] = features
    return voices, problems


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _imported(entry: Any, provenance: Mapping[str, str]) -> PromptFeatures:
    if not isinstance(entry, Mapping):
        raise ValueError("is no speaker")
    if "flow_prompt_speech_token" in entry:  # (b) add_zero_shot_spk
        return aligned(
            _row(entry, "flow_prompt_speech_token"),
            _frames(entry, "prompt_speech_feat"),
            _row(entry, "flow_embedding"),
            transcript_ids=tuple(_row(entry, "prompt_text").tolist()) if "prompt_text" in entry else (),
            provenance={**provenance, "layout": "zero-shot"},
        )
    if "speech_token" in entry:  # (c) async_cosyvoice and the Triton recipe
        text = entry.get("prompt_text", "")
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
    raise ValueError(f"has none of the known layouts; its entries are {', '.join(map(str, entry)) or 'none'}")


def _row(entry: Mapping[str, Any], key: str) -> Tensor:
    """Entry [1, N] or [N] as [N], cut to its `_len` where there is one."""
    value = _tensor(entry, key)
    if value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    if value.dim() != 1:
        raise ValueError(f"{key} is {list(value.shape)} and should be [1, N]")
    return value[: _length(entry, key, value.shape[0])]


def _frames(entry: Mapping[str, Any], key: str) -> Tensor:
    """Entry [1, F, 80] or [F, 80] as [F, 80], cut to its `_len` where there is one."""
    value = _tensor(entry, key)
    if value.dim() == 3 and value.shape[0] == 1:
        value = value[0]
    if value.dim() != 2 or value.shape[1] != N_MELS:
        raise ValueError(f"{key} is {list(value.shape)} and should be [1, F, {N_MELS}]")
    return value[: _length(entry, key, value.shape[0])]


def _tensor(entry: Mapping[str, Any], key: str) -> Tensor:
    value = entry.get(key)
    if not isinstance(value, Tensor):
        raise ValueError(f"{key} is missing or no tensor")
    return value


def _length(entry: Mapping[str, Any], key: str, n: int) -> int:
    length = entry.get(f"{key}_len")
    return n if not isinstance(length, Tensor) or length.numel() != 1 else min(max(int(length), 0), n)
