"""Requests that are large or have too many of something."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.chaos import raw_http
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import Send
from tests.chaos.questions import chat, chat_with_images

_MIB = 1 << 20
_SPECIAL = b"<|im_start|>"
_MARK = "0123456789"
"""Stands for what is large, where a body is made."""
_MANY = 100_000


async def _invalid_images(arena: Arena) -> None:
    """Each body is as large as bodies may be, and no image."""
    data, body = b"QUJD" * (15 * _MIB - 100), chat_with_images([f"data:image/png;base64,{_MARK}"])
    count = arena.times(50)
    arena.counts["bodies of 60 MiB"] = count
    await arena.ask_all(_post(arena, body, data) for _ in range(count))


def _post(arena: Arena, body: Mapping[str, Any], data: bytes) -> Send:
    """A request whose body has the data in place of its mark."""
    form, path = arena.anywhere(body)
    start, end = json.dumps(form).encode().split(_MARK.encode())
    return raw_http.post(arena.target, (start, data, end), path=path)


async def _long_prompts(arena: Arena) -> None:
    """One after the other, since each is bad enough: words, names of special tokens, one word, ten megabytes."""
    million = 1_000_000
    texts = {
        "1 MB of words": b"word " * (million // 5),
        "1 MB of special tokens": _SPECIAL * (million // len(_SPECIAL)),
        "1 MB without a space": b"x" * million,
        "10 MB": b"one two three " * (10 * million // 14),
    }
    for name, text in texts.items():
        await arena.ask(_post(arena, chat(_MARK), text))
        arena.counts["prompts of 10 MB" if name == "10 MB" else "prompts of 1 MB"] += 1
    tokenize = (b'{"prompt": "', texts["10 MB"], b'"}')
    await arena.ask(raw_http.post(arena.target, tokenize, path="/tokenize"))


async def _longest_prompt(arena: Arena) -> None:
    text = b"one two three " * (60 * 1_000_000 // 14)
    await arena.ask(_post(arena, chat(_MARK), text))
    arena.counts["prompts of 60 MB"] += 1


def _many(make: Callable[[int], Mapping[str, Any]]) -> Callable[[Arena], Any]:
    """An attack of one request with very many of something."""

    async def run(arena: Arena) -> None:
        form, path = arena.anywhere(make(arena.times(_MANY)))
        body = json.dumps(form).encode()
        arena.counts["bytes"] = len(body)
        await arena.ask(raw_http.post(arena.target, (body,), path=path))

    return run


def _messages(count: int) -> Mapping[str, Any]:
    return chat("", messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * (count // 2))


def _parts(count: int) -> Mapping[str, Any]:
    return chat("", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * count}])


def _unknown_members(count: int) -> Mapping[str, Any]:
    return chat("Hi") | {f"unknown_{number}": number for number in range(2 * count)}


def _unknown_numbers(count: int) -> Mapping[str, Any]:
    return chat("Hi", unknown=[0.123456789] * (20 * count))


def _biases(count: int) -> Mapping[str, Any]:
    return chat("Hi", logit_bias={str(number): 1 for number in range(count)})


def _stops(count: int) -> Mapping[str, Any]:
    return chat("Hi", stop=[f"stop {number}" for number in range(count)])


def _tools(count: int) -> Mapping[str, Any]:
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(count // 10)]
    return chat("Hi", tools=tools)


def _nested(count: int) -> Mapping[str, Any]:
    return chat("Hi", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": _deep(count)}})


def _deep(count: int) -> Mapping[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(min(count, 500)):
        schema = {"items": schema}
    return schema


_MANY_OF: dict[str, Callable[[int], Mapping[str, Any]]] = {
    "messages": _messages,
    "parts": _parts,
    "unknown-members": _unknown_members,
    "unknown-numbers": _unknown_numbers,
    "biases": _biases,
    "stops": _stops,
    "tools": _tools,
    "nested-schemas": _nested,
}

ATTACKS = [
    ClientAttack(
        name="invalid-images",
        summary="50 clients send 60 MiB each that is no image",
        run=_invalid_images,
    ),
    ClientAttack(
        name="long-prompts", summary="prompts of 1 MB and 10 MB, four kinds, and /tokenize", run=_long_prompts
    ),
    ClientAttack(name="longest-prompt", summary="a prompt of 60 MB", run=_longest_prompt),
    *(
        ClientAttack(name=f"many-{name}", summary=f"one request with very many {name}", run=_many(make), weight=0.4)
        for name, make in _MANY_OF.items()
    ),
]
