"""Builds the server from its settings and starts it.

It listens before the model is loaded, so that health checks work; until then requests end with UNAVAILABLE.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import grpc.aio

from glimpse.dialect.typed_api import TYPED_FILES
from glimpse.engine.client.engine import Engine
from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineState
from glimpse.engine.protocol.messages import Loading
from glimpse.identity.access import Access
from glimpse.media.cache.byte_count import ByteCount
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.media.shared.values import StoreUnavailableError, store_errors
from glimpse.server.call.admission import Admission
from glimpse.server.dialects.anthropic.dialect import ANTHROPIC
from glimpse.server.dialects.facade import Endpoint, add_facade
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.lifecycle.addresses import PortError, address
from glimpse.server.lifecycle.build_access import build_access, build_quotas
from glimpse.server.lifecycle.build_batches import BatchComponents
from glimpse.server.lifecycle.build_handlers import build_handlers
from glimpse.server.lifecycle.build_media import MediaComponents, build_media
from glimpse.server.lifecycle.connections import connection_options
from glimpse.server.lifecycle.observers import Observers, serve_metrics
from glimpse.server.lifecycle.served_checkpoint import Checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.lifecycle.tls import server_credentials
from glimpse.server.lifecycle.watches import return_memory, watch_loop_delay
from glimpse.server.rpc.accepting_server import accepting_server
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import Handler, add_method_alias, add_reflection, add_typed_services
from glimpse.server.services.health import HEALTH_SERVICE, MEDIA_STORE, QUOTA_STORE, Health
from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.server.settings import EngineSettings, ListenSettings, Settings
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.metrics_server import MetricsServer
from glimpse.v1 import load_pb2

MAX_BODY_BYTES = 64 << 20
_MESSAGE_SLACK_BYTES = 1 << 20
_TYPED_SERVICES = [service for file in TYPED_FILES for service in file.services_by_name.values()]
_DIALECTS = (OPENAI, ANTHROPIC)
_SERVICE_NAMES = [service.full_name for service in (*_TYPED_SERVICES, *(each.service for each in _DIALECTS))]
_LOAD_REPORTS = load_pb2.DESCRIPTOR.services_by_name["LoadService"].methods_by_name["StreamLoadReports"]

_MAX_METADATA_BYTES = 128 << 10
"""More than the gateway lets pass. gRPC's own limit, 8 KiB, would refuse requests as exhausted, at random."""

MAX_PENDING = 8192
"""RPCs of a method that wait to be accepted, also those that their clients have cancelled; each holds some 20 KiB. gRPC
cancels further ones without a reason. The engine lets half as many wait, and sheds load with one."""

GRPC_OPTIONS = (
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.max_receive_message_length", MAX_BODY_BYTES + _MESSAGE_SLACK_BYTES),
    ("grpc.max_send_message_length", MAX_BODY_BYTES + _MESSAGE_SLACK_BYTES),
    # Bit 0 alone, which is identity: gRPC decompresses before anything counts the bytes, and 59 KB can become 58 MiB. A
    # compressed call ends with UNIMPLEMENTED.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Above the first limit gRPC would cancel some RPCs at random.
    ("grpc.server.max_pending_requests", MAX_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
    # In seconds. After 30 by default, gRPC cancels a request that still waits to be accepted, without a reason.
    ("grpc.server_max_unrequested_time_in_server", 3600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndGroup:
    """The front ends of one server, as one of them sees them. The default: it is the only one."""

    size: int = 1
    server: str = ""
    """Name of the server; empty if it has one front end."""
    own_port: int | None = None
    """A loopback port that only this front end listens on, beside the port of all. None: it has none."""
    body_bytes: ByteCount = field(default_factory=ByteCount)
    media_bytes: ByteCount = field(default_factory=ByteCount)
    """Count what bodies and media of requests occupy in all of them."""
    client_salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """For the names of clients."""


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
    observers = make_observers(settings.engine, checkpoint.names[0])

    def on_state(state: EngineState, _reason: str) -> None:
        observers.engine_changed(state, engine.ready)

    engine = EngineClient(
        settings.engine.engine_config(checkpoint.path, checkpoint.folders),
        command=engine_command,
        on_state=on_state,
        on_loading=on_loading,
        on_stats=observers.engine_stepped,
        max_silence_seconds=settings.engine.engine_timeout,
        keep_spare=settings.engine.spare_engine,
    )
    metrics_server = serve_metrics(observers.metrics, settings.listen)
    try:
        return await start_front_end(settings, checkpoint, observers, engine, metrics_server=metrics_server)
    except BaseException:
        metrics_server.close()
        raise


async def start_front_end(
    settings: Settings,
    checkpoint: Checkpoint,
    observers: Observers,
    engine: Engine,
    *,
    group: FrontEndGroup | None = None,
    metrics_server: MetricsServer | None = None,
) -> Server:
    """Starts to listen, and starts the engine. Raises as `start_server`, and StoreUnavailableError.

    Args:
        observers: Told what happens; the engine tells them itself.
        group: The front ends that share the engine. Default: there is one.
        metrics_server: Serves `observers.metrics`; belongs to the server from now on. None: another process does.
    """
    group = group or FrontEndGroup()
    clients = ClientIdentifier(settings.listen.trusted_proxies, group.client_salt)
    on_quota_store = partial(observers.health.set_store, QUOTA_STORE)
    quotas = build_quotas(settings, observers.metrics, server=group.server, on_change=on_quota_store)
    has_client_ca = settings.listen.tls.tls_client_ca is not None
    access = build_access(settings.access, clients, has_client_ca=has_client_ca, shared=quotas)
    bodies = FairCapacity(settings.listen.body_in_flight_bytes, group.body_bytes)
    interceptor = RpcInterceptor(
        observers.metrics,
        observers.load,
        access=access,
        clients=clients,
        admission=observers.admission,
        bodies=bodies,
        error_documents={dialect.service.full_name: dialect.error for dialect in _DIALECTS},
    )
    # A port in use is an error. By default, gRPC would share it with the process that has it.
    reuse = ("grpc.so_reuseport", int(group.size > 1))
    options = (*GRPC_OPTIONS, reuse, *connection_options(settings.listen))
    grpc_server = accepting_server([interceptor], options)
    port = _listen(grpc_server, settings.listen)
    if group.own_port is not None:
        _listen(grpc_server, settings.listen.model_copy(update={"host": "127.0.0.1", "port": group.own_port}))
    media = _media(settings, checkpoint, observers, group)
    media.on_purge(access.forget_prefixes)
    # The engine still has what a tenant sent before it was purged.
    if group.size > 1 and not await media.connect() and media.shared is not None:
        raise StoreUnavailableError("'--media-store': expected a Redis that answers where several front ends start")
    batches = BatchComponents(settings.batches, settings.media, media.uploads)
    purge = partial(_purge, access=access, media=media, batches=batches)
    handlers = build_handlers(settings, checkpoint, engine, media, observers, access, purge, batches)
    endpoints = _add_services(grpc_server, handlers, ping_seconds=settings.listen.keepalive_time)
    await observers.health.add_to(grpc_server)
    await grpc_server.start()
    batches.start(endpoints, access, observers.admission, bodies, observers.metrics, max_line_bytes=MAX_BODY_BYTES)
    return Server(
        port=port,
        grpc_server=grpc_server,
        metrics_server=metrics_server,
        engine=engine,
        media=media,
        batches=batches,
        access=access,
        health=observers.health,
        open_rpcs=interceptor.open_rpcs,
        watches=[
            asyncio.create_task(watch_loop_delay(observers.metrics.loop_delayed)),
            asyncio.create_task(return_memory()),
            asyncio.create_task(access.watch()),
            asyncio.create_task(interceptor.open_rpcs.watch()),
            *([asyncio.create_task(quotas.watch())] if quotas is not None else []),
        ],
    )


def make_observers(settings: EngineSettings, model_name: str) -> Observers:
    """Makes those of a server of this model."""
    return Observers(
        metrics=Metrics(model_name),
        load=LoadMeter(max_sequences=settings.options.max_sequences),
        admission=Admission(max_queue_seconds=settings.max_queue_seconds),
        health=Health(_SERVICE_NAMES),
    )


async def _purge(prefix: str, access: Access, media: MediaComponents, batches: BatchComponents) -> bool:
    """Forgets what belongs to the namespaces with a prefix. Returns whether all servers do."""
    access.forget_prefixes(prefix)
    reaches_all = await media.purge(prefix)
    with store_errors("batches are not purged; try again"):
        await batches.store.purge(prefix)
    return reaches_all


def _media(settings: Settings, checkpoint: Checkpoint, observers: Observers, group: FrontEndGroup) -> MediaComponents:
    return build_media(
        settings.media,
        checkpoint.path,
        checkpoint.model,
        observers.metrics,
        on_store_change=partial(observers.health.set_store, MEDIA_STORE),
        in_flight=group.media_bytes,
        num_front_ends=group.size,
    )


def _add_services(
    server: grpc.aio.Server, handlers: Mapping[str, Handler], *, ping_seconds: float
) -> Mapping[str, Endpoint]:
    """Returns what serves the methods of the dialects, by their full names."""
    add_typed_services(server, _TYPED_SERVICES, handlers)
    add_method_alias(server, _LOAD_REPORTS, handlers[_LOAD_REPORTS.full_name], ORCA_METHOD)
    endpoints = dict[str, Endpoint]()
    for dialect in _DIALECTS:
        endpoints |= add_facade(server, dialect, handlers, max_body_bytes=MAX_BODY_BYTES, ping_seconds=ping_seconds)
    add_reflection(server, [*_SERVICE_NAMES, HEALTH_SERVICE])
    return endpoints


def _listen(server: grpc.aio.Server, settings: ListenSettings) -> int:
    listen, credentials = address(settings.host, settings.port), server_credentials(settings.tls)
    try:
        if credentials is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise PortError(settings.host, settings.port, "--port") from error
