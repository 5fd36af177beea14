"""Answers of `LLM` as protobuf messages of the caller's own types."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from glimpse.engine.protocol import sampling_params
from glimpse.engine.protocol.messages import FinishReason
from glimpse.engine.protocol.sampling_params import Grammar
from glimpse.offline.fields import InputError
from glimpse.offline.run import CompletionOutput, RequestOutput
from glimpse.offline.sampling_inputs import SamplingParams
from glimpse.server.parse.message_types.described_type import AnyReader, read_message
from glimpse.server.parse.message_types.descriptors import DescriptorError


def constrained(
    samplings: SamplingParams | Sequence[SamplingParams], answer: Any
) -> SamplingParams | Sequence[SamplingParams]:
    """Returns sampling parameters with which answers are messages of a class. Raises InputError."""
    if not (isinstance(answer, type) and issubclass(answer, Message)):
        raise InputError("answer", f"expected a protobuf message class, got {answer!r}")
    descriptor: Any = answer.DESCRIPTOR
    try:
        grammar = AnyReader(descriptor).grammar
    except DescriptorError as error:
        raise InputError("answer", f"cannot be enforced: {error}") from error
    if isinstance(samplings, Sequence):
        return [_with_grammar(each, grammar) for each in samplings]
    return _with_grammar(samplings, grammar)


def _with_grammar(sampling: Any, grammar: Grammar) -> Any:
    if not isinstance(sampling, sampling_params.SamplingParams):
        return sampling  # refused where all are checked
    if sampling.grammar is not None:
        raise InputError("answer", "cannot be combined with a grammar or structured_outputs of sampling_params")
    return replace(sampling, grammar=grammar)


def with_answers(outputs: Sequence[RequestOutput], answer: type[Message]) -> list[RequestOutput]:
    """Returns the outputs with their texts as messages, where they are not cut."""
    return [replace(output, outputs=[_with_answer(each, answer()) for each in output.outputs]) for output in outputs]


def _with_answer(output: CompletionOutput, message: Message) -> CompletionOutput:
    if output.finish_reason is FinishReason.LENGTH:
        return output
    try:
        return replace(output, answer=read_message(output.text, message))
    except ValueError:
        return output
