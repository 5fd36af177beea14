"""`glimpse bench`: its flags. `run_bench` is what it does."""

from typing import Annotated

from cyclopts import Parameter


def bench(
    model: str | None = None,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    levels: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measures this machine and a model on it, in about a minute: memory, arithmetic, first tokens, tokens per second.

    The model is served and asked as by a client. Programs that compute meanwhile lower the figures; the report says
    how busy the machine was.

    Parameters
    ----------
    model
        Folder of a checkpoint, or its id on the Hugging Face Hub. Default: the small model that comes with Glimpse.
    flags
        Flags of `glimpse serve`, such as --quantization=int8.
    levels
        Also measure how near the engine comes to this machine's limits, at each of its instruction set levels, with
        bfloat16, int8, w8a8 and int4 weights: some ten seconds for each. A model of a few megabytes stays in the
        caches, so name one of a gigabyte.
    json
        Print the figures as JSON.
    """
    from glimpse.server.cli.machine.run_bench import run_bench  # noqa: PLC0415 - `--help` loads no client

    run_bench(model, flags, with_levels=levels, as_json=json)
