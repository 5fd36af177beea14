"""The kinds of steps that are measured, and what each must read and compute. No engine runs here."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glimpse.engine.benchmark.costs import decode_bytes, decode_flops, prefill_flops, vision_flops
from glimpse.engine.benchmark.limits import StepLimits
from glimpse.engine.checkpoint.model_config.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
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
class ModelWork:
    """The work of a model's steps."""

    model: ModelConfig
    weight_bytes: Callable[[int], float]
    """Bytes of the weights of decoder and head, as stored, that a step of so many tokens reads."""
    value_bytes: int
    """Bytes of a key's or value's number in the KV cache."""

    def decode(self, batch: int, context: int) -> LeastWork:
        """A step of `batch` sequences of `context` tokens."""
        text, weight_bytes = self.model.text, self.weight_bytes(batch)
        num_bytes = decode_bytes(text, weight_bytes, batch=batch, context=context, value_bytes=self.value_bytes)
        return LeastWork(num_bytes=num_bytes, flops=decode_flops(text, batch=batch, context=context))

    def prefill(self, num_tokens: int) -> LeastWork:
        """An uncached prompt."""
        return LeastWork(num_bytes=self.weight_bytes(num_tokens), flops=prefill_flops(self.model.text, num_tokens))

    def mixed(self, batch: int, context: int, num_tokens: int) -> LeastWork:
        """A decode step that also computes a prompt."""
        decode, prefill = self.decode(batch, context), self.prefill(num_tokens)
        return LeastWork(num_bytes=decode.num_bytes, flops=decode.flops + prefill.flops)

    def image(self, width: int, height: int) -> LeastWork:
        """The vision encoder on an image; sides in pixels. Its weights are few."""
        vision = self.model.vision
        num_patches = (width // vision.patch_size) * (height // vision.patch_size)
        return LeastWork(num_bytes=0.0, flops=vision_flops(vision, num_patches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one kind of step."""

    name: str
    milliseconds: float
    """Median."""
    least_milliseconds: float
    work: LeastWork

    def share(self, limits: StepLimits) -> float:
        """Share of the machine's rate, by the median."""
        return 1000 * self.work.seconds(limits) / self.milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The steps of one engine and the limits that were measured beside them."""

    level: str
    """Instruction set level, or the backend if it is not native."""
    weights: str
    """Type or quantization of the weights."""
    limits: StepLimits
    steps: Sequence[Measured]


def measured(name: str, seconds: Sequence[float], work: LeastWork) -> Measured:
    """Makes a result of repeated times."""
    return Measured(
        name=name,
        milliseconds=1000 * statistics.median(seconds),
        least_milliseconds=1000 * min(seconds),
        work=work,
    )
