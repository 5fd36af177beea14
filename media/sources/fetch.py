"""HTTP fetcher that protects against server-side request forgery. No other module of `media` opens connections.

It runs in the caller's event loop: a server's is `glimpse.media.sources.fetch_worker`.

The address of each socket is checked against `glimpse.media.sources.policy` when the socket is opened, so a name that
resolves differently later gains nothing. Redirects are followed here, not by aiohttp, so that each hop is checked.
Error messages refer to the client's URL only: they contain no address, no resolved name and no exception text.
"""

import asyncio
import math
import re
import socket
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode, too_large
from glimpse.media.sources.dns import DnsResolver
from glimpse.media.sources.fetched import PIECE_BYTES, Fetched, timed_out
from glimpse.media.sources.policy import FetchPolicy, check_url, is_allowed_address
from glimpse.media.sources.wire import Wire, WireSocket

MAX_REDIRECTS = 5
Deliver = Callable[[bytes], Awaitable[None]]
"""Receives the next piece of a file. The last one may be short."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

INVALID_RESPONSE = "the media server closed the connection early or sent an invalid HTTP response"

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""An entry of `socket.getaddrinfo`: family, type, protocol, canonical name, address."""


class _AddressRefusedError(OSError):
    """The policy does not allow an address. An OSError, so that aiohttp tries the host's other addresses."""


async def fetch(
    url: URL,
    *,
    policy: FetchPolicy,
    max_bytes: int,
    timeout_seconds: float,
    on_bytes: Callable[[int], None] = lambda _: None,
    resolver: AbstractResolver | None = None,
) -> Fetched:
    """Fetches the file at an http(s) URL.

    Args:
        policy: Rules on URLs and addresses.
        timeout_seconds: Limit on DNS lookups, connections, redirects and the body together.
        on_bytes: Called with the size of each piece that arrives; an exception from it ends the fetch.
        resolver: DNS resolver; by default the operating system's.

    Raises:
        MediaError: INVALID_SOURCE, URL_REFUSED, FETCH_FAILED, FETCH_TIMEOUT or TOO_LARGE.
    """
    body = bytearray()

    async def keep(piece: bytes) -> None:
        on_bytes(len(piece))
        body.extend(piece)

    fresh = await fetch_pieces(
        url, policy=policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds, deliver=keep, resolver=resolver
    )
    return Fetched(data=bytes(body), fresh_seconds=fresh)


async def fetch_pieces(
    url: URL,
    *,
    policy: FetchPolicy,
    max_bytes: int,
    timeout_seconds: float,
    deliver: Deliver,
    resolver: AbstractResolver | None = None,
) -> float:
    """Fetches the file at an http(s) URL, piece by piece. The other arguments are those of `fetch`.

    Args:
        deliver: Receives the pieces as they arrive; an exception from it ends the fetch.

    Returns:
        For how many seconds the file may be reused.

    Raises:
        MediaError: See `fetch`.
    """
    wire = Wire()
    try:
        async with asyncio.timeout(timeout_seconds), _session(policy, wire, resolver) as session:
            return await _follow(session, url, policy, max_bytes, wire, deliver)
    except TimeoutError:
        reason = timed_out(timeout_seconds)
    except (aiohttp.ClientError, ValueError, OSError) as error:
        # aiohttp also raises ValueError and OSError, for malformed host names and aborted responses.
        reason = _explain(error)
        _break_cycles(error)
    finally:
        wire.body = None  # leads to the socket, which leads to `wire`
    # Not raised above, because aiohttp's errors would be this error's context.
    raise MediaError(*reason)


def _session(policy: FetchPolicy, wire: Wire, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    """Returns a session for one fetch, so that requests of different clients share no state."""
    connector = aiohttp.TCPConnector(
        resolver=resolver or DnsResolver(),
        use_dns_cache=False,
        socket_factory=partial(_open_socket, policy=policy, wire=wire),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # no proxies, no .netrc
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `fetch` limits the total time
        # Media files are compressed already, and decompression bombs are ruled out.
        auto_decompress=False,
        read_bufsize=PIECE_BYTES,
        headers={"Accept-Encoding": "identity", "User-Agent": "glimpse"},
    )


def _open_socket(info: AddressInfo, *, policy: FetchPolicy, wire: Wire) -> socket.socket:
    family, kind, protocol, _, address = info
    if not is_allowed_address(str(address[0]), policy):
        raise _AddressRefusedError
    return WireSocket(wire, family, kind, protocol)


async def _follow(
    session: aiohttp.ClientSession, url: URL, policy: FetchPolicy, max_bytes: int, wire: Wire, deliver: Deliver
) -> float:
    fresh = math.inf
    for _ in range(MAX_REDIRECTS + 1):
        check_url(url, policy)
        async with session.get(url, allow_redirects=False) as response:
            headers = response.headers
            # The target of a redirect may change, so its freshness counts too.
            fresh = min(fresh, fresh_seconds(",".join(headers.getall("Cache-Control", ())), headers.get("Age", "")))
            if response.status not in _REDIRECTS:
                wire.body = response.content
                await _read(response, max_bytes, deliver)
                return fresh
            url = _redirect_target(url, response.headers.get("Location"))
    raise _failure(f"expected at most {MAX_REDIRECTS} redirects, got more")


def _redirect_target(url: URL, location: str | None) -> URL:
    if location is None:
        raise _failure("the media server sent a redirect without a Location header")
    try:
        return url.join(URL(location))
    except (ValueError, IndexError):
        raise _failure("the media server sent a redirect to an invalid URL") from None


async def _read(response: aiohttp.ClientResponse, max_bytes: int, deliver: Deliver) -> None:
    if response.status != 200:
        raise _failure(f"expected status 200 from the media server, got {response.status}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _failure("expected an uncompressed response from the media server, got a compressed one")
    if (response.content_length or 0) > max_bytes:
        raise too_large(max_bytes)
    piece, num_bytes = bytearray(), 0
    async for chunk in response.content.iter_chunked(PIECE_BYTES):
        piece += chunk
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_large(max_bytes)
        if len(piece) >= PIECE_BYTES:
            await deliver(bytes(piece[:PIECE_BYTES]))
            del piece[:PIECE_BYTES]
    if piece:
        await deliver(bytes(piece))


def _explain(error: Exception) -> tuple[MediaErrorCode, str]:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return MediaErrorCode.FETCH_FAILED, "the URL's host does not resolve"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return MediaErrorCode.FETCH_FAILED, "cannot establish a trusted TLS connection to the URL's host"
        case aiohttp.ClientConnectorError(os_error=_AddressRefusedError()):
            return MediaErrorCode.URL_REFUSED, "the URL's host is not a public address"
        case aiohttp.ClientConnectorError():
            return MediaErrorCode.FETCH_FAILED, "cannot connect to the URL's host"
        case aiohttp.InvalidURL():
            return MediaErrorCode.INVALID_SOURCE, "expected a host name or an IP address in the URL"
        case _:
            return MediaErrorCode.FETCH_FAILED, INVALID_RESPONSE


def _break_cycles(error: BaseException | None) -> None:
    """Empties the frames of an error and of its contexts: aiohttp keeps errors in lists there."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _failure(message: str) -> MediaError:
    return MediaError(MediaErrorCode.FETCH_FAILED, message)


MAX_FRESH_SECONDS = 3600.0
"""Upper limit, whatever a server allows."""

_FORBIDDEN = frozenset({"no-store", "no-cache", "private"})
_MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,10})\"?")


def fresh_seconds(cache_control: str, age: str = "") -> float:
    """Returns the seconds for which `Cache-Control` explicitly allows reuse, minus `Age`; 0 if it does not."""
    directives = [directive.strip().lower() for directive in cache_control.split(",")]
    if _FORBIDDEN.intersection(directive.partition("=")[0].strip() for directive in directives):
        return 0.0
    allowed = [int(match[1]) for directive in directives if (match := _MAX_AGE.fullmatch(directive))]
    passed = int(age) if age.isascii() and age.isdigit() and len(age) <= 10 else 0
    return min(max(min(allowed, default=0) - passed, 0), MAX_FRESH_SECONDS)
