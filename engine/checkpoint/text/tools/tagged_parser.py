"""Streaming parser of tool calls that are a name, a tag and arguments, as Mistral's models write them since 2025.

`[TOOL_CALLS]NAME[ARGS]{…}`, or with an id, which is ignored: `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}`.
"""

from glimpse.engine.checkpoint.text.tools.parser import NotACallError, Reader, ToolParser


class TaggedToolParser(ToolParser):
    """Parses one completion."""

    def _read_calls(self, opening: str) -> Reader[None]:
        """Reads one call. Releases what is not a call."""
        try:
            name, tag = yield from self._read_head()
            while tag == opening:  # the model begins anew
                self._release_before(tag)
                name, tag = yield from self._read_head()
            if tag != self._format.arguments_tag:
                raise NotACallError
            yield from self._read_arguments(name)
        except NotACallError:
            self._release_failed(opening)

    def _read_head(self) -> Reader[tuple[str, str]]:
        """Reads a name, an id if there is one, and the tag after them."""
        yield from self._skip_space()
        name = ""
        while (char := (yield from self._peek())) and any(each.startswith(name + char) for each in self._names):
            name += self._withhold()
        tag = yield from self._read_spaced_tag()
        if tag == self._format.id_tag:
            while (yield from self._peek()).isalnum():
                self._withhold()
            tag = yield from self._read_spaced_tag()
        if tag != self._format.opening and name not in self._names:
            raise NotACallError
        return name, tag

    def _read_spaced_tag(self) -> Reader[str]:
        """Reads white space and a tag. Returns "" if there is none, having read no further than its first character."""
        yield from self._skip_space()
        if (yield from self._peek()) not in {tag[0] for tag in self._tags}:
            return ""
        return (yield from self._read_tag())

    def _release_before(self, tag: str) -> None:
        """Emits the withheld characters before a tag, which are text, and withholds the tag."""
        del self._withheld[-len(tag) :]
        self._release()
        self._withheld += tag
