"""The page in a real browser, in front of a real server."""

import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.node import NODE
from tests.e2e.scenes import scene
from tests.e2e.stack import Stack
from tests.media.pdfs import of_images
from tests.media.videos import greys, video
from tests.page.actions import BOX, COLOURS, IMAGE, add_image, answers, ask, set_schema, violations
from tests.paths import ROOT

NODE_PACKAGES = ROOT / "examples" / "node" / "node_modules"
QUESTION = "What is in this image?"
LONG = {"type": "string", "minLength": 6000}
STAGES = ("Prepare", "Decode files", "Queue", "Encode", "Prefill", "Tokens")
"""Stages of an answer about an image, in their order; what caches have takes no time."""
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
}

DROP = """
([target, name, type, text]) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name, { type }));
  target.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer }));
}
"""
COPY = """
([type, text]) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return navigator.clipboard.write([new ClipboardItem({ [type]: new Blob([bytes], { type }) })]);
}
"""
STOP_WHILE_IT_GROWS = """
() => {
  const lengths = new Set();
  new MutationObserver((_, observer) => {
    lengths.add(document.querySelector(".assistant .text")?.textContent.length ?? 0);
    if (lengths.size < 6) return;
    observer.disconnect();
    [...document.querySelectorAll("button")].find((button) => button.textContent.trim() === "Stop").click();
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}
"""
"""Clicks on Stop once an answer has had several lengths. From outside, the click could come after the end."""


def test_answers_about_a_dropped_image(page: Page) -> None:
    content = base64.b64encode(IMAGE.read_bytes()).decode()
    page.evaluate(DROP, [page.locator("header").element_handle(), "shapes.png", "image/png", content])
    expect(page.get_by_text("336 × 252")).to_be_visible()
    ask(page, QUESTION)
    expect(answers(page)).to_contain_text("red circle")
    answers(page).get_by_text(re.compile("first token after .* m?s")).click()
    expect(answers(page).get_by_text("Image tokens")).to_be_visible()
    stages = answers(page).get_by_role("figure", name="Where the server’s time went").get_by_role("listitem")
    expect(stages.last).to_have_text(re.compile(r"^Tokens[\d.]+ m?s$"))
    shown = stages.locator("span:first-child").all_inner_texts()
    assert set(shown) >= {"Prepare", "Queue", "Prefill"}
    assert shown == [stage for stage in STAGES if stage in shown]
    bars = [rect_of(bar) for bar in stages.locator("rect").all()]
    assert [begin for begin, _ in bars] == pytest.approx([0, *itertools.accumulate(width for _, width in bars)][:-1])
    expect(page.locator(".user figcaption")).to_contain_text("To the model: 336 × 252, 108 tokens, ")

    ask(page, "What is its colour?")
    expect(answers(page)).to_have_count(2)
    cached = "336 × 252, 108 tokens, prefix cached"
    expect(page.locator(".user figcaption")).to_contain_text(f"To the model: {cached}")
    answers(page).last.get_by_text(re.compile("first token after .* m?s")).click()
    expect(answers(page).last.get_by_text(cached)).to_be_visible()


def rect_of(bar: Locator) -> tuple[float, float]:
    return float(bar.get_attribute("x") or "nan"), float(bar.get_attribute("width") or "nan")


def test_answers_about_a_dropped_document(page: Page) -> None:
    content = base64.b64encode(of_images([scene(("red", "circle", (0.5, 0.5), 0.5))])).decode()
    page.evaluate(DROP, [page.locator("header").element_handle(), "scene.pdf", "application/pdf", content])
    expect(page.get_by_text("scene.pdf")).to_be_visible()
    ask(page, "What colour is the circle?")
    expect(answers(page)).to_contain_text("red")


def test_answers_about_a_pasted_image(page: Page) -> None:
    content = base64.b64encode(IMAGE.read_bytes()).decode()
    page.evaluate(COPY, ["image/png", content])
    page.get_by_label("Message", exact=True).press("Control+V")
    expect(page.get_by_text("336 × 252")).to_be_visible()
    ask(page, QUESTION)
    expect(answers(page)).to_contain_text("red circle")


def test_an_answer_appears_while_it_is_generated_and_can_be_stopped(page: Page) -> None:
    set_schema(page, LONG)
    page.get_by_label("Max tokens").fill("4000")
    page.evaluate(STOP_WHILE_IT_GROWS)
    ask(page, "Tell me a story.")
    expect(answers(page)).to_contain_text("Stopped.")
    expect(answers(page).locator(".text")).not_to_be_empty()


def test_draws_boxes_on_the_image(page: Page) -> None:
    add_image(page)
    set_schema(page, BOX)
    ask(page, "Where is the red circle?")
    box = page.locator(".canvas rect")
    expect(box).to_have_count(1)
    shape = [float(box.get_attribute(name) or "nan") for name in ("x", "y", "width", "height")]
    assert shape == pytest.approx([10.08, 10.08, 100.8, 95.76])
    expect(page.locator(".boxes li")).to_have_text("red circle 10, 10 – 111, 106")


def test_shows_an_error_and_asks_again(page: Page, console_errors: list[str]) -> None:
    page.get_by_label("Temperature").fill("9")
    ask(page, "Hello!")
    expect(page.get_by_role("alert").locator("p").first).to_have_text(re.compile("^Temperature: expected .*"))
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(answers(page).locator(".text")).not_to_be_empty()
    # The browser reports the refused request.
    assert all("400" in error for error in console_errors)
    console_errors.clear()


def test_says_when_the_gateway_cannot_be_reached(page: Page, console_errors: list[str]) -> None:
    page.context.set_offline(True)
    ask(page, "Hello!")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_text("not serving")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_text("not serving")).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    expect(answers(page).locator(".text")).not_to_be_empty()
    assert all("ERR_INTERNET_DISCONNECTED" in error for error in console_errors)
    console_errors.clear()


def test_tokens_show_their_probabilities(page: Page) -> None:
    page.get_by_label("Show token probabilities").check()
    ask(page, "Hello!")
    token = answers(page).locator(".tokens span").first
    expect(token).to_have_attribute("title", re.compile(r'".*" \d+\.\d %, '))


def test_tools_are_called_and_answered(page: Page) -> None:
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions, as a JSON list").fill(json.dumps([TOOL]))
    page.get_by_label("Tool choice").select_option("required")
    ask(page, "What is the weather in Paris?")
    expect(page.get_by_label("Tool call")).to_contain_text("get_weather(")
    page.get_by_label("Result of get_weather").fill("sunny")
    page.get_by_label("Tool choice").select_option("none")
    page.get_by_role("button", name="Send the result").click()
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last.locator(".text")).not_to_be_empty()


@pytest.mark.parametrize("language", ["curl", "Python", "Node", "gRPC"])
def test_the_copied_program_gets_the_same_answer(page: Page, tmp_path: Path, language: str) -> None:
    add_image(page)
    page.get_by_label("System prompt").fill('It\'s $HOME `id` \\ "x"')
    ask(page, QUESTION)
    expect(answers(page).locator(".text")).not_to_be_empty()
    page.get_by_text("Copy as code").click()
    page.get_by_label("Programming language").select_option(language)
    copied = page.locator(".copy")
    copied.get_by_role("button", name="Copy", exact=True).click()
    expect(copied.get_by_role("status")).to_have_text("Copied")
    program: str = page.evaluate("navigator.clipboard.readText()")
    shutil.copy(IMAGE, tmp_path)
    expect(answers(page).locator(".text")).to_have_text(printed(program, language, tmp_path))


def printed(program: str, language: str, folder: Path) -> str:
    """The answer that a program prints, run in this folder."""
    if language == "Node":
        if not NODE_PACKAGES.exists():
            pytest.skip("the Node examples' packages are not installed; run `make set-up-dev`")
        (folder / "node_modules").symlink_to(NODE_PACKAGES)
        (folder / "ask.mjs").write_text(program)
    if language == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed; on Debian: apt install curl")
    command = {"curl": ["bash", "-c", program], "Node": [str(NODE), "ask.mjs"]}.get(
        language, [sys.executable, "-c", program]
    )
    output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120).stdout
    if language != "curl":
        return output.strip()
    events = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


def test_shows_the_frames_of_a_video(page: Page) -> None:
    content = video(greys(20, width=112, height=112))
    page.get_by_label("Files").set_input_files([{"name": "grey.mp4", "mimeType": "video/mp4", "buffer": content}])
    expect(page.get_by_text("112 × 112, 2.0 s")).to_be_visible()
    ask(page, "What happens?")
    answers(page).get_by_text(re.compile("first token after .* m?s")).click()
    expect(answers(page).get_by_text(re.compile(r"^0\.0, "))).to_be_visible()
    expect(page.locator(".user figcaption")).to_contain_text("To the model: 4 frames of 112 × 112, 32 tokens, ")


def test_answers_about_recorded_audio(page: Page, hearing_stack: Stack) -> None:
    page.goto(hearing_stack.url)
    page.get_by_label("Max tokens").fill("8")
    page.get_by_role("button", name="Record", exact=True).click()
    # Chromium's fake microphone beeps once a second.
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"[1-9]\d* s"))
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("timer")).to_have_count(0)
    expect(page.get_by_text("recording.webm")).to_be_visible()
    ask(page, "What do you hear?")
    answers(page).get_by_text(re.compile("first token after .* m?s")).click()
    heard = re.search(r"To the model: (\S+) s, (\d+) tokens", page.locator(".user figcaption").inner_text())
    assert heard is not None
    # Two positions of 20 ms each are a token.
    assert int(heard[2]) == pytest.approx(25 * float(heard[1]), abs=3)
    assert float(heard[1]) > 0.5


def test_media_that_the_model_does_not_read_are_refused(page: Page) -> None:
    expect(page.get_by_role("button", name="Record")).to_have_count(0)
    page.get_by_label("Files").set_input_files(
        [
            {"name": "voice.wav", "mimeType": "audio/wav", "buffer": b"RIFF"},
            {"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"},
        ]
    )
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("“voice.wav”: this model does not read audio.")
    expect(alert).to_contain_text("“a.txt” is no image, video, audio or PDF.")


def test_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.reload()
    page.get_by_label("Model", exact=True).wait_for()
    add_image(page)
    ask(page, QUESTION)
    expect(answers(page).locator(".text")).not_to_be_empty()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_page_is_public_and_asks_for_a_key(
    url_with_keys: tuple[str, str], page: Page, console_errors: list[str]
) -> None:
    url, token = url_with_keys
    page.goto(url)
    field = page.get_by_label("API key")
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    field.fill(token)
    field.press("Enter")
    expect(field).to_have_count(0)
    expect(page.get_by_label("Model", exact=True)).to_be_visible()
    ask(page, "Hello!")
    expect(answers(page).locator(".text")).not_to_be_empty()
    # The browser reports the refused requests.
    assert all("401" in error for error in console_errors)
    console_errors.clear()
    # The key is kept in memory alone.
    assert (
        page.evaluate("JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])") == '[{},{},""]'
    )


def test_the_playground_is_accessible(page: Page, axe: str) -> None:
    add_image(page)
    set_schema(page, BOX)
    page.get_by_label("Show token probabilities").check()
    page.get_by_text("Tools", exact=True).click()
    ask(page, "Where is the red circle?")
    expect(page.locator(".canvas rect")).to_have_count(1)
    for summary in answers(page).locator("summary").all():
        summary.click()
    page.get_by_text("Copy as code").click()
    assert violations(page, axe) == []
    page.get_by_label("Theme").select_option("dark")
    assert violations(page, axe, COLOURS) == []


def test_the_start_prints_the_address_of_the_page(stack: Stack) -> None:
    assert f"Open {stack.url} in a browser" in stack.log.read_text()
