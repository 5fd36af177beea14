"""Message types that requests describe: their JSON Schemas, and what is refused of them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from glimpse.engine.checkpoint.grammar.lark import to_lark
from glimpse.engine.checkpoint.text.grammar_check import GrammarChecker
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.message_types.described_type import DescribedType
from glimpse.server.parse.message_types.well_known import integer_pattern
from tests.protos.compiled import file_descriptor_set, message_class, reader, type_names

BYTES = LLTokenizer("byte")
TYPES = type_names()


@pytest.fixture(scope="module")
def checker(tiny_checkpoint: Path) -> GrammarChecker:
    return GrammarChecker(load_tokenizer(tiny_checkpoint))


def grammar(name: str) -> Grammar:
    return reader(name).grammar


def accepts(name: str, texts: Sequence[str]) -> list[bool]:
    """Tells of each text whether the engine lets a model write it as a message."""
    start = LLMatcher(BYTES, to_lark(grammar(name)), log_level=0)
    found: list[bool] = []
    for text in texts:
        matcher, data = start.deep_copy(), list(text.encode())
        found.append(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())
    return found


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_enforced_in_full(checker: GrammarChecker, name: str) -> None:
    assert checker.check(grammar(name)).unenforced == ()


def test_there_are_types_of_every_kind() -> None:
    assert len(TYPES) >= 50


@given(st.data())
def test_the_json_of_every_message_is_accepted_and_read_as_the_message(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(TYPES))
    message = message_class(name.rpartition(".")[2])()
    fill(message, data, depth=0)
    text = json_format.MessageToJson(message, indent=None, always_print_fields_with_no_presence=True)
    text = json.dumps(ordered(json.loads(text), message.DESCRIPTOR), ensure_ascii=False)
    assert accepts(name, [text]) == [True], text
    answer = reader(name).read(text)
    assert (answer.type_url, answer.value) == (
        f"type.googleapis.com/{name}",
        message.SerializeToString(deterministic=True),
    )


def ordered(value: Any, kind: Any) -> Any:
    """Returns a message's JSON with its fields in the order of the type; protobuf's own writer has another one."""
    if kind is None or kind.file.package == "google.protobuf":
        return value
    members: dict[str, Any] = {}
    for field in kind.fields:
        member = value.get(field.json_name)
        if field.json_name not in value:
            continue
        if field.message_type is None:
            members[field.json_name] = member
        elif field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            members[field.json_name] = {key: ordered(each, inner) for key, each in member.items()}
        elif field.is_repeated:
            members[field.json_name] = [ordered(each, field.message_type) for each in member]
        else:
            members[field.json_name] = ordered(member, field.message_type)
    return members


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    # Protobuf's own JSON of the very largest float is too large for its own parser.
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(-(2.0**127), 2.0**127, width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
}


def fill(message: Any, data: st.DataObject, depth: int) -> None:
    """Sets some of a message's fields, and all that are required."""
    match message.DESCRIPTOR.full_name:
        case "google.protobuf.Timestamp":
            message.FromMilliseconds(data.draw(st.integers(-62135596800000, 253402300799999)))
        case "google.protobuf.Duration":
            message.FromNanoseconds(data.draw(st.integers(-(10**18), 10**18)))
        case "google.protobuf.FieldMask":
            message.paths.extend(data.draw(st.lists(st.sampled_from(["a", "a.b", "snake_case.x"]), max_size=2)))
        case "google.protobuf.Value":
            message.CopyFrom(json_format.ParseDict(data.draw(VALUES), type(message)()))
        case "google.protobuf.Struct":
            message.update(data.draw(st.dictionaries(TEXTS, VALUES, max_size=2)))
        case "google.protobuf.ListValue":
            message.extend(data.draw(st.lists(VALUES, max_size=2)))
        case _:
            for field in message.DESCRIPTOR.fields:
                if field.is_required or (depth < 4 and data.draw(st.booleans())):
                    set_field(message, field, data, depth)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99).map(float) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def set_field(message: Message, field: Any, data: st.DataObject, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for each in data.draw(st.lists(scalars(key), max_size=2)):
            if value.message_type is None:
                target[each] = data.draw(scalars(value))
            else:
                fill(target[each], data, depth + 1)
    elif field.is_repeated:
        for _ in range(data.draw(st.integers(1, 2))):
            if field.message_type is None:
                target.append(data.draw(scalars(field)))
            else:
                fill(target.add(), data, depth + 1)
    elif field.message_type is not None:
        target.SetInParent()
        fill(target, data, depth + 1)
    else:
        setattr(message, field.name, data.draw(scalars(field)))


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        # The name of a number is the first one.
        return st.sampled_from(sorted({value.number for value in field.enum_type.values}))
    return st.binary(max_size=5) if field.type == FieldDescriptor.TYPE_BYTES else SCALARS[field.cpp_type]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("OneInt32", ['{"x": 2147483648}', '{"x": -2147483649}', '{"x": 1.5}', '{"x": "1"}', "{}", '{"x": null}']),
        ("OneUint32", ['{"x": 4294967296}', '{"x": -1}']),
        ("OneInt64", ['{"x": 1}', '{"x": "9223372036854775808"}', '{"x": "-9223372036854775809"}', '{"x": "01"}']),
        ("OneUint64", ['{"x": "18446744073709551616"}', '{"x": "-1"}', '{"x": ""}']),
        ("OneBytes", ['{"x": "A"}', '{"x": "AA="}', '{"x": "A-=="}']),
        ("OneBool", ['{"x": 1}', '{"x": "true"}']),
        ("Colours", ['{"one": 1, "several": [], "named": {}}', '{"one": "RED", "several": [], "named": {}}']),
        ("Either", ['{"number": 1, "text": "a"}', '{"text": "a", "point": {"x": 1, "y": 2}}', '{"other": 1}']),
        ("TwoOneofs", ['{"a": 1, "b": 2}', '{"c": "", "d": ""}', '{"a": 1, "c": "", "e": null}']),
        ("BetweenOthers", ['{"before": "", "yes": true, "colour": "COLOUR_RED"}', '{"yes": true}']),
        ("Int32Map", ['{"entries": {"a": "b"}}', '{"entries": {"2147483648": "b"}}', '{"entries": {"-0": ""}}']),
        ("BoolMap", ['{"entries": {"yes": "1"}}', '{"entries": {"true": 1}}']),
        ("Names", ['{"snake_case_name": "", "other-name": "", "A": ""}', '{"snakeCaseName": "", "custom": ""}']),
        ("Point", ['{"x": 1}', '{"x": 1, "y": 2, "z": 3}']),
        ("Times", ['{"at": "2023-02-29T00:00:00Z", "all": []}', '{"at": "0000-01-01T00:00:00Z", "all": []}',
                   '{"at": "2024-01-01T24:00:00Z", "all": []}', '{"for": "1", "all": []}', '{"for": 1, "all": []}']),
        ("Mask", ['{"mask": "snake_case"}', '{"mask": "a,"}', '{"mask": ["a"]}']),
        ("Wrapped", ['{"e": "1", "j": []}', '{"f": 1, "j": []}', '{"a": null, "j": []}']),
        ("Required", ['{"name": "a"}', '{"inner": {"flag": true}}', '{"name": "a", "inner": {}}']),
        ("OfClosed", ['{"one": "THREE", "several": []}', '{"one": 1, "several": []}']),
    ],
)  # fmt: skip
def test_other_json_is_not_accepted(name: str, wrong: list[str]) -> None:
    assert not any(accepts(f"answers.v1.{name}", wrong))


@pytest.mark.parametrize("bound", [10, 99, 1234, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1])
def test_integer_patterns_hold_their_bounds(bound: int) -> None:
    start = LLMatcher(BYTES, to_lark(Grammar(kind=GrammarKind.REGEX, text=integer_pattern(-bound, bound))), log_level=0)

    def matches(text: str) -> bool:
        matcher = start.deep_copy()
        return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()

    near = [bound + offset for offset in (-2, -1, 0, 1, 2)] + [
        bound // 10,
        bound * 10,
        0,
        1,
        int("9" * len(str(bound))),
    ]
    for number in [*near, *(-each for each in near)]:
        assert matches(str(number)) is (abs(number) <= bound), number
    assert not any(map(matches, ("00", "-0", "")))


LARGEST = {"OneFloat": "3.4028234663852886", "OneDouble": "1.7976931348623157"}
EXPONENTS = {"OneFloat": 38, "OneDouble": 308}


@pytest.mark.parametrize("name", LARGEST)
def test_numbers_are_bounded_by_their_field(name: str) -> None:
    mantissa, exponent = LARGEST[name], EXPONENTS[name]
    within = ["0", "-0.0", "1e-999", "1E+05", "1e-07", "9" * exponent, f"9.99e{exponent - 1}", "1" * 17 + "e9"]
    within += [f"{mantissa}e{exponent}", f"-{mantissa}000E+{exponent}", f"{mantissa[:4]}e{exponent}", f"0.9e{exponent}"]
    above = f"{mantissa[:-1]}{int(mantissa[-1]) + 1}"
    beyond = ["1e999", "-1e999", f"{above}e{exponent}", f"{mantissa}1e{exponent}", f"1e{exponent + 1}"]
    beyond += ["9" * (exponent + 1), f"10e{exponent}", f"1e00{exponent}0"]
    assert accepts(f"answers.v1.{name}", [f'{{"x": {each}}}' for each in within]) == [True] * len(within)
    assert accepts(f"answers.v1.{name}", [f'{{"x": {each}}}' for each in beyond]) == [False] * len(beyond)


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,330})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_every_number_that_is_accepted_is_read(number: str) -> None:
    for name in LARGEST:
        text = f'{{"x": {number}}}'
        if accepts(f"answers.v1.{name}", [text]) == [True]:
            reader(f"answers.v1.{name}").read(text)


def test_messages_contain_themselves_twelve_levels_deep() -> None:
    def chain(levels: int) -> str:
        return '{"value": 0, "next": ' * levels + '{"value": 1}' + "}" * levels

    assert accepts("answers.v1.Chain", [chain(12), chain(13)]) == [True, False]
    assert accepts("answers.v1.Free", ['{"value": ' + "[" * 6 + "]" * 6 + "}"]) == [True]


def test_the_last_of_equal_keys_counts() -> None:
    answer = reader("answers.v1.TextMap").read('{"entries": {"a": 1, "b": 2, "a": 3}}')
    message = message_class("TextMap")()
    assert answer.Unpack(message)
    assert dict(message.entries) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("text", "words"), [('{"x": 1e999}', "too large"), ('{"x": 1', "Expecting"), ('{"x": "é"}', "x")]
)
def test_what_is_no_message_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"The text is not the JSON of a answers\.v1\.OneDouble") as caught:
        reader("answers.v1.OneDouble").read(text)
    assert words in str(caught.value)


def test_a_message_without_its_required_fields_is_none() -> None:
    with pytest.raises(ValueError, match="required fields are missing"):
        reader("answers.v1.Required").read("{}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("WithAny", "answers.refused.WithAny.any: google.protobuf.Any may be of any type"),
        ("WithAnys", "answers.refused.WithAnys.anys: google.protobuf.Any may be of any type"),
        ("Outer", "answers.refused.WithAny.any: google.protobuf.Any may be of any type"),
        ("Extended", "answers.refused.note: an extension of answers.refused.Extended"),
        ("Endless", "answers.refused.Endless: no message of it is finite"),
        ("Nulls", "answers.refused.Nulls.nulls: null cannot be repeated"),
        ("ManyAlternatives", "answers.refused.ManyAlternatives.third: expected oneofs with at most 64 combinations"),
        ("WithAnyy", "did you mean 'answers.refused.WithAny'"),
        ("", "no file has the message type"),
    ],
)
def test_what_no_grammar_can_hold_is_refused_by_name(name: str, reason: str) -> None:
    files = file_descriptor_set("refused_answers.proto")
    with pytest.raises(InvalidRequest) as caught:
        DescribedType(name=f"answers.refused.{name}".rstrip("."), files=files).reader("response_format.protobuf")
    assert reason in caught.value.message
    assert caught.value.message.startswith("'response_format.protobuf': ")


def described(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def file(name: str, *imports: str, **messages: descriptor_pb2.DescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name=name, dependency=imports)
    for message_name, message in messages.items():
        message.name = message_name
        made.message_type.append(message)
    return made


def fields(**kinds: Any) -> descriptor_pb2.DescriptorProto:
    """Returns a message with optional fields: of a message type by name, or of a number's type."""
    message = descriptor_pb2.DescriptorProto()
    for number, (name, kind) in enumerate(kinds.items(), 1):
        field = message.field.add(name=name, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        if isinstance(kind, str):
            field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, kind
        else:
            field.type = kind
    return message


INT = descriptor_pb2.FieldDescriptorProto.TYPE_INT32


def map_of(*names: str) -> descriptor_pb2.DescriptorProto:
    message = fields(x="A.XEntry")
    message.field[0].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    entry = message.nested_type.add()
    entry.CopyFrom(fields(**dict.fromkeys(names, INT)))
    entry.name, entry.options.map_entry = "XEntry", True
    return message


def same_in_json(*names: str) -> descriptor_pb2.DescriptorProto:
    message = fields(**dict.fromkeys(names, INT))
    message.options.deprecated_legacy_json_field_conflicts = True
    for field in message.field:
        field.json_name = "same"
    return message


def test_messages_that_are_nested_too_deep_are_refused() -> None:
    chain = {f"A{n}": fields(x=f"A{n + 1}") for n in range(1, 470)}
    files = described(file("a", A=fields(x="A1"), **chain, A470=fields()))

    def read(num_frames: int) -> None:
        if num_frames:
            read(num_frames - 1)
        else:
            DescribedType(name="A", files=files).reader("response_format.protobuf")

    with pytest.raises(InvalidRequest, match="nested too deep in each other"):
        read(sys.getrecursionlimit() // 2)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (b"\xff", "expected a serialized google.protobuf.FileDescriptorSet"),
        (b"", "no file has the message type 'A'"),
        (described(file("a", "b", A=fields())), "the file 'a' imports 'b', which is missing"),
        (described(file("a", "b", A=fields()), file("b", "a")), "the files import each other in a circle"),
        (described(file("a", A=fields(x="B"))), "the file 'a': "),
        (described(file("a", A=fields(x=INT)), file("b", A=fields())), "the file 'b': "),
        (described(file("google/protobuf/any.proto", A=fields())), "no file has the message type 'A'"),
        (described(file("a", A=fields(**{f"x{each}": INT for each in range(1001)}))), "expected at most 1000 fields"),
        (described(file("a", A=same_in_json("x", "y"))), "A.y: another field of A is 'same' in JSON too"),
        (described(file("a", A=same_in_json("x"))).replace(b"same", b"s\xffme"), "a name in the files is not UTF-8"),
        (described(file("a", A=map_of("key", "other"))), "A.x: a map's entries have the fields key and value"),
        (
            described(file("a", A=fields(**{f"x{each}": INT for each in range(600)}))),
            "A: its grammar has more than 475 rules",
        ),
    ],
)
def test_wrong_descriptors_are_refused(files: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DescribedType(name="A", files=files).reader("response_format.protobuf")
    assert reason in caught.value.message
