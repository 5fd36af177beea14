"""What `glimpse check` prints."""

from collections.abc import Iterator
from math import ceil

import msgspec

from glimpse.engine.worker.loading.check_messages import (
    ComputingReport,
    Context,
    Decoding,
    Memory,
    ServingCheck,
    TensorCheck,
)
from glimpse.server.cli.local.tables import size_text

MIB = 1 << 20
_SHOWN = 8
"""Names of tensors that are listed."""


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model can be served, and why not."""

    model: str
    """Model, by the name that was given."""
    can_be_served: bool
    problems: list[str]
    """Empty if it can be served."""
    weights_are_here: bool = False
    architecture: str | None = None
    """None if the configuration cannot be read, like all that follows."""
    inputs: list[str] = []
    """Kinds of content that requests may carry."""
    template: str | None = None
    """Where the chat template comes from; None if it cannot be read."""
    tools: str | None = None
    """Format in which the model writes tool calls; None if its chat template knows no tools."""
    reasoning: str | None = None
    """Format in which the model reasons before it answers; None if its chat template knows no reasoning."""
    not_applied: list[str] = []
    """Fields of the checkpoint's `generation_config.json`, with their values, that change answers elsewhere."""
    engine: ServingCheck | None = None


def check_text(check: ModelCheck) -> str:
    """Returns the verdict and a line for each thing that was found out."""
    lines = [_verdict(check), *(f"- {problem}" for problem in check.problems)]
    rows = [*_rows(check)]
    width = max((len(name) for name, _ in rows), default=0)
    if rows:
        lines.append("")
    return "\n".join([*lines, *(f"{name:{width}}  {text}" for name, text in rows)])


def _verdict(check: ModelCheck) -> str:
    if not check.can_be_served:
        return f"{check.model} cannot be served here:"
    when = "" if check.weights_are_here else " once its weights are here"
    return f"{check.model} can be served here{when}."


def _rows(check: ModelCheck) -> Iterator[tuple[str, str]]:
    if check.architecture is None:
        return
    engine = check.engine or ServingCheck(problems=[])
    size = "" if engine.num_parameters is None else f", {_parameters(engine.num_parameters)}"
    yield "model", check.architecture + size
    yield "inputs", ", ".join(check.inputs)
    if check.template:
        yield "template", check.template
    yield "tools", f"yes, in the {check.tools} format" if check.tools else "no: the chat template knows none"
    if check.reasoning:
        yield "reasoning", f"yes, in the {check.reasoning} format"
    if check.not_applied:
        yield "not applied", f"{', '.join(check.not_applied)} in generation_config.json"
    if engine.computing:
        yield "computing", _computing(engine.computing)
    if engine.memory:
        yield "memory", _memory(engine.memory)
    if engine.memory and engine.computing and engine.memory.weights_in:
        titles = {"none": engine.computing.dtype}
        sizes = (f"{size_text(size)} in {titles.get(name, name)}" for name, size in engine.memory.weights_in.items())
        yield "weights", ", ".join(sizes)
    if engine.context:
        yield "context", _context(engine.context)
    if engine.decoding:
        yield "decoding", _decoding(engine.decoding)
    yield "tensors", _tensors(engine.tensors)


def _computing(computing: ComputingReport) -> str:
    weights = "" if computing.quantization == "none" else f", {computing.quantization} weights"
    kernels = f"{computing.backend} backend" + (f" ({computing.cpu_level})" if computing.cpu_level else "")
    threads = f", {computing.num_threads} threads" if computing.num_threads else ""
    slow = f"; slower than native kernels, because {computing.why_not_native}" if computing.why_not_native else ""
    return f"{computing.device}, {kernels}, {computing.dtype}{weights}{threads}{slow}"


def _memory(memory: Memory) -> str:
    available = "unknown amount" if memory.available is None else size_text(memory.available)
    needed, weights, kv_cache, rest = map(size_text, (memory.needed, memory.weights, memory.kv_cache, memory.besides))
    adapters = f"adapters {size_text(memory.adapters)}, " if memory.adapters else ""
    return f"{needed} of the {available} available: weights {weights}, KV cache {kv_cache}, {adapters}the rest {rest}"


def _context(context: Context) -> str:
    states = f"; {context.num_states} states of {size_text(context.state_bytes)}" if context.num_states else ""
    states += f"; {context.sliding_tokens} tokens in windows of sliding layers" if context.sliding_tokens else ""
    is_all = context.window == context.trained
    text = f"{context.window} tokens" if is_all else f"{context.window} of the model's {context.trained} tokens"
    if is_all or context.window < context.kv_cache_tokens:
        taken = f"{size_text(context.sequence_bytes)} for a sequence of {context.window}"
        return f"{text}; the KV cache holds {context.kv_cache_tokens}, {taken}{states}"
    needed = ceil(context.needed_bytes / MIB)
    return f"{text}, which the KV cache holds{states}; --kv-cache-bytes {needed}MiB holds all"


def _decoding(decoding: Decoding) -> str:
    read = f"{size_text(decoding.weight_bytes)} of weights are read for each token"
    if decoding.read_rate is None or decoding.tokens_per_second is None:
        return f"{read}; the memory's read rate was not measured, because too little is free"
    rate, speed = f"{size_text(decoding.read_rate)}/s", decoding.tokens_per_second
    return f"at most {speed:.{0 if speed >= 10 else 1}f} tokens/s for one answer: {read}, at a measured {rate}"


def _tensors(tensors: TensorCheck | None) -> str:
    if tensors is None:
        return "not compared: the weights are not here"
    if tensors.fits:
        return f"all {tensors.expected} are there"
    parts = [
        f"missing {_listed(tensors.missing)}" if tensors.missing else "",
        f"unexpected {_listed(tensors.unexpected)}" if tensors.unexpected else "",
        _listed(tensors.unfit),
    ]
    return "; ".join(part for part in parts if part)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _parameters(number: int) -> str:
    return f"{number / 1e9:.3g} billion parameters" if number >= 1e9 else f"{number / 1e6:.3g} million parameters"
