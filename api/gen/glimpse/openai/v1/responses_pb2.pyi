from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import chat_pb2 as _chat_pb2
from glimpse.v1 import content_pb2 as _content_pb2
from glimpse.v1 import generation_pb2 as _generation_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESPONSE_ROLE_UNSPECIFIED: _ClassVar[ResponseRole]
    RESPONSE_ROLE_USER: _ClassVar[ResponseRole]
    RESPONSE_ROLE_ASSISTANT: _ClassVar[ResponseRole]
    RESPONSE_ROLE_SYSTEM: _ClassVar[ResponseRole]
    RESPONSE_ROLE_DEVELOPER: _ClassVar[ResponseRole]

class ResponseStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESPONSE_STATUS_UNSPECIFIED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_IN_PROGRESS: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_COMPLETED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_INCOMPLETE: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_FAILED: _ClassVar[ResponseStatus]
RESPONSE_ROLE_UNSPECIFIED: ResponseRole
RESPONSE_ROLE_USER: ResponseRole
RESPONSE_ROLE_ASSISTANT: ResponseRole
RESPONSE_ROLE_SYSTEM: ResponseRole
RESPONSE_ROLE_DEVELOPER: ResponseRole
RESPONSE_STATUS_UNSPECIFIED: ResponseStatus
RESPONSE_STATUS_IN_PROGRESS: ResponseStatus
RESPONSE_STATUS_COMPLETED: ResponseStatus
RESPONSE_STATUS_INCOMPLETE: ResponseStatus
RESPONSE_STATUS_FAILED: ResponseStatus

class CreateResponseRequest(_message.Message):
    __slots__ = ("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "text", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "include", "top_logprobs", "metadata", "prompt_cache_key", "service_tier", "user", "safety_identifier", "store", "previous_response_id")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SAFETY_IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    input: ResponseInput
    instructions: str
    max_output_tokens: int
    temperature: float
    top_p: float
    text: ResponseTextOptions
    tools: _containers.RepeatedCompositeFieldContainer[ResponseTool]
    tool_choice: ResponseToolChoice
    parallel_tool_calls: bool
    reasoning: ResponseReasoningOptions
    include: _containers.RepeatedScalarFieldContainer[str]
    top_logprobs: int
    metadata: _containers.ScalarMap[str, str]
    prompt_cache_key: str
    service_tier: _chat_pb2.ServiceTier
    user: str
    safety_identifier: str
    store: bool
    previous_response_id: str
    def __init__(self, model: _Optional[str] = ..., input: _Optional[_Union[ResponseInput, _Mapping]] = ..., instructions: _Optional[str] = ..., max_output_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., text: _Optional[_Union[ResponseTextOptions, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[ResponseTool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ResponseToolChoice, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., reasoning: _Optional[_Union[ResponseReasoningOptions, _Mapping]] = ..., include: _Optional[_Iterable[str]] = ..., top_logprobs: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., prompt_cache_key: _Optional[str] = ..., service_tier: _Optional[_Union[_chat_pb2.ServiceTier, str]] = ..., user: _Optional[str] = ..., safety_identifier: _Optional[str] = ..., store: _Optional[bool] = ..., previous_response_id: _Optional[str] = ...) -> None: ...

class CountInputTokensResponse(_message.Message):
    __slots__ = ("input_tokens",)
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ...) -> None: ...

class ResponseInput(_message.Message):
    __slots__ = ("text", "items")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    text: str
    items: ResponseItems
    def __init__(self, text: _Optional[str] = ..., items: _Optional[_Union[ResponseItems, _Mapping]] = ...) -> None: ...

class ResponseItems(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ResponseItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ResponseItem, _Mapping]]] = ...) -> None: ...

class ResponseItem(_message.Message):
    __slots__ = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    ITEM_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    message: ResponseMessage
    function_call: ResponseFunctionCall
    function_call_output: ResponseFunctionOutput
    reasoning: ResponseReasoning
    item_reference: ResponseItemReference
    def __init__(self, message: _Optional[_Union[ResponseMessage, _Mapping]] = ..., function_call: _Optional[_Union[ResponseFunctionCall, _Mapping]] = ..., function_call_output: _Optional[_Union[ResponseFunctionOutput, _Mapping]] = ..., reasoning: _Optional[_Union[ResponseReasoning, _Mapping]] = ..., item_reference: _Optional[_Union[ResponseItemReference, _Mapping]] = ...) -> None: ...

class ResponseItemReference(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ResponseMessage(_message.Message):
    __slots__ = ("id", "role", "status", "content")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    role: ResponseRole
    status: ResponseStatus
    content: _containers.RepeatedCompositeFieldContainer[ResponsePart]
    def __init__(self, id: _Optional[str] = ..., role: _Optional[_Union[ResponseRole, str]] = ..., status: _Optional[_Union[ResponseStatus, str]] = ..., content: _Optional[_Iterable[_Union[ResponsePart, _Mapping]]] = ...) -> None: ...

class ResponsePart(_message.Message):
    __slots__ = ("input_text", "input_image", "output_text", "reasoning_text", "input_audio", "input_video", "input_file")
    INPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_IMAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_FIELD_NUMBER: _ClassVar[int]
    INPUT_AUDIO_FIELD_NUMBER: _ClassVar[int]
    INPUT_VIDEO_FIELD_NUMBER: _ClassVar[int]
    INPUT_FILE_FIELD_NUMBER: _ClassVar[int]
    input_text: ResponseText
    input_image: ResponseImage
    output_text: ResponseOutputText
    reasoning_text: ResponseText
    input_audio: ResponseAudio
    input_video: ResponseVideo
    input_file: ResponseFile
    def __init__(self, input_text: _Optional[_Union[ResponseText, _Mapping]] = ..., input_image: _Optional[_Union[ResponseImage, _Mapping]] = ..., output_text: _Optional[_Union[ResponseOutputText, _Mapping]] = ..., reasoning_text: _Optional[_Union[ResponseText, _Mapping]] = ..., input_audio: _Optional[_Union[ResponseAudio, _Mapping]] = ..., input_video: _Optional[_Union[ResponseVideo, _Mapping]] = ..., input_file: _Optional[_Union[ResponseFile, _Mapping]] = ...) -> None: ...

class ResponseText(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ResponseOutputText(_message.Message):
    __slots__ = ("text", "annotations", "logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    annotations: _containers.RepeatedCompositeFieldContainer[ResponseAnnotation]
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    def __init__(self, text: _Optional[str] = ..., annotations: _Optional[_Iterable[_Union[ResponseAnnotation, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class ResponseAnnotation(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResponseImage(_message.Message):
    __slots__ = ("image_url", "file_id", "detail")
    IMAGE_URL_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    image_url: str
    file_id: str
    detail: _content_pb2.ImageDetail
    def __init__(self, image_url: _Optional[str] = ..., file_id: _Optional[str] = ..., detail: _Optional[_Union[_content_pb2.ImageDetail, str]] = ...) -> None: ...

class ResponseFile(_message.Message):
    __slots__ = ("file_id", "file_data", "file_url", "filename", "detail")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_DATA_FIELD_NUMBER: _ClassVar[int]
    FILE_URL_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    file_data: str
    file_url: str
    filename: str
    detail: _content_pb2.ImageDetail
    def __init__(self, file_id: _Optional[str] = ..., file_data: _Optional[str] = ..., file_url: _Optional[str] = ..., filename: _Optional[str] = ..., detail: _Optional[_Union[_content_pb2.ImageDetail, str]] = ...) -> None: ...

class ResponseAudio(_message.Message):
    __slots__ = ("input_audio",)
    INPUT_AUDIO_FIELD_NUMBER: _ClassVar[int]
    input_audio: _content_pb2.AudioPart
    def __init__(self, input_audio: _Optional[_Union[_content_pb2.AudioPart, _Mapping]] = ...) -> None: ...

class ResponseVideo(_message.Message):
    __slots__ = ("video_url",)
    VIDEO_URL_FIELD_NUMBER: _ClassVar[int]
    video_url: _content_pb2.VideoPart
    def __init__(self, video_url: _Optional[_Union[_content_pb2.VideoPart, _Mapping]] = ...) -> None: ...

class ResponseFunctionCall(_message.Message):
    __slots__ = ("id", "call_id", "name", "arguments", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ResponseStatus
    def __init__(self, id: _Optional[str] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., status: _Optional[_Union[ResponseStatus, str]] = ...) -> None: ...

class ResponseFunctionOutput(_message.Message):
    __slots__ = ("id", "call_id", "output", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: str
    call_id: str
    output: _containers.RepeatedCompositeFieldContainer[ResponsePart]
    status: ResponseStatus
    def __init__(self, id: _Optional[str] = ..., call_id: _Optional[str] = ..., output: _Optional[_Iterable[_Union[ResponsePart, _Mapping]]] = ..., status: _Optional[_Union[ResponseStatus, str]] = ...) -> None: ...

class ResponseReasoning(_message.Message):
    __slots__ = ("id", "summary", "content", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: str
    summary: _containers.RepeatedCompositeFieldContainer[ResponseSummary]
    content: _containers.RepeatedCompositeFieldContainer[ResponsePart]
    status: ResponseStatus
    def __init__(self, id: _Optional[str] = ..., summary: _Optional[_Iterable[_Union[ResponseSummary, _Mapping]]] = ..., content: _Optional[_Iterable[_Union[ResponsePart, _Mapping]]] = ..., status: _Optional[_Union[ResponseStatus, str]] = ...) -> None: ...

class ResponseSummary(_message.Message):
    __slots__ = ("summary_text",)
    SUMMARY_TEXT_FIELD_NUMBER: _ClassVar[int]
    summary_text: ResponseText
    def __init__(self, summary_text: _Optional[_Union[ResponseText, _Mapping]] = ...) -> None: ...

class ResponseTool(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: _chat_pb2.FunctionDefinition
    def __init__(self, function: _Optional[_Union[_chat_pb2.FunctionDefinition, _Mapping]] = ...) -> None: ...

class ResponseToolChoice(_message.Message):
    __slots__ = ("mode", "named_tool")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAMED_TOOL_FIELD_NUMBER: _ClassVar[int]
    mode: _chat_pb2.ToolChoiceMode
    named_tool: ResponseNamedTool
    def __init__(self, mode: _Optional[_Union[_chat_pb2.ToolChoiceMode, str]] = ..., named_tool: _Optional[_Union[ResponseNamedTool, _Mapping]] = ...) -> None: ...

class ResponseNamedTool(_message.Message):
    __slots__ = ("function", "allowed_tools")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    function: _chat_pb2.FunctionName
    allowed_tools: ResponseAllowedTools
    def __init__(self, function: _Optional[_Union[_chat_pb2.FunctionName, _Mapping]] = ..., allowed_tools: _Optional[_Union[ResponseAllowedTools, _Mapping]] = ...) -> None: ...

class ResponseAllowedTools(_message.Message):
    __slots__ = ("mode", "tools")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    mode: _chat_pb2.AllowedToolsMode
    tools: _containers.RepeatedCompositeFieldContainer[ResponseAllowedTool]
    def __init__(self, mode: _Optional[_Union[_chat_pb2.AllowedToolsMode, str]] = ..., tools: _Optional[_Iterable[_Union[ResponseAllowedTool, _Mapping]]] = ...) -> None: ...

class ResponseAllowedTool(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: _chat_pb2.FunctionName
    def __init__(self, function: _Optional[_Union[_chat_pb2.FunctionName, _Mapping]] = ...) -> None: ...

class ResponseTextOptions(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: ResponseFormatOptions
    def __init__(self, format: _Optional[_Union[ResponseFormatOptions, _Mapping]] = ...) -> None: ...

class ResponseFormatOptions(_message.Message):
    __slots__ = ("text", "json_object", "json_schema")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    text: _chat_pb2.Empty
    json_object: _chat_pb2.Empty
    json_schema: _chat_pb2.JsonSchema
    def __init__(self, text: _Optional[_Union[_chat_pb2.Empty, _Mapping]] = ..., json_object: _Optional[_Union[_chat_pb2.Empty, _Mapping]] = ..., json_schema: _Optional[_Union[_chat_pb2.JsonSchema, _Mapping]] = ...) -> None: ...

class ResponseReasoningOptions(_message.Message):
    __slots__ = ("effort",)
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    effort: _chat_pb2.ReasoningEffort
    def __init__(self, effort: _Optional[_Union[_chat_pb2.ReasoningEffort, str]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "created_at", "status", "completed_at", "error", "incomplete_details", "instructions", "max_output_tokens", "model", "output", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "usage", "user", "metadata", "previous_response_id")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_DETAILS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    SAFETY_IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    created_at: int
    status: ResponseStatus
    completed_at: int
    error: ResponseError
    incomplete_details: ResponseIncompleteDetails
    instructions: str
    max_output_tokens: int
    model: str
    output: _containers.RepeatedCompositeFieldContainer[ResponseItem]
    parallel_tool_calls: bool
    prompt_cache_key: str
    reasoning: ResponseReasoningOptions
    safety_identifier: str
    service_tier: _chat_pb2.ServiceTier
    temperature: float
    text: ResponseTextOptions
    tool_choice: ResponseToolChoice
    tools: _containers.RepeatedCompositeFieldContainer[ResponseTool]
    top_logprobs: int
    top_p: float
    usage: ResponseUsage
    user: str
    metadata: _containers.ScalarMap[str, str]
    previous_response_id: str
    def __init__(self, id: _Optional[str] = ..., created_at: _Optional[int] = ..., status: _Optional[_Union[ResponseStatus, str]] = ..., completed_at: _Optional[int] = ..., error: _Optional[_Union[ResponseError, _Mapping]] = ..., incomplete_details: _Optional[_Union[ResponseIncompleteDetails, _Mapping]] = ..., instructions: _Optional[str] = ..., max_output_tokens: _Optional[int] = ..., model: _Optional[str] = ..., output: _Optional[_Iterable[_Union[ResponseItem, _Mapping]]] = ..., parallel_tool_calls: _Optional[bool] = ..., prompt_cache_key: _Optional[str] = ..., reasoning: _Optional[_Union[ResponseReasoningOptions, _Mapping]] = ..., safety_identifier: _Optional[str] = ..., service_tier: _Optional[_Union[_chat_pb2.ServiceTier, str]] = ..., temperature: _Optional[float] = ..., text: _Optional[_Union[ResponseTextOptions, _Mapping]] = ..., tool_choice: _Optional[_Union[ResponseToolChoice, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[ResponseTool, _Mapping]]] = ..., top_logprobs: _Optional[int] = ..., top_p: _Optional[float] = ..., usage: _Optional[_Union[ResponseUsage, _Mapping]] = ..., user: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., previous_response_id: _Optional[str] = ...) -> None: ...

class GetResponseRequest(_message.Message):
    __slots__ = ("response_id", "stream")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    stream: bool
    def __init__(self, response_id: _Optional[str] = ..., stream: _Optional[bool] = ...) -> None: ...

class DeleteResponseRequest(_message.Message):
    __slots__ = ("response_id",)
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    def __init__(self, response_id: _Optional[str] = ...) -> None: ...

class DeleteResponseResponse(_message.Message):
    __slots__ = ("id", "deleted")
    ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    id: str
    deleted: bool
    def __init__(self, id: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class CancelResponseRequest(_message.Message):
    __slots__ = ("response_id",)
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    def __init__(self, response_id: _Optional[str] = ...) -> None: ...

class ListInputItemsRequest(_message.Message):
    __slots__ = ("response_id", "limit", "order", "after")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    limit: int
    order: str
    after: str
    def __init__(self, response_id: _Optional[str] = ..., limit: _Optional[int] = ..., order: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListInputItemsResponse(_message.Message):
    __slots__ = ("data", "first_id", "last_id", "has_more")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[ResponseItem]
    first_id: str
    last_id: str
    has_more: bool
    def __init__(self, data: _Optional[_Iterable[_Union[ResponseItem, _Mapping]]] = ..., first_id: _Optional[str] = ..., last_id: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class StoredResponse(_message.Message):
    __slots__ = ("input", "response")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedCompositeFieldContainer[ResponseItem]
    response: Response
    def __init__(self, input: _Optional[_Iterable[_Union[ResponseItem, _Mapping]]] = ..., response: _Optional[_Union[Response, _Mapping]] = ...) -> None: ...

class ResponseError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ResponseIncompleteDetails(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ResponseUsage(_message.Message):
    __slots__ = ("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    input_tokens_details: ResponseInputTokens
    output_tokens: int
    output_tokens_details: ResponseOutputTokens
    total_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., input_tokens_details: _Optional[_Union[ResponseInputTokens, _Mapping]] = ..., output_tokens: _Optional[int] = ..., output_tokens_details: _Optional[_Union[ResponseOutputTokens, _Mapping]] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class ResponseInputTokens(_message.Message):
    __slots__ = ("cached_tokens", "cache_write_tokens")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    cache_write_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ..., cache_write_tokens: _Optional[int] = ...) -> None: ...

class ResponseOutputTokens(_message.Message):
    __slots__ = ("reasoning_tokens",)
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reasoning_tokens: int
    def __init__(self, reasoning_tokens: _Optional[int] = ...) -> None: ...

class StreamResponseResponse(_message.Message):
    __slots__ = ("created", "in_progress", "output_item_added", "content_part_added", "output_text_delta", "output_text_done", "reasoning_text_delta", "reasoning_text_done", "function_call_arguments_delta", "function_call_arguments_done", "content_part_done", "output_item_done", "completed", "incomplete", "failed")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEM_ADDED_FIELD_NUMBER: _ClassVar[int]
    CONTENT_PART_ADDED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_ARGUMENTS_DELTA_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_ARGUMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_PART_DONE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEM_DONE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    created: ResponseEvent
    in_progress: ResponseEvent
    output_item_added: ResponseItemEvent
    content_part_added: ResponsePartEvent
    output_text_delta: ResponseTextDelta
    output_text_done: ResponseTextDone
    reasoning_text_delta: ResponseReasoningDelta
    reasoning_text_done: ResponseReasoningDone
    function_call_arguments_delta: ResponseArgumentsDelta
    function_call_arguments_done: ResponseArgumentsDone
    content_part_done: ResponsePartEvent
    output_item_done: ResponseItemEvent
    completed: ResponseEvent
    incomplete: ResponseEvent
    failed: ResponseEvent
    def __init__(self, created: _Optional[_Union[ResponseEvent, _Mapping]] = ..., in_progress: _Optional[_Union[ResponseEvent, _Mapping]] = ..., output_item_added: _Optional[_Union[ResponseItemEvent, _Mapping]] = ..., content_part_added: _Optional[_Union[ResponsePartEvent, _Mapping]] = ..., output_text_delta: _Optional[_Union[ResponseTextDelta, _Mapping]] = ..., output_text_done: _Optional[_Union[ResponseTextDone, _Mapping]] = ..., reasoning_text_delta: _Optional[_Union[ResponseReasoningDelta, _Mapping]] = ..., reasoning_text_done: _Optional[_Union[ResponseReasoningDone, _Mapping]] = ..., function_call_arguments_delta: _Optional[_Union[ResponseArgumentsDelta, _Mapping]] = ..., function_call_arguments_done: _Optional[_Union[ResponseArgumentsDone, _Mapping]] = ..., content_part_done: _Optional[_Union[ResponsePartEvent, _Mapping]] = ..., output_item_done: _Optional[_Union[ResponseItemEvent, _Mapping]] = ..., completed: _Optional[_Union[ResponseEvent, _Mapping]] = ..., incomplete: _Optional[_Union[ResponseEvent, _Mapping]] = ..., failed: _Optional[_Union[ResponseEvent, _Mapping]] = ...) -> None: ...

class ResponseEvent(_message.Message):
    __slots__ = ("response", "sequence_number")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    response: Response
    sequence_number: int
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseItemEvent(_message.Message):
    __slots__ = ("output_index", "item", "sequence_number")
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    output_index: int
    item: ResponseItem
    sequence_number: int
    def __init__(self, output_index: _Optional[int] = ..., item: _Optional[_Union[ResponseItem, _Mapping]] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponsePartEvent(_message.Message):
    __slots__ = ("item_id", "output_index", "content_index", "part", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    content_index: int
    part: ResponsePart
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., part: _Optional[_Union[ResponsePart, _Mapping]] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseTextDelta(_message.Message):
    __slots__ = ("item_id", "output_index", "content_index", "delta", "logprobs", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., delta: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseTextDone(_message.Message):
    __slots__ = ("item_id", "output_index", "content_index", "text", "logprobs", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseReasoningDelta(_message.Message):
    __slots__ = ("item_id", "output_index", "content_index", "delta", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., delta: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseReasoningDone(_message.Message):
    __slots__ = ("item_id", "output_index", "content_index", "text", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    content_index: int
    text: str
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., content_index: _Optional[int] = ..., text: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseArgumentsDelta(_message.Message):
    __slots__ = ("item_id", "output_index", "delta", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    delta: str
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., delta: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class ResponseArgumentsDone(_message.Message):
    __slots__ = ("item_id", "output_index", "name", "arguments", "sequence_number")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    name: str
    arguments: str
    sequence_number: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...
