"""From a parsed conversation to the pieces of its answer: media, prompt, engine, text. One path for every door.

Knows no protobuf and no gRPC. Whatever ends the consumer's interest (its task is cancelled, the generator closed) ends
the work in the engine too.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.client import EngineClient, EngineState
from engine.errors import EngineError, EngineErrorCode
from engine.plan import MediaKind
from engine.protocol import FinishReason, Generate, MediaInput, Ready, TokenEvent
from engine.text.assembler import Assembler, TokenText
from engine.text.media_inputs import image_inputs
from engine.text.prompt import Prompt, PromptBuilder, PromptMedia
from media.errors import MediaError
from media.image import Image
from media.load import MediaLoader
from server.errors import DeadlineExceededError, InvalidRequest
from server.metrics import Metrics
from server.request import ChatRequest, Conversation, ImageInput


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompt:
    """A conversation as the engine takes it."""

    token_ids: list[int]
    media: list[MediaInput]

    @property
    def num_image_tokens(self) -> int:
        return sum(medium.num_tokens for medium in self.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What a request cost."""

    prompt: int
    """Those of media included."""
    image: int
    """Of `prompt`, those of pictures."""
    cached: int
    """Of `prompt`, those that the prefix cache spared."""
    completion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is new in an answer."""

    text: str
    tokens: tuple[TokenText, ...]
    """With their log-probabilities; empty where these were not asked for."""
    finish: FinishReason | None
    """STOP or LENGTH in the last piece."""
    counts: TokenCounts
    """So far."""


class Completer:
    """Answers conversations with one engine."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        prompts: PromptBuilder,
        media: MediaLoader,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._media = media
        self._metrics = metrics
        self._serial = itertools.count()

    def check_ready(self) -> Ready:
        """What the engine says of itself. Raises EngineError (UNAVAILABLE) unless it takes requests."""
        if self._engine.state is not EngineState.READY or self._engine.ready is None:
            raise EngineError(EngineErrorCode.UNAVAILABLE, _WHY_UNAVAILABLE[self._engine.state])
        return self._engine.ready

    async def load(self, conversation: Conversation, *, deadline: float | None) -> LoadedPrompt:
        """Fetches and decodes the pictures, all at once, and makes the prompt.

        Raises:
            InvalidRequest: a picture cannot be used.
            TemplateError: the model's chat template refuses the conversation.
            DeadlineExceededError: `deadline`, in the event loop's time, came first.
        """
        try:
            async with asyncio.timeout_at(deadline):
                images = await self._load_images(conversation.images)
                # In a thread: a long text takes milliseconds to tokenise, and other answers wait for this loop.
                prompt = await asyncio.to_thread(self._build_prompt, conversation, images)
        except TimeoutError as error:
            raise DeadlineExceededError from error
        return LoadedPrompt(token_ids=prompt.token_ids, media=image_inputs(images, prompt))

    async def answer(
        self, request: ChatRequest, request_id: str, *, deadline: float | None
    ) -> AsyncGenerator[Piece, None]:
        """Yields the answer's pieces. The first comes with the engine's first event: what fails before, fails whole.

        Raises, beside what `load` raises:
            EngineError: the engine refused the request, or could not finish it.
        """
        clock = self._metrics.answer_clock()
        prompt = await self.load(request.conversation, deadline=deadline)
        sampling = request.sampling
        assembler = Assembler(self._prompts.tokenizer, stop=sampling.stop, logprobs=sampling.logprobs)
        num_cached = num_completion = 0
        async with aclosing(self._events(request, prompt, request_id, deadline)) as events:
            async for event in events:
                clock.tick()
                delta = assembler.feed(event)
                num_cached = max(num_cached, event.num_cached_tokens)
                num_completion += delta.num_tokens
                counts = TokenCounts(
                    prompt=len(prompt.token_ids),
                    image=prompt.num_image_tokens,
                    cached=num_cached,
                    completion=num_completion,
                )
                yield Piece(text=delta.text, tokens=delta.tokens, finish=delta.finish, counts=counts)
                if delta.finish is not None:
                    return

    async def _load_images(self, images: Sequence[ImageInput]) -> list[Image]:
        try:
            async with asyncio.TaskGroup() as group:
                loads = [group.create_task(self._load_image(image)) for image in images]
        except ExceptionGroup as failed:
            # The first failure ended the other loads; it is the one to be told.
            raise failed.exceptions[0] from failed
        return [load.result() for load in loads]

    async def _load_image(self, image: ImageInput) -> Image:
        try:
            return await self._media.load_image(image.source, min_pixels=image.min_pixels, max_pixels=image.max_pixels)
        except MediaError as error:
            raise InvalidRequest(image.field, error.message, error.code.value) from error

    def _build_prompt(self, conversation: Conversation, images: Sequence[Image]) -> Prompt:
        media = [PromptMedia(kind=MediaKind.IMAGE, num_tokens=image.num_tokens) for image in images]
        return self._prompts.chat(conversation.messages, media)

    async def _events(
        self, request: ChatRequest, prompt: LoadedPrompt, request_id: str, deadline: float | None
    ) -> AsyncGenerator[TokenEvent, None]:
        """The engine's events as long as they are good ones; the others become errors."""
        generate = Generate(
            # Clients choose their request ids, and may use one twice at the same time.
            request_id=f"{request_id}/{next(self._serial)}",
            token_ids=prompt.token_ids,
            media=prompt.media,
            sampling=request.sampling,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        async with aclosing(self._engine.generate(generate)) as events:
            while (event := await _next_event(events, deadline)) is not None:
                yield _checked(event)


async def _next_event(events: AsyncGenerator[TokenEvent, None], deadline: float | None) -> TokenEvent | None:
    """The next event, None after the last. Raises DeadlineExceededError when the deadline comes first."""
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(events, None)
    except TimeoutError as error:
        raise DeadlineExceededError from error


def _checked(event: TokenEvent) -> TokenEvent:
    match event.finish:
        case FinishReason.ERROR:
            raise EngineError(event.error or EngineErrorCode.INTERNAL, event.message)
        case FinishReason.CANCELLED:
            # Not by us: after a cancellation of ours nobody reads on.
            raise EngineError(EngineErrorCode.UNAVAILABLE, "The server is stopping.")
        case _:
            return event


_WHY_UNAVAILABLE = {
    EngineState.LOADING: "The model is still loading.",
    EngineState.READY: "The engine is starting.",
    EngineState.RESTARTING: "The engine is being restarted.",
    EngineState.FAILED: "The engine has failed and is not running.",
    EngineState.STOPPED: "The server is stopping.",
}
