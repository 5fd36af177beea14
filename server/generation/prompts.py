"""From what is asked to prompts as the engine takes them: media are loaded, texts become token ids.

Knows no protobuf and no gRPC, and nothing of how prompts are answered.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

from glimpse.engine.model_config import AudioConfig, VisionConfig
from glimpse.engine.plan import Embeddings
from glimpse.engine.protocol import MediaInput
from glimpse.engine.text.media_inputs import Medium, media_inputs, prompt_media
from glimpse.engine.text.prompt import Prompt, PromptBuilder, TemplateError
from glimpse.media.cache.request_media import Batch, MediaUsage
from glimpse.media.embeddings.cached import CachedEmbeddings
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingError
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.video import Video
from glimpse.server.request import (
    AudioInput,
    Conversation,
    EmbeddingInput,
    ImageInput,
    MediumInput,
    PromptSource,
    TextPrompt,
    TokenPrompt,
    VideoInput,
    is_left_out,
)
from glimpse.server.rpc.errors import DeadlineExceededError, InvalidRequest
from glimpse.server.rpc.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFrames:
    """What a model sees of a clip."""

    num_frames: int
    width: int
    """Pixels, after resizing."""
    height: int
    fps: float | None
    """The rate at which frames were taken, if they were taken by one."""
    frame_seconds: tuple[float, ...]
    """When each is shown; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompt:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    media: list[MediaInput]
    videos: tuple[VideoFrames, ...]
    """What is seen of its clips, in their order."""
    media_usage: MediaUsage | None = None
    """What it took to get its media; None where it has none."""

    @property
    def media_tokens(self) -> Mapping[MediaKind, int]:
        """Tokens of its media, by kind."""
        counts = Counter[MediaKind]()
        for medium in self.media:
            counts[medium.span.kind] += medium.span.num_tokens
        return counts

    @property
    def num_encodable(self) -> int:
        """Its media that have to go through the encoder, unless the engine has kept what that made of them."""
        return sum(not isinstance(medium.content, Embeddings) for medium in self.media)


class PromptLoader:
    """Makes prompts for one checkpoint."""

    def __init__(
        self,
        *,
        prompts: PromptBuilder,
        encoder: VisionConfig | AudioConfig,
        media: MediaLoader,
        embeddings: CachedEmbeddings | None,
        metrics: Metrics,
    ) -> None:
        """
        Args:
            prompts: What makes prompts of texts.
            encoder: What the engine makes embeddings of media with.
            media: What loads media.
            embeddings: What loads embeddings; None: they are refused.
            metrics: Told what it took to load media.
        """
        self._prompts = prompts
        self._encoder = encoder
        self._media = media
        self._embeddings = embeddings
        self._metrics = metrics

    @asynccontextmanager
    async def load(
        self, source: PromptSource, *, cache_salt: str, deadline: float | None
    ) -> AsyncGenerator[LoadedPrompt]:
        """Fetches and decodes the media, all at once, and makes the prompt, whose memory is held until the block ends.

        Media that are kept between requests are those of the same `cache_salt`.

        Raises:
            InvalidRequest: a medium or a text cannot be used.
            TemplateError: the model's chat template refuses the conversation.
            DeadlineExceededError: `deadline`, in the event loop's time, came first.
        """
        with self._media.batch(cache_salt) as batch:
            try:
                async with asyncio.timeout_at(deadline):
                    prompt = await self._load(source, batch)
            except TimeoutError as error:
                raise DeadlineExceededError from error
            finally:
                self._metrics.media_loaded(batch.usage)
            yield prompt

    async def _load(self, source: PromptSource, batch: Batch) -> LoadedPrompt:
        # Texts in a thread: a long one takes milliseconds to tokenise, and other answers wait for this loop.
        match source:
            case Conversation():
                media = await self._load_media(source.media, batch)
                prompt = await asyncio.to_thread(self._of_conversation, source, media)
                return LoadedPrompt(
                    token_ids=prompt.token_ids,
                    media=media_inputs(media, prompt, self._encoder),
                    videos=tuple(_frames_of(medium) for medium in media if isinstance(medium, Video)),
                    media_usage=batch.usage if batch.usage.num_media else None,
                )
            case TextPrompt():
                prompt = await asyncio.to_thread(self._of_text, source)
                return LoadedPrompt(token_ids=prompt.token_ids, media=[], videos=())
            case TokenPrompt(token_ids=token_ids):
                return LoadedPrompt(token_ids=list(token_ids), media=[], videos=())
            case _:
                assert_never(source)

    def _of_conversation(self, conversation: Conversation, media: Sequence[Medium]) -> Prompt:
        return self._prompts.chat(
            conversation.messages,
            prompt_media(media),
            tools=conversation.tools,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            template_kwargs=conversation.template_kwargs,
        )

    def _of_text(self, source: TextPrompt) -> Prompt:
        try:
            prompt = self._prompts.text(source.text, ())
        except TemplateError as error:
            raise InvalidRequest(source.field, f"{error}") from error
        if not prompt.token_ids:
            raise InvalidRequest(source.field, "The prompt has no tokens.", "missing_value")
        return prompt

    async def _load_media(self, media: Sequence[MediumInput], batch: Batch) -> list[Medium]:
        """Loads what is sent, and then what is left out: it may have been sent in this very request."""
        sent = iter(await self._load_all([medium for medium in media if not is_left_out(medium)], batch))
        left_out = iter(await self._load_all([medium for medium in media if is_left_out(medium)], batch))
        return [next(left_out if is_left_out(medium) else sent) for medium in media]

    async def _load_all(self, media: Sequence[MediumInput], batch: Batch) -> list[Medium]:
        try:
            async with asyncio.TaskGroup() as group:
                loads = [group.create_task(self._load_medium(medium, batch)) for medium in media]
        except ExceptionGroup as failed:
            # The first failure ended the other loads; it is the one to be told.
            raise failed.exceptions[0] from failed
        return [load.result() for load in loads]

    async def _load_medium(self, medium: MediumInput, batch: Batch) -> Medium:
        try:
            match medium:
                case ImageInput():
                    return await self._media.load_image(
                        medium.source,
                        batch=batch,
                        uuid=medium.uuid,
                        min_pixels=medium.min_pixels,
                        max_pixels=medium.max_pixels,
                        background=medium.background,
                    )
                case VideoInput(source=source, uuid=uuid, options=options):
                    return await self._media.load_video(source, options, batch=batch, uuid=uuid)
                case AudioInput(source=source, uuid=uuid):
                    return await self._media.load_audio(source, batch=batch, uuid=uuid)
                case EmbeddingInput():
                    return await self._load_embedding(medium, batch)
                case _:
                    assert_never(medium)
        except EmbeddingError as error:
            raise InvalidRequest(f"{medium.field}.{error.part}", error.message, error.code.value) from error
        except MediaError as error:
            raise InvalidRequest(medium.field, error.message, error.code.value) from error

    async def _load_embedding(self, medium: EmbeddingInput, batch: Batch) -> Embedding:
        if self._embeddings is None:
            message = "This server does not accept embeddings; it does where it was started with --enable-mm-embeds."
            raise InvalidRequest(medium.field, message, "unsupported")
        return await self._embeddings.load(
            medium.kind, medium.embeddings, medium.grid_thw, batch=batch, uuid=medium.uuid
        )


def _frames_of(clip: Video) -> VideoFrames:
    num_frames, height, width, _ = clip.pixels.shape
    return VideoFrames(
        num_frames=num_frames, width=width, height=height, fps=clip.fps, frame_seconds=clip.frame_seconds
    )
