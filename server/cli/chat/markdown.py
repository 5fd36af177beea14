"""Markdown at a terminal: a block of an answer appears as it is written, and once it is complete, as it is meant."""

import re
import shutil
from typing import ClassVar, TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax

_BLANK = r"(?:[ ]|\x1b\[[\d;]*m)*"
_BLANK_EDGES = re.compile(rf"\A(?:{_BLANK}\n)+|(?:\n{_BLANK})+\Z")
_FENCES = ("```", "~~~")
# A model's tags, such as <box>, are text. Backslashes stay, which mathematics has.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("escape")


class BlockRenderer:
    """Collects lines of an answer, and replaces each block on the terminal by its rendering.

    A block that has left the screen, or that was written before the terminal was resized, stays as it was written:
    where its lines are is not known.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._block: list[str] = []
        self._fence = ""
        self._size = shutil.get_terminal_size()

    def add(self, line: str, num_rows: int) -> bool:
        """Takes a line that was written to the terminal. Returns whether it ended a block, which is rendered now.

        Args:
            line: with the line break at its end.
            num_rows: how many rows below the block's first the cursor is, in the first column.
        """
        if not self._block:
            self._size = shutil.get_terminal_size()
        self._block.append(line)
        text = line.strip()
        if self._fence:
            is_end = text.startswith(self._fence) and not text.strip(self._fence[0])
        else:
            self._fence = next((fence for fence in _FENCES if text.startswith(fence)), "")
            is_end = not text
        if is_end:
            self.end(num_rows)
        return is_end

    def end(self, num_rows: int) -> None:
        """Renders what there is of a block."""
        source, self._block, self._fence = "".join(self._block), [], ""
        size = shutil.get_terminal_size()
        if source.strip() and size == self._size and num_rows < size.lines:
            rows = f"\x1b[{num_rows}A" if num_rows else ""
            print(f"\r{rows}\x1b[J", end="", file=self._file)
            console = Console(file=self._file, width=size.columns, highlight=False)
            with console.capture() as rendered:
                console.print(_Document(source))
            print(_BLANK_EDGES.sub("", rendered.get()), end="\n\n", file=self._file, flush=True)


class _Code(CodeBlock):
    """Code in the terminal's own colours, without blanks around it that a copy would have."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(str(self.text).rstrip(), self.lexer_name, theme="ansi_dark", word_wrap=True)


class _Heading(Heading):
    """A heading at the left, as all that is below it."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Document(Markdown):
    """A block of Markdown. Line breaks are kept, and addresses of links are shown."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(source)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"
