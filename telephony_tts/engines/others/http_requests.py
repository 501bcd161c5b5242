"""How each kind of HTTP server is asked for speech. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.others.speech_server import ServerVoice

_STREAM: Mapping[str, Mapping[str, Any]] = {
    "openai": {},
    # `stream` alone is events since the middle of 2026, and was plain samples before.
    "vllm_omni": {"stream": True, "stream_format": "audio"},
    "sglang_omni": {"stream": True},
    "kokoro_fastapi": {"stream": True},
    "speaches": {"stream_format": "audio"},
}
"""What makes each OpenAI-shaped server stream plain samples."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST: either `json`, or a form of `form` and the file `recording` (its field's name and its content)."""

    path: str
    json: Mapping[str, Any] | None = None
    form: Mapping[str, str] | None = None
    recording: tuple[str, bytes] | None = None


def request_of(settings: OtherEngineSettings, text: str, voice: ServerVoice, utterance: Utterance) -> HttpRequest:
    kind = settings.kind
    if kind == "voxserve":
        return _voxserve(settings, text, voice)
    if kind in ("cosyvoice_fastapi", "lighttts"):
        return _cosyvoice(settings, text, voice, utterance)
    return HttpRequest("/v1/audio/speech", json=openai_fields(settings, text, voice, utterance))


def openai_fields(
    settings: OtherEngineSettings, text: str | None, voice: ServerVoice, utterance: Utterance
) -> dict[str, Any]:
    """The body for an OpenAI-shaped server. Without `text`, the settings of a WebSocket stream."""
    fields: dict[str, Any] = {} if text is None else {"input": text, **_STREAM[settings.kind or "openai"]}
    fields["response_format"] = "pcm"
    if settings.model is not None:
        fields["model"] = settings.model
    if voice.recording is not None:
        fields |= {"ref_audio": voice.recording.data_url, "ref_text": voice.recording.transcript}
    elif voice.name:
        fields["voice"] = voice.name
    if utterance.speed != 1.0 and settings.facts.speeds is not None:
        low, high = settings.facts.speeds
        fields["speed"] = min(max(utterance.speed, low), high)
    if utterance.seed is not None and settings.kind == "vllm_omni":
        fields["seed"] = utterance.seed
    if utterance.instruct and settings.kind in ("openai", "vllm_omni"):
        fields["instructions"] = utterance.instruct
    return fields | {name: plain_value(value) for name, value in settings.fields.items()}


def _voxserve(settings: OtherEngineSettings, text: str, voice: ServerVoice) -> HttpRequest:
    form = {"text": text, "streaming": "true"}
    if voice.recording is not None:
        form["ref_text"] = voice.recording.transcript
    elif voice.name:
        form["speaker"] = voice.name
    recording = None if voice.recording is None else ("audio", voice.recording.file)
    return HttpRequest("/generate", form=form | dict(settings.fields), recording=recording)


def _cosyvoice(settings: OtherEngineSettings, text: str, voice: ServerVoice, utterance: Utterance) -> HttpRequest:
    form = {"tts_text": text}
    if voice.recording is None:
        path = "/inference_sft"
        form["spk_id"] = voice.name
    elif settings.kind == "lighttts":
        path = "/inference_zero_shot"
        form |= {"prompt_text": voice.recording.transcript, "stream": "true"}
        if settings.model is not None:
            form["tts_model_name"] = settings.model
    elif utterance.instruct:
        path = "/inference_instruct2"
        form["instruct_text"] = utterance.instruct
    elif voice.recording.transcript:
        path = "/inference_zero_shot"
        form["prompt_text"] = voice.recording.transcript
    else:
        path = "/inference_cross_lingual"
    recording = None if voice.recording is None else ("prompt_wav", voice.recording.file)
    return HttpRequest(path, form=form | dict(settings.fields), recording=recording)


def plain_value(text: str) -> Any:
    """The value of a field in JSON: "true" and "0.5" are what they say, other texts are text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def names_in(answer: Any) -> list[str]:
    """The names in a list of voices: texts, or objects with `id` or `name`, under `voices` and `uploaded_voices`."""
    found: list[str] = []
    if isinstance(answer, dict):
        for key in ("voices", "uploaded_voices"):
            found += names_in(answer.get(key))
    elif isinstance(answer, list):
        for each in answer:
            name = (each.get("id") or each.get("voice_id") or each.get("name")) if isinstance(each, dict) else each
            if isinstance(name, str) and name:
                found.append(name)
    return list(dict.fromkeys(found))
