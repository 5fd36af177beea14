"""`glimpse check`: its flags. `glimpse.server.cli.run_check` is what it does."""

from typing import Annotated

from cyclopts import Group, Parameter

from glimpse.server.settings import ModelSettings

_Flags = Annotated[ModelSettings, Parameter(name="*", group=Group("Model", sort_key=1))]
_DEFAULTS = ModelSettings()


def check(
    model: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    settings: _Flags = _DEFAULTS,
) -> None:
    """Tells whether this machine can serve a model with these flags; exit status 0 if it can, 1 if not.

    Of a model on the hub, it downloads the configuration and the tokenizer, and reads the headers of the weights.

    Parameters
    ----------
    model
        Folder of a checkpoint, or its id on the Hugging Face Hub. Default: the small model that comes with Glimpse.
    json
        Print the result as JSON.
    """
    from glimpse.server.cli.run_check import run_check  # noqa: PLC0415 - `--help` and refused flags load no engine

    run_check(model, settings, as_json=json)
