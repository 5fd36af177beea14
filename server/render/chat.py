"""Pieces of an answer → messages of the wire. Knows no engine and no JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from glimpse.engine.text.assembler import TokenText
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.kind import MediaKind
from glimpse.server.generation.completion import Ending
from glimpse.server.generation.generator import Piece, TokenCounts
from glimpse.server.generation.prompts import VideoFrames
from glimpse.server.request import ChatRequest
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2

_FINISH_REASONS = {
    Ending.STOP: generation_pb2.FINISH_REASON_STOP,
    Ending.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    Ending.TOOL_CALLS: generation_pb2.FINISH_REASON_TOOL_CALLS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all messages of an answer have in common."""

    id: str
    created: int
    """Seconds since 1970-01-01 UTC."""
    model: str
    names_tier: bool
    """They tell the service tier."""

    @property
    def service_tier(self) -> chat_pb2.ServiceTier | None:
        """The one there is, where it is told."""
        return chat_pb2.SERVICE_TIER_DEFAULT if self.names_tier else None


def render_response(
    head: AnswerHead, request: ChatRequest, pieces: Sequence[Piece]
) -> chat_pb2.CreateChatCompletionResponse:
    """Whole answers from all of their pieces, of which there is at least one of each."""
    by_answer: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_answer.setdefault(piece.index, []).append(piece)
    with_logprobs = request.answers.sampling.logprobs is not None
    return chat_pb2.CreateChatCompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[_render_choice(index, by_answer[index], logprobs=with_logprobs) for index in sorted(by_answer)],
        usage=render_usage(pieces[-1].counts),
        videos=render_videos(pieces[-1].videos),
        metadata=request.metadata,
        service_tier=head.service_tier,
    )


def _render_choice(index: int, pieces: Sequence[Piece], *, logprobs: bool) -> chat_pb2.Choice:
    text = "".join(piece.text for piece in pieces)
    calls = _whole_calls(pieces)
    return chat_pb2.Choice(
        index=index,
        message=chat_pb2.AssistantMessage(
            role=content_pb2.ROLE_ASSISTANT, content=text if text or not calls else None, tool_calls=calls
        ),
        logprobs=_render_logprobs(token for piece in pieces for token in piece.tokens) if logprobs else None,
        finish_reason=render_ending(pieces[-1].ending),
    )


def _whole_calls(pieces: Iterable[Piece]) -> list[content_pb2.ToolCall]:
    calls: dict[int, content_pb2.ToolCall] = {}
    for delta in (call for piece in pieces for call in piece.calls):
        call = calls.setdefault(delta.index, content_pb2.ToolCall())
        call.id += delta.id or ""
        call.function.name += delta.name or ""
        call.function.arguments += delta.arguments
    return [calls[index] for index in sorted(calls)]


class ChunkRenderer:
    """The messages of one stream, in which the pieces of several answers may take turns."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._begun: set[int] = set()

    def render(self, piece: Piece) -> Iterator[chat_pb2.StreamChatCompletionResponse]:
        """A piece's messages, none where it has nothing to say.

        An answer's first message carries the role and what is seen of clips, its last nothing but why it ended.
        """
        first = piece.index not in self._begun
        # Text is held back that may become part of a character, a stop text or a call: a piece may be empty.
        if first or piece.text or piece.calls or piece.tokens:
            self._begun.add(piece.index)
            choice = chat_pb2.ChunkChoice(
                index=piece.index,
                delta=_render_delta(piece, first=first),
                logprobs=_render_logprobs(piece.tokens) if piece.tokens else None,
            )
            yield self._chunk(choice, piece.videos if first else ())
        if piece.ending is not None:
            end = chat_pb2.ChunkChoice(
                index=piece.index, delta=chat_pb2.Delta(), finish_reason=render_ending(piece.ending)
            )
            yield self._chunk(end)

    def _chunk(
        self, choice: chat_pb2.ChunkChoice, videos: Iterable[VideoFrames] = ()
    ) -> chat_pb2.StreamChatCompletionResponse:
        return chat_pb2.StreamChatCompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[choice],
            videos=render_videos(videos),
            service_tier=self._head.service_tier,
        )


def _render_delta(piece: Piece, *, first: bool) -> chat_pb2.Delta:
    """The first has content even when it is empty, unless it begins a call."""
    return chat_pb2.Delta(
        role=content_pb2.ROLE_ASSISTANT if first else None,
        content=piece.text if piece.text or (first and not piece.calls) else None,
        tool_calls=[
            chat_pb2.ToolCallDelta(
                index=call.index,
                id=call.id,
                function=chat_pb2.FunctionCallDelta(name=call.name, arguments=call.arguments),
            )
            for call in piece.calls
        ],
    )


def render_usage_chunk(head: AnswerHead, counts: TokenCounts) -> chat_pb2.StreamChatCompletionResponse:
    """The message without choices that ends a stream where the usage was asked for."""
    return chat_pb2.StreamChatCompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        usage=render_usage(counts),
        service_tier=head.service_tier,
    )


def render_counts(media: Mapping[MediaKind, int], *, num_cached: int) -> generation_pb2.PromptTokensDetails:
    """A prompt's tokens by kind."""
    return generation_pb2.PromptTokensDetails(
        cached_tokens=num_cached,
        image_tokens=media.get(MediaKind.IMAGE, 0),
        video_tokens=media.get(MediaKind.VIDEO, 0),
        audio_tokens=media.get(MediaKind.AUDIO, 0),
    )


def render_videos(videos: Iterable[VideoFrames]) -> list[content_pb2.SampledVideo]:
    """What is seen of clips."""
    return [
        content_pb2.SampledVideo(
            num_frames=clip.num_frames,
            width=clip.width,
            height=clip.height,
            fps=clip.fps,
            frame_seconds=clip.frame_seconds,
        )
        for clip in videos
    ]


def render_ending(ending: Ending | None) -> generation_pb2.FinishReason | None:
    """Why an answer ended; None where it goes on."""
    return None if ending is None else _FINISH_REASONS[ending]


def render_usage(counts: TokenCounts) -> generation_pb2.Usage:
    """What a request cost."""
    return generation_pb2.Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=render_counts(counts.media, num_cached=counts.cached),
        media_usage=None if counts.media_usage is None else _render_media_usage(counts.media_usage, counts),
    )


def _render_media_usage(usage: MediaUsage, counts: TokenCounts) -> generation_pb2.MediaUsage:
    return generation_pb2.MediaUsage(
        fetched_files=usage.num_fetched,
        fetch_cache_hits=usage.num_fetch_cache_hits,
        decoded_media=usage.num_decoded,
        decode_cache_hits=usage.num_decode_cache_hits,
        fetch_milliseconds=round(usage.fetch_seconds * 1000, 3),
        decode_milliseconds=round(usage.decode_seconds * 1000, 3),
        encoded_media=counts.encoded,
        encoder_cache_hits=counts.encodings_spared,
    )


def _render_logprobs(tokens: Iterable[TokenText]) -> generation_pb2.Logprobs:
    return generation_pb2.Logprobs(content=map(_render_token, tokens))


def _render_token(token: TokenText) -> generation_pb2.TokenLogprob:
    return generation_pb2.TokenLogprob(
        token=token.text,
        logprob=token.logprob,
        bytes=token.bytes,
        top_logprobs=[
            generation_pb2.TopLogprob(token=top.text, logprob=top.logprob, bytes=top.bytes) for top in token.top
        ],
    )
