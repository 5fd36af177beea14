"""From a parsed conversation to the pieces of its answer: media, prompt, engine, text. One path for every door.

Knows no protobuf and no gRPC. Whatever ends the consumer's interest (its task is cancelled, the generator closed) ends
the work in the engine too.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.client import EngineClient, EngineState
from engine.errors import EngineError, EngineErrorCode
from engine.plan import MediaKind
from engine.protocol import FinishReason, Generate, MediaInput, Ready, TokenEvent
from engine.text.assembler import Assembler, TokenText
from engine.text.media_inputs import Medium, media_inputs, prompt_media
from engine.text.prompt import Prompt, PromptBuilder
from media.clip import Clip
from media.errors import MediaError
from media.load import MediaLoader
from server.errors import DeadlineExceededError, InvalidRequest
from server.metrics import Metrics
from server.request import ChatRequest, ClipInput, Conversation, ImageInput


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
    """A conversation as the engine takes it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What a request cost."""

    prompt: int
    """Those of media included."""
    media: Mapping[MediaKind, int]
    """Of `prompt`, those of media, by kind."""
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
    clips: tuple[ClipFrames, ...]
    """What is seen of the conversation's clips; the same in every piece."""


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
        """Fetches and decodes the media, all at once, and makes the prompt.

        Raises:
            InvalidRequest: a medium cannot be used.
            TemplateError: the model's chat template refuses the conversation.
            DeadlineExceededError: `deadline`, in the event loop's time, came first.
        """
        try:
            async with asyncio.timeout_at(deadline):
                media = await self._load_media(conversation.media)
                # In a thread: a long text takes milliseconds to tokenise, and other answers wait for this loop.
                prompt = await asyncio.to_thread(self._build_prompt, conversation, media)
        except TimeoutError as error:
            raise DeadlineExceededError from error
        clips = tuple(_frames_of(medium) for medium in media if isinstance(medium, Clip))
        return LoadedPrompt(token_ids=prompt.token_ids, media=media_inputs(media, prompt), clips=clips)

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
                    media=prompt.media_tokens,
                    cached=num_cached,
                    completion=num_completion,
                )
                yield Piece(
                    text=delta.text, tokens=delta.tokens, finish=delta.finish, counts=counts, clips=prompt.clips
                )
                if delta.finish is not None:
                    return

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

    def _build_prompt(self, conversation: Conversation, media: Sequence[Medium]) -> Prompt:
        return self._prompts.chat(conversation.messages, prompt_media(media))

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


def _frames_of(clip: Clip) -> ClipFrames:
    num_frames, height, width, _ = clip.pixels.shape
    return ClipFrames(num_frames=num_frames, width=width, height=height, fps=clip.fps, frame_seconds=clip.frame_seconds)


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
