"""Turns requests of the Messages API into those of ChatService."""

from collections.abc import Container, Iterable, Sequence
from typing import TypeAlias

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2

Request: TypeAlias = anthropic_pb2.CreateMessageRequest | anthropic_pb2.CountMessageTokensRequest
ChatRequest: TypeAlias = chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest

_ROLES = {
    anthropic_pb2.SPEAKER_USER: content_pb2.ROLE_USER,
    anthropic_pb2.SPEAKER_ASSISTANT: content_pb2.ROLE_ASSISTANT,
    anthropic_pb2.SPEAKER_SYSTEM: content_pb2.ROLE_SYSTEM,
}
_EFFORTS = {
    anthropic_pb2.EFFORT_UNSPECIFIED: chat_pb2.REASONING_EFFORT_UNSPECIFIED,
    anthropic_pb2.EFFORT_LOW: chat_pb2.REASONING_EFFORT_LOW,
    anthropic_pb2.EFFORT_MEDIUM: chat_pb2.REASONING_EFFORT_MEDIUM,
    anthropic_pb2.EFFORT_HIGH: chat_pb2.REASONING_EFFORT_HIGH,
    anthropic_pb2.EFFORT_XHIGH: chat_pb2.REASONING_EFFORT_XHIGH,
    anthropic_pb2.EFFORT_MAX: chat_pb2.REASONING_EFFORT_MAX,
}
_CHOICES = {
    "auto": chat_pb2.TOOL_CHOICE_MODE_AUTO,
    "any": chat_pb2.TOOL_CHOICE_MODE_REQUIRED,
    "none": chat_pb2.TOOL_CHOICE_MODE_NONE,
}
_PARTS = ("text", "image", "video", "audio")
"""Kinds of blocks that become parts of a message each."""


def to_chat(
    request: anthropic_pb2.CreateMessageRequest, adapted: dict[str, str]
) -> chat_pb2.CreateChatCompletionRequest:
    """Returns the request to complete the conversation.

    Args:
        adapted: gets the path of each field of the result, and of what it was made of.

    Raises:
        InvalidRequest: a block stands where it cannot.
    """
    chat = chat_pb2.CreateChatCompletionRequest()
    _add_prompt(request, chat, adapted)
    _add_sampling(request, chat.generation, adapted)
    _add_format(request.output_config, chat, adapted)
    _add_thinking(request.thinking, chat, adapted)
    choice = request.tool_choice
    if request.tools and any(each.disable_parallel_tool_use for each in (choice.auto, choice.any, choice.tool)):
        chat.parallel_tool_calls = False
    return chat


def shows_thinking(thinking: anthropic_pb2.Thinking) -> bool:
    """Returns whether an answer has the text of what the model thinks."""
    display = thinking.enabled.display or thinking.adaptive.display
    return display != anthropic_pb2.THINKING_DISPLAY_OMITTED


def to_count(request: anthropic_pb2.CountMessageTokensRequest, adapted: dict[str, str]) -> chat_pb2.CountTokensRequest:
    """Returns the request to count the conversation's tokens. The arguments are those of `to_chat`."""
    count = chat_pb2.CountTokensRequest()
    _add_prompt(request, count, adapted)
    return count


def _add_prompt(request: Request, chat: ChatRequest, adapted: dict[str, str]) -> None:
    if request.HasField("model"):
        chat.model = request.model
    messages = _Messages(chat, adapted)
    messages.add_system(request.system)
    for index, message in enumerate(request.messages):
        messages.add(message, f"messages[{index}]")
    if chat.messages and chat.messages[-1].role == content_pb2.ROLE_ASSISTANT:
        chat.continue_final_message = True
    _add_tools(request, chat, adapted)
    _add_effort(request, chat, adapted)


class _Messages:
    """Appends messages to a request of ChatService."""

    def __init__(self, chat: ChatRequest, adapted: dict[str, str]) -> None:
        self._messages = chat.messages
        self._adapted = adapted

    def add_system(self, blocks: Sequence[anthropic_pb2.SystemBlock]) -> None:
        """Appends what the model is told before the conversation, if anything."""
        if blocks:
            message = self._begin(content_pb2.ROLE_SYSTEM, "system")
            message.content.extend(content_pb2.ContentPart(text=block.text.text) for block in blocks)

    def add(self, message: anthropic_pb2.InputMessage, path: str) -> None:
        """Appends a message: each result of a tool becomes one of its own, what stands between them another."""
        role = _ROLES.get(message.role)
        if role is None:
            raise InvalidRequest(f"{path}.role", "expected 'user', 'assistant' or 'system'")
        current: content_pb2.Message | None = None
        for index, block in enumerate(message.content):
            at = f"{path}.content[{index}]"
            if block.WhichOneof("block") == "tool_result":
                if role != content_pb2.ROLE_USER:
                    raise InvalidRequest(at, "only messages of the user can have the results of tools")
                self._add_result(block.tool_result, at)
                current = None
            else:
                current = current or self._begin(role, path)
                self._add_block(current, block, at)
        if not message.content:
            self._begin(role, path)

    def _begin(self, role: content_pb2.Role, path: str) -> content_pb2.Message:
        self._adapted[f"messages[{len(self._messages)}]"] = path
        return self._messages.add(role=role)

    def _add_result(self, result: anthropic_pb2.ToolResultBlock, path: str) -> None:
        message = self._begin(content_pb2.ROLE_TOOL, path)
        message.tool_call_id = result.tool_use_id
        own = f"messages[{len(self._messages) - 1}]"
        self._adapted[f"{own}.tool_call_id"] = f"{path}.tool_result.tool_use_id"
        self._add_content(message, result.content, f"{path}.tool_result.content", {*_PARTS, "document"})

    def _add_content(
        self,
        message: content_pb2.Message,
        blocks: Iterable[anthropic_pb2.InputBlock],
        path: str,
        kinds: Container[str | None],
    ) -> None:
        """Appends the parts of a result or of a document, which have blocks of these kinds alone."""
        for index, block in enumerate(blocks):
            at = f"{path}[{index}]"
            if block.WhichOneof("block") not in kinds:
                expected = "text, an image, a video, audio" + (" or a document" if "document" in kinds else "")
                raise InvalidRequest(at, f"expected {expected}", "unsupported")
            self._add_block(message, block, at)

    def _add_block(self, message: content_pb2.Message, block: anthropic_pb2.InputBlock, path: str) -> None:
        own = f"messages[{len(self._messages) - 1}]"
        match block.WhichOneof("block"):
            case "thinking":
                self._adapted[f"{own}.reasoning"] = f"{path}.thinking.thinking"
                message.reasoning += block.thinking.thinking
            case "tool_use":
                call = f"{own}.tool_calls[{len(message.tool_calls)}]"
                self._adapted[call] = f"{path}.tool_use"
                self._adapted[f"{own}.tool_calls"] = path
                self._adapted[f"{call}.function.name"] = f"{path}.tool_use.name"
                self._adapted[f"{call}.function.arguments"] = f"{path}.tool_use.input"
                use = block.tool_use
                function = content_pb2.FunctionCall(name=use.name, arguments=use.input)
                message.tool_calls.add(id=use.id, function=function)
            case "document":
                self._add_document(message, block.document, path)
            case "text":
                self._adapted[f"{own}.content[{len(message.content)}]"] = path
                message.content.add(text=block.text.text)
            case "image" | "video" | "audio" as kind:
                self._adapted[f"{own}.content[{len(message.content)}]"] = path
                _set_source(getattr(message.content.add(), kind).source, getattr(block, kind).source)
            case _:
                raise InvalidRequest(path, "expected a block, got nothing", "missing_value")

    def _add_document(self, message: content_pb2.Message, document: anthropic_pb2.DocumentBlock, path: str) -> None:
        head = [text for text in (document.title, document.context) if text]
        if head:
            message.content.add(text="".join(f"{text}\n" for text in head))
        match document.source.WhichOneof("source"):
            case "content":
                blocks = document.source.content.content
                self._add_content(message, blocks, f"{path}.document.source.content.content", _PARTS)
            case "base64" | "url" | "file":
                self._adapted[f"messages[{len(self._messages) - 1}].content[{len(message.content)}]"] = path
                _set_source(message.content.add().document.source, document.source)
            case _:
                message.content.add(text=document.source.text.data)


def _set_source(
    source: content_pb2.MediaSource, given: anthropic_pb2.BlockSource | anthropic_pb2.DocumentSource
) -> None:
    match given.WhichOneof("source"):
        case "base64":
            source.data = given.base64.data
        case "url":
            source.url = given.url.url
        case "file":
            source.upload_id = given.file.file_id
        case _:
            source.SetInParent()


def _add_tools(request: Request, chat: ChatRequest, adapted: dict[str, str]) -> None:
    for index, tool in enumerate(request.tools):
        own = f"tools[{index}].function"
        adapted[own] = f"tools[{index}]"
        adapted[f"{own}.parameters"] = f"tools[{index}].input_schema"
        function = chat_pb2.FunctionDefinition(name=tool.name, parameters=tool.input_schema, strict=tool.strict)
        if tool.HasField("description"):
            function.description = tool.description
        chat.tools.add(function=function)
    kind = request.tool_choice.WhichOneof("choice")
    if kind == "tool":
        chat.tool_choice.named_tool.function.name = request.tool_choice.tool.name
        adapted["tool_choice.named_tool.function.name"] = "tool_choice.tool.name"
    elif kind is not None:
        chat.tool_choice.mode = _CHOICES[kind]


def _add_effort(request: Request, chat: ChatRequest, adapted: dict[str, str]) -> None:
    effort = _EFFORTS.get(request.output_config.effort)
    if effort is None:
        raise InvalidRequest("output_config.effort", "expected a known effort")
    adapted["reasoning_effort"] = "output_config.effort"
    if request.thinking.HasField("disabled"):
        effort = chat_pb2.REASONING_EFFORT_NONE
        adapted["reasoning_effort"] = "thinking"
    elif request.thinking.HasField("enabled"):
        chat.chat_template_kwargs = '{"enable_thinking": true}'
    chat.reasoning_effort = effort


def _add_thinking(
    thinking: anthropic_pb2.Thinking, chat: chat_pb2.CreateChatCompletionRequest, adapted: dict[str, str]
) -> None:
    if thinking.HasField("enabled"):
        chat.thinking_token_budget = thinking.enabled.budget_tokens
    adapted |= {"thinking_token_budget": "thinking.enabled.budget_tokens"}


def _add_sampling(
    request: anthropic_pb2.CreateMessageRequest, options: generation_pb2.GenerationOptions, adapted: dict[str, str]
) -> None:
    options.max_completion_tokens = request.max_tokens
    options.stop.extend(request.stop_sequences)
    for name in ("temperature", "top_p", "top_k"):
        if request.HasField(name):
            setattr(options, name, getattr(request, name))
        adapted[f"generation.{name}"] = name
    adapted["generation.max_completion_tokens"] = "max_tokens"
    adapted["generation.stop"] = "stop_sequences"


def _add_format(
    config: anthropic_pb2.OutputConfig, chat: chat_pb2.CreateChatCompletionRequest, adapted: dict[str, str]
) -> None:
    if config.HasField("format"):
        chat.response_format.json_schema.name = "answer"
        chat.response_format.json_schema.schema = config.format.json_schema.schema
        adapted["response_format.json_schema"] = "output_config.format.json_schema"
