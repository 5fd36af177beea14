"""LoRA adapters that come and go while requests have them."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import aiohttp

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import Send, http_session, rest_unary, rest_value
from tests.chaos.questions import chat
from tests.chaos.transcript import Outcome

_ALPHAS = {"chaos-a": -6, "chaos-b": -4, "chaos-c": 0, "chaos-d": 2, "chaos-e": 4, "chaos-f": 6}
"""Scales of the same matrices, by the name of the adapter: their answers differ, and that of 0 is the base's."""
_CLIENTS, _SECONDS, _LEAST_SECONDS = 2, 8.0, 4.0
_AWAY = frozenset({"model_not_found"})


async def _changing(arena: Arena) -> None:
    """Loads, replaces and unloads each adapter while clients ask for it: they get its answer, or that it is away."""
    async with http_session(arena.target.url) as session:
        async with session.get("/v1/models") as answer:
            if (await answer.json())["data"][0]["id"] != "nano":
                arena.counts["adapters fit the embedded model alone"] += 1
                return
        await asyncio.to_thread(_write_adapters, Path(arena.target.adapters))
        expected = {name: await _learn(arena, session, name) for name in _ALPHAS}
        if len({*expected.values()}) < len(expected):
            raise ValueError(f"expected adapters whose answers differ, got {expected}")
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_LEAST_SECONDS, _SECONDS * arena.scale)), asyncio.TaskGroup() as tasks:
                for name, text in expected.items():
                    tasks.create_task(_change(arena, session, name))
                    for _ in range(_CLIENTS):
                        tasks.create_task(_ask(arena, session, name, text))
        for name in _ALPHAS:
            await arena.ask(_unload(session, name), tolerates=_AWAY)


def _write_adapters(folder: Path) -> None:
    from tests.checkpoints.lora import make_adapter  # noqa: PLC0415 - imports torch, which other attacks do not need

    for name, alpha in _ALPHAS.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        make_adapter(folder / name, DEFAULT_MODEL, strength=50, lora_alpha=alpha)


async def _learn(arena: Arena, session: aiohttp.ClientSession, name: str) -> str:
    while True:  # a kill may come between
        await arena.ask(_load(session, name))
        call = await arena.ask(_question(session, name))
        if call.transcript.verdict().outcome is Outcome.OK:
            return "".join(call.transcript.pieces)


async def _change(arena: Arena, session: aiohttp.ClientSession, name: str) -> None:
    while True:
        for send in (_unload(session, name), _load(session, name), _load(session, name)):
            await arena.ask(send, tolerates=_AWAY)
            await asyncio.sleep(0.2 * arena.rng.random())


async def _ask(arena: Arena, session: aiohttp.ClientSession, name: str, expected: str) -> None:
    while True:
        text = expected if arena.compares else None
        await arena.ask(_question(session, name), tolerates=_AWAY, expected=text)
        await asyncio.sleep(0.05)


def _question(session: aiohttp.ClientSession, name: str) -> Send:
    return rest_unary(session, chat("Say hello.", model=name, max_completion_tokens=8))


def _load(session: aiohttp.ClientSession, name: str) -> Send:
    return rest_value(
        session, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": name, "load_inplace": True}, "id"
    )


def _unload(session: aiohttp.ClientSession, name: str) -> Send:
    return rest_value(session, "/v1/unload_lora_adapter", {"lora_name": name}, "id")


ATTACKS = [
    ClientAttack(
        name="changing-adapters",
        summary="6 LoRA adapters of the embedded model are loaded, replaced and unloaded while 12 clients ask for them",
        run=_changing,
    )
]
