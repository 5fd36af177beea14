"""The site's references of both APIs are complete: `make docs` checks that their links lead somewhere."""

import json
from typing import Any

import pytest

from glimpse.gateway.descriptors import services
from glimpse.gateway.openapi.document import compiled_protos
from tests.paths import ROOT
from tools.reference.grpc_pages import grpc_pages
from tools.reference.rest_page import rest_page

DOCUMENT: dict[str, Any] = json.loads((ROOT / "gateway" / "openapi.json").read_text())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return grpc_pages(compiled_protos(ROOT))


@pytest.fixture(scope="module")
def rest() -> str:
    return rest_page(DOCUMENT)


def section(page: str, anchor: str) -> str:
    """What stands under a heading, up to the next one."""
    return page.split(f"{{ #{anchor} }}\n", 1)[1].split("\n#", 1)[0]


def test_has_every_method(pages: dict[str, str]) -> None:
    methods = [method for service in services() for method in service.methods]
    ours = [method for method in methods if method.full_name.startswith("glimpse.v1.")]
    assert ours
    for method in ours:
        name = f"{method.containing_service.name}.{method.name}"
        page = method.containing_service.file.name.rsplit("/", 1)[1].replace(".proto", ".md")
        assert f"[{name}]({page}#{name.lower().replace('.', '-')})" in pages["index.md"]
        text = section(pages[page], name.lower().replace(".", "-"))
        assert method.input_type.name in text
        assert method.output_type.name in text
        assert ("stream of" in text) == (method.client_streaming or method.server_streaming)


def test_has_every_field_with_its_comment(pages: dict[str, str]) -> None:
    request = section(pages["chat.md"], "createchatcompletionrequest")
    assert "| `messages` | repeated [Message](content.md#message) | Required. The conversation so far" in request
    assert "| `metadata` | map of string to string |" in request
    source = section(pages["content.md"], "mediasource")
    assert "| `data` | bytes | One of `source`. " in source
    assert "| `ROLE_SYSTEM` | " in section(pages["content.md"], "role")


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in pages if f"reference/grpc/{name}" not in navigation] == []


def test_has_every_operation_and_every_member(rest: str) -> None:
    for path, operations in DOCUMENT["paths"].items():
        for verb in operations:
            assert f"## `{verb.upper()} {path}`" in rest
    for name, schema in DOCUMENT["components"]["schemas"].items():
        text = section(rest, name.lower())
        assert [member for member in schema.get("properties", {}) if f"`{member}`" not in text] == []


def test_forms_of_a_content_part_are_one_table(rest: str) -> None:
    part = section(rest, "contentpart")
    assert '| `type` | `"text"`, `"image_url"`' in part
    assert "| `image_url` | [ImagePart](#imagepart) or null | An image. |" in part


def test_members_that_are_refused_are_apart(rest: str) -> None:
    request = section(rest, "createchatcompletionrequest")
    table, refused = request.split("Accepted only with the value that changes nothing", 1)
    assert "`modalities`" in refused
    assert "`modalities`" not in table
