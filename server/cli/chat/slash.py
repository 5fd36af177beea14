"""Commands in a conversation, such as /image photo.png."""

from collections.abc import Callable
from pathlib import Path

from glimpse.client import Audio, Document, Image, Video
from glimpse.near_names import closest
from glimpse.server.cli.chat.attachments import Kind, attach
from glimpse.server.cli.chat.history import ChatHistory


class CommandError(Exception):
    """A command cannot do what it was told to."""


_Command = Callable[[ChatHistory, str], str]
"""Takes what follows the command's name. Returns what to show. Raises CommandError, OSError, and EOFError to end."""

HELP = """\
/image FILE …   ask the next question about images, paths or URLs; /video,
                /audio and /document likewise; a path in a question does the same
/model NAME     ask another model of this server; without NAME, list them
/system TEXT    set the system message; without TEXT, show it
/detach         forget the files that the next question is about
/new            forget the conversation, as /clear does; the system message stays
/save FILE      write the conversation: OpenAI's messages to a .json file, else Markdown
/help           show this, as /? does
/exit           end the conversation, as /bye, /quit and Ctrl-D do

Enter sends. Alt-Enter, or \\ at the end of a line, begins another line.
Up and down look through earlier lines.
Ctrl-C ends the answer, Ctrl-D the conversation."""


def run_command(conversation: ChatHistory, line: str) -> str:
    """Runs the command of a line that begins with a slash, and returns what to show. Raises as commands do."""
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = closest(name, COMMANDS)
        meant = f"; did you mean {near}?" if near else "; /help lists them"
        raise CommandError(_ELSEWHERE.get(name, f"there is no command {name}{meant}"))
    return command(conversation, argument.strip())


def _attach(kind: Kind) -> _Command:
    def command(conversation: ChatHistory, argument: str) -> str:
        if not argument:
            raise CommandError(f"expected a path or URL after /{kind.__name__.lower()}")
        # A path with spaces is one path if there is such a file.
        names = [argument] if Path(argument).expanduser().is_file() else argument.split()
        names = [name.strip("'\"") for name in names]
        conversation.attachments += [attach(kind, name) for name in names]
        return f"{', '.join(names)}: for the next question"

    return command


def _system(conversation: ChatHistory, argument: str) -> str:
    if argument:
        conversation.system = argument
        return "The system message is set."
    return conversation.system or "There is no system message."


def _model(conversation: ChatHistory, argument: str) -> str:
    if not argument:
        chosen = conversation.model or next(iter(conversation.models), None)
        return "\n".join(f"{'*' if name == chosen else ' '} {name}" for name in conversation.models)
    if argument not in conversation.models:
        near = closest(argument, conversation.models)
        meant = f"did you mean {near}?" if near else "/model lists those that it serves"
        raise CommandError(f"this server does not serve {argument}; {meant}")
    conversation.model = argument
    return f"{argument} answers from now on."


def _detach(conversation: ChatHistory, argument: str) -> str:
    if argument:
        raise CommandError(f"expected nothing after /detach, got {argument!r}")
    conversation.attachments.clear()
    return "The next question is about no files."


def _new(conversation: ChatHistory, argument: str) -> str:
    if argument:
        raise CommandError(f"expected nothing after /new or /clear, got {argument!r}")
    conversation.clear()
    return "A new conversation."


def _save(conversation: ChatHistory, argument: str) -> str:
    if not argument:
        raise CommandError("expected a path after /save")
    conversation.save(path := Path(argument).expanduser())
    return f"Saved to {path}."


def _exit(_conversation: ChatHistory, _argument: str) -> str:
    raise EOFError


_ELSEWHERE = {
    "/models": "/model lists the models of this server",
    "/show": "`glimpse models` says what a model supports",
}
"""What to use instead of commands of other programs."""

COMMANDS: dict[str, _Command] = {
    "/image": _attach(Image),
    "/video": _attach(Video),
    "/audio": _attach(Audio),
    "/document": _attach(Document),
    "/model": _model,
    "/system": _system,
    "/detach": _detach,
    "/new": _new,
    "/save": _save,
    "/clear": _new,
    **dict.fromkeys(("/exit", "/bye", "/quit"), _exit),
    "/?": lambda _conversation, _argument: HELP,
    "/help": lambda _conversation, _argument: HELP,
}
PATH_COMMANDS = ("/image", "/video", "/audio", "/document", "/save")
"""Commands that a path follows."""
