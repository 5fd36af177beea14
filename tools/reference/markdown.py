"""Tables in Markdown."""

import re


def row(*cells: str) -> str:
    """A row of a table. Its cells must be on one line."""
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """A text as a cell: paragraphs become lines, and bars and tags are shown as they are."""
    escaped = "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*")
        for part in re.split(r"(`[^`]*`)", text)
    )
    return escaped.strip().replace("|", "\\|").replace("\n\n", "<br><br>").replace("\n", " ")
