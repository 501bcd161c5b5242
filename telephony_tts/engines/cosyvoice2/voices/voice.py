"""Makes a voice from a recording: reads, checks and trims it, and extracts its features (specification 3.4, 3.5)."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from telephony_tts.audio.wav import HEAD_BYTES, has_unknown_length, with_true_lengths
from telephony_tts.engines.cosyvoice2.model.config import N_MELS, N_SPEECH_TOKENS, TOKENS_PER_S
from telephony_tts.engines.cosyvoice2.voices.features import (
    MEL_RATE_HZ,
    TOKEN_RATE_HZ,
    centred,
    flow_mel,
    kaldi_fbank,
    resample,
    whisper_mel,
)
from telephony_tts.runtime.errors import AudioError, EngineUnavailable, how_to_get, shell_command

MIN_RATE_HZ, MAX_RATE_HZ = 16_000, 192_000
MIN_S, MAX_S = 3.0, 30.0
"""A shorter recording holds too little of a voice. The speech tokenizer takes no more than 30 s."""
MAX_READ_S = 600.0
MAX_CHANNELS = 2
_UNKNOWN_FRAMES = 1 << 62
"""libsndfile gives a number of frames above this for a FLAC file that does not say its length."""
_WAV_SLACK_BYTES = 4096
"""Less than a tenth of a second. Some programs count their header twice."""
_UNKNOWN_WAV_BYTES = 0x7FFF_0000
"""Programs that write WAV to a pipe say that it has at least so many bytes."""
MAX_TRANSCRIPT = 1000
"""The most characters and the most text tokens of a transcript. 30 s of the fastest speech have fewer."""
MIN_DBFS = -45.0
"""A recording is silent if its loudest 10 ms are below this level."""
TRIM_DB = 45.0
"""At the ends, frames this far below the loudest frame are silence."""
KEEP_BEFORE_S, KEEP_AFTER_S = 0.05, 0.2
"""Silence that is kept at the ends. If the prompt ends inside a word, speech begins with the rest of that word."""
PAUSE_FRAMES = 20
"""Frames of 10 ms. A recording that is too long is cut in the quietest stretch of this length."""
MAX_CLIPPED = 0.001
CLIPPED_AT = 0.999
SPEAKER_INPUTS, TOKENS_INPUTS = 1, 2
"""Inputs of campplus.onnx (features) and of speech_tokenizer_v2.onnx (log-mel and its length)."""
MAX_ID = 1 << 31
MAX_CANCELLED_DB = 12.0
"""The largest loss of level from mixing the channels. If it is larger, their signs are opposite."""
MAX_REASON = 200
"""Characters of onnxruntime's error in a message."""


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """The features of a voice. A preset speaker has no prompt: P is 0 and there is no transcript."""

    speech_tokens: Tensor
    """int64 [P] in 0..6560, 25 per second"""
    mel: Tensor
    """float32 [2P, 80]: the same speech at 50 frames per second"""
    embedding: Tensor
    """float32 [192]: the output of the speaker network"""
    transcript: str = ""
    transcript_ids: tuple[int, ...] = ()
    """The transcript as text tokens. A voice with a transcript is "zero-shot", else "cross-lingual" (3.4)."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """The origin of the voice: file, hash, lengths, graphs."""

    @property
    def prompt_s(self) -> float:
        return self.speech_tokens.numel() / TOKENS_PER_S

    @property
    def mode(self) -> str:
        """How the model is prompted with this voice, in the words of specification 3.4."""
        if not self.speech_tokens.numel():
            return "preset"
        return "zero-shot" if self.transcript or self.transcript_ids else "cross-lingual"

    @property
    def description(self) -> str:
        """The mode, the length of the prompt and, if known, the origin."""
        seconds = f", {self.prompt_s:.1f} s" if self.prompt_s else ""
        source = self.provenance.get("source")
        shown = "".join(letter if letter.isprintable() else "?" for letter in source or "")  # from a file
        return f"{self.mode}{seconds}" + (f" of {shown}" if shown else "")

    def problems(self) -> list[str]:
        """The problems of the features, one description each; empty if they are usable.

        The fields may have any types, because they may come from a damaged file.
        """
        found = []
        tokens, mel, embedding = self.speech_tokens, self.mel, self.embedding
        if not all(isinstance(value, Tensor) and is_plain(value) for value in (tokens, mel, embedding)):
            return ["its tensors do not all hold plain numbers"]
        transcript: object = self.transcript
        if not _is_text(transcript):
            found.append(f"the transcript is a {type(transcript).__name__} and should be text in Unicode")
        else:
            found += transcript_problems(self.transcript, self.transcript_ids)
        if not all(type(number) is int and 0 <= number < MAX_ID for number in self.transcript_ids):
            found.append(f"the ids of the transcript are not all whole numbers below {MAX_ID}")
        about: object = self.provenance
        if not isinstance(about, Mapping) or not all(_is_text(text) for item in about.items() for text in item):
            found.append("the provenance is not a list of texts by name")
        if self.prompt_s > MAX_S:
            found.append(f"the prompt lasts {self.prompt_s:.2f} s and may last {MAX_S:.0f} s")
        if tokens.dim() != 1 or tokens.dtype != torch.int64:
            return [*found, f"speech tokens are {tokens.dtype} {list(tokens.shape)} and should be int64 [P]"]
        if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= N_SPEECH_TOKENS):
            found.append(f"speech tokens are not all in 0..{N_SPEECH_TOKENS - 1}")
        if tuple(mel.shape) != (2 * tokens.numel(), N_MELS):
            found.append(f"the mel is {list(mel.shape)} and should be {[2 * tokens.numel(), N_MELS]}")
        if embedding.dim() != 1 or not embedding.numel():
            found.append(f"the embedding is {list(embedding.shape)} and should be [192]")
        elif not bool(embedding.isfinite().all()) or not bool(embedding.any()):
            found.append("the embedding is not finite or all zero")
        if not bool(mel.isfinite().all()):
            found.append("the mel is not finite")
        return found


def transcript_problems(transcript: str, transcript_ids: tuple[int, ...] = ()) -> list[str]:
    """Why a transcript is too long for a voice; empty if it is not."""
    found = []
    for n, unit in ((len(transcript), "characters"), (len(transcript_ids), "text tokens")):
        if n > MAX_TRANSCRIPT:
            found.append(f"the transcript has {n} {unit} and may have {MAX_TRANSCRIPT}")
    return found


class VoiceSizes(Protocol):
    """The sizes of a model that its voices must fit."""

    @property
    def n_embedding(self) -> int:
        """Numbers in the embedding of a speaker"""

    @property
    def n_text_rows(self) -> int:
        """Text tokens that the language model knows. Read only for a voice with transcript ids."""

    @property
    def takes_prompts(self) -> bool:
        """Whether the engine speaks with voices that have a prompt."""


def misfits(features: PromptFeatures, sizes: VoiceSizes) -> list[str]:
    """Why a voice without `problems` does not fit a model of these sizes; empty if it fits.

    Storing and loading both use this check, so a stored voice is not refused later.
    """
    found = []
    n_embedding, ids = features.embedding.numel(), features.transcript_ids
    if features.speech_tokens.numel() and not sizes.takes_prompts:
        found.append("it has a prompt, and CosyVoice-300M speaks with preset speakers only")
    if n_embedding != sizes.n_embedding:
        found.append(f"its embedding has {n_embedding} numbers and the model takes {sizes.n_embedding}")
    if ids and not all(0 <= number < sizes.n_text_rows for number in ids):
        found.append(f"the ids of its transcript are not all below {sizes.n_text_rows}")
    return found


def _is_text(value: object) -> bool:
    """Whether it is a string that can be encoded. Lone surrogates, which an odd file name may have, cannot be."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_plain(value: Tensor) -> bool:
    """Whether a tensor from a file has a stored number for each element.

    Refuses sparse, quantized, nested and complex tensors, tensors without storage, and tensors that repeat a small
    storage to appear larger.
    """
    return (
        value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_nested or value.is_complex())
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """A reference recording mixed to one channel. `wave` is float32 [N] in [-1, 1]."""

    wave: Tensor
    rate_hz: int
    n_channels: int = 1
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.wave.numel() / self.rate_hz


class OnnxGraph(Protocol):
    """The methods of onnxruntime.InferenceSession that are used here."""

    def get_inputs(self) -> list[Any]: ...

    def run(self, output_names: list[str] | None, input_feed: dict[str, Any]) -> Any: ...


class _NamedOnnxGraph:
    """An open ONNX file. Its errors name the file."""

    def __init__(self, graph: OnnxGraph, path: Path) -> None:
        self._graph, self._path = graph, path

    def get_inputs(self) -> list[Any]:
        return self._graph.get_inputs()

    def run(self, output_names: list[str] | None, input_feed: dict[str, Any]) -> Any:
        """Raises EngineUnavailable if the network cannot run on these inputs."""
        try:
            return self._graph.run(output_names, input_feed)
        except Exception as error:  # onnxruntime does not export its error classes
            reason = (" ".join(str(error).split()) or type(error).__name__)[:MAX_REASON]
            raise EngineUnavailable(
                f"{self._path} cannot be run, it is damaged or of another model ({reason}): fetch it again with "
                f"{shell_command('telephony-tts models pull')} {self._path.parent}"
            ) from error


def open_graph(path: Path, n_inputs: int | None = None) -> OnnxGraph:
    """An open ONNX file. It runs on one thread, because voices are made on machines with live calls.

    Raises EngineUnavailable if the file cannot be used or does not have `n_inputs` inputs.
    """
    try:
        return _NamedOnnxGraph(_opened(path, n_inputs), path)
    except ValueError as error:
        raise EngineUnavailable(
            f"{path} {error}: fetch it again with {shell_command('telephony-tts models pull')} {path.parent}"
        ) from error


def graph_problem(path: Path, n_inputs: int) -> str:
    """The problem of an ONNX file; "" if it is usable, or if onnxruntime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return ""
    try:
        _opened(path, n_inputs)
    except ValueError as error:
        return str(error)
    return ""


def _opened(path: Path, n_inputs: int | None) -> OnnxGraph:
    """Raises ValueError whose message continues a sentence that begins with the name of the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        graph: OnnxGraph = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime does not export its error classes
        reason = str(error).rpartition("failed:")[2].strip().rstrip(".")
        raise ValueError(f"is not a usable ONNX file, it is cut off or damaged ({reason})") from error
    names = [item.name for item in graph.get_inputs()]
    if n_inputs is not None and len(names) != n_inputs:
        raise ValueError(f"is another network: its inputs are {', '.join(names)}, and it should have {n_inputs}")
    return graph


# ------------------------------------------------------------------------------- read


def read_recording(source: Path | bytes, max_s: float = MAX_READ_S) -> Recording:
    """Reads an audio file (WAV, FLAC, MP3 or another format of libsndfile), from a path or from its content.

    Channels, rate and length are checked before anything is decoded, and no more than the length that the file states
    is decoded. So memory is bounded by `max_s` seconds. Raises AudioError for a file that cannot become a voice, and
    EngineUnavailable if soundfile is not installed.
    """
    try:
        import soundfile
    except ImportError as error:
        raise EngineUnavailable(
            f"reading audio files needs the package soundfile: {how_to_get('cosyvoice')}"
        ) from error

    label = "the recording" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not source.is_file():
        raise AudioError(f"{label} cannot be read as audio: there is no such file")
    try:
        with (io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")) as content:
            with soundfile.SoundFile(_with_lengths(content)) as sound:
                rate_hz = int(sound.samplerate)
                samples = _decoded(sound, label, max_s)
            content.seek(0)
            if _is_cut_wav(content):
                raise AudioError(f"{label} is truncated: send the whole file")
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except (soundfile.SoundFileError, OSError) as error:
        # The error of libsndfile begins with the Python object that it read from.
        reason = getattr(error, "error_string", error)
        raise AudioError(f"{label} cannot be read as audio: give a WAV, FLAC, OGG or MP3 file ({reason})") from error
    provenance = {"source_sha256": digest}
    if not isinstance(source, bytes):
        provenance = {"source": source.name, **provenance}
    return mixed(torch.from_numpy(samples), rate_hz, provenance)


def _decoded(sound: Any, label: str, max_s: float) -> Any:
    """The samples of an open soundfile.SoundFile, float32 [N, channels]. Raises AudioError if there are too many."""
    _check_channels(sound.channels)
    if sound.samplerate > MAX_RATE_HZ:
        raise AudioError(f"{label} has a rate of {sound.samplerate} Hz: give {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
    if sound.frames > _UNKNOWN_FRAMES:
        raise AudioError(f"{label} does not say how long it is: convert it to WAV")
    seconds = sound.frames / sound.samplerate
    if seconds > max_s:
        raise AudioError(f"{label} lasts {seconds:.0f} s: give {MIN_S:.0f} to {MAX_S:.0f} s of speech")
    samples = sound.read(sound.frames, dtype="float32", always_2d=True)
    if len(samples) < sound.frames:
        raise AudioError(f"{label} is truncated: send the whole file")
    return samples


def _with_lengths(content: BinaryIO) -> BinaryIO:
    """A WAV file that does not know its length, with its lengths: libsndfile takes the length 0 at its word."""
    head, n_bytes = content.read(HEAD_BYTES), content.seek(0, 2)
    content.seek(0)
    return io.BytesIO(with_true_lengths(content.read())) if has_unknown_length(head, n_bytes) else content


def _is_cut_wav(content: BinaryIO) -> bool:
    """Whether a WAV file says that it is longer than it is. libsndfile reads what is there and does not tell."""
    head = content.read(8)
    n_bytes = content.seek(0, 2)
    content.seek(0)
    if head[:4] != b"RIFF":
        return False
    n_said = int.from_bytes(head[4:], "little")
    return n_bytes + _WAV_SLACK_BYTES < n_said < _UNKNOWN_WAV_BYTES


def wav_of(recording: Recording) -> bytes:
    """The recording as a WAV file of one channel with 16 bits."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, recording.wave.numpy(), recording.rate_hz, format="WAV", subtype="PCM_16")
    return file.getvalue()


def _check_channels(n_channels: int) -> None:
    if n_channels > MAX_CHANNELS:
        raise AudioError(f"the recording has {n_channels} channels: give one or two")


def mixed(samples: Tensor, rate_hz: int, provenance: Mapping[str, str] | None = None) -> Recording:
    """Mixes samples [N, channels] to one channel. Raises AudioError if they cannot be mixed without damage."""
    n_channels = samples.shape[1]
    _check_channels(n_channels)
    if not bool(samples.isfinite().all()):
        raise AudioError("the recording holds samples that are not finite")
    wave = samples.mean(dim=1)
    loudest = float(samples.square().mean(dim=0).max()) if samples.numel() else 0.0
    left = float(wave.square().mean()) if samples.numel() else 0.0
    if left < loudest * 10 ** (-MAX_CANCELLED_DB / 10):
        raise AudioError("the recording's two channels cancel each other: give one channel")
    known = dict(provenance or {})
    known |= {"source_rate_hz": str(rate_hz), "source_channels": str(n_channels)}
    return Recording(wave, rate_hz, n_channels, known)


# ------------------------------------------------------------------------------ judge


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found in a recording. `code` is a word for programs, `message` continues "the recording ...".

    A recording with a problem cannot become a voice. Any other finding is a warning.
    """

    code: str
    message: str
    is_problem: bool = False


def prepared(recording: Recording, trim: bool = False) -> Recording:
    """The recording without the silence at its ends. `trim` keeps only the beginning of one that is too long.

    Raises AudioError that lists every problem of the recording.
    """
    kept, problems = judged(recording, trim)
    if problems:
        raise AudioError("the recording cannot become a voice: " + "; ".join(each.message for each in problems))
    return kept


def judged(recording: Recording, trim: bool = False) -> tuple[Recording, list[Finding]]:
    """The part of a recording that would be kept, and every problem of the recording. See `prepared`."""
    problems = []
    wave, rate_hz = recording.wave, recording.rate_hz
    is_file = "source" in recording.provenance  # else it came over the network, where there are no flags
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        told = f"its rate is {rate_hz} Hz and should be {MIN_RATE_HZ} Hz or more (24000 is best)"
        problems.append(Finding("low_rate", told, True))
    levels = frame_levels_db(wave, rate_hz)
    kept = wave
    if not levels.numel() or float(levels.max()) < MIN_DBFS:
        told = "it is silent or far too quiet: record it nearer to the microphone"
        problems.append(Finding("silent", told, True))
    else:
        kept = trimmed(wave, rate_hz, levels)
        if trim and kept.numel() > MAX_S * rate_hz:
            kept = beginning(kept, rate_hz)
    seconds = kept.numel() / rate_hz if rate_hz > 0 else 0.0
    if not MIN_S <= seconds <= MAX_S:
        told = f"it holds {seconds:.1f} s between the silences at its ends and should hold {MIN_S:.0f} to {MAX_S:.0f} s"
        if seconds > MAX_S and is_file:
            told += " (without --text, --trim keeps its beginning)"
        problems.append(Finding("too_long" if seconds > MAX_S else "too_short", told, True))
    clipped = clipped_share(wave)
    if clipped > MAX_CLIPPED:
        told = f"{clipped:.1%} of its samples are at full scale: it is clipped, record it more quietly"
        problems.append(Finding("clipped", told, True))
    provenance = {**recording.provenance, "source_s": f"{recording.seconds:.3f}", "kept_s": f"{seconds:.3f}"}
    return Recording(kept, rate_hz, recording.n_channels, provenance), problems


def clipped_share(wave: Tensor) -> float:
    """The share of the samples that are at full scale."""
    return float((wave.abs() >= CLIPPED_AT).float().mean()) if wave.numel() else 0.0


def frame_levels_db(wave: Tensor, rate_hz: int) -> Tensor:
    """The level of each complete frame of 10 ms in dBFS, [n]."""
    n = max(rate_hz // 100, 1)
    frames = wave[: wave.numel() // n * n].reshape(-1, n)
    return 10.0 * torch.log10(frames.square().mean(dim=1) + 1e-12)


def trimmed(wave: Tensor, rate_hz: int, levels_db: Tensor) -> Tensor:
    """The waveform without the silence at its ends, but with KEEP_BEFORE_S and KEEP_AFTER_S of it."""
    return wave[speech_span(rate_hz, levels_db)]


def speech_span(rate_hz: int, levels_db: Tensor) -> slice:
    """The samples that `trimmed` keeps."""
    n = max(rate_hz // 100, 1)
    loud = torch.nonzero(levels_db > levels_db.max() - TRIM_DB)[:, 0]
    first = max(int(loud[0]) * n - int(KEEP_BEFORE_S * rate_hz), 0)
    end = (int(loud[-1]) + 1) * n + int(KEEP_AFTER_S * rate_hz)
    return slice(first, end)


def beginning(wave: Tensor, rate_hz: int) -> Tensor:
    """The first MAX_S of a longer recording, cut at the quietest place of their last third."""
    n = max(rate_hz // 100, 1)
    longest = wave[: int(MAX_S * rate_hz)]
    first = longest.numel() * 2 // 3
    levels = frame_levels_db(longest[first:], rate_hz)
    # The level of 200 ms finds a pause and skips the closure of a consonant, which is shorter.
    quiet = levels.unfold(0, PAUSE_FRAMES, 1).mean(dim=1).argmin()
    return longest[: first + (int(quiet) + PAUSE_FRAMES // 2) * n]


# ---------------------------------------------------------------------------- extract


def extract(
    recording: Recording,
    speaker: OnnxGraph,
    tokens: OnnxGraph,
    transcript: str = "",
    transcript_ids: tuple[int, ...] = (),
    provenance: Mapping[str, str] | None = None,
) -> PromptFeatures:
    """Features of a prepared recording. Raises AudioError or EngineUnavailable if they are not usable."""
    wave24 = resample(recording.wave, recording.rate_hz, MEL_RATE_HZ)
    wave16 = resample(recording.wave, recording.rate_hz, TOKEN_RATE_HZ)[: int(MAX_S * TOKEN_RATE_HZ)]
    mel = flow_mel(wave24)
    speech_tokens = _speech_tokens(tokens, whisper_mel(wave16))
    embedding = _only_output(speaker, [centred(kaldi_fbank(wave16))[None].numpy()]).reshape(-1)
    features = aligned(
        speech_tokens,
        mel,
        torch.from_numpy(np.array(embedding, np.float32)),
        transcript,
        transcript_ids,
        {**recording.provenance, **(provenance or {})},
    )
    problems = features.problems()
    if not features.speech_tokens.numel():
        problems.append("the speech tokenizer gave no tokens")
    if problems:
        raise AudioError("the recording did not become a voice: " + "; ".join(problems))
    return features


def aligned(
    speech_tokens: Tensor,
    mel: Tensor,
    embedding: Tensor,
    transcript: str = "",
    transcript_ids: tuple[int, ...] = (),
    provenance: Mapping[str, str] | None = None,
) -> PromptFeatures:
    """Features whose tokens [P'] and mel [F, 80] are cut to the same length: P and 2P frames (specification 3.5)."""
    n = min(mel.shape[0] // 2, speech_tokens.numel())
    return PromptFeatures(
        speech_tokens[:n].to(torch.int64).contiguous(),
        mel[: 2 * n].float().contiguous(),
        embedding.float().contiguous(),
        transcript,
        transcript_ids,
        dict(provenance or {}),
    )


def _speech_tokens(graph: OnnxGraph, mel: Tensor) -> Tensor:
    """Speech tokens [P] of a Whisper log-mel [128, T]."""
    ids = _only_output(graph, [mel[None].numpy(), np.array([mel.shape[1]], np.int32)])
    return torch.from_numpy(np.array(ids, np.int64).reshape(-1))


def _only_output(graph: OnnxGraph, values: list[Any]) -> Any:
    """The only output, an array of finite numbers. Inputs are passed by position, because their names differ.

    Raises EngineUnavailable for another network, AudioError if the output is not finite.
    """
    names = [item.name for item in graph.get_inputs()]
    if len(names) != len(values):
        raise EngineUnavailable(
            f"an ONNX graph has the inputs {', '.join(names)} where {len(values)} were expected: it is of another "
            f"model; fetch the model directory again with {shell_command('telephony-tts models pull')}"
        )
    outputs = graph.run(None, dict(zip(names, values, strict=True)))
    if not outputs or not isinstance(outputs[0], np.ndarray) or outputs[0].dtype.kind not in "iuf":
        raise EngineUnavailable(
            f"an ONNX graph with the inputs {', '.join(names)} does not give an array of numbers: it is of another "
            f"model; fetch the model directory again with {shell_command('telephony-tts models pull')}"
        )
    if not np.isfinite(outputs[0]).all():
        raise AudioError(
            f"the recording did not become a voice: the ONNX graph with the inputs {', '.join(names)} gives values "
            f"that are not finite; try another recording, and {shell_command('telephony-tts models check')}"
        )
    return outputs[0]
