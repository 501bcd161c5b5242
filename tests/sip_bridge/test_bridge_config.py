"""The bridge's settings: strict, with every problem reported, and without secrets in messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from sip_bridge.config import AudioSocketConfig, BridgeConfig, load
from telephony_tts.runtime.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "configs" / "sip_bridge.yaml"


def problems_of(text: str, folder: Path) -> list[str]:
    """The lines after the first one of the error for `text`."""
    file = folder / "bridge.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(file), environ={})
    first, *rest = caught.value.message.split("\n  ")
    assert first.startswith(f"{file}: ")
    return rest


def test_the_shipped_file_shows_every_setting_with_its_default() -> None:
    assert load(str(SHIPPED), environ={}) == BridgeConfig() == load(None, environ={})
    tree = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    for item in dataclasses.fields(BridgeConfig):
        default = getattr(BridgeConfig(), item.name)
        if dataclasses.is_dataclass(default):
            assert list(tree[item.name]) == [key.name for key in dataclasses.fields(default)]
        else:
            assert tree[item.name] == default


def test_each_line_of_the_shipped_file_says_what_it_sets() -> None:
    lines = [line for line in SHIPPED.read_text(encoding="utf-8").splitlines() if line.startswith("  ")]
    silent = [line for line in lines if ":" in line.split("#")[0] and "#" not in line]
    assert silent == []


def test_every_problem_is_listed_with_a_suggestion(tmp_path: Path) -> None:
    text = """
server: {url: "http://x/media/native", lead: 40, token: "two words"}
audiosocket: {port: 70000, allowed: ["10.0.0.0/33", "stranger"], rate_hz: 44100, uuid_timeout_s: soon}
http: [1]
drain_s: -1
drains: 3
"""
    problems = problems_of(text, tmp_path)
    expected = [
        ("server.url", "ws:// or wss://"), ("server.lead:", 'Did you mean "lead_ms"?'), ("audiosocket.port", "70000"),
        ("audiosocket.rate_hz", "8000, 16000, 24000, 48000"), ("audiosocket.uuid_timeout_s", "'soon'"),
        ("http:", "host, port"), ("drain_s", "-1"), ("drains", 'Did you mean "drain_s"?'),
    ]  # fmt: skip
    for key, says in expected:
        assert any(line.startswith(key) and says in line for line in problems), (key, problems)
    assert len(problems) == len(expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('audiosocket: {allowed: ["10.0.0.0/33"]}', "'10.0.0.0/33'"),
        ('audiosocket: {allowed: ["10.0.0.1/8"]}', "host bits"),
        ("audiosocket: {allowed: []}", "no call could come in"),
        ("audiosocket: {max_queue_ms: 200}", "at least server.lead_ms + 160 (260)"),
        ('server: {token: "two words"}', "without spaces"),
        ("drain_s: 1\ndrain_s: 2", "given twice"),
        ("log: {level: loud}", "debug, info, warning, error"),
    ],
)
def test_contradictions_are_reported(text: str, says: str, tmp_path: Path) -> None:
    if "max_queue" in text:
        text += "\nserver: {lead_ms: 41}"
        says = "at least server.lead_ms + 160 (201)"
    (problem,) = problems_of(text, tmp_path)
    assert says in problem


def test_a_missing_or_invalid_yaml_file_is_reported(tmp_path: Path) -> None:
    for text in ("a: [", "- 1", "just text"):
        file = tmp_path / "bridge.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"bridge\.yaml"):
            load(str(file), environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.yaml"), environ={})


def test_a_token_comes_from_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    config = load(None, {"server.url": "ws://user:s3cret@h/media/native"}, {"TELEPHONY_SIP_BRIDGE_TOKEN": "s3cret"})
    assert config.server.token == "s3cret" and "s3cret" not in repr(config)
    assert "s3cret" not in "".join(problems_of('server: {token: [s3cret], url: "http://s3cret"}', tmp_path))


@pytest.mark.parametrize(
    ("peer", "may"),
    [("10.1.2.3", True), ("10.2.0.1", False), ("::ffff:10.1.0.9", True), ("fe80::1%eth0", True), ("fe81::1", False),
     ("192.0.2.1", True), ("", False), ("nonsense", False)],
)  # fmt: skip
def test_which_addresses_may_connect(peer: str, may: bool) -> None:
    assert AudioSocketConfig(allowed=("10.1.0.0/16", "fe80::/64", "192.0.2.1")).allows(peer) is may
