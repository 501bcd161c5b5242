"""Voices from the command line: a recording becomes a stored voice, a spk2info.pt several, and what there is is listed.

None of this loads the weights: a voice needs the two ONNX graphs of a model directory, and of `flow.pt` one shape.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.model.file_names import (
    FLOW_FILE,
    LM_FILE,
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENS_ONNX,
)
from telephony_tts.engines.cosyvoice2.voices.voice import (
    SPEAKER_INPUTS,
    TOKENS_INPUTS,
    PromptFeatures,
    Recording,
    VoiceSizes,
    extract,
    frame_levels_db,
    misfits,
    open_graph,
    prepared,
    read_recording,
    transcript_problems,
)
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info, unreadable
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, TelephonyTTSError, UnknownVoice

GOOD_S = 5.0
"""A shorter recording works, and holds few of a language's sounds."""
MIN_CONTRAST_DB = 20.0
"""Between a voice's loud moments and the pauses of the same recording."""
PAUSE_SHARE = 0.1
TELEPHONE_HZ = 4_200.0
MIN_ABOVE_TELEPHONE = 1e-5
"""Share of the energy above the telephone band, where a line and what was resampled from one have next to nothing."""
MIN_LETTERS_A_SECOND, MAX_LETTERS_A_SECOND = 4.0, 30.0
"""People read 12 to 18 letters a second and never reach 30. Below 4, most of what is heard is not in the transcript."""
_LETTERS = (
    (re.compile(r"[\u3400-\u9fff\uac00-\ud7af]"), 3.5),
    (re.compile(r"[\u3040-\u30ff]"), 2.0),
    (re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"), 1.0),
)
"""A Chinese character or a Korean syllable takes about as long as three or four letters, a kana as two."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A voice that was stored, and what may make it a poor one."""

    path: Path
    features: PromptFeatures
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A voice on disk: its features, or why it cannot be used."""

    name: str
    features: PromptFeatures | None
    problem: str = ""

    @property
    def description(self) -> str:
        """The mode, the seconds of its prompt, and where it comes from, as far as it is known; "" without features."""
        if self.features is None:
            return ""
        seconds = f", {self.features.prompt_s:.1f} s" if self.features.prompt_s else ""
        source = self.features.provenance.get("source")
        shown = "".join(letter if letter.isprintable() else "?" for letter in source or "")  # a file's own words
        return f"{self.features.mode}{seconds}" + (f" of {shown}" if shown else "")


def enrol(
    name: str,
    recording: Path,
    transcript: str,
    model_dir: Path,
    store: VoiceStore,
    *,
    replace: bool = False,
    trim: bool = False,
    made_by: str = "",
) -> Enrolled:
    """Make a voice of a recording and store it. `transcript` is what is said in it, in words, or "".

    `trim`: of a recording that is too long, keep the beginning. It does not go with a transcript: nothing tells which
    of the words are said in that beginning, and words that are not said leak into later speech.
    Raises ConfigError for a name that cannot be or is taken, for a transcript that is too long, and for a folder that
    cannot be written to; AudioError for a recording that cannot become a voice; EngineUnavailable for a model
    directory that lacks what is needed.
    """
    store.check_free(name, replace)
    if trim and transcript:
        raise ConfigError(
            "--trim does not go with --text: nothing tells which of the words are said in the part that is kept; "
            "cut the recording yourself and give the words of that part, or leave --text out"
        )
    too_long = transcript_problems(transcript)
    if too_long:
        raise ConfigError(
            f"voice {name} cannot be stored: {'; '.join(too_long)}, which is more than 30 s of speech hold. Give only "
            "the words of the recording. The transcript is never cut: nothing tells which of its words to drop"
        )
    for graph in (SPEAKER_ONNX, TOKENS_ONNX):
        if not (model_dir / graph).is_file():
            raise EngineUnavailable(
                f"{model_dir} has no {graph}, which making a voice needs: fetch the model with telephony-tts models "
                f"pull {model_dir}"
            )
    sizes = ModelSizes(model_dir)
    kept = prepared(read_recording(recording), trim)
    origin = {f"{Path(graph).stem}_sha256": _sha256(model_dir / graph) for graph in (SPEAKER_ONNX, TOKENS_ONNX)}
    if made_by:
        origin["made_by"] = made_by
    features = extract(
        kept,
        open_graph(model_dir / SPEAKER_ONNX, SPEAKER_INPUTS),
        open_graph(model_dir / TOKENS_ONNX, TOKENS_INPUTS),
        transcript,
        provenance=origin,
    )
    check_fit(name, features, sizes)
    warnings = [*recording_warnings(kept), *transcript_warnings(transcript, kept.seconds)]
    if name in _speakers(model_dir / SPEAKERS_FILE)[0]:
        warnings.append(f"it takes the place of the voice {name} of the model's own {SPEAKERS_FILE}")
    return Enrolled(store.save(name, features, replace), features, tuple(warnings))


def import_speakers(
    path: Path, store: VoiceStore, sizes: VoiceSizes, only: tuple[str, ...] = (), replace: bool = False
) -> Iterator[Listed]:
    """Store the voices of a spk2info.pt, or those named, and tell of each whether it is in the store now.

    Raises ConfigError where the file cannot be read or lacks a voice that was named; then none is stored.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        voices, problems = read_spk2info(path)
    except ConfigError as error:
        raise ConfigError(f"{error.message}; it seems to be no spk2info.pt") from error
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
) -> Iterator[Listed]:
    for name in names:
        if name in refused:
            yield Listed(name, None, refused[name])
            continue
        try:
            check_fit(name, voices[name], sizes)
            store.save(name, voices[name], replace)
        except ConfigError as error:
            yield Listed(name, None, error.message)
        else:
            yield Listed(name, voices[name])


def remove_voice(name: str, store: VoiceStore, model_dir: Path | None) -> None:
    """Remove a stored voice. Raises UnknownVoice where there is none, and says so where it is one of the model's own;
    ConfigError where the folder cannot be written to."""
    if model_dir is not None and name not in store.names():
        voices, problems = _speakers(model_dir / SPEAKERS_FILE)
        if name in voices or name in _by_name(problems):
            raise UnknownVoice(
                f"there is no voice {name} in {store.directory}: it is in the model's own {model_dir / SPEAKERS_FILE} "
                "and cannot be removed here; a voice that is added under its name takes its place"
            )
    store.remove(name)


def list_voices(model_dir: Path | None, store: VoiceStore) -> list[Listed]:
    """The model directory's own voices, then those of the store, which hide them; in the order the engine has them."""
    found: dict[str, Listed] = {}
    if model_dir is not None:
        voices, problems = _speakers(model_dir / SPEAKERS_FILE)
        found = {name: Listed(name, features) for name, features in voices.items()}
        found |= {name: Listed(name, None, problem) for name, problem in _by_name(problems).items()}
    for name in store.names():
        try:
            found[name] = Listed(name, store.load(name))
        except EngineError as error:
            found[name] = Listed(name, None, error.message)
    sizes = ModelSizes(model_dir)
    return [_fitting(listed, sizes) for listed in found.values()]


class ModelSizes:
    """What a voice must fit, read from a model directory's weights; None is the official model.

    Raises EngineUnavailable if flow.pt cannot be read; `n_text_rows` raises it if llm.pt cannot be read.
    """

    def __init__(self, model_dir: Path | None) -> None:
        self._model_dir = model_dir
        if model_dir is None:
            self.n_embedding = ModelConfig().flow_encoder.d_speaker
        else:
            self.n_embedding = _shape(model_dir, FLOW_FILE, "spk_embed_affine_layer.weight")[1]

    @cached_property
    def n_text_rows(self) -> int:
        if self._model_dir is None:
            return ModelConfig().lm.n_text_rows
        return _shape(self._model_dir, LM_FILE, "llm.model.model.embed_tokens.weight")[0]


def _shape(model_dir: Path, file: str, name: str) -> tuple[int, ...]:
    path = model_dir / file
    try:
        # Memory-mapped: only names and shapes are read, not gigabytes. Files of torch before 1.6 cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        return tuple(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)[name].shape)
    except Exception as error:  # a file can be damaged in more ways than the reader has errors for
        if not path.exists():
            reason = "cannot be read: there is no such file"
        elif isinstance(error, KeyError):
            reason = f"has no {name}"
        else:
            reason = unreadable(error)
        raise EngineUnavailable(f"{path} {reason}; see telephony-tts models check {model_dir}") from error


def check_fit(name: str, features: PromptFeatures, sizes: VoiceSizes) -> None:
    """Raises ConfigError where the voice was made for another model."""
    unfit = misfits(features, sizes)
    if unfit:
        raise ConfigError(
            f"voice {name} does not fit this model: {'; '.join(unfit)}; make the voice with this model's own "
            f"{SPEAKER_ONNX} and tokenizer"
        )


# --------------------------------------------------------------------------- judgement


def recording_warnings(recording: Recording) -> list[str]:
    """What may make a poor voice of a recording that is not to be refused."""
    found = []
    if recording.seconds < GOOD_S:
        found.append(f"it holds only {recording.seconds:.1f} s: {GOOD_S:.0f} to 15 s usually sound more like the voice")
    levels = frame_levels_db(recording.wave, recording.rate_hz)
    pauses, loud = levels.quantile(PAUSE_SHARE), levels.quantile(1 - PAUSE_SHARE)
    if float(loud - pauses) < MIN_CONTRAST_DB:
        found.append(
            f"its quietest tenth is only {float(loud - pauses):.0f} dB below its loudest: there is noise, an echo or "
            "music behind the voice, and the model speaks with it; a quiet room is better"
        )
    power = torch.fft.rfft(recording.wave).abs().square()
    above = power[int(TELEPHONE_HZ * recording.wave.numel() / recording.rate_hz) :]
    if float(above.sum()) < MIN_ABOVE_TELEPHONE * float(power.sum()):
        found.append("it holds nothing above 4 kHz, as a telephone line's: the voice will sound muffled everywhere")
    return found


def transcript_warnings(transcript: str, seconds: float) -> list[str]:
    """Whether a transcript can be what is said in so many seconds. What is not said, or not written, leaks out later:
    the model begins each sentence with the rest of it."""
    if not transcript:
        return []
    speed = sum(weight * len(kind.findall(transcript)) for kind, weight in _LETTERS) / seconds
    if speed > MAX_LETTERS_A_SECOND:
        return [f"the transcript is too long for {seconds:.1f} s of speech: it must say only what the recording says"]
    if speed < MIN_LETTERS_A_SECOND:
        return [f"the transcript is too short for {seconds:.1f} s of speech: it must say all that the recording says"]
    return []


# ------------------------------------------------------------------------------- parts


def _fitting(listed: Listed, sizes: VoiceSizes) -> Listed:
    if listed.features is None:
        return listed
    try:
        check_fit(listed.name, listed.features, sizes)
    except ConfigError as error:
        return Listed(listed.name, None, error.message)
    return listed


def _speakers(path: Path) -> tuple[Mapping[str, PromptFeatures], list[str]]:
    """The voices of a model directory's own file; one that cannot be read has none, and the engine warns of it."""
    if not path.is_file():
        return {}, []
    try:
        return read_spk2info(path)
    except TelephonyTTSError:
        return {}, []


def _by_name(problems: list[str]) -> dict[str, str]:
    """`read_spk2info`'s lines "name: problem" by name, the first of each."""
    found: dict[str, str] = {}
    for line in problems:
        name, _, problem = line.partition(": ")
        found.setdefault(name, problem)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
