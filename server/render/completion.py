"""Pieces of continued texts → messages of the wire, in the form that OpenAI's older API has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from glimpse.engine.text.assembler import TokenText
from glimpse.server.generation.generator import Piece, TokenCounts
from glimpse.server.render.chat import render_ending, render_usage
from glimpse.v1 import completion_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionHead:
    """What all messages of an answer have in common."""

    id: str
    created: int
    """Seconds since 1970-01-01 UTC."""
    model: str


class CompletionRenderer:
    """The continuations of one request."""

    def __init__(self, head: CompletionHead, echoes: Sequence[str]) -> None:
        """`echoes` has for each continuation the text with which it begins."""
        self._head = head
        self._echoes = echoes
        self._num_characters: dict[int, int] = {}
        """Of the text of each continuation that has begun."""

    def response(self, pieces: Iterable[Piece], counts: TokenCounts) -> completion_pb2.CreateCompletionResponse:
        """All of it."""
        choices: dict[int, completion_pb2.CompletionChoice] = {}
        for piece in pieces:
            choice = choices.setdefault(piece.index, completion_pb2.CompletionChoice())
            new = self._choice(piece)
            # Merging appends lists, but replaces texts.
            new.text = choice.text + new.text
            choice.MergeFrom(new)
        return completion_pb2.CreateCompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[choices[index] for index in sorted(choices)],
            usage=render_usage(counts),
        )

    def chunk(self, piece: Piece) -> completion_pb2.StreamCompletionResponse | None:
        """One piece; None where it has nothing to say."""
        choice = self._choice(piece)
        if not (choice.text or choice.HasField("logprobs") or piece.ending):
            return None
        return completion_pb2.StreamCompletionResponse(
            id=self._head.id, created=self._head.created, model=self._head.model, choices=[choice]
        )

    def usage_chunk(self, counts: TokenCounts) -> completion_pb2.StreamCompletionResponse:
        """The message without choices that ends a stream where the usage was asked for."""
        return completion_pb2.StreamCompletionResponse(
            id=self._head.id, created=self._head.created, model=self._head.model, usage=render_usage(counts)
        )

    def _choice(self, piece: Piece) -> completion_pb2.CompletionChoice:
        echo = "" if piece.index in self._num_characters else self._echoes[piece.index]
        before = self._num_characters.get(piece.index, 0) + len(echo)
        self._num_characters[piece.index] = before + len(piece.text)
        return completion_pb2.CompletionChoice(
            index=piece.index,
            text=echo + piece.text,
            logprobs=_render_logprobs(piece.tokens, before) if piece.tokens else None,
            finish_reason=render_ending(piece.ending),
        )


def _render_logprobs(tokens: Iterable[TokenText], offset: int) -> completion_pb2.CompletionLogprobs:
    rendered = completion_pb2.CompletionLogprobs()
    for token in tokens:
        rendered.tokens.append(token.text)
        rendered.token_logprobs.append(token.logprob)
        # Most likely first; of two with one text the first stays.
        rendered.top_logprobs.add(logprobs={top.text: top.logprob for top in reversed(token.top)})
        rendered.text_offset.append(offset)
        offset += len(token.text)
    return rendered
