"""What commands print on standard error: their own words, and progress while a model loads, above it the log."""

import os
import pty
import shutil
import sys
import termios
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from threading import Thread
from typing import Self

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from glimpse.engine.protocol.messages import Loading, Ready

_log = structlog.stdlib.get_logger(__name__)

_STDERR = 2
_LAST_SECONDS = 2.0
"""Time for the last lines to be shown. Children that have not ended may write more."""


def say(text: str, *, style: str = "") -> None:
    """Prints what is not a command's result. On a terminal, lines are broken between words."""
    Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False).print(text, style=style, markup=False)


def wrapped(text: str) -> str:
    """Returns a text for standard output: on a terminal, its lines are broken between words."""
    if not sys.stdout.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(textwrap.fill(line, columns) for line in text.splitlines())


@contextmanager
def shared_console() -> Generator[Console]:
    """Yields a console on standard error. On a terminal, lines that others write there appear above its progress bar.

    The engine and Envoy write there too, so the file descriptor is replaced, by one that is a terminal for all of them.
    """
    if not sys.stderr.isatty():
        yield Console(stderr=True)
        return
    screen = os.dup(_STDERR)
    lines, substitute = pty.openpty()
    termios.tcsetwinsize(substitute, termios.tcgetwinsize(screen))
    os.dup2(substitute, _STDERR)
    os.close(substitute)
    console = Console(file=os.fdopen(os.dup(screen), "w"))
    showing = Thread(target=_show_lines, args=(lines, console), daemon=True)
    showing.start()
    try:
        yield console
    finally:
        os.dup2(screen, _STDERR)
        os.close(screen)
        showing.join(_LAST_SECONDS)


def _show_lines(descriptor: int, console: Console) -> None:
    """Shows each line until all writers have ended, which Linux reports as an error."""
    with suppress(OSError), os.fdopen(descriptor, errors="replace") as lines:
        for line in lines:
            console.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)


class LoadingProgress:
    """Shows a progress bar on a terminal, and logs each stage elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("starting the engine", total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Removes the bar. Safe to call twice."""
        self._progress.stop()

    def show(self, loading: Loading) -> None:
        self._progress.update(self._task, description=loading.stage, completed=loading.fraction)
        if not self._console.is_terminal and loading.stage != self._stage:
            _log.info("loading", stage=loading.stage)
        self._stage = loading.stage


def ready_text(
    ready: Ready, *, model: str, untrained: bool, trained_len: int | None = None, asked_len: int | None = None
) -> str:
    """Returns the lines that describe the served model.

    Args:
        trained_len: its own context window in tokens.
        asked_len: that of `--max-model-len`.
    """
    sliding = ready.num_sliding_blocks * ready.block_size
    lines = [
        f"Serving {model} on {ready.device} ({_computing(ready)}), {ready.max_model_len} tokens of context"
        f"{f', {ready.num_states} states of sequences' if ready.num_states else ''}"
        f"{f', {sliding} tokens in windows of sliding layers' if sliding else ''};"
        f" loaded in {ready.load_seconds:.1f} s."
    ]
    if untrained:
        lines.append("Its weights are random: the answers are noise. Give a trained checkpoint with --model.")
    lines += _cuts(ready, trained_len, asked_len)
    return "\n".join(lines)


def _cuts(ready: Ready, trained_len: int | None, asked_len: int | None) -> Iterator[str]:
    """Yields why the context is smaller than it was to be."""
    if trained_len is None:
        return
    if asked_len is not None and asked_len > trained_len:
        yield f"'--max-model-len': expected at most {trained_len}, the model's context, got {asked_len}."
    expected = min(trained_len, asked_len or trained_len)
    held_tokens = ready.num_blocks * ready.block_size
    if ready.max_model_len < min(expected, held_tokens):
        yield (
            f"A step computes a whole prompt, of at most {ready.max_model_len} tokens, the context was to have"
            f" {expected}: raise --max-batch-tokens."
        )
    elif ready.max_model_len < expected:
        times = ceil(expected / max(held_tokens, 1))
        held = f"The KV cache holds {ready.max_model_len} tokens, the context was to have {expected}"
        yield f"{held}: raise --kv-cache-bytes, about {times} times."


def _computing(ready: Ready) -> str:
    parts = [ready.dtype, f"{ready.backend} backend"]
    if ready.quantization != "none":
        parts.insert(1, f"{ready.quantization} weights")
    if ready.cpu_level:
        parts.append(ready.cpu_level)
    if ready.num_threads:
        parts.append(f"{ready.num_threads} thread{'s' * (ready.num_threads > 1)}")
    if ready.tensor_parallel_size > 1:
        parts.append(f"{ready.tensor_parallel_size} ranks")
    return ", ".join(parts)
