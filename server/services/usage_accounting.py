"""Answers on their way out, with the call's record following along."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from glimpse.server.generation.generator import Completer, Piece
from glimpse.server.request import AnswerRequest
from glimpse.server.rpc.context import current_call


async def watched(completer: Completer, request: AnswerRequest) -> AsyncGenerator[Piece, None]:
    """The answers' pieces, within the call's deadline."""
    call = current_call()
    async with aclosing(completer.answer(request, call.request_id, deadline=call.deadline)) as pieces:
        async for piece in pieces:
            call.prompt_tokens, call.completion_tokens = piece.counts.prompt, piece.counts.completion
            yield piece
