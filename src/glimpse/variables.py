"""Environment variables of a command's flags."""

import os
import re
from collections.abc import Iterable

from cyclopts import App, ArgumentCollection
from cyclopts.config import Env

from glimpse.usage import UsageError

_SERVICE_LINK = re.compile("(tcp|udp|sctp)://")
"""Begins what Kubernetes sets for each service of a namespace: GLIMPSE_PORT for one that is named glimpse."""
_ALIKE = frozenset({"GLIMPSE_API_KEY", "GLIMPSE_API_KEYS", "GLIMPSE_MODEL", "GLIMPSE_TENANTS"})
"""Variables of flags that resemble those of other commands: who sets one for a server may also run `glimpse chat`."""


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
        unknown = {name for name in os.environ if name.startswith(self.prefix)} - own.keys() - _ALIKE
        if unknown:
            self._refuse_misspelled(unknown, own)

    def _refuse_misspelled(self, unknown: Iterable[str], own: Iterable[str]) -> None:
        from glimpse.near_names import NearNames  # noqa: PLC0415 - only unknown variables need it

        names = NearNames(name.removeprefix(self.prefix) for name in own)
        for name in sorted(unknown):
            if (meant := names.nearest(name.removeprefix(self.prefix))) is not None:
                raise UsageError(f"'{name}': unknown environment variable; did you mean '{self.prefix}{meant}'?")
