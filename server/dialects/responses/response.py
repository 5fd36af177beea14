"""Turns completions into responses and events of the Responses API."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText
from glimpse.engine.protocol.messages import FinishReason
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.openai.v1 import responses_pb2
from glimpse.openai.v1.responses_pb2 import ResponseStatus, StreamResponseResponse
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import CompletionHead, add_logprobs
from glimpse.server.rpc.text_chunks import TextChunk, TextTemplate
from glimpse.v1 import chat_pb2

_IN_PROGRESS = responses_pb2.RESPONSE_STATUS_IN_PROGRESS
_COMPLETED = responses_pb2.RESPONSE_STATUS_COMPLETED
_INCOMPLETE = responses_pb2.RESPONSE_STATUS_INCOMPLETE
_PREFIX = "resp_"
ITEM_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
"""Kind of item → what ids of such items begin with."""
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "text",
    "tool_choice",
    "user",
)
"""Fields of a request that its response repeats as they are."""
_NO_ARGUMENTS = "{}"


def begin_response(
    request: responses_pb2.CreateResponseRequest, head: CompletionHead, sampling: SamplingParams, name: str
) -> responses_pb2.Response:
    """Returns a response that is in progress, without output. `name`: see `response_name`."""
    response = responses_pb2.Response(
        id=_PREFIX + name,
        created_at=head.created,
        status=_IN_PROGRESS,
        model=head.model,
        parallel_tool_calls=request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True,
        service_tier=chat_pb2.SERVICE_TIER_DEFAULT if request.HasField("service_tier") else None,
        temperature=sampling.temperature,
        tools=request.tools,
        top_logprobs=sampling.logprobs or 0,
        top_p=sampling.top_p,
        metadata=request.metadata,
        **{name: getattr(request, name) for name in _ECHOED if request.HasField(name)},
    )
    if not response.HasField("tool_choice"):
        response.tool_choice.mode = chat_pb2.TOOL_CHOICE_MODE_AUTO
    if not response.text.HasField("format"):
        response.text.format.text.SetInParent()
    return response


def render_response(response: responses_pb2.Response, deltas: Iterable[Delta], usage: Usage) -> None:
    """Completes a response, of which nothing has been sent."""
    renderer = ResponseRenderer(response, usage)
    for delta in deltas:
        for _ in renderer.render(delta):
            pass  # the response has what the events tell


class ResponseRenderer:
    """Renders the events of one stream. The response grows with them."""

    def __init__(self, response: responses_pb2.Response, usage: Usage) -> None:
        """`response`: in progress, without output; see `begin_response`."""
        self._response = response
        self._usage = usage
        self._number = 0
        """Number of the next event."""
        self._open = ""
        """Kind of the last item, if it may go on; otherwise empty."""
        self._place: dict[str, Any] = {}
        """Where the last item stands, as events say it."""
        self._texts: list[str] = []
        """What the last item has of text, so far."""
        self._template: TextTemplate | None = None
        """The events that append to the last item, a message."""
        self._logprobs = responses_pb2.ResponseOutputText()
        """Has the log probabilities of the last item."""
        self._withheld: list[TokenText] = []

    @property
    def num_events(self) -> int:
        """How many events there have been."""
        return self._number

    def render(self, delta: Delta) -> Iterator[StreamResponseResponse | TextChunk]:
        """Yields the events of a delta."""
        if not self._number:
            yield self._event(created=self._snapshot())
            yield self._event(in_progress=self._snapshot())
        tokens = self._tokens_of_text(delta)
        if delta.reasoning:
            yield from self._continue("reasoning", responses_pb2.ResponsePart(reasoning_text={"text": ""}))
            self._texts.append(delta.reasoning)
            more = responses_pb2.ResponseReasoningDelta(**self._place, content_index=0, delta=delta.reasoning)
            yield self._event(reasoning_text_delta=more)
        if delta.text:
            yield from self._continue("message", responses_pb2.ResponsePart(output_text={"text": ""}))
            yield self._more_text(delta.text, tokens)
        for call in delta.tool_calls:
            if call.id is not None:
                yield from self._end_item(_COMPLETED)
                item = responses_pb2.ResponseFunctionCall(call_id=call.id, name=call.name or "")
                yield self._begin_item("function_call", responses_pb2.ResponseItem(function_call=item))
            if call.arguments:
                self._texts.append(call.arguments)
                more = responses_pb2.ResponseArgumentsDelta(**self._place, delta=call.arguments)
                yield self._event(function_call_arguments_delta=more)
        if delta.finish is not None:
            yield from self._end(delta.finish)

    def fail(self, code: str, message: str) -> Iterator[StreamResponseResponse]:
        """Yields the events that end a stream that fails."""
        yield from self._end_item(_INCOMPLETE)
        self._response.status = responses_pb2.RESPONSE_STATUS_FAILED
        self._response.error.CopyFrom(responses_pb2.ResponseError(code=code, message=message))
        yield self._event(failed=self._snapshot())

    def _end(self, finish: FinishReason) -> Iterator[StreamResponseResponse | TextChunk]:
        if not self._response.output:
            yield from self._continue("message", responses_pb2.ResponsePart(output_text={"text": ""}))
        if self._open == "message" and self._withheld:
            yield self._more_text("", self._withheld)
        is_cut = finish is FinishReason.LENGTH
        yield from self._end_item(_INCOMPLETE if is_cut else _COMPLETED)
        self._response.usage.CopyFrom(_render_usage(self._usage))
        if is_cut:
            self._response.status = _INCOMPLETE
            self._response.incomplete_details.reason = "max_output_tokens"
            yield self._event(incomplete=self._snapshot())
        else:
            self._response.status = _COMPLETED
            self._response.completed_at = int(time.time())
            yield self._event(completed=self._snapshot())

    def _continue(self, kind: str, part: responses_pb2.ResponsePart) -> Iterator[StreamResponseResponse]:
        """Begins an item with a part, unless one of this kind is open."""
        if self._open == kind:
            return
        yield from self._end_item(_COMPLETED)
        item = responses_pb2.ResponseItem()
        getattr(item, kind).SetInParent()
        if kind == "message":
            item.message.role = responses_pb2.RESPONSE_ROLE_ASSISTANT
        yield self._begin_item(kind, item)
        begun = responses_pb2.ResponsePartEvent(**self._place, content_index=0, part=part)
        yield self._event(content_part_added=begun)

    def _begin_item(self, kind: str, item: responses_pb2.ResponseItem) -> StreamResponseResponse:
        index = len(self._response.output)
        own: Any = getattr(item, kind)
        own.id = f"{ITEM_PREFIXES[kind]}_{self._response.id.removeprefix(_PREFIX)}_{index}"
        own.status = _IN_PROGRESS
        self._response.output.append(item)
        self._place = {"item_id": own.id, "output_index": index}
        self._open, self._texts, self._template = kind, [], None
        self._logprobs.Clear()
        begun = responses_pb2.ResponseItemEvent(output_index=index, item=item)
        return self._event(output_item_added=begun)

    def _end_item(self, status: ResponseStatus) -> Iterator[StreamResponseResponse]:
        """Ends the open item, if there is one."""
        if not self._open:
            return
        kind, text, item = self._open, "".join(self._texts), self._response.output[-1]
        self._open = ""
        getattr(item, kind).status = status
        match kind:
            case "function_call":
                arguments = text or (_NO_ARGUMENTS if status == _COMPLETED else "")
                item.function_call.arguments = arguments
                ended = responses_pb2.ResponseArgumentsDone(
                    **self._place, name=item.function_call.name, arguments=arguments
                )
                yield self._event(function_call_arguments_done=ended)
            case "reasoning":
                part = item.reasoning.content.add(reasoning_text=responses_pb2.ResponseText(text=text))
                ended = responses_pb2.ResponseReasoningDone(**self._place, content_index=0, text=text)
                yield self._event(reasoning_text_done=ended)
                yield self._end_part(part)
            case _:
                part = item.message.content.add(output_text=self._logprobs)
                part.output_text.text = text
                ended = responses_pb2.ResponseTextDone(
                    **self._place, content_index=0, text=text, logprobs=self._logprobs.logprobs
                )
                yield self._event(output_text_done=ended)
                yield self._end_part(part)
        yield self._event(
            output_item_done=responses_pb2.ResponseItemEvent(output_index=self._place["output_index"], item=item)
        )

    def _end_part(self, part: responses_pb2.ResponsePart) -> StreamResponseResponse:
        return self._event(content_part_done=responses_pb2.ResponsePartEvent(**self._place, content_index=0, part=part))

    def _more_text(self, text: str, tokens: Sequence[TokenText]) -> StreamResponseResponse | TextChunk:
        self._texts.append(text)
        if tokens:
            more = responses_pb2.ResponseTextDelta(**self._place, content_index=0, delta=text)
            add_logprobs(more.logprobs, tokens)
            self._logprobs.logprobs.extend(more.logprobs)
            return self._event(output_text_delta=more)
        if self._template is None:
            more = responses_pb2.ResponseTextDelta(**self._place, content_index=0)
            event = StreamResponseResponse(output_text_delta=more)
            self._template = TextTemplate(event, event.output_text_delta, "delta", "sequence_number")
        self._number += 1
        return TextChunk(self._template, text, self._number - 1)

    def _tokens_of_text(self, delta: Delta) -> Sequence[TokenText]:
        """Returns the tokens of a delta's text, those withheld before it included."""
        tokens = [*self._withheld, *delta.tokens]
        is_empty = not (delta.text or delta.reasoning or delta.tool_calls)
        self._withheld = tokens if is_empty else []
        if not delta.text:
            return ()
        return _last_tokens(tokens, delta.text) if delta.reasoning else tokens

    def _snapshot(self) -> responses_pb2.ResponseEvent:
        return responses_pb2.ResponseEvent(response=self._response)

    def _event(self, **event: Any) -> StreamResponseResponse:
        """Returns an event, numbered."""
        (body,) = event.values()
        body.sequence_number = self._number
        self._number += 1
        return StreamResponseResponse(**event)


def _last_tokens(tokens: Sequence[TokenText], text: str) -> Sequence[TokenText]:
    """Returns the tokens at the end that have a text."""
    missing = len(text.encode())
    for index in reversed(range(len(tokens))):
        missing -= len(tokens[index].bytes)
        if missing <= 0:
            return tokens[index:]
    return tokens


def _render_usage(usage: Usage) -> responses_pb2.ResponseUsage:
    return responses_pb2.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=responses_pb2.ResponseInputTokens(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=responses_pb2.ResponseOutputTokens(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
