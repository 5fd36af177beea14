from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
BOUNDS_FIELD_NUMBER: _ClassVar[int]
bounds: _descriptor.FieldDescriptor
BINDING_FIELD_NUMBER: _ClassVar[int]
binding: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: float
    max: float
    def __init__(self, min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("unary", "stream", "stream_member", "stream_end", "names_events", "form", "content", "stream_ping")
    UNARY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_MEMBER_FIELD_NUMBER: _ClassVar[int]
    STREAM_END_FIELD_NUMBER: _ClassVar[int]
    NAMES_EVENTS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STREAM_PING_FIELD_NUMBER: _ClassVar[int]
    unary: str
    stream: str
    stream_member: str
    stream_end: str
    names_events: bool
    form: FileForm
    content: str
    stream_ping: str
    def __init__(self, unary: _Optional[str] = ..., stream: _Optional[str] = ..., stream_member: _Optional[str] = ..., stream_end: _Optional[str] = ..., names_events: _Optional[bool] = ..., form: _Optional[_Union[FileForm, _Mapping]] = ..., content: _Optional[str] = ..., stream_ping: _Optional[str] = ...) -> None: ...

class FileForm(_message.Message):
    __slots__ = ("file", "chunk", "header", "filename")
    FILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    file: str
    chunk: str
    header: str
    filename: str
    def __init__(self, file: _Optional[str] = ..., chunk: _Optional[str] = ..., header: _Optional[str] = ..., filename: _Optional[str] = ...) -> None: ...
