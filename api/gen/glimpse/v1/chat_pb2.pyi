from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import content_pb2 as _content_pb2
from glimpse.v1 import generation_pb2 as _generation_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVICE_TIER_UNSPECIFIED: _ClassVar[ServiceTier]
    SERVICE_TIER_AUTO: _ClassVar[ServiceTier]
    SERVICE_TIER_DEFAULT: _ClassVar[ServiceTier]
    SERVICE_TIER_FLEX: _ClassVar[ServiceTier]
    SERVICE_TIER_SCALE: _ClassVar[ServiceTier]
    SERVICE_TIER_PRIORITY: _ClassVar[ServiceTier]
    SERVICE_TIER_FAST: _ClassVar[ServiceTier]

class ReasoningEffort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASONING_EFFORT_UNSPECIFIED: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_NONE: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_MINIMAL: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_LOW: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_MEDIUM: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_HIGH: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_XHIGH: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_MAX: _ClassVar[ReasoningEffort]

class ToolChoiceMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CHOICE_MODE_UNSPECIFIED: _ClassVar[ToolChoiceMode]
    TOOL_CHOICE_MODE_NONE: _ClassVar[ToolChoiceMode]
    TOOL_CHOICE_MODE_AUTO: _ClassVar[ToolChoiceMode]
    TOOL_CHOICE_MODE_REQUIRED: _ClassVar[ToolChoiceMode]

class AllowedToolsMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALLOWED_TOOLS_MODE_UNSPECIFIED: _ClassVar[AllowedToolsMode]
    ALLOWED_TOOLS_MODE_AUTO: _ClassVar[AllowedToolsMode]
    ALLOWED_TOOLS_MODE_REQUIRED: _ClassVar[AllowedToolsMode]
SERVICE_TIER_UNSPECIFIED: ServiceTier
SERVICE_TIER_AUTO: ServiceTier
SERVICE_TIER_DEFAULT: ServiceTier
SERVICE_TIER_FLEX: ServiceTier
SERVICE_TIER_SCALE: ServiceTier
SERVICE_TIER_PRIORITY: ServiceTier
SERVICE_TIER_FAST: ServiceTier
REASONING_EFFORT_UNSPECIFIED: ReasoningEffort
REASONING_EFFORT_NONE: ReasoningEffort
REASONING_EFFORT_MINIMAL: ReasoningEffort
REASONING_EFFORT_LOW: ReasoningEffort
REASONING_EFFORT_MEDIUM: ReasoningEffort
REASONING_EFFORT_HIGH: ReasoningEffort
REASONING_EFFORT_XHIGH: ReasoningEffort
REASONING_EFFORT_MAX: ReasoningEffort
TOOL_CHOICE_MODE_UNSPECIFIED: ToolChoiceMode
TOOL_CHOICE_MODE_NONE: ToolChoiceMode
TOOL_CHOICE_MODE_AUTO: ToolChoiceMode
TOOL_CHOICE_MODE_REQUIRED: ToolChoiceMode
ALLOWED_TOOLS_MODE_UNSPECIFIED: AllowedToolsMode
ALLOWED_TOOLS_MODE_AUTO: AllowedToolsMode
ALLOWED_TOOLS_MODE_REQUIRED: AllowedToolsMode

class CreateChatCompletionRequest(_message.Message):
    __slots__ = ("model", "messages", "generation", "stream_options", "response_format", "tools", "tool_choice", "parallel_tool_calls", "cache_salt", "user", "prompt_cache_key", "priority", "structured_outputs", "metadata", "service_tier", "reasoning_effort", "safety_identifier", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "media_io_options", "media_processor_options", "include_reasoning", "thinking_token_budget", "grounding")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STREAM_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    SAFETY_IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_PROCESSOR_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REASONING_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    GROUNDING_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[_content_pb2.Message]
    generation: _generation_pb2.GenerationOptions
    stream_options: StreamOptions
    response_format: ResponseFormat
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    cache_salt: str
    user: str
    prompt_cache_key: str
    priority: int
    structured_outputs: _generation_pb2.StructuredOutputs
    metadata: _containers.ScalarMap[str, str]
    service_tier: ServiceTier
    reasoning_effort: ReasoningEffort
    safety_identifier: str
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: str
    media_io_options: _content_pb2.MediaIoOptions
    media_processor_options: _content_pb2.MediaProcessorOptions
    include_reasoning: bool
    thinking_token_budget: int
    grounding: bool
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_content_pb2.Message, _Mapping]]] = ..., generation: _Optional[_Union[_generation_pb2.GenerationOptions, _Mapping]] = ..., stream_options: _Optional[_Union[StreamOptions, _Mapping]] = ..., response_format: _Optional[_Union[ResponseFormat, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., user: _Optional[str] = ..., prompt_cache_key: _Optional[str] = ..., priority: _Optional[int] = ..., structured_outputs: _Optional[_Union[_generation_pb2.StructuredOutputs, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., service_tier: _Optional[_Union[ServiceTier, str]] = ..., reasoning_effort: _Optional[_Union[ReasoningEffort, str]] = ..., safety_identifier: _Optional[str] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., chat_template_kwargs: _Optional[str] = ..., media_io_options: _Optional[_Union[_content_pb2.MediaIoOptions, _Mapping]] = ..., media_processor_options: _Optional[_Union[_content_pb2.MediaProcessorOptions, _Mapping]] = ..., include_reasoning: _Optional[bool] = ..., thinking_token_budget: _Optional[int] = ..., grounding: _Optional[bool] = ...) -> None: ...

class StreamOptions(_message.Message):
    __slots__ = ("include_usage", "continuous_usage_stats")
    INCLUDE_USAGE_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_USAGE_STATS_FIELD_NUMBER: _ClassVar[int]
    include_usage: bool
    continuous_usage_stats: bool
    def __init__(self, include_usage: _Optional[bool] = ..., continuous_usage_stats: _Optional[bool] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResponseFormat(_message.Message):
    __slots__ = ("text", "json_object", "json_schema", "protobuf")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROTOBUF_FIELD_NUMBER: _ClassVar[int]
    text: Empty
    json_object: Empty
    json_schema: JsonSchema
    protobuf: MessageType
    def __init__(self, text: _Optional[_Union[Empty, _Mapping]] = ..., json_object: _Optional[_Union[Empty, _Mapping]] = ..., json_schema: _Optional[_Union[JsonSchema, _Mapping]] = ..., protobuf: _Optional[_Union[MessageType, _Mapping]] = ...) -> None: ...

class MessageType(_message.Message):
    __slots__ = ("name", "file_descriptor_set")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_DESCRIPTOR_SET_FIELD_NUMBER: _ClassVar[int]
    name: str
    file_descriptor_set: bytes
    def __init__(self, name: _Optional[str] = ..., file_descriptor_set: _Optional[bytes] = ...) -> None: ...

class JsonSchema(_message.Message):
    __slots__ = ("name", "description", "schema", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    schema: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., schema: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: FunctionDefinition
    def __init__(self, function: _Optional[_Union[FunctionDefinition, _Mapping]] = ...) -> None: ...

class FunctionDefinition(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("mode", "named_tool")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAMED_TOOL_FIELD_NUMBER: _ClassVar[int]
    mode: ToolChoiceMode
    named_tool: NamedToolChoice
    def __init__(self, mode: _Optional[_Union[ToolChoiceMode, str]] = ..., named_tool: _Optional[_Union[NamedToolChoice, _Mapping]] = ...) -> None: ...

class NamedToolChoice(_message.Message):
    __slots__ = ("function", "allowed_tools")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    function: FunctionName
    allowed_tools: AllowedTools
    def __init__(self, function: _Optional[_Union[FunctionName, _Mapping]] = ..., allowed_tools: _Optional[_Union[AllowedTools, _Mapping]] = ...) -> None: ...

class AllowedTools(_message.Message):
    __slots__ = ("mode", "tools")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    mode: AllowedToolsMode
    tools: _containers.RepeatedCompositeFieldContainer[AllowedTool]
    def __init__(self, mode: _Optional[_Union[AllowedToolsMode, str]] = ..., tools: _Optional[_Iterable[_Union[AllowedTool, _Mapping]]] = ...) -> None: ...

class AllowedTool(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: FunctionName
    def __init__(self, function: _Optional[_Union[FunctionName, _Mapping]] = ...) -> None: ...

class FunctionName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateChatCompletionResponse(_message.Message):
    __slots__ = ("id", "created", "model", "choices", "usage", "videos", "metadata", "service_tier", "prompt_token_ids", "system_fingerprint", "prompt_logprobs", "images")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    VIDEOS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    id: str
    created: int
    model: str
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    usage: _generation_pb2.Usage
    videos: _containers.RepeatedCompositeFieldContainer[_content_pb2.SampledVideo]
    metadata: _containers.ScalarMap[str, str]
    service_tier: ServiceTier
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    system_fingerprint: str
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.PromptLogprobs]
    images: _containers.RepeatedCompositeFieldContainer[_generation_pb2.SeenImage]
    def __init__(self, id: _Optional[str] = ..., created: _Optional[int] = ..., model: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., videos: _Optional[_Iterable[_Union[_content_pb2.SampledVideo, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., service_tier: _Optional[_Union[ServiceTier, str]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., system_fingerprint: _Optional[str] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_generation_pb2.PromptLogprobs, _Mapping]]] = ..., images: _Optional[_Iterable[_Union[_generation_pb2.SeenImage, _Mapping]]] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("index", "message", "logprobs", "finish_reason", "token_ids", "groundings", "answer", "answer_error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUNDINGS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    message: AssistantMessage
    logprobs: _generation_pb2.Logprobs
    finish_reason: _generation_pb2.FinishReason
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    groundings: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Grounding]
    answer: _any_pb2.Any
    answer_error: str
    def __init__(self, index: _Optional[int] = ..., message: _Optional[_Union[AssistantMessage, _Mapping]] = ..., logprobs: _Optional[_Union[_generation_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., token_ids: _Optional[_Iterable[int]] = ..., groundings: _Optional[_Iterable[_Union[_generation_pb2.Grounding, _Mapping]]] = ..., answer: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., answer_error: _Optional[str] = ...) -> None: ...

class AssistantMessage(_message.Message):
    __slots__ = ("role", "content", "refusal", "tool_calls", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: _content_pb2.Role
    content: str
    refusal: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[_content_pb2.ToolCall]
    reasoning: str
    def __init__(self, role: _Optional[_Union[_content_pb2.Role, str]] = ..., content: _Optional[str] = ..., refusal: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[_content_pb2.ToolCall, _Mapping]]] = ..., reasoning: _Optional[str] = ...) -> None: ...

class StreamChatCompletionResponse(_message.Message):
    __slots__ = ("id", "created", "model", "choices", "usage", "videos", "service_tier", "prompt_token_ids", "system_fingerprint", "prompt_logprobs", "images")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    VIDEOS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    id: str
    created: int
    model: str
    choices: _containers.RepeatedCompositeFieldContainer[ChunkChoice]
    usage: _generation_pb2.Usage
    videos: _containers.RepeatedCompositeFieldContainer[_content_pb2.SampledVideo]
    service_tier: ServiceTier
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    system_fingerprint: str
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.PromptLogprobs]
    images: _containers.RepeatedCompositeFieldContainer[_generation_pb2.SeenImage]
    def __init__(self, id: _Optional[str] = ..., created: _Optional[int] = ..., model: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[ChunkChoice, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., videos: _Optional[_Iterable[_Union[_content_pb2.SampledVideo, _Mapping]]] = ..., service_tier: _Optional[_Union[ServiceTier, str]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., system_fingerprint: _Optional[str] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_generation_pb2.PromptLogprobs, _Mapping]]] = ..., images: _Optional[_Iterable[_Union[_generation_pb2.SeenImage, _Mapping]]] = ...) -> None: ...

class ChunkChoice(_message.Message):
    __slots__ = ("index", "delta", "logprobs", "finish_reason", "token_ids", "groundings", "answer", "answer_error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUNDINGS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    delta: Delta
    logprobs: _generation_pb2.Logprobs
    finish_reason: _generation_pb2.FinishReason
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    groundings: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Grounding]
    answer: _any_pb2.Any
    answer_error: str
    def __init__(self, index: _Optional[int] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., logprobs: _Optional[_Union[_generation_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., token_ids: _Optional[_Iterable[int]] = ..., groundings: _Optional[_Iterable[_Union[_generation_pb2.Grounding, _Mapping]]] = ..., answer: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., answer_error: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: _content_pb2.Role
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    reasoning: str
    def __init__(self, role: _Optional[_Union[_content_pb2.Role, str]] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "function")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    function: FunctionCallDelta
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., function: _Optional[_Union[FunctionCallDelta, _Mapping]] = ...) -> None: ...

class FunctionCallDelta(_message.Message):
    __slots__ = ("name", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: str
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "messages", "cache_salt", "tools", "tool_choice", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "media_io_options", "media_processor_options", "reasoning_effort", "quote")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_PROCESSOR_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    QUOTE_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[_content_pb2.Message]
    cache_salt: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: str
    media_io_options: _content_pb2.MediaIoOptions
    media_processor_options: _content_pb2.MediaProcessorOptions
    reasoning_effort: ReasoningEffort
    quote: bool
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_content_pb2.Message, _Mapping]]] = ..., cache_salt: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., chat_template_kwargs: _Optional[str] = ..., media_io_options: _Optional[_Union[_content_pb2.MediaIoOptions, _Mapping]] = ..., media_processor_options: _Optional[_Union[_content_pb2.MediaProcessorOptions, _Mapping]] = ..., reasoning_effort: _Optional[_Union[ReasoningEffort, str]] = ..., quote: _Optional[bool] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("prompt_tokens", "prompt_tokens_details", "max_model_len", "videos", "quote")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VIDEOS_FIELD_NUMBER: _ClassVar[int]
    QUOTE_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    prompt_tokens_details: _generation_pb2.PromptTokensDetails
    max_model_len: int
    videos: _containers.RepeatedCompositeFieldContainer[_content_pb2.SampledVideo]
    quote: Quote
    def __init__(self, prompt_tokens: _Optional[int] = ..., prompt_tokens_details: _Optional[_Union[_generation_pb2.PromptTokensDetails, _Mapping]] = ..., max_model_len: _Optional[int] = ..., videos: _Optional[_Iterable[_Union[_content_pb2.SampledVideo, _Mapping]]] = ..., quote: _Optional[_Union[Quote, _Mapping]] = ...) -> None: ...

class Quote(_message.Message):
    __slots__ = ("parts", "first_token_milliseconds", "first_token_stages")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_STAGES_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[QuotedPart]
    first_token_milliseconds: float
    first_token_stages: _generation_pb2.FirstTokenStages
    def __init__(self, parts: _Optional[_Iterable[_Union[QuotedPart, _Mapping]]] = ..., first_token_milliseconds: _Optional[float] = ..., first_token_stages: _Optional[_Union[_generation_pb2.FirstTokenStages, _Mapping]] = ...) -> None: ...

class QuotedPart(_message.Message):
    __slots__ = ("message_index", "part_index", "tokens", "medium")
    MESSAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    message_index: int
    part_index: int
    tokens: int
    medium: _generation_pb2.MediumUsage
    def __init__(self, message_index: _Optional[int] = ..., part_index: _Optional[int] = ..., tokens: _Optional[int] = ..., medium: _Optional[_Union[_generation_pb2.MediumUsage, _Mapping]] = ...) -> None: ...
