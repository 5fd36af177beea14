"""Writes grammar rules for tool calls as Python writes them, in llguidance's dialect of Lark. Values are JSON."""

import json
from collections.abc import Iterator

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.xml_call_grammar import ordered_members
from glimpse.engine.checkpoint.text.tools.xml_parameters import xml_parameters


def python_call_rules(index: int, tool: ToolDefinition) -> Iterator[str]:
    """Yields the rules of `call_INDEX`: a call of the tool with its parameters in the order of its schema."""
    parameters = xml_parameters(tool)
    if parameters is None:
        yield f'call_{index}: {json.dumps(f"{tool.name}(")} (any_{index} (", " any_{index})*)? ")"'
        yield f'any_{index}: /[^\\W\\d]\\w{{0,63}}/ "=" any_value_{index}'
        yield f"any_value_{index}: %json {{}}"
        return
    names = [f"parameter_{index}_{place}" for place in range(len(parameters))]
    for name, parameter in zip(names, parameters, strict=True):
        yield f"{name}: {json.dumps(f'{parameter.name}=')} {name}_value"
        yield f"{name}_value: %json {json.dumps(parameter.schema, ensure_ascii=False)}"
    rests: list[str] = []

    def add_rule(rule: str) -> str:
        rests.append(f"rest_{index}_{len(rests)}: {rule}")
        return f"rest_{index}_{len(rests) - 1}"

    required = (parameter.is_required for parameter in parameters)
    members = ordered_members([*zip(names, required, strict=True)], '", "', add_rule)
    yield from rests
    yield f'call_{index}: {json.dumps(f"{tool.name}(")} {members} ")"'
