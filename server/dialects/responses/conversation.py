"""Turns the items of the Responses API into messages of ChatService.

An answer may be several items: reasoning, text, calls. They become one message of the assistant.
"""

from collections.abc import Iterable
from typing import Any

from glimpse.openai.v1 import responses_pb2
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import content_pb2

_ROLES = {
    responses_pb2.RESPONSE_ROLE_USER: content_pb2.ROLE_USER,
    responses_pb2.RESPONSE_ROLE_ASSISTANT: content_pb2.ROLE_ASSISTANT,
    responses_pb2.RESPONSE_ROLE_SYSTEM: content_pb2.ROLE_SYSTEM,
    responses_pb2.RESPONSE_ROLE_DEVELOPER: content_pb2.ROLE_DEVELOPER,
}


class ConversationWriter:
    """Appends messages to a request of ChatService."""

    def __init__(self, messages: Any, adapted: dict[str, str]) -> None:
        """`adapted`: gets the path of each message and its fields, and of what they were made of."""
        self._messages = messages
        self._adapted = adapted
        self._answer: content_pb2.Message | None = None
        """The message of the assistant that the next item may belong to."""

    def add_text(self, role: content_pb2.Role, text: str, path: str) -> None:
        """Appends a message of one text."""
        message = self._begin(role, path)
        self._adapted[f"{self._last}.content"] = path
        message.content.add(text=text)

    def add(self, item: responses_pb2.ResponseItem, path: str) -> None:
        """Appends an item. Raises InvalidRequest if it has a part that it cannot have."""
        match item.WhichOneof("item"):
            case "message":
                self._add_message(item.message, f"{path}.message")
            case "reasoning":
                self._add_reasoning(item.reasoning, f"{path}.reasoning")
            case "function_call":
                self._add_call(item.function_call, f"{path}.function_call")
            case "function_call_output":
                self._add_output(item.function_call_output, f"{path}.function_call_output")
            case _:
                raise InvalidRequest(path, "expected an item, got nothing", "missing_value")

    @property
    def _last(self) -> str:
        """Path of the last message."""
        return f"messages[{len(self._messages) - 1}]"

    def _begin(self, role: content_pb2.Role, path: str) -> content_pb2.Message:
        self._adapted[f"messages[{len(self._messages)}]"] = path
        message: content_pb2.Message = self._messages.add(role=role)
        self._answer = message if role == content_pb2.ROLE_ASSISTANT else None
        return message

    def _add_message(self, item: responses_pb2.ResponseMessage, path: str) -> None:
        role = _ROLES.get(item.role)
        if role is None:
            raise InvalidRequest(f"{path}.role", "expected 'user', 'assistant', 'system' or 'developer'")
        goes_on = role == content_pb2.ROLE_ASSISTANT and self._answer is not None and _only_thinks(self._answer)
        message = self._answer if goes_on and self._answer is not None else self._begin(role, path)
        self._add_parts(message, item.content, f"{path}.content")

    def _add_reasoning(self, item: responses_pb2.ResponseReasoning, path: str) -> None:
        texts = [_reasoning_text(part, f"{path}.content[{index}]") for index, part in enumerate(item.content)]
        if not texts:
            texts = ["\n".join(part.summary_text.text for part in item.summary)]
        if not any(texts):
            return
        message = self._answer
        if message is None or not _only_thinks(message):
            message = self._begin(content_pb2.ROLE_ASSISTANT, path)
        self._adapted[f"{self._last}.reasoning"] = path
        message.reasoning += "".join(texts)

    def _add_call(self, item: responses_pb2.ResponseFunctionCall, path: str) -> None:
        message = self._answer or self._begin(content_pb2.ROLE_ASSISTANT, path)
        call = f"{self._last}.tool_calls[{len(message.tool_calls)}]"
        self._adapted |= {
            f"{self._last}.tool_calls": path,
            call: path,
            f"{call}.id": f"{path}.call_id",
            f"{call}.function.name": f"{path}.name",
            f"{call}.function.arguments": f"{path}.arguments",
        }
        function = content_pb2.FunctionCall(name=item.name, arguments=item.arguments)
        message.tool_calls.add(id=item.call_id, function=function)

    def _add_output(self, item: responses_pb2.ResponseFunctionOutput, path: str) -> None:
        message = self._begin(content_pb2.ROLE_TOOL, path)
        self._adapted[f"{self._last}.tool_call_id"] = f"{path}.call_id"
        message.tool_call_id = item.call_id
        self._add_parts(message, item.output, f"{path}.output")

    def _add_parts(self, message: content_pb2.Message, parts: Iterable[responses_pb2.ResponsePart], path: str) -> None:
        self._adapted[f"{self._last}.content"] = path
        for index, part in enumerate(parts):
            self._add_part(message, part, f"{path}[{index}]")

    def _add_part(self, message: content_pb2.Message, part: responses_pb2.ResponsePart, path: str) -> None:
        own = f"{self._last}.content[{len(message.content)}]"
        self._adapted[own] = path
        match part.WhichOneof("part"):
            case "input_text":
                message.content.add(text=part.input_text.text)
            case "output_text":
                message.content.add(text=part.output_text.text)
            case "input_image":
                self._add_image(message.content.add().image, part.input_image, f"{own}.image", f"{path}.input_image")
            case "input_file":
                document, given = message.content.add().document, part.input_file
                document.detail = given.detail
                self._set_source(document.source, given, "file_data", f"{own}.document", f"{path}.input_file")
            case "input_audio":
                message.content.add(audio=part.input_audio.input_audio)
                self._adapted[f"{own}.audio"] = f"{path}.input_audio.input_audio"
            case "input_video":
                message.content.add(video=part.input_video.video_url)
                self._adapted[f"{own}.video"] = f"{path}.input_video.video_url"
            case _:
                raise InvalidRequest(path, "expected text, an image, a file, audio or a video", "unsupported")

    def _add_image(self, image: content_pb2.ImagePart, given: responses_pb2.ResponseImage, own: str, path: str) -> None:
        image.detail = given.detail
        self._set_source(image.source, given, "image_url", own, path)

    def _set_source(
        self,
        source: content_pb2.MediaSource,
        given: responses_pb2.ResponseImage | responses_pb2.ResponseFile,
        usual: str,
        own: str,
        path: str,
    ) -> None:
        """Sets the source of a part; `usual` is the member that errors about a missing one name."""
        name: Any = given.WhichOneof("source") or usual
        if name == "file_id":
            source.upload_id = given.file_id
        else:
            source.url = getattr(given, name)
        self._adapted[own] = path
        for field in ("source", "source.url", "source.upload_id"):
            self._adapted[f"{own}.{field}"] = f"{path}.{name}"


def _only_thinks(message: content_pb2.Message) -> bool:
    return not (message.content or message.tool_calls)


def _reasoning_text(part: responses_pb2.ResponsePart, path: str) -> str:
    match part.WhichOneof("part"):
        case "reasoning_text":
            return part.reasoning_text.text
        case "input_text":  # a bare string
            return part.input_text.text
        case _:
            raise InvalidRequest(path, "expected reasoning_text", "unsupported")
