"""Builds the server from its settings and starts it.

It listens before the model is loaded, so that health checks work; until then requests end with UNAVAILABLE.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from glimpse.engine.checkpoint import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.config import EngineOptions
from glimpse.engine.ipc.client import ENGINE_COMMAND, EngineClient, EngineState
from glimpse.engine.model_config import ModelConfig, load_model_config
from glimpse.engine.protocol import Loading, StepStats
from glimpse.engine.text.grammar_check import GrammarChecker
from glimpse.engine.text.prompt import load_prompt_builder
from glimpse.engine.text.tools import find_format
from glimpse.openai.v1 import openai_pb2
from glimpse.server.generation.constraints import ConstraintBuilder
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.lifecycle.build_media import MediaComponents, build_media
from glimpse.server.lifecycle.server import Server
from glimpse.server.openai.facade import add_facade
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.metrics import Metrics, MetricsServer
from glimpse.server.rpc.typed_handlers import Handler, add_method_alias, add_typed_services
from glimpse.server.services.chat import ChatHandlers
from glimpse.server.services.completion import CompletionHandlers
from glimpse.server.services.health import HEALTH_SERVICE, Health
from glimpse.server.services.load_reports import ORCA_METHOD, LoadHandlers
from glimpse.server.services.media import MediaHandlers
from glimpse.server.services.models import ModelHandlers, ServedModel
from glimpse.server.services.reflection import add_reflection
from glimpse.server.services.tokenizer import TokenizerHandlers
from glimpse.server.settings import EngineSettings, ListenSettings, Settings
from glimpse.v1 import chat_pb2, completion_pb2, load_pb2, media_pb2, model_pb2, tokenizer_pb2

MAX_BODY_BYTES = 64 << 20
_MESSAGE_SLACK_BYTES = 1 << 20
_CHAT_SERVICE = chat_pb2.DESCRIPTOR.services_by_name["ChatService"]
_LOAD_SERVICE = load_pb2.DESCRIPTOR.services_by_name["LoadService"]
_LOAD_REPORTS = _LOAD_SERVICE.methods_by_name["StreamLoadReports"]
_MEDIA_SERVICE = media_pb2.DESCRIPTOR.services_by_name["MediaService"]
_MODEL_SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
_COMPLETION_SERVICE = completion_pb2.DESCRIPTOR.services_by_name["CompletionService"]
_TOKENIZER_SERVICE = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"]
_TYPED_SERVICES = (
    *(_CHAT_SERVICE, _COMPLETION_SERVICE, _TOKENIZER_SERVICE),
    *(_LOAD_SERVICE, _MEDIA_SERVICE, _MODEL_SERVICE),
)
_OPENAI_SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]

_GRPC_OPTIONS = (
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
    model: ModelConfig
    names: tuple[str, ...]
    """Names that requests may give as `model`; at least one."""


def find_checkpoint(settings: EngineSettings) -> Checkpoint:
    """Finds the checkpoint; downloads it if it is on the hub. Raises CheckpointError."""
    model = settings.model or str(DEFAULT_MODEL)
    path = resolve_checkpoint(model)
    # The folder of a downloaded checkpoint is named by a hash.
    name = path.name if Path(model).expanduser().is_dir() else model
    return Checkpoint(path=path, model=load_model_config(path), names=settings.served_model_name or (name,))


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
        PortError: a port cannot be listened on.
    """
    service_names = [service.full_name for service in (*_TYPED_SERVICES, _OPENAI_SERVICE)]
    health = Health(service_names)
    metrics = Metrics()
    load = LoadMeter(max_sequences=settings.engine.options.max_sequences)
    interceptor = RpcInterceptor(metrics, load)
    grpc_server = grpc.aio.server(interceptors=[interceptor], options=_GRPC_OPTIONS)
    port = _listen(grpc_server, settings.listen)
    metrics_server = _serve_metrics(metrics, settings.listen)

    def on_state(state: EngineState, _reason: str) -> None:
        num_blocks = engine.ready.num_blocks if engine.ready else 0
        metrics.engine_changed(state, num_blocks=num_blocks)
        load.engine_changed(num_blocks=num_blocks)
        health.set(state is EngineState.READY)

    def on_stats(stats: StepStats) -> None:
        metrics.engine_stepped(stats)
        load.engine_stepped(stats)

    engine = EngineClient(
        settings.engine.engine_config(checkpoint.path),
        command=engine_command,
        on_state=on_state,
        on_loading=on_loading,
        on_stats=on_stats,
        max_silence_seconds=settings.engine.engine_timeout,
    )
    media = build_media(settings.media, checkpoint.path, checkpoint.model, metrics)
    reports = LoadHandlers(load).stream_load_reports
    handlers = {
        **_handlers(settings, checkpoint, engine, media, metrics),
        _LOAD_REPORTS.full_name: reports,
    }
    add_typed_services(grpc_server, _TYPED_SERVICES, handlers)
    add_method_alias(grpc_server, _LOAD_REPORTS, reports, ORCA_METHOD)
    add_facade(grpc_server, handlers, max_body_bytes=MAX_BODY_BYTES)
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
        interceptor=interceptor,
    )


def _handlers(
    settings: Settings, checkpoint: Checkpoint, engine: EngineClient, media: MediaComponents, metrics: Metrics
) -> Mapping[str, Handler]:
    """Returns a handler for each typed method, by the method's full name."""
    template = settings.engine.chat_template
    prompts = load_prompt_builder(checkpoint.path, checkpoint.model, None if template is None else str(template))
    tokenizer, vocab_size = prompts.tokenizer, checkpoint.model.text.vocab_size
    model, takes = ServedModel(checkpoint.names), checkpoint.model.placeholder_ids
    max_media = {kind: most for kind, most in settings.media.max_media.items() if kind in takes}
    tool_format = find_format(prompts.template_source, settings.engine.tool_call_parser)
    supports_reasoning_effort = "reasoning_effort" in prompts.template_source
    loader = PromptLoader(
        prompts=prompts,
        encoder=checkpoint.model.encoder,
        media=media.loader,
        embeddings=media.embeddings,
        accepts_embeddings=settings.media.enable_mm_embeds,
        metrics=metrics,
    )
    generator = CompletionGenerator(
        engine=engine,
        loader=loader,
        tokenizer=tokenizer,
        constraints=ConstraintBuilder(checker=GrammarChecker(tokenizer), tokenizer=tokenizer, tool_format=tool_format),
        metrics=metrics,
    )
    chat = ChatHandlers(
        model=model,
        generator=generator,
        loader=loader,
        vocab_size=vocab_size,
        max_media=max_media,
        supports_reasoning_effort=supports_reasoning_effort,
    )
    completions = CompletionHandlers(model=model, generator=generator, tokenizer=tokenizer, vocab_size=vocab_size)
    tokens = TokenizerHandlers(
        model=model,
        generator=generator,
        loader=loader,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        max_media=max_media,
    )
    models = ModelHandlers(
        model=model,
        max_model_len=_max_model_len(settings.engine.options, checkpoint.model, engine),
        max_media=max_media,
        supports_tools=tool_format is not None,
        supports_reasoning_effort=supports_reasoning_effort,
    )
    return {
        f"{_CHAT_SERVICE.full_name}.CreateChatCompletion": chat.create,
        f"{_CHAT_SERVICE.full_name}.StreamChatCompletion": chat.stream,
        f"{_CHAT_SERVICE.full_name}.CountTokens": chat.count_tokens,
        f"{_COMPLETION_SERVICE.full_name}.CreateCompletion": completions.create,
        f"{_COMPLETION_SERVICE.full_name}.StreamCompletion": completions.stream,
        **_media_methods(media),
        f"{_MODEL_SERVICE.full_name}.ListModels": models.list_models,
        f"{_MODEL_SERVICE.full_name}.GetModel": models.get_model,
        f"{_TOKENIZER_SERVICE.full_name}.Tokenize": tokens.tokenize,
        f"{_TOKENIZER_SERVICE.full_name}.Detokenize": tokens.detokenize,
    }


def _media_methods(media: MediaComponents) -> Mapping[str, Handler]:
    handlers = MediaHandlers(media.uploads)
    return {
        f"{_MEDIA_SERVICE.full_name}.UploadMedia": handlers.upload,
        f"{_MEDIA_SERVICE.full_name}.GetMedia": handlers.get_media,
        f"{_MEDIA_SERVICE.full_name}.DeleteMedia": handlers.delete_media,
    }


def _max_model_len(options: EngineOptions, model: ModelConfig, engine: EngineClient) -> Callable[[], int]:
    """Returns the context window: the engine's own once it is loaded, before that the requested one."""
    requested = min(options.max_model_len or model.text.max_position_embeddings, model.text.max_position_embeddings)
    return lambda: engine.ready.max_model_len if engine.ready else requested


def _listen(server: grpc.aio.Server, settings: ListenSettings) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        return server.add_insecure_port(f"{host}:{settings.port}")
    except RuntimeError as error:
        raise PortError(settings.host, settings.port, "--port") from error


def _serve_metrics(metrics: Metrics, settings: ListenSettings) -> MetricsServer:
    try:
        return MetricsServer(metrics, settings.metrics_host, settings.metrics_port)
    except OSError as error:
        raise PortError(settings.metrics_host, settings.metrics_port, "--metrics-port") from error
