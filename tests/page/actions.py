"""What tests do on the page."""

import json

from playwright.sync_api import Locator, Page, Route, expect

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
COLOURS = "{ runOnly: ['color-contrast'] }"
"""The rule of axe that depends on the theme."""


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_label("Message", exact=True).press("Enter")


def add_image(page: Page) -> None:
    page.get_by_label("Files").set_input_files(IMAGE)
    expect(page.get_by_role("img", name=IMAGE.name)).to_be_visible()


def constrain(page: Page, text: str) -> None:
    """Lets the server's next answers be this text."""

    def handle(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        route.continue_(post_data=body | {"structured_outputs": {"choice": [text]}})

    page.route("**/v1/chat/completions", handle)


def answers(page: Page) -> Locator:
    """The answers that are complete."""
    return page.locator(".assistant[aria-busy=false]")


def set_schema(page: Page, schema: object) -> None:
    page.get_by_text("Answer as JSON").click()
    page.get_by_label("JSON Schema").fill(json.dumps(schema))


def violations(page: Page, axe: str, options: str = "{}", *, within: str = "html") -> list[str]:
    """What axe finds: the rule, and the first element that breaks it."""
    page.evaluate(axe)
    # Colours of buttons change over 0.3 s, in which they have others.
    transitions = "document.getAnimations().filter(each => each instanceof CSSTransition).map(each => each.finished)"
    page.evaluate(f"Promise.allSettled({transitions}).then(() => null)")
    found = page.evaluate(f"axe.run(document.querySelectorAll('{within}'), {options})")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]
