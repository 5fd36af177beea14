"""What a process of the fuzzer is told to do."""

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A target to fuzz."""

    title: str
    target: str
    inputs: str | None
    """Folder of inputs that earlier runs stored, to which new ones are added; None: there are none."""
    options: tuple[str, ...]
    """Options of libFuzzer."""
