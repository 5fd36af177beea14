"""Responses with the parts that most callers need as properties; `response` has everything."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from glimpse.client.errors import AnswerError
from glimpse.v1 import chat_pb2, completion_pb2, content_pb2, embedding_pb2, generation_pb2, rerank_pb2

_MessageT = TypeVar("_MessageT", bound=Message)
_Response: TypeAlias = chat_pb2.CreateChatCompletionResponse | chat_pb2.StreamChatCompletionResponse


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. The properties are those of the first choice, unless `n` asks for several."""

    response: chat_pb2.CreateChatCompletionResponse
    """The whole response."""

    @property
    def text(self) -> str:
        """The text; empty where there are only tool calls."""
        return self.response.choices[0].message.content

    @property
    def reasoning(self) -> str:
        """What the model wrote between its reasoning tags, before the text."""
        return self.response.choices[0].message.reasoning

    @property
    def finish_reason(self) -> str:
        """ "stop", "length" or "tool_calls"."""
        return _finish_reason(self.response.choices[0].finish_reason)

    @property
    def tool_calls(self) -> Sequence[content_pb2.ToolCall]:
        """The tools that the model calls."""
        return self.response.choices[0].message.tool_calls

    @property
    def groundings(self) -> Sequence[generation_pb2.Grounding]:
        """The boxes and points in the text, in pixels of the image that was sent; with the option `grounding`."""
        return self.response.choices[0].groundings

    @property
    def usage(self) -> generation_pb2.Usage:
        """The numbers of tokens."""
        return self.response.usage

    def answer(self, kind: type[_MessageT]) -> _MessageT:
        """Returns the message of this type that the request asked for. Raises AnswerError if there is none."""
        return _answer(self.response, kind)


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """Texts that continue prompts. The properties are those of the first choice, unless they say otherwise."""

    response: completion_pb2.CreateCompletionResponse
    """The whole response."""

    @property
    def text(self) -> str:
        """The text."""
        return self.response.choices[0].text

    @property
    def texts(self) -> list[str]:
        """The texts of all choices: `n` of each prompt, in the order of the prompts."""
        return [choice.text for choice in self.response.choices]

    @property
    def finish_reason(self) -> str:
        """ "stop" or "length"."""
        return _finish_reason(self.response.choices[0].finish_reason)

    @property
    def usage(self) -> generation_pb2.Usage:
        """The numbers of tokens."""
        return self.response.usage


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a streamed answer. The properties are those of the chunk's first choice."""

    response: chat_pb2.StreamChatCompletionResponse
    """The whole chunk."""

    @property
    def text(self) -> str:
        """The text to append; empty in the last chunk, which carries the usage."""
        return "".join(choice.delta.content for choice in self.response.choices[:1])

    @property
    def reasoning(self) -> str:
        """The reasoning to append."""
        return "".join(choice.delta.reasoning for choice in self.response.choices[:1])

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length" or "tool_calls" in a choice's last chunk; None before it."""
        ended = [choice for choice in self.response.choices[:1] if choice.HasField("finish_reason")]
        return _finish_reason(ended[0].finish_reason) if ended else None

    @property
    def groundings(self) -> Sequence[generation_pb2.Grounding]:
        """The boxes and points in the whole text, in a choice's last chunk; with the option `grounding`."""
        return [each for choice in self.response.choices[:1] for each in choice.groundings]

    @property
    def usage(self) -> generation_pb2.Usage | None:
        """The numbers of tokens; only in the last chunk."""
        return self.response.usage if self.response.HasField("usage") else None

    def answer(self, kind: type[_MessageT]) -> _MessageT:
        """Returns the message of this type, which a choice's last chunk has. Raises AnswerError if there is none."""
        return _answer(self.response, kind)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Embeddings, in the order of the inputs."""

    response: embedding_pb2.CreateEmbeddingsResponse
    """The whole response."""

    @property
    def vectors(self) -> "list[array[float]]":
        """The values of each embedding, as float32; `numpy.asarray` takes them without a copy. If each token has a
        vector, one follows the other."""
        return [_float32s(each.values) for each in self.response.data]

    @property
    def token_vectors(self) -> "list[list[array[float]]]":
        """The vector of each token of each input, from models for late interaction; [] for an input from others."""
        return [
            [values[start : start + each.dimensions] for start in range(0, len(values), each.dimensions or 1)]
            if each.HasField("dimensions")
            else []
            for each, values in zip(self.response.data, self.vectors, strict=True)
        ]

    @property
    def usage(self) -> generation_pb2.Usage:
        """The numbers of tokens."""
        return self.response.usage


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents, best first."""

    response: rerank_pb2.RerankResponse
    """The whole response."""

    @property
    def results(self) -> Sequence[rerank_pb2.RerankResult]:
        """The best documents with their `index` among those sent and their `relevance_score`: 0 to 1, or for late
        interaction a sum over the query's tokens."""
        return self.response.results

    @property
    def usage(self) -> generation_pb2.Usage:
        """The numbers of tokens."""
        return self.response.usage


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores, in the order of the documents."""

    response: rerank_pb2.ScoreResponse
    """The whole response."""

    @property
    def scores(self) -> list[float]:
        """How well each document answers its query: 0 to 1, or for late interaction a sum over the query's tokens."""
        return [each.score for each in self.response.data]

    @property
    def usage(self) -> generation_pb2.Usage:
        """The numbers of tokens."""
        return self.response.usage


def _answer(response: _Response, kind: type[_MessageT]) -> _MessageT:
    choice, message = response.choices[0], kind()
    if not choice.HasField("answer"):
        reason = (
            choice.answer_error or f"There is no message; the answer ended with {_finish_reason(choice.finish_reason)}."
        )
        raise AnswerError(reason, response)
    if not choice.answer.Unpack(message):
        raise AnswerError(f"The answer is a {choice.answer.TypeName()}.", response)
    return message


def _float32s(data: bytes) -> "array[float]":
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _finish_reason(reason: generation_pb2.FinishReason) -> str:
    return generation_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
