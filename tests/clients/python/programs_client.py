"""Runs programs as they are written."""

from contextlib import redirect_stdout
from io import StringIO

from driver import Outcome, Task


def run(task: Task) -> Outcome:
    """Returns what the program prints that the question has."""
    with redirect_stdout(StringIO()) as printed:
        exec(compile(task.question, "program", "exec"), {"__name__": "__main__"})
    return Outcome(text=printed.getvalue())


ASKS = {"run": run}
