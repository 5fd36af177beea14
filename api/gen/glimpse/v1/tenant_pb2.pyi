from google.api import annotations_pb2 as _annotations_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PurgeTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class PurgeTenantResponse(_message.Message):
    __slots__ = ("reaches_all_servers",)
    REACHES_ALL_SERVERS_FIELD_NUMBER: _ClassVar[int]
    reaches_all_servers: bool
    def __init__(self, reaches_all_servers: _Optional[bool] = ...) -> None: ...
