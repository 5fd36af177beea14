"""Which published models this machine can serve, and how fast: `glimpse models --recommend`."""

import os
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import groupby

import msgspec

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.native.processors import num_processors
from glimpse.server.cli.local.tables import size_text, table
from glimpse.server.cli.run_check import check_model
from glimpse.server.settings import ModelSettings

_MIN_SPEED = 5.0
"""Tokens per second that a recommended model can reach: about as fast as people read."""

_HOW = """\
Tokens/s: the rate at which this machine reads memory, divided by the bytes of weights that are read for each token. No
single answer is faster; images, long contexts and other programs make it slower. `glimpse bench` measures a model.
`glimpse run MODEL FLAGS` downloads one and talks with it. Read its licence first."""


class PublishedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint on the Hugging Face Hub. Sizes are those on a CPU, with default options."""

    name: str
    family: str
    use: str
    inputs: list[str]
    tools: bool
    reasoning: bool
    licence: str
    architecture: str
    parameters: int
    context: int
    kv_bytes: int
    """Bytes that a token takes in the KV cache."""
    needed: dict[str, int]
    """Bytes of memory that serving takes, by --quantization, the most accurate first."""
    read: dict[str, int]
    """Bytes of weights that are read for each token, by --quantization."""
    generates: bool = True
    """Whether there is an output head; other models embed alone."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A model that fits."""

    model: str
    family: str
    inputs: list[str]
    flags: str
    """Flags of the server with which it fits."""
    needed: int
    """Bytes of memory."""
    tokens_per_second: float | None
    """An upper bound for one answer; None if the read rate was not measured."""
    licence: str


class Recommendations(msgspec.Struct, frozen=True, kw_only=True):
    """What fits into a machine."""

    device: str
    available: int
    """Bytes of memory that a server may take."""
    read_rate: float | None
    """Bytes per second, measured."""
    load: float = 0.0
    """Load average of the last minute: other programs make the rate smaller."""
    models: list[Recommendation]
    """The largest of each family, the larger families first."""
    too_large: list[str]
    """Families without a model that fits and is fast enough."""


def published_models() -> list[PublishedModel]:
    """Returns the published models that Glimpse knows."""
    data = resources.files("glimpse.server.cli.local").joinpath("published.json").read_bytes()
    return msgspec.json.decode(data, type=list[PublishedModel])


def look() -> Recommendations | str:
    """Looks at this machine, and returns what fits, or why that cannot be said."""
    check = check_model(str(DEFAULT_MODEL), ModelSettings()).engine
    if check is None or check.memory is None or check.memory.available is None or check.computing is None:
        return "the system does not say how much memory is available; `glimpse check MODEL` looks at one model"
    rate = None if check.decoding is None else check.decoding.read_rate
    load = os.getloadavg()[0]
    memory = check.memory.available
    found = recommend(published_models(), device=check.computing.device, available=memory, rate=rate)
    return msgspec.structs.replace(found, load=load)


def recommend(models: Iterable[PublishedModel], *, device: str, available: int, rate: float | None) -> Recommendations:
    """Returns the largest model of each family that answers, fits and can be as fast as people read.

    Args:
        device: where they compute.
        available: bytes of memory.
        rate: bytes per second that the device reads from its memory; None if it is not known.
    """
    chosen: list[tuple[int, Recommendation]] = []
    too_large: list[str] = []
    by_family = sorted((model for model in models if model.generates), key=lambda model: model.family)
    for family, members in groupby(by_family, key=lambda model: model.family):
        largest_first = sorted(members, key=lambda model: -model.parameters)
        found = next((each for model in largest_first for each in _fitting(model, available, rate)), None)
        if found is None:
            too_large.append(family)
        else:
            chosen.append(found)
    chosen.sort(key=lambda each: -each[0])
    return Recommendations(
        device=device,
        available=available,
        read_rate=rate,
        models=[each for _, each in chosen],
        too_large=too_large,
    )


def _fitting(model: PublishedModel, available: int, rate: float | None) -> Iterator[tuple[int, Recommendation]]:
    """Yields the number of parameters and how the model fits, the most accurate way first."""
    for scheme, needed in model.needed.items():
        speed = None if rate is None else rate / model.read[scheme]
        if needed <= available and (speed is None or speed >= _MIN_SPEED):
            yield (
                model.parameters,
                Recommendation(
                    model=model.name,
                    family=model.family,
                    inputs=model.inputs,
                    flags="" if scheme == "none" else f"--quantization {scheme}",
                    needed=needed,
                    tokens_per_second=speed,
                    licence=model.licence,
                ),
            )


def recommendations_text(found: Recommendations) -> str:
    """Returns a table, what it is about before it, and how to read it after it."""
    rate = "" if found.read_rate is None else f", read at {size_text(found.read_rate)}/s (measured now)"
    if found.load > num_processors():
        rate += f"; other programs keep the processors busy (load {found.load:.1f}), so this is slower than it could be"
    lines = [f"{found.device}: {size_text(found.available)} of memory are available{rate}."]
    if found.models:
        rows = [
            (each.model, ", ".join(each.inputs), each.flags, size_text(each.needed), _speed(each), each.licence)
            for each in found.models
        ]
        lines += ["", table(("MODEL", "INPUTS", "FLAGS", "MEMORY", "TOKENS/S", "LICENCE"), rows)]
    if found.too_large:
        lines += ["", f"Too large or too slow here: {', '.join(found.too_large)}."]
    return "\n".join([*lines, "", _HOW])


def _speed(each: Recommendation) -> str:
    return "–" if each.tokens_per_second is None else f"{each.tokens_per_second:.0f}"
