"""The compose file: what it names exists, and each of its configurations is valid for the program that reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_tools import ROOT, read_settings, tools

from sip_bridge import config as bridge_config
from telephony_tts.app import config

FILE = ROOT / "docker" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
SHAPES = ("server", "engine", "ray")
ASKED = "${TELEPHONY_TTS_TOKENS:?"


def mounts(service: str) -> list[tuple[str, str]]:
    """(source, target) of the files and folders of the project that a service mounts."""
    found = [each.split(":") for each in _without_variables(SERVICES[service].get("volumes", []))]
    return [(source, target) for source, target, *_ in found if source.startswith(".")]


def _without_variables(rows: list[str]) -> list[str]:
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", row) for row in rows]


def test_it_has_every_part_of_the_system() -> None:
    assert {"telephony-tts", "engine", "ray-head", "ray-replica", "bridge", "asterisk", "prometheus", "grafana"} <= set(
        SERVICES
    )


@pytest.mark.parametrize("service", SERVICES)
def test_every_file_that_it_names_exists(service: str) -> None:
    for source, _ in mounts(service):
        assert (FILE.parent / source).exists(), source
    if "build" in SERVICES[service]:
        build = SERVICES[service]["build"]
        context = (FILE.parent / build["context"]).resolve()
        assert context == ROOT and (context / build["dockerfile"]).is_file()
    named = [each.split(":")[0] for each in SERVICES[service].get("volumes", []) if not each.startswith(".")]
    assert set(named) <= set(COMPOSE["volumes"])
    assert set(SERVICES[service].get("depends_on", {})) <= set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_images_have_a_version_or_are_built_here(service: str) -> None:
    image = _without_variables([SERVICES[service]["image"]])[0]
    assert image.startswith("telephony-tts-") or re.search(r":v?\d+\.\d+\.\d+$", image), image


@pytest.mark.parametrize("shape", SHAPES)
def test_the_server_can_be_started_in_each_shape(shape: str, tmp_path: Path) -> None:
    (row,) = [each for each in SERVICES["telephony-tts"]["volumes"]]
    assert row == "./compose/${SHAPE:-server}.yaml:/etc/telephony-tts/server.yaml:ro"
    read = read_settings(Path(shutil.copy(FILE.parent / "compose" / f"{shape}.yaml", tmp_path)))
    assert read.server.host == "0.0.0.0"
    (port,) = SERVICES["telephony-tts"]["ports"]
    assert port.startswith("127.0.0.1:") and port.endswith(f":{read.server.port}")
    grace_s = float(SERVICES["telephony-tts"]["stop_grace_period"].rstrip("s"))
    assert grace_s > read.server.drain_s + read.server.drain_calls_s
    profiles = {name for each in SERVICES.values() for name in each.get("profiles", [])}
    assert shape == "server" or shape in profiles, "the shape's services are in a profile of its name"


def test_the_servers_secrets_come_from_the_environment() -> None:
    environment = SERVICES["telephony-tts"]["environment"]
    assert environment["TELEPHONY_TTS_TOKENS"].startswith(ASKED), "asked for"
    read = config.load(None, environ=dict.fromkeys(environment, "a-token"))
    assert (read.server.tokens, read.bot.token, read.twilio.auth_token) == (("a-token",), "a-token", "a-token")


def test_the_engines_configuration_and_address_fit_the_server() -> None:
    engine = SERVICES["engine"]
    assert engine["command"][:2] == ["engine", "serve"]
    (source,) = [source for source, target in mounts("engine") if target in engine["command"]]
    assert config.load(str(FILE.parent / source), environ={}).engines.default == "hibari"
    listen = engine["command"][engine["command"].index("--listen") + 1]
    assert listen == "0.0.0.0:8090"
    settings = yaml.safe_load((FILE.parent / "compose" / "engine.yaml").read_text(encoding="utf-8"))["engines"]
    assert settings["remote"]["target"] == "engine:8090" and settings["default"] == "remote"


def test_the_bridge_and_asterisk_reach_the_server() -> None:
    (source,) = [source for source, _ in mounts("bridge")]
    read = bridge_config.load(str(FILE.parent / source), environ={"TELEPHONY_SIP_BRIDGE_TOKEN": "a-token"})
    assert read.server.url == "ws://server:8080/media/native" and read.audiosocket.host == "0.0.0.0"
    assert "server" in SERVICES["telephony-tts"]["networks"]["default"]["aliases"]
    assert any(read.audiosocket.allows(peer) for peer in ("172.17.0.1", "192.168.65.1"))
    assert SERVICES["asterisk"]["network_mode"] == "host"
    client = (ROOT / "configs" / "asterisk" / "websocket_client.conf").read_text(encoding="utf-8")
    assert "uri = ws://127.0.0.1:8080/media/asterisk" in client
    program = (ROOT / "docker" / "asterisk.sh").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"s/\^(.*)\.\*/", program)
    assert re.search(f"^{pattern}", client, re.MULTILINE), "the password is replaced"


def test_prometheus_reads_services_that_are_there_and_grafana_its_dashboard() -> None:
    scraped = yaml.safe_load((FILE.parent / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    (rules,) = scraped["rule_files"]
    sources_of = {target: source for source, target in mounts("prometheus")}
    mounted = (FILE.parent / sources_of[rules]).resolve()
    assert mounted == (ROOT / "deploy" / "prometheus" / "rules.yaml").resolve()
    targets = [each for job in scraped["scrape_configs"] for part in job["static_configs"] for each in part["targets"]]
    read = bridge_config.load(str(FILE.parent / "compose" / "bridge.yaml"), environ={})
    assert targets == ["server:8080", f"bridge:{read.http.port}"] and read.http.host == "0.0.0.0"
    places = {target: source for source, target in mounts("grafana")}
    provider = yaml.safe_load((FILE.parent / "compose" / "grafana" / "dashboards.yaml").read_text(encoding="utf-8"))
    (path,) = [each["options"]["path"] for each in provider["providers"]]
    shown = sorted(Path(FILE.parent / places[path]).resolve().glob("*.json"))
    assert shown == sorted((ROOT / "deploy" / "grafana").resolve().glob("*.json")) and len(shown) == 4
    sources = yaml.safe_load((FILE.parent / "compose" / "grafana" / "datasources.yaml").read_text(encoding="utf-8"))
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("service", [name for name in SERVICES if name not in ("asterisk", "prometheus", "grafana")])
def test_our_own_services_have_no_privileges(service: str) -> None:
    given = SERVICES[service]
    assert given["read_only"] is True and given["cap_drop"] == ["ALL"] and given["tmpfs"]


@pytest.mark.slow
def test_the_file_is_right_by_the_schema_of_compose(tmp_path: Path) -> None:
    """The schema of the Compose Specification, which `docker compose` checks too."""
    check = [str(tools() / "bin" / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    right = subprocess.run([*check, str(FILE)], capture_output=True, text=True, timeout=60)
    assert right.returncode == 0, right.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("stop_grace_period", "stop_grace_perod"))
    assert subprocess.run([*check, str(wrong)], capture_output=True, text=True, timeout=60).returncode == 1


@pytest.mark.slow
def test_the_shape_with_an_engine_speaks_when_its_commands_run_here(tmp_path: Path) -> None:
    """The commands, configurations and variables of the two services, without containers: names of hosts are replaced,
    and paths of the images by those of the files that are mounted there."""
    token = {"TELEPHONY_TTS_TOKENS": "a-token"}
    listen = f"127.0.0.1:{free_port()}"
    engine = service_here("engine", {"0.0.0.0:8090": listen}, token)
    command = ["serve", "--config", str(FILE.parent / "compose" / "engine.yaml"), "--host", "127.0.0.1", "--port", "0",
               "--set", f"engines.remote.target={listen}"]  # fmt: skip
    given = {"TELEPHONY_TTS_ENGINE_TOKEN": "a-token", **token}
    with running(engine, given) as first:
        assert "engine hibari" in first.stdout.readline()
        health = SERVICES["engine"]["healthcheck"]["test"]
        words = [each.replace("127.0.0.1:8090", listen) for each in health[2:]]
        asked = [sys.executable, "-m", "telephony_tts", *words]
        checked = subprocess.run(asked, capture_output=True, text=True, timeout=60, env={**os.environ, **given})
        assert checked.returncode == 0 and checked.stdout.startswith("ready:"), checked.stderr
        with running([sys.executable, "-m", "telephony_tts", *command], given) as server:
            (port,) = re.findall(r":(\d+)", next(line for line in server.stdout if "is ready at" in line))
            body = json.dumps({"model": "x", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/audio/speech", body,
                {"Content-Type": "application/json", "Authorization": "Bearer a-token"},
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert len(answer.read()) > 10_000


def service_here(service: str, instead: dict[str, str], environment: dict[str, str]) -> list[str]:
    """The command of a service, for this machine. Its variables must be those of `environment`."""
    named = {name: re.sub(r"\$\{(\w+)(:[^}]*)?\}", lambda m: environment[m[1]], value)
             for name, value in SERVICES[service]["environment"].items()}  # fmt: skip
    assert set(named.values()) == set(environment.values())
    files = {target: str(FILE.parent / source) for source, target in mounts(service)}
    words = [files.get(word, instead.get(word, word)) for word in SERVICES[service]["command"]]
    return [sys.executable, "-m", "telephony_tts", *words]


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[Any]:
    """A process that must end with 0 at SIGTERM."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    )
    try:
        yield process
        process.terminate()
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
