"""What the gateway serves by itself: the page, the API reference, the OpenAPI document and the version.

Envoy answers from files that are written next to its configuration, so no other process serves them. Each file is there
twice, as it is and compressed: Envoy compresses nothing while it serves, and clients without gzip can read it too.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import glimpse
from glimpse.gateway.authentication.filters import FILTER as AUTHENTICATION
from glimpse.gateway.descriptors import TYPED_PATHS

_GATEWAY = Path(__file__).parents[1]
_BUILT = Path(__file__).with_name("dist")

_DOCUMENTS = {"/openapi.json": "openapi.json", f"{TYPED_PATHS}openapi.json": "openapi_typed.json"}

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "font-src": "'self'",
    "manifest-src": "'self'",
    # What the user chooses is shown from memory.
    "img-src": "'self' blob: data:",
    "media-src": "'self' blob: data:",
    "frame-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""The content security policy: nothing from elsewhere, and no inline script or style."""

_REFERENCE_POLICY = _POLICY | {"trusted-types": "default dompurify 'allow-duplicates'"}
"""The API reference's: Swagger UI writes HTML, which DOMPurify purifies."""

_PAGE_HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
}

_HASHED = "public, max-age=31536000, immutable"
"""The names of assets contain hashes of their content."""
_ALWAYS_ASKED_FOR = "no-cache"

_GZIP_LEVEL = 6
"""The files are as small as with 9, and the gateway starts 40 ms sooner."""

_VERBS = {"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD"}}}
_TAKES_GZIP = {"name": "accept-encoding", "string_match": {"contains": "gzip"}}
_LUA_OFF = {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.LuaPerRoute", "disabled": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file, as clients see it."""

    path: str
    name: str
    """The name of the file that Envoy reads, relative to the folder of static files."""
    content: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Response headers by name."""
        headers = {
            "content-type": _TYPES[Path(self.name).suffix],
            "cache-control": _HASHED if self.path.startswith("/assets/") else _ALWAYS_ASKED_FOR,
            "x-content-type-options": "nosniff",
            "vary": "accept-encoding",
        }
        if not self.name.endswith(".html"):
            return headers
        policy = _REFERENCE_POLICY if self.name == "docs.html" else _POLICY
        return headers | _PAGE_HEADERS | {"content-security-policy": _policy_text(policy)}


def static_files(*, page: bool) -> list[StaticFile]:
    """Returns what the gateway serves; without the page and /docs unless `page`."""
    version = json.dumps({"version": glimpse.__version__}).encode()
    files = [
        StaticFile(path="/version", name="version.json", content=version),
        *(
            StaticFile(path=path, name=name, content=(_GATEWAY / name).read_bytes())
            for path, name in _DOCUMENTS.items()
        ),
    ]
    return [*files, *_page()] if page else files


def static_routes(files: Sequence[StaticFile], folder: Path, *, is_authenticated: bool) -> list[dict[str, Any]]:
    """Writes the files to a folder, and returns Envoy's routes to them. They need no credential.

    Args:
        folder: where Envoy reads the files; it is made.
        is_authenticated: other requests need a credential.
    """
    return [route for file in files for route in _routes(file, folder, is_authenticated)]


def largest(files: Sequence[StaticFile]) -> int:
    """Returns the size of the largest file in bytes."""
    return max(len(file.content) for file in files)


def _policy_text(policy: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


def _page() -> Iterator[StaticFile]:
    for path, name in (("/", "index.html"), ("/docs", "docs.html"), ("/licenses.txt", "licenses.txt")):
        yield StaticFile(path=path, name=name, content=(_BUILT / name).read_bytes())
    (icon,) = (_BUILT / "assets").glob("icon-*.svg")
    # Browsers ask for it with every other document, such as /openapi.json; the page names its own.
    yield StaticFile(path="/favicon.ico", name="favicon.svg", content=icon.read_bytes())
    for file in sorted((_BUILT / "assets").iterdir()):
        yield StaticFile(path=f"/assets/{file.name}", name=f"assets/{file.name}", content=file.read_bytes())


def _routes(file: StaticFile, folder: Path, is_authenticated: bool) -> Iterator[dict[str, Any]]:
    plain = folder / file.name
    compressed = plain.with_name(f"{plain.name}.gz")
    plain.parent.mkdir(parents=True, exist_ok=True)
    plain.write_bytes(file.content)
    compressed.write_bytes(gzip.compress(file.content, _GZIP_LEVEL, mtime=0))
    # The first script would refuse a request without a credential. The second one has nothing to convert here.
    options = {"typed_per_filter_config": {AUTHENTICATION: _LUA_OFF}} if is_authenticated else {}
    gzipped = file.headers | {"content-encoding": "gzip"}
    for source, headers, matchers in ((compressed, gzipped, [_TAKES_GZIP]), (plain, file.headers, [])):
        yield {
            "match": {"path": file.path, "headers": [_VERBS, *matchers]},
            "direct_response": {"status": 200, "body": {"filename": str(source)}},
            "response_headers_to_add": [_header(name, value) for name, value in headers.items()],
            **options,
        }
    yield {
        "match": {"path": file.path},
        "direct_response": {"status": 405},
        "response_headers_to_add": [_header("allow", "GET, HEAD")],
    }


def _header(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
