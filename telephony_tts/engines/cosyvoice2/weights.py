"""Reading a CosyVoice2 model directory (specification 1.1 and 2). Nothing in it is executed.

`check_model_directory` names what is wrong with one, `load_model_directory` reads it or raises one error that names it
all. Both read the same way, so what the check passes also loads.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.layout import (
    LM_HEAD,
    WEIGHT_G,
    WEIGHT_V,
    Shape,
    flow_shapes,
    hift_shapes,
    lm_shapes,
)
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.sizes import (
    constant_problems,
    decoder_config,
    encoder_config,
    lm_config,
    read_settings,
    sampling_config,
    vocoder_config,
)
from telephony_tts.errors import EngineUnavailable

T = TypeVar("T")

SETTINGS_NAMES = ("cosyvoice2.yaml", "cosyvoice.yaml")
"""Today's name and that of the first months (December 2024 to April 2025)."""
TOKENIZER_DIR = "CosyVoice-BlankEN"
TOKENIZER_FILES = ("config.json", "merges.txt", "vocab.json")
SPEAKER_ONNX = "campplus.onnx"
TOKENS_ONNX = "speech_tokenizer_v2.onnx"
RANDOM_MARK = "random.json"
"""Present where the weights are random: the model makes noises, not speech."""

_OTHERS = {
    "cosyvoice3.yaml": "CosyVoice3",
    "speech_tokenizer_v3.onnx": "CosyVoice3",
    "speech_tokenizer_v1.onnx": "CosyVoice 1",
}
_MAX_NAMED = 4
"""Tensors named per kind of problem; the rest is a number."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory in memory. The states have the official names of today and hold tensors only."""

    config: ModelConfig
    lm: dict[str, Tensor]
    flow: dict[str, Tensor]
    hift: dict[str, Tensor]
    directory: Path
    is_random: bool = False

    @property
    def tokenizer_dir(self) -> Path:
        return self.directory / TOKENIZER_DIR

    @property
    def speaker_onnx(self) -> Path:
        return self.directory / SPEAKER_ONNX

    @property
    def tokens_onnx(self) -> Path:
        return self.directory / TOKENS_ONNX

    @property
    def spk2info(self) -> Path | None:
        """Preset speakers, where the directory has some."""
        path = self.directory / "spk2info.pt"
        return path if path.is_file() else None


def load_model_directory(path: Path) -> Checkpoint:
    """Read a model directory. Raises EngineUnavailable with every problem it has and what to do."""
    checkpoint, problems = _read(Path(path), mapped=False)
    if checkpoint is None or problems:
        raise EngineUnavailable(
            f"{path} is no complete CosyVoice2 model directory:\n"
            + "".join(f"  - {problem}\n" for problem in problems)
            + f"Fetch the official one with: telephony-tts models pull {path}\n"
            + f"and look again with: telephony-tts models check {path}"
        )
    return checkpoint


def check_model_directory(path: Path) -> list[str]:
    """What is missing, foreign or of a wrong shape in a model directory, in words; empty where all is well."""
    return _read(Path(path), mapped=True)[1]


def _read(directory: Path, mapped: bool) -> tuple[Checkpoint | None, list[str]]:
    """`mapped`: only names and shapes are wanted. A model that speaks from a mapped file dies when that is replaced."""
    if not directory.is_dir():
        return None, ["there is no such directory"]
    problems: list[str] = []
    problems += [f"{name} belongs to {what}" for name, what in _OTHERS.items() if (directory / name).exists()]
    settings = _settings(directory, problems)
    qwen = _tokenizer_settings(directory, problems)
    for name in (SPEAKER_ONNX, TOKENS_ONNX):
        problems += _file_problems(directory / name, name)

    lm = _state(directory / "llm.pt", mapped, problems)
    flow = _state(directory / "flow.pt", mapped, problems)
    hift = _vocoder_names(_state(directory / "hift.pt", mapped, problems))
    lm.pop(LM_HEAD, None)

    lm_sizes = _sized("llm.pt", lm, lambda: lm_config(lm, settings, qwen), lm_shapes, problems)
    sampling = _noted(SETTINGS_NAMES[0], lambda: sampling_config(settings), problems)
    flow_sizes = _sized(
        "flow.pt",
        flow,
        lambda: (encoder_config(flow, settings), decoder_config(flow, settings)),
        lambda sizes: flow_shapes(*sizes),
        problems,
    )
    vocoder = _sized("hift.pt", hift, lambda: vocoder_config(hift, settings), hift_shapes, problems)
    if lm_sizes is None or sampling is None or flow_sizes is None or vocoder is None:
        return None, problems
    config = ModelConfig(lm_sizes, sampling, flow_sizes[0], flow_sizes[1], vocoder)
    return Checkpoint(config, lm, flow, hift, directory, (directory / RANDOM_MARK).is_file()), problems


# ------------------------------------------------------------------------------ files


def _settings(directory: Path, problems: list[str]) -> dict[str, Any]:
    name = next((name for name in SETTINGS_NAMES if (directory / name).exists()), None)
    if name is None:
        problems.append(f"{SETTINGS_NAMES[0]} is missing")
        return {}
    settings = _noted(name, lambda: read_settings(directory / name), problems) or {}
    unlike = _noted(name, lambda: constant_problems(settings), problems) or []
    problems += [f"{name}: {problem}" for problem in unlike]
    return settings


def _tokenizer_settings(directory: Path, problems: list[str]) -> dict[str, Any]:
    missing = False
    for name in TOKENIZER_FILES:
        found = _file_problems(directory / TOKENIZER_DIR / name, f"{TOKENIZER_DIR}/{name}")
        problems += found
        missing = missing or (name == "config.json" and bool(found))
    if missing:
        return {}
    try:
        data = json.loads((directory / TOKENIZER_DIR / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{TOKENIZER_DIR}/config.json cannot be read: {error}")
        return {}
    return data if isinstance(data, dict) else {}


def _file_problems(path: Path, name: str) -> list[str]:
    if not path.is_file():
        return [f"{name} is missing"]
    with path.open("rb") as file:
        start = file.read(40)
    if not start:
        return [f"{name} is empty: its download broke off"]
    if start.startswith(b"version https://git-lfs"):
        return [f"{name} is a Git LFS pointer and not the file itself: run `git lfs pull` there, or pull it anew"]
    return []


def _state(path: Path, mapped: bool, problems: list[str]) -> dict[str, Tensor]:
    """The tensors of one .pt file; what else it holds (epoch, step) is dropped. Empty where it cannot be read."""
    missing = _file_problems(path, path.name)
    if missing:
        if path.name == "flow.pt" and path.with_name("flow.cache.pt").exists():
            missing.append("flow.cache.pt cannot stand in for flow.pt: it was trained for one chunk of context")
        problems += missing
        return {}
    try:
        mapped = mapped and zipfile.is_zipfile(path)  # files of torch before 1.6 cannot be mapped
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        problems.append(f"{path.name} is no plain file of tensors (it would run code, or is damaged): it was not read")
        return {}
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        reason = (str(error).splitlines() or [repr(error)])[0]
        problems.append(f"{path.name} cannot be read, it is damaged or cut short: {reason}")
        return {}
    tensors = {}
    if isinstance(data, Mapping):
        tensors = {name: value for name, value in data.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        problems.append(f"{path.name} holds no tensors by name")
    return tensors


# ------------------------------------------------------------------------------ names


def _vocoder_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """hift.pt under today's names: GAN checkpoints prefix the vocoder and add discriminators, older torch wrote
    weight_g and weight_v, and exports fold the two into one weight (specification 2.3)."""
    prefix = "generator."
    if any(name.startswith(prefix) for name in state):
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    named: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith(".weight_g"):
            named[name.removesuffix(".weight_g") + WEIGHT_G] = value
        elif name.endswith(".weight_v"):
            named[name.removesuffix(".weight_v") + WEIGHT_V] = value
        elif name.endswith(".weight") and value.dim() == 3 and not name.startswith("source_downs."):
            length = value.flatten(1).norm(dim=1)[:, None, None]
            named[name.removesuffix(".weight") + WEIGHT_G] = length
            # A direction of no length is 0 / 0 when folded again, so a dead channel gets any other.
            named[name.removesuffix(".weight") + WEIGHT_V] = torch.where(length == 0, torch.ones_like(value), value)
        else:
            named[name] = value
    return named


# ----------------------------------------------------------------------------- shapes


def _noted(name: str, read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except ValueError as error:
        problems.append(f"{name}: {error}")
        return None


def _sized(
    name: str,
    state: Mapping[str, Tensor],
    sizes: Callable[[], T],
    shapes: Callable[[T], Mapping[str, Shape]],
    problems: list[str],
) -> T | None:
    """The sizes of a network whose file was read, and what in the file does not fit them."""
    if not state:
        return None
    config = _noted(name, sizes, problems)
    if config is not None:
        problems += [f"{name}: {problem}" for problem in tensor_problems(state, shapes(config))]
    return config


def tensor_problems(state: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> list[str]:
    """Missing, foreign and mis-shaped tensors, and such that are no floating point numbers."""
    missing = [name for name in shapes if name not in state]
    foreign = [name for name in state if name not in shapes]
    misshaped = [
        f"{name} is {list(state[name].shape)} and should be {list(shape)}"
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    kinds = [name for name in shapes if name in state and not state[name].is_floating_point()]
    return [
        f"{len(names)} {what}: {', '.join(names[:_MAX_NAMED])}" + (", ..." if len(names) > _MAX_NAMED else "")
        for names, what in (
            (missing, "tensors are missing"),
            (foreign, "tensors are not of CosyVoice2"),
            (misshaped, "tensors have a wrong shape"),
            (kinds, "tensors are not of floating point"),
        )
        if names
    ]
