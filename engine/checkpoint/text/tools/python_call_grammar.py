"""Writes grammar rules for tool calls as Python writes them, in llguidance's dialect of Lark. Values are JSON."""

import json
from collections.abc import Iterator

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.xml_parameters import xml_parameters


def python_call_rules(index: int, tool: ToolDefinition) -> Iterator[str]:
    """Yields the rules of `call_INDEX`: a call of the tool with its parameters in the order of its schema."""
    parameters = xml_parameters(tool)
    if parameters is None:
        yield f'call_{index}: {json.dumps(f"{tool.name}(")} (any_{index} (", " any_{index})*)? ")"'
        yield f'any_{index}: /[^\\W\\d]\\w{{0,63}}/ "=" any_value_{index}'
        yield f"any_value_{index}: %json {{}}"
        return
    starts, rest = list[str](), ""
    for place, parameter in reversed([*enumerate(parameters)]):
        name = f"parameter_{index}_{place}"
        yield f"{name}: {json.dumps(f'{parameter.name}=')} {name}_value"
        yield f"{name}_value: %json {json.dumps(parameter.schema, ensure_ascii=False)}"
        start = f"{name} {rest}"
        if parameter.is_required:
            yield f'rest_{index}_{place}: ", " {start}'
            starts = [start]
        else:
            yield f'rest_{index}_{place}: (", " {name})? {rest}'
            starts = [start, *starts]
        rest = f"rest_{index}_{place}"
    is_optional = not any(parameter.is_required for parameter in parameters)
    members = f"({' | '.join(starts)}){'?' if is_optional else ''}" if starts else ""
    yield f'call_{index}: {json.dumps(f"{tool.name}(")} {members} ")"'
