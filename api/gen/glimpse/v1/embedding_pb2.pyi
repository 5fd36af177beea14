from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import completion_pb2 as _completion_pb2
from glimpse.v1 import content_pb2 as _content_pb2
from glimpse.v1 import generation_pb2 as _generation_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_LAST_TOKEN: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_TOKEN: _ClassVar[Pooling]

class EncodingFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_FORMAT_UNSPECIFIED: _ClassVar[EncodingFormat]
    ENCODING_FORMAT_FLOAT: _ClassVar[EncodingFormat]
    ENCODING_FORMAT_BASE64: _ClassVar[EncodingFormat]
POOLING_UNSPECIFIED: Pooling
POOLING_LAST_TOKEN: Pooling
POOLING_MEAN: Pooling
POOLING_TOKEN: Pooling
ENCODING_FORMAT_UNSPECIFIED: EncodingFormat
ENCODING_FORMAT_FLOAT: EncodingFormat
ENCODING_FORMAT_BASE64: EncodingFormat

class CreateEmbeddingsRequest(_message.Message):
    __slots__ = ("model", "inputs", "messages", "dimensions", "encoding_format", "normalize", "pooling", "add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "media_io_options", "media_processor_options", "cache_salt", "priority", "user")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FORMAT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_PROCESSOR_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbeddingInput]
    messages: _containers.RepeatedCompositeFieldContainer[_content_pb2.Message]
    dimensions: int
    encoding_format: EncodingFormat
    normalize: bool
    pooling: Pooling
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: str
    media_io_options: _content_pb2.MediaIoOptions
    media_processor_options: _content_pb2.MediaProcessorOptions
    cache_salt: str
    priority: int
    user: str
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbeddingInput, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[_content_pb2.Message, _Mapping]]] = ..., dimensions: _Optional[int] = ..., encoding_format: _Optional[_Union[EncodingFormat, str]] = ..., normalize: _Optional[bool] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., add_special_tokens: _Optional[bool] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., chat_template_kwargs: _Optional[str] = ..., media_io_options: _Optional[_Union[_content_pb2.MediaIoOptions, _Mapping]] = ..., media_processor_options: _Optional[_Union[_content_pb2.MediaProcessorOptions, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class EmbeddingInput(_message.Message):
    __slots__ = ("text", "token_ids", "conversation")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _completion_pb2.TokenIds
    conversation: EmbeddingConversation
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[_completion_pb2.TokenIds, _Mapping]] = ..., conversation: _Optional[_Union[EmbeddingConversation, _Mapping]] = ...) -> None: ...

class EmbeddingConversation(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_content_pb2.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[_content_pb2.Message, _Mapping]]] = ...) -> None: ...

class CreateEmbeddingsResponse(_message.Message):
    __slots__ = ("id", "created", "model", "data", "usage")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    created: int
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Embedding]
    usage: _generation_pb2.Usage
    def __init__(self, id: _Optional[str] = ..., created: _Optional[int] = ..., model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("index", "values", "base64", "dimensions")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BASE64_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    index: int
    values: bytes
    base64: str
    dimensions: int
    def __init__(self, index: _Optional[int] = ..., values: _Optional[bytes] = ..., base64: _Optional[str] = ..., dimensions: _Optional[int] = ...) -> None: ...
