"""Turns completions into messages and events of the Messages API."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.anthropic.v1.anthropic_pb2 import StreamMessageResponse
from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.protocol.messages import FinishReason
from glimpse.server.generation.usage import Usage
from glimpse.server.rpc.text_chunks import TextChunk, TextTemplate

_STOP_REASONS = {
    FinishReason.STOP: anthropic_pb2.STOP_REASON_END_TURN,
    FinishReason.LENGTH: anthropic_pb2.STOP_REASON_MAX_TOKENS,
    FinishReason.TOOL_CALLS: anthropic_pb2.STOP_REASON_TOOL_USE,
}
_NO_INPUT = "{}"


def render_message(
    head: anthropic_pb2.CreateMessageResponse, deltas: Iterable[Delta], usage: Usage, *, shows_thinking: bool
) -> None:
    """Adds a whole completion to a message that has its id and model. `shows_thinking`: see `EventRenderer`."""
    texts: list[list[str]] = []
    renderer = EventRenderer(head, usage, shows_thinking=shows_thinking)
    for event in (event for delta in deltas for event in renderer.render(delta)):
        if isinstance(event, TextChunk):
            texts[-1].append(event.text)
            continue
        match event.WhichOneof("event"):
            case "content_block_start":
                head.content.append(event.content_block_start.content_block)
                texts.append([])
            case "content_block_delta":
                delta = event.content_block_delta.delta
                if delta.HasField("signature_delta"):
                    head.content[-1].thinking.signature = delta.signature_delta.signature
                texts[-1].append(delta.thinking_delta.thinking or delta.input_json_delta.partial_json)
            case "message_delta":
                head.stop_reason = event.message_delta.delta.stop_reason
                if event.message_delta.delta.HasField("stop_sequence"):
                    head.stop_sequence = event.message_delta.delta.stop_sequence
                head.usage.CopyFrom(event.message_delta.usage)
            case _:
                pass
    for block, parts in zip(head.content, texts, strict=True):
        _set_text(block, "".join(parts))
    if head.content and head.content[-1].HasField("tool_use") and not _is_json(head.content[-1].tool_use.input):
        del head.content[-1]  # the completion ended within its arguments


def _set_text(block: anthropic_pb2.OutputBlock, text: str) -> None:
    match block.WhichOneof("block"):
        case "tool_use":
            block.tool_use.input = text or _NO_INPUT
        case "thinking":
            block.thinking.thinking = text
        case _:
            block.text.text = text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class EventRenderer:
    """Renders the events of one stream."""

    def __init__(self, head: anthropic_pb2.CreateMessageResponse, usage: Usage, *, shows_thinking: bool) -> None:
        """`shows_thinking`: whether blocks of thinking have their text, rather than only a signature."""
        self._head = head
        self._usage = usage
        self._shows_thinking = shows_thinking
        self._begun = False
        self._index = -1
        """Index of the last block."""
        self._open = ""
        """Kind of the block that may go on; empty if there is none."""
        self._calls_tools = False
        self._text: TextTemplate | None = None
        """The events that append to the open block of text."""
        self._thinking = hashlib.sha256()
        """The digest of the open block of thinking."""

    def render(self, delta: Delta) -> Iterator[StreamMessageResponse | TextChunk]:
        """Yields the events of a delta."""
        if not self._begun:
            self._begun = True
            start = anthropic_pb2.CreateMessageResponse(id=self._head.id, model=self._head.model, usage=self._counts())
            yield StreamMessageResponse(message_start=anthropic_pb2.MessageStart(message=start))
        if delta.reasoning:
            yield from self._continue("thinking", anthropic_pb2.OutputBlock(thinking=anthropic_pb2.ThinkingBlock()))
            self._thinking.update(delta.reasoning.encode())
            if self._shows_thinking:
                thinking = anthropic_pb2.ThinkingDelta(thinking=delta.reasoning)
                yield self._appended(anthropic_pb2.ContentDelta(thinking_delta=thinking))
        if delta.text:
            yield from self._continue("text", anthropic_pb2.OutputBlock(text=anthropic_pb2.TextBlock(text="")))
            yield TextChunk(self._text_template(), delta.text)
        for call in delta.tool_calls:
            if call.id is not None:
                use = anthropic_pb2.ToolUseBlock(id=call.id, name=call.name or "", input=_NO_INPUT)
                yield from self._end_block()
                yield from self._continue("tool_use", anthropic_pb2.OutputBlock(tool_use=use))
                self._calls_tools = True
            if call.arguments:
                arguments = anthropic_pb2.InputDelta(partial_json=call.arguments)
                yield self._appended(anthropic_pb2.ContentDelta(input_json_delta=arguments))
        if delta.finish is not None:
            yield from self._end_block()
            yield from self._end(delta.finish, delta.stop_string)

    def _continue(self, kind: str, block: anthropic_pb2.OutputBlock) -> Iterator[StreamMessageResponse]:
        """Begins a block unless one of this kind is open."""
        if self._open == kind:
            return
        yield from self._end_block()
        self._index += 1
        self._open, self._text, self._thinking = kind, None, hashlib.sha256()
        start = anthropic_pb2.BlockStart(index=self._index, content_block=block)
        yield StreamMessageResponse(content_block_start=start)

    def _end_block(self) -> Iterator[StreamMessageResponse]:
        """Ends the open block, if there is one."""
        if self._open == "thinking":
            signature = base64.b64encode(self._thinking.digest()).decode()
            yield self._appended(
                anthropic_pb2.ContentDelta(signature_delta=anthropic_pb2.SignatureDelta(signature=signature))
            )
        if self._open:
            self._open = ""
            yield StreamMessageResponse(content_block_stop=anthropic_pb2.BlockStop(index=self._index))

    def _end(self, finish: FinishReason, stop_string: str) -> Iterator[StreamMessageResponse]:
        if finish is FinishReason.STOP and self._calls_tools:  # OpenAI's reason for a call of the tool that was named
            finish = FinishReason.TOOL_CALLS
        reason = anthropic_pb2.STOP_REASON_STOP_SEQUENCE if stop_string else _STOP_REASONS[finish]
        end = anthropic_pb2.MessageEnd(stop_reason=reason, stop_sequence=stop_string or None)
        yield StreamMessageResponse(message_delta=anthropic_pb2.MessageDelta(delta=end, usage=self._counts()))
        yield StreamMessageResponse(message_stop=anthropic_pb2.MessageStop())

    def _appended(self, delta: anthropic_pb2.ContentDelta) -> StreamMessageResponse:
        return StreamMessageResponse(content_block_delta=anthropic_pb2.BlockDelta(index=self._index, delta=delta))

    def _text_template(self) -> TextTemplate:
        if self._text is None:
            message = self._appended(anthropic_pb2.ContentDelta(text_delta=anthropic_pb2.TextDelta()))
            self._text = TextTemplate(message, message.content_block_delta.delta.text_delta, "text")
        return self._text

    def _counts(self) -> anthropic_pb2.MessageUsage:
        usage = self._usage
        return anthropic_pb2.MessageUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            output_tokens_details=anthropic_pb2.OutputTokensDetails(thinking_tokens=usage.reasoning_tokens),
        )
