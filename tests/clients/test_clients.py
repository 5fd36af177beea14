"""Popular clients × kinds of request, through Envoy to a real server."""

import base64
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from tests.clients.programs import CLIENTS, SMALL_CLIENTS, Program
from tests.e2e.scenes import scene
from tests.e2e.stack import ROOT, Stack
from tests.engine.replies import reply_with
from tests.media.pdfs import of_images

IMAGE = f"data:image/png;base64,{base64.b64encode((ROOT / 'examples/image.png').read_bytes()).decode()}"
QUESTION = "What is in this image?"
FORECAST = "Schön: 20 °C ☀️"
WEATHERS: list[dict[str, Any]] = [
    {"name": "weather", "arguments": {"city": "Köln", "days": 3}},
    {"name": "weather", "arguments": {"city": "Zürich", "days": 1}},
]
CALLS = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>',
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 1}}\n</tool_call>',
]
SHAPES = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
        "round": {"type": "boolean"},
    },
    "required": ["colour", "count", "round"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that every client sends."""

    question: str = QUESTION
    image: str = ""
    max_tokens: int = 48
    of_model: bool = True
    """Whether the embedded model answers; it is too small to choose a tool."""


ASKS = {
    "plain": Ask(),
    "streamed": Ask(),
    "image": Ask(image=IMAGE),
    "schema": Ask(max_tokens=256),
    "tool": Ask(question=f"How will it be? {reply_with(''.join(CALLS))}", max_tokens=512, of_model=False),
    "streamed_tool": Ask(question=f"How will it be? {reply_with(CALLS[0])}", max_tokens=512, of_model=False),
}


CASES = [
    *((client, ask) for client in CLIENTS for ask in ASKS),
    *((client, ask) for client in SMALL_CLIENTS for ask in ASKS if ask != "streamed_tool"),
]
LACKS = {("outlines", "tool"), ("dspy", "streamed")}
"""What clients do not have, or have with a prompt of their own: a test of its own has it."""
ENDS_WITH_CALLS = ("aisuite", "dspy", "instructor", "smolagents")
"""Clients that do not send the results of tool calls back, or not in their words."""
INTEGRATIONS = "docs/integrations/index.md"


@pytest.mark.parametrize(("client", "ask"), [case for case in CASES if case not in LACKS])
def test_every_client_works(
    client: str, ask: str, request: pytest.FixtureRequest, program: Callable[[str], Program]
) -> None:
    sent = ASKS[ask]
    stack: Stack = request.getfixturevalue("stack" if sent.of_model else "echo_stack")
    task: dict[str, Any] = {
        "max_tokens": sent.max_tokens,
        "question": sent.question,
        "image": sent.image,
        "forecast": reply_with(FORECAST),
    }
    outcome = program(client).ask(client, ask, task | {"url": stack.openai_url, "model": "nano"})
    match ask:
        case "plain" | "image":
            assert outcome["text"] == reference(stack, sent)
        case "streamed":
            assert "".join(outcome["pieces"]).strip() == reference(stack, sent)  # mirascope ends with a line break
        case "schema":
            jsonschema.validate(outcome["value"], SHAPES)
        case "tool":
            assert (outcome["calls"], outcome["text"]) == (WEATHERS, "" if client in ENDS_WITH_CALLS else FORECAST)
        case _:
            assert outcome["calls"] == WEATHERS[:1]


@pytest.mark.parametrize(
    "client", ["openai-python", "openai-python 2", "openai-node", "anthropic-python", "anthropic-node"]
)
def test_a_file_is_kept_and_asked_about(client: str, stack: Stack, program: Callable[[str], Program]) -> None:
    sent = ASKS["image"]
    task = {"max_tokens": sent.max_tokens, "question": sent.question, "image": sent.image, "forecast": ""}
    outcome = program(client).ask(client, "files", task | {"url": stack.openai_url, "model": "nano"})
    assert outcome["text"] == reference(stack, sent)


@pytest.mark.parametrize("client", ["openai-python", "openai-python 2", "openai-node"])
def test_a_batch_is_answered(client: str, stack: Stack, program: Callable[[str], Program]) -> None:
    sent = ASKS["image"]
    task = {"max_tokens": sent.max_tokens, "question": sent.question, "image": sent.image, "forecast": ""}
    outcome = program(client).ask(client, "batches", task | {"url": stack.openai_url, "model": "nano"})
    assert outcome["text"] == reference(stack, sent)


@pytest.mark.parametrize(
    "client", ["openai-python", "openai-python 2", "openai-node", "anthropic-python", "anthropic-node"]
)
def test_a_document_is_asked_about(client: str, stack: Stack, program: Callable[[str], Program]) -> None:
    pages = of_images([scene(("red", "circle", (0.5, 0.5), 0.5))])
    url = f"data:application/pdf;base64,{base64.b64encode(pages).decode()}"
    task = {"max_tokens": 48, "question": "What colour is the circle?", "image": url, "forecast": ""}
    outcome = program(client).ask(client, "document", task | {"url": stack.openai_url, "model": "nano"})
    assert "red" in outcome["text"]


def test_dspy_streams_the_field_of_a_signature(echo_stack: Stack, program: Callable[[str], Program]) -> None:
    # Longer than what a busy machine merges into one chunk.
    answer = " ".join([FORECAST] * 40)
    question = reply_with(f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]")
    task = {"max_tokens": 2048, "question": question, "image": "", "forecast": ""}
    outcome = program("dspy").ask("dspy", "streamed", task | {"url": echo_stack.openai_url, "model": "nano"})
    assert outcome["text"] == "".join(outcome["pieces"]) == answer
    assert len(outcome["pieces"]) > 1


def test_a_coding_agent_calls_a_tool_and_gets_an_image_back(
    echo_stack: Stack, program: Callable[[str], Program]
) -> None:
    """A long system text, 20 tools, `cache_control`, betas, thinking, and a result of a tool with an image."""
    task = {"max_tokens": 0, "question": f"How will it be? {reply_with(CALLS[0])}", "image": IMAGE}
    task |= {"forecast": reply_with(FORECAST), "url": echo_stack.openai_url, "model": "nano"}
    outcome = program("coding agent").ask("coding agent", "tool", task)
    assert (outcome["calls"], outcome["text"]) == (WEATHERS[:1], FORECAST)


@functools.cache
def reference(stack: Stack, ask: Ask) -> str:
    """The answer to a plain HTTP request."""
    image = {"type": "image_url", "image_url": {"url": ask.image}}
    text = {"type": "text", "text": ask.question}
    messages = [{"role": "user", "content": [image, text] if ask.image else [text]}]
    answer = stack.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": ask.max_tokens})
    return answer["choices"][0]["message"]["content"]


def test_programs_of_the_integrations_print_something(stack: Stack, program: Callable[[str], Program]) -> None:
    """Programs of docs/integrations/ as they are written, in the clients' process, which has imported the same."""
    text = (ROOT / INTEGRATIONS).read_text().replace("http://127.0.0.1:8080", stack.url)
    written = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for number, each in enumerate(written):
        compile(each, f"{INTEGRATIONS}:{number}", "exec")
        client = "Agents program" if "from agents import" in each else "programs"
        unused = {"url": "", "model": "", "max_tokens": 0, "image": "", "forecast": ""}
        assert program(client).ask(client, "run", {"question": each, **unused})["text"].strip()
