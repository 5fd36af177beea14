"""Conversations with keys: on which server each turn was computed, and what was cached there."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.chaos.calls import http_session
from tests.chaos.endpoints import CHAT
from tests.rehearsal.mesh import Mesh

_TOPIC = "Tell me about a place, its people, and what they eat there, and leave nothing out. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answered request."""

    status: int
    cached_tokens: int
    prompt_tokens: int
    request_id: str


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A key and what was said under it."""

    key: str
    messages: list[dict[str, Any]]
    turns: list[Turn] = field(default_factory=list[Turn])


@dataclass(slots=True, kw_only=True)
class Findings:
    """What the conversations showed. Moves are counted between turns."""

    num_conversations: int
    num_turns: int
    homes: list[int]
    """Conversations by server, at first."""
    killed: int
    """The server that was killed."""
    num_disturbances: int
    """Failed health checks and retries while all servers ran. After one, a conversation may have moved for it."""
    num_failed: int
    """Turns that were not answered; those that ran on the killed server when it died do not count."""
    num_interrupted: int
    """Turns that ran on the killed server when it died and ended with an error."""
    moved_before: int
    """Conversations that changed their server although all were there."""
    moved_from_dead: int
    """Conversations of the killed server that moved."""
    moved_from_others: int
    """Conversations of other servers that moved with its death."""
    returned: int
    """Conversations of the killed server that are on it again after its return."""
    moved_at_return: int
    """Conversations of other servers that moved with its return."""
    cached_tokens: int
    """Cached tokens of the second turns."""
    cached_tokens_alone: int
    """Cached tokens of the same turns on a single server."""


async def converse(mesh: Mesh, *, num_conversations: int, at_a_time: int) -> Findings:
    """Holds conversations; kills the server of the first one meanwhile, and starts it again.

    Turns: two with all servers, one while a server is killed, one without it, one after its return.
    """
    named = uuid.uuid4().hex[:8]
    conversations = [_conversation(f"{named}-{number}") for number in range(num_conversations)]
    async with http_session(mesh.alone.target.url) as session:
        alone = [_conversation(f"{named}-alone-{number}") for number in range(num_conversations)]
        for _ in range(2):
            await _ask_all(session, alone, at_a_time)
    async with http_session(mesh.gateway.target.url) as session:
        disturbances = -await mesh.num_disturbances()
        for _ in range(2):
            await _ask_all(session, conversations, at_a_time)
        disturbances += await mesh.num_disturbances()
        first = conversations[0].turns[0].request_id
        victim = (await mesh.servers_of([first]))[first]
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(_ask_all(session, conversations, at_a_time))
            await _until(conversations, turn=3, share=0.3)
            await mesh.kill(victim)
            await turn
        await mesh.until_healthy(len(mesh.replicas) - 1)
        await _ask_all(session, conversations, at_a_time)
        await mesh.start(victim)
        disturbances -= await mesh.num_disturbances()
        await _ask_all(session, conversations, at_a_time)
        disturbances += await mesh.num_disturbances()
    servers = await mesh.servers_of(turn.request_id for each in conversations for turn in each.turns)
    places = [[servers[turn.request_id] for turn in each.turns] for each in conversations]
    return _findings(conversations, alone, places, victim, disturbances)


def _findings(
    conversations: Sequence[Conversation],
    alone: Sequence[Conversation],
    places: Sequence[Sequence[int]],
    victim: int,
    num_disturbances: int,
) -> Findings:
    failed = [turn for each in conversations for turn in each.turns if turn.status != 200]
    interrupted = [
        each.turns[2] for each, place in zip(conversations, places, strict=True)
        if each.turns[2].status != 200 and place[2] == victim
    ]  # fmt: skip
    dead = [place for place in places if place[0] == victim]
    others = [place for place in places if place[0] != victim]
    return Findings(
        num_conversations=len(conversations),
        num_turns=sum(len(each.turns) for each in conversations),
        homes=[sum(place[0] == number for place in places) for number in range(1 + max(max(p) for p in places))],
        killed=victim,
        num_disturbances=num_disturbances,
        num_failed=len(failed) - len(interrupted),
        num_interrupted=len(interrupted),
        moved_before=sum(place[1] != place[0] for place in places),
        moved_from_dead=sum(place[3] != place[0] for place in dead),
        moved_from_others=sum(place[3] != place[0] for place in others),
        returned=sum(place[4] == place[0] for place in dead),
        moved_at_return=sum(place[4] != place[3] for place in others),
        cached_tokens=sum(each.turns[1].cached_tokens for each in conversations),
        cached_tokens_alone=sum(each.turns[1].cached_tokens for each in alone),
    )


def _conversation(key: str) -> Conversation:
    return Conversation(key=key, messages=[{"role": "user", "content": f"{key}: {_TOPIC * 8}"}])


async def _ask_all(session: aiohttp.ClientSession, conversations: Sequence[Conversation], at_a_time: int) -> None:
    """Asks the next turn of every conversation."""
    turns = asyncio.Semaphore(at_a_time)

    async def ask(conversation: Conversation) -> None:
        async with turns:
            await _ask(session, conversation)

    async with asyncio.TaskGroup() as tasks:
        for each in conversations:
            tasks.create_task(ask(each))


async def _ask(session: aiohttp.ClientSession, conversation: Conversation) -> None:
    request_id = f"{conversation.key}-{len(conversation.turns)}"
    body = {"messages": conversation.messages, "prompt_cache_key": conversation.key, "max_tokens": 4, "temperature": 0}
    async with session.post(CHAT, json=body, headers={"x-request-id": request_id}) as response:
        document = await response.json()
    status, cached, prompt, said = response.status, 0, 0, "…"
    if status == 200:
        usage, (choice,) = document["usage"], document["choices"]
        cached, prompt = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        said = choice["message"]["content"]
    conversation.turns.append(Turn(status=status, cached_tokens=cached, prompt_tokens=prompt, request_id=request_id))
    conversation.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]


async def _until(conversations: Sequence[Conversation], *, turn: int, share: float) -> None:
    """Waits until this share of the conversations has had the turn."""
    while sum(len(each.turns) >= turn for each in conversations) < share * len(conversations):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
