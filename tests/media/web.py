"""A small web server on loopback that sends exactly the bytes of a test, including invalid responses."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(kw_only=True)
class Web:
    """A running server."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """Handlers by path; other paths return 404."""
    requests: list[str] = field(default_factory=list[str])
    """The heads of the received requests."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.requests.append(head)
            await self.answers.get(head.split(" ")[1], respond(b"", status=404))(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            writer.close()


def respond(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Returns a handler that sends this body; `headers` override the correct ones."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = {"Content-Length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {status} -\r\n{head}\r\n".encode("latin-1") + body)
        await writer.drain()

    return answer


def stall_after(start: bytes) -> Answer:
    """Returns a handler that sends the start of a response, then nothing until the client disconnects."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await writer.drain()
        await reader.read()

    return answer


def redirect(location: str, status: int = 302) -> Answer:
    return respond(b"", status=status, headers={"Location": location})


@asynccontextmanager
async def serve(tls: SSLContext | None = None, host: str = "127.0.0.1") -> AsyncGenerator[Web]:
    web = Web()
    server = await asyncio.start_server(web.handle, host, 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        await server.wait_closed()
