"""The programs of the guides run as they are written, in the clone, and are right about the images that they show."""

import gc
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from tests.paths import ROOT

PAGES = ["README.md", "docs/index.md", *(f"docs/guides/{path.name}" for path in (ROOT / "docs/guides").glob("*.md"))]
OTHER_MODELS = ("Audio(", "client.rerank(")
"""Programs with these need another model than the embedded one; they are only compiled."""

BOTH = "A large red circle at the top left and a small green triangle at the bottom right."
"""examples/image.png, as the embedded model describes it."""
CIRCLE = r"\{'shape': 'circle', 'colour': 'red', 'size': 'large', 'place': 'top left'\}"
TRIANGLE = r"\{'shape': 'triangle', 'colour': 'green', 'size': 'small', 'place': 'bottom right'\}"
# When this was written, each token that decides the truth led the next by 1.5 in log-probability or more: rounding does
# not turn them.
TRUE_OUTPUTS = {
    "README.md": (BOTH, BOTH),
    "docs/index.md": (BOTH, BOTH),
    "docs/guides/images.md": (BOTH + r"\n\d+ tokens for the image", r"\d+", r".*circle.*\n.*triangle.*"),
    "docs/guides/structured-output.md": (rf"{CIRCLE}\n{TRIANGLE}", "count=2", "The circle is red."),
    "docs/guides/tools.md": (r"save_object \{'shape': 'square', 'colour': 'blue'\}\nIt is done.",),
    "docs/guides/python.md": (
        BOTH + r" stop \d+",
        r"\d+ tokens of A red circle\n.*",
        r"INVALID_ARGUMENT .*temperature.*",
    ),
    "docs/guides/videos.md": (
        r"The square moves to the right.\n8 frames of 112 by 84 at \[0.0, .*, 3.5\]",
        "The circle moves to the right.",
    ),
    "docs/guides/embeddings.md": (r"2 vectors of 256\n-?[01]\.\d+ is their cosine similarity", "", ""),
    "docs/guides/audio.md": ("",),
}
"""Page → what each of its programs prints, as a regular expression."""
TERMINAL = {
    'glimpse chat "What is in this image?"': BOTH,
    'glimpse chat "Which image': ".*first.*",
    'glimpse chat "What happens?"': "The square moves to the right.",
    'echo "What colour': "The circle is red.",
    'glimpse chat "List the objects': '.*"circle".*"red".*"triangle".*"green".*',
}
"""Beginning of a command in docs/terminal.md → what it prints, likewise."""


# Programs leave the closing of their connections to their end, which here comes while the tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def programs(page: str, language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PYTHON = [(page, number) for page in sorted(PAGES) for number in range(len(programs(page, "python")))]
CURL = [(page, number) for page in sorted(PAGES) for number, text in enumerate(programs(page, "sh")) if "curl " in text]


def addressed(program: str, stack: Stack) -> str:
    """The program, for the stack's ports."""
    return program.replace("127.0.0.1:50051", stack.target).replace("http://127.0.0.1:8080", stack.url)


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_python_programs_tell_the_truth(page: str, number: int, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program = programs(page, "python")[number]
    code = compile(addressed(program, stack), f"{page}:{number}", "exec")
    assert [name for name in re.findall(r'"(examples/[^"]+)"', program) if not Path(name).exists()] == []
    if any(name in program for name in OTHER_MODELS):
        return
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    gc.collect()
    assert re.fullmatch(TRUE_OUTPUTS[page][number], printed.getvalue().strip(), re.DOTALL), printed.getvalue()


@pytest.mark.parametrize(("page", "number"), CURL)
def test_curl_commands_are_answered(page: str, number: int, stack: Stack) -> None:
    printed = run(addressed(programs(page, "sh")[number], stack))
    assert '"usage"' in printed
    assert '"error"' not in printed


def test_commands_of_the_terminal_page_tell_the_truth(stack: Stack) -> None:
    (block,) = (each for each in programs("docs/terminal.md", "sh") if each.startswith(next(iter(TERMINAL))))
    commands = block.splitlines()
    assert len(commands) == len(TERMINAL)
    for command, (beginning, printed) in zip(commands, TERMINAL.items(), strict=True):
        assert command.startswith(beginning)
        greedy = command.replace("glimpse chat", "glimpse chat --temperature 0") if "--temp" not in command else command
        assert re.fullmatch(printed, run(greedy, GLIMPSE_TARGET=stack.target).strip(), re.DOTALL), command


def run(command: str, **variables: str) -> str:
    """Runs a command in the clone, with its programs on the PATH; returns what it prints."""
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | path | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
