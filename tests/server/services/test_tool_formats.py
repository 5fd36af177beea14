"""Reasoning and tool calls in each format, unary and streamed, over gRPC and OpenAI's API: all say the same."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from glimpse.engine.checkpoint.text.reasoning import REASONING_FORMATS, ReasoningFormat
from glimpse.engine.checkpoint.text.tools import FORMATS, ToolFormat
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.dialects.openai import OPENAI
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.engine.replies import reply_with
from tests.server.requests import json_bodies, user
from tests.server.serving import echoing

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}, "num": {"type": "integer"}}}
ARGUMENTS = [{"at": 'ä "<b>"\n', "num": 3}, {"at": ""}]
THOUGHT = "Let me think: 🦉\n\nSo."


def written(tool_format: ToolFormat) -> str:
    """An answer with reasoning, text unless calls must come first, and two calls."""
    if xml := tool_format.xml:
        values = [
            "".join(f"{xml.parameter}{name}{xml.value}{value}{xml.value_end}\n" for name, value in each.items())
            for each in ARGUMENTS
        ]
        calls = [f"{xml.function}look{xml.name_end}{each}{xml.call_end}" for each in values]
    elif quote := tool_format.quote:
        values = [
            ",".join(f"{n}:{quote}{v}{quote}" if isinstance(v, str) else f"{n}:{v}" for n, v in each.items())
            for each in ARGUMENTS
        ]
        calls = [f"call:look{{{each}}}" for each in values]
    else:
        key = tool_format.arguments_key
        calls = [json.dumps({"name": "look", key: each}, ensure_ascii=False) for each in ARGUMENTS]
        if tool_format.arguments_tag:
            calls = [f"look{tool_format.arguments_tag}{json.dumps(each, ensure_ascii=False)}" for each in ARGUMENTS]
    before = "" if tool_format.bare else f"I look.\n{tool_format.opening}"
    whole = tool_format.before + tool_format.between.join(calls) + tool_format.after
    tags = reasoning_of(tool_format)
    return f"{tags.opening}\n{THOUGHT}\n{tags.closing}\n\n{before}{whole}"


def reasoning_of(tool_format: ToolFormat) -> ReasoningFormat:
    return REASONING_FORMATS.get(tool_format.name, REASONING_FORMATS["qwen3"])


def joined(messages: Iterable[Any]) -> dict[str, Any]:
    """Joins the messages of unary answers, or the deltas of streams, as clients do."""
    whole: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}}
    for message in messages:
        whole["reasoning"] += message.get("reasoning") or ""
        whole["content"] += message.get("content") or ""
        for index, call in enumerate(message.get("tool_calls", ())):
            name, arguments = whole["calls"].get(call.get("index", index), ("", ""))
            function = call["function"]
            made = (name + function.get("name", ""), arguments + function.get("arguments", ""))
            whole["calls"][call.get("index", index)] = made
    return whole


async def posted(channel: grpc.aio.Channel, body: dict[str, Any]) -> list[Any]:
    """Returns the JSON documents of an answer, or the events of a stream."""
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    text = "".join([part.data.decode() async for part in openai.CreateChatCompletion(json_bodies(body))])
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS.keys())
async def test_all_kinds_of_answers_say_the_same(tiny_checkpoint: Path, tool_format: ToolFormat) -> None:
    prompt = reply_with(written(tool_format))
    tool = chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name="look", parameters=json.dumps(SCHEMA)))
    wire = chat_pb2.CreateChatCompletionRequest(messages=[user(prompt)], tools=[tool])
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
    }
    reasoning = reasoning_of(tool_format).name
    async with echoing(tiny_checkpoint, tool_call_parser=tool_format.name, reasoning_parser=reasoning) as (_, channel):
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        typed = json.loads(OPENAI.codec.encode(await chat.CreateChatCompletion(wire)))
        chunks = [json.loads(OPENAI.codec.encode(chunk)) async for chunk in chat.StreamChatCompletion(wire)]
        (rest,) = await posted(channel, body)
        events = await posted(channel, body | {"stream": True})
    answers = [joined([whole["choices"][0]["message"]]) for whole in (typed, rest)]
    answers += [joined(chunk["choices"][0]["delta"] for chunk in stream) for stream in (chunks, events)]
    assert all(answer == answers[0] for answer in answers)
    assert (answers[0]["reasoning"], answers[0]["content"]) == (THOUGHT, "" if tool_format.bare else "I look.")
    assert [(name, json.loads(text)) for name, text in answers[0]["calls"].values()] == [
        ("look", each) for each in ARGUMENTS
    ]
