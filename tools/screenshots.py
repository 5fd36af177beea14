"""Takes the screenshots in docs/figures, of a server with the embedded model that runs here.

Run `make up` in one terminal and `.venv/bin/python tools/screenshots.py` in another. Needs Chromium.
"""

import argparse
import io
import shutil
import sys
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
        themes: tuple[tuple[Literal["light", "dark"], str], ...] = (("light", "page"), ("dark", "page-dark"))
        for theme, name in themes:
            page = opened(browser, url, theme)
            converse(page)
            save(page, name)
        page = opened(browser, f"{url}/docs", "light")
        page.locator(".opblock").first.wait_for()
        save(page, "page-reference")
        browser.close()


def opened(browser: Browser, url: str, theme: Literal["light", "dark"]) -> Page:
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=theme)
    page.goto(url)
    return page


def converse(page: Page) -> None:
    page.locator(".status.up").wait_for()
    page.get_by_label("Show token probabilities").check()
    page.get_by_label("Files").set_input_files(IMAGE)
    page.get_by_role("img", name=IMAGE.name).wait_for()
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.get_by_label("Message", exact=True).press("Enter")
    page.locator(".assistant[aria-busy=false] .figures").wait_for()
    page.get_by_text("Token probabilities", exact=True).click()


def save(page: Page, name: str) -> None:
    path = FIGURES / f"{name}.webp"
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, lossless=True, method=6)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
