"""Types that several groups of settings share."""

from typing import Annotated

from cyclopts import Parameter
from pydantic import ByteSize, ConfigDict, Field

FROZEN = ConfigDict(frozen=True, extra="forbid")
"""Base of all groups: the docstring under a field is its help text."""

Port = Annotated[int, Field(ge=0, le=65535)]
Size = Annotated[ByteSize, Parameter(show_default=ByteSize.human_readable)]
Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
