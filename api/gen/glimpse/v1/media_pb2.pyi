from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
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
    __slots__ = ("sha256", "size", "cache_salt", "ttl_seconds")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    cache_salt: str
    ttl_seconds: int
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., cache_salt: _Optional[str] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class UploadMediaResponse(_message.Message):
    __slots__ = ("media",)
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    media: Media
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ...) -> None: ...

class GetMediaRequest(_message.Message):
    __slots__ = ("upload", "cache_salt")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload: str
    cache_salt: str
    def __init__(self, upload: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class GetMediaResponse(_message.Message):
    __slots__ = ("media",)
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    media: Media
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ...) -> None: ...

class DeleteMediaRequest(_message.Message):
    __slots__ = ("upload", "cache_salt")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload: str
    cache_salt: str
    def __init__(self, upload: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class DeleteMediaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Media(_message.Message):
    __slots__ = ("upload", "size", "sha256", "expires")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    upload: str
    size: int
    sha256: bytes
    expires: int
    def __init__(self, upload: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., expires: _Optional[int] = ...) -> None: ...
