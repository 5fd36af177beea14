"""The form that an answer must have, of the wire → a constraint. Whether it can be enforced is the grammar's affair."""

import json

from glimpse.engine.sampling_params import Grammar, GrammarKind
from glimpse.server.request import Constraint
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import chat_pb2, completion_pb2, generation_pb2


def parse_form(
    request: chat_pb2.CreateChatCompletionRequest | completion_pb2.CreateCompletionRequest,
) -> Constraint | None:
    """What `response_format` or `structured_outputs` says; None for any text. Raises InvalidRequest."""
    form = _parse_format(request.response_format)
    if not request.HasField("structured_outputs"):
        return form
    if form is not None:
        raise InvalidRequest("structured_outputs", "It cannot stand beside a response_format.", "conflicting_values")
    return _parse_outputs(request.structured_outputs)


def _parse_format(form: chat_pb2.ResponseFormat) -> Constraint | None:
    match form.WhichOneof("format"):
        case "json_object":
            return _constraint(GrammarKind.JSON_OBJECT, "", "response_format")
        case "json_schema":
            return _schema(form.json_schema.schema, "response_format.json_schema.schema")
        case _:
            return None


def _parse_outputs(outputs: generation_pb2.StructuredOutputs) -> Constraint:
    path = "structured_outputs"
    match outputs.WhichOneof("constraint"):
        case "json":
            return _schema(_unquoted(outputs.json), f"{path}.json")
        case "json_object":
            if not outputs.json_object:
                raise InvalidRequest(f"{path}.json_object", "It can only be true.")
            return _constraint(GrammarKind.JSON_OBJECT, "", f"{path}.json_object")
        case "regex":
            return _constraint(GrammarKind.REGEX, outputs.regex, f"{path}.regex")
        case "choice":
            return _choice(outputs.choice, f"{path}.choice")
        case "grammar":
            return _constraint(GrammarKind.LARK, outputs.grammar, f"{path}.grammar")
        case _:
            raise InvalidRequest(path, "It needs json, json_object, regex, choice or grammar.", "missing_value")


def _schema(text: str, field: str) -> Constraint:
    if not text:
        raise InvalidRequest(field, f"Missing required parameter: '{field}'.", "missing_value")
    return _constraint(GrammarKind.JSON_SCHEMA, text, field)


def _choice(choices: generation_pb2.StringList, field: str) -> Constraint:
    if not all(choices.values):
        raise InvalidRequest(field, "A choice cannot be empty.")
    return _constraint(GrammarKind.CHOICE, json.dumps(list(choices.values), ensure_ascii=False), field)


def _constraint(kind: GrammarKind, text: str, field: str) -> Constraint:
    return Constraint(grammar=Grammar(kind=kind, text=text), field=field)


def _unquoted(text: str) -> str:
    """The schema itself, where it was given as a JSON string that holds it."""
    return json.loads(text) if text.lstrip().startswith('"') else text
