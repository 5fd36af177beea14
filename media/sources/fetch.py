"""The guarded fetcher: a stranger's URL → bytes. The one place of the package that opens connections.

Each socket is opened for an address that `media.sources.policy` allows, at the moment it is opened: whatever a name
resolved to before or resolves to later, nothing else is connected to. Redirects are followed by hand, so each hop is
checked too. What went wrong is told in words of the client's URL: no address, no name found on the way, no exception's
text.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.dns import DnsResolver
from glimpse.media.sources.freshness import fresh_seconds
from glimpse.media.sources.policy import FetchPolicy, check_url, is_allowed_address

MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 << 10

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""As from `socket.getaddrinfo`: family, type, protocol, canonical name, address."""


class _AddressRefusedError(OSError):
    """An address that the policy does not allow. An OSError, so that a host's other addresses are still tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a URL leads to."""

    data: bytes
    fresh_seconds: float
    """For how long it may be used again, as every server on the way to it said; 0: not at all."""


async def fetch(
    url: URL,
    *,
    policy: FetchPolicy,
    max_bytes: int,
    timeout_seconds: float,
    on_bytes: Callable[[int], None] = lambda _: None,
    resolver: AbstractResolver | None = None,
) -> Fetched:
    """Fetches what an http(s) URL leads to.

    Args:
        url: Where it is.
        policy: Which URLs and addresses are allowed.
        max_bytes: The most bytes that are read.
        timeout_seconds: For all of it: names, connections, redirects and the body.
        on_bytes: Told how many bytes have come each time that some have; what it raises ends the fetch.
        resolver: Finds addresses; by default the operating system's resolver.

    Raises:
        MediaError: INVALID_SOURCE, URL_REFUSED, FETCH_FAILED, FETCH_TIMEOUT or TOO_LARGE.
    """
    try:
        async with asyncio.timeout(timeout_seconds), _session(policy, resolver) as session:
            return await _follow(session, url, policy, max_bytes, on_bytes)
    except TimeoutError:
        message = f"the media server did not deliver within {timeout_seconds:g} s"
        raise MediaError(MediaErrorCode.FETCH_TIMEOUT, message) from None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        # aiohttp also raises ValueError and OSError: for hosts that cannot be names, for what a server breaks off.
        raise _explain(error) from None


def _session(policy: FetchPolicy, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    """A session of one fetch: nothing is kept between one client's request and another's."""
    connector = aiohttp.TCPConnector(
        resolver=resolver or DnsResolver(), use_dns_cache=False, socket_factory=partial(_open_socket, policy=policy)
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # no proxies, no .netrc
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `fetch` has one for all of it
        # Media are compressed already, and what does not expand cannot expand without end.
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
            # A redirect, too, may be another one tomorrow.
            fresh = min(fresh, fresh_seconds(",".join(headers.getall("Cache-Control", ())), headers.get("Age", "")))
            if response.status not in _REDIRECTS:
                return Fetched(data=await _read(response, max_bytes, on_bytes), fresh_seconds=fresh)
            url = _redirect_target(url, response.headers.get("Location"))
    raise _failure(f"the media server redirects more than {MAX_REDIRECTS} times")


def _redirect_target(url: URL, location: str | None) -> URL:
    if location is None:
        raise _failure("the media server redirects without saying where to")
    try:
        return url.join(URL(location))
    except (ValueError, IndexError):
        raise _failure("the media server redirects to something that is not a URL") from None


async def _read(response: aiohttp.ClientResponse, max_bytes: int, on_bytes: Callable[[int], None]) -> bytes:
    if response.status != 200:
        raise _failure(f"the media server answered {response.status}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _failure("the media server sent it compressed, although it was asked not to")
    if (response.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        on_bytes(len(chunk))
    return bytes(body)


def _explain(error: Exception) -> MediaError:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return _failure("the URL's host cannot be found")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return _failure("no trusted TLS connection can be made to the URL's host")
        case aiohttp.ClientConnectorError(os_error=_AddressRefusedError()):
            return MediaError(MediaErrorCode.URL_REFUSED, "the URL's host is not a public address")
        case aiohttp.ClientConnectorError():
            return _failure("the URL's host cannot be connected to")
        case aiohttp.InvalidURL():
            return MediaError(MediaErrorCode.INVALID_SOURCE, "the URL's host is neither a name nor an address")
        case _:
            return _failure("the media server broke off, or does not speak HTTP")


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")


def _failure(message: str) -> MediaError:
    return MediaError(MediaErrorCode.FETCH_FAILED, message)
