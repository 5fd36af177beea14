"""Generates JSON Schemas of messages, by the rules of the dialect.

One schema describes both requests and responses. A member that the server always writes is `required` only in messages
that clients never send.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from glimpse.dialect.options import enum_type, map_entry, message_type
from glimpse.dialect.rules import (
    Dialect,
    Effect,
    FieldRules,
    ForeignForm,
    ForeignMember,
    MessageRules,
    OneofRules,
)

Schema: TypeAlias = dict[str, Any]

_NULL: Schema = {"type": "null"}

SCALARS: dict[int, Schema] = {
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.CPPTYPE_INT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "integer", "minimum": 0},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
}


class Schemas:
    """The schemas of messages and enums, each created on first reference."""

    def __init__(
        self,
        dialect: Dialect,
        comments: Mapping[str, str],
        *,
        response_only: frozenset[Descriptor],
        components: dict[str, Schema],
    ) -> None:
        """
        Args:
            response_only: the messages that clients never send.
            components: gets the schemas by name. Messages of several dialects have names of their own.
        """
        self._components = components
        self.dialect = dialect
        self._comments = comments
        self._response_only = response_only

    def reference(self, descriptor: Descriptor) -> Schema:
        if descriptor.name not in self._components:
            self._components[descriptor.name] = {}  # so that a message can refer to itself
            self._components[descriptor.name] |= self._message(self.dialect.message(descriptor))
        return {"$ref": f"#/components/schemas/{descriptor.name}"}

    def field(self, field: FieldRules, *, or_null: bool = False) -> Schema:
        """Returns the schema of a field's value with its description. `or_null`: null is accepted too."""
        schema = self._value(field)
        if field.rule.nullable or or_null:
            schema = _any_of([schema, _NULL])
        return schema | self._description(field.descriptor.full_name)

    def _message(self, rules: MessageRules) -> Schema:
        schema = self._union(rules) if rules.union else self._object(rules)
        if rules.list_field is not None:
            schema = _any_of([self._value(rules.list_field), schema])
        if (scalar := rules.innermost_scalar_field) is not None:
            schema = _any_of([self._value(scalar), schema])
        return self._description(rules.descriptor.full_name) | schema

    def _union(self, rules: MessageRules) -> Schema:
        return _any_of([self.field(field) for field in rules.fields])

    def _object(self, rules: MessageRules) -> Schema:
        members = _Members(self, response_only=rules.descriptor in self._response_only)
        members.add_message(rules)
        return members.schema() | ({"additionalProperties": False} if rules.closed else {})

    def _value(self, field: FieldRules) -> Schema:
        descriptor = field.descriptor
        if field.rule.raw:
            return {}
        if field.is_map:
            return self._map(descriptor)
        if field.rule.float32s:
            return {"type": "array", "items": SCALARS[FieldDescriptor.CPPTYPE_FLOAT]}
        element = self._element(descriptor)
        if not field.is_list:
            return element | _bounds(field, "minimum", "maximum")
        if field.rule.null_elements:
            element = _any_of([element, _NULL])
        array = {"type": "array", "items": element} | _bounds(field, "minItems", "maxItems")
        array |= {"minItems": 1} if field.rule.non_empty else {}
        return _any_of([element, array]) if field.rule.accept_scalar else array

    def _map(self, field: FieldDescriptor) -> Schema:
        key, value = map_entry(field)
        schema: Schema = {"type": "object", "additionalProperties": self._element(value)}
        if SCALARS[key.cpp_type]["type"] == "integer":
            schema["propertyNames"] = {"pattern": "^-?[0-9]+$"}
        return schema

    def _element(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            return self.reference(field.message_type)
        if field.enum_type is not None:
            return self._enum_reference(enum_type(field))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        return SCALARS[field.cpp_type]

    def _enum_reference(self, descriptor: EnumDescriptor) -> Schema:
        if descriptor.name not in self._components:
            self._components[descriptor.name] = self._enum(descriptor)
        return {"$ref": f"#/components/schemas/{descriptor.name}"}

    def _enum(self, descriptor: EnumDescriptor) -> Schema:
        rules = self.dialect.enum(descriptor)
        lines: list[str] = []
        for name, number in rules.numbers.items():
            value = f"{descriptor.full_name}.{descriptor.values_by_number[number].name}"
            alias_of = f"the same as `{rules.names[number]}`."
            lines.append(f"- `{name}`: {self._comments.get(value, '') if rules.names[number] == name else alias_of}")
        description = "\n".join([self._comments.get(descriptor.full_name, ""), "", *lines]).strip()
        return {"type": "string", "enum": list(rules.numbers), "description": description}

    def _description(self, full_name: str) -> Schema:
        comment = self._comments.get(full_name)
        return {"description": comment} if comment else {}


class _Members:
    """The members of one JSON object, including those of flattened messages."""

    def __init__(self, schemas: Schemas, *, response_only: bool) -> None:
        self._schemas = schemas
        self._response_only = response_only
        self._properties: dict[str, list[Schema]] = {}
        self._required: list[str] = []
        self._choices: list[list[Schema]] = []

    def schema(self) -> Schema:
        properties = {name: _any_of(schemas) for name, schemas in self._properties.items()}
        schema: Schema = {"type": "object", "properties": properties}
        if self._required:
            schema["required"] = self._required
        if len(self._choices) == 1:
            schema["oneOf"] = self._choices[0]
        elif self._choices:
            schema["allOf"] = [{"oneOf": choice} for choice in self._choices]
        return schema

    def add_message(self, rules: MessageRules) -> None:
        if self._response_only:
            self._required += [name for name, _ in rules.constants]
        self._required += [field.name for field in rules.fields if self._is_required(field)]
        self._add_members(rules)

    def _is_required(self, field: FieldRules) -> bool:
        return field.required or (self._response_only and _is_always_written(field))

    def _add_members(self, rules: MessageRules) -> None:
        for name, value in rules.constants:
            self._add(name, {"type": "string", "const": value})
        for member in rules.foreign:
            self._add(member.name, _foreign(member))
        for member in rules.members:
            match member:
                case FieldRules():
                    self._add_field(member)
                case OneofRules():
                    self._add_oneof(member)

    def _add_field(self, field: FieldRules) -> None:
        if field.inline:
            # The whole message may be absent, so none of its members is required.
            self._add_members(self._schemas.dialect.message(message_type(field.descriptor)))
            return
        self._add(field.name, self._schemas.field(field))
        for alias in field.aliases:
            self._add(alias, self._schemas.field(field) | {"description": f"Another name of `{field.name}`."})
        for name, inner in field.shortcuts:
            self._add(name, self._schemas.field(inner) | {"description": f"The same as `{field.name}.{inner.name}`."})

    def _add(self, name: str, schema: Schema) -> None:
        self._properties.setdefault(name, []).append(schema)

    def _add_oneof(self, oneof: OneofRules) -> None:
        if oneof.tag is not None:
            if oneof.internal:
                self._choices.append([self._internal_variant(oneof, oneof.tag, field) for field in oneof.fields])
                return
            tag_required = oneof.tag_only_with is None
            names = ((field, name) for field in oneof.fields for name in field.names)
            own = [self._variant(oneof.tag, *pair, tag_required=tag_required) for pair in names]
            forms = () if self._response_only else oneof.forms
            self._choices.append([*own, *(each for form in forms for each in self._form_variants(oneof.tag, form))])
            for inner in (each for field in oneof.fields for each in field.members_beside):
                self._add_beside(inner)
        else:
            for field in oneof.fields:
                self._add_field(field)

    def _internal_variant(self, oneof: OneofRules, tag: str, field: FieldRules) -> Schema:
        """Returns the schema of the object whose members stand beside the tag."""
        members = _Members(self._schemas, response_only=self._response_only)
        members._add(tag, {"type": "string", "const": field.name})
        if field is not oneof.default:
            members._required.append(tag)
        members.add_message(self._schemas.dialect.message(message_type(field.descriptor)))
        return members.schema()

    def _form_variants(self, tag: str, form: ForeignForm) -> list[Schema]:
        """Returns the schemas of the object in the form of another API."""
        if form.field is None:
            return []
        value = _NULL if form.reason else self._schemas.field(form.field, or_null=True)
        description = f"Null only. {form.reason}" if form.reason else f"The same as `{form.field.name}`."
        tag_schema: Schema = {"type": "string", "const": form.tag}
        return [
            {
                "type": "object",
                "properties": {tag: tag_schema, name: value},
                "required": [tag, name],
                "description": description,
            }
            for name in form.members
        ]

    def _add_beside(self, field: FieldRules) -> None:
        for name in field.names:
            if name not in self._properties:
                self._add(name, {"description": f"The same as `{field.name}` inside the medium."})

    def _variant(self, tag: str, field: FieldRules, name: str, *, tag_required: bool) -> Schema:
        """Returns the schema of the object if the tag is `name`."""
        properties: dict[str, Schema] = {tag: {"type": "string", "const": name}}
        required = [tag] if tag_required else []
        if not field.has_no_fields:
            is_message = field.descriptor.message_type is not None
            properties[name] = self._schemas.field(field, or_null=is_message and not self._response_only)
            required.append(name)
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        return schema if name == field.name else schema | {"description": f"Another name of `{field.name}`."}


def _foreign(member: ForeignMember) -> Schema:
    if member.effect is Effect.IGNORED:
        return {"description": f"Accepted, without effect. {member.reason}"}
    return {"enum": [None, *member.accepted], "description": f"Not supported. {member.reason}"}


def _is_always_written(field: FieldRules) -> bool:
    is_enum = field.descriptor.enum_type is not None and not field.is_list
    return field.rule.nullable or not (field.descriptor.has_presence or field.rule.omit_empty or is_enum)


def _bounds(field: FieldRules, smallest: str, largest: str) -> Schema:
    bounds = {smallest: field.min, largest: field.max}
    return {name: number(value) for name, value in bounds.items() if value is not None}


def number(value: float) -> float:
    """Returns a bound as JSON writes it, whole numbers without a fraction."""
    return int(value) if value.is_integer() else value


def _any_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
