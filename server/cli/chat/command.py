"""`glimpse chat`: its flags, and questions that are asked once. `conversation` has the others."""

import json as json_module
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from glimpse.client import Audio, ChatOptions, Client, Document, GlimpseError, Image, Video
from glimpse.server.cli.chat.answer import IncompleteError, print_answer, print_json
from glimpse.server.cli.chat.attachments import attach, kind_of, split_arguments
from glimpse.server.cli.chat.connection import Connection, in_words
from glimpse.server.cli.chat.history import ChatHistory
from glimpse.usage import UsageError

_Files = Annotated[tuple[str, ...], Parameter(negative="")]
_DEFAULTS = Connection()


def chat(
    question: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *files: str,
    image: _Files = (),
    video: _Files = (),
    audio: _Files = (),
    document: _Files = (),
    system: str | None = None,
    model: str | None = None,
    json: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    history: bool = True,
    server: Connection = _DEFAULTS,
) -> None:
    """Asks a running server. Without a question, holds a conversation: /help there says how.

    If the model reasons before it answers, standard error shows that.

    Parameters
    ----------
    question
        The question; - reads it from standard input, as does a pipe without a question.
    files
        Images, videos, audio files and PDFs, told apart by their extensions. Paths or URLs.
    image
        An image: a path or a URL. May be repeated.
    video
        A video: a path or a URL. May be repeated.
    audio
        An audio file: a path or a URL. May be repeated.
    document
        A PDF: a path or a URL. May be repeated.
    system
        Text of a system message: instructions for the whole conversation.
    model
        Name of the model, for servers and gateways with several. Default: the one that is served.
    json
        A JSON Schema, or a file with one: the answer is JSON that matches it.
    max_tokens
        The largest number of tokens in the answer. Default: the server's.
    temperature
        0 always chooses the most likely token. Default: the server's, 1 unless its --generation-config says otherwise.
    history
        Keep the lines of conversations in a file, for the arrow keys.
    """
    texts, media = split_arguments([*([] if question is None else [question]), *files])
    options = _options(model, json, max_tokens, temperature)
    text = _question(texts)
    flags = ((Image, image), (Video, video), (Audio, audio), (Document, document))
    named = [(kind, name) for kind, names in flags for name in names]
    named += [(kind_of(name) or Image, name) for name in media]
    conversation = ChatHistory(system=system)
    with _explained(conversation):
        conversation.attachments += [attach(kind, name) for kind, name in named]
        with server.open() as client:
            if text is not None:
                _ask(client, text, conversation, options)
                return
            from glimpse.server.cli.chat.conversation import converse  # noqa: PLC0415 - a question needs no prompt

            converse(client, options, conversation, keeps_history=history)


@contextmanager
def _explained(conversation: ChatHistory) -> Generator[None]:
    """Ends the process with a message where a file cannot be read or the server does not answer."""
    try:
        yield
    except BrokenPipeError:
        raise  # `glimpse.server.cli.app` handles it
    except OSError as error:
        sys.exit(f"glimpse: cannot read {error.filename}: {error.strerror}")
    except (ValueError, IncompleteError) as error:
        sys.exit(f"glimpse: {error}")
    except GlimpseError as error:
        sys.exit(f"glimpse: {in_words(error, conversation)}")


def _question(texts: Sequence[str]) -> str | None:
    """Returns the question; None for a conversation. Raises UsageError."""
    if texts and texts[0].startswith("--"):
        raise UsageError(f"unknown option {texts[0]}; `glimpse chat --help` lists the options")
    if len(texts) > 1:
        quoted = shlex.quote(" ".join(texts))
        raise UsageError(f"'QUESTION': expected one text, got {len(texts)}; use quotes: glimpse chat {quoted}")
    if not texts:
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        return None if is_terminal else _read_question()
    return _read_question() if texts[0] == "-" else texts[0]


def _read_question() -> str:
    text = sys.stdin.read()
    if not text.strip():
        raise UsageError("'QUESTION': expected a text, got an empty standard input")
    return text


def _options(model: str | None, schema: str | None, max_tokens: int | None, temperature: float | None) -> ChatOptions:
    options = ChatOptions()
    if model is not None:
        options["model"] = model
    if schema is not None:
        options["response_format"] = _read_schema(schema)
    if max_tokens is not None:
        options["max_completion_tokens"] = max_tokens
    if temperature is not None:
        options["temperature"] = temperature
    return options


def _read_schema(text: str) -> Mapping[str, Any]:
    """Returns the schema in a text or a file. Raises UsageError."""
    try:
        content = text if text.lstrip().startswith("{") else Path(text).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        reason = f"expected a JSON Schema or a file with one, got {text!r}: {error.strerror}"
        raise UsageError(f"'--json': {reason}") from error
    try:
        schema = json_module.loads(content)
    except ValueError as error:
        raise UsageError(f"'--json': expected a JSON Schema, got what is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"'--json': expected a JSON object, got {content.strip()[:40]!r}")
    return schema


def _ask(client: Client, text: str, conversation: ChatHistory, options: ChatOptions) -> None:
    """Streams the answer to standard output."""
    chunks = client.stream(conversation.messages(text), **options)
    if "response_format" in options:
        print_json(chunks)
    else:
        print_answer(chunks)
        print()
