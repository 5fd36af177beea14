"""What tests do on the page."""

import json

from playwright.sync_api import Locator, Page, expect

from tests.paths import ROOT

IMAGE = ROOT / "examples" / "image.png"
"""A red circle and a green triangle."""
BOX = {
    "type": "object",
    "properties": {"bbox_2d": {"const": [30, 40, 330, 420]}, "label": {"const": "red circle"}},
    "required": ["bbox_2d", "label"],
    "additionalProperties": False,
}
"""The schema of an answer with a box around the circle."""


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_label("Message", exact=True).press("Enter")


def add_image(page: Page) -> None:
    page.get_by_label("Files").set_input_files(IMAGE)
    expect(page.get_by_role("img", name=IMAGE.name)).to_be_visible()


def answers(page: Page) -> Locator:
    """The answers that are complete."""
    return page.locator(".assistant[aria-busy=false]")


def set_schema(page: Page, schema: object) -> None:
    page.get_by_text("Answer as JSON").click()
    page.get_by_label("JSON Schema").fill(json.dumps(schema))
