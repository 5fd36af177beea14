"""Streaming parser of tool calls as Python writes them, `[NAME(KEY=VALUE, …), …]`; it reports arguments as JSON.

Strings stream; other values are reported when they are complete. Calls in JSON are read too.
"""

from glimpse.engine.checkpoint.text.tools.parser import NotACallError, Reader, ToolParser, escaped
from glimpse.engine.checkpoint.text.tools.xml_parameters import BARE

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_AFTER_STRINGS = ",:)]}"
_ESCAPES = {**{char: f"\\{char}" for char in '"\\/bfnrtu'}, "'": "'", "x": "\\u00", "\n": ""}
"""What follows a backslash in Python → the same in JSON. Of others, the backslash stays."""


class PythonToolParser(ToolParser):
    """Parses one completion."""

    def _read_call(self) -> Reader[None]:
        yield from self._skip_space()
        if (yield from self._peek()) == "{":
            yield from super()._read_call()
            return
        name = (yield from self._read_name_to("(")).strip()
        if name not in self._names:
            raise NotACallError
        self._open_call(name)
        self._emit("{")
        yield from self._read_members()
        self._emit("}")

    def _read_members(self) -> Reader[None]:
        """Reads the arguments up to the closing parenthesis, and emits all but the braces around them."""
        closers, comma, is_name = [")"], "", True
        while closers:
            yield from self._skip_space()
            self._withheld.clear()
            char = yield from self._peek()
            if char in _CLOSERS.values():
                if self._read() != closers.pop():
                    raise NotACallError
                comma = ""  # one may follow the last value
                self._emit({")": "]"}.get(char, char) if closers else "")
                is_name = False
            elif char == ",":
                self._read()
                comma, is_name = ", ", closers in ([")"], [*closers[:-1], "}"])
            else:
                self._emit(comma)
                comma = ""
                is_name = yield from self._read_item(closers, is_name=is_name)

    def _read_item(self, closers: list[str], *, is_name: bool) -> Reader[bool]:
        """Reads a name, a value or its beginning, or what is between the two. Returns whether a name comes next."""
        match char := (yield from self._peek()):
            case "(" | "[" | "{":
                closers.append(_CLOSERS[self._read()])
                self._emit("[" if char == "(" else char)
                return char == "{"
            case "=" | ":":
                self._read()
                self._emit(": ")
            case '"' | "'":
                yield from self._read_quoted()
            case _:
                text = yield from self._read_bare(f"={_AFTER_STRINGS}")
                self._emit(f'"{escaped(text)}"' if is_name else BARE.to_json(text))
        return False

    def _read_quoted(self) -> Reader[None]:
        """Reads a string, and emits as much of it as is certain. A quote ends it before a mark alone: templates show
        models earlier texts without escapes."""
        quote = self._read()
        self._emit('"')
        while char := (yield from self._peek()):
            text = self._read()
            if char == "\\":
                if not (yield from self._peek()):
                    break
                char = self._read()
                self._emit(_ESCAPES.get(char, f"\\\\{escaped(char)}"))
                continue
            if char == quote:
                while (yield from self._peek()).isspace():
                    text += self._read()
                if (yield from self._peek()) in _AFTER_STRINGS:
                    self._emit('"')
                    return
            self._emit(escaped(text))
        raise NotACallError
