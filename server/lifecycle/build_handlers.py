"""Builds the handlers of the typed methods, and what they share."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.grammar_check import GrammarChecker
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.reasoning import find_reasoning_format
from glimpse.engine.checkpoint.text.relevance import Relevance, find_relevance
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import find_format
from glimpse.engine.client.engine import Engine
from glimpse.engine.protocol.config import EngineOptions
from glimpse.identity.access import Access
from glimpse.media.kind import MediaKind
from glimpse.server.dialects.anthropic.catalog import CatalogHandlers
from glimpse.server.dialects.anthropic.handlers import MessagesHandlers
from glimpse.server.dialects.responses.handlers import ResponsesHandlers
from glimpse.server.dialects.responses.stored import StoredResponses
from glimpse.server.generation.constraints import ConstraintBuilder
from glimpse.server.generation.embedder import Embedder
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.lifecycle.build_batches import BatchComponents
from glimpse.server.lifecycle.build_media import MediaComponents
from glimpse.server.lifecycle.observers import Observers
from glimpse.server.lifecycle.served_checkpoint import Checkpoint
from glimpse.server.request import ReasoningSupport
from glimpse.server.rpc.typed_handlers import Handler
from glimpse.server.served_model import ServedModel
from glimpse.server.services.adapters import AdapterHandlers
from glimpse.server.services.chat import ChatHandlers
from glimpse.server.services.completion import CompletionHandlers
from glimpse.server.services.embedding import EmbeddingHandlers
from glimpse.server.services.load_reports import LoadHandlers
from glimpse.server.services.media import MediaHandlers
from glimpse.server.services.models import ModelHandlers
from glimpse.server.services.rerank import RerankHandlers
from glimpse.server.services.tenant import TenantHandlers
from glimpse.server.services.tokenizer import TokenizerHandlers
from glimpse.server.settings import EngineSettings, Settings
from glimpse.server.telemetry.metrics import Metrics

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What handlers of several services use."""

    model: ServedModel
    tokenizer: Tokenizer
    loader: PromptLoader
    generator: CompletionGenerator
    embedder: Embedder
    max_model_len: Callable[[], int]
    """The context window, in tokens."""


def build_handlers(
    settings: Settings,
    checkpoint: Checkpoint,
    engine: Engine,
    media: MediaComponents,
    observers: Observers,
    access: Access,
    purge: Callable[[str], Awaitable[bool]],
    batches: BatchComponents,
) -> Mapping[str, Handler]:
    """Returns a handler for each typed method, by the method's full name. `purge` is as in `TenantHandlers`."""
    shared = _shared(settings, checkpoint, engine, media, observers.metrics)
    uploads = MediaHandlers(media.uploads, media.responses, batches.files)
    models = ModelHandlers(shared.model, shared.max_model_len, checkpoint.created)
    return {
        **_generation_handlers(shared, media),
        **_embedding_handlers(shared, find_relevance(checkpoint.model, shared.tokenizer)),
        **_model_handlers(shared, models, engine, lora_folder=settings.engine.lora_folder),
        **_catalog_handlers(CatalogHandlers(models=models, media=uploads)),
        "glimpse.v1.BatchService.CreateBatch": batches.handlers.create,
        "glimpse.v1.BatchService.GetBatch": batches.handlers.get,
        "glimpse.v1.BatchService.ListBatches": batches.handlers.list_batches,
        "glimpse.v1.BatchService.CancelBatch": batches.handlers.cancel,
        "glimpse.v1.LoadService.StreamLoadReports": LoadHandlers(observers.load).stream_load_reports,
        "glimpse.v1.MediaService.UploadMedia": uploads.upload,
        "glimpse.v1.MediaService.GetMedia": uploads.get_media,
        "glimpse.v1.MediaService.ListMedia": uploads.list_media,
        "glimpse.v1.MediaService.DownloadMedia": uploads.download,
        "glimpse.v1.MediaService.DeleteMedia": uploads.delete_media,
        "glimpse.v1.TenantService.PurgeTenant": TenantHandlers(access, purge).purge,
    }


def _generation_handlers(shared: _Shared, media: MediaComponents) -> Mapping[str, Handler]:
    chat = ChatHandlers(model=shared.model, generator=shared.generator, loader=shared.loader)
    messages = MessagesHandlers(chat=chat)
    responses = ResponsesHandlers(chat=chat, stored=StoredResponses(media.responses))
    completions = CompletionHandlers(model=shared.model, generator=shared.generator, tokenizer=shared.tokenizer)
    return {
        "glimpse.v1.ChatService.CreateChatCompletion": chat.create,
        "glimpse.v1.ChatService.StreamChatCompletion": chat.stream,
        "glimpse.v1.ChatService.CountTokens": chat.count_tokens,
        "glimpse.v1.CompletionService.CreateCompletion": completions.create,
        "glimpse.v1.CompletionService.StreamCompletion": completions.stream,
        "glimpse.openai.v1.ResponsesService.CreateResponse": responses.create,
        "glimpse.openai.v1.ResponsesService.StreamResponse": responses.stream,
        "glimpse.openai.v1.ResponsesService.CountInputTokens": responses.count_tokens,
        "glimpse.openai.v1.ResponsesService.GetResponse": responses.get,
        "glimpse.openai.v1.ResponsesService.DeleteResponse": responses.delete,
        "glimpse.openai.v1.ResponsesService.ListInputItems": responses.list_input_items,
        "glimpse.openai.v1.ResponsesService.CancelResponse": responses.cancel,
        "glimpse.anthropic.v1.MessagesService.CreateMessage": messages.create,
        "glimpse.anthropic.v1.MessagesService.StreamMessage": messages.stream,
        "glimpse.anthropic.v1.MessagesService.CountMessageTokens": messages.count_tokens,
    }


def _embedding_handlers(shared: _Shared, relevance: Relevance | None) -> Mapping[str, Handler]:
    embeddings = EmbeddingHandlers(model=shared.model, embedder=shared.embedder)
    rerank = RerankHandlers(model=shared.model, relevance=relevance, embedder=shared.embedder)
    return {
        "glimpse.v1.EmbeddingService.CreateEmbeddings": embeddings.create,
        "glimpse.v1.RerankService.Rerank": rerank.rerank,
        "glimpse.v1.RerankService.Score": rerank.score,
    }


def _catalog_handlers(catalog: CatalogHandlers) -> Mapping[str, Handler]:
    return {
        "glimpse.anthropic.v1.CatalogService.ListModelInfos": catalog.list_models,
        "glimpse.anthropic.v1.CatalogService.GetModelInfo": catalog.get_model,
        "glimpse.anthropic.v1.CatalogService.UploadFile": catalog.upload,
        "glimpse.anthropic.v1.CatalogService.ListFileMetadata": catalog.list_files,
        "glimpse.anthropic.v1.CatalogService.GetFileMetadata": catalog.get_file,
        "glimpse.anthropic.v1.CatalogService.DeleteUploadedFile": catalog.delete_file,
    }


def _model_handlers(
    shared: _Shared, models: ModelHandlers, engine: Engine, *, lora_folder: str
) -> Mapping[str, Handler]:
    adapters = AdapterHandlers(models, shared.model, engine, folder=lora_folder)
    tokens = TokenizerHandlers(
        model=shared.model, generator=shared.generator, loader=shared.loader, tokenizer=shared.tokenizer
    )
    return {
        "glimpse.v1.ModelService.ListModels": models.list_models,
        "glimpse.v1.ModelService.GetModel": models.get_model,
        "glimpse.v1.ModelService.LoadAdapter": adapters.load,
        "glimpse.v1.ModelService.UnloadAdapter": adapters.unload,
        "glimpse.v1.TokenizerService.Tokenize": tokens.tokenize,
        "glimpse.v1.TokenizerService.Detokenize": tokens.detokenize,
    }


def _shared(
    settings: Settings, checkpoint: Checkpoint, engine: Engine, media: MediaComponents, metrics: Metrics
) -> _Shared:
    prompts = _prompt_builder(settings.engine, checkpoint)
    tokenizer = prompts.tokenizer
    tool_format = find_format(prompts.templates.with_tools.source, settings.engine.tool_call_parser)
    reasoning = find_reasoning_format(
        prompts.templates.default.source,
        settings.engine.reasoning_parser,
        of_family=family_of(checkpoint.model).reasoning,
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
    return _Shared(
        model=_served_model(
            settings,
            checkpoint,
            prompts,
            engine,
            supports_tools=tool_format is not None,
            parses_reasoning=reasoning is not None,
        ),
        tokenizer=tokenizer,
        loader=loader,
        generator=CompletionGenerator(
            engine=engine,
            loader=loader,
            tokenizer=tokenizer,
            constraints=ConstraintBuilder(
                checker=GrammarChecker(tokenizer), tokenizer=tokenizer, tool_format=tool_format
            ),
            reasoning=reasoning,
            metrics=metrics,
        ),
        embedder=Embedder(engine=engine, loader=loader, metrics=metrics),
        max_model_len=max_model_len,
    )


def _prompt_builder(settings: EngineSettings, checkpoint: Checkpoint) -> PromptBuilder:
    template = None if settings.chat_template is None else str(settings.chat_template)
    prompts = load_prompt_builder(checkpoint.path, checkpoint.model, template, tool_template=settings.tool_template)
    if prompts.templates.brings_tools:
        _logger.info(
            "the checkpoint's chat template ignores tools: conversations with tools have the one that Glimpse brings"
            " (--tool-template off refuses them)"
        )
    return prompts


def _served_model(
    settings: Settings,
    checkpoint: Checkpoint,
    prompts: PromptBuilder,
    engine: Engine,
    *,
    supports_tools: bool,
    parses_reasoning: bool,
) -> ServedModel:
    adapters = settings.engine.adapters
    takes = {*checkpoint.model.placeholder_ids, MediaKind.DOCUMENT}
    return ServedModel(
        names=checkpoint.names,
        adapters=lambda: adapters if engine.ready is None else engine.ready.adapters,
        vocab_size=checkpoint.model.text.vocab_size,
        embedding_size=checkpoint.model.embedding_size,
        pooling=checkpoint.model.pooling,
        max_media={kind: most for kind, most in settings.media.max_media.items() if kind in takes},
        template_variables=prompts.templates.variables,
        supports_tools=supports_tools,
        reasoning=ReasoningSupport(
            is_parsed=parses_reasoning,
            has_effort="reasoning_effort" in prompts.templates.default.source,
            has_switch="enable_thinking" in prompts.templates.default.source,
        ),
        grounding=family_of(checkpoint.model).grounding,
        sampling=checkpoint.sampling,
        digest=checkpoint.digest,
    )


def _max_model_len(options: EngineOptions, model: ModelConfig, engine: Engine) -> Callable[[], int]:
    """Returns the context window: the engine's own once it is loaded, before that the requested one."""
    requested = min(options.max_model_len or model.text.max_position_embeddings, model.text.max_position_embeddings)
    return lambda: engine.ready.max_model_len if engine.ready else requested
