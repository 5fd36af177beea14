"""Reads lines at the terminal: several lines at once, earlier ones, completion of commands and paths."""

from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from glimpse.server.cli.chat.slash import COMMANDS, PATH_COMMANDS
from glimpse.server.cli.local.running import state_folder


def make_prompt(*, keeps_history: bool) -> PromptSession[str]:
    """Returns a prompt, with the lines of earlier conversations if they are kept."""
    return PromptSession(
        multiline=True,
        prompt_continuation="… ",
        key_bindings=_keys(),
        completer=_CommandCompletion(),
        complete_while_typing=False,
        history=_history() if keeps_history else InMemoryHistory(),
    )


def history_file() -> Path:
    """Returns where the lines of conversations are kept."""
    return state_folder() / "chat_history"


def _history() -> History:
    """Returns the history in the file, which others may not read; one in memory where it cannot be written."""
    path = history_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(path)
    except OSError:
        return InMemoryHistory()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _CommandCompletion(Completer):
    """Completes the name of a command, then the path that follows it."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        name, space, path = document.text_before_cursor.partition(" ")
        if space and name in PATH_COMMANDS:
            yield from self._paths.get_completions(Document(path, len(path)), complete_event)
        elif not space and name.startswith("/"):
            yield from (Completion(each, -len(name)) for each in COMMANDS if each.startswith(name))
