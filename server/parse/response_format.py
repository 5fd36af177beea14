"""Parses the response format into a constraint. Does not check whether the grammar can be enforced."""

import json

from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.message_types.described_type import MAX_DESCRIPTION_BYTES, DescribedType
from glimpse.server.request import Constraint
from glimpse.v1 import chat_pb2, completion_pb2, generation_pb2


def parse_response_format(
    request: chat_pb2.CreateChatCompletionRequest | completion_pb2.CreateCompletionRequest,
) -> Constraint | None:
    """Parses `response_format` or `structured_outputs`; None: any text. Raises InvalidRequest."""
    constraint = _parse_format(request.response_format)
    if not request.HasField("structured_outputs"):
        return constraint
    if constraint is not None:
        raise InvalidRequest("structured_outputs", "cannot be combined with response_format", "conflicting_values")
    return _parse_outputs(request.structured_outputs)


def _parse_format(response_format: chat_pb2.ResponseFormat) -> Constraint | None:
    match response_format.WhichOneof("format"):
        case "json_object":
            return _constraint(GrammarKind.JSON_OBJECT, "", "response_format")
        case "json_schema":
            return _schema(response_format.json_schema.schema, "response_format.json_schema.schema")
        case "protobuf":
            return _message_type(response_format.protobuf, "response_format.protobuf")
        case _:
            return None


def _parse_outputs(outputs: generation_pb2.StructuredOutputs) -> Constraint:
    path = "structured_outputs"
    match outputs.WhichOneof("constraint"):
        case "json":
            return _schema(_unquoted(outputs.json), f"{path}.json")
        case "json_object":
            if not outputs.json_object:
                raise InvalidRequest(f"{path}.json_object", "expected true, got false")
            return _constraint(GrammarKind.JSON_OBJECT, "", f"{path}.json_object")
        case "regex":
            return _constraint(GrammarKind.REGEX, outputs.regex, f"{path}.regex")
        case "choice":
            return _choice(outputs.choice, f"{path}.choice")
        case "grammar":
            return _constraint(GrammarKind.LARK, outputs.grammar, f"{path}.grammar")
        case _:
            raise InvalidRequest(path, "expected json, json_object, regex, choice or grammar", "missing_value")


def _schema(text: str, field: str) -> Constraint:
    if not text:
        raise InvalidRequest(field, "required, but missing", "missing_value")
    return _constraint(GrammarKind.JSON_SCHEMA, text, field)


def _message_type(given: chat_pb2.MessageType, path: str) -> Constraint:
    for name in ("name", "file_descriptor_set"):
        if not getattr(given, name):
            raise InvalidRequest(f"{path}.{name}", "required, but missing", "missing_value")
    num_bytes = len(given.file_descriptor_set)
    if num_bytes > MAX_DESCRIPTION_BYTES:
        message = f"expected at most {MAX_DESCRIPTION_BYTES} bytes, got {num_bytes}: send only the files that it needs"
        raise InvalidRequest(f"{path}.file_descriptor_set", message)
    described = DescribedType(name=given.name, files=given.file_descriptor_set)
    return Constraint(grammar=Grammar(kind=GrammarKind.LARK), field=path, answer_type=described)


def _choice(choices: generation_pb2.StringList, field: str) -> Constraint:
    if not all(choices.values):
        raise InvalidRequest(field, "expected strings of at least one character")
    return _constraint(GrammarKind.CHOICE, json.dumps(list(choices.values), ensure_ascii=False), field)


def _constraint(kind: GrammarKind, text: str, field: str) -> Constraint:
    return Constraint(grammar=Grammar(kind=kind, text=text), field=field)


def _unquoted(text: str) -> str:
    """Returns the schema, unwrapped if it is a JSON string that contains it."""
    return json.loads(text) if text.lstrip().startswith('"') else text
