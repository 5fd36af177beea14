"""The command `glimpse`: which commands there are, and how they end.

A command's module is imported when the command runs, so that each loads only what it needs.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter

from glimpse import __version__
from glimpse.interrupts import INTERRUPTED, block_interrupts
from glimpse.standard_streams import explained_output
from glimpse.usage import USAGE_STATUS, UsageError
from glimpse.variables import Variables

app = App(
    name="glimpse",
    help="Serves vision-language models: typed gRPC, and OpenAI's REST and SSE through Envoy.",
    version=__version__,
    config=Variables("GLIMPSE_", command=False),
)


_SERVING = ("up", "serve", "run", "check", "bench", "batch")
"""Commands that take the flags of a server."""


def read_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a command and its arguments, those of a server in the forms that the command reads."""
    if not arguments or arguments[0] not in _SERVING:
        return [*arguments]
    from glimpse.server.cli.flag_forms import adopt_variables, read_forms  # noqa: PLC0415 - other commands need none

    adopt_variables(os.environ)
    return [arguments[0], *read_forms(arguments[1:])]


_ALL_FLAGS = ("up", "serve", "run", "check")
"""Commands whose help has all of these flags."""

_ELSEWHERE = {
    **dict.fromkeys(("remove", "delete"), "`glimpse rm` removes models from this disk"),
    **dict.fromkeys(("download", "fetch"), "`glimpse pull` downloads a model"),
    **dict.fromkeys(("start", "launch"), "`glimpse up` serves a model"),
    **dict.fromkeys(("kill", "down"), "`glimpse stop` ends a server"),
    "show": "`glimpse check MODEL` describes a model",
    "version": "`glimpse --version` prints the version",
    "help": "`glimpse --help` lists the commands",
}
"""What to use instead of commands of other programs."""


def _unknown(name: str) -> str:
    from glimpse.near_names import closest  # noqa: PLC0415 - only a refusal needs it

    near = closest(name, (each for each in app if each[0] != "-"))
    meant = f"did you mean `glimpse {near}`?" if near else "`glimpse --help` lists the commands"
    return f"there is no command {name!r}; {_ELSEWHERE.get(name, meant)}"


_HELP = frozenset({"--help", "-h", "--help-all"})


def _read_help(arguments: Sequence[str]) -> list[str]:
    """Chooses what the help shows, and returns the arguments that ask for it."""
    from glimpse.server.cli.help import HelpFormatter  # noqa: PLC0415 - only the help needs it

    command = next(iter(arguments), "-")
    is_whole = command not in _ALL_FLAGS or "--help-all" in arguments
    app.help_formatter = HelpFormatter("" if command.startswith("-") else command, is_whole=is_whole)
    return ["--help" if each == "--help-all" else each for each in arguments]


def run() -> None:
    """Runs the command that this process's arguments name."""
    if (name := next(iter(sys.argv[1:]), "-"))[:1] != "-" and name not in [*app]:
        print(f"glimpse: {_unknown(name)}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    arguments = sys.argv[1:]
    if not arguments or not _HELP.isdisjoint(arguments):
        arguments = _read_help(arguments)
    try:
        with explained_output("glimpse"):
            app(read_arguments(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from glimpse.flag_errors import explain_flags  # noqa: PLC0415 - only a refusal needs Pydantic

        print(f"glimpse: {explain_flags(error)}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    except UsageError as error:
        print(f"glimpse: {error}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


_TALK = Group("Talk with a model", sort_key=0)
_SERVE = Group("Serve a model", sort_key=1)
_HERE = Group("Models and servers of this machine", sort_key=2)
_LOOK = Group("Look before you serve", sort_key=3)

_talk, _serve, _look = (partial(app.command, group=group) for group in (_TALK, _SERVE, _LOOK))
_here = partial(app.command, group=_HERE, config=())

_talk(
    "glimpse.server.cli.local.run:run",
    help="Talk with a model: download it, check that it fits, serve it and ask it, in one command.",
)
# Without `config`, as GLIMPSE_MODEL and others mean something else to the server: flags name the variables that they
# share.
_talk("glimpse.server.cli.chat.command:chat", config=(), help="Ask a running server, or talk with it.")
_talk(
    "glimpse.server.cli.batch.command:batch",
    config=(),
    help="Answer a file of requests, by a server of its own or one that runs. It can be stopped, and goes on.",
)
_serve(
    "glimpse.server.cli.serve:up",
    help="Serve a model with Envoy in front: gRPC, REST, SSE and grpc-web. Ctrl-C finishes running requests and stops.",
)
_serve("glimpse.server.cli.serve:serve", help="Serve a model over gRPC alone, without Envoy.")
_serve("glimpse.server.cli.key:key", help="Make an API key for a tenant, and its line for --api-keys.")


@app.command(group=_SERVE, help_flags=[], version_flags=[])
def gateway(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    """Run the gateway alone, for a server that runs elsewhere. `glimpse gateway --help` lists its commands."""
    block_interrupts()  # until the gateway's program handles them
    # In place of this process, so that signals reach it.
    os.execv(sys.executable, [sys.executable, "-m", "glimpse.gateway", *arguments])  # noqa: S606 - no shell is wanted


_here("glimpse.server.cli.local.commands:pull", help="Download a model from the Hugging Face Hub.")
_here("glimpse.server.cli.local.commands:list_models", name=("list", "ls"), help="List the models on this disk.")
_here("glimpse.server.cli.local.commands:rm", help="Remove models from this disk.")
_here(
    "glimpse.server.cli.local.quantize:quantize",
    help="Write a checkpoint with weights in 4 or 8 bits, or a GGUF file.",
)
_here("glimpse.server.cli.local.commands:ps", help="List the servers that run on this machine.")
_here("glimpse.server.cli.local.top:top", help="Show what servers do: tokens/s, caches, memory.")
_here("glimpse.server.cli.local.commands:stop", help="End servers of this machine.")
_look(
    "glimpse.server.cli.models:models",
    config=(),
    help="List the models of a running server, those for this machine, or supported families.",
)
_look(
    "glimpse.server.cli.check:check",
    help="Tell whether this machine can serve a model, before its weights are downloaded.",
)
_look("glimpse.server.cli.machine.doctor:doctor", help="Look for what is missing or slow on this machine.")
_look(
    "glimpse.server.cli.machine.bench:bench",
    config=(),
    help="Measure this machine, and a model on it, in about a minute.",
)
