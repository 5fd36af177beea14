from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelInfosRequest(_message.Message):
    __slots__ = ("after_id", "before_id", "limit")
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_id: str
    before_id: str
    limit: int
    def __init__(self, after_id: _Optional[str] = ..., before_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListModelInfosResponse(_message.Message):
    __slots__ = ("data", "first_id", "last_id", "has_more")
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    first_id: str
    last_id: str
    has_more: bool
    def __init__(self, data: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ..., first_id: _Optional[str] = ..., last_id: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("id", "display_name", "created_at", "max_input_tokens", "max_tokens", "capabilities")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    capabilities: ModelCapabilities
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., created_at: _Optional[str] = ..., max_input_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., capabilities: _Optional[_Union[ModelCapabilities, _Mapping]] = ...) -> None: ...

class ModelCapabilities(_message.Message):
    __slots__ = ("batch", "citations", "code_execution", "context_management", "effort", "image_input", "pdf_input", "server_tools", "structured_outputs", "thinking")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    CODE_EXECUTION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_MANAGEMENT_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_INPUT_FIELD_NUMBER: _ClassVar[int]
    PDF_INPUT_FIELD_NUMBER: _ClassVar[int]
    SERVER_TOOLS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    batch: CapabilitySupport
    citations: CapabilitySupport
    code_execution: CapabilitySupport
    context_management: CapabilitySupport
    effort: EffortCapability
    image_input: CapabilitySupport
    pdf_input: CapabilitySupport
    server_tools: ServerToolsCapability
    structured_outputs: CapabilitySupport
    thinking: ThinkingCapability
    def __init__(self, batch: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., citations: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., code_execution: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., context_management: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., effort: _Optional[_Union[EffortCapability, _Mapping]] = ..., image_input: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., pdf_input: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., server_tools: _Optional[_Union[ServerToolsCapability, _Mapping]] = ..., structured_outputs: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingCapability, _Mapping]] = ...) -> None: ...

class CapabilitySupport(_message.Message):
    __slots__ = ("supported",)
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    supported: bool
    def __init__(self, supported: _Optional[bool] = ...) -> None: ...

class EffortCapability(_message.Message):
    __slots__ = ("supported", "low", "medium", "high", "xhigh", "max")
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    XHIGH_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    supported: bool
    low: CapabilitySupport
    medium: CapabilitySupport
    high: CapabilitySupport
    xhigh: CapabilitySupport
    max: CapabilitySupport
    def __init__(self, supported: _Optional[bool] = ..., low: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., medium: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., high: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., xhigh: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., max: _Optional[_Union[CapabilitySupport, _Mapping]] = ...) -> None: ...

class ServerToolsCapability(_message.Message):
    __slots__ = ("supported", "code_execution", "web_search")
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    CODE_EXECUTION_FIELD_NUMBER: _ClassVar[int]
    WEB_SEARCH_FIELD_NUMBER: _ClassVar[int]
    supported: bool
    code_execution: CapabilitySupport
    web_search: CapabilitySupport
    def __init__(self, supported: _Optional[bool] = ..., code_execution: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., web_search: _Optional[_Union[CapabilitySupport, _Mapping]] = ...) -> None: ...

class ThinkingCapability(_message.Message):
    __slots__ = ("supported", "types")
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    supported: bool
    types: ThinkingTypes
    def __init__(self, supported: _Optional[bool] = ..., types: _Optional[_Union[ThinkingTypes, _Mapping]] = ...) -> None: ...

class ThinkingTypes(_message.Message):
    __slots__ = ("adaptive", "between_tools", "disabled", "enabled")
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_TOOLS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    adaptive: CapabilitySupport
    between_tools: CapabilitySupport
    disabled: CapabilitySupport
    enabled: CapabilitySupport
    def __init__(self, adaptive: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., between_tools: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., disabled: _Optional[_Union[CapabilitySupport, _Mapping]] = ..., enabled: _Optional[_Union[CapabilitySupport, _Mapping]] = ...) -> None: ...

class UploadFileRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadFileHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[UploadFileHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadFileHeader(_message.Message):
    __slots__ = ("expires_in_seconds", "filename")
    EXPIRES_IN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    expires_in_seconds: int
    filename: str
    def __init__(self, expires_in_seconds: _Optional[int] = ..., filename: _Optional[str] = ...) -> None: ...

class ListFileMetadataRequest(_message.Message):
    __slots__ = ("ids", "limit", "page", "after_id")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    page: str
    after_id: str
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., page: _Optional[str] = ..., after_id: _Optional[str] = ...) -> None: ...

class ListFileMetadataResponse(_message.Message):
    __slots__ = ("data", "next_page", "first_id", "last_id", "has_more")
    DATA_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[FileMetadata]
    next_page: str
    first_id: str
    last_id: str
    has_more: bool
    def __init__(self, data: _Optional[_Iterable[_Union[FileMetadata, _Mapping]]] = ..., next_page: _Optional[str] = ..., first_id: _Optional[str] = ..., last_id: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class GetFileMetadataRequest(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class FileMetadata(_message.Message):
    __slots__ = ("id", "filename", "mime_type", "size_bytes", "created_at", "expires_at", "downloadable")
    ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    DOWNLOADABLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str
    downloadable: bool
    def __init__(self, id: _Optional[str] = ..., filename: _Optional[str] = ..., mime_type: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_at: _Optional[str] = ..., expires_at: _Optional[str] = ..., downloadable: _Optional[bool] = ...) -> None: ...

class DeleteUploadedFileRequest(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class DeletedFile(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
