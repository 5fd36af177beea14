"""URLs of strangers through the loader: each gets its documented error, and nothing forbidden is connected to."""

import asyncio
from dataclasses import dataclass
from ipaddress import ip_network

import pytest

from glimpse.media.decoding.decoders import Decoders
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.loader import MediaLoader
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import parse_url_text
from tests.hostile.server import fill
from tests.hostile.urls import TIMEOUT, HostileUrl, hostile_urls
from tests.hostile.zone import HOST, Zone
from tests.media.loaders import PROCESSING, VIDEO_PROCESSING
from tests.media.web import serve

NAMES = sorted(hostile_urls(0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a URL."""

    expected: MediaErrorCode | None
    code: MediaErrorCode | None
    message: str


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """All URLs at once, by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glimpse.media.sources.fetch.DnsResolver", Zone)
        return asyncio.run(_try_all())


async def _try_all() -> dict[str, Outcome]:
    async with serve(host=HOST) as web, serve() as loopback:
        fill(web)
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
    return MediaLoader(
        processing=PROCESSING,
        video_processing=VIDEO_PROCESSING,
        policy=FetchPolicy(allowed_networks=(ip_network(HOST),), allowed_ports=frozenset({80, 443, port})),
        decoders=Decoders(isolated=False),
        image_timeout_seconds=timeout_seconds,
        max_image_bytes=1 << 20,
    )


async def _try(url: HostileUrl, loader: MediaLoader) -> Outcome:
    try:
        await loader.load_image(parse_url_text(url.url))
    except MediaError as error:
        return Outcome(url.code, error.code, error.message)
    return Outcome(url.code, None, "")


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 60


@pytest.mark.parametrize("name", NAMES)
def test_each_gets_its_documented_error(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert outcome.code == outcome.expected, outcome.message


def test_no_error_tells_of_the_host_or_repeats_a_secret(outcomes: dict[str, Outcome]) -> None:
    told = " ".join(outcome.message for outcome in outcomes.values())
    for word in ("secret", "10.1.2.3", "Errno", "127.0.0", "/work", "aiohttp", "getaddrinfo", "root:"):
        assert word not in told
