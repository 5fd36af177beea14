"""Hostile files and grammars, as tests of their own have them, all at once."""

import asyncio
import base64
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import DESCRIPTOR, FileDescriptorSet

from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import http_session, rest_unary
from tests.chaos.questions import chat, chat_with_image
from tests.hostile.images import hostile_images

_AT_ONCE = 8
_GRAMMARS: dict[str, dict[str, Any]] = {
    "pattern that backtracks": {"type": "string", "pattern": "^(a+)+$"},
    "pattern with a large count": {"type": "string", "pattern": "^(a{1,500}){1,500}$"},
    "endless reference": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "references that multiply": {
        "$ref": "#/$defs/a0",
        "$defs": {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(30)}
        | {"a30": {"type": "null"}},
    },
    "long enumeration": {"enum": [f"value number {n}" for n in range(5000)]},
    "long array": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000},
    "large range": {"type": "integer", "minimum": -(10**15), "maximum": 10**15, "multipleOf": 7},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(900)}},
}


async def _images(arena: Arena) -> None:
    files = [data for data, _ in hostile_images().values()]
    arena.rng.shuffle(files)
    files = files[: arena.times(len(files))]
    async with http_session(arena.target.url) as session:
        bodies = (arena.anywhere(chat_with_image(data, max_completion_tokens=1)) for data in files)
        await some_at_once(arena.ask(rest_unary(session, *body)) for body in bodies)


async def _grammars(arena: Arena) -> None:
    async with http_session(arena.target.url) as session:
        formats: list[Mapping[str, Any]] = [
            {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in _GRAMMARS.values()
        ]
        formats.append({"type": "protobuf", "protobuf": _descriptors()})
        bodies = (arena.anywhere(chat("Go on.", response_format=each)) for each in formats)
        await some_at_once(arena.ask(rest_unary(session, *body)) for body in bodies)


def _descriptors() -> dict[str, str]:
    """The message type of protobuf's own descriptors, whose messages contain each other."""
    files = FileDescriptorSet()
    DESCRIPTOR.CopyToProto(files.file.add())
    data = base64.b64encode(files.SerializeToString()).decode()
    return {"name": FileDescriptorSet.DESCRIPTOR.full_name, "file_descriptor_set": data}


async def some_at_once(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Does some of the works at a time, until all are done."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Coroutine[Any, Any, object]) -> None:
        async with slots:
            await work

    await asyncio.gather(*map(one, works))


ATTACKS = [
    ClientAttack(name="hostile-images", summary="bombs, cut files and other files of tests/hostile", run=_images),
    ClientAttack(
        name="hostile-grammars", summary="schemas and message types that are large when compiled", run=_grammars
    ),
]
