"""`glimpse run`: its flags. `run_model` is what it does."""

import shlex
from typing import Annotated

from cyclopts import Group, Parameter

from glimpse.server.cli.chat.command import Asking, read_questions
from glimpse.server.cli.flag_forms import DEFAULTS, ServerFlags, check_options, with_model

_ASKING = Asking()


def run(
    model: str | None = None,
    question: Annotated[str | None, Parameter(show_env_var=False)] = None,
    /,
    *files: Annotated[str, Parameter(show_env_var=False)],
    keep: Annotated[bool, Parameter(negative="", group=Group("Question", sort_key=0), show_env_var=False)] = False,
    asking: Asking = _ASKING,
    settings: ServerFlags = DEFAULTS,
) -> None:
    """Talks with a model: downloads it, checks that this machine can serve it, serves it, and asks it.

    Where a server of this machine serves the model, that one is asked.

    Parameters
    ----------
    model
        Folder of a checkpoint, or its id on the Hugging Face Hub. Default: the small model that comes with Glimpse.
    question
        The question; a pipe without one is the question. Neither begins a conversation.
    files
        Images, videos, audio files and PDFs, told apart by their extensions. Paths or URLs.
    keep
        Let the server go on afterwards; `glimpse stop` ends it.
    """
    settings = with_model(settings, model)
    check_options(settings)
    arguments = [*([] if question is None else [question]), *files]
    questions = read_questions(arguments, "run" if model is None else f"run {shlex.quote(model)}")
    from glimpse.server.cli.local.run_model import run_model  # noqa: PLC0415 - `--help` and refused flags load no engine

    run_model(settings, questions, asking, keep=keep)
