"""The programs of the guides run as they are written, against a server with the embedded model."""

import gc
import io
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.images import tiles
from tests.e2e.stack import Stack
from tests.media.videos import video
from tests.paths import ROOT

PAGES = ["README.md", "docs/index.md", *(f"docs/guides/{path.name}" for path in (ROOT / "docs/guides").glob("*.md"))]
OTHER_MODELS = ("Audio(", "client.rerank(", "LLM(")
"""Programs with these need another model than the embedded one, or no server; they are only compiled."""


# Programs leave the closing of their connections to their end, which here comes while the tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def programs(page: str, language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PYTHON = [(page, number) for page in sorted(PAGES) for number in range(len(programs(page, "python")))]
CURL = [(page, number) for page in sorted(PAGES) for number, text in enumerate(programs(page, "sh")) if "curl " in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are that the guides name."""
    folder = tmp_path_factory.mktemp("guides")
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "image.png", folder / "examples")
    frames = np.stack([np.asarray(tiles(seed=seed, width=112, height=112)) for seed in range(4)])
    (folder / "video.mp4").write_bytes(video(frames, container="mp4", codec="libx264"))
    return folder


def addressed(program: str, stack: Stack) -> str:
    """The program, for the stack's ports."""
    return program.replace("127.0.0.1:50051", stack.target).replace("http://127.0.0.1:8080", stack.url)


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_python_programs_print_something(
    page: str, number: int, stack: Stack, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    program = programs(page, "python")[number]
    code = compile(addressed(program, stack), f"{page}:{number}", "exec")
    if any(name in program for name in OTHER_MODELS):
        return
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    gc.collect()
    assert printed.getvalue().strip()


@pytest.mark.parametrize(("page", "number"), CURL)
def test_curl_commands_are_answered(page: str, number: int, stack: Stack, folder: Path) -> None:
    command = addressed(programs(page, "sh")[number], stack)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"usage"' in done.stdout
    assert '"error"' not in done.stdout
