"""HTTP fetcher that protects against server-side request forgery. No other module of `media` opens connections.

The address of each socket is checked against `glimpse.media.sources.policy` when the socket is opened, so a name that
resolves differently later gains nothing. Redirects are followed here, not by aiohttp, so that each hop is checked.
Error messages refer to the client's URL only: they contain no address, no resolved name and no exception text.
"""

import asyncio
import math
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode, too_large
from glimpse.media.sources.dns import DnsResolver
from glimpse.media.sources.freshness import fresh_seconds
from glimpse.media.sources.policy import FetchPolicy, check_url, is_allowed_address

MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 << 10

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""An entry of `socket.getaddrinfo`: family, type, protocol, canonical name, address."""


class _AddressRefusedError(OSError):
    """The policy does not allow an address. An OSError, so that aiohttp tries the host's other addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A fetched file."""

    data: bytes
    fresh_seconds: float
    """How long the file may be reused, according to all servers along the redirects; 0 if it may not."""


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
        url: Location of the file.
        policy: Rules on URLs and addresses.
        max_bytes: Limit on the body.
        timeout_seconds: Limit on DNS lookups, connections, redirects and the body together.
        on_bytes: Called with the size of each chunk that arrives; an exception from it ends the fetch.
        resolver: DNS resolver; by default the operating system's.

    Raises:
        MediaError: INVALID_SOURCE, URL_REFUSED, FETCH_FAILED, FETCH_TIMEOUT or TOO_LARGE.
    """
    try:
        async with asyncio.timeout(timeout_seconds), _session(policy, resolver) as session:
            return await _follow(session, url, policy, max_bytes, on_bytes)
    except TimeoutError:
        message = f"the media server did not deliver the file within {timeout_seconds:g} s"
        reason = MediaErrorCode.FETCH_TIMEOUT, message
    except (aiohttp.ClientError, ValueError, OSError) as error:
        # aiohttp also raises ValueError and OSError, for malformed host names and aborted responses.
        reason = _explain(error)
        _break_cycles(error)
    # Not raised above, because aiohttp's errors would be this error's context.
    raise MediaError(*reason)


def _session(policy: FetchPolicy, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    """Returns a session for one fetch, so that requests of different clients share no state."""
    connector = aiohttp.TCPConnector(
        resolver=resolver or DnsResolver(), use_dns_cache=False, socket_factory=partial(_open_socket, policy=policy)
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # no proxies, no .netrc
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `fetch` limits the total time
        # Media files are compressed already, and decompression bombs are ruled out.
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "glimpse"},
    )


def _open_socket(info: AddressInfo, *, policy: FetchPolicy) -> socket.socket:
    family, kind, protocol, _, address = info
    if not is_allowed_address(str(address[0]), policy):
        raise _AddressRefusedError
    return socket.socket(family, kind, protocol)


async def _follow(
    session: aiohttp.ClientSession, url: URL, policy: FetchPolicy, max_bytes: int, on_bytes: Callable[[int], None]
) -> Fetched:
    fresh = math.inf
    for _ in range(MAX_REDIRECTS + 1):
        check_url(url, policy)
        async with session.get(url, allow_redirects=False) as response:
            headers = response.headers
            # The target of a redirect may change, so its freshness counts too.
            fresh = min(fresh, fresh_seconds(",".join(headers.getall("Cache-Control", ())), headers.get("Age", "")))
            if response.status not in _REDIRECTS:
                return Fetched(data=await _read(response, max_bytes, on_bytes), fresh_seconds=fresh)
            url = _redirect_target(url, response.headers.get("Location"))
    raise _failure(f"expected at most {MAX_REDIRECTS} redirects, got more")


def _redirect_target(url: URL, location: str | None) -> URL:
    if location is None:
        raise _failure("the media server sent a redirect without a Location header")
    try:
        return url.join(URL(location))
    except (ValueError, IndexError):
        raise _failure("the media server sent a redirect to an invalid URL") from None


async def _read(response: aiohttp.ClientResponse, max_bytes: int, on_bytes: Callable[[int], None]) -> bytes:
    if response.status != 200:
        raise _failure(f"expected status 200 from the media server, got {response.status}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _failure("expected an uncompressed response from the media server, got a compressed one")
    if (response.content_length or 0) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        on_bytes(len(chunk))
    return bytes(body)


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
            message = "the media server closed the connection early or sent an invalid HTTP response"
            return MediaErrorCode.FETCH_FAILED, message


def _break_cycles(error: BaseException | None) -> None:
    """Empties the frames of an error and of its contexts: aiohttp keeps errors in lists there."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _failure(message: str) -> MediaError:
    return MediaError(MediaErrorCode.FETCH_FAILED, message)
