"""The configuration: strict, with all problems in one error, and without secrets in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from telephony_tts.app.config import Config, FullConfig, doubtful_settings, load
from telephony_tts.app.settings import transport_settings
from telephony_tts.runtime.errors import ConfigError

SHIPPED = Path(__file__).parents[1] / "configs" / "server.yaml"


def problems_of(text: str, folder: Path, **environ: str) -> list[str]:
    """The lines after the first of the error that loading `text` raises."""
    file = folder / "server.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(file), environ=environ)
    first, *rest = caught.value.message.split("\n  ")
    count = "1 problem" if len(rest) == 1 else f"{len(rest)} problems"
    assert first == f"{file}: {count}"
    return rest


def loaded(text: str, folder: Path, **environ: str) -> Config:
    file = folder / "server.yaml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), environ=environ)


def keys_of(tree: object, path: str = "") -> set[str]:
    if not isinstance(tree, dict) or not tree or path == "engines.routes":
        return {path}
    return {found for name, part in tree.items() for found in keys_of(part, f"{path}.{name}".strip("."))}


# ------------------------------------------------------------------- the defaults


def test_the_shipped_file_shows_every_key_with_its_default() -> None:
    assert load(str(SHIPPED), environ={}) == FullConfig()
    shown = keys_of(yaml.safe_load(SHIPPED.read_text(encoding="utf-8")))
    assert shown == keys_of(dataclasses.asdict(FullConfig()))


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\nlimits:\n", "{}"])
def test_an_empty_file_is_the_defaults(text: str, tmp_path: Path) -> None:
    assert loaded(text, tmp_path) == load(environ={}) == FullConfig()


def test_a_call_starts_with_what_the_sections_say(tmp_path: Path) -> None:
    config = loaded(
        "speech: {voice: af_heart, codec: pcm, rate_hz: 16000, lead_ms: 120, text_mode: interleaved, resume_chars: 7}\n"
        "limits: {turn_chars: 5, idle_s: 0, calls: 3}\n"
        "barge_in: {enabled: true, floor_dbov: -50}\n"
        "engines: {timeout_s: 12.5, cosyvoice2: {control_tokens: ['[laughter]']}}\n",
        tmp_path,
    )
    transport = transport_settings(config)
    call = transport.speech
    for item in dataclasses.fields(config.speech):
        assert getattr(call, item.name) == getattr(config.speech, item.name), item.name
    assert (call.limits.turn_chars, call.limits.idle_s) == (5, 0) and transport.limits.calls == 3
    assert call.barge_in.enabled and call.barge_in.floor_dbov == -50.0
    assert call.engine_timeout_ms == 12_500 and call.control_tokens == ("[laughter]",)


def test_the_defaults_listen_on_loopback_only() -> None:
    assert (FullConfig().server.host, FullConfig().server.port) == ("127.0.0.1", 8080)


# ----------------------------------------------------------------------- reading


def test_origins_of_web_pages(tmp_path: Path) -> None:
    origins = ["*", "https://console.example.com", "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abc"]
    config = loaded(f"server: {{origins: {origins}}}\n", tmp_path)
    assert config.server.origins == transport_settings(config).server.origins == tuple(origins)


def test_values_of_the_file_arrive_and_the_rest_stays_default(tmp_path: Path) -> None:
    config = loaded(
        "server: {port: 9000, drain_s: 5}\n"
        "speech: {codec: pcm, rate_hz: 16000, lang: 'no'}\n"
        "engines: {default: fake, fake: {rtf: 0.25}, routes: {'no': espeak}}\n",
        tmp_path,
    )
    assert config.server.port == 9000
    assert config.server.drain_s == 5.0 and isinstance(config.server.drain_s, float)
    assert (config.speech.codec, config.speech.rate_hz, config.speech.lang) == ("pcm", 16_000, "no")
    assert (config.engines.default, config.engines.fake.rtf) == ("fake", 0.25)
    assert config.engines.routes == {"no": "espeak"}
    assert config.limits == FullConfig().limits and config.server.host == "127.0.0.1"


def test_overrides_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("bot: {token: of-file}\ntwilio: {auth_token: of-file}\nserver: {port: 1}\n")
    environ = {"TELEPHONY_TTS_BOT_TOKEN": "of-environment", "TELEPHONY_TTS_TWILIO_AUTH_TOKEN": "of-environment"}
    overrides = {"bot.token": "of-flag", "server.port": 3, "twilio.auth_token": None, "log.level": None}
    config = load(str(file), overrides, environ)
    assert config.bot.token == "of-flag"
    assert config.twilio.auth_token == "of-environment", "None in the overrides means: no flag was given"
    assert config.server.port == 3
    assert load(str(file), environ={}).bot.token == "of-file"
    assert load(str(file), environ={"TELEPHONY_TTS_BOT_TOKEN": ""}).bot.token == "of-file"


def test_an_override_is_checked_like_the_file() -> None:
    with pytest.raises(ConfigError, match=r"server\.port: 70000 is wrong; expected a whole number from 0 to 65535"):
        load(None, {"server.port": 70_000}, {})
    with pytest.raises(ConfigError, match=r'server\.prot: unknown key\. Did you mean "port"'):
        load(None, {"server.prot": 80}, {})


def test_tokens_are_the_union_of_list_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# the ops team\nfrom-file\n\n  twice  \n")
    config = loaded(
        "server: {tokens: [listed, twice], tokens_file: tokens}\n", tmp_path, TELEPHONY_TTS_TOKENS="from-env, twice,"
    )
    assert config.server.tokens == ("listed", "twice", "from-file", "from-env")


@pytest.mark.parametrize("text", ["", "\n \n", "# none yet\n"])
def test_a_tokens_file_without_a_token_is_a_problem(text: str, tmp_path: Path) -> None:
    """Pinned: an empty or truncated secret opened the server to everyone who could reach it."""
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match=r"server\.tokens_file: .*tokens has no token; expected one per line"):
        loaded("server: {tokens_file: tokens}\n", tmp_path, TELEPHONY_TTS_TOKENS="from-env")


def test_paths_in_the_file_are_relative_to_it_and_flags_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "etc", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        for name in ("c.pem", "k.pem", "secret"):
            (folder / name).touch()
    monkeypatch.chdir(here)
    config = loaded("server: {tls: {cert: c.pem, key: k.pem, passphrase_file: secret}}\n", beside)
    assert config.server.tls.cert == str(beside / "c.pem")
    assert config.server.tls.passphrase_file == str(beside / "secret")
    flags = {"server.tls.cert": "c.pem", "server.tls.key": "k.pem"}
    assert load(str(beside / "server.yaml"), flags, {}).server.tls.cert == "c.pem"


def test_paths_are_shown_as_short_as_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("configs", "elsewhere/deep"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    text = "engines: {cosyvoice2: {model: ../models/one}}\n"
    assert loaded(text, Path("configs")).engines.cosyvoice2.model == "models/one"
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere" / "deep")
    behind = loaded(text, Path("linked")).engines.cosyvoice2.model
    assert behind is not None and Path(behind).resolve() == tmp_path / "elsewhere" / "models" / "one"


# ------------------------------------------------------------------- complaining


def test_every_problem_of_a_file_is_in_one_error(tmp_path: Path) -> None:
    found = problems_of(
        "server: {prot: 1, port: 99999, drain_s: soon}\n"
        "limits: {calls: 0}\n"
        "speech: {codec: opus}\n"
        "engines: {fake: {frist_audio_ms: 3}, routes: {zh: esspeak}}\n"
        "colour: blue\n"
        "log: loud\n",
        tmp_path,
    )
    assert [line.split(":")[0] for line in found] == [
        "colour",
        "server.prot",
        "server.port",
        "server.drain_s",
        "limits.calls",
        "speech.codec",
        "engines.fake.frist_audio_ms",
        "log",
    ], "keys of no section first, then section by section; routes wait until their section's own fields are right"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server: {prot: 1}", 'server.prot: unknown key. Did you mean "port"? Allowed here: host, port, tokens, '),
        ("port: 1", 'port: unknown key. Did you mean "server.port"? Allowed here: server, limits, speech, '),
        ("server: {colour: 1}", "server.colour: unknown key. Allowed here: host, "),
        ("server: {port: '80'}", "server.port: '80' is wrong; expected a whole number from 0 to 65535"),
        ("server: {port: true}", "server.port: True is wrong; expected a whole number from 0 to 65535"),
        ("server: {port: 80.0}", "server.port: 80.0 is wrong; expected a whole number"),
        ("server: {port: null}", "server.port: None is wrong; expected a whole number"),
        ("server: {drain_s: .nan}", "server.drain_s: nan is wrong; expected a number from 0 to 3600"),
        ("server: {drain_s: .inf}", "server.drain_s: inf is wrong; expected a number"),
        (f"server: {{drain_s: 1{'0' * 400}}}", "server.drain_s: 1000"),
        ("server: {host: ''}", "server.host: '' is wrong; expected text"),
        ("server: {tokens: abc}", "server.tokens: the value (not shown) is wrong; expected a list of text"),
        ("server: {tokens: ['']}", "server.tokens: a token must be visible ASCII characters"),
        ("server: {tokens: ['a b']}", "server.tokens: a token must be visible ASCII characters"),
        ("server: {tokens: ['señor']}", "server.tokens: a token must be visible ASCII characters"),
        ("server: {tokens_file: nowhere}", "server.tokens_file: cannot read "),
        ("server: {tls: {cert: c.pem}}", "server.tls.key: missing; a certificate and its key go together"),
        ("server: {tls: {passphrase_file: c.pem}}", "server.tls.key: missing; passphrase_file is for an encrypted key"),
        ("server: {public_url: example.com}", "server.public_url: 'example.com' is wrong; expected a URL beginning"),
        *(
            (f"server: {{origins: ['{origin}']}}", f"server.origins: '{origin}' is wrong; expected an origin as browse")
            for origin in ("console.example.com", "https://", "https://x/", "https://X", "https://x:0", "https://x y",
                           "https://ü.example", "null", "https://*.example.com", "https://me@x", "")
        ),
        ("server: {origins: https://x}", "server.origins: 'https://x' is wrong; expected a list of text"),
        ("server: [1]", "server: [1] is not a section; expected the keys host, port"),
        ("limits: {calls: -1}", "limits.calls: -1 is wrong; expected a whole number from 1 to 1000000000"),
        ("speech: {codec: opus}", "speech.codec: 'opus' is wrong; expected one of ulaw, alaw, pcm"),
        ("engines: {cosyvoice2: {device: cuda, lm_dtype: int8}}", "engines.cosyvoice2.lm_dtype: int8 is for"),
        *(
            (f"engines: {{cosyvoice2: {{{setting}}}}}", f"engines.cosyvoice2.{said}")
            for setting, said in (
                ("lm_backend: vllm", "lm_dtype: with lm_backend vllm give float32, float16 or bfloat16"),
                ("lm_backend: vllm, dtype: float16, lm_dtype: int8", "lm_dtype: with lm_backend vllm give float32"),
                ("lm_backend: vllm, dtype: float16, isolation: thread", "isolation: with lm_backend vllm it must be"),
                ("workers: 0", "workers: 0 is wrong; expected a whole number from 1 to 64 or auto"),
                ("workers: Auto", "workers: 'Auto' is wrong; expected a whole number from 1 to 64 or auto"),
                ("threads: null", "threads: None is wrong; expected a whole number from 1 to 256 or auto"),
                ("dtype: [auto]", "dtype: ['auto'] is wrong; expected one of auto, float32, float16, bfloat16"),
            )
        ),
        ("engines: {cosyvoice2: {device: cuda, flow_dtype: int8}}", "engines.cosyvoice2.flow_dtype: int8 is for"),
        *(
            (f"engines: {{cosyvoice2: {{device: '{device}'}}}}", f"engines.cosyvoice2.device: '{device}' is wrong; "
             "expected cpu, cuda or cuda:N; a GPU is cuda, and the second one cuda:1")
            for device in ("gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda:100", "cpu:0", "mps")
        ),
        ("engines: {hibari: {workers: 0}}", "engines.hibari.workers: 0 leaves the engine out, but hibari is the def"),
        ("engines: {fallback: [espeak], espeak: {workers: 0}}", "engines.espeak.workers: 0 leaves the engine out, b"),
        ("engines: {hibari: {workers: -1}}", "engines.hibari.workers: -1 is wrong; expected a whole number from 0 "),
        ("lm_dtype: int8", 'lm_dtype: unknown key. Did you mean "engines.cosyvoice2.lm_dtype"? Allowed here: server, '),
        ("engines: {lm_dtype: int8}", 'engines.lm_dtype: unknown key. Did you mean "engines.cosyvoice2.lm_dtype"? '),
        ("cosyvoice2: {lm_dtype: int8}", 'cosyvoice2: unknown key. Did you mean "engines.cosyvoice2"? '),
        ("ahead_ms: 1", 'ahead_ms: unknown key. Did you mean "speech.ahead_ms" or "engines.cosyvoice2.ahead_ms"? '),
        ("workers: 1", 'workers: unknown key. Did you mean "engines.hibari.workers", "engines.kokoro.workers", "engi'),
        ("speech: {voices: a}", 'speech.voices: unknown key. Did you mean "voice"? '),
        ("speech: {rate_hz: 16000}", "speech.rate_hz: 16000 does not go with codec ulaw; G.711 is 8000 Hz"),
        ("asterisk: {lead_ms: 20}", "asterisk.lead_ms: 20 is wrong; expected a whole number from 60 to 5000"),
        ("speech: {lead_ms: 900, ahead_ms: 800}", "speech.ahead_ms: 800 is less than lead_ms (900)"),
        ("speech: {pause_chars: 5, resume_chars: 5}", "speech.resume_chars: 5 is not below pause_chars (5)"),
        ("speech: {lang: no}", "speech.lang: False is wrong; expected a language code such as zh, en, ja or zh-TW"),
        ("engines: {routes: {no: espeak}}", "engines.routes: {False: 'espeak'} is wrong; expected a mapping of text"),
        ("engines: {routes: {zh: espek}}", "engines.routes.zh: no engine is named 'espek'; expected one of hibari, "),
        ("engines: {routes: {chinese: espeak}}", "engines.routes: 'chinese' is not a language; expected a language c"),
        ("engines: {routes: {en: cosyvoice2}}", "engines.cosyvoice2.model: missing (a model directory), but routes.en"),
        ("engines: {routes: {en: remote}}", "engines.remote.target: missing (the address of an engine server)"),
        ("engines: {routes: {de: espeak}, espeak: {workers: 0}}", "engines.espeak.workers: 0 leaves the engine out"),
        ("speech: {lang: chinese}", "speech.lang: 'chinese' is wrong; expected a language code such as zh"),
        ("lexicons: {languages: {english: a}, files: {a: c.pem}}", "lexicons.languages: 'english' is not a language"),
        ("phrases: {enabled: true, folder: 'off'}", "phrases.folder: no folder 'off'; to keep nothing"),
        ("recordings: {folder: none}", "recordings.folder: no folder 'none'; to keep nothing"),
        ("engines: {stall_s: 2}", "engines.stall_s: 2 is wrong; expected a number from 2.5 to 60"),
        ("engines: {stall_s: 20, timeout_s: 20}", "engines.stall_s: 20 is not below timeout_s (20)"),
        ("engines: {restart_wait_s: -1}", "engines.restart_wait_s: -1 is wrong; expected a number from 0 to 60"),
        ("engines: {restart_wait_s: 31}", "engines.restart_wait_s: 31 is not below timeout_s (30)"),
        ("bot: {url: 'http://bot'}", "bot.url: the value (not shown) is wrong; expected a URL beginning with ws://"),
        ("bot: {url: 'ws://'}", "bot.url: the value (not shown) is wrong"),
        ("log: {spoken_text: 1}", "log.spoken_text: 1 is wrong; expected true or false"),
        ("log: {level: info}\nlog: {level: debug}", "log: given twice in one section (line 2)"),
        ("log:\n  level: info\n  level: debug", "level: given twice in one section (line 3)"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "c.pem").touch()
    (line,) = problems_of(text, tmp_path)
    assert line.startswith(problem)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_device_that_may_be_there_is_taken(device: str) -> None:
    assert load(None, {"engines.cosyvoice2.device": device}, {}).engines.cosyvoice2.device == device


def test_a_key_without_its_section_is_suggested_with_it() -> None:
    """As `--set` may give it."""
    keys = {key for key in keys_of(dataclasses.asdict(FullConfig())) if key.count(".")}
    for key in keys:
        last = key.rpartition(".")[2]
        with pytest.raises(ConfigError) as caught:
            load(None, {last: "x"}, {})
        guess = caught.value.message.split(" Did you mean ")[1].split("?")[0]
        same = {other for other in keys if other.rpartition(".")[2] == last}
        assert set(guess.replace(" or ", ", ").split(", ")) == {f'"{other}"' for other in same}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"server: {port: 1", "line 1, column 17: not YAML"),
        (
            b"- a\n- b\n",
            "expected sections (server, limits, speech, engines, phrases, bot, barge_in, caller, dtmf, vendors, "
            "sounds, lexicons, keys, experiments, recordings, log, tracing, asterisk, genesys, plivo, twilio, vonage), "
            "found ['a', 'b']",
        ),
        (b"server: {host: \xff}", "cannot be read: not UTF-8 text"),
        (b"server: !!python/object:os.system {}", "not YAML"),
        (b"server: {host: 2026-13-40}", "not YAML: month must be in 1..12"),
        (b"{[1]: 2}", "not YAML: found unhashable key"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_config_error(text: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load(str(file), environ={})
    assert caught.value.message.startswith(str(file))
    assert problem in caught.value.message


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load(str(tmp_path / "none.yaml"), environ={})


# ----------------------------------------------------------------------- secrets


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    config = loaded(
        "server: {tokens: [s3cret-a]}\nbot: {url: 'wss://u:s3cret-b@bot/?k=s3cret-c', token: s3cret-d}\n"
        "twilio: {auth_token: s3cret-e}\nvonage: {signature_secret: s3cret-g}\n"
        "genesys: {api_key: s3cret-h, client_secret: czNjcmV0LWkh}\n",
        tmp_path,
        TELEPHONY_TTS_TOKENS="s3cret-f",
    )
    assert config.server.tokens == ("s3cret-a", "s3cret-f")
    assert config.twilio.auth_token == "s3cret-e"
    assert config.vonage.signature_secret == "s3cret-g"
    assert (config.genesys.api_key, config.genesys.secret) == ("s3cret-h", b"s3cret-i!")
    assert "s3cret" not in repr(config) and "czNj" not in repr(config) and "8080" in repr(config)


def test_the_carriers_secrets_come_from_the_environment() -> None:
    environ = {
        "TELEPHONY_TTS_VONAGE_SIGNATURE_SECRET": "of-vonage",
        "TELEPHONY_TTS_GENESYS_API_KEY": "key",
        "TELEPHONY_TTS_GENESYS_CLIENT_SECRET": "c2VjcmV0",
    }
    config = load(environ=environ)
    assert config.vonage.signature_secret == "of-vonage"
    assert (config.genesys.api_key, config.genesys.secret) == ("key", b"secret")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{api_key: '3333'}", "genesys.client_secret: missing; the API key and the client secret go together"),
        ("{client_secret: MzMzMw==}", "genesys.api_key: missing; the API key and the client secret go together"),
        ("{api_key: 'k', client_secret: '3333 3333'}", "genesys.client_secret: not base64"),
        ("{api_key: 'k', client_secret: '='}", "genesys.client_secret: not base64"),
    ],
)
def test_a_secret_of_genesys_that_cannot_verify_is_refused(given: str, problem: str, tmp_path: Path) -> None:
    found = problems_of(f"genesys: {given}\n", tmp_path)
    assert any(line.startswith(problem) for line in found), found
    assert "3333" not in "".join(found)


def test_secrets_are_not_in_the_errors(tmp_path: Path) -> None:
    found = problems_of(
        "server: {tokens: [33331111]}\nbot: {url: '3333://bot', token: 33332222}\ntwilio: {auth_token: 33334444}\n",
        tmp_path,
        TELEPHONY_TTS_TOKENS="3333 5555",
    )
    assert len(found) == 5
    assert "3333" not in "".join(found)


def test_settings_cannot_be_changed_after_loading() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FullConfig().server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"server.tokens": ["abc", "x" * 32]}, "server.tokens: a token of 3 characters can be guessed; take one of 16"),
        ({"phrases.folder": "kept"}, "phrases.folder: nothing is kept, because phrases.enabled is false"),
        ({"engines.fallback": ["hibari"], "engines.routes": {}}, "engines.fallback: hibari is the default engine"),
        ({"engines.fallback": ["hibari"]}, "engines.fallback: hibari is the default engine"),
        ({"asterisk.lead_ms": 4_000}, "asterisk.lead_ms: only 2000 of 4000 ms are used"),
    ],
)
def test_settings_that_are_probably_not_meant_are_named_with_the_cure(settings: dict[str, object], said: str) -> None:
    (doubt,) = doubtful_settings(load(None, settings, {}))
    assert doubt.startswith(said) and "abc" not in doubt


@pytest.mark.parametrize(
    "settings",
    [
        {"server.tokens": ["x" * 16]},
        {"phrases.folder": "kept", "phrases.enabled": True},
        {"engines.fallback": ["hibari"], "engines.routes": {"zh": "espeak"}},
        {"asterisk.lead_ms": 4_000, "speech.ahead_ms": 4_000},
    ],
)
def test_settings_that_are_meant_raise_no_doubt(settings: dict[str, object]) -> None:
    """A fallback to the default engine serves the languages that have a route to another one."""
    assert not list(doubtful_settings(load(None, settings, {})))
