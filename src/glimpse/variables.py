"""Environment variables of a command's flags, and those that no command reads."""

import logging
import os
import re
from collections.abc import Iterable, Iterator

from cyclopts import App, ArgumentCollection
from cyclopts.config import Env

from glimpse.usage import UsageError

_logger = logging.getLogger(__name__)

_SERVICE_LINK = re.compile("(tcp|udp|sctp)://")
"""Begins what Kubernetes sets for each service of a namespace: GLIMPSE_PORT for one that is named glimpse."""
_SERVICE_VARIABLE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR))")
"""Names of the other variables that it sets."""
_ALIKE = frozenset({"GLIMPSE_API_KEY", "GLIMPSE_API_KEYS", "GLIMPSE_MODEL", "GLIMPSE_TENANTS"})
"""Variables of flags that resemble those of other commands: who sets one for a server may also run `glimpse chat`."""
_WITHOUT_FLAG = frozenset(
    f"GLIMPSE_{name}"
    for name in ("CPU_LEVEL", "MEDIA_LIBRARY", "NATIVE_LIBRARY", "PREFETCH_BYTES", "TORCH_CPU_INDEX", "URL")
)
"""Variables that have no flag: of the engine, of `make` and, the last one, of the examples."""


class Variables(Env):
    """Reads the variables of flags. One that resembles that of a flag is refused, as a misspelled flag is; others may
    be other programs'. Flags that show no variable have none: GLIMPSE_SYSTEM may mean something else."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        shown = ArgumentCollection(each for each in arguments if each.parameter.show_env_var)
        super().__call__(app, commands, shown)
        for argument in shown:
            links = [each for each in argument.tokens if each.source == self.source and _SERVICE_LINK.match(each.value)]
            argument.tokens[:] = [each for each in argument.tokens if each not in links]
        own = {self._convert_argument(commands, each): each for each in shown}
        own |= {name: each for each in shown for name in each.parameter.env_var or ()}
        for variable, argument in own.items():
            for token in argument.tokens:
                # Cyclopts reads that of --no-page as that of --page.
                if token.source == self.source and token.keyword not in own:
                    raise UsageError(f"'{token.keyword}': expected {variable}, which is true or false, in its place")
        if unknown := _set_variables(self.prefix) - own.keys() - _ALIKE:
            self._refuse_misspelled(unknown, own)

    def _refuse_misspelled(self, unknown: Iterable[str], own: Iterable[str]) -> None:
        from glimpse.near_names import NearNames  # noqa: PLC0415 - only unknown variables need it

        names = NearNames(name.removeprefix(self.prefix) for name in own)
        for name in sorted(unknown):
            if (meant := names.nearest(name.removeprefix(self.prefix))) is not None:
                raise UsageError(f"'{name}': unknown environment variable; did you mean '{self.prefix}{meant}'?")


def tell_unknown(app: App, prefix: str) -> None:
    """Logs the variables with this prefix that are set and that no command reads. They may be other programs'."""
    if unknown := _set_variables(prefix) - _WITHOUT_FLAG:
        known = {name for _, names in variables_of(app, prefix) for name in names}
        elsewhere = {name for name in unknown if name.startswith(f"{prefix}GATEWAY_")}
        if unread := sorted(unknown - known - elsewhere):
            _logger.warning("environment variables without effect, which no command reads: %s", ", ".join(unread))


def tell_overridden(names: Iterable[str], by: str) -> None:
    """Logs the variables of these names that are set, though a program has said otherwise."""
    if found := sorted(name for name in names if name in os.environ):
        _logger.warning("environment variables without effect, since %s: %s", by, ", ".join(found))


def variables_of(app: App, prefix: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Yields each command below an app, and the variables of its flags."""
    for name in app:
        if not name.startswith("-"):
            yield from variables_of(app[name], prefix, (*path, name))
    if path and app.default_command is not None:
        every = app.assemble_argument_collection()
        shown = [each for each in every if each.parameter.show_env_var and each.name.startswith("--")]
        own = {name for each in shown for name in each.parameter.env_var or ()}
        yield " ".join(path), own | {prefix + each.name.lstrip("-").replace("-", "_").upper() for each in shown}


def _set_variables(prefix: str) -> set[str]:
    """Returns the variables with this prefix that are set, except those that Kubernetes sets for services."""
    return {
        name
        for name, value in os.environ.items()
        if name.startswith(prefix) and not _SERVICE_LINK.match(value) and not _SERVICE_VARIABLE.fullmatch(name)
    }
