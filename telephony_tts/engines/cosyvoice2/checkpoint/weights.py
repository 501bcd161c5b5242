"""Reads a model directory of CosyVoice2 (specification 1.1 and 2) or of CosyVoice-300M (specification 300M, 1 and 2).
Nothing in it is executed.

`check_model_directory` lists its problems. `load_model_directory` reads it, or raises one error that lists them all.
Both read the same way, so a directory that passes the check also loads. Only the check opens the files that are needed
later: the two ONNX graphs, the tokenizer and the preset speakers. Only the check looks for weights that are not finite,
because that reads all of them.
"""

from __future__ import annotations

import json
import math
import shlex
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import (
    flow_outline,
    lm_outline,
    vocoder_outline,
    whole_flow_outline,
)
from telephony_tts.engines.cosyvoice2.checkpoint.sizes import (
    constant_problems,
    decoder_config,
    encoder_config,
    lacking_sections,
    lm_config,
    read_settings,
    relative_lm_config,
    sampling_config,
    settings_text,
    vocoder_config,
)
from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE2,
    COSYVOICE_300M,
    FlowDecoderConfig,
    FlowEncoderConfig,
    ModelConfig,
    ModelFamily,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.file_names import (
    FIRST_SETTINGS_NAME,
    FIRST_TOKENS_ONNX,
    FLOW_FILE,
    LM_FILE,
    RANDOM_MARK,
    SETTINGS_NAMES,
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENIZER_DIR,
    TOKENIZER_FILES,
    TOKENS_ONNX,
    VOCODER_FILE,
    is_first_generation,
)
from telephony_tts.engines.cosyvoice2.model.lm.lm import TEXT_HEAD
from telephony_tts.engines.cosyvoice2.model.state import StateReader
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_G, WEIGHT_V
from telephony_tts.engines.cosyvoice2.text.tokenizer import tokenizer_problem
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import how_to_get_ranks, ranks_path, read_ranks
from telephony_tts.engines.cosyvoice2.voices.voice import SPEAKER_INPUTS, TOKENS_INPUTS, graph_problem, is_plain
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info, unreadable
from telephony_tts.runtime.errors import ConfigError, EngineError, EngineUnavailable, shell_command

T = TypeVar("T")
CheckWanted = Callable[[], object]

_OTHERS = {
    "cosyvoice3.yaml": "CosyVoice3",
    "speech_tokenizer_v3.onnx": "CosyVoice3",
    "speech_tokenizer_v1.onnx": "CosyVoice 1",
}
_TRAINING_STATE = ("epoch", "step")
"""Entries of a vocoder that was trained further, beside its tensors."""
_MAX_NAMED = 4
"""Tensors that are named for each kind of problem. The others are counted."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory in memory. The states use today's official names and hold tensors only."""

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
        """The file of preset speakers, None if the directory has none."""
        path = self.directory / SPEAKERS_FILE
        return path if path.is_file() else None


def load_model_directory(
    path: Path, check_wanted: CheckWanted = lambda: None, *, mapped: bool = False
) -> Checkpoint:
    """Reads a model directory. `check_wanted` is called for each tensor; its EngineError ends the loading. `mapped`:
    see `_read`; for a process that needs few of the weights and ends soon.

    Raises EngineUnavailable that lists every problem of the directory and says what to do.
    """
    checkpoint, problems = _read(Path(path), checking=False, check_wanted=check_wanted, mapped=mapped)
    if checkpoint is None or problems:
        raise EngineUnavailable(
            f"{path} is not a complete {family_of(Path(path)).name} model directory:\n"
            + "".join(f"  - {problem}\n" for problem in problems)
            + f"{how_to_mend(Path(path))}; then check again with: "
            + shell_command(f"telephony-tts models check {shlex.quote(str(path))}")
        )
    return checkpoint


def model_sizes(path: Path) -> ModelConfig | None:
    """The sizes of a model directory, without reading its weights. None if it cannot be loaded."""
    checkpoint, problems = _read(Path(path), checking=False, mapped=True)
    return None if checkpoint is None or problems else checkpoint.config


def check_model_directory(path: Path) -> list[str]:
    """The problems of a model directory, one description each. Empty without problems."""
    directory = Path(path)
    problems = _read(directory, checking=True)[1]
    return [*problems, *_later_problems(directory)] if directory.is_dir() else problems


def family_of(directory: Path) -> ModelFamily:
    """The model family of a directory, by the names of its files."""
    return COSYVOICE_300M if is_first_generation(directory) else COSYVOICE2


def how_to_mend(directory: Path) -> str:
    """What to do about the problems of a directory. A pull refuses a random checkpoint: that is written again."""
    name = shlex.quote(str(directory)) + (" --family 300m" if is_first_generation(directory) else "")
    if directory.exists() and not directory.is_dir():
        return f"give a directory, or the name of a new one to {shell_command('telephony-tts models pull')}"
    if (directory / RANDOM_MARK).is_file():
        return (
            f"{shell_command('telephony-tts models random')} {name} writes this random checkpoint again (give the same "
            f"--size); for the official model give {shell_command('telephony-tts models pull')} another directory"
        )
    return f"{shell_command('telephony-tts models pull')} {name} fetches what is missing or damaged"


def _read(
    directory: Path, checking: bool, check_wanted: CheckWanted = lambda: None, mapped: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint, None if its sizes are unknown, and its problems.

    `mapped` maps the files into memory, so that only what is looked at is read. `checking` does so too, and reads each
    weight once. Loading does not map them: a process that uses a mapped file dies when the file is replaced.
    """
    mapped = mapped or checking
    if not directory.is_dir():
        return None, ["it is a file, not a directory" if directory.exists() else "there is no such directory"]
    if is_first_generation(directory):
        return _read_300m(directory, checking, check_wanted)
    problems: list[str] = []
    problems += [f"{name} belongs to {what}" for name, what in _OTHERS.items() if (directory / name).exists()]
    settings = _settings(directory, problems)
    qwen = _tokenizer_settings(directory, problems)
    for name in (SPEAKER_ONNX, TOKENS_ONNX):
        problems += _file_problems(directory / name, name)

    lm = _state(directory / LM_FILE, mapped, problems, check_wanted)
    flow = _state(directory / FLOW_FILE, mapped, problems, check_wanted)
    hift = vocoder_names(_state(directory / VOCODER_FILE, mapped, problems, check_wanted))
    lm.pop(TEXT_HEAD, None)

    if settings is None:
        return None, problems  # without settings the sizes are unknown, so the tensors cannot be judged
    lm_sizes = None
    if qwen is not None:
        lm_sizes = _sized(LM_FILE, lm, lambda: lm_config(lm, settings, qwen), lm_outline, checking, problems)
    sampling = _noted(SETTINGS_NAMES[0], lambda: sampling_config(settings), problems)
    flow_sizes = _sized(
        FLOW_FILE,
        flow,
        lambda: (encoder_config(flow, settings), decoder_config(flow, settings)),
        lambda sizes, state: flow_outline(*sizes, state),
        checking,
        problems,
    )
    vocoder = _sized(VOCODER_FILE, hift, lambda: vocoder_config(hift, settings), vocoder_outline, checking, problems)
    if lm_sizes is None or sampling is None or flow_sizes is None or vocoder is None:
        return None, problems
    config = ModelConfig(lm_sizes, sampling, flow_sizes[0], flow_sizes[1], vocoder)
    return Checkpoint(config, lm, flow, hift, directory, (directory / RANDOM_MARK).is_file()), problems


def _read_300m(
    directory: Path, checking: bool, check_wanted: CheckWanted
) -> tuple[Checkpoint | None, list[str]]:
    """`_read` for CosyVoice-300M."""
    family, problems = COSYVOICE_300M, list[str]()
    settings = _settings(directory, problems, family)
    problems += _ranks_problems(directory)
    lm = _state(directory / LM_FILE, checking, problems, check_wanted)
    flow = _state(directory / FLOW_FILE, checking, problems, check_wanted)
    hift = vocoder_names(_state(directory / VOCODER_FILE, checking, problems, check_wanted))
    if settings is None:
        return None, problems

    def flow_sizes() -> tuple[FlowEncoderConfig, FlowDecoderConfig]:
        return encoder_config(flow, settings, family), decoder_config(flow, settings)

    def vocoder_sizes() -> VocoderConfig:
        return vocoder_config(hift, settings, family)

    lm_sizes = _sized(
        LM_FILE, lm, lambda: relative_lm_config(lm, settings), lm_outline, checking, problems, family
    )
    sampling = _noted(FIRST_SETTINGS_NAME, lambda: sampling_config(settings), problems)
    of_flow = _sized(
        FLOW_FILE, flow, flow_sizes, lambda sizes, state: whole_flow_outline(*sizes, state), checking, problems, family
    )
    vocoder = _sized(VOCODER_FILE, hift, vocoder_sizes, vocoder_outline, checking, problems, family)
    if vocoder is not None and vocoder.samples_per_frame != family.samples_per_frame:
        problems.append(f"{VOCODER_FILE} makes {vocoder.samples_per_frame} samples of a frame, not 256")
    if lm_sizes is None or sampling is None or of_flow is None or vocoder is None:
        return None, problems
    config = ModelConfig(lm_sizes, sampling, *of_flow, vocoder)
    return Checkpoint(config, lm, flow, hift, directory, (directory / RANDOM_MARK).is_file()), problems


def _ranks_problems(directory: Path) -> list[str]:
    path = ranks_path(directory)
    if path is None:
        return [how_to_get_ranks(directory)]
    try:
        read_ranks(path)
    except ValueError as error:
        return [f"{path.name} {error}"]
    return []


# ------------------------------------------------------------------------------ files


def _later_problems(directory: Path) -> list[str]:
    """Problems inside the files of which `_read` only checks that they exist. Skips the files that it reported."""
    if is_first_generation(directory):
        return _optional_problems(directory)
    problems = []
    for name, n_inputs in ((SPEAKER_ONNX, SPEAKER_INPUTS), (TOKENS_ONNX, TOKENS_INPUTS)):
        problem = "" if _file_problems(directory / name, name) else graph_problem(directory / name, n_inputs)
        problems += [f"{name} {problem}"] if problem else []
    tokenizer = directory / TOKENIZER_DIR
    if not any(_file_problems(tokenizer / name, name) for name in ("vocab.json", "merges.txt")):
        try:
            problem = tokenizer_problem(tokenizer)
        except RecursionError:
            problem = "vocab.json or tokenizer_config.json is damaged: it is nested too deeply"
        problems += [f"{TOKENIZER_DIR}/{problem}"] if problem else []
    return problems + _speaker_problems(directory)


def _optional_problems(directory: Path) -> list[str]:
    """Problems of the files of CosyVoice-300M with which it could speak, but not all voices."""
    problems = []
    for name, n_inputs in ((SPEAKER_ONNX, SPEAKER_INPUTS), (FIRST_TOKENS_ONNX, TOKENS_INPUTS)):
        if (directory / name).exists():
            found = _file_problems(directory / name, name)
            problem = "" if found else graph_problem(directory / name, n_inputs)
            problems += [*found, *([f"{name} {problem}"] if problem else [])]
    if not (directory / SPEAKERS_FILE).exists():
        problems.append(f"{SPEAKERS_FILE} is missing: there is no voice (CosyVoice-300M itself has none; -SFT does)")
    return problems + _speaker_problems(directory)


def _speaker_problems(directory: Path) -> list[str]:
    """Voices of the model directory that cannot be read."""
    if not (directory / SPEAKERS_FILE).exists():
        return []
    try:
        left_out = read_spk2info(directory / SPEAKERS_FILE)[1]
    except ConfigError as error:
        problem = error.message.removeprefix(f"{directory}/")
        return [f"{problem} (the model speaks without it: fetch it again, or delete it)"]
    return [f"{SPEAKERS_FILE}: {each} (the model speaks without this voice)" for each in left_out]


def _settings(directory: Path, problems: list[str], family: ModelFamily = COSYVOICE2) -> dict[str, Any] | None:
    """The settings, None if they are missing or incomplete. Defaults would hide that a file was cut off."""
    name = next((name for name in SETTINGS_NAMES if (directory / name).exists()), None)
    if name is None:
        problems.append(f"{SETTINGS_NAMES[0]} is missing")
        return None
    settings = _noted(name, lambda: read_settings(directory / name), problems)
    if settings is None:
        return None
    lacking = lacking_sections(settings)
    if lacking:
        problems.append(f"{name} lacks {', '.join(lacking)}: it is cut off, or of another model")
        return None
    unlike = _noted(name, lambda: constant_problems(settings, family), problems) or []
    problems += [f"{name}: {problem}" for problem in unlike]
    return settings


def _tokenizer_settings(directory: Path, problems: list[str]) -> dict[str, Any] | None:
    """The language model's config.json, None if it cannot be read."""
    missing = False
    for name in TOKENIZER_FILES:
        found = _file_problems(directory / TOKENIZER_DIR / name, f"{TOKENIZER_DIR}/{name}")
        problems += found
        missing = missing or (name == "config.json" and bool(found))
    if missing:
        return None
    try:
        data = json.loads(settings_text(directory / TOKENIZER_DIR / "config.json"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        problems.append(f"{TOKENIZER_DIR}/config.json cannot be read, it is cut off or damaged: {reason}")
        return None
    if not isinstance(data, dict):
        problems.append(f"{TOKENIZER_DIR}/config.json holds no settings")
        return None
    return data


def _file_problems(path: Path, name: str) -> list[str]:
    if not path.is_file():
        return [f"{name} is missing"]
    with path.open("rb") as file:
        start = file.read(40)
    if not start:
        return [f"{name} is empty: its download broke off"]
    if start.startswith(b"version https://git-lfs"):
        return [f"{name} is a Git LFS pointer and not the file itself: run `git lfs pull` there, or pull it again"]
    return []


def _state(path: Path, mapped: bool, problems: list[str], check_wanted: CheckWanted) -> dict[str, Tensor]:
    """The tensors of one .pt file, without its other entries (epoch, step). Empty if it cannot be read."""
    missing = _file_problems(path, path.name)
    if missing:
        if path.name == FLOW_FILE and path.with_name("flow.cache.pt").exists():
            missing.append(f"flow.cache.pt cannot replace {FLOW_FILE}: it was trained for one chunk of context")
        problems += missing
        return {}

    def stays(storage: Any, _: str) -> Any:
        check_wanted()
        return storage

    try:
        mapped = mapped and zipfile.is_zipfile(path)  # files of torch before 1.6 cannot be mapped
        data = torch.load(path, map_location="cpu" if mapped else stays, weights_only=True, mmap=mapped)
    except EngineError:
        raise
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        problems.append(f"{path.name} {unreadable(error)}")
        return {}
    tensors = {}
    if isinstance(data, Mapping):
        tensors = {name: value for name, value in data.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        problems.append(f"{path.name} does not hold tensors by name")
    odd = [name for name, value in tensors.items() if not is_plain(value)]
    if odd:
        problems.append(f"{path.name}: {_named(odd, 'tensors do not hold plain numbers')}")
        return {}
    return tensors


# ------------------------------------------------------------------------------ names


def vocoder_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of hift.pt under today's names (specification 2.3).

    GAN checkpoints prefix the vocoder's names and add discriminators. Older versions of torch wrote weight_g and
    weight_v. Exports fold these two into one weight.
    """
    prefix = "generator."
    if any(name.startswith(prefix) for name in state):
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    named: dict[str, Tensor] = {}
    for name, value in state.items():
        if name in _TRAINING_STATE:
            continue
        if name.endswith(".weight_g"):
            named[name.removesuffix(".weight_g") + WEIGHT_G] = value
        elif name.endswith(".weight_v"):
            named[name.removesuffix(".weight_v") + WEIGHT_V] = value
        elif (
            name.endswith(".weight")
            and value.dim() == 3
            and value.dtype in _FLOATS
            and not name.startswith("source_downs.")
        ):
            length = value.flatten(1).norm(dim=1)[:, None, None]
            named[name.removesuffix(".weight") + WEIGHT_G] = length
            # Folding divides by the length of the direction, so a channel of zeros gets another direction.
            named[name.removesuffix(".weight") + WEIGHT_V] = torch.where(length == 0, torch.ones_like(value), value)
        else:
            named[name] = value
    return named


# ----------------------------------------------------------------------------- shapes


def _noted(name: str, read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except (ValueError, ArithmeticError) as error:
        problems.append(f"{name}: {error}")
        return None


def _sized(
    name: str,
    state: Mapping[str, Tensor],
    sizes: Callable[[], T],
    outline: Callable[[T, Mapping[str, Tensor]], StateReader],
    checking: bool,
    problems: list[str],
    family: ModelFamily = COSYVOICE2,
) -> T | None:
    """The sizes of a network whose file was read. Reports the tensors that do not fit them."""
    if not state:
        return None
    config = _noted(name, sizes, problems)
    if config is None:
        return None
    reader = _noted(name, lambda: outline(config, state), problems)
    if reader is None:
        return None
    problems += [f"{name}: {problem}" for problem in tensor_problems(reader, state, family.name)]
    infinite = [item for item in state if item in reader.shapes and not _is_finite(state[item])] if checking else []
    problems += [f"{name}: {_named(infinite, 'tensors hold values that are not finite')}"] if infinite else []
    return config


def _is_finite(value: Tensor) -> bool:
    """Whether all values are finite. Looks at the extremes, which a NaN spreads to: a mask would double the memory."""
    if not value.numel() or not value.is_floating_point():
        return True
    low, high = (value if value.dtype in _FLOATS else value.float()).aminmax()
    return math.isfinite(float(low)) and math.isfinite(float(high))


def tensor_problems(reader: StateReader, state: Mapping[str, Tensor], model: str = COSYVOICE2.name) -> list[str]:
    """One line for each kind of problem: missing, foreign and mis-shaped tensors, and tensors of other dtypes."""
    not_floating = [name for name in reader.shapes if name in state and not state[name].is_floating_point()]
    return [
        _named(names, what)
        for names, what in (
            (reader.missing, "tensors are missing"),
            (reader.unexpected, f"tensors are not of {model}"),
            (reader.misshaped, "tensors have a wrong shape"),
            (not_floating, "tensors are not of floating point"),
        )
        if names
    ]


def _named(names: list[str], what: str) -> str:
    return f"{len(names)} {what}: {', '.join(names[:_MAX_NAMED])}" + (", ..." if len(names) > _MAX_NAMED else "")
