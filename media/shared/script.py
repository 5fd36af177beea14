"""Lua scripts that Redis runs atomically."""

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from glimpse.media.shared.link import Client


class Script:
    """One script. Redis keeps its text until it restarts."""

    def __init__(self, name: str, package: str | None = __package__) -> None:
        """`name`: of the file in the folder of `package`, without its ending."""
        self._text = resources.files(package or "").joinpath(f"{name}.lua").read_text(encoding="utf-8")
        # Redis' name for a script.
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Client, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """Runs the script and returns its result."""
        try:
            return await client.execute_command("EVALSHA", self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self._text, len(keys), *keys, *arguments)
