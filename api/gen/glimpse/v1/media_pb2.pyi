from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
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
    __slots__ = ("sha256", "size_bytes", "cache_salt", "ttl_seconds", "filename", "purpose")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    cache_salt: str
    ttl_seconds: int
    filename: str
    purpose: str
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., cache_salt: _Optional[str] = ..., ttl_seconds: _Optional[int] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ...) -> None: ...

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

class ListMediaRequest(_message.Message):
    __slots__ = ("cache_salt", "purpose", "limit", "after", "order")
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    cache_salt: str
    purpose: str
    limit: int
    after: str
    order: str
    def __init__(self, cache_salt: _Optional[str] = ..., purpose: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ..., order: _Optional[str] = ...) -> None: ...

class ListMediaResponse(_message.Message):
    __slots__ = ("media", "first_id", "last_id", "has_more")
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    media: _containers.RepeatedCompositeFieldContainer[Media]
    first_id: str
    last_id: str
    has_more: bool
    def __init__(self, media: _Optional[_Iterable[_Union[Media, _Mapping]]] = ..., first_id: _Optional[str] = ..., last_id: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class DownloadMediaRequest(_message.Message):
    __slots__ = ("upload_id", "cache_salt")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    cache_salt: str
    def __init__(self, upload_id: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class DownloadMediaResponse(_message.Message):
    __slots__ = ("media", "chunk")
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    media: Media
    chunk: bytes
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class DeleteMediaRequest(_message.Message):
    __slots__ = ("upload_id", "cache_salt")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    cache_salt: str
    def __init__(self, upload_id: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class DeleteMediaResponse(_message.Message):
    __slots__ = ("upload_id", "deleted")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    deleted: bool
    def __init__(self, upload_id: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class Media(_message.Message):
    __slots__ = ("upload_id", "size_bytes", "sha256", "expires_at", "created_at", "filename", "purpose")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    size_bytes: int
    sha256: bytes
    expires_at: int
    created_at: int
    filename: str
    purpose: str
    def __init__(self, upload_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., expires_at: _Optional[int] = ..., created_at: _Optional[int] = ..., filename: _Optional[str] = ..., purpose: _Optional[str] = ...) -> None: ...
