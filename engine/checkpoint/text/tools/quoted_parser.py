"""Streaming parser of tool calls whose strings have a tag for a quote, as Gemma 4 writes them; it reports JSON.

`<|tool_call>call:NAME{KEY:VALUE,…}<tool_call|>`. Strings stream; other values are reported when they are complete.
Names and strings in JSON's own quotes are read too.
"""

from glimpse.engine.checkpoint.text.tools.parser import NotACallError, Reader, ToolParser, escaped
from glimpse.engine.checkpoint.text.tools.xml_parameters import BARE

CALL = "call:"
_CLOSERS = {"{": "}", "[": "]"}


class QuotedToolParser(ToolParser):
    """Parses one completion."""

    def _read_calls(self, opening: str) -> Reader[None]:
        """Reads one call. Releases what is not a call."""
        is_open = False
        try:
            yield from self._skip_space()
            yield from self._expect_text(CALL)
            name = (yield from self._read_name_to("{")).strip()
            if name not in self._names:
                raise NotACallError
            self._open_call(name)
            self._bare = False  # a further call begins with a tag
            is_open = True
            yield from self._read_members()
        except NotACallError:
            if not is_open:
                self._release_failed(opening)
            else:  # what comes instead of a value may be the closing tag
                self._input = "".join(self._withheld) + self._input[self._position :]
                self._position = 0
                self._withheld.clear()

    def _read_members(self) -> Reader[None]:
        """Reads the members of the arguments up to the closing brace, and emits them as JSON."""
        self._emit("{")
        closers = ["}"]
        is_name = True
        while closers:
            yield from self._skip_space()
            self._withheld.clear()
            match char := (yield from self._peek()):
                case "{" | "[":
                    closers.append(_CLOSERS[char])
                    self._emit(self._read())
                case "}" | "]":
                    if char != closers.pop():
                        raise NotACallError
                    self._emit(self._read())
                case "," | ":":
                    self._emit(f"{self._read()} ")
                case '"':
                    text = yield from self._read_string()
                    self._withheld.clear()
                    self._emit(text)
                case _ if char and char == self._format.quote[0]:
                    yield from self._read_quoted()
                case _:
                    text = yield from self._read_bare(":" if is_name else ",}]")
                    self._emit(f'"{escaped(text)}"' if is_name else BARE.to_json(text))
            is_name = char in ("{", ",") and closers[-1:] == ["}"]

    def _read_quoted(self) -> Reader[None]:
        """Reads a string, and emits as much of it as is certain."""
        yield from self._expect_text(self._format.quote)
        self._withheld.clear()
        self._emit('"')
        text = ""
        while text != self._format.quote:
            if not (yield from self._peek()):
                raise NotACallError
            text += self._read()
            if not self._format.quote.startswith(text):
                begun = text[-1] if text[-1] == self._format.quote[0] else ""
                self._emit(escaped(text.removesuffix(begun)))
                text = begun
        self._emit('"')
