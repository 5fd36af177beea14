"""The command line: `glimpse up`, `serve`, `gateway`, `chat`. The flags are glimpse.server.settings'."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import uvloop
from cyclopts import App, Parameter
from cyclopts.config import Env
from rich.console import Console

from glimpse import __version__
from glimpse.engine.checkpoint import is_untrained
from glimpse.engine.cpu_policy import MAX_FEW_PROCESSORS, num_processors, use_batch_policy
from glimpse.engine.errors import CheckpointError, EngineError
from glimpse.engine.protocol import Ready
from glimpse.server.cli.chat import AskError, ask
from glimpse.server.cli.console import LoadingProgress, ready_text, usage_text
from glimpse.server.lifecycle.app import address, local_host, run
from glimpse.server.lifecycle.assemble import PortError, find_checkpoint
from glimpse.server.lifecycle.gateway_child import GatewayDiedError
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.settings import Port, Settings

app = App(
    name="glimpse",
    help="Serves vision-language models: typed gRPC, and OpenAI's REST and SSE through Envoy.",
    version=__version__,
    config=Env("GLIMPSE_", command=False),
)

_Flags = Annotated[Settings, Parameter(name="*")]
_DEFAULTS = Settings()


def main() -> None:
    """Runs the command of this process's arguments."""
    try:
        app()
    except (CheckpointError, EngineError, PortError, GatewayDiedError, AskError) as error:
        sys.exit(f"glimpse: {error}")
    except BrokenPipeError:
        # Whoever read our output has left (`glimpse chat … | head`). Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@app.command
def up(*, http_port: Port = 8080, settings: _Flags = _DEFAULTS) -> None:
    """Serve a model, with Envoy in front: gRPC, REST, SSE and grpc-web. Ctrl-C finishes running answers and stops.

    Parameters
    ----------
    http_port
        Port of the gateway: REST, SSE, grpc-web and gRPC.
    """
    _run(settings, http_port)


@app.command
def serve(*, settings: _Flags = _DEFAULTS) -> None:
    """Serve a model over gRPC alone, without Envoy."""
    _run(settings, None)


@app.command(help_flags=[], version_flags=[])
def gateway(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    """Run the gateway alone, in front of a server that runs elsewhere; `glimpse gateway --help` lists its flags."""
    # In place of this process, so that signals reach it.
    os.execv(sys.executable, [sys.executable, "-m", "glimpse.gateway", *arguments])  # noqa: S606 - there is no shell to want


@app.command
def chat(
    question: str,
    *,
    image: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    video: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    target: str = "127.0.0.1:50051",
    max_tokens: int | None = None,
    temperature: float | None = None,
) -> None:
    """Ask a running server, and write the answer as it comes.

    Parameters
    ----------
    question
        What to ask.
    image
        A picture's file; may be given several times.
    video
        A video file; may be given several times.
    target
        The server's gRPC address, or the gateway's.
    max_tokens
        The longest answer. Default: the server's.
    temperature
        0 takes the likeliest token each time. Default: 1.
    """
    ask(question, images=image, videos=video, target=target, max_tokens=max_tokens, temperature=temperature)


def _run(settings: Settings, http_port: int | None) -> None:
    configure_logging(settings.listen.log_level)
    if num_processors() <= MAX_FEW_PROCESSORS:
        use_batch_policy()  # the gateway too, which is started from here; the engine takes it back
    console = Console(stderr=True)
    checkpoint = find_checkpoint(settings.engine)
    model = checkpoint.names[0]
    host = local_host(settings.listen.host)

    def on_ready(ready: Ready) -> None:
        progress.stop()
        print(ready_text(ready, model=model, untrained=is_untrained(checkpoint.path)), end="\n\n")
        http_url = None if http_port is None else f"http://{address(host, http_port)}"
        target = address(host, settings.listen.port)
        print(usage_text(model=model, http_url=http_url, target=target), flush=True)

    with LoadingProgress(console) as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, checkpoint, http_port=http_port, on_loading=progress.show, on_ready=on_ready))
