"""Conversations that the browser keeps, and what can be done with their turns."""

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.actions import COLOURS, add_image, answers, ask, constrain, set_schema, violations
from tests.waiting import eventually

LONG = "One more sentence of a long answer. " * 300
FIRST_MS = """
later => new Promise((resolve, reject) => {
  const opening = indexedDB.open("glimpse");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const turns = opening.result.transaction("turns", "readwrite").objectStore("turns");
    turns.getAll().onsuccess = ({ target }) => {
      const turn = target.result.find(turn => turn.role === "assistant");
      const changing = turns.put({ ...turn, firstMs: later ?? turn.firstMs });
      changing.onsuccess = () => { opening.result.close(); resolve(turn.firstMs); };
    };
  };
})
"""
"""The time of the first token of the only answer; `later` becomes it."""
CUT = "The page was closed or reloaded during this answer."
AT_END = """
() => {
  const { scrollTop, scrollHeight, clientHeight } = document.querySelector(".turns");
  return scrollHeight - scrollTop - clientHeight < 5;
}
"""
WAIT_FOR_WORDS = "() => document.querySelector('.assistant .text')?.textContent.length > 40"
STORED = """
table => new Promise((resolve, reject) => {
  const opening = indexedDB.open("glimpse");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const reading = opening.result.transaction(table).objectStore(table).getAll();
    reading.onsuccess = () => { opening.result.close(); resolve(reading.result); };
  };
})
"""
"""The rows of a table that the browser keeps. A reload at once would take the page's last change with it."""


def words_are_stored(page: Page) -> bool:
    return any(turn["text"].startswith("One more sentence") for turn in page.evaluate(STORED, "turns"))


def shown_answer_is_stored(page: Page) -> bool:
    """Whether the branch that is shown, of the only conversation, is the one that the browser keeps."""
    texts = {turn["id"]: turn["text"] for turn in page.evaluate(STORED, "turns")}
    (conversation,) = page.evaluate(STORED, "conversations")
    return texts.get(conversation["leaf"]) == answers(page).locator(".text").inner_text()


def conversations(page: Page, *titles: str) -> None:
    expect(page.locator(".entry .title")).to_have_text(list(titles))


def new_conversation(page: Page) -> None:
    page.get_by_role("button", name="New conversation").click()


def test_a_conversation_is_there_after_a_reload(page: Page) -> None:
    add_image(page)
    ask(page, "What is in this image?")
    expect(answers(page)).to_contain_text("red circle")
    page.reload()
    expect(answers(page)).to_contain_text("red circle")
    expect(page.locator(".user img")).to_have_js_property("naturalWidth", 336)
    ask(page, "What colour is the circle?")
    expect(answers(page).last).to_contain_text("red")


def test_conversations_are_found_renamed_and_deleted(page: Page) -> None:
    constrain(page, "About cats.")
    ask(page, "First question")
    expect(answers(page)).to_have_count(1)
    new_conversation(page)
    expect(answers(page)).to_have_count(0)
    constrain(page, "About dogs.")
    ask(page, "Second question")
    expect(answers(page).locator(".text")).to_have_text("About dogs.")
    conversations(page, "Second question", "First question")

    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("CATS")
    conversations(page, "First question")
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Rename “First question”").click()
    page.get_by_label("Title").fill("Animals")
    page.get_by_label("Title").press("Enter")
    page.get_by_role("button", name="Animals", exact=True).click()
    expect(answers(page).locator(".text")).to_have_text("About cats.")

    page.get_by_role("button", name="Delete “Animals”").click()
    conversations(page, "Second question")
    expect(answers(page)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    conversations(page, "Second question", "Animals")
    expect(answers(page).locator(".text")).to_have_text("About cats.")


def test_an_answer_cut_by_a_reload_says_so_and_goes_on(page: Page) -> None:
    constrain(page, LONG)
    ask(page, "Tell me something long.")
    assert eventually(lambda: words_are_stored(page))
    page.reload()
    expect(answers(page).get_by_text(CUT)).to_be_visible()
    expect(answers(page).locator(".text")).to_contain_text("One more sentence")
    kept = (answers(page).locator(".text").text_content() or "").strip()  # also of what is not drawn yet
    assert kept.startswith("One more sentence")
    assert len(kept) < len(LONG)
    hour_ms = 3_600_000
    page.evaluate(FIRST_MS, hour_ms)
    page.reload()
    expect(answers(page).get_by_text(CUT)).to_be_visible()
    page.unroute("**/v1/chat/completions")
    constrain(page, " And so it ends.")
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Continue").click()
    body = json.loads(request.value.post_data or "")
    assert body["continue_final_message"] is True
    assert body["messages"][-1]["role"] == "assistant"
    expect(answers(page).get_by_text(CUT)).to_have_count(0)
    expect(answers(page).locator(".text")).to_have_text(f"{kept} And so it ends.")
    # The times are those of the request whose usage is told.
    assert eventually(lambda: page.evaluate(FIRST_MS) not in (None, hour_ms))


def test_conversations_are_exported_and_imported(page: Page, tmp_path: Path) -> None:
    add_image(page)
    ask(page, "What is in this image?")
    expect(answers(page)).to_contain_text("red circle")
    conversations(page, "What is in this image?")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    exported = tmp_path / "conversations.json"
    download.value.save_as(exported)
    page.get_by_role("button", name="Delete “What is in this image?”").click()
    conversations(page)
    page.get_by_label("Conversations to import").set_input_files(exported)
    page.get_by_role("button", name="What is in this image?", exact=True).click()
    expect(answers(page)).to_contain_text("red circle")
    expect(page.locator(".user img")).to_have_js_property("naturalWidth", 336)

    document = json.loads(exported.read_text())
    turns = next(table for table in document["data"]["data"] if table["tableName"] == "turns")
    turns["rows"][0]["text"] = 7
    page.get_by_label("Conversations to import").set_input_files(
        [
            {"name": "other.json", "mimeType": "application/json", "buffer": json.dumps(document).encode()},
        ]
    )
    expect(page.get_by_role("alert")).to_have_text("“other.json” is no export of conversations.")


def test_a_question_is_edited_and_an_answer_generated_again(page: Page) -> None:
    constrain(page, "One.")
    ask(page, "First")
    expect(answers(page).locator(".text")).to_have_text("One.")
    page.get_by_role("button", name="Edit").click()
    constrain(page, "Two.")
    page.get_by_label("Edited message").fill("Second")
    page.get_by_label("Edited message").press("Enter")
    expect(answers(page).locator(".text")).to_have_text("Two.")
    expect(page.locator(".user .text")).to_have_text("Second")
    page.locator(".user").get_by_role("button", name="Previous version").click()
    expect(answers(page).locator(".text")).to_have_text("One.")

    constrain(page, "Three.")
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page).locator(".text")).to_have_text("Three.")
    expect(page.locator(".assistant .versions")).to_have_text("2/2")
    page.locator(".assistant").get_by_role("button", name="Previous version").click()
    expect(answers(page).locator(".text")).to_have_text("One.")
    # The other branch is there after a reload too.
    assert eventually(lambda: shown_answer_is_stored(page))
    page.reload()
    expect(answers(page).locator(".text")).to_have_text("One.")
    page.locator(".user").get_by_role("button", name="Next version").click()
    expect(answers(page).locator(".text")).to_have_text("Two.")


def test_a_turn_is_copied_and_deleted(page: Page) -> None:
    constrain(page, "# Title\n\nWords.")
    ask(page, "First")
    answers(page).get_by_role("button", name="Copy").click()
    expect(answers(page).get_by_role("status")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "# Title\n\nWords."
    answers(page).get_by_role("button", name="Delete").click()
    expect(answers(page)).to_have_count(0)
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(answers(page)).to_contain_text("Words.")
    page.locator(".user").get_by_role("button", name="Delete").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(answers(page)).to_contain_text("Words.")


def test_the_reader_scrolls_while_an_answer_grows(page: Page) -> None:
    page.set_viewport_size({"width": 1200, "height": 400})
    constrain(page, "A line.\n\n" * 150)
    ask(page, "Many lines, please.")
    page.wait_for_function("() => document.querySelector('.turns').scrollTop > 200")
    page.locator(".turns").evaluate("(turns) => { turns.scrollTop = 0; }")
    page.get_by_role("button", name="Latest").wait_for()
    expect(answers(page)).to_have_count(1)
    assert page.locator(".turns").evaluate("({ scrollTop }) => scrollTop") == 0
    page.get_by_role("button", name="Latest").click()
    page.wait_for_function(AT_END)


SIZES_BEFORE_THE_EVENT_OF_A_SCROLL = """async (turns, pairs) => {
  const shown = turns.firstElementChild.appendChild(document.createElement("div"));
  const resize = (height) => (shown.style.minHeight = `${height}px`);
  const frame = () => new Promise(requestAnimationFrame);
  const rests = [];
  for (const [first, second] of pairs) {
    await frame();
    resize(first);  // laid out in this frame; the event of the scroll that it causes comes in the next one
    await new Promise((done) => setTimeout(done));
    resize(second);
    shown.append("More text.");
    await frame();
    await frame();
    rests.push(turns.scrollHeight - turns.scrollTop - turns.clientHeight);
  }
  return rests;
}"""


def test_text_that_comes_before_the_event_of_a_scroll_is_followed(page: Page) -> None:
    constrain(page, "A line.")
    ask(page, "One line, please.")
    expect(answers(page)).to_have_count(1)
    # It grows twice; then it shrinks, which lets the browser scroll up, and grows.
    rests = page.locator(".turns").evaluate(SIZES_BEFORE_THE_EVENT_OF_A_SCROLL, [[1000, 5000], [500, 6000]])
    assert max(rests) < 2


def test_an_answer_in_another_conversation_goes_on(page: Page) -> None:
    constrain(page, "A long answer. " * 60 + "END")
    ask(page, "First question")
    page.wait_for_function(WAIT_FOR_WORDS)
    new_conversation(page)
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="First question", exact=True).click()
    expect(answers(page)).to_contain_text("END")


def test_every_state_is_accessible(page: Page, axe: str) -> None:
    constrain(page, "# A title\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n$x^2$")
    ask(page, "First question")
    expect(answers(page).locator(".katex")).to_be_visible()
    expect(answers(page).locator(".hljs-number")).to_be_visible()
    answers(page).locator(".figures summary").click()
    expect(answers(page).locator(".timeline")).to_be_visible()
    assert violations(page, axe) == []
    page.get_by_label("Theme").select_option("dark")
    assert violations(page, axe, COLOURS) == []
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    expect(answers(page)).to_have_count(1)
    assert violations(page, axe) == []
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("searchbox")).to_be_visible()
    assert violations(page, axe) == []
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("searchbox")).to_have_count(0)
    set_schema(page, {"type": "string"})
    assert violations(page, axe) == []


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    constrain(page, "Yes.")
    page.keyboard.type("Hello!")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("Yes.")
    page.locator("body").press("Escape")
    page.locator(".turns").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".turn")).to_have_count(0)
