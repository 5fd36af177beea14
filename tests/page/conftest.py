"""A server with the embedded model behind its gateway, and pages of it in Debian's Chromium without windows."""

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run `make set-up-dev`")

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.e2e.stack import Stack, start_stack
from tests.identity.tokens import AUDIENCE, ISSUER, Provider
from tests.paths import ROOT
from tests.waiting import eventually

_AXE = ROOT / "gateway" / "page" / "node_modules" / "axe-core" / "axe.min.js"
_CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The first one takes half of the other's processor time."""
_FAKE_MICROPHONE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
_WAIT_MS = 30_000
"""For what the page shows. A busy machine takes its time."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """For this folder: while playwright runs, its event loop leaves no room for those of other tests."""
    if _CHROMIUM is None:
        pytest.skip("Chromium is not installed; on Debian: apt install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_FAKE_MICROPHONE)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def stack(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # Assertions of playwright have a time limit of their own.
    expect.set_options(timeout=_WAIT_MS)
    running = start_stack(tmp_path_factory.mktemp("page"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    if not _AXE.exists():
        pytest.skip("axe-core is not installed; run `make set-up-dev`, or `npm ci` in gateway/page")
    return _AXE.read_text()


@pytest.fixture
def console_errors() -> list[str]:
    """What the page under test wrote to the console as errors. A test that causes errors empties it."""
    return []


@pytest.fixture
def page(browser: Browser, stack: Stack, console_errors: list[str]) -> Iterator[Page]:
    """The playground, once it shows that the server serves."""
    context = browser.new_context(
        base_url=stack.url, viewport={"width": 1200, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    page.set_default_timeout(_WAIT_MS)

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            console_errors.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: console_errors.append(str(error)))
    page.goto(stack.url)
    page.locator(".status.up").wait_for()
    page.get_by_label("Model", exact=True).wait_for()
    yield page
    context.close()
    assert console_errors == []


@pytest.fixture(scope="module")
def hearing_stack(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server with a random model that accepts audio and no images. Without Chromium it is not started."""
    folder = tmp_path_factory.mktemp("hearing")
    checkpoint = make_audio_checkpoint(folder / "audio-model")
    running = start_stack(folder, f"--model={checkpoint}", "--dtype=float32")
    yield running
    running.stop()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def url_with_keys(stack: Stack, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a second gateway of the same server, which takes tokens alone, and a token."""
    provider = Provider()
    (tmp_path / "jwks").write_text(provider.jwks)
    tokens = (f"--jwt-jwks={tmp_path / 'jwks'}", f"--jwt-issuer={ISSUER}", f"--jwt-audience={AUDIENCE}")
    command = [sys.executable, "-m", "glimpse.gateway", "run", "--listen=127.0.0.1:0", f"--upstream={stack.target}"]
    with subprocess.Popen([*command, *tokens], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.removeprefix("Gateway on ").strip()
            assert eventually(lambda: _is_healthy(url))
            yield url, provider.token()
        finally:
            process.terminate()
