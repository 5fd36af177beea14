"""The Python programs of docs/integrations/ run as they are written, with the embedded model."""

import re
import subprocess

from tests.clients.programs import OTHER_PYTHON, environment
from tests.e2e.stack import ROOT, Stack

PAGE = "docs/integrations/index.md"
NOT_INSTALLED = "from agents import"
"""A program with it is only compiled: the client is in no environment of the tests."""


def test_programs_of_the_integrations_print_something(stack: Stack, outside: str) -> None:
    """All in one process, because their imports take longer than their requests."""
    text = (ROOT / PAGE).read_text().replace("http://127.0.0.1:8080", stack.url)
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for number, program in enumerate(programs):
        compile(program, f"{PAGE}:{number}", "exec")
    runnable = [program for program in programs if NOT_INSTALLED not in program]
    done = subprocess.run(
        [OTHER_PYTHON, "-c", "\nprint('----')\n".join(runnable)],
        env=environment(outside),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("----\n")
    assert len(printed) == len(runnable)
    assert all(each.strip() for each in printed)
