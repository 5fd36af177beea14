"""The kinds of steps that are measured, what each must read and compute, and the tables. No engine runs here."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.engine.costs import decode_bytes, decode_flops, prefill_flops, vision_flops
from bench.figures import significant, table
from glimpse.engine.benchmark.limits import StepLimits
from glimpse.engine.checkpoint.model_config.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step must do at least."""

    num_bytes: float
    """Bytes to read from memory."""
    flops: float
    """Operations of its matrix products."""

    def seconds(self, limits: StepLimits) -> float:
        """Returns the least time: reading and computing overlap, so the longer of the two."""
        return max(self.num_bytes / limits.read_bytes_per_second, self.flops / limits.flops_per_second)

    def is_read_bound(self, limits: StepLimits) -> bool:
        """Whether reading takes longer than computing."""
        return self.num_bytes / limits.read_bytes_per_second >= self.flops / limits.flops_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of a model's steps."""

    model: ModelConfig
    weight_bytes: Callable[[int], float]
    """Bytes of the weights of decoder and head, as stored, that a step of so many tokens reads."""
    value_bytes: int
    """Bytes of a key's or value's number in the KV cache."""

    def decode(self, batch: int, context: int) -> Work:
        """A step of `batch` sequences of `context` tokens."""
        text, weight_bytes = self.model.text, self.weight_bytes(batch)
        num_bytes = decode_bytes(text, weight_bytes, batch=batch, context=context, value_bytes=self.value_bytes)
        return Work(num_bytes=num_bytes, flops=decode_flops(text, batch=batch, context=context))

    def prefill(self, num_tokens: int) -> Work:
        """An uncached prompt."""
        return Work(num_bytes=self.weight_bytes(num_tokens), flops=prefill_flops(self.model.text, num_tokens))

    def mixed(self, batch: int, context: int, num_tokens: int) -> Work:
        """A decode step that also computes a prompt."""
        decode, prefill = self.decode(batch, context), self.prefill(num_tokens)
        return Work(num_bytes=decode.num_bytes, flops=decode.flops + prefill.flops)

    def image(self, width: int, height: int) -> Work:
        """The vision encoder on an image; sides in pixels. Its weights are few."""
        vision = self.model.vision
        num_patches = (width // vision.patch_size) * (height // vision.patch_size)
        return Work(num_bytes=0.0, flops=vision_flops(vision, num_patches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one kind of step."""

    name: str
    milliseconds: float
    """Median."""
    least_milliseconds: float
    work: Work

    def share(self, limits: StepLimits) -> float:
        """Share of the machine's rate, by the median."""
        return 1000 * self.work.seconds(limits) / self.milliseconds

    def rate(self, limits: StepLimits) -> str:
        """The rate, by the median, of what the step is bound by."""
        if self.work.is_read_bound(limits):
            return f"{significant(self.work.num_bytes / self.milliseconds / 1e6)} GB/s"
        return f"{significant(self.work.flops / self.milliseconds / 1e9)} TFLOP/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The steps of one engine and the limits that were measured beside them."""

    level: str
    """Instruction set level, or the backend if it is not native."""
    weights: str
    """Type or quantization of the weights."""
    limits: StepLimits
    steps: Sequence[Measured]


def measured(name: str, seconds: Sequence[float], work: Work) -> Measured:
    """Makes a result of repeated times."""
    return Measured(
        name=name,
        milliseconds=1000 * statistics.median(seconds),
        least_milliseconds=1000 * min(seconds),
        work=work,
    )


def text_table(variant: Variant) -> str:
    """Formats all steps of an engine."""
    header = ["step", "median ms", "least ms", "rate", "of the limit"]
    rows = [_row(each, variant.limits) for each in variant.steps]
    return f"{variant.level}, {variant.weights} weights: limits {variant.limits}\n\n{table(header, rows)}"


def _row(each: Measured, limits: StepLimits) -> list[str]:
    times = (f"{each.milliseconds:.2f}", f"{each.least_milliseconds:.2f}")
    return [each.name, *times, each.rate(limits), _percent(each, limits)]


def summary(variants: Sequence[Variant]) -> str:
    """Formats one column per engine: the median in milliseconds and its share of the limit for each kind of step."""
    names = dict.fromkeys(each.name for variant in variants for each in variant.steps)
    header = ["step, ms", *(f"{variant.level}, {variant.weights}" for variant in variants)]
    return table(header, [[name, *(_summary_cell(variant, name) for variant in variants)] for name in names])


def _summary_cell(variant: Variant, name: str) -> str:
    found = next((each for each in variant.steps if each.name == name), None)
    return f"{significant(found.milliseconds)} ({_percent(found, variant.limits)})" if found else "–"


def _percent(each: Measured, limits: StepLimits) -> str:
    return f"{100 * each.share(limits):.0f} %"
