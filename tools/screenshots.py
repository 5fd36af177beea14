"""Takes the screenshots in docs/figures, of a server with the embedded model that runs here; page.webp moves.

Run `make up` in one terminal and `.venv/bin/python tools/screenshots.py` in another. Needs Chromium.
"""

import argparse
import io
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
IMAGE = ROOT / "examples" / "image.png"
SIZE = (1280, 800)
QUESTION = "What is in this image?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway's address (default: %(default)s)")
    url: str = parser.parse_args().url
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is not installed. On Debian: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = opened(browser, url, "light")
        recording = Recording(page)
        converse(page, recording.show)
        save("page", *recording.frames, duration=recording.milliseconds)
        page = opened(browser, url, "dark")
        converse(page)
        save("page-dark", screenshot(page))
        page = opened(browser, f"{url}/docs", "light")
        page.locator(".opblock").first.wait_for()
        save("page-reference", screenshot(page))
        browser.close()


def opened(browser: Browser, url: str, theme: Literal["light", "dark"]) -> Page:
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=theme)
    page.goto(url)
    return page


class Recording:
    """Frames of a page, each with the milliseconds for which it is shown."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._waits_since: float | None = None
        self.frames: list[Image.Image] = []
        self.milliseconds: list[int] = []

    def show(self, seconds: float | None = None) -> None:
        """Shows the page for so long, or until it is shown again; one that has not changed is shown for longer."""
        frame, now = screenshot(self._page), time.monotonic()
        if self._waits_since is not None:
            self.milliseconds[-1] += round(1000 * (now - self._waits_since))
        self._waits_since = now if seconds is None else None
        if not self.frames or frame.tobytes() != self.frames[-1].tobytes():
            self.frames.append(frame)
            self.milliseconds.append(0)
        self.milliseconds[-1] += round(1000 * (seconds or 0))


def converse(page: Page, show: Callable[[float | None], None] = lambda _: None) -> None:
    """Asks the question; `show` is called after each change, with seconds, or None while the answer comes."""
    page.locator(".status.up").wait_for()
    page.get_by_label("Show token probabilities").check()
    show(1.0)
    page.get_by_label("Files").set_input_files(IMAGE)
    page.get_by_role("img", name=IMAGE.name).wait_for()
    show(1.0)
    message = page.get_by_label("Message", exact=True)
    for end in range(2, len(QUESTION), 2):
        message.fill(QUESTION[:end])
        show(0.12)
    message.fill(QUESTION)
    show(0.7)
    message.press("Enter")
    answered = page.locator(".assistant[aria-busy=false] .figures")
    while not answered.is_visible():
        show(None)
    show(2.5)
    page.get_by_text("Token probabilities", exact=True).click()
    show(4.0)


def screenshot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save(name: str, first: Image.Image, *others: Image.Image, duration: list[int] | None = None) -> None:
    path = FIGURES / f"{name}.webp"
    if others:
        first.save(path, lossless=True, method=6, save_all=True, append_images=others, duration=duration, loop=0)
    else:
        first.save(path, lossless=True, method=6)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
