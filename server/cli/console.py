"""What `glimpse up` prints: progress while the model loads, then what it serves. The caller chooses the stream."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from glimpse.engine.protocol import Loading, Ready


class LoadingProgress:
    """Shows a progress bar on a terminal, and a line for each stage elsewhere."""

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
            self._console.print(f"loading: {loading.stage}", markup=False, highlight=False)
        self._stage = loading.stage


def ready_text(ready: Ready, *, model: str, untrained: bool) -> str:
    """Returns the lines that describe the served model."""
    lines = [
        f"Serving {model} on {ready.device} ({_computing(ready)}), {ready.max_model_len} tokens of context;"
        f" loaded in {ready.load_seconds:.1f} s."
    ]
    if untrained:
        lines.append("Its weights are random: the answers are noise. Give a trained checkpoint with --model.")
    return "\n".join(lines)


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
