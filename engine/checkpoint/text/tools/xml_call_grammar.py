"""Writes grammar rules for tool calls that are XML, in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glimpse.engine.checkpoint.grammar.references import listed_values
from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.formats import XmlTags
from glimpse.engine.checkpoint.text.tools.xml_parameters import XmlParameter, xml_parameters


def xml_call_rules(index: int, tool: ToolDefinition, xml: XmlTags) -> Iterator[str]:
    """Yields the rules of `call_INDEX`: a call of the tool with its parameters in the order of its schema.

    `body_INDEX` is the part from the name on.
    """
    parameters = xml_parameters(tool)
    names = [] if parameters is None else [f"parameter_{index}_{each}" for each in range(len(parameters))]
    uses = (
        [f"any_{index}*"]
        if parameters is None
        else [name if parameter.is_required else f"{name}?" for name, parameter in zip(names, parameters, strict=True)]
    )
    function = f"{json.dumps(xml.function)} " if xml.function else ""
    yield f"call_{index}: {function}body_{index}"
    yield f"body_{index}: {json.dumps(tool.name + xml.name_end)} {' '.join(uses)} {json.dumps(xml.call_end)}"
    if parameters is None:
        names_and_values = f"/[^<>\n]{{1,64}}/ {json.dumps(xml.value)} any_text_{index}"
        yield f"any_{index}: {json.dumps(xml.parameter)} {names_and_values}"
        yield f"any_text_{index}[lazy]: {_text('', xml)}"
    for name, parameter in zip(names, parameters or (), strict=True):
        yield f"{name}: {json.dumps(xml.parameter + parameter.name + xml.value)} {name}_value"
        yield from _value_rules(f"{name}_value", parameter, xml)


def _value_rules(name: str, parameter: XmlParameter, xml: XmlTags) -> Iterator[str]:
    schema, end = parameter.schema, _end(xml)
    if not parameter.may_be_text:
        yield f"{name}: %json {json.dumps(schema, ensure_ascii=False)} {end}"
    elif parameter.is_text and (values := listed_values(schema)) is not None:
        yield f"{name}: ({' | '.join(map(json.dumps, values))}) {end}"
    else:
        yield f"{name}[lazy]: {_text(length_of(schema) if parameter.is_text else '', xml)}"


def ordered_members(members: Sequence[tuple[str, bool]], separator: str, add_rule: Callable[[str], str]) -> str:
    """Returns an expression of Lark for members in their order, with separators between them.

    Args:
        members: expressions, and whether each is required; others may be missing.
        add_rule: writes a rule of this expression, and returns its name.
    """
    starts, rest = list[str](), ""
    for member, is_required in reversed(members):
        start = f"{member} {rest}"
        if is_required:
            starts, rest = [start], add_rule(f"{separator} {start}")
        else:
            starts, rest = [start, *starts], add_rule(f"({separator} {member})? {rest}")
    is_optional = not any(is_required for _, is_required in members)
    return f"({' | '.join(starts)}){'?' if is_optional else ''}" if starts else ""


def length_of(schema: Mapping[str, Any]) -> str:
    """Returns a quantifier for a string's length; empty: any length."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if (least, most) == (0, "") or type(least) is not int or not (most == "" or type(most) is int):
        return ""
    return f"{{{least},{most}}}"


def free_text(length: str, closing: str) -> str:
    """Returns a regular expression of Lark for a text of a certain length that does not contain its closing tag."""
    escaped = re.escape(closing).replace("/", r"\/")
    return f"(/(?s:.{length or '*'})/ & ~/(?s:.*{escaped}.*)/)"


def _text(length: str, xml: XmlTags) -> str:
    return f"{free_text(length, xml.value_end.lstrip())} {_end(xml)}"


def _end(xml: XmlTags) -> str:
    """Returns what follows a value, as a literal of Lark."""
    return json.dumps(f"{xml.value_end}\n")
