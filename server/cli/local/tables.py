"""Tables, JSON, sizes and durations as commands print them."""

from collections.abc import Iterable, Sequence

import msgspec


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns aligned columns below their titles."""
    lines = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def json_text(value: object) -> str:
    """Returns indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def size_text(num_bytes: float) -> str:
    """Returns a size in GiB, MiB or KiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.{1 if name == 'GiB' else 0}f} {name}"
    return f"{num_bytes / (1 << 10):.0f} KiB"


def duration_text(seconds: float) -> str:
    """Returns a duration in its largest unit."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
