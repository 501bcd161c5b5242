"""Messages between the server's process and the one that makes voices. Each is a length and a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telephony_tts.runtime.errors import TelephonyTTSError


@dataclass(frozen=True, slots=True)
class MakeVoice:
    """Make a voice from the content of an audio file and store it in `directory`.

    `makes_room`: files to remove just before the voice is stored. A recording that is refused removes none. `record`
    becomes part of the voice's provenance: see `voice_records`. `denoise`: reduce the noise of the recording first.
    """

    name: str
    audio: bytes
    transcript: str
    model_dir: Path
    directory: Path
    replace: bool = False
    made_by: str = ""
    makes_room: tuple[Path, ...] = ()
    record: Mapping[str, str] = field(default_factory=dict)
    denoise: bool = False


@dataclass(frozen=True, slots=True)
class CheckRecording:
    """Say what is found in a recording: see `enrolment.check_recording`."""

    audio: bytes
    denoise: bool


@dataclass(frozen=True, slots=True)
class ReduceNoise:
    """Make a version of a recording with less noise: see `enrolment.denoised_wav`."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class MakingStep:
    """The making has come to this step: see `enrolment.STEPS`."""

    step: str


@dataclass(frozen=True, slots=True)
class VoiceMade:
    """The voice is stored."""

    description: str
    kept_s: float
    source_s: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordingChecked:
    """What was found, as values of JSON."""

    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoiseReduced:
    """The version with less noise, a WAV file."""

    wav: bytes


@dataclass(frozen=True, slots=True)
class VoiceRefused:
    """It was not done. There is no voice, and nothing is left of it."""

    error: TelephonyTTSError


Job = MakeVoice | CheckRecording | ReduceNoise
Done = VoiceMade | RecordingChecked | NoiseReduced
