"""A real Prometheus and promtool: Debian's package, unpacked into `.peers/prometheus` on first use."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import debian_packages
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
_READY_S = 30.0
_QUERY_S = 10.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def programs() -> debian_packages.Unpacked:
    """The folder of the programs. Raises debian_packages.PeerUnavailable."""
    return debian_packages.install(ROOT / ".peers" / "prometheus", ("prometheus",), "forky", 60)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        programs().command("usr/bin/promtool", *arguments), capture_output=True, text=True, timeout=60, check=False
    )


class Prometheus:
    """A running Prometheus, by its HTTP API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an answer. Raises AssertionError if Prometheus refuses."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with _OPENER.open(address, timeout=_QUERY_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{query}: {refused.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The samples of an instant query, with their labels."""
        data = self.get("/api/v1/query", query=expression)
        assert data["resultType"] == "vector", expression
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def exemplars(self, series: str) -> list[dict[str, str]]:
        now_s = time.time()
        found = self.get("/api/v1/query_exemplars", query=series, start=str(now_s - 300), end=str(now_s + 5))
        return [exemplar["labels"] for each in found for exemplar in each["exemplars"]]


@contextmanager
def prometheus(
    folder: Path, targets: Sequence[str], *, job: Mapping[str, Any], interval: str = "1s"
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `targets` as `job` says, with our rules. Its files are in `folder`."""
    configuration = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(RULES.resolve())],
        "scrape_configs": [{"static_configs": [{"targets": list(targets)}], **job}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = programs().command(
        "usr/bin/prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn",
    )  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        running = Prometheus(port)
        end_s = time.monotonic() + _READY_S
        while True:
            try:
                _OPENER.open(f"{running.url}/-/ready", timeout=1).close()
                break
            except OSError:
                said = (folder / "prometheus.log").read_text(encoding="utf-8")[-2000:]
                assert process.poll() is None and time.monotonic() < end_s, said
                time.sleep(0.1)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
