"""The command `glimpse`: which commands there are, and how they end.

A command's module is imported when the command runs, so that each loads only what it needs.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env

from glimpse import __version__
from glimpse.interrupts import INTERRUPTED, block_interrupts
from glimpse.usage import USAGE_STATUS, UsageError

app = App(
    name="glimpse",
    help="Serves vision-language models: typed gRPC, and OpenAI's REST and SSE through Envoy.",
    version=__version__,
    config=Env("GLIMPSE_", command=False),
)


_SERVING = ("up", "serve", "check", "bench", "batch")
"""Commands that take the flags of a server."""


def read_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command and its arguments, those of a server in the forms that the command reads."""
    if not arguments or arguments[0] not in _SERVING:
        return [*arguments]
    from glimpse.server.cli.flag_forms import adopt_variables, read_forms  # noqa: PLC0415 - other commands need none

    adopt_variables(os.environ)
    return [arguments[0], *read_forms(arguments[1:])]


_ELSEWHERE = {
    "run": "`glimpse up --model MODEL` serves a model, `glimpse chat` talks with it",
    "pull": "`glimpse up --model MODEL` downloads a model and serves it",
    **dict.fromkeys(("list", "ls", "ps"), "`glimpse models` lists the models of a running server"),
    **dict.fromkeys(("start", "launch"), "`glimpse up` serves a model"),
    "stop": "Ctrl-C, or SIGTERM, stops a server",
    "show": "`glimpse check MODEL` describes a model",
    "version": "`glimpse --version` prints the version",
    "help": "`glimpse --help` lists the commands",
}
"""What to use instead of commands of other programs."""


def _unknown(name: str) -> str:
    import difflib  # noqa: PLC0415 - only a refusal needs it

    near = difflib.get_close_matches(name, [each for each in app if each[0] != "-"], n=1)
    meant = f"did you mean `glimpse {near[0]}`?" if near else "`glimpse --help` lists the commands"
    return f"there is no command {name!r}; {_ELSEWHERE.get(name, meant)}"


def run() -> None:
    """Runs the command that this process's arguments name."""
    if (name := next(iter(sys.argv[1:]), "-"))[:1] != "-" and name not in [*app]:
        print(f"glimpse: {_unknown(name)}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    try:
        app(read_arguments(sys.argv[1:]), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from glimpse.flag_errors import explain_flags  # noqa: PLC0415 - only a refusal needs Pydantic

        print(f"glimpse: {explain_flags(error)}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    except UsageError as error:
        print(f"glimpse: {error}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has left (`glimpse chat … | head`). Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


app.command(
    "glimpse.server.cli.serve:up",
    help="Serve a model with Envoy in front: gRPC, REST, SSE and grpc-web. Ctrl-C finishes running requests and stops.",
)
app.command(
    "glimpse.server.cli.check:check",
    help="Tell whether this machine can serve a model, before its weights are downloaded.",
)
app.command(
    "glimpse.server.cli.models:models", config=(), help="List the models of a running server, or supported families."
)
app.command("glimpse.server.cli.machine.doctor:doctor", help="Look for what is missing or slow on this machine.")
app.command(
    "glimpse.server.cli.machine.bench:bench",
    config=(),
    help="Measure this machine, and a model on it, in about a minute.",
)
app.command(
    "glimpse.server.cli.batch.command:batch",
    config=(),
    help="Answer a file of requests, without a server that runs. It can be stopped, and goes on where it was.",
)
app.command("glimpse.server.cli.serve:serve", help="Serve a model over gRPC alone, without Envoy.")


@app.command(help_flags=[], version_flags=[])
def gateway(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    """Run the gateway alone, for a server that runs elsewhere. `glimpse gateway --help` lists its commands."""
    block_interrupts()  # until the gateway's program handles them
    # In place of this process, so that signals reach it.
    os.execv(sys.executable, [sys.executable, "-m", "glimpse.gateway", *arguments])  # noqa: S606 - no shell is wanted


app.command("glimpse.server.cli.key:key", help="Make an API key for a tenant, and its line for --api-keys.")
app.command(
    "glimpse.server.cli.chat.command:chat",
    config=(),  # GLIMPSE_MODEL and others mean something else to the server: flags name the variables that they share
    help="Ask a running server, or talk with it.",
)
