"""From what is asked to prompts as the engine takes them: media are loaded, texts become token ids.

Knows no protobuf and no gRPC, and nothing of how prompts are answered.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from engine.plan import MediaKind
from engine.protocol import MediaInput
from engine.text.media_inputs import Medium, media_inputs, prompt_media
from engine.text.prompt import Prompt, PromptBuilder, TemplateError
from media.clip import Clip
from media.errors import MediaError
from media.load import MediaLoader
from server.errors import DeadlineExceededError, InvalidRequest
from server.request import ClipInput, Conversation, ImageInput, PromptSource, TextPrompt, TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
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
    clips: tuple[ClipFrames, ...]
    """What is seen of its clips, in their order."""

    @property
    def media_tokens(self) -> Mapping[MediaKind, int]:
        """Tokens of its media, by kind."""
        counts = Counter[MediaKind]()
        for medium in self.media:
            counts[medium.kind] += medium.num_tokens
        return counts


class PromptLoader:
    """Makes prompts for one checkpoint."""

    def __init__(self, *, prompts: PromptBuilder, media: MediaLoader) -> None:
        self._prompts = prompts
        self._media = media

    async def load(self, source: PromptSource, *, deadline: float | None) -> LoadedPrompt:
        """Fetches and decodes the media, all at once, and makes the prompt.

        Raises:
            InvalidRequest: a medium or a text cannot be used.
            TemplateError: the model's chat template refuses the conversation.
            DeadlineExceededError: `deadline`, in the event loop's time, came first.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self._load(source)
        except TimeoutError as error:
            raise DeadlineExceededError from error

    async def _load(self, source: PromptSource) -> LoadedPrompt:
        # Texts in a thread: a long one takes milliseconds to tokenise, and other answers wait for this loop.
        match source:
            case Conversation():
                media = await self._load_media(source.media)
                prompt = await asyncio.to_thread(self._of_conversation, source, media)
                clips = tuple(_frames_of(medium) for medium in media if isinstance(medium, Clip))
                return LoadedPrompt(token_ids=prompt.token_ids, media=media_inputs(media, prompt), clips=clips)
            case TextPrompt():
                prompt = await asyncio.to_thread(self._of_text, source)
                return LoadedPrompt(token_ids=prompt.token_ids, media=[], clips=())
            case TokenPrompt(token_ids=token_ids):
                return LoadedPrompt(token_ids=list(token_ids), media=[], clips=())
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

    async def _load_media(self, media: Sequence[ImageInput | ClipInput]) -> list[Medium]:
        try:
            async with asyncio.TaskGroup() as group:
                loads = [group.create_task(self._load_medium(medium)) for medium in media]
        except ExceptionGroup as failed:
            # The first failure ended the other loads; it is the one to be told.
            raise failed.exceptions[0] from failed
        return [load.result() for load in loads]

    async def _load_medium(self, medium: ImageInput | ClipInput) -> Medium:
        try:
            if isinstance(medium, ClipInput):
                return await self._media.load_clip(medium.source, medium.options)
            return await self._media.load_image(
                medium.source, min_pixels=medium.min_pixels, max_pixels=medium.max_pixels
            )
        except MediaError as error:
            raise InvalidRequest(medium.field, error.message, error.code.value) from error


def _frames_of(clip: Clip) -> ClipFrames:
    num_frames, height, width, _ = clip.pixels.shape
    return ClipFrames(num_frames=num_frames, width=width, height=height, fps=clip.fps, frame_seconds=clip.frame_seconds)
