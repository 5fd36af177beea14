"""A conversation at the terminal: lines are questions or commands. Ctrl-C ends an answer, Ctrl-D the conversation."""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prompt_toolkit import PromptSession

from glimpse.client import ChatOptions, Chunk, Client, GlimpseError
from glimpse.server.cli.chat.answer import print_answer
from glimpse.server.cli.chat.attachments import find_media
from glimpse.server.cli.chat.connection import in_words
from glimpse.server.cli.chat.history import ChatHistory
from glimpse.server.cli.chat.prompt import make_prompt
from glimpse.server.cli.chat.slash import COMMANDS, CommandError, run_command
from glimpse.server.cli.console import say
from glimpse.v1 import model_pb2

_CONNECT_SECONDS = 10.0
_ENDS = ("exit", "quit")
"""Lines that end the conversation as /exit does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation with a server."""

    client: Client
    options: ChatOptions
    """Options of all questions, but for the model."""
    conversation: ChatHistory
    keeps_history: bool
    """Keep the lines that are typed in a file."""
    markdown: bool
    """Render answers as Markdown."""


def converse(talk: Talk) -> None:
    """Holds a conversation until Ctrl-D. Raises GlimpseError if the server does not answer at its beginning."""
    conversation = talk.conversation
    models = talk.client.models(timeout=_CONNECT_SECONDS)
    conversation.models = [each.id for each in models]
    _show(_greeting(models, conversation.model))
    prompt = make_prompt(keeps_history=talk.keeps_history)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C ends a part, not the program
    while True:
        try:
            _take(talk, _read(prompt, conversation))
        except KeyboardInterrupt:
            _show("Ctrl-D ends the conversation.")
        except EOFError:
            return
        except GlimpseError as error:
            _show(_refusal(error, conversation))
        except (CommandError, ValueError) as error:
            _show(str(error))
        except OSError as error:
            _show(f"cannot use {error.filename}: {error.strerror}")


def _refusal(error: GlimpseError, conversation: ChatHistory) -> str:
    """Returns why a question failed. A file that was refused is not part of the next question."""
    words = in_words(error, conversation)
    refused = conversation.attachment(error.field or "")
    if refused in conversation.attachments:
        conversation.attachments.remove(refused)
        return f"{words}\nThe next question is not about this file."
    return f"{words}\n/detach asks without the files." if conversation.attachments else words


def _greeting(models: Sequence[model_pb2.Model], name: str | None) -> str:
    model = next((each for each in models if each.id == name), models[0])
    inputs = (model_pb2.Modality.Name(each).removeprefix("MODALITY_").lower() for each in model.input_modalities)
    return f"{name or model.id} understands {', '.join(inputs)}. /help lists the commands, Ctrl-D ends."


def _read(prompt: PromptSession[str], conversation: ChatHistory) -> str:
    names = ", ".join(Path(each.name).name for each in conversation.attachments)
    return prompt.prompt(f"[{names}] > " if names else "> ")


def _take(talk: Talk, line: str) -> None:
    """Runs a command, or asks a question. A line with nothing but media is the beginning of one."""
    conversation = talk.conversation
    if line.strip() in _ENDS:
        _show("/exit and Ctrl-D end the conversation too.")
        raise EOFError
    if line.partition(" ")[0].strip() in COMMANDS:
        _show(run_command(conversation, line))
        return
    question, media = find_media(line)
    if question.startswith("/") and not media:
        run_command(conversation, line)  # says that there is no such command
    conversation.attachments += media
    if question:
        _answer(talk, question)


def _answer(talk: Talk, question: str) -> None:
    """Prints an answer and adds it to the conversation, as far as it came."""
    conversation = talk.conversation
    written: list[str] = []
    begin = time.monotonic()
    last = None
    with suppress(KeyboardInterrupt):
        chunks = talk.client.stream(conversation.messages(question), **conversation.options(talk.options))
        last = print_answer(chunks, written, markdown=talk.markdown)
    if answer := "".join(written):
        conversation.add(question, answer)
    _show("The answer was stopped." if last is None else _figures(last, time.monotonic() - begin))


def _figures(last: Chunk, seconds: float) -> str:
    usage = last.usage
    return "" if usage is None else f"{usage.completion_tokens} tokens in {seconds:.1f} s"


def _show(text: str) -> None:
    """Prints what is not the model's."""
    if text:
        say(text, style="dim")
