from glimpse.anthropic.v1 import catalog_pb2 as _catalog_pb2
from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import media_pb2 as _media_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.api import httpbody_pb2 as _httpbody_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Speaker(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPEAKER_UNSPECIFIED: _ClassVar[Speaker]
    SPEAKER_USER: _ClassVar[Speaker]
    SPEAKER_ASSISTANT: _ClassVar[Speaker]
    SPEAKER_SYSTEM: _ClassVar[Speaker]

class ToolKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_KIND_UNSPECIFIED: _ClassVar[ToolKind]
    TOOL_KIND_CUSTOM: _ClassVar[ToolKind]

class ThinkingDisplay(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THINKING_DISPLAY_UNSPECIFIED: _ClassVar[ThinkingDisplay]
    THINKING_DISPLAY_SUMMARIZED: _ClassVar[ThinkingDisplay]
    THINKING_DISPLAY_OMITTED: _ClassVar[ThinkingDisplay]

class Effort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFORT_UNSPECIFIED: _ClassVar[Effort]
    EFFORT_LOW: _ClassVar[Effort]
    EFFORT_MEDIUM: _ClassVar[Effort]
    EFFORT_HIGH: _ClassVar[Effort]
    EFFORT_XHIGH: _ClassVar[Effort]
    EFFORT_MAX: _ClassVar[Effort]

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_END_TURN: _ClassVar[StopReason]
    STOP_REASON_MAX_TOKENS: _ClassVar[StopReason]
    STOP_REASON_STOP_SEQUENCE: _ClassVar[StopReason]
    STOP_REASON_TOOL_USE: _ClassVar[StopReason]
SPEAKER_UNSPECIFIED: Speaker
SPEAKER_USER: Speaker
SPEAKER_ASSISTANT: Speaker
SPEAKER_SYSTEM: Speaker
TOOL_KIND_UNSPECIFIED: ToolKind
TOOL_KIND_CUSTOM: ToolKind
THINKING_DISPLAY_UNSPECIFIED: ThinkingDisplay
THINKING_DISPLAY_SUMMARIZED: ThinkingDisplay
THINKING_DISPLAY_OMITTED: ThinkingDisplay
EFFORT_UNSPECIFIED: Effort
EFFORT_LOW: Effort
EFFORT_MEDIUM: Effort
EFFORT_HIGH: Effort
EFFORT_XHIGH: Effort
EFFORT_MAX: Effort
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_END_TURN: StopReason
STOP_REASON_MAX_TOKENS: StopReason
STOP_REASON_STOP_SEQUENCE: StopReason
STOP_REASON_TOOL_USE: StopReason

class CreateMessageRequest(_message.Message):
    __slots__ = ("model", "messages", "max_tokens", "system", "stop_sequences", "temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "output_config", "metadata", "service_tier")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[InputMessage]
    max_tokens: int
    system: _containers.RepeatedCompositeFieldContainer[SystemBlock]
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    temperature: float
    top_p: float
    top_k: int
    tools: _containers.RepeatedCompositeFieldContainer[InputTool]
    tool_choice: InputToolChoice
    thinking: Thinking
    output_config: OutputConfig
    metadata: RequestMetadata
    service_tier: str
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[InputMessage, _Mapping]]] = ..., max_tokens: _Optional[int] = ..., system: _Optional[_Iterable[_Union[SystemBlock, _Mapping]]] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[InputTool, _Mapping]]] = ..., tool_choice: _Optional[_Union[InputToolChoice, _Mapping]] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., output_config: _Optional[_Union[OutputConfig, _Mapping]] = ..., metadata: _Optional[_Union[RequestMetadata, _Mapping]] = ..., service_tier: _Optional[str] = ...) -> None: ...

class RequestMetadata(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class InputMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: Speaker
    content: _containers.RepeatedCompositeFieldContainer[InputBlock]
    def __init__(self, role: _Optional[_Union[Speaker, str]] = ..., content: _Optional[_Iterable[_Union[InputBlock, _Mapping]]] = ...) -> None: ...

class SystemBlock(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: TextBlock
    def __init__(self, text: _Optional[_Union[TextBlock, _Mapping]] = ...) -> None: ...

class InputBlock(_message.Message):
    __slots__ = ("text", "image", "document", "tool_use", "tool_result", "thinking", "video", "audio")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    text: TextBlock
    image: MediaBlock
    document: DocumentBlock
    tool_use: ToolUseBlock
    tool_result: ToolResultBlock
    thinking: ThinkingBlock
    video: MediaBlock
    audio: MediaBlock
    def __init__(self, text: _Optional[_Union[TextBlock, _Mapping]] = ..., image: _Optional[_Union[MediaBlock, _Mapping]] = ..., document: _Optional[_Union[DocumentBlock, _Mapping]] = ..., tool_use: _Optional[_Union[ToolUseBlock, _Mapping]] = ..., tool_result: _Optional[_Union[ToolResultBlock, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingBlock, _Mapping]] = ..., video: _Optional[_Union[MediaBlock, _Mapping]] = ..., audio: _Optional[_Union[MediaBlock, _Mapping]] = ...) -> None: ...

class TextBlock(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class MediaBlock(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: BlockSource
    def __init__(self, source: _Optional[_Union[BlockSource, _Mapping]] = ...) -> None: ...

class BlockSource(_message.Message):
    __slots__ = ("base64", "url", "file")
    BASE64_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    base64: EncodedFile
    url: FileUrl
    file: UploadedFile
    def __init__(self, base64: _Optional[_Union[EncodedFile, _Mapping]] = ..., url: _Optional[_Union[FileUrl, _Mapping]] = ..., file: _Optional[_Union[UploadedFile, _Mapping]] = ...) -> None: ...

class EncodedFile(_message.Message):
    __slots__ = ("media_type", "data")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class FileUrl(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class UploadedFile(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class DocumentBlock(_message.Message):
    __slots__ = ("source", "title", "context")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    source: DocumentSource
    title: str
    context: str
    def __init__(self, source: _Optional[_Union[DocumentSource, _Mapping]] = ..., title: _Optional[str] = ..., context: _Optional[str] = ...) -> None: ...

class DocumentSource(_message.Message):
    __slots__ = ("text", "content", "base64", "url", "file")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BASE64_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    text: DocumentText
    content: DocumentContent
    base64: EncodedFile
    url: FileUrl
    file: UploadedFile
    def __init__(self, text: _Optional[_Union[DocumentText, _Mapping]] = ..., content: _Optional[_Union[DocumentContent, _Mapping]] = ..., base64: _Optional[_Union[EncodedFile, _Mapping]] = ..., url: _Optional[_Union[FileUrl, _Mapping]] = ..., file: _Optional[_Union[UploadedFile, _Mapping]] = ...) -> None: ...

class DocumentText(_message.Message):
    __slots__ = ("media_type", "data")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: str
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[str] = ...) -> None: ...

class DocumentContent(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: _containers.RepeatedCompositeFieldContainer[InputBlock]
    def __init__(self, content: _Optional[_Iterable[_Union[InputBlock, _Mapping]]] = ...) -> None: ...

class ToolUseBlock(_message.Message):
    __slots__ = ("id", "name", "input")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    input: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., input: _Optional[str] = ...) -> None: ...

class ToolResultBlock(_message.Message):
    __slots__ = ("tool_use_id", "content")
    TOOL_USE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    tool_use_id: str
    content: _containers.RepeatedCompositeFieldContainer[InputBlock]
    def __init__(self, tool_use_id: _Optional[str] = ..., content: _Optional[_Iterable[_Union[InputBlock, _Mapping]]] = ...) -> None: ...

class ThinkingBlock(_message.Message):
    __slots__ = ("thinking", "signature")
    THINKING_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    thinking: str
    signature: str
    def __init__(self, thinking: _Optional[str] = ..., signature: _Optional[str] = ...) -> None: ...

class InputTool(_message.Message):
    __slots__ = ("type", "name", "description", "input_schema", "strict")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    type: ToolKind
    name: str
    description: str
    input_schema: str
    strict: bool
    def __init__(self, type: _Optional[_Union[ToolKind, str]] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class InputToolChoice(_message.Message):
    __slots__ = ("auto", "any", "tool", "none")
    AUTO_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    auto: AnyTool
    any: AnyTool
    tool: OneTool
    none: NoTool
    def __init__(self, auto: _Optional[_Union[AnyTool, _Mapping]] = ..., any: _Optional[_Union[AnyTool, _Mapping]] = ..., tool: _Optional[_Union[OneTool, _Mapping]] = ..., none: _Optional[_Union[NoTool, _Mapping]] = ...) -> None: ...

class AnyTool(_message.Message):
    __slots__ = ("disable_parallel_tool_use",)
    DISABLE_PARALLEL_TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    disable_parallel_tool_use: bool
    def __init__(self, disable_parallel_tool_use: _Optional[bool] = ...) -> None: ...

class OneTool(_message.Message):
    __slots__ = ("name", "disable_parallel_tool_use")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISABLE_PARALLEL_TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    name: str
    disable_parallel_tool_use: bool
    def __init__(self, name: _Optional[str] = ..., disable_parallel_tool_use: _Optional[bool] = ...) -> None: ...

class NoTool(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Thinking(_message.Message):
    __slots__ = ("enabled", "disabled", "adaptive")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    enabled: ThinkingBudget
    disabled: NoThinking
    adaptive: FreeThinking
    def __init__(self, enabled: _Optional[_Union[ThinkingBudget, _Mapping]] = ..., disabled: _Optional[_Union[NoThinking, _Mapping]] = ..., adaptive: _Optional[_Union[FreeThinking, _Mapping]] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("budget_tokens", "display")
    BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_FIELD_NUMBER: _ClassVar[int]
    budget_tokens: int
    display: ThinkingDisplay
    def __init__(self, budget_tokens: _Optional[int] = ..., display: _Optional[_Union[ThinkingDisplay, str]] = ...) -> None: ...

class NoThinking(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreeThinking(_message.Message):
    __slots__ = ("display",)
    DISPLAY_FIELD_NUMBER: _ClassVar[int]
    display: ThinkingDisplay
    def __init__(self, display: _Optional[_Union[ThinkingDisplay, str]] = ...) -> None: ...

class OutputConfig(_message.Message):
    __slots__ = ("effort", "format")
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    effort: Effort
    format: OutputFormat
    def __init__(self, effort: _Optional[_Union[Effort, str]] = ..., format: _Optional[_Union[OutputFormat, _Mapping]] = ...) -> None: ...

class OutputFormat(_message.Message):
    __slots__ = ("json_schema",)
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    json_schema: OutputSchema
    def __init__(self, json_schema: _Optional[_Union[OutputSchema, _Mapping]] = ...) -> None: ...

class OutputSchema(_message.Message):
    __slots__ = ("schema",)
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    schema: str
    def __init__(self, schema: _Optional[str] = ...) -> None: ...

class CreateMessageResponse(_message.Message):
    __slots__ = ("id", "model", "content", "stop_reason", "stop_sequence", "usage")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    content: _containers.RepeatedCompositeFieldContainer[OutputBlock]
    stop_reason: StopReason
    stop_sequence: str
    usage: MessageUsage
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., content: _Optional[_Iterable[_Union[OutputBlock, _Mapping]]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., stop_sequence: _Optional[str] = ..., usage: _Optional[_Union[MessageUsage, _Mapping]] = ...) -> None: ...

class OutputBlock(_message.Message):
    __slots__ = ("text", "tool_use", "thinking")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    text: TextBlock
    tool_use: ToolUseBlock
    thinking: ThinkingBlock
    def __init__(self, text: _Optional[_Union[TextBlock, _Mapping]] = ..., tool_use: _Optional[_Union[ToolUseBlock, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingBlock, _Mapping]] = ...) -> None: ...

class MessageUsage(_message.Message):
    __slots__ = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", "output_tokens_details")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_CREATION_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_READ_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    def __init__(self, input_tokens: _Optional[int] = ..., cache_creation_input_tokens: _Optional[int] = ..., cache_read_input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., output_tokens_details: _Optional[_Union[OutputTokensDetails, _Mapping]] = ...) -> None: ...

class OutputTokensDetails(_message.Message):
    __slots__ = ("thinking_tokens",)
    THINKING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    thinking_tokens: int
    def __init__(self, thinking_tokens: _Optional[int] = ...) -> None: ...

class StreamMessageResponse(_message.Message):
    __slots__ = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping")
    MESSAGE_START_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_DELTA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_STOP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DELTA_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_STOP_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    message_start: MessageStart
    content_block_start: BlockStart
    content_block_delta: BlockDelta
    content_block_stop: BlockStop
    message_delta: MessageDelta
    message_stop: MessageStop
    ping: Ping
    def __init__(self, message_start: _Optional[_Union[MessageStart, _Mapping]] = ..., content_block_start: _Optional[_Union[BlockStart, _Mapping]] = ..., content_block_delta: _Optional[_Union[BlockDelta, _Mapping]] = ..., content_block_stop: _Optional[_Union[BlockStop, _Mapping]] = ..., message_delta: _Optional[_Union[MessageDelta, _Mapping]] = ..., message_stop: _Optional[_Union[MessageStop, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class MessageStart(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: CreateMessageResponse
    def __init__(self, message: _Optional[_Union[CreateMessageResponse, _Mapping]] = ...) -> None: ...

class BlockStart(_message.Message):
    __slots__ = ("index", "content_block")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    index: int
    content_block: OutputBlock
    def __init__(self, index: _Optional[int] = ..., content_block: _Optional[_Union[OutputBlock, _Mapping]] = ...) -> None: ...

class BlockDelta(_message.Message):
    __slots__ = ("index", "delta")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    index: int
    delta: ContentDelta
    def __init__(self, index: _Optional[int] = ..., delta: _Optional[_Union[ContentDelta, _Mapping]] = ...) -> None: ...

class ContentDelta(_message.Message):
    __slots__ = ("text_delta", "input_json_delta", "thinking_delta", "signature_delta")
    TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_DELTA_FIELD_NUMBER: _ClassVar[int]
    THINKING_DELTA_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_DELTA_FIELD_NUMBER: _ClassVar[int]
    text_delta: TextDelta
    input_json_delta: InputDelta
    thinking_delta: ThinkingDelta
    signature_delta: SignatureDelta
    def __init__(self, text_delta: _Optional[_Union[TextDelta, _Mapping]] = ..., input_json_delta: _Optional[_Union[InputDelta, _Mapping]] = ..., thinking_delta: _Optional[_Union[ThinkingDelta, _Mapping]] = ..., signature_delta: _Optional[_Union[SignatureDelta, _Mapping]] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class InputDelta(_message.Message):
    __slots__ = ("partial_json",)
    PARTIAL_JSON_FIELD_NUMBER: _ClassVar[int]
    partial_json: str
    def __init__(self, partial_json: _Optional[str] = ...) -> None: ...

class ThinkingDelta(_message.Message):
    __slots__ = ("thinking",)
    THINKING_FIELD_NUMBER: _ClassVar[int]
    thinking: str
    def __init__(self, thinking: _Optional[str] = ...) -> None: ...

class SignatureDelta(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: str
    def __init__(self, signature: _Optional[str] = ...) -> None: ...

class BlockStop(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class MessageDelta(_message.Message):
    __slots__ = ("delta", "usage")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    delta: MessageEnd
    usage: MessageUsage
    def __init__(self, delta: _Optional[_Union[MessageEnd, _Mapping]] = ..., usage: _Optional[_Union[MessageUsage, _Mapping]] = ...) -> None: ...

class MessageEnd(_message.Message):
    __slots__ = ("stop_reason", "stop_sequence")
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    stop_reason: StopReason
    stop_sequence: str
    def __init__(self, stop_reason: _Optional[_Union[StopReason, str]] = ..., stop_sequence: _Optional[str] = ...) -> None: ...

class MessageStop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountMessageTokensRequest(_message.Message):
    __slots__ = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[InputMessage]
    system: _containers.RepeatedCompositeFieldContainer[SystemBlock]
    tools: _containers.RepeatedCompositeFieldContainer[InputTool]
    tool_choice: InputToolChoice
    thinking: Thinking
    output_config: OutputConfig
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[InputMessage, _Mapping]]] = ..., system: _Optional[_Iterable[_Union[SystemBlock, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[InputTool, _Mapping]]] = ..., tool_choice: _Optional[_Union[InputToolChoice, _Mapping]] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., output_config: _Optional[_Union[OutputConfig, _Mapping]] = ...) -> None: ...

class CountMessageTokensResponse(_message.Message):
    __slots__ = ("input_tokens",)
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ...) -> None: ...
