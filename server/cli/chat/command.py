"""`glimpse chat`: its flags, and questions that are asked once. `conversation` has the others."""

import json
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from glimpse.client import Audio, ChatOptions, Document, GlimpseError, Image, Video
from glimpse.near_names import closest
from glimpse.server.cli.chat.answer import IncompleteError, print_answer, print_json
from glimpse.server.cli.chat.attachments import attach, kind_of, split_arguments
from glimpse.server.cli.chat.connection import Connection, in_words
from glimpse.server.cli.chat.history import ChatHistory
from glimpse.usage import UsageError

_Files = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
_SERVER = Connection()


@Parameter(name="*", group=Group("Question", sort_key=0), show_env_var=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Flags that say what is asked, and how."""

    image: _Files = ()
    """An image: a path or a URL. May be repeated."""
    video: _Files = ()
    """A video: a path or a URL. May be repeated."""
    audio: _Files = ()
    """An audio file: a path or a URL. May be repeated."""
    document: _Files = ()
    """A PDF: a path or a URL. May be repeated."""
    system: str | None = None
    """Text of a system message: instructions for the whole conversation."""
    json: str | None = None
    """A JSON Schema, or a file with one: the answer is JSON that matches it."""
    max_tokens: int | None = None
    """The largest number of tokens in the answer. Default: the server's."""
    temperature: float | None = None
    """0 always chooses the most likely token. Default: the server's; 1, unless its --generation-config says otherwise.
    """
    markdown: bool = True
    """Show answers as the Markdown that they are, on a terminal."""
    history: bool = True
    """Keep the lines of conversations in a file, for the arrow keys."""


_ASKING = Asking()


def chat(
    question: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *files: str,
    model: str | None = None,
    asking: Asking = _ASKING,
    server: Connection = _SERVER,
) -> None:
    """Asks a running server. Without a question, holds a conversation: /help there says how.

    If the model reasons before it answers, standard error shows that.

    Parameters
    ----------
    question
        The question; - reads it from standard input, as does a pipe without a question.
    files
        Images, videos, audio files and PDFs, told apart by their extensions. Paths or URLs.
    model
        Name of the model, for servers and gateways with several. Default: the one that is served.
    """
    talk(server, read_questions([*([] if question is None else [question]), *files], "chat"), asking, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What the arguments of a command ask."""

    text: str | None
    """The question; None for a conversation."""
    media: Sequence[str]
    """Paths and URLs of what it is about."""


def read_questions(arguments: Sequence[str], command: str) -> Questions:
    """Returns what arguments ask; reads a question from standard input if that is a pipe. Raises UsageError.

    Args:
        arguments: texts, paths and URLs.
        command: the command whose arguments they are, and what comes before them.
    """
    texts, media = split_arguments(arguments)
    return Questions(text=_question(texts, command), media=media)


def talk(server: Connection, questions: Questions, asking: Asking, *, model: str | None = None) -> None:
    """Asks a running server, or holds a conversation. Ends the process with a message if it does not answer.

    Args:
        server: where it is.
    """
    options = _options(asking)
    flags = ((Image, asking.image), (Video, asking.video), (Audio, asking.audio), (Document, asking.document))
    named = [(kind, name) for kind, names in flags for name in names]
    named += [(kind_of(name) or Image, name) for name in questions.media]
    conversation = ChatHistory(system=asking.system, model=model)
    with _explained(conversation):
        conversation.attachments += [attach(kind, name) for kind, name in named]
        with server.open() as client:
            if questions.text is not None:
                chunks = client.stream(conversation.messages(questions.text), **conversation.options(options))
                if asking.json is None:
                    print_answer(chunks, markdown=asking.markdown)
                else:
                    print_json(chunks)
                return
            from glimpse.server.cli.chat.conversation import Talk, converse  # noqa: PLC0415 - a question needs no prompt

            converse(
                Talk(
                    client=client,
                    options=options,
                    conversation=conversation,
                    keeps_history=asking.history,
                    markdown=asking.markdown,
                )
            )


@contextmanager
def _explained(conversation: ChatHistory) -> Generator[None]:
    """Ends the process with a message where a file cannot be read or the server does not answer."""
    try:
        yield
    except OSError as error:
        if not error.filename:
            raise  # the output, which `explained_output` explains
        sys.exit(f"glimpse: cannot read {error.filename}: {error.strerror}")
    except (ValueError, IncompleteError) as error:
        sys.exit(f"glimpse: {error}")
    except GlimpseError as error:
        sys.exit(f"glimpse: {in_words(error, conversation)}")


def _question(texts: Sequence[str], command: str) -> str | None:
    """Returns the question; None for a conversation. Raises UsageError."""
    if texts and texts[0].startswith("--"):
        raise UsageError(f"unknown option {texts[0]}; {_meant(texts[0])}")
    if len(texts) > 1:
        quoted = shlex.quote(" ".join(texts))
        raise UsageError(f"'QUESTION': expected one text, got {len(texts)}; use quotes: glimpse {command} {quoted}")
    if not texts:
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        return None if is_terminal else _read_question()
    return _read_question() if texts[0] == "-" else texts[0]


def _meant(flag: str) -> str:
    known = [f"--{each.name.replace('_', '-')}" for group in (Asking, Connection) for each in fields(group)]
    near = closest(flag.partition("=")[0], known)
    return f"did you mean {near}?" if near else "`glimpse chat --help` lists the options"


def _read_question() -> str:
    try:
        text = sys.stdin.read()
        text.encode()  # in some locales, bytes of other encodings were read as surrogates
    except UnicodeError:
        raise UsageError("'QUESTION': expected a text in UTF-8 in standard input, got other bytes") from None
    if not text.strip():
        raise UsageError("'QUESTION': expected a text, got an empty standard input")
    return text


def _options(asking: Asking) -> ChatOptions:
    options = ChatOptions()
    if asking.json is not None:
        options["response_format"] = _read_schema(asking.json)
    if asking.max_tokens is not None:
        options["max_completion_tokens"] = asking.max_tokens
    if asking.temperature is not None:
        options["temperature"] = asking.temperature
    return options


def _read_schema(text: str) -> Mapping[str, Any]:
    """Returns the schema in a text or a file. Raises UsageError."""
    try:
        content = text if text.lstrip().startswith("{") else Path(text).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        reason = f"expected a JSON Schema or a file with one, got {text!r}: {error.strerror}"
        raise UsageError(f"'--json': {reason}") from error
    try:
        schema = json.loads(content)
    except ValueError as error:
        raise UsageError(f"'--json': expected a JSON Schema, got what is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"'--json': expected a JSON object, got {content.strip()[:40]!r}")
    return schema
