"""Builds prompts for the engine: loads the media of a request and turns its text into token ids.

Independent of protobuf and of how prompts are completed.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import assert_never

from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.engine.checkpoint.text.conversation import filled, num_characters
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs
from glimpse.engine.checkpoint.text.prompt import Prompt, PromptBuilder
from glimpse.engine.checkpoint.text.slots import PlaceholderError
from glimpse.engine.errors import TemplateError
from glimpse.media.cache.request_media import RequestMedia
from glimpse.media.embeddings.embeddings import EmbeddingError
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaOptionError
from glimpse.media.input_loader import LoadedInput, MediaInputError, field_of, load_inputs, media_of
from glimpse.media.inputs import EmbeddingInput, MediumInput
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.medium import Medium
from glimpse.server.call.context import CallContext
from glimpse.server.call.deadline import within
from glimpse.server.call.offload import run
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.medium_usage import prompt_medium
from glimpse.server.generation.usage import LoadedPrompt
from glimpse.server.request import Conversation, PromptSource, TextPrompt, TokenPrompt
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.stages import record_media_stages

_MAX_INLINE_CHARACTERS = 1024
"""The longest text that becomes a prompt in the event loop; that takes 0.4 ms."""
_MESSAGE_CHARACTERS = 32
"""About as many characters take as long as what a template writes for each message."""


class PromptLoader:
    """Builds prompts for one checkpoint."""

    def __init__(
        self,
        *,
        prompts: PromptBuilder,
        layouts: MediaLayouts,
        media: MediaLoader,
        embeddings: EmbeddingLoader,
        accepts_embeddings: bool,
        max_model_len: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        """
        Args:
            accepts_embeddings: Requests may contain embeddings.
            max_model_len: Returns the context window in tokens.
        """
        self._prompts = prompts
        self._layouts = layouts
        self._media = media
        self._embeddings = embeddings
        self._accepts_embeddings = accepts_embeddings
        self._max_model_len = max_model_len
        self._metrics = metrics

    async def upload_kind(self, upload_id: str, cache_salt: str) -> MediaKind | None:
        """Returns what kind of medium an upload is; None: of none. Raises MediaError."""
        return await self._media.files.upload_kind(cache_salt, upload_id)

    @asynccontextmanager
    async def load(
        self, source: PromptSource, call: CallContext, *, cache_salt: str, keeps_body: bool = False
    ) -> AsyncGenerator[LoadedPrompt]:
        """Fetches and decodes the media concurrently and builds the prompt. Holds its memory until the block ends.

        Args:
            cache_salt: Only media cached by requests with the same salt are reused.
            keeps_body: Other prompts are still to be built from the request's body.

        Raises:
            InvalidRequest: a medium or a text cannot be used.
            EngineError: PROMPT_TOO_LONG; the engine refuses prompts that are too long and get past this.
            TemplateError: the model's chat template refuses the conversation.
            DeadlineExceededError: the call's deadline passed first.
        """
        with self._media.batch(cache_salt, client=call.client, share=call.tenant.media) as batch:
            try:
                async with within(call.deadline):
                    prompt = await self._load(source, batch, call)
            finally:
                self._metrics.media_loaded(batch.usage)
                record_media_stages(batch.usage)
            if isinstance(source, Conversation):
                source.media.clear()
            if not keeps_body:
                call.body.release()
            yield prompt

    async def _load(self, source: PromptSource, batch: RequestMedia, call: CallContext) -> LoadedPrompt:
        # Prompts that take more than about half a millisecond are built in threads, to let other requests go on.
        match source:
            case Conversation():
                self._prompts.check_size(source.messages, source.options, max_tokens=self._max_model_len())
                loaded = await self._load_media(source.media, batch, call)
                media = media_of(loaded)
                build = partial(self._of_conversation, source, loaded, media)
                prompt, layouts = build() if _is_short(source) else await run(call.client, build)
                inputs = media_inputs(media, layouts, prompt.starts)
                return LoadedPrompt(
                    token_ids=prompt.token_ids,
                    media=inputs,
                    media_usage=batch.usage if media else None,
                    seen=tuple(
                        prompt_medium(medium, sent, origin, self._media)
                        for medium, sent, origin in zip(media, inputs, batch.usage.origins, strict=True)
                    ),
                    parts=tuple(
                        tuple(part if isinstance(part, str) else None for part in each.parts) for each in loaded
                    ),
                )
            case TextPrompt():
                is_short = len(source.text) <= _MAX_INLINE_CHARACTERS
                prompt = self._of_text(source) if is_short else await run(call.client, self._of_text, source)
                return LoadedPrompt(token_ids=prompt.token_ids, media=[])
            case TokenPrompt(token_ids=token_ids):
                return LoadedPrompt(token_ids=list(token_ids), media=[])
            case _:
                assert_never(source)

    def _of_conversation(
        self, conversation: Conversation, loaded: Sequence[LoadedInput], media: Sequence[Medium]
    ) -> tuple[Prompt, list[TokenLayout]]:
        layouts, max_tokens = self._layouts.of(media), self._max_model_len()
        messages = filled(conversation.messages, (each.parts for each in loaded))
        self._prompts.check_size(messages, conversation.options, max_tokens=max_tokens)
        try:
            prompt = self._prompts.chat(messages, layouts, conversation.options, max_tokens=max_tokens)
        except PlaceholderError as error:
            if error.missing is None:
                raise
            raise InvalidRequest(field_of(error.missing, loaded), str(error), "template_refused") from error
        return prompt, layouts

    def _of_text(self, source: TextPrompt) -> Prompt:
        try:
            max_tokens, special = self._max_model_len(), source.add_special_tokens
            if special is None:
                prompt = self._prompts.text(source.text, (), max_tokens=max_tokens)
            else:
                prompt = self._prompts.whole_text(source.text, (), add_special_tokens=special, max_tokens=max_tokens)
        except TemplateError as error:
            raise InvalidRequest(source.field, f"{error}") from error
        if not prompt.token_ids:
            raise InvalidRequest(source.field, "expected a prompt of at least one token, got none", "missing_value")
        return prompt

    async def _load_media(
        self, inputs: Sequence[MediumInput], batch: RequestMedia, call: CallContext
    ) -> list[LoadedInput]:
        if inputs:
            call.ticket.end_preparing()  # fetching may take long, and others can be prepared meanwhile
        for medium in inputs:
            if isinstance(medium, EmbeddingInput) and not self._accepts_embeddings:
                message = "the server does not accept embeddings (its --enable-mm-embeds)"
                raise InvalidRequest(medium.field, message, "unsupported")
        try:
            (loaded,) = await load_inputs([inputs], loader=self._media, embeddings=self._embeddings, batch=batch)
            return loaded
        except MediaInputError as failed:
            error = failed.error
            field = f"{failed.field}.{error.part}" if isinstance(error, EmbeddingError) else failed.field
            message = error.problem if isinstance(error, MediaOptionError) else error.message
            raise InvalidRequest(field, message, error.code.value) from error


def _is_short(conversation: Conversation) -> bool:
    """Tells whether the prompt is built in the event loop: on a busy one, a thread waits milliseconds for its turn."""
    if conversation.media or conversation.options.template_kwargs:
        return False
    size = num_characters(conversation.messages, conversation.options.tools)
    return size + _MESSAGE_CHARACTERS * len(conversation.messages) <= _MAX_INLINE_CHARACTERS
