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
    EFFECT_ROUTING: _ClassVar[Effect]
JSON_TYPE_UNSPECIFIED: JsonType
JSON_TYPE_STRING: JsonType
JSON_TYPE_ARRAY: JsonType
JSON_TYPE_OBJECT: JsonType
JSON_TYPE_NUMBER: JsonType
EFFECT_UNSPECIFIED: Effect
EFFECT_ECHOED: Effect
EFFECT_NONE: Effect
EFFECT_ROUTING: Effect

class Dialect(_message.Message):
    __slots__ = ("messages", "enums")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ENUMS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[MessageRule]
    enums: _containers.RepeatedCompositeFieldContainer[EnumRule]
    def __init__(self, messages: _Optional[_Iterable[_Union[MessageRule, _Mapping]]] = ..., enums: _Optional[_Iterable[_Union[EnumRule, _Mapping]]] = ...) -> None: ...

class MessageRule(_message.Message):
    __slots__ = ("name", "constants", "scalar_field", "union", "closed", "oneofs", "fields", "refusals", "hints", "list_field")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_FIELD_NUMBER: _ClassVar[int]
    UNION_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ONEOFS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    constants: _containers.RepeatedCompositeFieldContainer[Constant]
    scalar_field: str
    union: bool
    closed: bool
    oneofs: _containers.RepeatedCompositeFieldContainer[OneofRule]
    fields: _containers.RepeatedCompositeFieldContainer[FieldRule]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    hints: _containers.RepeatedCompositeFieldContainer[Refusal]
    list_field: str
    def __init__(self, name: _Optional[str] = ..., constants: _Optional[_Iterable[_Union[Constant, _Mapping]]] = ..., scalar_field: _Optional[str] = ..., union: _Optional[bool] = ..., closed: _Optional[bool] = ..., oneofs: _Optional[_Iterable[_Union[OneofRule, _Mapping]]] = ..., fields: _Optional[_Iterable[_Union[FieldRule, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., hints: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., list_field: _Optional[str] = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class OneofRule(_message.Message):
    __slots__ = ("name", "tag", "tag_only_with", "forms", "internal", "default_field")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    TAG_ONLY_WITH_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    tag: str
    tag_only_with: str
    forms: _containers.RepeatedCompositeFieldContainer[Form]
    internal: bool
    default_field: str
    def __init__(self, name: _Optional[str] = ..., tag: _Optional[str] = ..., tag_only_with: _Optional[str] = ..., forms: _Optional[_Iterable[_Union[Form, _Mapping]]] = ..., internal: _Optional[bool] = ..., default_field: _Optional[str] = ...) -> None: ...

class Form(_message.Message):
    __slots__ = ("tag", "members", "field", "reason")
    TAG_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tag: str
    members: _containers.RepeatedScalarFieldContainer[str]
    field: str
    reason: str
    def __init__(self, tag: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., field: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class FieldRule(_message.Message):
    __slots__ = ("name", "json_name", "aliases", "type", "nullable", "raw", "accept_scalar", "flatten", "omit_empty", "effect", "float32s", "shortcuts", "null_elements", "members_beside", "blamed_member", "non_empty")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JSON_NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_SCALAR_FIELD_NUMBER: _ClassVar[int]
    FLATTEN_FIELD_NUMBER: _ClassVar[int]
    OMIT_EMPTY_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    FLOAT32S_FIELD_NUMBER: _ClassVar[int]
    SHORTCUTS_FIELD_NUMBER: _ClassVar[int]
    NULL_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_BESIDE_FIELD_NUMBER: _ClassVar[int]
    BLAMED_MEMBER_FIELD_NUMBER: _ClassVar[int]
    NON_EMPTY_FIELD_NUMBER: _ClassVar[int]
    name: str
    json_name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    type: JsonType
    nullable: bool
    raw: bool
    accept_scalar: bool
    flatten: bool
    omit_empty: bool
    effect: Effect
    float32s: bool
    shortcuts: _containers.RepeatedCompositeFieldContainer[Shortcut]
    null_elements: bool
    members_beside: bool
    blamed_member: str
    non_empty: bool
    def __init__(self, name: _Optional[str] = ..., json_name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., type: _Optional[_Union[JsonType, str]] = ..., nullable: _Optional[bool] = ..., raw: _Optional[bool] = ..., accept_scalar: _Optional[bool] = ..., flatten: _Optional[bool] = ..., omit_empty: _Optional[bool] = ..., effect: _Optional[_Union[Effect, str]] = ..., float32s: _Optional[bool] = ..., shortcuts: _Optional[_Iterable[_Union[Shortcut, _Mapping]]] = ..., null_elements: _Optional[bool] = ..., members_beside: _Optional[bool] = ..., blamed_member: _Optional[str] = ..., non_empty: _Optional[bool] = ...) -> None: ...

class Shortcut(_message.Message):
    __slots__ = ("name", "field")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    field: str
    def __init__(self, name: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("name", "reason", "accepted", "more_names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MORE_NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    accepted: _containers.RepeatedScalarFieldContainer[str]
    more_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., accepted: _Optional[_Iterable[str]] = ..., more_names: _Optional[_Iterable[str]] = ...) -> None: ...

class EnumRule(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedCompositeFieldContainer[EnumValueRule]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[_Union[EnumValueRule, _Mapping]]] = ...) -> None: ...

class EnumValueRule(_message.Message):
    __slots__ = ("name", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...
