"""Generates the tables of docs/environment.md: `python -m tools.environment < OLD > NEW`.

Each flag of a command has a variable.
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cyclopts import App, Argument

from glimpse.gateway.cli import app as gateway
from glimpse.server.cli.app import app as server

_SECTION = re.compile(r"(<!-- (server|gateway) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLES: Mapping[str, tuple[App, str]] = {"server": (server, "GLIMPSE_"), "gateway": (gateway, "GLIMPSE_GATEWAY_")}
_HEAD = "| variable | meaning |\n|---|---|\n"


@dataclass(slots=True, kw_only=True)
class Variable:
    """A variable, the commands that read it, and the help of the first one's flag."""

    commands: list[str]
    meaning: str


def with_tables(document: str) -> str:
    """Returns the document with fresh tables, each between its markers."""
    earlier = set[str]()
    return _SECTION.sub(lambda match: f"{match[1]}\n{_tables(*_TABLES[match[2]], earlier)}\n{match[3]}", document)


def variables(app: App, prefix: str) -> dict[str, Variable]:
    """Returns the variables of an app's commands by name, in the order of their flags."""
    found: dict[str, Variable] = {}
    for command in app:
        if not command.isalpha() or command == "gateway":  # flags, and a program of its own
            continue
        own_only = app[command].config == ()
        for argument in app[command].assemble_argument_collection(parse_docstring=True):
            for name in _names(argument, None if own_only else prefix):
                variable = found.setdefault(name, Variable(commands=[], meaning=_meaning(argument)))
                variable.commands.append(command)
    return found


def _names(argument: Argument, prefix: str | None) -> Iterable[str]:
    """Yields the variables of a flag; none for positional arguments and for members of JSON values.

    `prefix` is that of variables which flags have without naming any; None: they have none.
    """
    flag = next((name for name in argument.names if name.startswith("--")), "")
    if not (argument.parse and argument.show and flag) or "." in flag:
        return
    if argument.parameter.env_var:
        yield from argument.parameter.env_var
    elif prefix is not None:
        yield prefix + flag.removeprefix("--").replace("-", "_").upper()


def _meaning(argument: Argument) -> str:
    """Returns the first sentence of a flag's help."""
    sentences = re.split(r"(?<=[.])\s", " ".join((argument.parameter.help or "").split()))
    return sentences[0].replace("|", "\\|")


def _tables(app: App, prefix: str, earlier: set[str]) -> str:
    """Returns a table for each set of commands, in the order of their first flags.

    `earlier` are the meanings of the tables before, whose variables are only named; the app's own are added.
    """
    groups: dict[str, dict[str, str]] = {}
    for name, each in variables(app, prefix).items():
        commands = ", ".join(f"`{command}`" for command in each.commands)
        groups.setdefault(commands, {})[name] = each.meaning
    tables = [_table(commands, meanings, earlier) for commands, meanings in groups.items()]
    earlier.update(meaning for meanings in groups.values() for meaning in meanings.values())
    return "\n".join(tables)


def _table(commands: str, meanings: Mapping[str, str], earlier: set[str]) -> str:
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in meanings.items() if meaning not in earlier)
    repeated = ", ".join(f"`{name}`" for name, meaning in meanings.items() if meaning in earlier)
    table = f"{commands}:\n\n{_HEAD}{rows}"
    return f"{table}\n{textwrap.fill(f'The same as above: {repeated}.', 130)}\n" if repeated else table


if __name__ == "__main__":
    sys.stdout.write(with_tables(sys.stdin.read()))
