"""What each kind of HTTP server is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from others_rig import TRANSCRIPT, recording, settings

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.http_requests import HttpRequest, names_in, openai_fields, request_of
from telephony_tts.engines.others.speech_server import Recording, ServerVoice, read_voices

URL = "http://127.0.0.1:8000"
NAMED = ServerVoice("alloy")


def asked(kind: str, voice: ServerVoice = NAMED, utterance: Utterance | None = None, **given: Any) -> HttpRequest:
    made = settings(kind=kind, url=URL, **{"voices": {"alloy": {}}, **given})
    return request_of(made, "hello", voice, utterance or Utterance("u", "hello"))


def prompted(folder: Path, transcript: str = TRANSCRIPT) -> ServerVoice:
    return ServerVoice(recording=Recording.read(recording(folder), transcript))


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("openai", {}),
        ("vllm_omni", {"stream": True, "stream_format": "audio"}),
        ("sglang_omni", {"stream": True}),
        ("kokoro_fastapi", {"stream": True}),
        ("speaches", {"stream_format": "audio"}),
    ],
)
def test_every_openai_shaped_server_is_asked_to_stream_samples(kind: str, own: dict[str, Any]) -> None:
    request = asked(kind, model="tts-1")
    assert request.path == "/v1/audio/speech"
    assert request.json == {"input": "hello", "voice": "alloy", "model": "tts-1", "response_format": "pcm", **own}


def test_speed_seed_and_instruction_go_where_they_are_known() -> None:
    utterance = Utterance("u", "hello", speed=1.25, seed=7, instruct="whisper")
    assert asked("openai", utterance=utterance).json == {
        "input": "hello", "voice": "alloy", "response_format": "pcm", "speed": 1.25, "instructions": "whisper",
    }  # fmt: skip
    of_vllm = asked("vllm_omni", utterance=utterance).json
    assert of_vllm is not None and of_vllm["seed"] == 7
    assert "speed" not in of_vllm, "a stream of vLLM-Omni has one speed"
    of_speaches = asked("speaches", utterance=Utterance("u", "x", speed=0.3)).json
    assert of_speaches is not None and of_speaches["speed"] == 0.5


def test_fields_of_the_settings_are_added_and_win() -> None:
    request = asked("kokoro_fastapi", fields={"lang_code": "b", "stream": "false", "volume": "0.5"})
    assert request.json is not None
    assert (request.json["lang_code"], request.json["stream"], request.json["volume"]) == ("b", False, 0.5)


def test_a_recording_for_an_openai_shaped_server_is_a_data_url(tmp_path: Path) -> None:
    request = asked("vllm_omni", prompted(tmp_path))
    assert request.json is not None and "voice" not in request.json
    assert request.json["ref_audio"].startswith("data:audio/wav;base64,UklGR")
    assert request.json["ref_text"] == TRANSCRIPT


def test_voxserve_takes_a_form(tmp_path: Path) -> None:
    assert asked("voxserve").form == {"text": "hello", "streaming": "true", "speaker": "alloy"}
    request = asked("voxserve", prompted(tmp_path), fields={"language": "en"})
    assert request.path == "/generate"
    assert request.form == {"text": "hello", "streaming": "true", "ref_text": TRANSCRIPT, "language": "en"}
    assert request.recording is not None and request.recording[0] == "audio"
    assert request.recording[1] == Path(recording(tmp_path)).read_bytes()


def test_cosyvoices_runtime_has_a_path_for_each_kind_of_voice(tmp_path: Path) -> None:
    fields = {"tts_text": "hello"}
    assert asked("cosyvoice_fastapi") == HttpRequest("/inference_sft", form={**fields, "spk_id": "alloy"})
    zero_shot = asked("cosyvoice_fastapi", prompted(tmp_path))
    assert zero_shot.path == "/inference_zero_shot" and zero_shot.form == {**fields, "prompt_text": TRANSCRIPT}
    assert zero_shot.recording is not None and zero_shot.recording[0] == "prompt_wav"
    cross = asked("cosyvoice_fastapi", prompted(tmp_path, ""))
    assert cross.path == "/inference_cross_lingual" and cross.form == fields and cross.recording is not None
    told = asked("cosyvoice_fastapi", prompted(tmp_path), Utterance("u", "hello", instruct="slowly"))
    assert told.path == "/inference_instruct2" and told.form == {**fields, "instruct_text": "slowly"}


def test_lighttts_streams_only_if_it_is_told_to(tmp_path: Path) -> None:
    voices = {"anna": {"wav": recording(tmp_path), "text": TRANSCRIPT}}
    request = asked("lighttts", prompted(tmp_path), model="CosyVoice3", voices=voices)
    assert request.path == "/inference_zero_shot"
    assert request.form == {
        "tts_text": "hello", "prompt_text": TRANSCRIPT, "stream": "true", "tts_model_name": "CosyVoice3",
    }  # fmt: skip


def test_the_settings_of_a_websocket_have_no_text_and_no_switch() -> None:
    made = settings(kind="vllm_omni", url=URL, model="m")
    fields = openai_fields(made, None, NAMED, Utterance("u", "hello"))
    assert fields == {"model": "m", "voice": "alloy", "response_format": "pcm"}


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (["a", "b", "a"], ["a", "b"]),
        ({"voices": [{"id": "af_heart", "name": "Heart"}, {"name": "only"}], "uploaded_voices": ["mine"]},
         ["af_heart", "only", "mine"]),
        ({"voices": None}, []),
        ([{"voice_id": "en_US-x"}, 5, {}, ""], ["en_US-x"]),
        ("nonsense", []),
    ],
)  # fmt: skip
def test_lists_of_voices_in_several_shapes(answer: Any, names: list[str]) -> None:
    assert names_in(answer) == names


def test_the_voices_of_the_settings(tmp_path: Path) -> None:
    of_c = {"wav": recording(tmp_path, rate_hz=44_100), "text": TRANSCRIPT}
    voices = read_voices(settings(kind="vllm_omni", url=URL, voices={"a": {}, "b": {"name": "theirs"}, "c": of_c}))
    assert (voices["a"], voices["b"]) == (ServerVoice("a"), ServerVoice("theirs"))
    read = voices["c"].recording
    assert read is not None and read.transcript == TRANSCRIPT
    assert len(read.pcm) == pytest.approx(16_000 * len(TRANSCRIPT) * 0.06, abs=2), "mono at 16 kHz"
