"""Loads hostile URLs: each has its documented error, and no forbidden address is connected to."""

import asyncio
from dataclasses import dataclass

import pytest

from glimpse.media.decoding.decoders import Decoders
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.limits import FETCH_TIMEOUTS, MAX_FILE_BYTES
from glimpse.media.loader import MediaLoader
from glimpse.media.sources.fetcher import Fetcher
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import parse_url_text
from tests.hostile.server import add_handlers
from tests.hostile.urls import TIMEOUT, HostileUrl, hostile_urls
from tests.hostile.zone import HOST, Zone
from tests.media.loaders import MEDIA_PROCESSING
from tests.media.web import serve

NAMES = sorted(hostile_urls(0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of loading a URL."""

    expected: MediaErrorCode | None
    code: MediaErrorCode | None
    message: str


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of each URL, by name. All are loaded concurrently."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glimpse.media.sources.fetch.DnsResolver", Zone)
        return asyncio.run(_try_all())


async def _try_all() -> dict[str, Outcome]:
    async with serve(host=HOST) as web, serve() as loopback:
        add_handlers(web)
        urls = hostile_urls(web.port)
        patient, impatient = _loader(web.port, 60), _loader(web.port, 0.5)
        loaders = {name: impatient if url.code is TIMEOUT else patient for name, url in urls.items()}
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(_try(url, loaders[name])) for name, url in urls.items()}
        await patient.close()
        await impatient.close()
        assert loopback.requests == []
        return {name: task.result() for name, task in tasks.items()}


def _loader(port: int, timeout_seconds: float) -> MediaLoader:
    policy = FetchPolicy(allowed_networks=(HOST,), allowed_ports=frozenset({80, 443, port}))
    return MediaLoader(
        processing=MEDIA_PROCESSING,
        fetcher=Fetcher(policy, isolated=False),
        decoders=Decoders(isolated=False),
        fetch_timeouts=FETCH_TIMEOUTS | {MediaKind.IMAGE: timeout_seconds},
        max_file_bytes=MAX_FILE_BYTES | {MediaKind.IMAGE: 1 << 20},
    )


async def _try(url: HostileUrl, loader: MediaLoader) -> Outcome:
    try:
        await loader.load_image(parse_url_text(url.url))
    except MediaError as error:
        return Outcome(url.code, error.code, error.message)
    return Outcome(url.code, None, "")


def test_covers_enough_urls() -> None:
    assert len(NAMES) >= 60


@pytest.mark.parametrize("name", NAMES)
def test_url_has_its_documented_error(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert outcome.code == outcome.expected, outcome.message


def test_errors_reveal_no_host_details_or_secrets(outcomes: dict[str, Outcome]) -> None:
    sent = "\\\\127.0.0.1\\share\\cat.png"  # its own path is told to the client
    messages = " ".join(outcome.message.replace(sent, "") for outcome in outcomes.values())
    for word in ("secret", "10.1.2.3", "Errno", "127.0.0", "/work", "aiohttp", "getaddrinfo", "root:"):
        assert word not in messages
