"""Voices on the command line: adds a voice from a recording, imports a spk2info.pt, lists and removes voices.

The weights are not loaded: a voice needs the two ONNX graphs of a model directory and one shape in `flow.pt`.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.model.file_names import (
    FLOW_FILE,
    LM_FILE,
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENS_ONNX,
    is_first_generation,
)
from telephony_tts.engines.cosyvoice2.voices.noise_reduction import DENOISED, reduced
from telephony_tts.engines.cosyvoice2.voices.recording_check import checked, recording_warnings
from telephony_tts.engines.cosyvoice2.voices.voice import (
    MAX_READ_S,
    SPEAKER_INPUTS,
    TOKENS_INPUTS,
    PromptFeatures,
    VoiceSizes,
    extract,
    misfits,
    open_graph,
    prepared,
    read_recording,
    transcript_problems,
    wav_of,
)
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info, unreadable
from telephony_tts.runtime.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    TelephonyTTSError,
    UnknownVoice,
    shell_command,
)

CHECKING, EXTRACTING, STORING = STEPS = ("checking", "extracting", "storing")
"""Of the making of a voice: the recording is read and checked, its features are computed, and they are stored."""
MIN_LETTERS_A_SECOND, MAX_LETTERS_A_SECOND = 4.0, 30.0
"""People read 12 to 18 letters a second and never 30. Below 4, most of the speech is not in the transcript."""
_LETTERS = (
    (re.compile(r"[\u3400-\u9fff\uac00-\ud7af]"), 3.5),
    (re.compile(r"[\u3040-\u30ff]"), 2.0),
    (re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"), 1.0),
)
"""Letters of equal duration: a Chinese character or a Korean syllable lasts about 3.5 letters, a kana 2."""


@dataclass(frozen=True, slots=True)
class EnrolledVoice:
    """A stored voice, and warnings about its quality."""

    path: Path
    features: PromptFeatures
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """A voice on disk: its features, or why it is not usable."""

    name: str
    features: PromptFeatures | None
    problem: str = ""

    @property
    def description(self) -> str:
        """The mode, the length of the prompt and, if known, the origin; "" without features."""
        return "" if self.features is None else self.features.description


def enrol(
    name: str,
    recording: Path | bytes,
    transcript: str,
    model_dir: Path,
    store: VoiceStore,
    *,
    replace: bool = False,
    trim: bool = False,
    denoise: bool = False,
    made_by: str = "",
    max_read_s: float = MAX_READ_S,
    tell: Callable[[str], None] = lambda step: None,
    record: Mapping[str, str] = MappingProxyType({}),
) -> EnrolledVoice:
    """Makes a voice from a recording, a path or the content of a file, and stores it. `transcript` holds the words of
    the recording, or is "".

    `trim` keeps the beginning of a recording that is too long. It cannot be combined with a transcript, because it is
    unknown which words the beginning holds, and words that are not in the audio leak into later speech. A recording of
    more than `max_read_s` is not decoded. `denoise` reduces the noise first, and the voice's provenance says so. A
    recording that cannot become a voice as it is cannot become one with less noise. `tell` is called with each of
    `STEPS` when it begins.
    `record`: whose voice it is, and the consent to it (`voice_records.FIELDS`).
    Raises ConfigError for an invalid or existing name, a transcript that is too long, and a folder that cannot be
    written to. Raises AudioError for a recording that cannot become a voice, and EngineUnavailable for an incomplete
    model directory.
    """
    store.check_free(name, replace)
    if trim and transcript:
        raise ConfigError(
            "--trim cannot be combined with --text: it is unknown which words are in the part that is kept; cut the "
            "recording yourself and give the words of that part, or leave --text out"
        )
    too_long = transcript_problems(transcript)
    if too_long:
        raise ConfigError(
            f"voice {name} cannot be stored: {'; '.join(too_long)}, and 30 s of speech have fewer. Give only the words "
            "of the recording. The transcript is not cut, because it is unknown which words to drop",
            code="bad_request",
        )
    if is_first_generation(model_dir):
        raise ConfigError(
            f"{model_dir} is CosyVoice-300M, which speaks with the preset speakers of its {SPEAKERS_FILE} only: voices "
            f"from recordings need CosyVoice2 ({shell_command('telephony-tts models pull')} DIR)"
        )
    for graph in (SPEAKER_ONNX, TOKENS_ONNX):
        if not (model_dir / graph).is_file():
            raise EngineUnavailable(
                f"{model_dir} has no {graph}, which is needed to make a voice: fetch the model with telephony-tts "
                f"models pull {model_dir}"
            )
    sizes = ModelSizes(model_dir)
    tell(CHECKING)
    source = read_recording(recording, max_read_s)
    kept, check = prepared(source, trim), checked(source)
    if denoise:
        source = reduced(source)
        kept, check = prepared(source, trim), checked(source, check)
    tell(EXTRACTING)
    origin = {f"{Path(graph).stem}_sha256": _sha256(model_dir / graph) for graph in (SPEAKER_ONNX, TOKENS_ONNX)}
    if made_by:
        origin["made_by"] = made_by
    origin.update(record)
    features = extract(
        kept,
        open_graph(model_dir / SPEAKER_ONNX, SPEAKER_INPUTS),
        open_graph(model_dir / TOKENS_ONNX, TOKENS_INPUTS),
        transcript,
        provenance=origin,
    )
    check_fit(name, features, sizes)
    warnings = [each.message for each in recording_warnings(kept, check.snr_db)]
    warnings += transcript_warnings(transcript, kept.seconds)
    if name in _speakers(model_dir / SPEAKERS_FILE)[0]:
        warnings.append(f"it replaces the voice {name} of the model's own {SPEAKERS_FILE}")
    tell(STORING)
    return EnrolledVoice(store.save(name, features, replace), features, tuple(warnings))


def check_recording(content: Path | bytes, *, denoise: bool = False, max_read_s: float = MAX_READ_S) -> dict[str, Any]:
    """What is found in a recording, a path or the content of a file, before a voice is made of it.

    The values are those of JSON: `recording` has the fields of `RecordingCheck`. With `denoise` there is `denoised` for
    the version with less noise, and by what and by how much the noise was reduced.
    Raises AudioError for a file that cannot be read or whose noise cannot be reduced, and EngineUnavailable.
    """
    source = read_recording(content, max_read_s)
    check = checked(source)
    if not denoise:
        return {"recording": check.told()}
    quieter = reduced(source)
    how = {name: quieter.provenance[name] for name in DENOISED}
    return {"recording": check.told(), "denoised": {**checked(quieter, check).told(), **how}}


def denoised_wav(content: Path | bytes, max_read_s: float = MAX_READ_S) -> bytes:
    """A recording with less noise, as a WAV file of one channel. Raises as `check_recording` does."""
    return wav_of(reduced(read_recording(content, max_read_s)))


def import_speakers(
    path: Path, store: VoiceStore, sizes: VoiceSizes, only: tuple[str, ...] = (), replace: bool = False
) -> Iterator[ListedVoice]:
    """Stores the voices of a spk2info.pt, or those in `only`; yields each voice or why it was refused.

    Raises ConfigError, and stores nothing, if the file cannot be read or lacks a voice in `only`.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        voices, problems = read_spk2info(path)
    except ConfigError as error:
        raise ConfigError(f"{error.message}; it is probably not a spk2info.pt") from error
    refused = _by_name(problems)
    there = [*voices, *(name for name in refused if name not in voices)]
    absent = [name for name in only if name not in there]
    if absent:
        raise ConfigError(f"{path} has no voice {', '.join(absent)}; it has {', '.join(there) or 'none'}")
    return _stored([name for name in there if not only or name in only], voices, refused, store, sizes, replace)


def _stored(
    names: list[str],
    voices: Mapping[str, PromptFeatures],
    refused: Mapping[str, str],
    store: VoiceStore,
    sizes: VoiceSizes,
    replace: bool,
) -> Iterator[ListedVoice]:
    for name in names:
        if name in refused:
            yield ListedVoice(name, None, refused[name])
            continue
        try:
            check_fit(name, voices[name], sizes)
            store.save(name, voices[name], replace)
        except ConfigError as error:
            yield ListedVoice(name, None, error.message)
        else:
            yield ListedVoice(name, voices[name])


def remove_voice(name: str, store: VoiceStore, model_dir: Path | None) -> None:
    """Removes a stored voice.

    Raises UnknownVoice if it does not exist; the message tells if the model itself has a voice of this name. Raises
    ConfigError if the folder cannot be written to.
    """
    if model_dir is not None and name not in store.names():
        voices, problems = _speakers(model_dir / SPEAKERS_FILE)
        if name in voices or name in _by_name(problems):
            raise UnknownVoice(
                f"there is no voice {name} in {store.directory}: it is in the model's own {model_dir / SPEAKERS_FILE} "
                "and cannot be removed here; a voice that is added with its name replaces it"
            )
    store.remove(name)


def list_voices(model_dir: Path | None, store: VoiceStore) -> list[ListedVoice]:
    """The model's own voices and those of the store, in the engine's order. A stored voice hides one of the model."""
    found: dict[str, ListedVoice] = {}
    if model_dir is not None:
        voices, problems = _speakers(model_dir / SPEAKERS_FILE)
        found = {name: ListedVoice(name, features) for name, features in voices.items()}
        found |= {name: ListedVoice(name, None, problem) for name, problem in _by_name(problems).items()}
    for name in store.names():
        try:
            found[name] = ListedVoice(name, store.load(name))
        except EngineError as error:
            found[name] = ListedVoice(name, None, error.message)
    sizes = ModelSizes(model_dir)
    return [_fitting(listed, sizes) for listed in found.values()]


class ModelSizes:
    """`VoiceSizes` of a model directory, read from its weights. None is the official model.

    Raises EngineUnavailable if flow.pt cannot be read. `n_text_rows` raises it if llm.pt cannot be read.
    """

    def __init__(self, model_dir: Path | None) -> None:
        self._model_dir = model_dir
        self.takes_prompts = model_dir is None or not is_first_generation(model_dir)
        if model_dir is None:
            self.n_embedding = ModelConfig().flow_encoder.d_speaker
        else:
            self.n_embedding = _shape(model_dir, FLOW_FILE, "spk_embed_affine_layer.weight")[1]

    @cached_property
    def n_text_rows(self) -> int:
        if self._model_dir is None:
            return ModelConfig().lm.n_text_rows
        name = "llm.model.model.embed_tokens.weight" if self.takes_prompts else "text_embedding.weight"
        return _shape(self._model_dir, LM_FILE, name)[0]


def _shape(model_dir: Path, file: str, name: str) -> tuple[int, ...]:
    path = model_dir / file
    try:
        # A mapped file is read for names and shapes only. Files of torch before 1.6 cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        return tuple(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)[name].shape)
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        if not path.exists():
            reason = "cannot be read: there is no such file"
        elif isinstance(error, KeyError):
            reason = f"has no {name}"
        else:
            reason = unreadable(error)
        check = shell_command(f"telephony-tts models check {model_dir}")
        raise EngineUnavailable(f"{path} {reason}; see {check}") from error


def check_fit(name: str, features: PromptFeatures, sizes: VoiceSizes) -> None:
    """Raises ConfigError if the voice was made for another model."""
    unfit = misfits(features, sizes)
    if unfit:
        raise ConfigError(
            f"voice {name} does not fit this model: {'; '.join(unfit)}; make the voice with the {SPEAKER_ONNX} and "
            "the tokenizer of this model"
        )


# --------------------------------------------------------------------------- judgement


def transcript_warnings(transcript: str, seconds: float) -> list[str]:
    """Warns if a transcript cannot be all that is said in this time.

    If words are missing in the transcript or in the audio, the model begins each later sentence with such words.
    """
    if not transcript:
        return []
    speed = sum(weight * len(kind.findall(transcript)) for kind, weight in _LETTERS) / seconds
    if speed > MAX_LETTERS_A_SECOND:
        return [f"the transcript is too long for {seconds:.1f} s of speech: it must say only what the recording says"]
    if speed < MIN_LETTERS_A_SECOND:
        return [f"the transcript is too short for {seconds:.1f} s of speech: it must say all that the recording says"]
    return []


# ------------------------------------------------------------------------------- parts


def _fitting(listed: ListedVoice, sizes: VoiceSizes) -> ListedVoice:
    if listed.features is None:
        return listed
    try:
        check_fit(listed.name, listed.features, sizes)
    except ConfigError as error:
        return ListedVoice(listed.name, None, error.message)
    return listed


def _speakers(path: Path) -> tuple[Mapping[str, PromptFeatures], list[str]]:
    """The voices of the model's own file. A file that cannot be read gives none; the engine warns about it."""
    if not path.is_file():
        return {}, []
    try:
        return read_spk2info(path)
    except TelephonyTTSError:
        return {}, []


def _by_name(problems: list[str]) -> dict[str, str]:
    """The first problem of each name, from the lines "name: problem" of `read_spk2info`."""
    found: dict[str, str] = {}
    for line in problems:
        name, _, problem = line.partition(": ")
        found.setdefault(name, problem)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
