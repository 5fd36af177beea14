"""Divergence of a backend's or a quantization's logits from float32, on prompts of random tokens.

    python -m bench.engine.divergence CHECKPOINT [--prompts 8] [--tokens 256] [--device cuda] [--states]

Each variant scores every token of the same prompts. Columns: the root mean square difference of the logits in standard
deviations of the exact ones, the mean Kullback-Leibler divergence from the exact distribution, and how often both rank
the same token first. Needs memory for a float32 model and an unquantized checkpoint. On the CPU, torch computes int4
and fp8 too, with a GPU's results except for the order of sums.

With --states the layers that keep states are tried instead: one token at a time, with states in float32, as they are
served, and rounded to bfloat16 after each token.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.figures import significant, table
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import NO_STATE, ChunkStates, SequenceChunk
from glimpse.engine.worker.cuda.backend import make_cuda_ops
from glimpse.engine.worker.layers.quantized import QuantizationScheme
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.native.backend import use_native, why_not_native
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import CacheShape

_BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Divergence of one variant from float32, over all tokens."""

    rms: float
    """Root mean square of the logits' difference, in standard deviations of the exact logits."""
    kl_nats: float
    same_first: float
    """Share of positions where both rank the same token first."""


def divergence(exact: Tensor, logits: Tensor) -> Divergence:
    """float32 [tokens, vocabulary] each."""
    log_exact, log_other = functional.log_softmax(exact, dim=-1), functional.log_softmax(logits, dim=-1)
    return Divergence(
        rms=((logits - exact).square().mean().sqrt() / exact.std()).item(),
        kl_nats=(log_exact.exp() * (log_exact - log_other)).sum(dim=-1).mean().item(),
        same_first=(exact.argmax(dim=-1) == logits.argmax(dim=-1)).float().mean().item(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A configuration to compare."""

    scheme: QuantizationScheme | None = None
    """Quantization of the decoder's layers."""
    backend: Literal["torch", "native", "triton"] = "torch"
    int8_head: bool = False
    """Whether the output head is quantized too, as native kernels serve it."""
    states: torch.dtype | None = None
    """Tokens are computed one at a time, and states are rounded to this type after each."""

    def __str__(self) -> str:
        head = ", int8 head" if self.int8_head else ""
        states = "" if self.states is None else f", states in {self.states}".replace("torch.", "")
        return f"{self.backend} {self.scheme or 'bfloat16'}{head}{states}"


EXACT = Variant()
"""Computes in float32."""

ON_CPU = (
    Variant(),
    Variant(backend="native"),
    Variant(scheme="int8"),
    Variant(scheme="int8", backend="native"),
    Variant(scheme="int8", backend="native", int8_head=True),
    Variant(scheme="fp8"),
    Variant(scheme="int4"),
    Variant(scheme="int4", backend="native"),
    Variant(scheme="int4", backend="native", int8_head=True),
)
OF_STATES = tuple(Variant(backend="native", states=dtype) for dtype in (torch.float32, torch.bfloat16))
ON_GPU = (
    Variant(),
    Variant(backend="triton"),
    Variant(scheme="int8", backend="triton"),
    Variant(scheme="fp8", backend="triton"),
    Variant(scheme="int4", backend="triton"),
)


def score(
    path: Path, dtype: torch.dtype, variant: Variant, prompts: Sequence[tuple[int, ...]], device: torch.device
) -> Tensor:
    """Returns float32 [all tokens, vocabulary]: the logits after each token of each prompt."""
    config = load_model_config(path)
    model = load_model(path, config, device, dtype, lambda _stage, _fraction: None, scheme=variant.scheme)
    if variant.int8_head:
        model.decoder.quantize_head()
    match variant.backend:
        case "native":
            model.ops = use_native(model, dtype=dtype)
        case "triton":
            model.ops = make_cuda_ops("triton", num_heads=config.text.num_heads, device=device)
        case "torch":
            pass
    with torch.inference_mode():
        return torch.cat([_score(model, config, dtype, variant, prompt, device) for prompt in prompts])


def compare(
    path: Path, prompts: Sequence[tuple[int, ...]], variants: Sequence[Variant], device: torch.device
) -> Iterator[tuple[Variant, Divergence]]:
    """Formats each variant's divergence from float32."""
    exact = score(path, torch.float32, EXACT, prompts, device)
    for variant in variants:
        yield variant, divergence(exact, score(path, torch.bfloat16, variant, prompts, device))


def _score(
    model: Model,
    config: ModelConfig,
    dtype: torch.dtype,
    variant: Variant,
    prompt: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    num_blocks = -(-len(prompt) // _BLOCK_SIZE)
    cache = CacheShape.of(config.text).allocate(num_blocks, _BLOCK_SIZE, dtype, device, num_states=1)
    layouts = {0: model.layout(len(prompt), ())}
    size = len(prompt) if variant.states is None else 1
    logits: list[Tensor] = []
    for start in range(0, len(prompt), size):
        chunk = SequenceChunk(
            sequence_id=0,
            start=start,
            token_ids=prompt[start : start + size],
            block_table=tuple(range(num_blocks)),
            samples=True,
            num_draft_tokens=size - 1,  # every token is scored, as if it were a draft token
            states=cache.states and ChunkStates(reads=0 if start else NO_STATE, writes=((size, 0),)),
        )
        logits.append(model(make_batch([chunk], layouts, block_size=_BLOCK_SIZE, device=device), cache, {}))
        if variant.states is not None and cache.states is not None:
            recurrent = cache.states.recurrent
            recurrent.copy_(recurrent.to(variant.states))
    return torch.cat(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of each prompt (default: 256)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--states", action="store_true", help="try types of states instead of weights")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(256) for _ in range(arguments.tokens)) for _ in range(arguments.prompts)]
    variants = OF_STATES if arguments.states else ON_CPU if device.type == "cpu" else ON_GPU
    why_not = why_not_native(device) if device.type == "cpu" else None
    if why_not:
        print(f"without the native backend: {why_not}")
        variants = [variant for variant in variants if variant.backend != "native"]
    rows = [
        [str(variant), significant(found.rms), significant(found.kl_nats), f"{100 * found.same_first:.1f} %"]
        for variant, found in compare(arguments.checkpoint, prompts, variants, device)
    ]
    print(table(["variant", "rms of logits, sd", "KL, nats", "same first token"], rows))


if __name__ == "__main__":
    main()
