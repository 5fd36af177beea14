"""Markdown of answers: what it shows, and that a model's text can do nothing."""

import json

from playwright.sync_api import Dialog, Page, Request, Route, expect

from tests.page.actions import answers, ask, constrain

FORMATTED = """# Shapes

Two **shapes**, see [the docs](https://example.com/a):

- a *circle*
- a `triangle`

| shape | sides |
|---|--:|
| circle | 0 |

```python
def area(radius):
    return 3 * radius ** 2
```

$$\\frac{1}{2}$$

Also \\(x^2\\), at 5 $ or 6 $ each, &lt;b&gt;.
"""
HOSTILE = """<script>alert(1)</script>

<img src="https://evil.invalid/a.png" onerror="alert(2)"> text
<svg onload="alert(3)"><a href="javascript:alert(4)">x</a></svg>

[one](javascript:alert(5)) [two](data:text/html,<script>alert(6)</script>) [three](//evil.invalid/b) [four](/docs)
[five](https://user:secret@evil.invalid/) ![pixel](https://evil.invalid/c.png) [six](JaVaScRiPt&colon;alert(7))
<https://example.com/d> <iframe src="https://evil.invalid/e"></iframe> <form action="https://evil.invalid"><button>go

<style>body { display: none }</style>

$\\href{javascript:alert(8)}{x} \\includegraphics{https://evil.invalid/f.png} \\htmlStyle{color:red}{y}$

```html
<script>alert(9)</script>
```
"""
TAG_HEADINGS = """
() => new MutationObserver(() => {
  const heading = document.querySelector(".markdown h3");
  if (!heading) return;
  heading.first ??= document.querySelector(".markdown").textContent.length;
}).observe(document.body, { subtree: true, childList: true, characterData: true })
"""
"""Notes on the first heading how long the answer was when it was shown."""


def answer_at_once(page: Page, text: str, size: int = 1 << 20) -> None:
    """Answers the next requests with this text, in chunks of `size` characters, without the server."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    chunks = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def handle(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", handle)


def test_formats_an_answer(page: Page) -> None:
    constrain(page, FORMATTED)
    ask(page, "Shapes?")
    answer = answers(page).locator(".markdown")
    expect(answer.get_by_role("heading", name="Shapes")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("shapes")
    link = answer.get_by_role("link", name="the docs")
    expect(link).to_have_attribute("href", "https://example.com/a")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(answer.locator("li")).to_have_text(["a circle", "a triangle"])
    expect(answer.get_by_role("columnheader", name="sides")).to_have_class("right")
    expect(answer.locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(answer.locator(".katex")).to_have_count(2)
    expect(answer.locator(".formula.displayed .mfrac")).to_have_count(1)
    expect(answer).to_contain_text("at 5 $ or 6 $ each, <b>.")
    page.wait_for_function("() => document.fonts.check('16px KaTeX_Main')")

    answer.locator(".code").get_by_role("button", name="Copy").click()
    expect(answer.get_by_text("Copied", exact=True)).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def area(radius):\n")


def test_a_hostile_answer_does_nothing(page: Page) -> None:
    dialogs: list[str] = []
    requests: list[Request] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    page.on("request", lambda request: requests.append(request))
    constrain(page, HOSTILE)
    ask(page, "Hello!")
    answer = answers(page).locator(".markdown")
    expect(answer.locator(".code")).to_contain_text("alert(9)")
    expect(answer).to_contain_text("<script>alert(1)</script>")
    made = page.evaluate(
        "[...document.querySelectorAll('.markdown *:not(.glyph)')].map(({ localName }) => localName)"
        ".filter((name) => /^(script|img|svg|iframe|style|form|object|embed|link|base)$/.test(name))"
    )
    assert made == []
    links = answer.get_by_role("link")
    assert [link.get_attribute("href") for link in links.all()] == [
        "https://evil.invalid/c.png",
        "https://example.com/d",
    ]
    for link in answer.get_by_text("four").all():
        link.click()
    assert dialogs == []
    origin = page.evaluate("location.origin")
    assert [request.url for request in requests if not request.url.startswith(origin)] == []
    assert page.locator("header").is_visible()


def test_what_is_shown_stays_while_an_answer_grows(page: Page) -> None:
    page.evaluate(TAG_HEADINGS)
    constrain(page, "# First\n\n" + "A word and another word. " * 120 + "\n\n## Second\n\nThe end.")
    ask(page, "Hello!")
    expect(answers(page).get_by_role("heading", name="Second")).to_be_visible()
    at_first, at_last = page.evaluate(
        "[document.querySelector('.markdown h3').first, document.querySelector('.markdown').textContent.length]"
    )
    # The heading is there before its first word.
    assert at_first < at_last


def test_ten_megabytes_do_not_stop_the_page(page: Page) -> None:
    row = "| a cell of a table | another one |\n"
    answer_at_once(page, "| a | b |\n|---|---|\n" + row * (10_000_000 // len(row)))
    ask(page, "A table, please.")
    expect(answers(page).get_by_text("characters are shown")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("Still here")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Still here")


def test_nesting_without_end_does_not_stop_the_page(page: Page) -> None:
    deep = ("- " * 10_000, "[" * 15_000, "*a " * 6_000, "$" * 9_000, "(" * 9_000)
    # The parser's stack is not deep enough for the first one, which is shown as it is written.
    for number, text in enumerate((">" * 20_000, "\n\n".join(deep))):
        answer_at_once(page, text)
        ask(page, "Hello!")
        expect(answers(page)).to_have_count(number + 1)
        expect(answers(page).nth(number).locator(".text")).to_be_visible()
        end = page.evaluate("[...document.querySelectorAll('.assistant .text')].at(-1).textContent.at(-1)")
        assert end == text[-1]
    page.get_by_label("Message", exact=True).fill("Still here")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Still here")
