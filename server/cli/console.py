"""What `glimpse up` prints: progress while the model loads, then commands to copy. The caller chooses the stream."""

import shlex
import shutil
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from glimpse.client.channel import DEFAULT_TARGET
from glimpse.engine.protocol import Loading, Ready

EXAMPLE_IMAGE = Path(str(resources.files("glimpse") / "example.png")).resolve()

_QUESTION = "What is in this image?"

_CHAT = '{glimpse} chat "{question}" --image {image}{target_flag}'

# The examples write an image into JSON by printing the text before it, its base64 text, and the text after it.
_CURL = """\
(printf '{{"stream": true, "max_completion_tokens": 64, "messages": [{{"role": "user", "content": ['
 printf '{{"type": "text", "text": "{question}"}}, {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,'
 base64 < {image} | tr -d '\\n'
 printf '"}}}}]}}]}}') | curl -N -H 'content-type: application/json' -d @- {url}/v1/chat/completions"""

_OPENAI = """\
{python} - {image} <<'END'
import base64, openai, sys
image = base64.b64encode(open(sys.argv[1], "rb").read()).decode()
client = openai.OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(model="{model}", max_completion_tokens=64, messages=[
    {{"role": "user", "content": [
        {{"type": "text", "text": "{question}"}},
        {{"type": "image_url", "image_url": {{"url": "data:image/png;base64," + image}}}}]}}])
print(answer.choices[0].message.content)
END"""

_GRPCURL = """\
(printf '{{"generation": {{"max_completion_tokens": 64}}, "messages": [{{"role": "ROLE_USER", "content": ['
 printf '{{"text": "{question}"}}, {{"image": {{"source": {{"data": "'
 base64 < {image} | tr -d '\\n'
 printf '"}}}}}}]}}]}}') | grpcurl -plaintext -d @ {target} glimpse.v1.ChatService/StreamChatCompletion"""


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


def usage_text(*, model: str, http_url: str | None, target: str, uses_tls: bool = False) -> str:
    """Returns commands to copy, those whose programs are installed; `glimpse chat` always is.

    With TLS only that one: the CA that clients need to know is not known here.
    """
    values = {
        "question": _QUESTION,
        "image": _short(EXAMPLE_IMAGE),
        "python": _short(Path(sys.executable)),
        "glimpse": _command(),
        "model": model,
        "url": http_url,
        "target": target,
        "target_flag": "" if target == DEFAULT_TARGET else f" --target {target}",
    }
    if uses_tls:
        name, flag = "Command line; CA.pem is the CA that signed the certificate", " --tls-ca CA.pem"
        return f"{name}, {target}\n\n{_CHAT.format(**values)}{flag}"
    examples: list[tuple[str, str, str, object]] = [("Command line", target, _CHAT, True)]
    if http_url is not None:
        examples += [
            ("curl", f"{http_url}/v1/chat/completions", _CURL, shutil.which("curl")),
            ("OpenAI's Python client", f"{http_url}/v1", _OPENAI, find_spec("openai")),
        ]
    examples.append(("grpcurl", target, _GRPCURL, shutil.which("grpcurl")))
    return "\n\n".join(
        f"{name}, {address}\n\n{text.format(**values)}" for name, address, text, installed in examples if installed
    )


def _command() -> str:
    """Returns how a shell in this working directory runs `glimpse`."""
    script = Path(sys.executable).with_name("glimpse")
    if shutil.which("glimpse") == str(script):
        return "glimpse"
    return _short(script) if script.exists() else f"{_short(Path(sys.executable))} -m glimpse"


def _short(path: Path) -> str:
    """Returns the path for a shell, relative to the working directory where it is below it."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
