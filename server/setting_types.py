"""Types that several groups of settings share."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import BeforeValidator, ByteSize, ConfigDict, DirectoryPath, Field

FROZEN = ConfigDict(frozen=True, extra="forbid")
"""Base of all groups: the docstring under a field is its help text."""


def _check_named(path: object) -> object:
    """Refuses the empty path, which is the working directory: a variable without a value would open that."""
    if path == "":
        raise ValueError("expected a path, got ''")
    return path


NamedPath = Annotated[Path, BeforeValidator(_check_named)]
Folder = Annotated[DirectoryPath, BeforeValidator(_check_named)]
Lifetime = Annotated[float, Field(gt=0, le=100 * 365 * 86400)]
"""Seconds for which something is kept. What outlives a century may have no date."""
Port = Annotated[int, Field(ge=0, le=65535)]
Size = Annotated[ByteSize, Parameter(show_default=ByteSize.human_readable)]
Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
