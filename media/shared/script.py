"""Lua scripts that Redis runs atomically, and how it gets what is too large for one command of them."""

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from glimpse.media.shared.link import Client

_STAGED_MILLISECONDS = 60_000
"""Lifetime of the chunks of a value that is being written."""


async def stage(client: Client, staged: str, index: int, chunk: bytes | memoryview) -> None:
    """Stores a chunk of a value under a key that a script then takes."""
    await client.execute_command("HSET", staged, index, chunk)
    await client.execute_command("PEXPIRE", staged, _STAGED_MILLISECONDS)


class Script:
    """One script. Redis keeps its text until it restarts."""

    def __init__(self, *names: str, package: str | None = __package__) -> None:
        """`names`: of the files in the folder of `package` that make it up, in order, without their endings."""
        folder = resources.files(package or "")
        self._text = "\n".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)
        # Redis' name for a script.
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Client, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """Runs the script and returns its result."""
        try:
            return await client.execute_command("EVALSHA", self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self._text, len(keys), *keys, *arguments)
