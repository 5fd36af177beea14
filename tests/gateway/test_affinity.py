"""Requests with the same key, or the same beginning of a conversation, reach the same one of three servers."""

import asyncio
import io
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway import admin
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.options import GatewayLimits
from glimpse.gateway.replicas.affinity import BODY_BYTES, KEY_HEADER, NO_KEY, grpc_paths, rest_templates
from glimpse.gateway.run import Envoy
from glimpse.identity.authentication import AuthenticationOptions
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.gateway.backend import Backend, Context, Requests, event, read, start_backend
from tests.gateway.conftest import ANY_PORT
from tests.identity.tokens import AUDIENCE, ISSUER, Provider
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
KEYS = [f"conversation-{number}" for number in range(60)]
LARGE = 3 * BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Three servers behind one Envoy, and clients of it."""

    backends: list[Backend]
    http: aiohttp.ClientSession
    channel: grpc.aio.Channel
    admin: Path
    """Envoy's admin socket."""

    async def rest(self, body: Any, path: str = CHAT, **headers: str) -> tuple[int, str]:
        """Asks over REST. Returns which server was asked, and with which key."""
        return await self._asked(
            self._post(path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)
        )

    async def get(self, path: str) -> tuple[int, str]:
        return await self._asked(self._read(path))

    async def _read(self, path: str) -> None:
        async with self.http.get(path) as answer:
            assert answer.status == 200, await answer.text()

    async def grpc(self, *messages: Any, metadata: Sequence[tuple[str, str]] = (), **fields: Any) -> tuple[int, str]:
        request = chat_pb2.CreateChatCompletionRequest(messages=messages, **fields)
        stream = chat_pb2_grpc.ChatServiceStub(self.channel).StreamChatCompletion(request, metadata=metadata)
        return await self._asked(_drained(stream))

    async def grpc_web(self, **fields: Any) -> tuple[int, str]:
        message = chat_pb2.CreateChatCompletionRequest(**fields).SerializeToString()
        body = struct.pack(">BI", 0, len(message)) + message
        path, headers = "/glimpse.v1.ChatService/StreamChatCompletion", {"content-type": "application/grpc-web+proto"}
        return await self._asked(self._post(path, body, headers))

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        headers = {"content-type": "application/json", **headers}
        async with self.http.post(path, data=io.BytesIO(body), headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    async def _asked(self, call: Any) -> tuple[int, str]:
        before = [backend.num_calls for backend in self.backends]
        await call
        (asked,) = (number for number, backend in enumerate(self.backends) if backend.num_calls > before[number])
        return asked, self.backends[asked].metadata[KEY_HEADER]


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    backends = [await start_backend() for _ in range(3)]
    upstream = tuple(backend.address for backend in backends)
    options = [("grpc.max_send_message_length", -1)]
    limits, folder = GatewayLimits(max_pause_seconds=1), tmp_path_factory.mktemp("envoy")
    async with (
        Envoy(GatewayOptions(listen=ANY_PORT, upstream=upstream, limits=limits), run_dir=folder) as envoy,
        aiohttp.ClientSession(envoy.url) as http,
        grpc.aio.insecure_channel(str(envoy.address), options=options) as channel,
    ):
        made = Replicas(backends=backends, http=http, channel=channel, admin=folder / "admin.sock")
        await until_all_serve(made)
        yield made
    for backend in made.backends:
        await backend.server.stop(0)


async def until_all_serve(replicas: Replicas) -> None:
    async def all_serve() -> bool:
        return len({(await replicas.rest({"prompt_cache_key": key}))[0] for key in KEYS}) == 3

    await until(all_serve, pause=0.1)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def typed(role: int, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def typed_image(data: bytes) -> dict[str, Any]:
    return {"image": {"source": {"data": data}}}


async def test_a_key_reaches_one_server_from_every_protocol(replicas: Replicas) -> None:
    asked = Counter[int]()
    for key in KEYS:
        first = await replicas.rest({"messages": [user("Hi")], "prompt_cache_key": key})
        assert first[1] == key
        asked[first[0]] += 1
        message = typed(3, {"text": key})
        assert await replicas.rest({"prompt_cache_key": key, "messages": [user([image("AA")])]}) == first
        assert await replicas.grpc(message, prompt_cache_key=key) == first
        assert await replicas.grpc_web(prompt_cache_key=key) == first
    # Binomial, by ports that the system chose: fewer come once in a million.
    assert min(asked[number] for number in range(3)) >= 3


@pytest.mark.parametrize("key", ["", "two words", "ключ", 'a"b', "x" * 200, "-"])
async def test_any_text_may_be_a_key(replicas: Replicas, key: str) -> None:
    asked, header = await replicas.rest({"messages": [user("Hi")], "prompt_cache_key": key})
    assert header.isascii()
    assert len(header) < 40
    for _ in range(3):
        assert await replicas.rest({"messages": [user("Hi")], "prompt_cache_key": key}) == (asked, header)


BEGINNINGS = [
    [user("Hi")],
    [user("Hello")],
    [system("Be brief."), user("Hi")],
    [system("Be kind."), user("Hi")],
    [system("Be brief."), {"role": "developer", "content": "In French."}, user("Hi")],
    [user([image("AAAA"), {"type": "text", "text": "What?"}])],
    [user([image("AAAB"), {"type": "text", "text": "What?"}])],
    [system("Be brief."), user([image("AAAA"), {"type": "text", "text": "What?"}])],
]


async def test_turns_of_a_conversation_share_a_key_and_other_conversations_have_others(replicas: Replicas) -> None:
    keys = set[str]()
    for beginning in BEGINNINGS:
        first = await replicas.rest({"model": "m", "messages": beginning})
        later = [*beginning, {"role": "assistant", "content": "Well."}, user([image("ZZ")])]
        assert await replicas.rest({"model": "m", "temperature": 1, "messages": later, "stream": False}) == first
        keys.add(first[1])
        keys.add((await replicas.rest({"messages": beginning, "cache_salt": "other"}))[1])
    assert len(keys) == 2 * len(BEGINNINGS)


MESSAGE_BEGINNINGS: list[dict[str, Any]] = [
    {"messages": [user("Hi")]},
    {"messages": [user("Hi")], "system": "Be brief."},
    {"messages": [user("Hi")], "system": [{"type": "text", "text": "Be brief."}]},
    {"messages": [user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}])]},
]


async def test_turns_of_messages_share_a_key_and_other_conversations_have_others(replicas: Replicas) -> None:
    keys = set[str]()
    for beginning in MESSAGE_BEGINNINGS:
        first = await replicas.rest({"max_tokens": 9} | beginning, MESSAGES)
        more = [*beginning["messages"], {"role": "assistant", "content": "Well."}, user("Go on.")]
        assert await replicas.rest(beginning | {"messages": more, "max_tokens": 8}, MESSAGES) == first
        keys.add(first[1])
    assert len(keys) == len(MESSAGE_BEGINNINGS)
    assert NO_KEY not in keys


async def test_turns_of_responses_share_a_key(replicas: Replicas) -> None:
    keys = set[str]()
    for beginning in ("Hi", [user("Hi")], [{"type": "message", **user([image("AAAA")])}]):
        for instructions in ({}, {"instructions": "Be brief."}):
            first = await replicas.rest({"input": beginning, **instructions})
            later = beginning if isinstance(beginning, str) else [*beginning, {"role": "assistant", "content": "Well."}]
            assert await replicas.rest({**instructions, "model": "m", "input": later}) == first
            keys.add(first[1])
    assert len(keys) == 4  # a text is the same as a message of it


async def test_requests_about_a_stored_response_have_its_key(replicas: Replicas) -> None:
    for key in KEYS[:10]:
        first = await replicas.rest({"prompt_cache_key": key})
        name = f"resp_a--b--{key}"
        assert await replicas.rest({"input": "Go on.", "previous_response_id": name}, "/v1/responses") == first
        for path in (f"/v1/responses/{name}", f"/v1/responses/{name}/input_items?limit=2", f"/responses/{name}"):
            assert await replicas.get(path) == first
    later: dict[str, Any] = {"prompt_cache_key": "other", "previous_response_id": "resp_1--a"}
    assert (await replicas.rest(later, "/v1/responses"))[1] == "other"
    assert (await replicas.get("/v1/responses/resp_1"))[1] == NO_KEY


async def test_conversations_of_very_many_messages_share_a_key(replicas: Replicas) -> None:
    first = await replicas.rest({"messages": BEGINNINGS[2]})
    many = [{"role": "assistant", "content": "a"}] * (BODY_BYTES // 40)
    assert await replicas.rest({"messages": [*BEGINNINGS[2], *many]}) == first


async def test_questions_about_one_image_share_a_key(replicas: Replicas) -> None:
    first = await replicas.rest({"messages": [user([image("AAAA"), {"type": "text", "text": "What?"}])]})
    assert await replicas.rest({"messages": [user([{"text": "Where?", "type": "text"}, image("AAAA")])]}) == first


async def test_typed_turns_share_a_key(replicas: Replicas) -> None:
    instructions, question = typed(1, {"text": "Be brief."}), {"text": "What?"}
    first = await replicas.grpc(instructions, typed(3, typed_image(b"\x00\xff" * 100), question))
    later = [
        typed(3, typed_image(b"\x00\xff" * 100), {"text": "Where?"}),
        typed(4, {"text": "There."}),
        typed(3, question),
    ]
    assert await replicas.grpc(instructions, *later) == first
    others = [
        await replicas.grpc(typed(1, {"text": "Be kind."}), *later),
        await replicas.grpc(instructions, typed(3, typed_image(b"\x00\xfe" * 100), question)),
        await replicas.grpc(instructions, *later, cache_salt="other"),
        await replicas.grpc(instructions, typed(3, question)),
    ]
    assert len({first[1], *(key for _, key in others)}) == 5


async def test_large_requests_are_routed_by_what_fits(replicas: Replicas) -> None:
    large = image("A" * LARGE)
    first = await replicas.rest({"messages": [user([large, {"type": "text", "text": "What?"}])]})
    assert await replicas.rest({"messages": [user([large])], "prompt_cache_key": "too far back"}) == first
    early = await replicas.rest({"prompt_cache_key": "early", "messages": [user([large])]})
    assert early[1] == "early"
    key = [(KEY_HEADER, "early")]
    typed_large = typed(3, typed_image(b"\xff" * LARGE))
    assert await replicas.grpc(typed_large, metadata=key) == early
    assert (
        (await replicas.grpc(typed_large, prompt_cache_key="late"))[1]
        == (await replicas.grpc(typed_large))[1]
        != "late"
    )


async def test_large_bodies_arrive_whole(replicas: Replicas) -> None:
    body = json.dumps({"messages": [user([image("AB" * LARGE)])]}).encode()
    headers = {"content-type": "application/json"}
    async with replicas.http.post(CHAT, data=io.BytesIO(body), headers=headers) as answer:
        assert await answer.read() == body


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"nonsense",
        b'"',
        b"\x00\x00\x00\x00\x09",
        b"\x01" * 100,
        b"\x00" + b"\xff" * 1000,
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":[' + b"1," * 200_000,
        b'{"a":"' + b'\\"' * 200_000,
        b'{"prompt_cache_key":7,"messages":{}}',
        b'{"input":"' + b'\\"' * 200_000,
        b'{"instructions":' + b"[" * 100_000,
        b'{"messages":[{"role":7,"content":null},',
        b'{"prompt_cache_key":"\\',
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_bodies_without_a_beginning_are_served_without_a_key(replicas: Replicas, body: bytes) -> None:
    _, key = await replicas.rest(body)
    assert key == NO_KEY or key.startswith("json-")


async def test_requests_without_a_key_are_spread(replicas: Replicas) -> None:
    while min((asked := await _asked_without_a_key(replicas)).values()) < 5 or len(asked) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # until Envoy has checked each server's health


async def _asked_without_a_key(replicas: Replicas) -> Counter[int]:
    return Counter([(await replicas.rest({}))[0] for _ in range(30)])


async def test_the_client_s_header_comes_first(replicas: Replicas) -> None:
    for key in KEYS[:10]:
        first = await replicas.rest({"prompt_cache_key": key})
        assert await replicas.rest({"prompt_cache_key": "other"}, **{KEY_HEADER: key}) == first


async def test_other_methods_are_routed_by_the_client_s_header(replicas: Replicas) -> None:
    for key in KEYS[:10]:
        first, _ = await replicas.rest({"prompt_cache_key": key})
        before = replicas.backends[first].num_calls
        async with replicas.http.get("/v1/models", headers={KEY_HEADER: key}) as answer:
            assert answer.status == 200
        assert replicas.backends[first].num_calls == before + 1


async def test_a_body_that_stalls_is_refused_and_a_slow_answer_is_not(replicas: Replicas) -> None:
    async def slow(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await read(requests)
        await asyncio.sleep(1.5)  # longer than a body may pause
        yield event("answer")

    with scripted(replicas, slow):
        bodies = [{"prompt_cache_key": "slow"}, {}]
        for answer in await asyncio.gather(*(replicas.http.post(CHAT, json=body) for body in bodies)):
            assert (answer.status, await answer.text()) == (200, "data: answer\n\n")

    async def stalled() -> AsyncIterator[bytes]:
        yield b'{"messages":'
        await asyncio.Event().wait()

    before = sum(backend.num_calls for backend in replicas.backends)
    headers = {"content-type": "application/json", "content-length": "100"}
    for path in (CHAT, "/v1/nothing"):
        async with replicas.http.post(path, data=stalled(), headers=headers) as answer:
            assert answer.status == 408
            assert (await answer.json())["error"]["code"] == "request_timeout"
    assert sum(backend.num_calls for backend in replicas.backends) == before


async def test_a_body_of_no_use_may_not_come_byte_by_byte(replicas: Replicas) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"1"
            await asyncio.sleep(0.2)  # shorter than a body may pause

    headers = {"content-type": "application/json", "content-length": "100"}
    async with replicas.http.post("/v1/nothing", data=trickle(), headers=headers) as answer:
        assert answer.status == 408
        assert (await answer.json())["error"]["code"] == "request_timeout"


class scripted:  # noqa: N801 - reads as a function
    """Gives all servers a script, for a block."""

    def __init__(self, replicas: Replicas, script: Any) -> None:
        self._replicas, self._script = replicas, script
        self._before = [backend.script for backend in replicas.backends]

    def __enter__(self) -> None:
        for backend in self._replicas.backends:
            backend.script = self._script

    def __exit__(self, *_: object) -> None:
        for backend, script in zip(self._replicas.backends, self._before, strict=True):
            backend.script = script


async def test_a_popular_key_does_not_drown_one_server(replicas: Replicas) -> None:
    release = asyncio.Event()
    running = Counter[int]()

    def held(number: int) -> Callable[[Requests, Context], AsyncIterator[HttpBody]]:
        async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
            await read(requests)
            running[number] += 1
            await release.wait()
            yield event("done")

        return script

    before = [backend.script for backend in replicas.backends]
    for number, backend in enumerate(replicas.backends):
        backend.script = held(number)
    asked = [asyncio.create_task(replicas.http.post(CHAT, json={"prompt_cache_key": "hot"})) for _ in range(30)]
    try:
        await until(lambda: running.total() >= 30)
    finally:
        release.set()
        for answer in await asyncio.gather(*asked):
            answer.release()
        for backend, script in zip(replicas.backends, before, strict=True):
            backend.script = script
    # Twice the mean, and one that is on its way when the bound is computed.
    assert max(running.values()) <= 21
    assert len(running) >= 2


async def test_only_the_keys_of_a_dead_server_move_and_come_back(replicas: Replicas) -> None:
    home = await settled(replicas)
    dead, connections = replicas.backends[1], ["cluster.glimpse-by-key.upstream_cx_active"]
    num_open = admin.total(replicas.admin, connections)
    await dead.server.stop(0)
    # What Envoy sends on a connection that is being closed may have been begun.
    await until(lambda: admin.total(replicas.admin, connections) < num_open)
    # Before any health check: Envoy repeats what finds no server.
    bodies = [{"prompt_cache_key": f"{number}"} for number in range(300)]
    answers = await asyncio.gather(*(replicas.http.post(CHAT, json=body) for body in bodies))
    assert [await answer.text() for answer in answers if answer.status != 200] == []
    assert 1 not in (await homes(replicas)).values()
    moved = await settled(replicas)
    assert {key for key in KEYS if moved[key] != home[key]} == {key for key in KEYS if home[key] == 1}
    replicas.backends[1] = await start_backend(dead.address)
    while (again := await homes(replicas)) != home:
        # Only its own keys return.
        assert all(again[key] == home[key] for key in KEYS if home[key] != 1)
        await asyncio.sleep(0.1)


async def settled(replicas: Replicas) -> dict[str, int]:
    """Returns where keys live once they stay there: a server that still holds what was asked before passes some on."""
    while (found := await homes(replicas)) != await homes(replicas):
        pass
    return found


async def homes(replicas: Replicas) -> dict[str, int]:
    return {key: (await replicas.rest({"prompt_cache_key": key}))[0] for key in KEYS}


async def test_the_same_key_of_another_tenant_is_another_key(tmp_path: Path, replicas: Replicas) -> None:
    tenants, provider = ["acme", "initech"], Provider()
    (tmp_path / "jwks").write_text(provider.jwks)
    credentials = {name: f"Bearer {provider.token(sub=name)}" for name in tenants}
    upstream = tuple(backend.address for backend in replicas.backends)
    authentication = AuthenticationOptions(jwt_jwks=str(tmp_path / "jwks"), jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    async with (
        Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=upstream, authentication=authentication), run_dir=tmp_path
        ) as envoy,
        aiohttp.ClientSession(envoy.url) as http,
    ):
        mesh = replace(replicas, http=http)
        homes = {
            name: [(await mesh.rest({"prompt_cache_key": key}, authorization=credentials[name]))[0] for key in KEYS]
            for name in tenants
        }
        again = [(await mesh.rest({"prompt_cache_key": key}, authorization=credentials[tenants[0]]))[0] for key in KEYS]
    assert homes[tenants[0]] == again
    num_together = sum(one == other for one, other in zip(*homes.values(), strict=True))
    assert num_together < len(KEYS) * 2 / 3


async def test_one_server_needs_no_keys(backend: Backend, http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json={"prompt_cache_key": "k"}) as answer:
        assert answer.status == 200
    assert KEY_HEADER not in backend.metadata


async def test_flag_turns_keys_off(tmp_path: Path, backend: Backend) -> None:
    async with (
        Envoy(
            GatewayOptions(listen=ANY_PORT, upstream=(backend.address,) * 2, route_by_key=False), run_dir=tmp_path
        ) as envoy,
        aiohttp.ClientSession(envoy.url) as session,
        session.post(CHAT, json={"prompt_cache_key": "k"}) as answer,
    ):
        assert answer.status == 200
    assert KEY_HEADER not in backend.metadata


async def test_methods_with_keys_come_from_the_protos() -> None:
    assert grpc_paths() == [
        "/glimpse.v1.ChatService/CreateChatCompletion",
        "/glimpse.v1.ChatService/StreamChatCompletion",
        "/glimpse.v1.CompletionService/CreateCompletion",
        "/glimpse.v1.CompletionService/StreamCompletion",
    ]
    assert rest_templates() == {
        *(CHAT, "/v1/completions", "/chat/completions", "/completions"),
        *(MESSAGES, f"{MESSAGES}/count_tokens", "/messages", "/messages/count_tokens"),
        *("/v1/responses", "/responses", "/v1/responses/input_tokens", "/responses/input_tokens"),
        *(
            f"{version}/responses/{{response_id}}{part}"
            for version in ("/v1", "")
            for part in ("", "/cancel", "/input_items")
        ),
        *(f"/glimpse/v1/{path}" for path in ("chatCompletions", "chatCompletions:stream")),
        *(f"/glimpse/v1/{path}" for path in ("completions", "completions:stream")),
    }
