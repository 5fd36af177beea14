"""The dialect's text file agrees with the protos that it is about."""

from importlib import resources

import pytest
from google.protobuf import descriptor_pool, text_format

from glimpse.dialect.rules import Dialect
from glimpse.gateway.descriptors import descriptor_set
from glimpse.json.v1 import dialect_pb2

RULES = text_format.Parse(
    resources.files("glimpse.dialect").joinpath("openai.txtpb").read_text(encoding="utf-8"), dialect_pb2.Dialect()
)
POOL = descriptor_pool.DescriptorPool()
for file in descriptor_set().file:
    POOL.Add(file)


@pytest.mark.parametrize("rule", RULES.messages, ids=lambda rule: rule.name)
def test_message_rule_names_existing_fields(rule: dialect_pb2.MessageRule) -> None:
    message = POOL.FindMessageTypeByName(rule.name)
    fields = [field.name for field in rule.fields]
    assert len(set(fields)) == len(fields)
    assert set(fields) | ({rule.scalar_field} - {""}) <= set(message.fields_by_name)
    for field in rule.fields:
        inner = message.fields_by_name[field.name].message_type
        assert {shortcut.field for shortcut in field.shortcuts} <= set(inner.fields_by_name if inner else ())
    assert {oneof.name for oneof in rule.oneofs} <= set(message.oneofs_by_name)
    assert {oneof.tag_only_with for oneof in rule.oneofs} - {""} <= set(message.fields_by_name)


@pytest.mark.parametrize("rule", RULES.enums, ids=lambda rule: rule.name)
def test_enum_rule_names_existing_values(rule: dialect_pb2.EnumRule) -> None:
    assert {value.name for value in rule.values} <= set(POOL.FindEnumTypeByName(rule.name).values_by_name)


def test_each_message_has_one_rule() -> None:
    names = [rule.name for rule in (*RULES.messages, *RULES.enums)]
    assert len(set(names)) == len(names)


def test_text_that_is_not_a_dialect_is_an_error() -> None:
    with pytest.raises(text_format.ParseError):
        Dialect("messages { no_such_field: 1 }")
