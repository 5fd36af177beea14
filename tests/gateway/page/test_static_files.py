"""What the gateway serves by itself, through Envoy: the page, its assets, the OpenAPI document and the version."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

import glimpse
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.identity.authentication import AuthenticationOptions
from tests.gateway.backend import Backend
from tests.gateway.conftest import ANY_PORT
from tests.identity.tokens import AUDIENCE, ISSUER, Provider
from tests.paths import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUILT = ROOT / "gateway" / "page" / "dist"
MAX_FIRST_PAINT_BYTES = 120_000
"""20,000 bytes are what the first page took, before it kept conversations."""
PROVIDER = Provider()
PLAIN = {"accept-encoding": "identity"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict(
    shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway that requires tokens, without the page."""
    folder: Path = tmp_path_factory.mktemp("strict")
    (folder / "jwks").write_text(PROVIDER.jwks)
    jwks = str(folder / "jwks")
    options = GatewayOptions(
        listen=ANY_PORT,
        # Several servers: what the gateway serves by itself needs none of them.
        upstream=(shared_backend.address, shared_backend.address),
        authentication=AuthenticationOptions(jwt_jwks=jwks, jwt_issuer=ISSUER, jwt_audience=AUDIENCE),
        page=False,
    )
    async with Envoy(options, run_dir=folder) as envoy, aiohttp.ClientSession(f"http://{envoy.address}") as session:
        yield session


def links(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', page)


@pytest.mark.parametrize(
    ("path", "name"), [("/", "index.html"), ("/?model=nano", "index.html"), ("/docs", "docs.html")]
)
async def test_pages_have_a_strict_policy(http: aiohttp.ClientSession, path: str, name: str) -> None:
    async with http.get(path, headers=PLAIN) as answer:
        assert (answer.status, await answer.read()) == (200, (BUILT / name).read_bytes())
        assert answer.content_type == "text/html"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"


async def test_pages_have_no_inline_script_or_style() -> None:
    for name in ("index.html", "docs.html"):
        page = (BUILT / name).read_text()
        assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=", page)
        assert all(link.startswith("/assets/") for link in links(page))


async def test_tabs_without_a_page_have_its_icon(http: aiohttp.ClientSession) -> None:
    (icon,) = BUILT.glob("assets/icon-*.svg")
    for headers in ({}, PLAIN):
        async with http.get("/favicon.ico", headers=headers) as answer:
            assert (answer.status, answer.content_type) == (200, "image/svg+xml")
            assert await answer.read() == icon.read_bytes()


async def test_assets_are_cached_forever_under_the_hash_of_their_content(http: aiohttp.ClientSession) -> None:
    for path in links((BUILT / "index.html").read_text()):
        async with http.get(path) as answer:
            assert answer.status == 200
            assert "immutable" in answer.headers["cache-control"]
            assert await answer.read() == (BUILT / path.removeprefix("/")).read_bytes()


async def test_first_paint_needs_little(envoy: Envoy) -> None:
    async with aiohttp.ClientSession(f"http://{envoy.address}", auto_decompress=False) as raw:
        sizes: list[int] = []
        for path in ("/", *links((BUILT / "index.html").read_text())):
            async with raw.get(path, headers={"accept-encoding": "gzip"}) as answer:
                body = await answer.read()
                assert answer.headers["content-encoding"] == "gzip"
                assert gzip.decompress(body)
                sizes.append(len(body))
    assert len(sizes) > 4
    assert sum(sizes) < MAX_FIRST_PAINT_BYTES


async def test_serves_the_openapi_document_and_the_version(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as document, http.get("/version") as version:
        assert document.content_type == version.content_type == "application/json"
        assert await document.json() == json.loads((ROOT / "gateway" / "openapi.json").read_bytes())
        assert await version.json() == {"version": glimpse.__version__}


async def test_head_is_answered_and_other_verbs_are_not(http: aiohttp.ClientSession) -> None:
    async with http.head("/", headers=PLAIN) as head, http.post("/version") as post:
        assert (head.status, head.headers["content-length"]) == (200, str((BUILT / "index.html").stat().st_size))
        assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")


async def test_public_files_need_no_key(strict: aiohttp.ClientSession) -> None:
    async with strict.get("/version") as version, strict.get("/v1/models") as models:
        assert (version.status, models.status) == (200, 401)
    async with strict.get("/v1/models", headers={"authorization": f"Bearer {PROVIDER.token()}"}) as models:
        assert models.status == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_no_page_turns_the_pages_off(strict: aiohttp.ClientSession, path: str) -> None:
    async with strict.get(path, headers={"authorization": f"Bearer {PROVIDER.token()}"}) as answer:
        assert answer.status == 404
        assert "--no-page" in (await answer.json())["error"]["message"]


async def test_the_licenses_of_what_is_bundled_are_served(http: aiohttp.ClientSession) -> None:
    async with http.get("/licenses.txt") as answer:
        text = await answer.text()
        assert all(name in text for name in ("preact", "dexie", "katex", "marked", "swagger-ui-dist"))


@pytest.mark.parametrize(
    ("verb", "path", "hint"),
    [
        ("POST", "/v1/chat/completion", "Use POST /v1/chat/completions."),
        ("POST", "/v1/v1/chat/completions", "Use POST /v1/chat/completions."),
        ("POST", "/api/chat", "Use POST /v1/chat/completions."),
        ("POST", "/v1/response", "Use POST /v1/responses."),
        ("POST", "/api/messages", "Use POST /v1/messages."),
        ("POST", "/v1/completion", "Use POST /v1/chat/completions, or POST /v1/completions."),
        ("POST", "/api/generate", "Use POST /v1/chat/completions, or POST /v1/completions."),
        ("POST", "/v1/embedding", "Use POST /v1/embeddings."),
        ("POST", "/v2/rerank", "Use POST /v1/rerank."),
        ("POST", "/v1/tokenize", "Use POST /tokenize."),
        ("POST", "/v1/detokenize", "Use POST /detokenize."),
        ("GET", "/v1/model", "Use GET /v1/models."),
        ("GET", "/api/tags", "Use GET /v1/models."),
        ("GET", "/healthz", "Use GET /health."),
        ("GET", "/v1", "It is a base URL for clients. GET /openapi.json lists the paths."),
        ("GET", "/metrics", "The server serves its metrics on a port of their own"),
        ("POST", "/v1/audio/speech", "This part of OpenAI's API is not served."),
        ("GET", "/redoc", "Use GET /docs."),
        ("GET", "/swagger.json", "Use GET /openapi.json."),
        ("GET", "/wp-login.php", "GET /openapi.json lists the paths."),
    ],
)
async def test_unknown_paths_get_a_hint(http: aiohttp.ClientSession, verb: str, path: str, hint: str) -> None:
    async with http.request(verb, path) as answer:
        assert answer.status == 404
        document = await answer.json()
        assert document["error"]["code"] == "unknown_url"
        assert document["error"]["message"].startswith(f"Unknown URL: {verb} {path}. {hint}")
