"""The Helm chart: it renders valid Kubernetes and settings that the server reads, and refuses wrong values."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_tools import (
    CHART,
    MACHINES,
    MANIFESTS,
    NAMESPACE,
    ROOT,
    Document,
    documents,
    helm,
    machine_flags,
    of_kind,
    pod_templates,
    problems_of,
    problems_of_each,
    read_settings,
    rendered,
    template,
)

from sip_bridge.config import load as load_bridge
from telephony_tts.app.config import Config
from telephony_tts.runtime import metrics

pytestmark = pytest.mark.slow

BOT = "front.config.bot.url=ws://bot:9000/"
TWO_PODS = ("--set", "front.replicas=2,front.legs=one-socket")
EVERYTHING = (
    *machine_flags("l20"),
    "--set", "bridge.enabled=true,front.ingress.enabled=true",
    "--set", "front.ingress.host=voice.example.com,front.ingress.tls_secret=tls",
    "--set", "secrets.existing=,secrets.values.TELEPHONY_TTS_TOKENS=a-long-token",
    "--set", "secrets.values.TELEPHONY_TTS_ENGINE_TOKEN=another-token",
)  # fmt: skip
VARIATIONS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "remote": (*machine_flags("l20"), "--set", "engine.mode=remote,engine.replicas=3"),
    "hpa": (*TWO_PODS, "--set", "front.autoscaling.kind=hpa"),
    "image volume": (
        *machine_flags("l20"), "--set", "model.source=image,model.pull.enabled=false,model.image.reference=models:1",
    ),
    "host folder": (*machine_flags("l20"), "--set", "model.source=host,model.host.path=/data/models"),
    "GPU in the front": (*machine_flags("h200"), "--set", "engine.mode=local"),
    "everything": EVERYTHING,
}  # fmt: skip


@cache
def shape_of(name: str) -> list[Document]:
    return rendered(*(machine_flags(name) if name in MACHINES else VARIATIONS[name]))


@pytest.fixture(scope="module", params=[*MACHINES, *VARIATIONS])
def shape(request: pytest.FixtureRequest) -> list[Document]:
    """The documents of a shipped values file, or of flags that reach the other templates."""
    return shape_of(request.param)


def committed(machine: str) -> list[Document]:
    return documents((MANIFESTS / f"{machine}.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def problems() -> dict[str, list[str]]:
    """What the schemas find wrong with each shape, and with each committed file."""
    groups = {name: shape_of(name) for name in (*MACHINES, *VARIATIONS)}
    groups |= {f"committed {machine}": committed(machine) for machine in MACHINES}
    return dict(zip(groups, problems_of_each(groups.values()), strict=True))


def file_in(found: list[Document], name: str, key: str, folder: Path) -> Path:
    """A configuration file of a ConfigMap, written to `folder`."""
    path = folder / key
    path.write_text(of_kind(found, "ConfigMap", name)["data"][key], encoding="utf-8")
    return path


def front_settings(found: list[Document], folder: Path) -> Config:
    return read_settings(file_in(found, "telephony-tts-front", "server.yaml", folder))


# ------------------------------------------------------------------ Kubernetes


@pytest.mark.parametrize("name", [*MACHINES, *VARIATIONS])
def test_what_is_rendered_fits_the_schemas(name: str, problems: dict[str, list[str]]) -> None:
    assert problems[name] == []


def test_a_wrong_document_does_not_fit_the_schemas() -> None:
    """Each schema is in force: a field that it does not know, or a wrong type, is a problem."""
    found = rendered(*EVERYTHING)
    wrong = {
        "Deployment": ("spec", "replicas", "two"),
        "NetworkPolicy": ("spec", "podSelectors", {}),
        "ScaledObject": ("spec", "minReplicaCount", "two"),
        "ServiceMonitor": ("spec", "endpoints", {}),
        "PrometheusRule": ("spec", "rules", []),
        "RayService": ("spec", "serveConfig", "x"),
    }
    spoilt = [json.loads(json.dumps(next(each for each in found if each["kind"] == kind))) for kind in wrong]
    assert problems_of(spoilt) == []
    for document, (section, field, value) in zip(spoilt, wrong.values(), strict=True):
        document[section][field] = value
    ray = json.loads(json.dumps(of_kind(found, "RayService")))
    ray["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["imagePullPolice"] = "x"
    *problems, of_pod = problems_of([*spoilt, ray])
    assert [problem.split()[0] for problem in problems] == list(wrong)
    assert "imagePullPolice" in of_pod, "pod templates of Ray are checked as pods"


@pytest.mark.parametrize("machine", MACHINES)
def test_helm_itself_finds_nothing_to_say(machine: str) -> None:
    linted = helm("lint", "--strict", str(CHART), "--namespace", NAMESPACE, *machine_flags(machine))
    assert linted.returncode == 0 and "1 chart(s) linted, 0 chart(s) failed" in linted.stdout, linted.stdout


@pytest.mark.parametrize("machine", MACHINES)
def test_the_committed_manifests_are_those_of_the_chart(machine: str, problems: dict[str, list[str]]) -> None:
    """`make manifests` writes them."""
    assert committed(machine) == rendered(*machine_flags(machine), "--no-hooks")
    assert problems[f"committed {machine}"] == []


def test_each_manifest_is_one_of_the_charts() -> None:
    assert {path.stem for path in MANIFESTS.glob("*.yaml")} == set(MACHINES)
    assert {path.stem.removeprefix("values-") for path in CHART.glob("values-*.yaml")} == set(MACHINES)


def test_every_pod_is_unprivileged_and_has_a_limit(shape: list[Document]) -> None:
    for document in shape:
        for pod in (each["spec"] for each in pod_templates(document)):
            assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
            for container in pod["containers"]:
                own = container["securityContext"]
                assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
                assert own["capabilities"] == {"drop": ["ALL"]}
                assert {"cpu", "memory"} <= set(container["resources"]["requests"]), container["name"]
                assert "memory" in container["resources"]["limits"], container["name"]
                assert not container["image"].endswith((":", ":latest")), container["image"]


def test_selectors_find_their_pods_and_references_their_targets(shape: list[Document]) -> None:
    """Services, budgets, monitors and policies select by labels, and a typing mistake there fails silently."""
    pods = [each["metadata"]["labels"] for document in shape for each in pod_templates(document)]
    maps = {each["metadata"]["name"] for each in shape if each["kind"] == "ConfigMap"}
    claims = {each["metadata"]["name"] for each in shape if each["kind"] == "PersistentVolumeClaim"}
    services = {each["metadata"]["name"]: each["metadata"]["labels"] for each in shape if each["kind"] == "Service"}

    def selected(wanted: dict[str, str], among: list[dict[str, str]]) -> int:
        return sum(wanted.items() <= labels.items() for labels in among)

    for document in shape:
        spec, where = document.get("spec", {}), f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "Service":
            assert selected(spec["selector"], pods) == 1, where
        elif document["kind"] == "PodDisruptionBudget":
            assert selected(spec["selector"]["matchLabels"], pods) == 1, where
        elif document["kind"] == "NetworkPolicy":
            assert selected(spec["podSelector"]["matchLabels"], pods) == 1, where
        elif document["kind"] == "ServiceMonitor":
            assert selected(spec["selector"]["matchLabels"], list(services.values())) == 1, where
        elif document["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            of_kind(shape, "Deployment", spec["scaleTargetRef"]["name"])
        elif document["kind"] == "StatefulSet":
            assert spec["serviceName"] in services
        for pod in (each["spec"] for each in pod_templates(document)):
            volumes = {each["name"]: each for each in pod["volumes"]}
            for container in pod["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes), where
            for volume in volumes.values():
                assert volume.get("configMap", {}).get("name", next(iter(maps))) in maps, where
                assert volume.get("persistentVolumeClaim", {}).get("claimName", "") in {"", *claims}, where


# -------------------------------------------------------------- calls and pods


def test_the_grace_period_is_longer_than_the_longest_call(shape: list[Document], tmp_path: Path) -> None:
    """preStop, then the calls, then their speech: the kubelet must not kill before all of it is over."""
    pod = of_kind(shape, "Deployment", "telephony-tts-front")["spec"]["template"]["spec"]
    server = front_settings(shape, tmp_path).server
    sleep_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep_s >= 5, "load balancers learn of the end only after some seconds"
    assert server.drain_calls_s >= 60 and server.drain_s > 0
    assert pod["terminationGracePeriodSeconds"] > sleep_s + server.drain_calls_s + server.drain_s


def test_the_bridge_waits_for_its_calls_too(tmp_path: Path) -> None:
    found = rendered(*machine_flags("cpu"))
    bridge = load_bridge(str(file_in(found, "telephony-tts-bridge", "sip_bridge.yaml", tmp_path)), environ={})
    pod = of_kind(found, "Deployment", "telephony-tts-bridge")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > bridge.drain_s >= 3600
    assert bridge.server.url == f"ws://telephony-tts-front.{NAMESPACE}.svc:8080/media/native"
    ports = {each["name"]: each["containerPort"] for each in pod["containers"][0]["ports"]}
    assert ports == {"audiosocket": bridge.audiosocket.port, "http": bridge.http.port}
    assert bridge.audiosocket.host == bridge.http.host == "0.0.0.0"


def test_the_front_is_ready_when_it_is_warm_and_its_port_is_right(shape: list[Document], tmp_path: Path) -> None:
    (container,) = of_kind(shape, "Deployment", "telephony-tts-front")["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "a draining pod must not be restarted"
    server = front_settings(shape, tmp_path).server
    assert (server.host, container["ports"]) == ("0.0.0.0", [{"name": "http", "containerPort": server.port}])


def test_fronts_are_added_at_eight_tenths_of_their_calls_and_removed_slowly(tmp_path: Path) -> None:
    for machine, calls in (("l20", 200), ("cpu", 100)):
        found = rendered(*machine_flags(machine))
        own = front_settings(found, tmp_path)
        assert own.limits.calls == calls
        if machine == "l20":
            scaler = of_kind(found, "ScaledObject")["spec"]
            (trigger,) = scaler["triggers"]
            behavior = scaler["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
            at, least = trigger["metadata"]["threshold"], scaler["minReplicaCount"]
            (name,) = re.findall(r"telephony_tts_\w+", trigger["metadata"]["query"])
        else:
            scaler = of_kind(found, "HorizontalPodAutoscaler")["spec"]
            (metric,) = scaler["metrics"]
            behavior, at = scaler["behavior"], metric["pods"]["target"]["averageValue"]
            name, least = metric["pods"]["metric"]["name"], scaler["minReplicas"]
        assert int(at) == calls * 8 // 10 and least == 2
        assert metrics.value(name, media="twilio") == 0, "the server has this metric"
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 600
        assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        deployment = of_kind(found, "Deployment", "telephony-tts-front")["spec"]
        assert "replicas" not in deployment, "a rollout would undo the autoscaler"
        assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_changed_setting_replaces_the_pods() -> None:
    def marks(*flags: str) -> list[str]:
        found = rendered(*machine_flags("l20"), *flags)
        return [
            part["metadata"]["annotations"]["checksum/config"]
            for kind in ("Deployment", "RayService") for part in pod_templates(of_kind(found, kind))[:1]
        ]  # fmt: skip

    before = marks()
    fronts, engines = marks("--set", "front.calls=150"), marks("--set", "engine.config.engines.cosyvoice2.slots=8")
    assert fronts[0] != before[0] and fronts[1] == before[1]
    assert engines[1] != before[1] and engines[0] == before[0]


def test_equal_calls_reach_the_same_pod_through_the_ingress() -> None:
    found = rendered(*EVERYTHING, "--set", "front.legs=hashed-by-ingress")
    ingress = of_kind(found, "Ingress")
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/upstream-hash-by"] == "$arg_call"
    assert ingress["spec"]["tls"] == [{"hosts": ["voice.example.com"], "secretName": "tls"}]


def test_secrets_are_in_no_configuration(tmp_path: Path) -> None:
    found = rendered(*EVERYTHING)
    secret = of_kind(found, "Secret")["stringData"]
    assert secret == {"TELEPHONY_TTS_TOKENS": "a-long-token", "TELEPHONY_TTS_ENGINE_TOKEN": "another-token"}
    others = json.dumps([each for each in found if each["kind"] != "Secret"])
    assert [value for value in secret.values() if value in others] == []
    for document in found:
        for pod in pod_templates(document):
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "models":
                continue
            (source,) = pod["spec"]["containers"][0]["envFrom"]
            assert source["secretRef"]["name"] == of_kind(found, "Secret")["metadata"]["name"]


# ------------------------------------------------------------------- settings


def test_the_servers_settings_are_valid(shape: list[Document], tmp_path: Path) -> None:
    """The ConfigMaps are read as the server reads them, with the Secret's variables."""
    front_settings(shape, tmp_path)
    if any(each["metadata"]["name"] == "telephony-tts-engine" and each["kind"] == "ConfigMap" for each in shape):
        engine = read_settings(file_in(shape, "telephony-tts-engine", "engine.yaml", tmp_path))
        assert engine.engines.cosyvoice2.model == "/models/CosyVoice2-0.5B"
        assert engine.server.drain_s == 60, "engine.drain_s"


@pytest.mark.parametrize("machine", [each for each in MACHINES if each != "cpu"])
def test_the_engine_of_a_machine_is_that_of_its_configuration(machine: str) -> None:
    """What was found out of a card is in configs/cosyvoice2-*.yaml, and stands here a second time."""
    shipped = yaml.safe_load((CHART.parents[2] / "configs" / f"cosyvoice2-{machine}.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / f"values-{machine}.yaml").read_text(encoding="utf-8"))
    ours, theirs = values["engine"]["config"]["engines"], shipped["engines"]
    places = ("model", "voices")
    assert {name: each for name, each in ours["cosyvoice2"].items() if name not in places} == {
        name: each for name, each in theirs["cosyvoice2"].items() if name not in places
    }
    assert values["engine"]["mode"] == "ray"
    assert (ours["default"], ours["routes"]) == (theirs["default"], theirs["routes"])
    assert values["engine"]["image"] == ("telephony-tts-v100" if machine == "v100" else "telephony-tts-cuda")


def test_engine_pods_are_named_one_by_one() -> None:
    found = rendered(*machine_flags("l20"), "--set", "engine.mode=remote,engine.replicas=3")
    settings = yaml.safe_load(of_kind(found, "ConfigMap", "telephony-tts-front")["data"]["server.yaml"])["engines"]
    assert settings["default"] == "remote"
    pods = of_kind(found, "StatefulSet")
    service = of_kind(found, "Service", pods["spec"]["serviceName"])
    assert service["spec"]["clusterIP"] == "None"
    port = pods["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]
    container = pods["spec"]["template"]["spec"]["containers"][0]
    assert container["startupProbe"]["exec"]["command"] == ["telephony-tts", "engine", "status", f"127.0.0.1:{port}"]
    assert container["args"][-1] == f"0.0.0.0:{port}"
    where = f"{pods['spec']['serviceName']}.{NAMESPACE}.svc:{port}"
    assert settings["remote"]["target"].split(",") == [f"{pods['metadata']['name']}-{n}.{where}" for n in range(3)]


def test_ray_gets_as_many_engines_as_the_pods_hold(tmp_path: Path) -> None:
    found = rendered(*machine_flags("v100"), "--set", "engine.ray.per_pod=2,engine.ray.max=5")
    ray = of_kind(found, "RayService")["spec"]
    (group,) = ray["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 5)
    engines = read_settings(file_in(found, "telephony-tts-engine", "engine.yaml", tmp_path)).engines.ray
    assert (engines.replicas, engines.max_replicas) == (2, 10), "two engines share a card"
    assert (engines.engine, engines.gpus) == ("cosyvoice2", 0.5)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert ray["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", "no engine beside the control"
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] > 60, "a replica finishes what it speaks"


def test_serve_builds_our_application_from_a_file_that_is_mounted(tmp_path: Path) -> None:
    """The import path leads to the function that `telephony-tts ray up` uses, and to the name that fronts ask for."""
    found = rendered(*machine_flags("l20"))
    ray = of_kind(found, "RayService")
    (application,) = yaml.safe_load(ray["spec"]["serveConfigV2"])["applications"]
    module, _, function = application["import_path"].partition(":")
    source = CHART.parents[2].joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    (arguments,) = re.findall(rf"^def {function}\((.*)\)", source, re.MULTILINE)
    assert arguments.startswith("args: Mapping[str, Any]") and 'args.get("config")' in source
    fronts = front_settings(found, tmp_path).engines
    assert (fronts.default, fronts.ray.app) == ("ray", application["name"])
    assert fronts.ray.address == f"ray://{ray['metadata']['name']}-head-svc.{NAMESPACE}.svc:10001"
    for template_ in pod_templates(ray):
        (container,) = template_["spec"]["containers"]
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert str(Path(application["args"]["config"]).parent) in folders
    head, _ = pod_templates(ray)
    ports = {each["name"]: each["containerPort"] for each in head["spec"]["containers"][0]["ports"]}
    assert ports["client"] == 10001 and ports["dashboard"] == 8265


def test_a_pod_with_more_processes_says_so_to_the_server() -> None:
    found = rendered("--set", "front.processes=4")
    settings = yaml.safe_load(of_kind(found, "ConfigMap", "telephony-tts-front")["data"]["server.yaml"])
    assert settings["server"]["processes"] == 4
    one = yaml.safe_load(of_kind(rendered(), "ConfigMap", "telephony-tts-front")["data"]["server.yaml"])
    assert "processes" not in one["server"]


# --------------------------------------------------------------- wrong values


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["front.replicas=0"], "front/replicas"),
        (["front.replica=2"], "replica"),
        (["front.calls=many"], "front/calls"),
        (["front.legs=both"], "front/legs"),
        (["front.longest_call_s=10"], "front/longest_call_s"),
        (["front.autoscaling.kind=vpa"], "front/autoscaling/kind"),
        (["front.autoscaling.target=1.5"], "front/autoscaling/target"),
        (["front.service.type=Loadbalancer"], "front/service/type"),
        (["engine.mode=cloud"], "engine/mode"),
        (["engine.gpus=-1"], "engine/gpus"),
        (["engine.ray.import_path=app.build"], "engine/ray/import_path"),
        (["engine.resources.limits.memory=4GB"], "engine/resources/limits/memory"),
        (["model.source=s3"], "model/source"),
        (["model.pvc.size=20"], "model/pvc/size"),
        (["bridge.allowed={10.0.0.1}"], "bridge/allowed/0"),
        (["secrets.values.TELEPHONY_TTS_TOKENS=short", "secrets.existing="], "secrets/values/TELEPHONY_TTS_TOKENS"),
        (["secrets.values.TOKENS=long-enough", "secrets.existing="], "TOKENS"),
        (["image.pullPolicy=Sometimes"], "image/pullPolicy"),
        (["network_policy.clients[0].cidr=10.0.0.0/8"], "network_policy/clients/0"),
        # What concerns two values.
        (["front.replicas=2"], "front.legs: missing"),
        (["front.autoscaling.kind=keda"], "front.legs: missing"),
        (["front.legs=server-dials-bot"], "front.config.bot.url: missing"),
        (["front.legs=hashed-by-ingress"], "front.ingress.enabled: must be true"),
        (["front.ingress.enabled=true"], "front.ingress.host: missing"),
        (
            ["front.legs=one-socket", "front.autoscaling.kind=keda", "front.autoscaling.min=20"],
            "front.autoscaling.min: 20 is above front.autoscaling.max (10)",
        ),
        (["engine.ray.min=9"], "engine.ray.min: 9 is above engine.ray.max (4)"),
        (["engine.mode=remote"], "engine.config: missing"),
        (["engine.config.engines.cosyvoice2.model=/models/x"], "model.source: it is empty"),
        (["model.pull.enabled=true"], "model.pull.enabled: needs model.source pvc or host"),
        (["model.source=image"], "model.image.reference: missing"),
        (["model.source=host"], "model.host.path: missing"),
        (["secrets.existing="], "secrets.existing: missing"),
        (["secrets.values.TELEPHONY_TTS_TOKENS=a-long-token"], "secrets.values: has no effect"),
        (
            ["secrets.existing=", "secrets.values.TELEPHONY_TTS_BOT_TOKEN=a-long-token"],
            "secrets.values.TELEPHONY_TTS_TOKENS: missing",
        ),
        (["engine.mode=remote", "engine.config.server.drain_s=5"], "engine.config.server.drain_s: the chart sets it"),
        (["front.config.limits.calls=10"], "front.config.limits.calls: the chart sets it; use front.calls"),
        (["front.config.server.port=80"], "front.config.server.port: the chart sets it; use front.service"),
        (["bridge.enabled=true", "bridge.config.drain_s=5"], "bridge.config.drain_s: the chart sets it"),
        (["bridge.enabled=true", "bridge.config.server.url=ws://x/"], "bridge.config.server.url: the chart sets it"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(flags: list[str], names: str) -> None:
    source_needs_a_pod = ["--set", "engine.gpus=1"] if "model.source" in flags[0] else []
    given = [part for flag in flags for part in ("--set", flag)]
    refused = template(*given, *source_needs_a_pod)
    assert refused.returncode != 0, "it was rendered"
    told = refused.stderr.replace("'", "")
    assert names in told or names.replace("/", ".") in told, refused.stderr


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def differences(section: dict[str, Any], given: dict[str, Any], where: str) -> list[str]:
        known = {name: each for name, each in section["properties"].items() if name != "global"}
        found = [f"{where}{name}" for name in known.keys() ^ given.keys()]
        for name in known.keys() & given.keys():
            if "properties" in known[name]:
                found += differences(known[name], given[name], f"{where}{name}.")
        return found

    assert differences(schema, values, "") == []


# --------------------------------------------------------- dashboards and alerts


def test_the_dashboards_are_those_of_the_folder() -> None:
    folder = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    told = of_kind(rendered(*EVERYTHING), "ConfigMap", "telephony-tts-dashboard")["data"]
    assert len(folder) == 4 and {name: json.loads(text) for name, text in told.items()} == {
        name: json.loads(text) for name, text in folder.items()
    }


def test_the_alerts_are_those_of_the_folder() -> None:
    """Prometheus's own templates in the annotations are not read by Helm."""
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))
    told = of_kind(rendered(*EVERYTHING), "PrometheusRule")["spec"]
    assert told == rules and "$labels.instance" in json.dumps(told)


def test_all_instances_have_the_job_that_the_alerts_look_for() -> None:
    told = helm("template", "voice", str(CHART), *EVERYTHING)
    assert told.returncode == 0, told.stderr
    found = documents(told.stdout)
    services = [each for each in found if each["kind"] == "Service"]
    monitors = [each for each in found if each["kind"] == "ServiceMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        jobs = {
            each["metadata"]["labels"][monitor["spec"]["jobLabel"]]
            for each in services
            if wanted.items() <= each["metadata"]["labels"].items()
        }
        assert jobs == {"telephony-tts"}
