"""`glimpse models`: what a server serves, and which families of models Glimpse knows."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter
from google.protobuf import json_format

from glimpse.client import GlimpseError
from glimpse.server.cli.chat.connection import Connection
from glimpse.server.cli.local.tables import json_text, table
from glimpse.v1 import model_pb2

_DEFAULTS = Connection()
_SECONDS = 10.0


def models(
    *,
    families: Annotated[bool, Parameter(negative="")] = False,
    recommend: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    server: Connection = _DEFAULTS,
) -> None:
    """Lists the models of a running server: names, context, inputs, and what requests may ask for.

    Parameters
    ----------
    families
        List the architectures that Glimpse can serve instead. Needs no server.
    recommend
        List published models that fit into this machine instead, with the most tokens per second of one answer. Needs
        no server.
    json
        Print JSON.
    """
    if families:
        print("\n".join(_families(as_json=json)))
        return
    if recommend:
        print(_recommended(as_json=json))
        return
    served = served_models(server)
    if json:
        print(json_format.MessageToJson(model_pb2.ListModelsResponse(data=served), preserving_proto_field_name=True))
    else:
        print(models_text(served))


def served_models(server: Connection) -> Sequence[model_pb2.Model]:
    """Returns the models of a running server. Ends the process with a message if it does not tell them."""
    try:
        with server.open() as client:
            return client.models(timeout=_SECONDS)
    except GlimpseError as error:
        sys.exit(f"glimpse: {error.message}")
    except OSError as error:
        sys.exit(f"glimpse: cannot read {error.filename}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"glimpse: {error}")


def models_text(served: Sequence[model_pb2.Model]) -> str:
    """Returns a table with a row for each name."""
    return table(("NAME", "CONTEXT", "INPUTS", "SUPPORTS"), map(_row, served))


def _row(model: model_pb2.Model) -> tuple[str, str, str, str]:
    inputs = (model_pb2.Modality.Name(each).removeprefix("MODALITY_").lower() for each in model.input_modalities)
    able = model.capabilities
    known = {
        "tools": able.tools,
        "reasoning": able.reasoning,
        "structured outputs": able.structured_outputs,
        "logprobs": able.logprobs,
    }
    names = ", ".join(name for name, is_known in known.items() if is_known)
    return model.id, str(model.max_model_len), ", ".join(inputs), names


def _recommended(*, as_json: bool) -> str:
    from glimpse.server.cli.local.recommend import look, recommendations_text  # noqa: PLC0415 - as below

    found = look()
    if isinstance(found, str):
        sys.exit(f"glimpse: {found}")
    return json_text(found) if as_json else recommendations_text(found)


def _families(*, as_json: bool) -> Iterator[str]:
    # The table of a server needs no families.
    from glimpse.engine.checkpoint.families.registry import FAMILIES  # noqa: PLC0415

    media = [name for name, spec in FAMILIES.items() if spec.reads_media]
    text = [name for name, spec in FAMILIES.items() if not spec.reads_media]
    if as_json:
        yield json_text({"with_media": media, "text": text})
        return
    yield from ("With images, videos or audio:", *(f"  {name}" for name in media))
    yield from ("With text alone:", *(f"  {name}" for name in text))
    yield "config.json of a checkpoint names its own. `glimpse check MODEL` tells whether this machine can serve it."
