"""`glimpse batch`: its flags. `run_batch` is what it does."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators


def batch(
    requests: Path,
    results: Path,
    model: str | None = None,
    /,
    *flags: Annotated[str, Parameter(allow_leading_hyphen=True)],
    target: str | None = None,
    at_once: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 64,
) -> None:
    """Answers a file of requests, with a server of its own or one that runs.

    Each line is a request of OpenAI's batches: custom_id, url (such as /v1/chat/completions) and body. Each result is a
    line with the same custom_id, in the order in which they are ready. After Ctrl-C, or a crash, the same command goes
    on: it answers what has no result yet.

    Parameters
    ----------
    requests
        The file of requests (JSONL).
    results
        The file that gets the results. Those that it has are kept.
    model
        Folder of a checkpoint, or its id on the Hugging Face Hub. Default: the small model that comes with Glimpse.
    flags
        Flags of `glimpse serve`, such as --quantization=int8.
    target
        HOST:PORT or URL of a server that runs, or of its gateway, instead of MODEL and FLAGS. GLIMPSE_API_KEY has the
        key for it.
    at_once
        Requests in progress.
    """
    from glimpse.server.cli.batch.run_batch import run_batch  # noqa: PLC0415 - `--help` loads no client

    run_batch(requests, results, model, flags, target=target, at_once=at_once)
