"""The API reference in a real browser: Swagger UI over the gateway's OpenAPI document."""

import json

from playwright.sync_api import Page, expect

from tests.e2e.stack import Stack
from tests.page.actions import COLOURS, violations
from tests.paths import ROOT


def test_shows_every_operation_and_finds_them(page: Page, stack: Stack) -> None:
    page.goto(f"{stack.url}/docs")
    document = json.loads((ROOT / "gateway" / "openapi.json").read_bytes())
    paths = {path for path, verbs in document["paths"].items() for _ in verbs}
    expect(page.locator(".opblock")).to_have_count(sum(len(verbs) for verbs in document["paths"].values()))
    shown = page.locator(".opblock-summary-path").evaluate_all("(all) => all.map(({ dataset }) => dataset.path)")
    assert set(shown) == paths
    page.get_by_placeholder("Filter by tag").fill("detokenize")
    expect(page.locator(".opblock-summary-path")).to_have_count(1)
    expect(page.locator(".opblock-summary-path")).to_have_attribute("data-path", "/detokenize")


def test_tries_a_request_and_is_accessible(page: Page, stack: Stack, axe: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{stack.url}/docs#/tokenize/Tokenize")
    # Swagger UI first resolves the schemas of the operation.
    page.get_by_role("button", name="Execute").click(timeout=90_000)
    answer = page.locator(".live-responses-table .response").first
    expect(answer).to_contain_text("200")
    expect(answer).to_contain_text('"tokens": [')
    assert all(url.startswith((stack.url, "data:", "blob:")) for url in requests)
    assert violations(page, axe) == []
    page.get_by_label("Theme").select_option("dark")
    assert violations(page, axe, COLOURS) == []
