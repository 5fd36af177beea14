"""What a person sees at start-up: progress while the model loads, then lines that can be copied as they stand.

Only text; where it goes is decided by the caller.
"""

import sys
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from glimpse.engine.protocol import Loading, Ready

EXAMPLE_IMAGE = Path(str(resources.files("glimpse") / "example.png")).resolve()

_QUESTION = "What is in this picture?"

# The examples put a picture into JSON by printing what comes before it, its base64 text, and what comes after it.
_CURL = """\
(printf '{{"stream": true, "max_completion_tokens": 64, "messages": [{{"role": "user", "content": ['
 printf '{{"type": "text", "text": "{question}"}}, {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,'
 base64 < {picture} | tr -d '\\n'
 printf '"}}}}]}}]}}') | curl -N -H 'content-type: application/json' -d @- {url}/v1/chat/completions"""

_OPENAI = """\
{python} - <<'END'
import base64, openai
picture = base64.b64encode(open("{picture}", "rb").read()).decode()
client = openai.OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(model="{model}", max_completion_tokens=64, messages=[
    {{"role": "user", "content": [
        {{"type": "text", "text": "{question}"}},
        {{"type": "image_url", "image_url": {{"url": "data:image/png;base64," + picture}}}}]}}])
print(answer.choices[0].message.content)
END"""

_GRPCURL = """\
(printf '{{"generation": {{"max_completion_tokens": 64}}, "messages": [{{"role": "ROLE_USER", "content": ['
 printf '{{"text": "{question}"}}, {{"image": {{"source": {{"data": "'
 base64 < {picture} | tr -d '\\n'
 printf '"}}}}}}]}}]}}') | grpcurl -plaintext -d @ {target} glimpse.v1.ChatService/StreamChatCompletion"""


class LoadingProgress:
    """A bar on a terminal; a line for each stage elsewhere. As a context manager, from the start to being ready."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("starting the engine", total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the bar away. May be called twice."""
        self._progress.stop()

    def show(self, loading: Loading) -> None:
        self._progress.update(self._task, description=loading.stage, completed=loading.fraction)
        if not self._console.is_terminal and loading.stage != self._stage:
            self._console.print(f"loading: {loading.stage}", markup=False, highlight=False)
        self._stage = loading.stage


def ready_text(ready: Ready, *, model: str, untrained: bool) -> str:
    """The lines that say what is served."""
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
    if ready.tensor_parallel_size > 1:
        parts.append(f"{ready.tensor_parallel_size} ranks")
    return ", ".join(parts)


def usage_text(*, model: str, http_url: str | None, target: str) -> str:
    """Ways to ask, to be copied."""
    values = {
        "question": _QUESTION,
        "picture": _short(EXAMPLE_IMAGE),
        "python": _short(Path(sys.executable)),
        "model": model,
    }
    doors = [("gRPC", target, _GRPCURL.format(target=target, **values))]
    if http_url is not None:
        doors = [
            ("curl", f"{http_url}/v1/chat/completions", _CURL.format(url=http_url, **values)),
            ("OpenAI's Python client", f"{http_url}/v1", _OPENAI.format(url=http_url, **values)),
            *doors,
        ]
    return "\n\n".join(f"{name}, {place}\n\n{example}" for name, place, example in doors)


def _short(path: Path) -> str:
    """Relative to the working directory where the path is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
