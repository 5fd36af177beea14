"""Pieces of an answer → messages of the wire. Knows no engine and no JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.plan import MediaKind
from engine.protocol import FinishReason
from engine.text.assembler import TokenText
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2
from server.completion import ClipFrames, Piece, TokenCounts

_FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all messages of an answer have in common."""

    id: str
    created: int
    """Seconds since 1970-01-01 UTC."""
    model: str


def render_response(
    head: AnswerHead, pieces: Sequence[Piece], *, logprobs: bool
) -> chat_pb2.CreateChatCompletionResponse:
    """A whole answer from all of its pieces, of which there is at least one."""
    last = pieces[-1]
    message = chat_pb2.AssistantMessage(
        role=content_pb2.ROLE_ASSISTANT, content="".join(piece.text for piece in pieces)
    )
    tokens = [token for piece in pieces for token in piece.tokens]
    choice = chat_pb2.Choice(
        index=0,
        message=message,
        logprobs=_render_logprobs(tokens) if logprobs else None,
        finish_reason=_FINISH_REASONS[last.finish] if last.finish else None,
    )
    return chat_pb2.CreateChatCompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[choice],
        usage=_render_usage(last.counts),
        clips=render_clips(last.clips),
    )


def render_chunk(head: AnswerHead, piece: Piece, *, first: bool) -> chat_pb2.StreamChatCompletionResponse:
    """One piece. The first carries the role, what is seen of clips, and content even when it is empty."""
    delta = chat_pb2.Delta(
        role=content_pb2.ROLE_ASSISTANT if first else None, content=piece.text if piece.text or first else None
    )
    choice = chat_pb2.ChunkChoice(
        index=0,
        delta=delta,
        logprobs=_render_logprobs(piece.tokens) if piece.tokens else None,
        finish_reason=_FINISH_REASONS[piece.finish] if piece.finish else None,
    )
    return chat_pb2.StreamChatCompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[choice],
        clips=render_clips(piece.clips) if first else None,
    )


def render_usage_chunk(head: AnswerHead, counts: TokenCounts) -> chat_pb2.StreamChatCompletionResponse:
    """The message without choices that ends a stream where the usage was asked for."""
    return chat_pb2.StreamChatCompletionResponse(
        id=head.id, created=head.created, model=head.model, usage=_render_usage(counts)
    )


def render_counts(media: Mapping[MediaKind, int], *, num_cached: int) -> generation_pb2.PromptTokensDetails:
    """A prompt's tokens by kind."""
    return generation_pb2.PromptTokensDetails(
        cached_tokens=num_cached,
        image_tokens=media.get(MediaKind.IMAGE, 0),
        video_tokens=media.get(MediaKind.VIDEO, 0),
    )


def render_clips(clips: Iterable[ClipFrames]) -> list[content_pb2.ClipFrames]:
    """What is seen of clips."""
    return [
        content_pb2.ClipFrames(
            num_frames=clip.num_frames,
            width=clip.width,
            height=clip.height,
            fps=clip.fps,
            frame_seconds=clip.frame_seconds,
        )
        for clip in clips
    ]


def _render_usage(counts: TokenCounts) -> generation_pb2.Usage:
    return generation_pb2.Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=render_counts(counts.media, num_cached=counts.cached),
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
