"""The Kubernetes files agree with the program, with each other, and with the published schemas of their kinds."""

import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from jsonschema import Draft202012Validator
from redis.backoff import NoBackoff
from redis.retry import Retry

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.protocol.config import EngineOptions
from glimpse.gateway.cli import app as gateway_app
from glimpse.media.shared.address import parse_store_url
from glimpse.server.cli.app import app
from glimpse.server.cli.serve import up
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import ListenSettings, Settings
from glimpse.server.telemetry.metrics import Metrics
from tests.media.shared.redis_server import RedisServer
from tests.paths import ROOT

K8S = ROOT / "gateway" / "k8s"
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
LISTEN = ListenSettings()
GRPC, METRICS, HTTP = LISTEN.port, LISTEN.metrics_port, signature(up).parameters["http_port"].default
REDIS = parse_store_url("redis://host").port
PASSWORD = "0123456789abcdef"
CRDS = os.environ.get("GLIMPSE_CRDS")

MODELS: Mapping[str, str] = {
    "apps/v1": "kubernetes.apps.v1",
    "autoscaling/v2": "kubernetes.autoscaling.v2",
    "monitoring.coreos.com/v1": "prometheus_operator.v1",
    "networking.istio.io/v1": "istio.networking.v1",
    "networking.k8s.io/v1": "kubernetes.networking.v1",
    "policy/v1": "kubernetes.policy.v1",
    "security.istio.io/v1": "istio.security.v1",
    "v1": "kubernetes.core.v1",
}
"""API version → models of its kinds, generated from the published schemas: a package below `cloudcoil.models`."""

OTHER_GROUPS = {
    "aigateway.envoyproxy.io",
    "gateway.envoyproxy.io",
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "leaderworkerset.x-k8s.io",
    "serving.kserve.io",
}
"""API groups whose schemas no package has. With GLIMPSE_CRDS their definitions are read from a folder."""


def read(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def named(path: Path) -> str:
    return str(path.relative_to(K8S))


FILES = {
    named(path): read(path)
    for path in sorted(K8S.rglob("*.yaml"))
    if path.name != "kustomization.yaml" and not path.name.endswith("-values.yaml")
}
"""All files with objects or parts of objects."""
OBJECTS = [
    pytest.param(document, id=f"{name} {document['kind']} {document['metadata']['name']}")
    for name, documents in FILES.items()
    if "patch-" not in name
    for document in documents
]


def object_of(name: str, kind: str) -> dict[str, Any]:
    return next(document for document in FILES[name] if document["kind"] == kind)


def kustomizations() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(K8S.rglob("kustomization.yaml")):
        (kustomization,) = read(path)
        yield path.parent, kustomization


def rendered(folder: Path, *components: str, base: bool = True) -> list[dict[str, Any]]:
    """Returns what kustomize makes of the base and components; skips the test without kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine: install it as https://kubernetes.io/docs/tasks/tools describes")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S, folder)] if base else [],
        "components": [os.path.relpath(K8S / "components" / name, folder) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def check_published_schema(document: Mapping[str, Any]) -> None:
    """Reads an object with its kind's model, which drops what the schema does not have, and compares."""
    version = document["apiVersion"]
    if version.partition("/")[0] in OTHER_GROUPS:
        return
    model = getattr(importlib.import_module(f"cloudcoil.models.{MODELS[version]}"), document["kind"])
    assert model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True) == document


@pytest.mark.parametrize("document", OBJECTS)
def test_objects_follow_the_published_schemas(document: dict[str, Any]) -> None:
    check_published_schema(document)


@pytest.mark.skipif(not CRDS, reason="GLIMPSE_CRDS names no folder of CustomResourceDefinitions")
@pytest.mark.parametrize("document", OBJECTS)
def test_custom_resources_follow_their_definitions(document: dict[str, Any]) -> None:
    group, _, version = document["apiVersion"].partition("/")
    if group not in OTHER_GROUPS:
        pytest.skip("its kind's schema is in a package")
    definitions = [each for path in Path(CRDS or "").rglob("*.yaml") for each in read(path)]
    versions = [
        each["schema"]["openAPIV3Schema"]
        for definition in definitions
        if (definition["spec"]["group"], definition["spec"]["names"]["kind"]) == (group, document["kind"])
        for each in definition["spec"]["versions"]
        if each["name"] == version
    ]
    assert versions, f"GLIMPSE_CRDS has no definition of {document['kind']} in {document['apiVersion']}"
    schema = strict(versions[0]) | {"additionalProperties": True}  # apiVersion, kind and metadata
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


def strict(schema: Any) -> Any:
    """Returns a schema that refuses unknown members, as a cluster's server would with strict field validation."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    # A string or a number.
    if result.pop("x-kubernetes-int-or-string", False):
        result.pop("type", None)
    if "properties" in result and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_renders_over_the_base(tmp_path: Path, name: str) -> None:
    for document in rendered(tmp_path, name, base=name != "kserve"):
        check_published_schema(document)


def test_components_that_go_together_render(tmp_path: Path) -> None:
    together = ("sidecar", "inference-gateway", "inference-pool", "autoscaling", "network-policy", "monitoring")
    together = (*together, "media-store")
    kinds = {document["kind"] for document in rendered(tmp_path, *together)}
    assert {"InferencePool", "HorizontalPodAutoscaler", "NetworkPolicy", "ServiceMonitor", "PrometheusRule"} <= kinds


def test_every_file_is_in_a_kustomization() -> None:
    listed: set[Path] = set()
    for folder, kustomization in kustomizations():
        listed |= {folder / name for name in kustomization.get("resources", ())}
        listed |= {folder / patch["path"] for patch in kustomization.get("patches", ())}
    assert listed == {K8S / name for name in FILES}


def test_sidecar_replaces_the_separate_gateway(tmp_path: Path) -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in rendered(tmp_path, "sidecar")}
    assert objects.keys() == {("Deployment", "glimpse"), ("Service", "glimpse")}
    pod = objects["Deployment", "glimpse"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    names = {each["name"]: each["value"] for each in server["env"]}
    # Strategic merge keeps what the base says.
    assert names["GLIMPSE_METRICS_NAMES"] in ("vllm", "both")
    assert "127.0.0.0/8" in names["GLIMPSE_TRUSTED_PROXIES"]
    ports = {port["name"]: port["port"] for port in objects["Service", "glimpse"]["spec"]["ports"]}
    assert ports == {"grpc": GRPC, "http": HTTP}
    config, envoy = pod["initContainers"]
    assert config["volumeMounts"][0]["name"] == envoy["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]
    assert envoy["restartPolicy"] == "Always"


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each pod's specification, or part of one, with the name of its file."""
    for name, documents in FILES.items():
        for document in documents:
            spec = document.get("spec", {})
            if document["kind"] in ("Deployment", "StatefulSet"):
                yield name, spec.get("template", {}).get("spec", {})
            elif document["kind"] == "LeaderWorkerSet":
                for role in ("leaderTemplate", "workerTemplate"):
                    yield name, spec["leaderWorkerTemplate"][role]["spec"]
            elif document["kind"] == "ServingRuntime":
                yield name, spec


CONTAINERS = {
    f"{name} {container['name']}": container
    for name, pod in pods()
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ()))
}


@pytest.mark.parametrize(
    "name", [name for name, each in CONTAINERS.items() if each.get("image", "glimpse") == "glimpse"]
)
def test_commands_and_environment_are_the_program_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container = CONTAINERS[name]
    for name, value in environment(container).items():
        assert name.removeprefix("GLIMPSE_").lower() in settings_names()
        monkeypatch.setenv(name, value)
    command, *arguments = map(filled, container.get("args", ["serve"]))
    if command == "gateway":
        gateway_app.parse_args(arguments, exit_on_error=False)
    else:
        app.parse_args([command, *arguments], exit_on_error=False)


FILLED: Mapping[str, str] = {
    "{{.Name}}": "name",
    "$(LWS_GROUP_SIZE)": "2",
    "$(LWS_LEADER_ADDRESS)": "glimpse-0.glimpse.default",
    "$(LWS_WORKER_INDEX)": "1",
    "$(POD_IP)": "10.0.0.1",
}
"""Variables in arguments that Kubernetes, KServe or the LeaderWorkerSet controller fills, and an example of each."""


def filled(argument: str) -> str:
    for variable, value in FILLED.items():
        argument = argument.replace(variable, value)
    assert "$(" not in argument
    return argument


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables that have values, with secrets in them replaced."""
    variables = {each["name"]: each.get("value") for each in container.get("env", ())}
    values = {name: value for name, value in variables.items() if value is not None}
    for name in variables.keys() - values.keys():
        assert any(f"$({name})" in value for value in (*values.values(), *container.get("args", ())))
        values = {other: value.replace(f"$({name})", PASSWORD) for other, value in values.items()}
    return values


def settings_names() -> set[str]:
    return {name for part in Settings().model_dump().values() for name in part}


@pytest.mark.parametrize("name", CONTAINERS)
def test_ports_and_probes_are_the_program_s(name: str) -> None:
    container = CONTAINERS[name]
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    expected = {"grpc": GRPC, "metrics": METRICS, "http": HTTP, "http1": HTTP, "redis": REDIS}
    assert ports == {name: expected[name] for name in ports}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        for way, probe in container.get(kind, {}).items():
            if isinstance(probe, dict):
                port: Any = probe["port"]
                assert ports.get(port, port) == {"grpc": GRPC, "httpGet": HTTP}.get(way, ports.get(port, port))
                assert ports.get(port, port) in ports.values()
                assert probe.get("path", "/health") == "/health"


def test_path_of_probes_is_the_gateway_s() -> None:
    assert "exact: /health" in (ROOT / "gateway" / "envoy.template.yaml").read_text()


@pytest.mark.parametrize("name", ["server.yaml", "components/sidecar/patch-server.yaml"])
def test_pods_outlive_the_drain(name: str) -> None:
    grace = object_of(name, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= LISTEN.drain_delay + LISTEN.drain_timeout + 10


def test_kserve_outlives_the_drain() -> None:
    predictor = object_of("components/kserve/inference-service.yaml", "InferenceService")["spec"]["predictor"]
    assert predictor["terminationGracePeriodSeconds"] >= LISTEN.drain_delay + LISTEN.drain_timeout + 10
    runtime = object_of("components/kserve/serving-runtime.yaml", "ServingRuntime")
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert predictor["model"]["modelFormat"]["name"] in formats
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(METRICS)


def test_inference_pool_and_picker_read_the_sidecar_s_port() -> None:
    pool = object_of("components/inference-pool/inference-pool.yaml", "InferencePool")
    (values,) = read(K8S / "components/inference-gateway/endpoint-picker-values.yaml")
    server = object_of("server.yaml", "Deployment")
    labels = server["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    router = values["router"]
    assert pool["spec"]["targetPorts"] == router["modelServers"]["targetPorts"] == [{"number": HTTP}]
    assert router["modelServers"]["matchLabels"] == pool["spec"]["selector"]["matchLabels"]
    assert (router["modelServers"]["type"], router["epp"]["metricsDataSource"]["path"]) == ("vllm", "/metrics")
    assert pool["spec"]["endpointPickerRef"]["name"] == f"{pool['metadata']['name']}-epp"


def test_policies_name_ports_and_labels_of_the_pods() -> None:
    policies = FILES["components/network-policy/network-policies.yaml"]
    labels = {"glimpse", "glimpse-gateway"}
    assert {each["spec"]["podSelector"]["matchLabels"]["app"] for each in policies} == labels
    ingress = {
        (each["metadata"]["name"], port["port"])
        for each in policies
        for rule in each["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert ingress == {("glimpse", GRPC), ("glimpse", HTTP), ("glimpse", METRICS), ("glimpse-gateway", HTTP)}
    (rules,) = (
        each["spec"]["rules"]
        for each in FILES["components/istio/security.yaml"]
        if each["kind"] == "AuthorizationPolicy"
    )
    assert [rule["to"][0]["operation"]["ports"] for rule in rules] == [[str(GRPC)], [str(METRICS)]]
    account = object_of("components/istio/security.yaml", "ServiceAccount")["metadata"]["name"]
    gateway = object_of("components/istio/patch-gateway.yaml", "Deployment")
    assert gateway["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert rules[0]["from"][0]["source"]["principals"] == [f"cluster.local/ns/default/sa/{account}"]


def test_services_are_the_ones_that_others_name() -> None:
    services = {
        each["metadata"]["name"]: each
        for documents in FILES.values()
        for each in documents
        if each["kind"] == "Service"
    }
    hosts = {each["spec"]["host"] for each in FILES["components/istio/destination-rules.yaml"]}
    assert hosts == {"glimpse", "glimpse-gateway"} <= services.keys()
    backend = object_of("components/envoy-ai-gateway/backend.yaml", "Backend")["spec"]["endpoints"][0]["fqdn"]
    assert backend["hostname"] == "glimpse-gateway.default.svc.cluster.local"
    assert backend["port"] in {port["port"] for port in services["glimpse-gateway"]["spec"]["ports"]}
    monitor = object_of("components/monitoring/service-monitor.yaml", "ServiceMonitor")["spec"]
    metrics = services["glimpse-metrics"]
    assert monitor["selector"]["matchLabels"] == metrics["metadata"]["labels"]
    (port,) = metrics["spec"]["ports"]
    assert (monitor["endpoints"][0]["port"], port["port"]) == (port["name"], METRICS)


def test_nodes_of_a_leader_worker_set_make_one_server(tmp_path: Path) -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in rendered(tmp_path, "leader-worker-set")}
    assert ("Deployment", "glimpse") not in objects
    server = objects["LeaderWorkerSet", "glimpse"]
    template = server["spec"]["leaderWorkerTemplate"]
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    assert objects["Service", "glimpse"]["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert not objects["Service", "glimpse"]["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    options: list[EngineOptions] = []
    for index, role in enumerate((leader, worker)):
        (container,) = role["spec"]["containers"]
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
        arguments = [each.replace("$(LWS_WORKER_INDEX)", str(index)) for each in container["args"]]
        _, bound, _ = app.parse_args([*map(filled, arguments)], exit_on_error=False)
        options.append(bound.arguments["settings"].engine.options)
        assert options[-1].why_not_together is None
        assert (options[-1].num_local_ranks, options[-1].nnodes) == (gpus, template["size"])
    assert replace(options[0], node_rank=1, master_addr=FILLED["$(LWS_LEADER_ADDRESS)"]) == options[1]
    grace = leader["spec"]["terminationGracePeriodSeconds"]
    assert grace >= LISTEN.drain_delay + LISTEN.drain_timeout + 10


def test_autoscaler_follows_a_metric_and_a_deployment_that_exist() -> None:
    spec = object_of("components/autoscaling/horizontal-pod-autoscaler.yaml", "HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"]["name"] == object_of("server.yaml", "Deployment")["metadata"]["name"]
    names = {family.name for family in Metrics().registry.collect()}
    assert {each["pods"]["metric"]["name"] for each in spec["metrics"]} <= names


def test_ai_gateway_routes_the_model_of_the_image() -> None:
    route = object_of("components/envoy-ai-gateway/route.yaml", "AIGatewayRoute")["spec"]
    (header,) = route["rules"][0]["matches"][0]["headers"]
    assert header["value"] == DEFAULT_MODEL.name
    assert route["rules"][0]["backendRefs"][0]["name"] == "glimpse"


def test_media_store_is_the_one_that_the_servers_name(tmp_path: Path) -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in rendered(tmp_path, "media-store")}
    (server,) = objects["Deployment", "glimpse"]["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in server["env"]]
    # Kubernetes replaces references to variables that are defined before.
    assert names.index("MEDIA_STORE_PASSWORD") < names.index("GLIMPSE_MEDIA_STORE")
    address = parse_store_url(environment(server)["GLIMPSE_MEDIA_STORE"])
    service = objects["Service", "glimpse-media-store"]["spec"]
    assert (address.host, address.port) == ("glimpse-media-store", service["ports"][0]["port"])
    policy = objects["NetworkPolicy", "glimpse-media-store"]["spec"]
    labels = objects["StatefulSet", "glimpse-media-store"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == policy["podSelector"]["matchLabels"] == labels
    ours = objects["Deployment", "glimpse"]["spec"]["template"]["metadata"]["labels"]
    (rule,) = policy["ingress"]
    assert (rule["from"][0]["podSelector"]["matchLabels"], rule["ports"][0]["port"]) == (ours, REDIS)
    others = FILES["components/network-policy/network-policies.yaml"]
    egress = [rule for each in others for rule in each["spec"].get("egress", ())]
    to = [{"podSelector": {"matchLabels": labels}}]
    assert {"to": to, "ports": [{"protocol": "TCP", "port": REDIS}]} in egress


def test_redis_starts_with_the_component_s_options_and_has_room_for_both_budgets(tmp_path: Path) -> None:
    component = FILES["components/media-store/redis.yaml"]
    (stateful_set,) = (each for each in component if each["kind"] == "StatefulSet")
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    arguments: list[str] = container["args"]
    assert arguments[0] == "redis-server"
    (folder,) = (mount["mountPath"] for mount in container["volumeMounts"])
    values: dict[str, str] = {"$(MEDIA_STORE_PASSWORD)": PASSWORD, folder: str(tmp_path)}
    with RedisServer(tmp_path, *(values.get(option, option) for option in arguments[1:])) as server:
        stranger: Any = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()
        client: Any = redis.Redis(port=server.port, password=PASSWORD)
        found = client.config_get("maxmemory*")
        client.close()
    defaults = MediaSettings()
    assert int(found["maxmemory"]) > 1.2 * (defaults.media_cache_bytes + defaults.upload_cache_bytes)
    assert found["maxmemory-policy"] == "noeviction"
