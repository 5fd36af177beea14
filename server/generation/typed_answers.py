"""Delivers completions as messages of the type that a request describes. Independent of protobuf."""

from collections import defaultdict

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.protocol.messages import FinishReason
from glimpse.server.call.offload import run_sized
from glimpse.server.request import AnswerReader

_TIMES_TEXT = 8
"""Reading a text as a message takes about as long as other work on so many times its characters."""


class TypedAnswers:
    """Collects the texts of a request's completions."""

    def __init__(self, reader: AnswerReader, client: str) -> None:
        self._reader = reader
        self._client = client
        self._texts = defaultdict[int, list[str]](list)

    async def add(self, delta: Delta) -> None:
        """Adds a delta, and to a completion's last delta the message, or why there is none; with tool calls neither."""
        texts = self._texts[delta.index]
        texts.append(delta.text)
        if delta.finish is FinishReason.LENGTH:
            delta.answer_error = (
                "The answer is cut: it reached max_completion_tokens, or the end of the context window."
            )
        elif delta.finish is FinishReason.STOP:
            text = "".join(texts)
            try:
                delta.answer = await run_sized(self._client, _TIMES_TEXT * len(text), self._reader.read, text)
            except ValueError as error:
                delta.answer_error = str(error)
