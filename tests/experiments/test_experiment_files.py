"""The file of experiments: what is read, what is refused and how it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from telephony_tts.experiments.arms import Experiment
from telephony_tts.experiments.experiment_file import MAX_ARMS, ExperimentReader
from telephony_tts.experiments.sums import StopRules
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.session.settings import BargeInSettings, SessionSettings, SpeechSettings

ENGINES = ("hibari", "espeak")
WHOLE = """
experiments:
  new-voice:
    keys: [acme]
    numbers: ["+4930*"]
    arms:
      anna: {share: 10, voice: hibari/anna, voices: {heart: anna}, speech: {speed: 1.1, lang: en}}
      other: {share: 20.5, engine: espeak, barge_in: {min_speech_ms: 300}}
    stop: {after_calls: 100, first_audio_ms: 400, errors: 0.02}
"""


def read(tmp_path: Path, text: str, speech: SpeechSettings | None = None) -> tuple[Experiment, ...]:
    path = tmp_path / "experiments.yaml"
    path.write_text(text)
    return ExperimentReader(ENGINES, speech or SpeechSettings(), BargeInSettings()).read(path)


def refused(tmp_path: Path, text: str, speech: SpeechSettings | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text, speech)
    return raised.value.message


def test_an_experiment_with_everything(tmp_path: Path) -> None:
    (experiment,) = read(tmp_path, WHOLE)
    assert (experiment.name, experiment.keys, experiment.numbers) == ("new-voice", ("acme",), ("+4930*",))
    anna, other, control = experiment.arms
    assert (anna.share, anna.voice, anna.voices, anna.engine) == (10, "hibari/anna", {"heart": "anna"}, None)
    assert anna.speech == {"speed": 1.1, "lang": "en"} and anna.barge_in == {}
    assert (other.share, other.engine, other.barge_in) == (20.5, "espeak", {"min_speech_ms": 300})
    assert (control.name, control.share, control.voice, control.speech) == ("control", 69.5, None, {})
    assert experiment.stop == StopRules(100, first_audio_ms=400.0, errors=0.02)


def test_shares_of_100_leave_no_control(tmp_path: Path) -> None:
    (experiment,) = read(tmp_path, "experiments: {e: {arms: {a: {share: 40, voice: x}, b: {share: 60, voice: y}}}}")
    assert [arm.name for arm in experiment.arms] == ["a", "b"]


def test_an_empty_file_has_no_experiments(tmp_path: Path) -> None:
    assert read(tmp_path, "") == () and read(tmp_path, "experiments: {}") == ()


def test_an_arm_is_checked_together_with_the_settings_of_the_server(tmp_path: Path) -> None:
    text = "experiments: {e: {arms: {a: {share: 1, speech: {speed: 1.5}}}}}"
    assert read(tmp_path, text)[0].arms[0].speech == {"speed": 1.5}
    told = refused(tmp_path, text, SpeechSettings(ahead_ms=100))
    assert "experiments.e.arms.a.speech.ahead_ms: 100 is less than lead_ms (200)" in told
    session = replace(SessionSettings(), ahead_ms=100)
    assert "ahead_ms" in refused(tmp_path, text, session), "a session's settings have more than the section"


def arm(text: str) -> str:
    return f"experiments: {{e: {{arms: {{a: {text}}}}}}}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "experiments: {e: {arms: {a: {share: 60, voice: x}, b: {share: 60, voice: y}}}}",
            "experiments.e.arms: the shares are 120 % together; at most 100 %",
        ),
        (
            arm("{share: 1, engine: cosyvoice2}"),
            "experiments.e.arms.a.engine: this server has no engine 'cosyvoice2'; it has hibari, espeak",
        ),
        (arm("{share: 1, engine: espeak, voice: x}"), "experiments.e.arms.a.engine: it does not go with voice"),
        (arm("{share: 1}"), "experiments.e.arms.a: it changes nothing"),
        (arm("{voice: x}"), "experiments.e.arms.a.share: missing"),
        (arm("{share: 101, voice: x}"), "experiments.e.arms.a.share: 101 is wrong; expected a number from 0 to 100"),
        (arm("{share: 1, voice: 3}"), "experiments.e.arms.a.voice: 3 is wrong"),
        (arm("{share: 1, vioce: x}"), "experiments.e.arms.a.vioce: unknown key"),
        (arm("{share: 1, speech: {speed: 9}}"), "experiments.e.arms.a.speech.speed: 9 is wrong"),
        (arm("{share: 1, speech: {codec: alaw}}"), "experiments.e.arms.a.speech: an arm cannot change codec"),
        (arm("{share: 1, speech: fast}"), "experiments.e.arms.a.speech: 'fast' is not a section"),
        (arm("{share: 1, barge_in: {hold_off_ms: -5}}"), "experiments.e.arms.a.barge_in.hold_off_ms: -5 is wrong"),
        (arm("{share: 1, barge_in: {enabled: true}}"), "experiments.e.arms.a.barge_in: an arm cannot change enabled"),
        (arm("fast"), "experiments.e.arms.a: expected share"),
        ("experiments: {e: {arms: {control: {share: 1, voice: x}}}}", "this name is for the calls that no arm takes"),
        ("experiments: {e: {}}", "experiments.e.arms: expected names of arms"),
        ("experiments: {e: fast}", "experiments.e: expected arms"),
        ("experiments: {'a b': {}}", "experiments: 'a b' is no name"),
        ("experiments: [e]", "expected names of experiments"),
        ("experiment: {}", "'experiment': unknown key. Allowed here: experiments"),
        (
            "experiments: {e: {stop: {after_calls: 5, errors: 1}, arms: {a: {share: 1, voice: x}}}}",
            "experiments.e.stop.after_calls: 5 is wrong; expected a whole number from 30",
        ),
        (
            "experiments: {e: {stop: {}, arms: {a: {share: 1, voice: x}}}}",
            "experiments.e.stop.expected at least one of",
        ),
        ("experiments: {e: {", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(tmp_path, text)


def test_there_is_a_most_of_arms(tmp_path: Path) -> None:
    arms = ", ".join(f"a{n}: {{share: 1, voice: x}}" for n in range(MAX_ARMS))
    told = refused(tmp_path, f"experiments: {{e: {{arms: {{{arms}}}}}}}")
    assert f"{MAX_ARMS + 1} arms together, control included; the limit is {MAX_ARMS}" in told
