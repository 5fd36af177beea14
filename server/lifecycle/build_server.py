"""Builds the server from its settings and starts it.

It listens before the model is loaded, so that health checks work; until then requests end with UNAVAILABLE.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import grpc.aio

from glimpse.engine.ipc.client import EngineClient
from glimpse.engine.ipc.supervisor import ENGINE_COMMAND, EngineState
from glimpse.engine.protocol import Loading, Ready, StepStats
from glimpse.openai.v1 import openai_pb2
from glimpse.server.identity.access import Access
from glimpse.server.lifecycle.addresses import address
from glimpse.server.lifecycle.build_access import build_access, build_quotas
from glimpse.server.lifecycle.build_handlers import build_handlers
from glimpse.server.lifecycle.build_media import MediaComponents, build_media
from glimpse.server.lifecycle.connections import connection_options
from glimpse.server.lifecycle.loop_delay import watch_loop_delay
from glimpse.server.lifecycle.malloc import return_memory
from glimpse.server.lifecycle.served_checkpoint import Checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.lifecycle.tls import server_credentials, tls_files
from glimpse.server.openai.facade import add_facade
from glimpse.server.rpc.admission import Admission
from glimpse.server.rpc.body_budget import BodyBudget
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import Handler, add_method_alias, add_typed_services
from glimpse.server.services.health import HEALTH_SERVICE, MEDIA_STORE, QUOTA_STORE, Health
from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.server.services.reflection import add_reflection
from glimpse.server.settings import EngineSettings, ListenSettings, Settings
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.metrics_server import MetricsServer
from glimpse.server.telemetry.vllm_names import named_registry
from glimpse.v1 import (
    chat_pb2,
    completion_pb2,
    embedding_pb2,
    load_pb2,
    media_pb2,
    model_pb2,
    rerank_pb2,
    tenant_pb2,
    tokenizer_pb2,
)

MAX_BODY_BYTES = 64 << 20
_MESSAGE_SLACK_BYTES = 1 << 20
_TYPED_SERVICES = tuple(
    service
    for module in (
        chat_pb2,
        completion_pb2,
        embedding_pb2,
        load_pb2,
        media_pb2,
        model_pb2,
        rerank_pb2,
        tenant_pb2,
        tokenizer_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)
_OPENAI_SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]
_SERVICE_NAMES = [service.full_name for service in (*_TYPED_SERVICES, _OPENAI_SERVICE)]
_LOAD_REPORTS = load_pb2.DESCRIPTOR.services_by_name["LoadService"].methods_by_name["StreamLoadReports"]

_MAX_METADATA_BYTES = 128 << 10
"""More than the gateway lets pass. gRPC's own limit, 8 KiB, would refuse requests as exhausted, at random."""

_GRPC_OPTIONS = (
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.max_receive_message_length", MAX_BODY_BYTES + _MESSAGE_SLACK_BYTES),
    ("grpc.max_send_message_length", MAX_BODY_BYTES + _MESSAGE_SLACK_BYTES),
    # Above these limits gRPC cancels requests at random. The engine sheds load itself, with a reason.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    # A port in use is an error. gRPC would share it with the process that has it.
    ("grpc.so_reuseport", 0),
)


class PortError(Exception):
    """The server cannot listen on a port."""

    def __init__(self, host: str, port: int, flag: str) -> None:
        where = address(host, port)
        super().__init__(f"cannot listen on {where}: the port is taken or not permitted; choose another with {flag}")


async def start_server(
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    on_loading: Callable[[Loading], None],
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> Server:
    """Starts to listen and to load the model.

    Raises:
        CheckpointError: the front end cannot work with the checkpoint.
        IdentityConfigError: a file that says who may call cannot be used.
        PortError: a port cannot be listened on.
    """
    observers = _Observers(
        metrics=Metrics(checkpoint.names[0]),
        load=LoadMeter(max_sequences=settings.engine.options.max_sequences),
        admission=Admission(max_queue_seconds=settings.engine.max_queue_seconds),
        health=Health(_SERVICE_NAMES),
    )
    clients = ClientIdentifier(settings.listen.trusted_proxies)
    access = _access(settings, clients, observers)
    interceptor = RpcInterceptor(
        observers.metrics,
        observers.load,
        access=access,
        clients=clients,
        admission=observers.admission,
        bodies=BodyBudget(settings.listen.body_in_flight_bytes),
    )
    options = (*_GRPC_OPTIONS, *connection_options(settings.listen))
    grpc_server = grpc.aio.server(interceptors=[interceptor], options=options)
    port = _listen(grpc_server, settings.listen)
    metrics_server = _serve_metrics(observers.metrics, settings.listen)
    engine = _engine_client(settings.engine, checkpoint, engine_command, on_loading=on_loading, observers=observers)
    media = _media(settings, checkpoint, access, observers)
    handlers = build_handlers(settings, checkpoint, engine, media, observers.metrics, observers.load, access)
    _add_services(grpc_server, handlers)
    await observers.health.add_to(grpc_server)
    await grpc_server.start()
    return Server(
        port=port,
        grpc_server=grpc_server,
        metrics_server=metrics_server,
        engine=engine,
        media=media,
        health=observers.health,
        open_rpcs=interceptor.open_rpcs,
        watches=[
            asyncio.create_task(watch_loop_delay(observers.metrics.loop_delayed)),
            asyncio.create_task(return_memory()),
            asyncio.create_task(access.watch()),
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observers:
    """Told what the engine and the stores do."""

    metrics: Metrics
    load: LoadMeter
    admission: Admission
    health: Health

    def engine_changed(self, state: EngineState, ready: Ready | None) -> None:
        self.metrics.engine_changed(state, ready)
        self.load.engine_changed(num_blocks=0 if ready is None else ready.num_blocks)
        self.admission.engine_changed()
        self.health.set(state is EngineState.READY)

    def engine_stepped(self, stats: StepStats) -> None:
        self.metrics.engine_stepped(stats)
        self.load.engine_stepped(stats)
        self.admission.engine_stepped(stats)


def _access(settings: Settings, clients: ClientIdentifier, observers: _Observers) -> Access:
    on_change = partial(observers.health.set_store, QUOTA_STORE)
    return build_access(
        settings.access,
        clients,
        has_client_ca=settings.listen.tls_client_ca is not None,
        quotas=build_quotas(settings, observers.metrics, on_change=on_change),
    )


def _media(settings: Settings, checkpoint: Checkpoint, access: Access, observers: _Observers) -> MediaComponents:
    on_change = partial(observers.health.set_store, MEDIA_STORE)
    media = build_media(settings.media, checkpoint.path, checkpoint.model, observers.metrics, on_store_change=on_change)
    media.on_purge(access.forget_prefixes)
    return media


def _engine_client(
    settings: EngineSettings,
    checkpoint: Checkpoint,
    command: Sequence[str],
    *,
    on_loading: Callable[[Loading], None],
    observers: _Observers,
) -> EngineClient:
    def on_state(state: EngineState, _reason: str) -> None:
        observers.engine_changed(state, engine.ready)

    engine = EngineClient(
        settings.engine_config(checkpoint.path, checkpoint.folders),
        command=command,
        on_state=on_state,
        on_loading=on_loading,
        on_stats=observers.engine_stepped,
        max_silence_seconds=settings.engine_timeout,
        keep_spare=settings.spare_engine,
    )
    return engine


def _add_services(server: grpc.aio.Server, handlers: Mapping[str, Handler]) -> None:
    add_typed_services(server, _TYPED_SERVICES, handlers)
    add_method_alias(server, _LOAD_REPORTS, handlers[_LOAD_REPORTS.full_name], ORCA_METHOD)
    add_facade(server, handlers, max_body_bytes=MAX_BODY_BYTES)
    add_reflection(server, [*_SERVICE_NAMES, HEALTH_SERVICE])


def _listen(server: grpc.aio.Server, settings: ListenSettings) -> int:
    listen, files = address(settings.host, settings.port), tls_files(settings)
    try:
        if files is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, server_credentials(files))
    except RuntimeError as error:
        raise PortError(settings.host, settings.port, "--port") from error


def _serve_metrics(metrics: Metrics, settings: ListenSettings) -> MetricsServer:
    try:
        registry = named_registry(metrics, settings.metrics_names)
        return MetricsServer(registry, settings.metrics_host, settings.metrics_port)
    except OSError as error:
        raise PortError(settings.metrics_host, settings.metrics_port, "--metrics-port") from error
