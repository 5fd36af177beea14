from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UploadMediaRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("sha256", "size_bytes", "cache_salt", "ttl_seconds")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    cache_salt: str
    ttl_seconds: int
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., cache_salt: _Optional[str] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class UploadMediaResponse(_message.Message):
    __slots__ = ("media",)
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    media: Media
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ...) -> None: ...

class GetMediaRequest(_message.Message):
    __slots__ = ("upload_id", "cache_salt")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    cache_salt: str
    def __init__(self, upload_id: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class GetMediaResponse(_message.Message):
    __slots__ = ("media",)
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    media: Media
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ...) -> None: ...

class DeleteMediaRequest(_message.Message):
    __slots__ = ("upload_id", "cache_salt")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    cache_salt: str
    def __init__(self, upload_id: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class DeleteMediaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Media(_message.Message):
    __slots__ = ("upload_id", "size_bytes", "sha256", "expires_at")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    size_bytes: int
    sha256: bytes
    expires_at: int
    def __init__(self, upload_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., expires_at: _Optional[int] = ...) -> None: ...
