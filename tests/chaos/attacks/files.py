"""Files of clients: forms that do not end, documents that are slow to draw, and responses that are stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import aiohttp

from glimpse.server.media_settings import MediaSettings
from tests.chaos import raw_http
from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.attacks.hostile import some_at_once
from tests.chaos.attacks.shares import attack_seconds, leaving
from tests.chaos.attacks.slow import for_a_while
from tests.chaos.calls import http_session, rest_read, rest_unary, rest_value
from tests.chaos.endpoints import RESPONSES, as_responses
from tests.chaos.questions import chat_with_document, chat_with_image
from tests.chaos.raw_http import CHUNK_BYTES, Pieces
from tests.hostile.documents import endless_documents, hostile_documents
from tests.hostile.forms import BOUNDARY, FORM, HostileForm, file, form, hostile_forms, part
from tests.media import pdfs
from tests.media.images import encode, scene

_FILES = "/v1/files"
_FILE_BYTES = 90 << 20
_MISSING_BYTES = 100
_LETTERS_ON_A_PAGE = 200_000
_PAGES = 16
"""The most that a request may have."""
_TURNS = 8
_PADDING_BYTES = 1 << 20
"""Twenty conversations of eight turns take more than the server stores of all clients."""


async def _hostile_forms(arena: Arena) -> None:
    """Each is refused for its reason."""

    async def post(each: HostileForm) -> None:
        send = raw_http.post(arena.target, (each.body,), path=_FILES, content_type=each.content_type)
        await arena.ask(send, tolerates=frozenset({each.reason, "overloaded"}))

    forms = [*hostile_forms().values()] * arena.times(5)
    arena.rng.shuffle(forms)
    await some_at_once(map(post, forms))


async def _unfinished_forms(arena: Arena) -> None:
    """Sends files that take all of the memory for media, and never end them."""
    begin = form(file(b"")).partition(b"\r\n--")[0]

    async def pieces() -> AsyncIterator[bytes]:
        yield _head(arena, _FILE_BYTES)
        yield begin
        for _ in range((_FILE_BYTES - _MISSING_BYTES - len(begin)) // CHUNK_BYTES):
            yield bytes(CHUNK_BYTES)
        for _ in range(_MISSING_BYTES):
            yield b" "
            await asyncio.sleep(5)

    memory = MediaSettings().media_in_flight_bytes
    await for_a_while(arena, *[pieces] * (memory // _FILE_BYTES + 1))


async def _dripping_forms(arena: Arena) -> None:
    """Forms whose headers, members or file come by the byte, or have no end."""

    def dripping(begin: bytes, drop: bytes, seconds: float) -> Pieces:
        async def pieces() -> AsyncIterator[bytes]:
            yield _head(arena, _FILE_BYTES)
            yield begin
            while True:
                yield drop
                await asyncio.sleep(seconds)

        return pieces

    boundary, member = f"--{BOUNDARY}\r\n".encode(), part('form-data; name="comment"', b"")
    slow = [
        dripping(boundary, b"x", 0.1),
        dripping(form(file(b"")).partition(b"\r\n--")[0], b"x", 0.1),
        dripping(member[2:], member, 0.1),
    ]
    fast = [
        dripping(boundary, b"x" * CHUNK_BYTES, 0),
        dripping(boundary, b"X-a: b\r\n" * 10_000, 0),
        dripping(member[2:], member * 5_000, 0),
    ]
    await for_a_while(arena, *slow * arena.times(30), *fast * arena.times(4))


def _head(arena: Arena, length: int) -> bytes:
    return raw_http.head(arena.target, length=length, path=_FILES, content_type=FORM)


async def _hostile_documents(arena: Arena) -> None:
    files = [data for data, _ in hostile_documents().values()]
    arena.rng.shuffle(files)
    await _ask_about(arena, files[: arena.times(len(files))])


async def _endless_documents(arena: Arena) -> None:
    """Each page would take a decoder hours."""
    files = [*endless_documents().values()] * arena.times(20)
    await _ask_about(arena, [data + b"\n%" + f"{arena.rng.getrandbits(64):x}".encode() for data in files])


async def _many_pages(arena: Arena) -> None:
    """Pages full of small letters, as many as a request may have."""
    words = pdfs.text("glimpse " * (_LETTERS_ON_A_PAGE // 8), points=1)

    def pages() -> bytes:
        return pdfs.document([f"% {arena.rng.getrandbits(64):x}\n{words}"] * _PAGES, size=(2000, 2000))

    await _ask_about(arena, [pages() for _ in range(arena.times(20))])


async def _ask_about(arena: Arena, documents: Sequence[bytes]) -> None:
    """Asks about all at once, and leaves after a while: some are slow, and the decoders' own limits are long."""
    async with http_session(arena.target.url) as session:
        bodies = (arena.anywhere(chat_with_document(data, max_completion_tokens=1)) for data in documents)
        await arena.ask_all(leaving(rest_unary(session, *body), attack_seconds(arena)) for body in bodies)


async def _stored_responses(arena: Arena) -> None:
    """Conversations whose turns are stored with large images, read, continued and deleted, until all room is used."""

    async def converse(session: aiohttp.ClientSession) -> None:
        previous = ""
        for _ in range(_TURNS):
            # What follows the end of an image is ignored.
            form = as_responses(chat_with_image(image + arena.rng.randbytes(_PADDING_BYTES), max_completion_tokens=4))
            body = {**(form or {}), **({"previous_response_id": previous} if previous else {})}
            created = await arena.ask(rest_value(session, RESPONSES, body, "id"))
            previous = "".join(created.transcript.pieces)  # empty if the one before has left the store
            if previous:
                await arena.ask(rest_read(session, f"{RESPONSES}/{previous}"))
                await arena.ask(rest_read(session, f"{RESPONSES}/{previous}/input_items?limit=100"))
        if previous:
            async with session.delete(f"{RESPONSES}/{previous}") as answer:
                arena.counts[f"deletions with {answer.status}"] += 1

    image = encode(scene(60, 40), "PNG")
    async with http_session(arena.target.url) as session:
        await asyncio.gather(*(converse(session) for _ in range(arena.times(20))))


ATTACKS = [
    ClientAttack(name="hostile-forms", summary="forms of tests/hostile for /v1/files", run=_hostile_forms),
    ClientAttack(
        name="unfinished-forms",
        summary="files of 90 MiB in forms that leave no memory for media and do not end",
        run=_unfinished_forms,
    ),
    ClientAttack(
        name="dripping-forms",
        summary="forms whose headers, members or file have no end, by the byte or at full speed",
        run=_dripping_forms,
    ),
    ClientAttack(name="hostile-documents", summary="documents of tests/hostile", run=_hostile_documents),
    ClientAttack(
        name="endless-documents", summary="40 documents whose pages take hours to draw", run=_endless_documents
    ),
    ClientAttack(name="many-pages", summary="20 documents with 16 pages of 200,000 letters each", run=_many_pages),
    ClientAttack(
        name="stored-responses",
        summary="20 conversations whose turns are stored with an image of 1 MiB each",
        run=_stored_responses,
    ),
]
