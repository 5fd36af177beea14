"""Requests as coding agents send them through Anthropic's client: a long system text, many tools, betas."""

from typing import Any

from anthropic import Anthropic
from anthropic.types.beta import BetaMessage
from driver import WEATHER, WEATHER_DESCRIPTION, WEATHER_PARAMETERS, Call, Outcome, Task

SYSTEM = "You are an agent that edits the files of a project. " + "Read a file before you change it. " * 10
CACHED = {"type": "ephemeral", "ttl": "1h"}
TOOLS: list[Any] = [
    {"name": WEATHER, "description": WEATHER_DESCRIPTION, "input_schema": WEATHER_PARAMETERS},
    *(
        {
            "name": f"mcp__files__tool_{number}",
            "description": f"Tool {number}.\n- Paths are absolute.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "file_path": {"type": "string"},
                    "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
                    "mode": {"default": "read", "type": "string", "enum": ["read", "write"]},
                },
                "required": ["file_path"],
                "additionalProperties": False,
            },
        }
        for number in range(19)
    ),
]


def turn(task: Task, messages: list[Any]) -> BetaMessage:
    """Sends a conversation and collects the streamed answer."""
    client = Anthropic(base_url=task.url.removesuffix("/v1"), auth_token="none", max_retries=0)
    system = [
        {"type": "text", "text": "You are a coding agent."},
        {"type": "text", "text": SYSTEM, "cache_control": CACHED},
    ]
    common: Any = {
        "model": task.model,
        "system": system,
        "messages": messages,
        "tools": TOOLS,
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    counted = client.beta.messages.count_tokens(**common)
    options: Any = {
        "max_tokens": 32_000,
        "metadata": {"user_id": "user_0_account__session_1"},
        "extra_body": {"temperature": 1},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
    }
    with client.beta.messages.stream(**common, **options) as stream:
        message = stream.get_final_message()
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    return message


def tool(task: Task) -> Outcome:
    reminder = {"type": "text", "text": "<system-reminder>\nThe date is today's.\n</system-reminder>"}
    question = {"type": "text", "text": task.question, "cache_control": CACHED}
    messages: list[Any] = [{"role": "user", "content": [reminder, question]}]
    asked = turn(task, messages)
    assert asked.stop_reason == "tool_use"
    calls = [block for block in asked.content if block.type == "tool_use"]
    image = {"type": "base64", "media_type": "image/png", "data": task.image.partition(",")[2]}
    results = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "is_error": False,
            "content": [{"type": "image", "source": image}, {"type": "text", "text": task.forecast}],
        }
        for call in calls
    ]
    messages += [{"role": "assistant", "content": [block.to_dict() for block in asked.content]}]
    messages += [{"role": "user", "content": [*results, {"type": "text", "text": "Go on.", "cache_control": CACHED}]}]
    answer = turn(task, messages)
    return Outcome(
        text="".join(block.text for block in answer.content if block.type == "text"),
        calls=tuple(Call(name=call.name, arguments=dict(call.input)) for call in calls),
    )


ASKS = {"tool": tool}
