"""Renders completion deltas as ChatService responses. Independent of the engine and of JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf import any_pb2
from google.protobuf.message import Message

from glimpse.engine.checkpoint.text.grounding import Grounding
from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText, TopToken
from glimpse.engine.protocol.messages import FinishReason
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.placement import Point
from glimpse.server.generation.medium_usage import CacheTier, PromptMedium
from glimpse.server.generation.quote import Quote
from glimpse.server.generation.usage import Usage
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.text_chunks import TextChunk, TextTemplate
from glimpse.server.telemetry.timings import FirstTokenTime, Timings
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2, model_pb2

_DELTA_BYTES = 40
"""About what a token, or an alternative to it, takes in a response."""
_TOKEN_ID_BYTES = 4
"""About what a token id takes in a response."""
MODALITIES = {
    MediaKind.IMAGE: model_pb2.MODALITY_IMAGE,
    MediaKind.VIDEO: model_pb2.MODALITY_VIDEO,
    MediaKind.AUDIO: model_pb2.MODALITY_AUDIO,
}
_CACHE_TIERS = {
    CacheTier.NONE: generation_pb2.MEDIA_CACHE_TIER_NONE,
    CacheTier.FILE: generation_pb2.MEDIA_CACHE_TIER_FILE,
    CacheTier.DECODED: generation_pb2.MEDIA_CACHE_TIER_DECODED,
    CacheTier.ENCODER: generation_pb2.MEDIA_CACHE_TIER_ENCODER,
    CacheTier.PREFIX: generation_pb2.MEDIA_CACHE_TIER_PREFIX,
}
_FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: generation_pb2.FINISH_REASON_TOOL_CALLS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionHead:
    """Fields that all messages of a response repeat."""

    id: str
    created: int
    """Seconds since 1970-01-01 UTC."""
    model: str
    system_fingerprint: str = ""
    """What computes the answer; see chat.proto."""
    service_tier: chat_pb2.ServiceTier | None = None
    """None: not reported."""


def render_response(
    head: CompletionHead, request: ChatRequest, deltas: Sequence[Delta], usage: Usage
) -> chat_pb2.CreateChatCompletionResponse:
    """Joins all deltas of a request, at least one per completion, into one response."""
    by_index: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    with_logprobs = request.generation.sampling.logprobs is not None
    return chat_pb2.CreateChatCompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[_render_choice(index, by_index[index], logprobs=with_logprobs) for index in sorted(by_index)],
        usage=render_usage(usage),
        videos=render_videos(usage.media),
        metadata=request.metadata,
        service_tier=head.service_tier,
        system_fingerprint=head.system_fingerprint,
        prompt_token_ids=by_index[0][0].prompt_token_ids,
        prompt_logprobs=render_prompt_logprobs(by_index[0]),
        images=render_images(usage.media) if request.generation.grounding else (),
    )


def rendering_size(deltas: Sequence[Delta]) -> int:
    """Estimates the bytes of a response; rendering takes time in proportion."""
    num_alternatives = sum(len(token.top) for delta in deltas for token in (*delta.tokens, *delta.prompt_tokens))
    num_prompt_tokens = max((len(delta.prompt_token_ids) for delta in deltas), default=0)
    num_groundings = sum(len(delta.groundings) for delta in deltas)
    return _DELTA_BYTES * (len(deltas) + num_alternatives + num_groundings) + _TOKEN_ID_BYTES * num_prompt_tokens


def _render_choice(index: int, deltas: Sequence[Delta], *, logprobs: bool) -> chat_pb2.Choice:
    text = "".join(delta.text for delta in deltas)
    reasoning = "".join(delta.reasoning for delta in deltas)
    tool_calls = _join_tool_calls(deltas)
    choice = chat_pb2.Choice(
        index=index,
        message=chat_pb2.AssistantMessage(
            role=content_pb2.ROLE_ASSISTANT,
            content=text if text or not (tool_calls or reasoning) else None,
            tool_calls=tool_calls,
            reasoning=reasoning or None,
        ),
        logprobs=generation_pb2.Logprobs() if logprobs else None,
        finish_reason=render_finish_reason(deltas[-1].finish),
        token_ids=(token_id for delta in deltas for token_id in delta.token_ids),
        groundings=map(_render_grounding, deltas[-1].groundings),
    )
    for delta in deltas:
        add_logprobs(choice.logprobs.content, delta.tokens)
    _add_answer(choice, deltas[-1])
    return choice


def _add_answer(choice: chat_pb2.Choice | chat_pb2.ChunkChoice, last: Delta) -> None:
    if isinstance(last.answer, any_pb2.Any):
        choice.answer.CopyFrom(last.answer)
    elif last.answer_error:
        choice.answer_error = last.answer_error


def _join_tool_calls(deltas: Iterable[Delta]) -> list[content_pb2.ToolCall]:
    calls: dict[int, content_pb2.ToolCall] = {}
    for part in (part for delta in deltas for part in delta.tool_calls):
        call = calls.setdefault(part.index, content_pb2.ToolCall())
        call.id += part.id or ""
        call.function.name += part.name or ""
        call.function.arguments += part.arguments
    return [calls[index] for index in sorted(calls)]


class ChunkRenderer:
    """Renders the messages of one stream, in which the deltas of several completions may be interleaved."""

    def __init__(self, head: CompletionHead, usage: Usage, *, with_images: bool = False) -> None:
        """`usage` is of the request and grows with the deltas. `with_images`: the first message tells of the images."""
        self._head = head
        self._usage = usage
        self._with_images = with_images
        self._begun: set[int] = set()
        self._templates: dict[int, TextTemplate] = {}
        """Completion index → its messages that have only content."""

    def render(self, delta: Delta) -> Iterator[chat_pb2.StreamChatCompletionResponse | TextChunk]:
        """Yields the messages of a delta; none for an empty one.

        A completion's first message carries the role, the sampled video frames and the prompt's token ids, its last
        only the finish reason, and the boxes and points. The first has no log-probabilities, as OpenAI's: its clients
        would join them twice.
        """
        parts = [delta]
        if delta.tokens and delta.index not in self._begun:
            ids, scores = delta.prompt_token_ids, delta.prompt_tokens
            parts.insert(0, Delta(index=delta.index, prompt_token_ids=ids, prompt_tokens=scores))
        for part in parts:
            if (output := self.render_output(part)) is not None:
                yield output
        if delta.finish is not None:
            end = chat_pb2.ChunkChoice(
                index=delta.index,
                delta=chat_pb2.Delta(),
                finish_reason=render_finish_reason(delta.finish),
                groundings=map(_render_grounding, delta.groundings),
            )
            _add_answer(end, delta)
            yield self._chunk(end)

    def render_output(self, delta: Delta) -> chat_pb2.StreamChatCompletionResponse | TextChunk | None:
        """Renders what a delta adds to its completion; None if it is nothing."""
        first = delta.index not in self._begun
        has_more = first or delta.reasoning or delta.tool_calls or delta.tokens or delta.token_ids
        # A delta may be empty: text is withheld while it may be part of a character, a stop string or a tool call.
        if not has_more:
            return TextChunk(self._template(delta.index), delta.text) if delta.text else None
        self._begun.add(delta.index)
        choice = chat_pb2.ChunkChoice(
            index=delta.index, delta=_render_delta(delta, first=first), token_ids=delta.token_ids
        )
        chunk = self._chunk(choice, media=self._usage.media if first else ())
        add_logprobs(chunk.choices[0].logprobs.content, delta.tokens)
        if first:
            chunk.prompt_token_ids.extend(delta.prompt_token_ids)
            chunk.prompt_logprobs.extend(render_prompt_logprobs([delta]))
            chunk.images.extend(render_images(self._usage.media) if self._with_images else ())
        return chunk

    def render_usage(self) -> chat_pb2.StreamChatCompletionResponse:
        """Renders the last message of a stream that reports usage; it has no choices."""
        chunk = self._chunk()
        chunk.usage.CopyFrom(render_usage(self._usage))
        return chunk

    def _template(self, index: int) -> TextTemplate:
        template = self._templates.get(index)
        if template is None:
            chunk = self._chunk(chat_pb2.ChunkChoice(index=index, delta=chat_pb2.Delta()))
            template = self._templates[index] = TextTemplate(chunk, chunk.choices[0].delta, "content")
        return template

    def _chunk(
        self, *choices: chat_pb2.ChunkChoice, media: Iterable[PromptMedium] = ()
    ) -> chat_pb2.StreamChatCompletionResponse:
        return chat_pb2.StreamChatCompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            videos=render_videos(media),
            service_tier=self._head.service_tier,
            system_fingerprint=self._head.system_fingerprint,
        )


def _render_delta(delta: Delta, *, first: bool) -> chat_pb2.Delta:
    """The first delta has content, even if it is empty, unless it begins the reasoning or a tool call."""
    return chat_pb2.Delta(
        role=content_pb2.ROLE_ASSISTANT if first else None,
        content=delta.text if delta.text or (first and not (delta.tool_calls or delta.reasoning)) else None,
        reasoning=delta.reasoning or None,
        tool_calls=[
            chat_pb2.ToolCallDelta(
                index=call.index,
                id=call.id,
                function=chat_pb2.FunctionCallDelta(name=call.name, arguments=call.arguments),
            )
            for call in delta.tool_calls
        ],
    )


def render_prompt_details(
    media_tokens: Mapping[MediaKind, int], *, cached_tokens: int
) -> generation_pb2.PromptTokensDetails:
    """Renders the breakdown of a prompt's tokens."""
    return generation_pb2.PromptTokensDetails(
        cached_tokens=cached_tokens,
        image_tokens=media_tokens.get(MediaKind.IMAGE, 0),
        video_tokens=media_tokens.get(MediaKind.VIDEO, 0),
        audio_tokens=media_tokens.get(MediaKind.AUDIO, 0),
    )


def render_videos(media: Iterable[PromptMedium]) -> list[content_pb2.SampledVideo]:
    """Renders the sampled frames of the videos among media. Embeddings in place of a video have none."""
    return [
        content_pb2.SampledVideo(
            num_frames=medium.num_frames,
            width=medium.width,
            height=medium.height,
            fps=medium.fps,
            frame_seconds=medium.frame_seconds,
        )
        for medium in media
        if medium.num_frames is not None
    ]


def render_images(media: Iterable[PromptMedium]) -> list[generation_pb2.SeenImage]:
    """Renders how the model saw the images among media."""
    return [
        generation_pb2.SeenImage(
            width=placement.source.width,
            height=placement.source.height,
            orientation=placement.source.orientation,
            seen=_render_box(*placement.seen),
            seen_width=placement.shown[1],
            seen_height=placement.shown[0],
            num_tiles=medium.num_tiles,
            first_token=medium.span.start,
            tokens=medium.span.num_tokens,
        )
        for medium in media
        if (placement := medium.placement) is not None
    ]


def _render_grounding(grounding: Grounding) -> generation_pb2.Grounding:
    rendered = generation_pb2.Grounding(label=grounding.label, image_index=grounding.image_index)
    match grounding.corners:
        case ((x, y),):
            rendered.point.CopyFrom(generation_pb2.Point(x=_rounded(x), y=_rounded(y)))
        case corners:
            rendered.box.CopyFrom(_render_box(*corners))
    return rendered


def _render_box(upper_left: Point, lower_right: Point) -> generation_pb2.BoundingBox:
    (left, top), (right, bottom) = upper_left, lower_right
    return generation_pb2.BoundingBox(
        left=_rounded(left), top=_rounded(top), right=_rounded(right), bottom=_rounded(bottom)
    )


def _rounded(pixels: float) -> float:
    return round(pixels, 3)


def render_quote(quote: Quote) -> chat_pb2.Quote:
    """Renders what a request would cost."""
    quoted = chat_pb2.Quote(
        parts=[
            chat_pb2.QuotedPart(
                message_index=part.message_index,
                part_index=part.part_index,
                tokens=part.num_tokens,
                medium=None if part.medium is None else _render_medium(part.medium, part.tier),
            )
            for part in quote.parts
        ],
    )
    if (expected := quote.first_token) is not None:
        quoted.first_token_milliseconds = _milliseconds(expected.seconds)
        quoted.first_token_stages.CopyFrom(_render_stages(expected))
    return quoted


def _render_timings(timings: Timings) -> generation_pb2.Timings:
    return generation_pb2.Timings(
        first_token_milliseconds=_milliseconds(timings.first_token.seconds),
        first_token_stages=_render_stages(timings.first_token),
        decode_milliseconds=_milliseconds(timings.decode_seconds),
    )


def _render_stages(time: FirstTokenTime) -> generation_pb2.FirstTokenStages:
    return generation_pb2.FirstTokenStages(
        preparation_milliseconds=_milliseconds(time.preparation_seconds),
        fetch_milliseconds=_milliseconds(time.fetch_seconds),
        decode_media_milliseconds=_milliseconds(time.decode_media_seconds),
        queue_milliseconds=_milliseconds(time.queue_seconds),
        encode_milliseconds=_milliseconds(time.encode_seconds),
        prefill_milliseconds=_milliseconds(time.prefill_seconds),
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def with_usage(chunk: Message | TextChunk, usage: Usage) -> Any:
    """Returns a message of a stream with the usage so far."""
    message: Any = chunk.copy() if isinstance(chunk, TextChunk) else chunk
    message.usage.CopyFrom(render_usage(usage))
    return message


def render_finish_reason(reason: FinishReason | None) -> generation_pb2.FinishReason | None:
    """Renders a finish reason; None for a completion that goes on."""
    return None if reason is None else _FINISH_REASONS[reason]


def render_usage(usage: Usage) -> generation_pb2.Usage:
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=render_prompt_details(usage.media_tokens, cached_tokens=usage.cached_tokens),
        media_usage=None if usage.media_usage is None else _render_media_usage(usage.media_usage, usage),
        completion_tokens_details=generation_pb2.CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        timings=None if usage.timings is None else _render_timings(usage.timings),
    )


def render_prompt_logprobs(deltas: Iterable[Delta], num_top: int | None = None) -> list[generation_pb2.PromptLogprobs]:
    """Renders the log-probabilities of a completion's prompt, with `num_top` of the most likely tokens, or all."""
    return [_render_prompt_token(token, token.top[:num_top]) for delta in deltas for token in delta.prompt_tokens]


def _render_prompt_token(token: TokenText, top: Sequence[TopToken]) -> generation_pb2.PromptLogprobs:
    rendered = generation_pb2.PromptLogprobs()
    for rank, other in enumerate(top, 1):
        _set_entry(rendered.tokens[other.token_id], other.logprob, rank, other.text)
    if token.rank:
        _set_entry(rendered.tokens[token.token_id], token.logprob, token.rank, token.text)
    return rendered


def _set_entry(entry: generation_pb2.PromptTokenLogprob, logprob: float, rank: int, text: str) -> None:
    entry.logprob, entry.rank, entry.decoded_token = logprob, rank, text


def _render_media_usage(media: MediaUsage, usage: Usage) -> generation_pb2.MediaUsage:
    return generation_pb2.MediaUsage(
        fetched_files=media.num_fetched,
        fetch_cache_hits=media.num_fetch_cache_hits,
        decoded_media=media.num_decoded,
        decode_cache_hits=media.num_decode_cache_hits,
        fetch_milliseconds=_milliseconds(media.fetch_seconds),
        decode_milliseconds=_milliseconds(media.decode_seconds),
        encoded_media=usage.num_encoded_media,
        encoder_cache_hits=usage.encoder_cache_hits,
        media=map(_render_medium, usage.media, usage.cache_tiers),
    )


def _render_medium(medium: PromptMedium, tier: CacheTier) -> generation_pb2.MediumUsage:
    return generation_pb2.MediumUsage(
        modality=MODALITIES[medium.span.kind],
        tokens=medium.span.num_tokens,
        cache_tier=_CACHE_TIERS[tier],
        width=medium.width,
        height=medium.height,
        num_tiles=medium.num_tiles,
        num_frames=medium.num_frames,
        duration_seconds=None if medium.duration_seconds is None else round(medium.duration_seconds, 3),
    )


def add_logprobs(content: Any, tokens: Iterable[TokenText]) -> None:
    """Adds tokens to a repeated TokenLogprob in place: a message that is built apart is copied into what holds it."""
    for token in tokens:
        rendered = content.add(token=token.text, logprob=token.logprob, bytes=token.bytes)
        for top in token.top:
            alternative = rendered.top_logprobs.add()
            alternative.CopyFrom(_spelled(top.text, top.bytes))
            alternative.logprob = top.logprob


@lru_cache(maxsize=4096)
def _spelled(text: str, data: bytes) -> generation_pb2.TopLogprob:
    """Returns a token without its log-probability. To copy it takes a quarter of the time to make it."""
    return generation_pb2.TopLogprob(token=text, bytes=data)
