"""`python -m glimpse.engine.worker.quantize`: what `glimpse quantize` runs."""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.quantize.quantize_checkpoint import GROUP_SIZES, Quantized, Recipe, quantize_checkpoint
from glimpse.interrupts import INTERRUPTED, ending_signals


def default_text() -> str:
    """Returns what Python's own help says of the language: English and code, which every Python has."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - not with a text of the user's

    return "\n".join(topics.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--to", choices=("int4", "int8", "q4_k_m"), default="int4")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=GROUP_SIZES[0])
    parser.add_argument("--text", type=Path)
    arguments = parser.parse_args()
    try:
        _accept_interrupts()
        print(_report(_quantize(arguments)))
    except CheckpointError as error:
        sys.exit(f"glimpse: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _accept_interrupts() -> None:
    """Lets signals end the program in order, so that no half checkpoint is left."""
    for number in ending_signals():
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _quantize(arguments: argparse.Namespace) -> Quantized:
    path = resolve_checkpoint(arguments.model)
    try:
        text = default_text() if arguments.text is None else arguments.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"'--text': expected a file of text in UTF-8, got {str(arguments.text)!r}") from error
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("quantizing layer by layer", total=1.0)
        return quantize_checkpoint(
            path,
            arguments.out,
            Recipe(to=arguments.to, group_size=arguments.group_size),
            text,
            on_progress=lambda fraction: progress.update(task, completed=fraction),
        )


def _report(made: Quantized) -> str:
    loss = made.loss
    return (
        f"{made.path}: {made.num_bytes / 2**30:.2f} GiB of weights, {made.format}.\n"
        f"Perplexity of held-out text: {loss.exact:.3f} before, {loss.quantized:.3f} after ({loss.increase:+.2%})."
    )


if __name__ == "__main__":
    main()
