"""`engines.others` in the configuration: every mistake names its setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from telephony_tts.app.config import Config, load
from telephony_tts.app.engines import build_catalog
from telephony_tts.app.processes import config_of_front
from telephony_tts.engines.others.settings import KINDS
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

SERVER = "kind: openai, url: 'http://10.0.0.5:8000', voices: {alloy: {}}"


def loaded(text: str, folder: Path, **environ: str) -> Config:
    file = folder / "server.yaml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), environ=environ)


def test_two_servers_of_one_kind_beside_each_other(tmp_path: Path) -> None:
    config = loaded(
        "engines:\n"
        "  default: fast\n"
        "  routes: {zh: good}\n"
        "  fallback: [good, hibari]\n"
        "  others:\n"
        f"    fast: {{{SERVER}, rate_hz: 44100, slots: 3}}\n"
        "    good:\n"
        "      kind: vllm_omni\n"
        "      url: https://tts.example.com/base/\n"
        "      voices:\n"
        "        anna: {wav: voices/anna.wav, text: hello, languages: [zh, en]}\n"
        "      fields: {seed: '3'}\n",
        tmp_path,
    )
    fast, good = config.engines.others["fast"], config.engines.others["good"]
    assert (fast.facts.rate_hz, fast.facts.slots, fast.facts.stops) == (44_100, 3, True)
    assert (good.facts.rate_hz, good.facts.slots) == (24_000, KINDS["vllm_omni"].slots)
    assert good.voices["anna"].wav == str(tmp_path / "voices" / "anna.wav"), "paths are relative to the file"
    assert good.is_encrypted and not fast.is_encrypted
    assert config.engines.names == ("hibari", "kokoro", "espeak", "fake", "cosyvoice2", "remote", "ray", "fast", "good")


def test_a_key_is_a_secret_and_may_come_from_the_environment(tmp_path: Path) -> None:
    text = f"engines: {{others: {{their-tts: {{{SERVER}, key: in-file}}}}}}"
    assert loaded(text, tmp_path).engines.others["their-tts"].key == "in-file"
    given = loaded(text, tmp_path, TELEPHONY_TTS_KEY_THEIR_TTS="secret-7")
    assert given.engines.others["their-tts"].key == "secret-7"
    assert "secret-7" not in repr(given)
    with pytest.raises(ConfigError) as caught:
        loaded(f"engines: {{others: {{x: {{{SERVER}, key: [secret-8]}}}}}}", tmp_path)
    assert "engines.others.x.key: the value (not shown)" in caught.value.message and "secret-8" not in str(caught.value)


TRITON = "kind: triton, url: 'grpc://10.0.0.5:8001', model: cosyvoice2"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("x: {}", "x.kind: missing; expected one of openai, vllm_omni"),
        ("x: {kind: openia}", "x.kind: 'openia' is wrong; expected one of openai"),
        ("x: 3", "x: 3 is not a section; expected the keys kind, url"),
        ("x: {kind: openai, urll: y}", 'x.urll: unknown key. Did you mean "url"'),
        ("a b: {kind: openai}", "'a b' is not a name; expected letters, digits, - and _"),
        ("1", "others: 1 is wrong; expected sections, each with a name of its own"),
        (f"hibari: {{{SERVER}}}", "others.hibari: hibari is an engine of telephony-tts; choose another name"),
        ("x: {kind: openai}", "x.url: None is wrong; expected an address beginning with http:// or https://"),
        ("x: {kind: openai, url: 'grpc://h:1'}", "expected an address beginning with http:// or https://"),
        ("x: {kind: openai, url: 'http://h:70000'}", "x.url: 'http://h:70000' is wrong"),
        ("x: {kind: openai, url: 'http:///speech'}", "x.url: 'http:///speech' is wrong"),
        ("x: {kind: triton, url: 'http://h:1', model: m}", "expected an address beginning with grpc:// or grpcs://"),
        ("x: {kind: triton, url: 'grpc://h:1/v2', model: m}", "x.url: 'grpc://h:1/v2' has a path; expected grpc://H"),
        ("x: {kind: triton, url: 'grpc://h:1'}", "x.model: missing; expected the name of the model on Triton"),
        ("x: {kind: openai, url: 'http://h'}", "x.voices: missing; expected at least one"),
        (f"x: {{{SERVER}, websocket: true}}", "x.websocket: openai has no stream over a WebSocket"),
        (f"x: {{{SERVER}, ca_file: ca.pem}}", "x.ca_file: the connection is not encrypted; expected url to begin with"),
        (f"x: {{{TRITON}, fields: {{a: b}}}}", "x.fields: a request to triton has no other fields"),
        (f"x: {{{SERVER}, audio_timeout_s: 90}}", "x.audio_timeout_s: 90 is above request_timeout_s (60)"),
        (f"x: {{{SERVER}, languages: []}}", "x.languages: empty"),
        (f"x: {{{SERVER}, slots: 0}}", "x.slots: 0 is wrong; expected a whole number from 1 to 10000"),
        ("x: {kind: openai, url: 'http://h', voices: {a: {wav: a.wav}}}", "x.voices.a.wav: openai takes no recordings"),
        (f"x: {{{TRITON}, voices: {{a: {{wav: a.wav}}}}}}", "x.voices.a.text: missing; expected the transcript"),
        (f"x: {{{TRITON}, voices: {{a: {{text: hi}}}}}}", "x.voices.a.wav: missing; a transcript needs the recording"),
        (f"x: {{{TRITON}, voices: {{a: {{name: b}}}}}}", "x.voices.a.name: triton knows no names of voices"),
        ("x: {kind: lighttts, url: 'http://h', voices: {a: {}}}", "x.voices.a.wav: missing; a voice of lighttts is a"),
        (
            "x: {kind: voxserve, url: 'http://h', voices: {a: {wav: a.wav, text: hi, name: b}}}",
            "x.voices.a.name: a recording needs no name for the server",
        ),
        ("x: {kind: openai, url: 'http://h', voices: {a: {gain_db: 99}}}", "x.voices.a.gain_db: 99 is wrong"),
    ],
)
def test_a_mistake_names_its_setting(section: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(f"engines: {{others: {{{section}}}}}" if section != "1" else "engines: {others: 1}", tmp_path)
    found = caught.value.message.split("\n  ")[1:]
    assert any(line.startswith("engines.others") and problem in line for line in found), found


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("default: theirz", "engines.default: 'theirz' is wrong; expected one of hibari, kokoro, espeak, fake"),
        ("routes: {zh: theirz}", "engines.routes.zh: no engine is named 'theirz'; expected one of hibari"),
        ("fallback: [theirz]", "engines.fallback: no engine is named 'theirz'; expected some of hibari"),
    ],
)
def test_an_engine_that_is_not_there_is_refused_by_name(setting: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(f"engines: {{{setting}, others: {{theirs: {{{SERVER}}}}}}}", tmp_path)
    (line,) = caught.value.message.split("\n  ")[1:]
    assert line.startswith(problem) and line.endswith("theirs")


def test_a_kind_with_a_voice_of_its_own_needs_none() -> None:
    config = load(
        None,
        {"engines.others": {"t": {"kind": "triton", "url": "grpc://h:1", "model": "m"}}},
        {},
    )
    assert config.engines.others["t"].voices == {}
    assert not config.engines.others["t"].facts.stops, "the recipe computes a cancelled request to its end"


def test_several_fronts_share_the_slots_of_a_server(tmp_path: Path) -> None:
    config = loaded(f"engines: {{others: {{x: {{{SERVER}}}, y: {{{SERVER}, slots: 3}}}}}}", tmp_path)
    fronts = [config_of_front(config, number, 2).engines.others for number in range(2)]
    assert [front["x"].facts.slots for front in fronts] == [8, 8]
    assert sorted(front["y"].facts.slots for front in fronts) == [1, 2]


def test_more_fronts_than_slots_that_are_set_are_refused(tmp_path: Path) -> None:
    """Each front has at least one slot, so that the server would get more requests than it may."""
    config = loaded(f"engines: {{others: {{x: {{{SERVER}}}, y: {{{SERVER}, slots: 4}}}}}}", tmp_path)
    assert [config_of_front(config, number, 4).engines.others["y"].slots for number in range(4)] == [1] * 4
    with pytest.raises(ConfigError, match=r"engines\.others\.y\.slots is 4, .* 8 processes \(server\.processes\)"):
        config_of_front(config, 0, 8)


@pytest.mark.parametrize(("section", "package"), [(SERVER, "httpx2"), (TRITON, "grpc")])
def test_a_missing_package_names_the_extra(
    section: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(f"engines: {{others: {{x: {{{section}}}}}}}", tmp_path)
    monkeypatch.setattr("telephony_tts.engines.others.plugin.has_module", lambda name: name != package)
    wanted = rf"engines\.others\.x needs {package}: \.venv/bin/pip install -e '\.\[others\]'"
    with pytest.raises(EngineUnavailable, match=wanted):
        build_catalog(config)
