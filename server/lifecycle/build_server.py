"""Builds the server from its settings and starts it.

It listens before the model is loaded, so that health checks work; until then requests end with UNAVAILABLE.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from glimpse.engine.checkpoint import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.config import EngineOptions
from glimpse.engine.families.companions import resolve_companions
from glimpse.engine.families.registry import load_model_config
from glimpse.engine.ipc.client import ENGINE_COMMAND, EngineClient, EngineState
from glimpse.engine.model_config.model import ModelConfig
from glimpse.engine.protocol import Loading, Ready, StepStats
from glimpse.engine.text.grammar_check import GrammarChecker
from glimpse.engine.text.media_inputs import MediaLayouts
from glimpse.engine.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.text.reasoning import find_reasoning_format
from glimpse.engine.text.relevance import find_answer_tokens
from glimpse.engine.text.tools import find_format
from glimpse.openai.v1 import openai_pb2
from glimpse.server.generation.constraints import ConstraintBuilder
from glimpse.server.generation.embedder import Embedder
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.identity.access import Access
from glimpse.server.lifecycle.build_access import build_access
from glimpse.server.lifecycle.build_media import MediaComponents, build_media
from glimpse.server.lifecycle.connections import connection_options
from glimpse.server.lifecycle.loop_delay import watch_loop_delay
from glimpse.server.lifecycle.malloc import return_memory
from glimpse.server.lifecycle.server import Server
from glimpse.server.lifecycle.tls import server_credentials, tls_files
from glimpse.server.openai.facade import add_facade
from glimpse.server.parse.pooling import EmbeddingModel
from glimpse.server.request import ReasoningSupport
from glimpse.server.rpc.admission import Admission
from glimpse.server.rpc.body_budget import BodyBudget
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import Handler, add_method_alias, add_typed_services
from glimpse.server.services.chat import ChatHandlers
from glimpse.server.services.completion import CompletionHandlers
from glimpse.server.services.embedding import EmbeddingHandlers
from glimpse.server.services.health import HEALTH_SERVICE, Health
from glimpse.server.services.load_reports import ORCA_METHOD, LoadHandlers
from glimpse.server.services.media import MediaHandlers
from glimpse.server.services.models import ModelHandlers, ServedModel
from glimpse.server.services.reflection import add_reflection
from glimpse.server.services.rerank import RerankHandlers
from glimpse.server.services.tenant import TenantHandlers
from glimpse.server.services.tokenizer import TokenizerHandlers
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

_logger = logging.getLogger(__name__)

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
        super().__init__(
            f"cannot listen on {host}:{port}: the port is taken or not permitted; choose another with {flag}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was found, and how it is served."""

    path: Path
    folders: Mapping[str, str]
    """Those of its companions, by the field of `config.json`."""
    model: ModelConfig
    names: tuple[str, ...]
    """Names that requests may give as `model`; at least one."""


def find_checkpoint(settings: EngineSettings) -> Checkpoint:
    """Finds the checkpoint; downloads it if it is on the hub. Raises CheckpointError."""
    model = settings.model or str(DEFAULT_MODEL)
    path = resolve_checkpoint(model)
    # The folder of a downloaded checkpoint is named by a hash.
    name = path.name if Path(model).expanduser().is_dir() else model
    folders = resolve_companions(path, settings.companions)
    return Checkpoint(
        path=path, folders=folders, model=load_model_config(path, folders), names=settings.served_model_name or (name,)
    )


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
    clients = ClientIdentifier(settings.listen.trusted_proxies)
    access = build_access(settings.access, clients, has_client_ca=settings.listen.tls_client_ca is not None)
    service_names = [service.full_name for service in (*_TYPED_SERVICES, _OPENAI_SERVICE)]
    health = Health(service_names)
    metrics = Metrics(checkpoint.names[0])
    load = LoadMeter(max_sequences=settings.engine.options.max_sequences)
    admission = Admission(max_queue_seconds=settings.engine.max_queue_seconds)
    bodies = BodyBudget(settings.listen.body_in_flight_bytes)
    interceptor = RpcInterceptor(metrics, load, access=access, clients=clients, admission=admission, bodies=bodies)
    grpc_server = grpc.aio.server(
        interceptors=[interceptor], options=(*_GRPC_OPTIONS, *connection_options(settings.listen))
    )
    port = _listen(grpc_server, settings.listen)
    metrics_server = _serve_metrics(metrics, settings.listen)

    engine = _engine_client(
        settings.engine,
        checkpoint,
        engine_command,
        on_loading=on_loading,
        observers=_EngineObservers(metrics=metrics, load=load, admission=admission, health=health),
    )
    media = build_media(
        settings.media, checkpoint.path, checkpoint.model, metrics, on_store_change=health.set_media_store
    )
    _add_services(grpc_server, _handlers(settings, checkpoint, engine, media, metrics, load, access))
    add_reflection(grpc_server, [*service_names, HEALTH_SERVICE])
    await health.add_to(grpc_server)
    await grpc_server.start()
    return Server(
        port=port,
        grpc_server=grpc_server,
        metrics_server=metrics_server,
        engine=engine,
        media=media,
        health=health,
        open_rpcs=interceptor.open_rpcs,
        watches=[
            asyncio.create_task(watch_loop_delay(metrics.loop_delayed)),
            asyncio.create_task(return_memory()),
            asyncio.create_task(access.watch()),
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineObservers:
    """Told what the engine does."""

    metrics: Metrics
    load: LoadMeter
    admission: Admission
    health: Health

    def changed(self, state: EngineState, ready: Ready | None) -> None:
        self.metrics.engine_changed(state, ready)
        self.load.engine_changed(num_blocks=0 if ready is None else ready.num_blocks)
        self.admission.engine_changed()
        self.health.set(state is EngineState.READY)

    def stepped(self, stats: StepStats) -> None:
        self.metrics.engine_stepped(stats)
        self.load.engine_stepped(stats)
        self.admission.engine_stepped(stats)


def _engine_client(
    settings: EngineSettings,
    checkpoint: Checkpoint,
    command: Sequence[str],
    *,
    on_loading: Callable[[Loading], None],
    observers: _EngineObservers,
) -> EngineClient:
    def on_state(state: EngineState, _reason: str) -> None:
        observers.changed(state, engine.ready)

    engine = EngineClient(
        settings.engine_config(checkpoint.path, checkpoint.folders),
        command=command,
        on_state=on_state,
        on_loading=on_loading,
        on_stats=observers.stepped,
        max_silence_seconds=settings.engine_timeout,
        keep_spare=settings.spare_engine,
    )
    return engine


def _add_services(server: grpc.aio.Server, handlers: Mapping[str, Handler]) -> None:
    add_typed_services(server, _TYPED_SERVICES, handlers)
    add_method_alias(server, _LOAD_REPORTS, handlers[_LOAD_REPORTS.full_name], ORCA_METHOD)
    add_facade(server, handlers, max_body_bytes=MAX_BODY_BYTES)


def _handlers(
    settings: Settings,
    checkpoint: Checkpoint,
    engine: EngineClient,
    media: MediaComponents,
    metrics: Metrics,
    load: LoadMeter,
    access: Access,
) -> Mapping[str, Handler]:
    """Returns a handler for each typed method, by the method's full name."""
    prompts = _prompt_builder(settings.engine, checkpoint)
    tokenizer = prompts.tokenizer
    tool_format = find_format(prompts.tool_template_source, settings.engine.tool_call_parser)
    reasoning = find_reasoning_format(prompts.template_source, settings.engine.reasoning_parser)
    model = _served_model(
        settings, checkpoint, prompts, supports_tools=tool_format is not None, parses_reasoning=reasoning is not None
    )
    max_model_len = _max_model_len(settings.engine.options, checkpoint.model, engine)
    loader = PromptLoader(
        prompts=prompts,
        layouts=MediaLayouts(checkpoint.model, tokenizer),
        media=media.loader,
        embeddings=media.embeddings,
        accepts_embeddings=settings.media.enable_mm_embeds,
        max_model_len=max_model_len,
        metrics=metrics,
    )
    generator = CompletionGenerator(
        engine=engine,
        loader=loader,
        tokenizer=tokenizer,
        constraints=ConstraintBuilder(checker=GrammarChecker(tokenizer), tokenizer=tokenizer, tool_format=tool_format),
        reasoning=reasoning,
        metrics=metrics,
    )
    chat = ChatHandlers(model=model, generator=generator, loader=loader)
    completions = CompletionHandlers(model=model, generator=generator, tokenizer=tokenizer)
    embedder = Embedder(engine=engine, loader=loader, metrics=metrics)
    embeddings = EmbeddingHandlers(
        model=model,
        limits=EmbeddingModel(
            vocab_size=model.vocab_size,
            hidden_size=checkpoint.model.text.hidden_size,
            pooling=checkpoint.model.pooling,
            max_media=model.max_media,
        ),
        embedder=embedder,
    )
    rerank = RerankHandlers(model=model, tokens=find_answer_tokens(tokenizer), embedder=embedder)
    models = ModelHandlers(model, max_model_len)
    tokens = TokenizerHandlers(model=model, generator=generator, loader=loader, tokenizer=tokenizer)
    uploads = MediaHandlers(media.uploads)
    return {
        "glimpse.v1.ChatService.CreateChatCompletion": chat.create,
        "glimpse.v1.ChatService.StreamChatCompletion": chat.stream,
        "glimpse.v1.ChatService.CountTokens": chat.count_tokens,
        "glimpse.v1.CompletionService.CreateCompletion": completions.create,
        "glimpse.v1.CompletionService.StreamCompletion": completions.stream,
        "glimpse.v1.EmbeddingService.CreateEmbeddings": embeddings.create,
        "glimpse.v1.LoadService.StreamLoadReports": LoadHandlers(load).stream_load_reports,
        "glimpse.v1.MediaService.UploadMedia": uploads.upload,
        "glimpse.v1.MediaService.GetMedia": uploads.get_media,
        "glimpse.v1.MediaService.DeleteMedia": uploads.delete_media,
        "glimpse.v1.ModelService.ListModels": models.list_models,
        "glimpse.v1.ModelService.GetModel": models.get_model,
        "glimpse.v1.RerankService.Rerank": rerank.rerank,
        "glimpse.v1.RerankService.Score": rerank.score,
        "glimpse.v1.TenantService.PurgeTenant": TenantHandlers(access, media.purge).purge,
        "glimpse.v1.TokenizerService.Tokenize": tokens.tokenize,
        "glimpse.v1.TokenizerService.Detokenize": tokens.detokenize,
    }


def _prompt_builder(settings: EngineSettings, checkpoint: Checkpoint) -> PromptBuilder:
    template = None if settings.chat_template is None else str(settings.chat_template)
    prompts = load_prompt_builder(checkpoint.path, checkpoint.model, template, tool_template=settings.tool_template)
    if prompts.has_own_tool_template:
        _logger.info(
            "the checkpoint's chat template ignores tools: conversations with tools have the one that Glimpse brings"
            " (--tool-template off refuses them)"
        )
    return prompts


def _served_model(
    settings: Settings, checkpoint: Checkpoint, prompts: PromptBuilder, *, supports_tools: bool, parses_reasoning: bool
) -> ServedModel:
    takes = checkpoint.model.placeholder_ids
    return ServedModel(
        names=checkpoint.names,
        vocab_size=checkpoint.model.text.vocab_size,
        max_media={kind: most for kind, most in settings.media.max_media.items() if kind in takes},
        supports_tools=supports_tools,
        reasoning=ReasoningSupport(
            is_parsed=parses_reasoning,
            has_effort="reasoning_effort" in prompts.template_source,
            has_switch="enable_thinking" in prompts.template_source,
        ),
    )


def _max_model_len(options: EngineOptions, model: ModelConfig, engine: EngineClient) -> Callable[[], int]:
    """Returns the context window: the engine's own once it is loaded, before that the requested one."""
    requested = min(options.max_model_len or model.text.max_position_embeddings, model.text.max_position_embeddings)
    return lambda: engine.ready.max_model_len if engine.ready else requested


def _listen(server: grpc.aio.Server, settings: ListenSettings) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address, files = f"{host}:{settings.port}", tls_files(settings)
    try:
        if files is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(files))
    except RuntimeError as error:
        raise PortError(settings.host, settings.port, "--port") from error


def _serve_metrics(metrics: Metrics, settings: ListenSettings) -> MetricsServer:
    try:
        registry = named_registry(metrics, settings.metrics_names)
        return MetricsServer(registry, settings.metrics_host, settings.metrics_port)
    except OSError as error:
        raise PortError(settings.metrics_host, settings.metrics_port, "--metrics-port") from error
