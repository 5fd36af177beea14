from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JsonType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JSON_TYPE_UNSPECIFIED: _ClassVar[JsonType]
    JSON_TYPE_STRING: _ClassVar[JsonType]
    JSON_TYPE_ARRAY: _ClassVar[JsonType]
    JSON_TYPE_OBJECT: _ClassVar[JsonType]
    JSON_TYPE_NUMBER: _ClassVar[JsonType]

class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_UNSPECIFIED: _ClassVar[Effect]
    EFFECT_ECHOED: _ClassVar[Effect]
    EFFECT_NONE: _ClassVar[Effect]
    EFFECT_REFUSED: _ClassVar[Effect]
JSON_TYPE_UNSPECIFIED: JsonType
JSON_TYPE_STRING: JsonType
JSON_TYPE_ARRAY: JsonType
JSON_TYPE_OBJECT: JsonType
JSON_TYPE_NUMBER: JsonType
EFFECT_UNSPECIFIED: Effect
EFFECT_ECHOED: Effect
EFFECT_NONE: Effect
EFFECT_REFUSED: Effect
FIELD_FIELD_NUMBER: _ClassVar[int]
field: _descriptor.FieldDescriptor
ONEOF_FIELD_NUMBER: _ClassVar[int]
oneof: _descriptor.FieldDescriptor
MESSAGE_FIELD_NUMBER: _ClassVar[int]
message: _descriptor.FieldDescriptor
ENUM_VALUE_FIELD_NUMBER: _ClassVar[int]
enum_value: _descriptor.FieldDescriptor
BINDING_FIELD_NUMBER: _ClassVar[int]
binding: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: float
    max: float
    def __init__(self, min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class FieldRule(_message.Message):
    __slots__ = ("name", "aliases", "type", "nullable", "raw", "accept_scalar", "flatten", "grpc_only", "omit_empty", "routing_key", "bounds", "effect")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_SCALAR_FIELD_NUMBER: _ClassVar[int]
    FLATTEN_FIELD_NUMBER: _ClassVar[int]
    GRPC_ONLY_FIELD_NUMBER: _ClassVar[int]
    OMIT_EMPTY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    type: JsonType
    nullable: bool
    raw: bool
    accept_scalar: bool
    flatten: bool
    grpc_only: bool
    omit_empty: bool
    routing_key: bool
    bounds: Bounds
    effect: Effect
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., type: _Optional[_Union[JsonType, str]] = ..., nullable: _Optional[bool] = ..., raw: _Optional[bool] = ..., accept_scalar: _Optional[bool] = ..., flatten: _Optional[bool] = ..., grpc_only: _Optional[bool] = ..., omit_empty: _Optional[bool] = ..., routing_key: _Optional[bool] = ..., bounds: _Optional[_Union[Bounds, _Mapping]] = ..., effect: _Optional[_Union[Effect, str]] = ...) -> None: ...

class OneofRule(_message.Message):
    __slots__ = ("tag", "tag_beside")
    TAG_FIELD_NUMBER: _ClassVar[int]
    TAG_BESIDE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    tag_beside: str
    def __init__(self, tag: _Optional[str] = ..., tag_beside: _Optional[str] = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("name", "why", "accepted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    accepted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ..., accepted: _Optional[_Iterable[str]] = ...) -> None: ...

class MessageRule(_message.Message):
    __slots__ = ("constants", "scalar_field", "union", "refusals", "closed")
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_FIELD_NUMBER: _ClassVar[int]
    UNION_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    constants: _containers.RepeatedCompositeFieldContainer[Constant]
    scalar_field: str
    union: bool
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    closed: bool
    def __init__(self, constants: _Optional[_Iterable[_Union[Constant, _Mapping]]] = ..., scalar_field: _Optional[str] = ..., union: _Optional[bool] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., closed: _Optional[bool] = ...) -> None: ...

class EnumValueRule(_message.Message):
    __slots__ = ("aliases",)
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class BindingRule(_message.Message):
    __slots__ = ("unary", "stream", "stream_member", "stream_end")
    UNARY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_MEMBER_FIELD_NUMBER: _ClassVar[int]
    STREAM_END_FIELD_NUMBER: _ClassVar[int]
    unary: str
    stream: str
    stream_member: str
    stream_end: str
    def __init__(self, unary: _Optional[str] = ..., stream: _Optional[str] = ..., stream_member: _Optional[str] = ..., stream_end: _Optional[str] = ...) -> None: ...
